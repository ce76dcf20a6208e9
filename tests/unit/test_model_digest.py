"""Goal: what changes the numbers changes the digest, and nothing else does.
Method: one key at a time, in a configuration and in an adapter's folder; a process with other seeds
of its hashes.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from anchorstore.errors import ModelError
from anchorstore.model_digest import ADAPTER_FILES, adapter_digest, model_digest

WEIGHTS = bytes(range(32))
CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "layer_types": ["linear_attention", "full_attention"],
    "id2label": {0: "a", 1: "b"},
}
ADAPTER = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "use_rslora": False}


def digest(changes: dict[str, Any] | None = None, dtype: str = "bfloat16", **more: Any) -> bytes:
    return model_digest(WEIGHTS, {**CONFIG, **(changes or {})}, dtype, **more)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}, {}),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}),
        ({"norm_eps": 1e-6}, {}),
        ({}, {"dtype": "float32"}),
        ({}, {"quantization": "fp8"}),
        ({}, {"quantization_config": {"bits": 4, "dtype": "int"}}),
        ({}, {"load_format": "sharded_state"}),
        ({}, {"states": ["torch.bfloat16/torch.float32"]}),
    ],
    ids=range(8),
)
def test_digest_differs_where_the_numbers_may(changes: dict[str, Any], more: Any) -> None:
    assert digest(changes, **more) != digest()
    assert digest(changes, **more) == digest(changes, **more)


def test_digest_differs_with_the_weights_and_from_their_own() -> None:
    assert digest() not in (WEIGHTS, model_digest(bytes(32), CONFIG, "bfloat16"))


@pytest.mark.parametrize(
    "changes",
    [
        {"_name_or_path": "/elsewhere"},
        {"transformers_version": "9"},
        {"torch_dtype": "float16"},
        {"dtype": "float16"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "name_or_path": "x"}},
        {"id2label": {"1": "b", "0": "a"}},
    ],
    ids=range(6),
)
def test_digest_stays_where_nothing_is_computed_otherwise(changes: dict[str, Any]) -> None:
    turned = {key: {**CONFIG, **changes}[key] for key in reversed([*CONFIG, *changes])}
    assert model_digest(WEIGHTS, turned, "bfloat16", quantization=None, load_format="") == digest()


def test_digest_is_the_same_in_every_process() -> None:
    changes = {"names": {"b", "a", "c", "d"}}
    asks = (
        "from anchorstore.model_digest import model_digest; print(model_digest(bytes(range(32)),"
        f" {CONFIG | changes!r}, 'bfloat16').hex())"
    )
    for seed in "12":
        found = subprocess.run(
            [sys.executable, "-c", asks],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        )
        assert found.stdout.strip() == digest(changes).hex()


def test_value_that_reads_differently_in_every_process_is_refused() -> None:
    with pytest.raises(ModelError, match="names nothing"):
        digest({"hook": object()})


# ---- adapters --------------------------------------------------------------------------------


def adapter(folder: pathlib.Path, content: bytes = b"abcd", **changes: Any) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    header = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    tensors = len(text).to_bytes(8, "little") + text + content
    (folder / ADAPTER_FILES[1]).write_bytes(tensors)
    (folder / ADAPTER_FILES[0]).write_text(json.dumps({**ADAPTER, **changes}))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_alpha": 32},
        {"use_rslora": True},
        {"target_modules": ["k_proj"]},
        {"content": b"xyzw"},
    ],
    ids=range(4),
)
def test_adapter_digest_covers_tensors_and_configuration(
    changes: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    first = adapter_digest(adapter(tmp_path / "first"))
    assert adapter_digest(adapter(tmp_path / "other", **changes)) != first
    assert adapter_digest(tmp_path / "first", dtype="torch.float16") != first
    moved = adapter(tmp_path / "moved", base_model_name_or_path="/elsewhere")
    (moved / "model.safetensors").write_bytes(b"no part of it")
    assert adapter_digest(moved) == first


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_adapter_without_one_of_its_files_has_no_digest(name: str, tmp_path: pathlib.Path) -> None:
    folder = adapter(tmp_path / "first")
    (folder / name).unlink()
    with pytest.raises(ModelError, match="cannot read"):
        adapter_digest(folder)


def test_adapter_with_a_configuration_that_is_no_json_has_no_digest(
    tmp_path: pathlib.Path,
) -> None:
    folder = adapter(tmp_path / "first")
    (folder / ADAPTER_FILES[0]).write_text("{")
    with pytest.raises(ModelError, match="no adapter's configuration"):
        adapter_digest(folder)
