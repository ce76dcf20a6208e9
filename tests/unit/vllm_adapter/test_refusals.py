"""Goal: what cannot work is refused before a token is computed, and the reason names the thing.
Method: one fact wrong at a time; extra configs with a wrong key, type or value; versions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from anchorstore.errors import ConfigError, ModelError
from engine_adapter.vllm.checks import Facts, check, refusal, version_refusal
from engine_adapter.vllm.settings import Settings, settings_from_extra

GOOD = Facts("", 1, 1, "sha256", "auto", True, 1, (), False)


def test_facts_of_a_plain_hybrid_are_accepted() -> None:
    assert refusal(GOOD) == ""
    check(GOOD)


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [
        ("speculative_method", "mtp", "speculative decoding"),
        ("pipeline_parallel", 2, "pipeline parallel size is 2"),
        ("context_parallel", 2, "context parallel size is 2"),
        ("hash_algorithm", "xxhash", "'xxhash', which can collide"),
        ("cache_dtype", "fp8_e4m3", "'fp8_e4m3', must be auto"),
        ("has_prefix_caching", False, "prefix caching is off"),
        ("attention_groups", 0, "0 groups of full-attention layers"),
        ("other_groups", ("SlidingWindowSpec",), "SlidingWindowSpec layers"),
        ("is_sequence_parallel", True, "sequence parallelism"),
    ],
)
def test_facts_that_do_not_fit_are_refused_by_name(fact: str, value: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words.replace("(", r"\(")):
        check(dataclasses.replace(GOOD, **{fact: value}))


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
        ({"daemon": "unix:///x", "rows": 4}, "'rows' is none of"),
        ({"daemon": 7}, "daemon is 7, must be str"),
        ({"daemon": "unix:///x", "max_rows": True}, "max_rows is True, must be int"),
        ({"daemon": "unix:///x", "margin_tokens": 65}, "margin_tokens is 65"),
        ({"daemon": "unix:///x", "strategy": "exact"}, "strategy is 'exact'"),
        ({"daemon": "unix:///x", "anchor_dtype": "int8"}, "anchor_dtype is 'int8', must be one"),
        ({"daemon": "unix:///x", "spaces_max": 0}, "spaces_max is 0"),
    ],
)
def test_extra_config_that_makes_no_sense_is_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings_from_extra(extra)


def test_extra_config_with_a_daemon_alone_takes_the_defaults() -> None:
    assert settings_from_extra({"daemon": "unix:///x"}) == Settings("unix:///x")
    assert settings_from_extra({"daemon": "unix:///x", "ratio": 1}).budget.ratio == 1
