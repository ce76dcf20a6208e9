"""Goal: a config says which groups to store, and a bad or foreign one says why not.

Method: published forms by hand; strict reading by wrong values and by configs mutated at random.
What transformers itself makes of the same configs is compared in test_families_transformers.
"""

from __future__ import annotations

import copy
import itertools
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.errors import ModelError
from anchorstore.families import SUPPORTED, AnchorSpec, groups_of_kinds, spec_from_config
from anchorstore.layout import AnchorLayout, KvLatentLayout, KvLayout

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "configs"
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
GRANITE = CONFIGS["Granite-4.0-H-Tiny"]
KIMI = CONFIGS["Kimi-Linear-48B-A3B"]
NEMOTRON = CONFIGS["Nemotron-3-Nano-30B-A3B"]
OLMO = CONFIGS["OLMo-Hybrid-7B"]
QWEN = CONFIGS["Qwen3.5-4B"]
NEXT = CONFIGS["Qwen3-Next-80B-A3B"]
BAMBA = {"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}
JAMBA = {"model_type": "jamba"}
FALCON = {"model_type": "falcon_h1", "num_hidden_layers": 4}
EVERY = [*CONFIGS.values(), BAMBA, JAMBA, FALCON]


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def inside(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """`config` with changes in its text_config."""
    return config | {"text_config": config["text_config"] | changes}


# ---- what is read ----------------------------------------------------------------------------


def test_spec_of_qwen_has_every_part() -> None:
    spec = spec_from_config(QWEN)
    assert spec == AnchorSpec(
        model_type="qwen3_5_text",
        hidden=2560,
        layer_kinds="LLLA" * 8,
        groups=tuple((4 * g, 4 * g + 1, 4 * g + 2) for g in range(8)),
        first_group_is_embedding=True,
        gap_mode="reset",
        attention_layers=tuple(range(3, 32, 4)),
        kv_heads=4,
        head_dim=256,
        kv_latent_width=None,
        recurrent_bytes=24 * 32 * 128 * 128 * 4,
        conv_bytes=24 * (2 * 16 * 128 + 32 * 128) * 3 * 2,
        dtype="bfloat16",
    )
    assert spec.stored_groups == 7
    assert spec.anchor_layout(4) == AnchorLayout(7, 4, 2560, "bfloat16")
    assert spec.anchor_layout(8, "float32", 128) == AnchorLayout(7, 8, 2560, "float32", 128)
    assert spec.kv_layout() == KvLayout(8, 4, 256, "bfloat16", 0, 4)


def test_spec_of_kimi_keeps_latent_rows() -> None:
    spec = spec_from_config(KIMI)
    assert spec.attention_layers == (3, 7, 11, 15, 19, 23, 26)
    assert spec.groups[-1] == (24, 25)
    assert spec.kv_layout("float32") == KvLatentLayout(7, 576, "float32")


def test_spec_of_nemotron_leaves_feed_forward_ends_out() -> None:
    spec = spec_from_config(NEMOTRON)
    assert spec.layer_kinds.startswith("LFLFLAFLFLFLA")
    assert spec.groups[:2] == ((0, 1, 2, 3, 4), (7, 8, 9, 10, 11))
    assert spec.gap_mode == "concat"


def test_spec_of_falcon_has_a_group_a_layer() -> None:
    spec = spec_from_config(FALCON)
    assert spec.layer_kinds == "BBBB"
    assert spec.groups == ((0,), (1,), (2,), (3,))
    assert spec.attention_layers == spec.linear_layers == (0, 1, 2, 3)
    assert spec.stored_groups == 3


def test_spec_with_feed_forward_before_the_first_linear_layer_stores_group_0() -> None:
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "-M*-M-"}
    spec = spec_from_config(config)
    assert spec.groups == ((1,), (4,))
    assert not spec.first_group_is_embedding
    assert spec.stored_groups == 2


def test_spec_with_attention_first_stores_group_0() -> None:
    spec = spec_from_config(
        NEXT | {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}
    )
    assert (spec.groups, spec.stored_groups) == (((1,),), 1)


KINDS = st.text(alphabet="LAFB", max_size=24)


@given(KINDS)
def test_groups_of_any_kinds_follow_their_definition(kinds: str) -> None:
    groups = groups_of_kinds(kinds)
    flat = [layer for group in groups for layer in group]
    assert flat == sorted(set(flat))
    assert {i for i, kind in enumerate(kinds) if kind in "LB"} <= set(flat)
    for group in groups:
        inner = kinds[group[0] : group[-1] + 1]
        assert list(group) == list(range(group[0], group[-1] + 1))
        assert inner == "B" or (inner[0] == inner[-1] == "L" and set(inner) <= {"L", "F"})
    for left, right in itertools.pairwise(groups):
        between = kinds[left[-1] + 1 : right[0]]
        assert set(between) & {"A", "B"} or "B" in (kinds[left[0]], kinds[right[0]])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (QWEN, QWEN["text_config"]),
        (QWEN, inside(QWEN, layer_types=None)),
        (QWEN, inside(QWEN, model_type="qwen3_5")),
        (NEXT, NEXT | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}),
        (NEXT, without(NEXT, "full_attention_interval")),
        (NEXT, without(NEXT, "torch_dtype") | {"dtype": "torch.bfloat16"}),
        (OLMO, without(OLMO, "linear_key_head_dim", "linear_value_head_dim")),
        (OLMO, OLMO | {"num_key_value_heads": None}),
        (
            GRANITE,
            without(GRANITE, "layer_types") | {"layers_block_type": GRANITE["layer_types"]},
        ),
        (GRANITE, GRANITE | {"mamba_d_head": "auto"}),
        (
            KIMI,
            without(KIMI, "linear_attn_config")
            | {"layer_types": ["full_attention" if i in (3, 7, 11, 15, 19, 23, 26)
                               else "linear_attention" for i in range(27)]},
        ),
        (NEMOTRON, without(NEMOTRON, "num_hidden_layers", "head_dim")),
        (NEMOTRON, without(NEMOTRON, "head_dim") | {"attention_head_dim": 128}),
        (NEMOTRON, without(NEMOTRON, "n_groups", "conv_kernel")
         | {"mamba_n_groups": 8, "mamba_d_conv": 4}),
        (JAMBA, JAMBA | {"attn_layer_period": 8, "attn_layer_offset": 4, "head_dim": 128}),
        (FALCON, FALCON | {"mamba_d_ssm": 1024, "mamba_d_head": 8}),
    ],
    ids=range(16),
)  # fmt: skip
def test_spec_of_two_forms_of_one_config_is_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert spec_from_config(one) == spec_from_config(other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_spec_takes_the_dtype_from_inside_or_around(dtype: str) -> None:
    bare = without(QWEN["text_config"], "dtype")
    assert spec_from_config(bare | {"torch_dtype": dtype}).dtype == dtype
    assert spec_from_config({**QWEN, "text_config": bare, "dtype": dtype}).dtype == dtype
    assert spec_from_config({**QWEN, "text_config": bare}).dtype == "bfloat16"


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("zamba2", "entry is inside it"),
        ("minimax", "a cache of their own"),
        ("lfm2", "short convolutions and no recurrence"),
        ("recurrent_gemma", "sliding window"),
        ("bailing_hybrid", "not verified"),
        ("bailing_moe_linear", "rotate q and k"),
        ("qwen4_exp", "n-gram embedding"),
        ("qwen4_exp_text", "hyper-connections"),
        ("glm5_next", "hyper-connections"),
    ],
)
def test_hybrid_that_is_not_supported_gets_its_own_reason(model_type: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        spec_from_config({"model_type": model_type})
    assert model_type in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_attention_heads": 32},
        {"model_type": "gemma3", "text_config": {"layer_types": ["sliding_attention"]}},
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 4},
        GRANITE | {"layer_types": ["attention"] * 40},
    ],
    ids=["llama", "gemma3", "qwen3", "granite-without-mamba"],
)
def test_model_without_linear_layers_is_told_that_prefix_caching_does_it(
    config: dict[str, Any],
) -> None:
    with pytest.raises(ModelError, match="plain prefix caching does it"):
        spec_from_config(config)


