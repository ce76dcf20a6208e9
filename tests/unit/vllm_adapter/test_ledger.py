"""Goal: every page that a request computes in full is saved once, and no other.
Method: worked steps of prefill, decode, resumption; hashes against those of the whole prompt.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorstore.keys import path_hashes
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.ledger import Entry, Ledger

ROOT = bytes(range(32))


def steps(entry: Entry, *parts: tuple[int, int, int]) -> list[range]:
    """Pages taken by steps of (start, scheduled, known) tokens, pages of 4."""
    return [entry.take(entry.advance(start, count, known, 4)) for start, count, known in parts]


def test_pages_of_a_prefill_in_chunks_are_taken_as_they_fill() -> None:
    taken = steps(Entry(SpaceKey()), (0, 6, 15), (6, 6, 15), (12, 3, 15))
    assert taken == [range(1), range(1, 3), range(3, 3)]


def test_pages_of_decoded_tokens_wait_until_their_ids_are_known() -> None:
    entry = Entry(SpaceKey())
    taken = steps(entry, (0, 7, 7), (7, 1, 7), (8, 1, 9))
    assert taken == [range(1), range(1, 1), range(1, 2)]


def test_pages_before_a_resume_point_are_not_taken() -> None:
    assert steps(Entry(SpaceKey()), (8, 5, 20), (13, 7, 20)) == [range(2, 3), range(3, 5)]


def test_page_that_a_resume_point_cuts_is_not_taken() -> None:
    assert steps(Entry(SpaceKey()), (6, 6, 20)) == [range(2, 3)]


def test_pages_computed_again_after_a_preemption_are_not_taken_again() -> None:
    assert steps(Entry(SpaceKey()), (0, 12, 12), (0, 16, 16)) == [range(3), range(3, 4)]


@given(st.lists(st.integers(0, 1000), max_size=80), st.integers(0, 20), st.integers(0, 20))
def test_hashes_taken_in_two_goes_are_those_of_the_prompt(
    tokens: list[int], first: int, second: int
) -> None:
    entry, whole = Entry(SpaceKey()), path_hashes(ROOT, tokens, 4)
    for pages in (min(first, len(tokens) // 4), min(second, len(tokens) // 4)):
        assert entry.hashes(ROOT, tokens, pages, 4) == whole[: pages * 32]


def test_ledger_keeps_one_entry_a_request() -> None:
    ledger = Ledger()
    entry = ledger.enter("a", SpaceKey("lora"))
    assert ledger.enter("a", SpaceKey("lora")) is entry
    assert ledger.leave("a") is entry
    assert ledger.leave("a") is None
