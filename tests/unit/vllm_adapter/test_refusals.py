"""Goal: what cannot work is refused before a token is computed, and the reason names the thing.
And the reason is said where people look.
Method: one fact wrong at a time; extra configs with a wrong key, type or value; versions.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from anchorstore.errors import ConfigError, ModelError
from engine_adapter.vllm.checks import Facts, check, is_ours, refusal, version_refusal
from engine_adapter.vllm.plugin import join_logs
from engine_adapter.vllm.settings import MEBIBYTE, RANGES, Settings, settings_from_extra

GOOD = Facts("", 1, 1, "sha256", "auto", True, 1, (), False, "auto")


def test_facts_of_a_plain_hybrid_are_accepted() -> None:
    assert refusal(GOOD) == ""
    check(GOOD)


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [
        ("speculative_method", "mtp", "speculative decoding"),
        ("pipeline_parallel", 2, "pipeline parallel size is 2"),
        ("context_parallel", 2, "context parallel size is 2"),
        ("expert_ranks", 2, "data parallel size is 2"),
        ("hash_algorithm", "xxhash", "'xxhash', which can collide"),
        ("cache_dtype", "fp8_e4m3", "'fp8_e4m3', must be auto"),
        ("has_prefix_caching", False, "prefix caching is off"),
        ("attention_groups", 0, "0 groups of full-attention layers"),
        ("other_groups", ("SlidingWindowSpec",), "SlidingWindowSpec layers"),
        ("is_sequence_parallel", True, "sequence parallelism"),
        ("load_format", "dummy", "load-format is 'dummy'"),
    ],
)
def test_facts_that_do_not_fit_are_refused_by_name(fact: str, value: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words.replace("(", r"\(")):
        check(dataclasses.replace(GOOD, **{fact: value}))


OURS = {
    "kv_connector": "AnchorStoreConnector",
    "kv_connector_extra_config": {"daemon": "unix:///x"},
}
OTHER = {"kv_connector": "NixlConnector"}


@pytest.mark.parametrize(
    "connectors",
    [
        [OURS],
        [OTHER, OURS],
        [{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [OURS]}}],
    ],
)
def test_connector_inside_of_another_is_refused_by_name(connectors: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="AnchorStoreConnector inside of MultiConnector is not"):
        is_ours("MultiConnector", {"connectors": connectors})


@pytest.mark.parametrize(
    ("connector", "extra", "ours"),
    [
        ("AnchorStoreConnector", {"daemon": "unix:///x"}, True),
        ("MultiConnector", {"connectors": [OTHER]}, False),
        ("MultiConnector", {}, False),
        ("NixlConnector", {"connectors": None}, False),
        (None, {}, False),
    ],
)
def test_connector_by_itself_is_ours_or_nothing_to_us(
    connector: str | None, extra: dict[str, Any], ours: bool
) -> None:
    assert is_ours(connector, extra) is ours


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0", "dev"])
def test_version_outside_of_the_range_is_refused(version: str) -> None:
    assert f"vLLM {version} is not supported" in version_refusal(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.post1", "0.32.0+cpu"])
def test_version_inside_of_the_range_is_accepted(version: str) -> None:
    assert version_refusal(version) == ""


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, '"daemon" is missing'),
        ({"daemon": "unix:///x", "nothing": 4}, "'nothing' is unknown; known: daemon, page_tokens"),
        ({"daemon": "unix:///x", "max_row": 4}, "'max_row' is unknown; did you mean max_rows?"),
        ({"daemon": "unix:///x", "model": "a\nb"}, "cannot be printed"),
        ({"daemon": "tcp://[::1:5"}, "daemon: .* is no host"),
        ({"daemon": "unix:///"}, "daemon: .* name a socket"),
        ({"daemon": 7}, "daemon is 7, must be str"),
        ({"daemon": "unix:///x", "max_rows": True}, "max_rows is True, must be int"),
        ({"daemon": "unix:///x", "margin_tokens": 65}, "margin_tokens is 65"),
        ({"daemon": "unix:///x", "strategy": "exact"}, "strategy is 'exact'"),
        ({"daemon": "unix:///x", "anchor_dtype": "int8"}, "anchor_dtype is 'int8', must be one"),
        ({"daemon": "unix:///x", "spaces_max": 0}, "spaces_max is 0, must be 1 to"),
        ({"daemon": "http://x"}, "http://x"),
        ({"daemon": "/run/x.sock"}, "/run/x.sock"),
        ({"daemon": "unix:///x", "max_lineage": 256}, "max_lineage is 256, must be 0 to 255"),
        ({"daemon": "unix:///x", "max_lineage": -1}, "max_lineage is -1"),
        ({"daemon": "unix:///x", "max_rows": 2**32}, "max_rows is 4294967296"),
        ({"daemon": "unix:///x", "margin_tokens": 64 * 2**32}, "margin_tokens is"),
        ({"daemon": "unix:///x", "staging_mebibytes": 2**45}, "staging_mebibytes is"),
        ({"daemon": "unix:///x", "bring_in_seconds": 10**400}, "bring_in_seconds is"),
        ({"daemon": "unix:///x", "bring_in_seconds": float("inf")}, "bring_in_seconds is inf"),
        ({"daemon": "unix:///x", "deadline_seconds": 1e300}, "deadline_seconds is 1e"),
        ({"daemon": "unix:///x", "deadline_seconds": 0}, "deadline_seconds is 0, must be 0.001"),
        ({"daemon": "unix:///x", "thread_deadline_seconds": 0}, "thread_deadline_seconds is 0"),
        ({"daemon": "unix:///x", "retry_seconds": float("nan")}, "retry_seconds is nan"),
        ({"daemon": "unix:///x", "model": "m" * 300}, "model has 300 bytes"),
        ({"daemon": "unix:///x", "model": "\ud800"}, "model is no text"),
    ],
)
def test_extra_config_that_makes_no_sense_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings_from_extra(extra)


@pytest.mark.parametrize("name", RANGES)
def test_extra_config_at_its_bounds_is_what_the_client_takes(name: str) -> None:
    for value in RANGES[name]:
        if name == "margin_tokens":
            value -= value % 64
        settings = settings_from_extra({"daemon": "unix:///x", name: value})
        staging_bytes = settings.staging_mebibytes * MEBIBYTE
        settings.lookup_options("scheduler"), settings.thread_options("worker", staging_bytes)


def test_extra_config_with_a_daemon_alone_takes_the_defaults() -> None:
    assert settings_from_extra({"daemon": "unix:///x"}) == Settings("unix:///x")
    assert settings_from_extra({"daemon": "unix:///x", "ratio": 1}).budget.ratio == 1


def test_lines_of_the_adapter_go_where_the_engine_s_own_go() -> None:
    theirs, ours = logging.Logger("theirs"), logging.Logger("ours")
    theirs.setLevel(logging.INFO)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    theirs.addHandler(handler)
    theirs.propagate = False
    ours.addHandler(logging.NullHandler())  # as the client library does
    join_logs(ours, theirs)
    join_logs(ours, theirs)  # vLLM may load a plugin twice
    ours.debug("detail")
    ours.warning("reason")
    assert said == ["reason"]
    assert not ours.propagate


def test_lines_of_the_adapter_stay_where_somebody_has_sent_them() -> None:
    theirs, ours = logging.Logger("theirs"), logging.Logger("ours")
    theirs.addHandler(logging.StreamHandler())
    own = logging.StreamHandler()
    ours.addHandler(own)
    join_logs(ours, theirs)
    assert ours.handlers == [own]
