"""Goal: other weights under the same name never hit, nor do equal ones under another configuration,
and what cannot work is refused at start.
Method: two models that differ in their seed alone, one name, one text; copies of a model's folder,
one of them with another base of the rotary embedding; an engine with pages that do not divide its
blocks; a connector that asks ours among several.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import types
from typing import Any

import pytest

from anchorstore.errors import ConfigError
from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Served


def test_prefix_of_other_weights_is_never_found(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    prompt = text(110, 700)
    shared: dict[str, Any] = {"daemon": daemon.address, "extra": {**EVERY_ROW, "model": "tiny"}}
    first, other = tiny.make("qwen3_5", models), tiny.make("qwen3_5", models, seed=1)
    with Served(first, tmp_path / "first", **shared) as engine:
        engine.generate([prompt])
        engine.reset()
        assert engine.generate([prompt])[0].cached == 640
    with Served(other, tmp_path / "other", **shared) as engine:
        assert engine.generate([prompt])[0].cached == 0


def test_prefix_of_another_configuration_is_never_found(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    prompt = text(111, 700)
    shared: dict[str, Any] = {"daemon": daemon.address, "extra": {**EVERY_ROW, "model": "tiny"}}
    first, copy, other = tiny.make("qwen3_5", models), tmp_path / "copy", tmp_path / "edited"
    for folder in (copy, other):
        shutil.copytree(first, folder)
    config = json.loads((other / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 50.0
    (other / "config.json").write_text(json.dumps(config))
    with Served(first, tmp_path / "first", **shared) as engine:
        engine.generate([prompt])
        engine.reset()  # what it stored has arrived
    for folder, cached in ((other, 0), (copy, 640)):
        with Served(folder, tmp_path / f"{folder.name}.log", **shared) as engine:
            assert engine.generate([prompt])[0].cached == cached


def test_connector_inside_of_another_is_refused_at_start(
    models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ours = {
        "kv_connector": "AnchorStoreConnector",
        "kv_connector_module_path": "engine_adapter.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"daemon": "unix:///nobody"},
    }
    outer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [ours]},
    }
    with pytest.raises(RuntimeError, match="AnchorStoreConnector inside of MultiConnector is not"):
        Served(
            tiny.make("qwen3_5", models), tmp_path / "log", options={"kv_transfer_config": outer}
        )


def test_connector_built_under_another_name_is_refused_with_it() -> None:
    from vllm.config import KVTransferConfig

    from engine_adapter.vllm.setup import Common

    transfer = KVTransferConfig(kv_connector="Renamed", kv_role="kv_both")
    with pytest.raises(ConfigError, match="kv_connector is 'Renamed', must be 'AnchorStoreConn"):
        Common.of(types.SimpleNamespace(kv_transfer_config=transfer), None)


def test_what_cannot_work_is_refused_before_the_weights_are_read(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny.make("qwen3_5", models), folder)
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"not to be read")
    with pytest.raises(RuntimeError, match="prefix caching is off; leave it on"):
        Served(
            folder,
            tmp_path / "log",
            daemon=daemon.address,
            extra=EVERY_ROW,
            options={"enable_prefix_caching": False},
        )


def test_pages_that_do_not_divide_a_block_are_refused_at_start(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    extra = {**EVERY_ROW, "page_tokens": 48, "rows_per_page": 48}
    with pytest.raises(RuntimeError, match="48 tokens do not divide its blocks"):
        Served(tiny.make("qwen3_5", models), tmp_path / "log", daemon=daemon.address, extra=extra)
