"""Goal: capacities read as people write them, in bytes of the working set.
Method: texts and what becomes of them.
"""

from __future__ import annotations

import pytest

from benchmarks.trace.memory import Memory, parse_capacity


@pytest.mark.parametrize(
    ("text", "memory", "again"),
    [
        ("1/8", Memory(100), "1/8"),
        ("0.5", Memory(400), "1/2"),
        ("2", Memory(1600), "2"),
        ("1/8+1/2", Memory(100, 400), "1/8+1/2"),
        ("1/3+1", Memory(266, 800), "1/3+1"),
    ],
)
def test_capacity_of_a_text_is_these_bytes(text: str, memory: Memory, again: str) -> None:
    capacity = parse_capacity(text)
    assert capacity.of(800) == memory
    assert str(capacity) == again
    assert memory.total_bytes == memory.dram_bytes + memory.nvme_bytes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no fraction"),
        ("half", "no fraction"),
        ("1/0", "no fraction"),
        ("0", "above 0"),
        ("-1/2", "above 0"),
        ("1001", "at most 1000"),
        ("1/8+0", "above 0"),
        ("1/8+1/8+1/8", "has 3 parts"),
    ],
)
def test_capacity_that_is_none_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_capacity(text)
