"""What the user said in kv_connector_extra_config, checked.  Pure.

Every key has a default but `daemon`; a key that is not known is refused, so that a misspelt one
does not silently do nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from anchorstore.client import ClientOptions
from anchorstore.client.events import QUEUE_PAGES_DEFAULT
from anchorstore.client.options import check_address
from anchorstore.errors import ConfigError, ModelError, UsageError
from engine_adapter.budget import (
    MARGIN_TOKENS_DEFAULT,
    MAX_ROWS_DEFAULT,
    PAGE_TOKENS_DEFAULT,
    RATIO_DEFAULT,
    ROWS_PER_PAGE_DEFAULT,
    Budget,
)

STRATEGIES = ("suffix_replay", "kv_only")
ANCHOR_DTYPES = ("model", "float32")
MEBIBYTE = 2**20
WORD_BYTES = 256
RANGES: dict[str, tuple[float, float]] = {
    "max_rows": (1, 2**31 - 1),
    "margin_tokens": (0, 2**31 - 1),
    "kv_shards": (0, 255),
    "deadline_seconds": (0.001, 60),
    "bring_in_seconds": (0, 3600),
    "thread_deadline_seconds": (0.001, 3600),
    "retry_seconds": (0.001, 3600),
    "spaces_max": (1, 65_536),
    "staging_mebibytes": (1, 2**20),
    "queue_mebibytes": (1, 2**20),
    "events_queue_pages": (0, 2**24),
    "events_settle_seconds": (0, 3600),
    "max_lineage": (0, 255),
}
KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
"""What JSON may hold for a field's annotation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How the adapter behaves.

    Attributes:
        daemon: "unix:///path" or "tcp://host:port".
        page_tokens: tokens in a page; must divide vLLM's block of a full-attention layer.
        rows_per_page, ratio, max_rows, margin_tokens: the replay budget (engine_adapter.budget).
        strategy: "suffix_replay", or "kv_only": linear states from zero, the control.
        model: the namespace's model; the served model's last path part by default.
        anchor_dtype: "model": the stream rounded to the model's dtype; "float32": not rounded, as
            the engine's norms see it where layers hand on two tensors; twice the bytes.
        kv_shards: pieces that the key-value heads are stored in; engines of any tensor-parallel
            size up to this share pages.  0: one a head, at most 8.
        deadline_seconds: longest that one lookup may hold up the scheduler.
        bring_in_seconds: longest that a request waits, outside of the batch, for a longer prefix
            that the daemon brings into memory.
        thread_deadline_seconds: longest that one call of a worker's threads takes, which hold up
            nobody but the request that waits for its prefix.
        retry_seconds: after a daemon did not answer, it is left alone for so long.
        spaces_max: sessions held at a time, one an adapter and salt, by the scheduler and by each
            worker: an engine holds so many times 1 + its tensor-parallel size.
        staging_mebibytes: memory a session and worker for blocks on their way to the daemon.
        queue_mebibytes: copied pages that may wait for the daemon; what comes on top is not saved.
        events_queue_pages: events of vLLM's own cache that may wait for the daemon, one a page;
            0 tells it nothing.
        events_settle_seconds: least that they wait: what vLLM holds is still on its way there.
        max_lineage: deepest lineage that a lookup accepts.
        token: credentials for tcp://.
    """

    daemon: str
    page_tokens: int = PAGE_TOKENS_DEFAULT
    rows_per_page: int = ROWS_PER_PAGE_DEFAULT
    ratio: float = RATIO_DEFAULT
    max_rows: int = MAX_ROWS_DEFAULT
    margin_tokens: int = MARGIN_TOKENS_DEFAULT
    strategy: str = "suffix_replay"
    model: str = ""
    anchor_dtype: str = "model"
    kv_shards: int = 0
    deadline_seconds: float = 0.25
    bring_in_seconds: float = 2.0
    thread_deadline_seconds: float = 5.0
    retry_seconds: float = 1.0
    spaces_max: int = 16
    staging_mebibytes: int = 16
    queue_mebibytes: int = 256
    events_queue_pages: int = QUEUE_PAGES_DEFAULT
    events_settle_seconds: float = 1.0
    max_lineage: int = 255
    token: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.daemon:
            raise ConfigError('vllm: extra config "daemon" is missing, e.g. "unix:///run/x.sock"')
        for name, known in (("strategy", STRATEGIES), ("anchor_dtype", ANCHOR_DTYPES)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"vllm: {name} is {value!r}, must be one of {', '.join(known)}")
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:  # as little as NaN is
                raise ConfigError(
                    f"vllm: {name} is {_shown(getattr(self, name))}, must be {least} to {most}"
                )
        self._check_words()
        try:
            self.budget  # noqa: B018  checks its numbers
        except ModelError as error:
            raise ConfigError(f"vllm: {error}") from error

    def _check_words(self) -> None:
        for name in ("daemon", "model", "token"):
            try:
                size = len(getattr(self, name).encode())
            except UnicodeEncodeError as error:
                raise ConfigError(f"vllm: {name} is no text: {error.reason}") from error
            if size > WORD_BYTES:
                raise ConfigError(f"vllm: {name} has {size} bytes, limit {WORD_BYTES}")
        if not self.model.isprintable():  # operators read it in lists
            raise ConfigError(f"vllm: model {self.model!r} has a character that cannot be printed")
        try:
            check_address(self.daemon)
        except UsageError as error:
            raise ConfigError(f"vllm: daemon: {error}") from error

    @property
    def budget(self) -> Budget:
        """Rows, margin and page arithmetic."""
        return Budget(
            self.rows_per_page, self.ratio, self.max_rows, self.margin_tokens, self.page_tokens
        )

    @property
    def replays(self) -> bool:
        """Whether states are rebuilt from anchors."""
        return self.strategy == "suffix_replay"

    def lookup_options(self, name: str) -> ClientOptions:
        """For a client of the scheduler, called `name` in the daemon's lists."""
        return self._options(name, self.deadline_seconds, 0)

    def thread_options(self, name: str, staging_bytes: int) -> ClientOptions:
        """For a client of a worker's thread; without staging memory it only reads."""
        return self._options(name, self.thread_deadline_seconds, staging_bytes)

    def _options(self, name: str, deadline_seconds: float, staging_bytes: int) -> ClientOptions:
        return ClientOptions(
            name=name,
            token=self.token,
            deadline_seconds=deadline_seconds,
            retry_seconds=self.retry_seconds,
            staging_bytes=staging_bytes,
        )


def _shown(value: float) -> str:
    """A number that may have hundreds of digits."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:8]}... ({len(text)} digits)"


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"vllm: extra config {name!r} is unknown; {hint}"


def settings_from_extra(extra: Mapping[str, Any]) -> Settings:
    """Settings from kv_connector_extra_config; ConfigError for an unknown key or a wrong type."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    unknown = sorted(set(extra) - set(fields))
    if unknown:
        raise ConfigError(_unknown(unknown[0], list(fields)))
    values: dict[str, Any] = {"daemon": ""}
    for name, value in extra.items():
        kinds = KINDS[str(fields[name].type)]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(
                f"vllm: extra config {name} is {value!r}, must be {fields[name].type}"
            )
        values[name] = value
    return Settings(**values)