@pytest.mark.parametrize("model_type", ["mamba2", "rwkv6", "banana"])
@pytest.mark.parametrize("rest", [{}, {"layer_types": "mamba", "layers_block_type": 3}])
def test_model_of_unknown_type_is_told_which_are_known(
    model_type: str, rest: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=f"{model_type}: this model_type is not known; supported"):
        spec_from_config({"model_type": model_type, "num_hidden_layers": 4} | rest)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "new_hybrid", "layer_types": ["linear_attention", "full_attention"]},
        {"model_type": "new_hybrid", "mamba_d_state": 16},
        {"model_type": "new_vl", "text_config": {"linear_num_value_heads": 4}},
        {"model_type": "new_vl", "text_config": {"layers_block_type": ["mamba"]}},
    ],
    ids=range(4),
)
def test_unknown_hybrid_is_told_what_is_supported(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="not supported") as caught:
        spec_from_config(config)
    assert all(name in str(caught.value) for name in SUPPORTED)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without(BAMBA, "attn_layer_indices"), "no full-attention layer"),
        (GRANITE | {"layer_types": ["mamba"] * 40}, "no full-attention layer"),
        (NEXT | {"num_hidden_layers": 4}, "no anchor to store"),
        ({}, "model_type is missing"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": 7}, "model_type is 7, must be text"),
        (QWEN | {"text_config": [1]}, "text_config is .* must be a mapping"),
        (inside(QWEN, model_type="llama"), "text_config.model_type is 'llama'"),
        (inside(QWEN, dtype="int4"), "text_config.dtype is 'int4', must be one of float32"),
        (inside(QWEN, dtype={"": "bfloat16"}), "dtype .* must be text"),
        (inside(QWEN, hidden_size="2560"), "text_config.hidden_size is '2560', must be an integer"),
        (inside(QWEN, hidden_size=2560.0), "hidden_size is 2560.0, must be an integer"),
        (inside(QWEN, hidden_size=True), "hidden_size is True, must be an integer"),
        (inside(QWEN, hidden_size=0), "hidden_size is 0, must be 1 to 131072"),
        (inside(QWEN, hidden_size=2**40), "must be 1 to 131072"),
        (inside(QWEN, num_hidden_layers=-1), "num_hidden_layers is -1, must be 1 to 1024"),
        (inside(QWEN, num_hidden_layers=31), "has 32 entries, must have 31"),
        (inside(QWEN, layer_types="L" * 32), "layer_types is .* must be a list"),
        (inside(QWEN, layer_types=[3] * 32), "must be a list of texts"),
        (inside(QWEN, layer_types=["sliding_attention"] * 32), r"layer_types\[0\] is 'sliding"),
        (inside(QWEN, layer_types=["x"] * 1025), "has 1025 entries, limit 1024"),
        (inside(QWEN, num_key_value_heads=3), r"must divide num_attention_heads \(16\)"),
        (inside(QWEN, linear_conv_kernel_dim=65), "linear_conv_kernel_dim is 65, must be 1 to 64"),
        (inside(QWEN, head_dim=2**16, num_key_value_heads=16), "a block of .* bytes, limit"),
        (NEXT | {"full_attention_interval": 0}, "full_attention_interval is 0"),
        (NEXT | {"full_attention_interval": 1}, "plain prefix caching"),
        (OLMO | {"num_attention_heads": 5000}, "num_attention_heads is 5000, must be 1 to 4096"),
        (KIMI | {"linear_attn_config": 3}, "linear_attn_config is 3, must be a mapping"),
        (
            KIMI | {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
            "kda_layers .* must name, with full_attn_layers, 1 to 27 once",
        ),
        (
            KIMI | {"linear_attn_config": {"full_attn_layers": [0], "kda_layers": [1, 2]}},
            "names 0, must be 1 to 27",
        ),
        (BAMBA | {"attn_layer_indices": [32]}, "names 32, must be 0 to 31"),
        (BAMBA | {"attn_layer_indices": [9, 9]}, "names an entry twice"),
        (BAMBA | {"attn_layer_indices": ["9"]}, "must be a list of integers"),
        (BAMBA | {"mamba_n_heads": 100}, "must divide the inner width 8192"),
        (BAMBA | {"mamba_d_head": 32}, "mamba_d_head is 32, must be 64"),
        (BAMBA | {"mamba_d_head": "wide"}, "mamba_d_head is 'wide', must be an integer"),
        (BAMBA | {"hidden_size": 16}, "must not exceed hidden_size"),
        (NEMOTRON | {"num_hidden_layers": 50}, "has 52 letters, must have 50"),
        (NEMOTRON | {"hybrid_override_pattern": "MX"}, "must have 52"),
        (
            without(NEMOTRON, "num_hidden_layers") | {"hybrid_override_pattern": "MXM"},
            "'X' is not one of",
        ),
        (
            without(NEMOTRON, "num_hidden_layers") | {"hybrid_override_pattern": "M*" * 600},
            "has 1200 letters, limit 1024",
        ),
        (NEMOTRON | {"layers_block_type": ["mamba"]}, "has 1 entries, must have 52"),
        (JAMBA | {"attn_layer_offset": 8}, r"must be below attn_layer_period \(8\)"),
        (FALCON | {"mamba_d_ssm": 1000}, "must divide the inner width 1000"),
    ],
    ids=range(44),
)
def test_config_that_makes_no_sense_is_refused_with_key_and_limit(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        spec_from_config(config)


@pytest.mark.parametrize("config", [None, [], "qwen3_next", 3])
def test_config_that_is_no_mapping_is_refused(config: Any) -> None:
    with pytest.raises(ModelError, match="must be a mapping"):
        spec_from_config(config)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(0, 100),
        st.floats(),
        st.sampled_from(["", "auto", "full_attention", "linear_attention", "mamba", "M*M"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["model_type", "num_heads", "kda_layers"]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(st.sampled_from(EVERY), st.data())
def test_config_mutated_at_random_is_refused_or_read_consistently(
    config: dict[str, Any], data: st.DataObject
) -> None:
    config = copy.deepcopy(config)
    target = config.get("text_config", config) if data.draw(st.booleans()) else config
    optional = ["head_dim", "dtype", "layer_types", "mamba_d_ssm", "linear_attn_config", "other"]
    for _ in range(data.draw(st.integers(1, 3))):
        target[data.draw(st.sampled_from(sorted({*target, *optional})))] = data.draw(VALUES)
    try:
        spec = spec_from_config(config)
    except ModelError as error:
        assert 10 < len(str(error)) < 1000
        return
    assert spec.groups == groups_of_kinds(spec.layer_kinds)
    assert spec.anchor_layout(1).block_bytes() == spec.anchor_layout(2).block_bytes() // 2
    assert spec.kv_layout().block_bytes() > 0 and spec.recurrent_bytes > 0
