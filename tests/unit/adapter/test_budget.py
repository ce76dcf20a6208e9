"""Goal: the budget's arithmetic is the documented one, at its edges too.
Method: worked examples, then properties over random budgets and prompts.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.client import NeedAll, NeedWindow
from anchorstore.errors import ModelError
from engine_adapter.budget import Budget
from engine_adapter.strategy import (
    ANCHOR,
    KV,
    KvOnly,
    NoReuse,
    Strategy,
    SuffixReplay,
    dense_tail,
    zero_state,
)


def test_budget_defaults_are_the_documented_ones() -> None:
    budget = Budget()
    assert (budget.rows_per_page, budget.ratio, budget.max_rows) == (4, 0.05, 512)
    assert (budget.margin_tokens, budget.margin_pages, budget.page_tokens) == (128, 2, 64)


@pytest.mark.parametrize(
    ("resume_tokens", "window_pages", "rows"),
    [(0, 0, 0), (64, 1, 4), (1024, 13, 52), (1024, 12, 48), (4096, 52, 205), (20_000, 400, 512)],
)
def test_rows_are_the_least_of_ratio_maximum_and_available(
    resume_tokens: int, window_pages: int, rows: int
) -> None:
    assert Budget().rows(resume_tokens, window_pages) == rows


@pytest.mark.parametrize(
    ("boundary", "prompt", "resume"),
    [
        (640, 10_000, 512),  # boundary - W
        (640, 640, 448),  # the prompt's last token is computed: its last page does not count
        (640, 641, 512),
        (128, 10_000, 0),  # the margin eats both pages
        (0, 10_000, 0),
        (0, 1, 0),
    ],
)
def test_resume_point_lies_the_margin_below_boundary_and_prompt(
    boundary: int, prompt: int, resume: int
) -> None:
    assert Budget().resume_tokens(boundary, prompt) == resume


@given(
    page_tokens=st.sampled_from([1, 16, 64]),
    margin_pages=st.integers(0, 4),
    boundary_pages=st.integers(0, 100),
    prompt=st.integers(1, 5_000),
)
def test_resume_point_always_leaves_a_token_and_a_page_multiple(
    page_tokens: int, margin_pages: int, boundary_pages: int, prompt: int
) -> None:
    budget = Budget(1, 0.05, 512, margin_pages * page_tokens, page_tokens)
    boundary = boundary_pages * page_tokens
    resume = budget.resume_tokens(boundary, prompt)
    formula = min(boundary, math.floor((prompt - 1) / page_tokens) * page_tokens)
    assert resume == max(0, formula - budget.margin_tokens)
    assert resume % page_tokens == 0
    assert resume < prompt
    assert budget.askable_pages(prompt) * page_tokens < prompt


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rows_per_page": 0}, "rows_per_page is 0, must be 1 to page_tokens"),
        ({"rows_per_page": 65}, "rows_per_page is 65, must be 1 to page_tokens"),
        ({"ratio": 1.5}, "ratio is 1.5, must be 0 to 1"),
        ({"max_rows": 0}, "max_rows is 0, must be at least 1"),
        ({"margin_tokens": 63}, "margin_tokens is 63, must be a multiple"),
        ({"margin_tokens": -64}, "margin_tokens is -64, must be a multiple"),
        ({"page_tokens": 0}, "page_tokens is 0, must be at least 1"),
    ],
)
def test_budget_of_nonsense_is_refused_by_name(values: dict[str, float], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Budget(**values)  # type: ignore[arg-type]


def test_strategies_ask_for_what_they_use() -> None:
    every_page = NeedAll(KV, first_page=0)
    window = NeedWindow(ANCHOR, ratio=0.05, max_rows=512, rows_per_page=4)
    assert SuffixReplay().needs() == [every_page, window]
    assert KvOnly().needs() == [every_page]
    assert NoReuse().needs() == []
    dense = dense_tail(128, 0, 64)
    assert dense.needs() == [every_page, NeedWindow(ANCHOR, 1.0, 128, 64)]


def test_strategies_replay_what_the_budget_says_or_nothing() -> None:
    assert SuffixReplay().replay_rows(1024, 13) == 52
    assert dense_tail(128, 0, 64).replay_rows(1024, 2) == 128
    controls: list[Strategy] = [KvOnly(), NoReuse(), zero_state(Budget())]
    assert [control.replay_rows(1024, 13) for control in controls] == [0, 0, 0]
    assert zero_state(Budget()).budget.margin_tokens == 0
    assert len({strategy.name for strategy in [SuffixReplay(), *controls]}) == 4
