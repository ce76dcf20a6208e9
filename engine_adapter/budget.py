"""The replay budget: how many rows to replay, and where to take over.  Pure.

Two knobs: `k` rows of anchors, and a resume margin of W tokens that the engine extends again::

    prompt    |<----------------------- n tokens ------------------------>|
    pages     [  0  ][  1  ][  2  ][  3  ][  4  ][  5  ][  6  ][ rest ]
    stored    [##############################################]
    boundary                                                 ^ 7 pages: kv and window complete
    resume                                          ^ boundary - W
    window              ...[..aa][..aa][..aa][..aa]     the last k kept rows below the resume point
    computed again                                  [ W + everything after ............ ]

The newest tokens carry most of a decaying state and need dense, exact conv windows: re-extending
them costs W tokens of ordinary prefill and no storage.  The anchors then only have to carry what
is older.  At least one token of the prompt is always left to compute, or there is no logit.
"""

from __future__ import annotations

import dataclasses
import math

from anchorstore.errors import ModelError

ROWS_PER_PAGE_DEFAULT = 4
RATIO_DEFAULT = 0.05
MAX_ROWS_DEFAULT = 512
MARGIN_TOKENS_DEFAULT = 128
PAGE_TOKENS_DEFAULT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """How much of a prefix a replay reads.

    Attributes:
        rows_per_page: anchors kept of each page, its last tokens.
        ratio: rows to replay per token of the reused prefix.
        max_rows: the most rows to replay (k_max).
        margin_tokens: W, tokens below the boundary that are computed again; a page multiple.
        page_tokens: tokens in a page.
    """

    rows_per_page: int = ROWS_PER_PAGE_DEFAULT
    ratio: float = RATIO_DEFAULT
    max_rows: int = MAX_ROWS_DEFAULT
    margin_tokens: int = MARGIN_TOKENS_DEFAULT
    page_tokens: int = PAGE_TOKENS_DEFAULT

    def __post_init__(self) -> None:
        if self.page_tokens < 1:
            raise ModelError(f"budget: page_tokens is {self.page_tokens}, must be at least 1")
        if not 1 <= self.rows_per_page <= self.page_tokens:
            raise ModelError(
                f"budget: rows_per_page is {self.rows_per_page}, "
                f"must be 1 to page_tokens ({self.page_tokens})"
            )
        if not 0.0 <= self.ratio <= 1.0:
            raise ModelError(f"budget: ratio is {self.ratio}, must be 0 to 1")
        if self.max_rows < 1:
            raise ModelError(f"budget: max_rows is {self.max_rows}, must be at least 1")
        if self.margin_tokens < 0 or self.margin_tokens % self.page_tokens:
            raise ModelError(
                f"budget: margin_tokens is {self.margin_tokens}, "
                f"must be a multiple of page_tokens ({self.page_tokens})"
            )

    @property
    def margin_pages(self) -> int:
        """W in pages."""
        return self.margin_tokens // self.page_tokens

    def askable_pages(self, prompt_tokens: int) -> int:
        """Whole pages of a prompt that may be reused: its last token is always computed."""
        return max(0, prompt_tokens - 1) // self.page_tokens

    def resume_tokens(self, boundary_tokens: int, prompt_tokens: int) -> int:
        """Where the engine takes over: a page multiple, 0 where nothing can be reused."""
        assert boundary_tokens % self.page_tokens == 0, boundary_tokens
        limit = self.askable_pages(prompt_tokens) * self.page_tokens
        return max(0, min(boundary_tokens, limit) - self.margin_tokens)

    def rows(self, resume_tokens: int, window_pages: int) -> int:
        """Rows to replay for `resume_tokens` tokens, whose window has `window_pages` pages."""
        wanted = math.ceil(self.ratio * resume_tokens)
        return min(wanted, self.max_rows, window_pages * self.rows_per_page)
