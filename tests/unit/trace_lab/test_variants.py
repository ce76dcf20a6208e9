"""Goal: variants of a store read as people write them.
Method: texts and what becomes of them.
"""

from __future__ import annotations

import pytest

from anchorstore.server.core.policies import POLICIES, Ttl
from benchmarks.trace.variants import Variant, parse_variant


@pytest.mark.parametrize("name", POLICIES)
def test_variant_of_a_policy_alone_is_that_policy_for_one_tier_too(name: str) -> None:
    variant = parse_variant(name)
    assert variant == Variant(name) and not variant.needs_nvme
    assert variant.make_policy().name == name
    assert variant.make_admission().name == "always"
    assert str(variant) == name


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("lru+demote", Variant("lru", is_ahead=False)),
        ("lfu+second-sight", Variant("lfu", admission="second-sight")),
        ("lru+demote+size", Variant("lru", is_ahead=False, admission="size")),
        ("ttl=600+demote", Variant("ttl", is_ahead=False, ttl_seconds=600)),
    ],
)
def test_variant_with_more_words_needs_nvme(text: str, variant: Variant) -> None:
    assert parse_variant(text) == variant
    assert variant.needs_nvme
    assert str(variant) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no policy"),
        ("mru", "no policy"),
        ("lru=600", "no policy"),
        ("ttl=", "seconds"),
        ("ttl=0", "seconds"),
        ("ttl=1.5", "seconds"),
        ("lru+", "after a policy"),
        ("lru+often", "after a policy"),
        ("lru+demote+demote", "after a policy"),
        ("lru+size+second-sight", "after a policy"),
    ],
)
def test_variant_that_is_none_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_variant(text)


def test_variant_of_an_age_is_a_policy_of_that_age() -> None:
    assert parse_variant("ttl=600").make_policy() == Ttl(seconds=600.0)
    assert parse_variant("ttl=3600") == parse_variant("ttl")
    assert parse_variant("ttl").make_policy() == Ttl()
