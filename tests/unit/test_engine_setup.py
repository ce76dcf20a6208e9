"""Goal: what the engine benchmark starts, serves and asks is what its command line says.
Method: command lines, model folders and exams are built and read; nothing is started.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine import cli, models, quality, servers, session, sizing
from benchmarks.engine.events import EndpointError
from benchmarks.engine.quality import Asked
from benchmarks.engine.servers import Setup, Variant
from benchmarks.training.recall_task import ASK, make_exam

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECALL = ROOT / "engine_adapter" / "models" / "recall"
STOCK = Variant("stock", None)
OURS = Variant("anchorstore", {"daemon": "unix:///run/engine.sock"})


@pytest.fixture
def setup(tmp_path: pathlib.Path) -> Setup:
    return Setup(pathlib.Path("python"), tmp_path, 4096, 2**28, tmp_path, ("--enforce-eager",))


# ---- servers ----


def test_variants_differ_by_the_connector_alone(setup: Setup) -> None:
    stock, ours = (servers.command(setup, variant, 9) for variant in (STOCK, OURS))
    assert ours[: len(stock)] == stock
    flag, config = ours[len(stock) :]
    assert flag == "--kv-transfer-config"
    assert json.loads(config) == {
        "kv_connector": "AnchorStoreConnector",
        "kv_connector_module_path": "engine_adapter.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"daemon": "unix:///run/engine.sock"},
    }


def test_stock_server_has_what_vllm_offers_to_hybrids(setup: Setup) -> None:
    words = servers.command(setup, STOCK, 9)
    for flag, value in (("--mamba-cache-mode", "align"), ("--prefix-match-unit", "64")):
        assert words[words.index(flag) + 1] == value
    assert {"--enable-prefix-caching", "--enforce-eager"} <= set(words)


def test_stock_server_loads_no_plugin_and_ours_does(setup: Setup) -> None:
    inherited = {"PATH": "/bin"}
    assert servers.environment(setup, STOCK, inherited)["VLLM_PLUGINS"] == ""
    ours = servers.environment(setup, OURS, inherited)
    assert "VLLM_PLUGINS" not in ours and "VLLM_SERVER_DEV_MODE" not in ours
    assert ours["PATH"] == "/bin" and ours["HF_HUB_OFFLINE"] == "1"


def test_servers_of_all_variants_leave_equally_many_cores(setup: Setup) -> None:
    name = "VLLM_CPU_NUM_OF_RESERVED_CPU"
    for variant in (STOCK, OURS):
        assert servers.environment(setup, variant, {})[name] == "1"
        assert servers.environment(setup, variant, {name: "3"})[name] == "3"


def test_python_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EndpointError, match="cannot be run"):
        servers.require_modules(tmp_path / "python", ["json"])


# ---- models ----


def test_serving_copy_of_a_model_without_tokenizer_adds_one(tmp_path: pathlib.Path) -> None:
    copy = models.serving_copy(RECALL, tmp_path)
    assert copy.parent == tmp_path and models.has_tokenizer(copy)
    assert (copy / "model.safetensors").resolve() == (RECALL / "model.safetensors").resolve()
    assert models.facts(copy).vocabulary == models.facts(RECALL).vocabulary == 128
    assert not models.has_tokenizer(RECALL)
    assert models.serving_copy(RECALL, tmp_path) == copy  # and again, over the one that is there
    assert models.serving_copy(copy, tmp_path) == copy


def test_written_tokenizer_maps_words_to_their_ids(tmp_path: pathlib.Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    for name, text in models.tokenizer_files(40).items():
        (tmp_path / name).write_text(text)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / models.TOKENIZER))
    assert tokenizer.encode("t7 t39 t0").ids == [7, 39, 0]
    assert tokenizer.decode([7, 39]) == "t7 t39"


@pytest.mark.parametrize(
    ("config", "reason"),
    [(None, "no config.json"), ("{", "cannot be read"), ("[]", "no object"), ("{}", "vocab_size")],
)
def test_folder_that_is_no_model_is_refused(
    tmp_path: pathlib.Path, config: str | None, reason: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(EndpointError, match=reason):
        models.serving_copy(tmp_path, tmp_path)


@pytest.mark.parametrize("hidden", models.SIZES)
def test_random_model_has_shapes_that_kernels_take(hidden: int) -> None:
    config = models.random_config(hidden)
    assert len(config["layer_types"]) == config["num_hidden_layers"]
    assert config["linear_key_head_dim"] == config["linear_value_head_dim"] == 128
    assert config["linear_num_value_heads"] % config["linear_num_key_heads"] == 0
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert hidden % 64 == 0


@given(st.sampled_from(models.SIZES), st.floats(0, sizing.LEAST_SECONDS))
def test_next_size_grows_and_ends(hidden: int, seconds: float) -> None:
    found = sizing.next_size(hidden, seconds)
    assert (found is None) == (hidden == models.SIZES[-1])
    assert found is None or found > hidden


# ---- exams ----


def test_text_exam_asks_for_each_byte_after_the_prefix() -> None:
    text = bytes(range(256)) * 8
    first, last = quality.text_documents(text, 2)
    assert len(first.prefix) == 1024 and len(first.questions) == 32
    for number, question in enumerate(first.questions):
        assert question.prompt == tuple(text[: 1024 + number])
        assert question.answer == text[1024 + number]
    assert last.questions[-1].answer == text[-1]
    with pytest.raises(EndpointError, match="too short"):
        quality.text_documents(text[:1055], 1)


def test_recall_exam_asks_with_the_right_answers_before() -> None:
    exam = make_exam(random.Random(1), 512)
    document = quality.recall_document(exam)
    tokens = exam.prefix + exam.asks
    assert len(document.questions) == 16 and document.prefix == tuple(exam.prefix)
    for question in document.questions:
        length = len(question.prompt)
        assert list(question.prompt) == tokens[:length]
        assert question.prompt[-2] == ASK and question.answer == tokens[length]


def test_exams_are_those_of_the_trained_models(tmp_path: pathlib.Path) -> None:
    assert list(quality.exams_of(RECALL, 128, True)) == [
        "recall unique, n = 512",
        "recall redundant, n = 1024",
    ]
    [name] = quality.exams_of(RECALL.parent / "text", 256, True)
    assert name.startswith("text")
    with pytest.raises(EndpointError, match="--quality knows"):
        quality.exams_of(tmp_path, 512, True)


def test_summary_stands_beside_the_exact_line() -> None:
    exact = quality.summary("e", "exact", [Asked(True, 1.0, 0, 64), Asked(True, 1.0, 0, 64)], None)
    assert (exact["accuracy_kept"], exact["bits_to_exact"], exact["of_ideal"]) == (1.0, 1.0, 0.0)
    ours = [Asked(True, 1.0, 64, 64), Asked(False, 3.0, 128, 64)]
    found = quality.summary("e", "ours", ours, exact)
    assert (found["accuracy"], found["accuracy_kept"], found["bits"]) == (0.5, 0.5, 2.0)
    assert (found["bits_to_exact"], found["of_ideal"], found["reused_tokens"]) == (0.5, 1.0, 192)


# ---- command line ----


def plan(*words: str) -> session.Plan:
    return cli.plan_of(cli.make_parser().parse_args(words))


def test_plan_by_default_is_stock_beside_anchorstore_on_the_text_model() -> None:
    found = plan()
    assert [variant.name for variant in found.variants] == ["stock", "anchorstore"]
    assert found.variants[0].connector is None and found.variants[1].connector == {}
    assert found.model is not None and found.model.name == "text"
    assert (found.kind, found.pairs, found.kv_cache_bytes) == ("branches", 30, 2**30)


def test_plan_of_exams_has_the_controls_beside_the_exact_answers() -> None:
    found = plan("--quality")
    names = ["stock", "every-row", "anchorstore", "kv-only", "zero-state"]
    assert [variant.name for variant in found.variants] == names
    margins = [found.rules_of(variant).margin_tokens for variant in found.variants]
    assert margins == [128, 0, 128, 128, 0]


def test_plan_takes_variants_flags_and_sizes() -> None:
    found = plan(
        *("--variant", "stock", "--variant", 'w0={"margin_tokens": 0}', "--eager", "--quick"),
        *("--server-flag=--seed=1", "--kv-cache", "512MiB", "--random-model", "--trace", "agents"),
    )
    assert found.variants[1] == Variant("w0", {"margin_tokens": 0})
    assert found.flags == ("--seed=1", "--enforce-eager")
    assert (found.kv_cache_bytes, found.model) == (2**29, None)
    assert plan("--variant", "again=stock").variants == (Variant("again", None),)
    assert found.pairs == cli.MIXED_FACTOR * cli.QUICK_PAIRS


@pytest.mark.parametrize(
    "words",
    [
        ("--trace", "lunch"),
        ("--variant", "stock={}"),
        ("--variant", "a b"),
        ("--variant", "ours={"),
        ("--variant", "ours=[1]"),
        ("--token-ids", "5"),
        ("--kv-cache", "lots"),
        ("--model", "x", "--endpoint", "http://host"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.make_parser().parse_args(words)
    assert "error: argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--endpoint", "http://host", "--quality"), "neither"),
        (("--endpoint", "http://host", "--endpoint", "http://host"), "two of a name"),
        (("--variant", "stock", "--variant", "stock"), "two of a name"),
        (("--replicas", "0"), "at least 1"),
        (("--pause", "-1"), "at least 0"),
        (("--endpoint", "ftp://host"), "no http"),
        (("--endpoint", "http://host:port"), "no valid port"),
        (("--random-model", "--quality"), "random weights"),
        (("--python", "no/such/python"), "cannot be run"),
    ],
)
def test_main_on_wishes_that_cannot_be_met_says_why(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 1
    said: Any = capsys.readouterr()
    assert reason in said.err and not said.out


def test_shape_beyond_the_model_is_refused() -> None:
    with pytest.raises(EndpointError, match="--context 5000: the model has 4096"):
        session.shape_of(plan("--context", "5000"), 4096, (0, 512))
    with pytest.raises(EndpointError, match="vocabulary has 512"):
        session.shape_of(plan("--token-ids", "0:600"), 4096, (0, 512))
    with pytest.raises(EndpointError, match="1024 are needed"):
        session.shape_of(plan(), 512, (0, 512))
    shape = session.shape_of(plan(), None, None)
    assert (shape.first_token, shape.stop_token) == session.ENDPOINT_TOKENS


def test_endpoints_may_have_names() -> None:
    assert cli.endpoint_of("ours=http://h:1/x=y") == ("ours", "http://h:1/x=y")
    assert cli.endpoint_of("http://h:1/x=y") == ("http://h:1/x=y", "http://h:1/x=y")
    with pytest.raises(argparse.ArgumentTypeError):
        cli.variant_of("")
