"""What both faces of the client know without asking the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from anchorstore import keys
from anchorstore.client.effects import Enter, Steps
from anchorstore.client.handover import (
    SessionRecord,
    decode_session,
    decode_window,
    encode_session,
)
from anchorstore.client.lookups import Found
from anchorstore.client.options import ClientOptions, NamespaceSpec, check_layout
from anchorstore.client.session import Session
from anchorstore.clock import Clock
from anchorstore.errors import InvalidRequest, SpecMismatch
from anchorstore.layout import Layout
from anchorstore.transport.address import parse_address


class Face:
    """Names and numbers of one client."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def address(self) -> str:
        """Where the daemon listens."""
        return str(self._session.address)

    @property
    def attached(self) -> bool:
        """Whether the client is connected and in a session, as far as it knows."""
        return self._session.is_bound

    @property
    def root_digest(self) -> bytes | None:
        """32 bytes, parent of every first page; None before the first attachment."""
        attachment = self._session.attachment
        return None if attachment is None else attachment.root_digest

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self._session.page_tokens

    @property
    def max_pages(self) -> int | None:
        """Pages in one lookup or reserve; None before the first attachment."""
        attachment = self._session.attachment
        return None if attachment is None else attachment.max_pages

    @property
    def session_token(self) -> bytes | None:
        """For Client.join in another process; None before the first attachment.  Secret."""
        session = self._session
        if session.attachment is None:
            return None
        return encode_session(
            SessionRecord(str(session.address), session.page_tokens, session.attachment)
        )

    def block_bytes(self, layout: int) -> int:
        """Bytes of one block of layout number `layout`."""
        sizes = self._session.block_bytes
        check_layout(layout, len(sizes))
        return sizes[layout]

    def path_hashes(self, tokens: Sequence[int] | npt.NDArray[Any]) -> bytes:
        """32 bytes for every whole page of `tokens`; b"" before the first attachment."""
        root = self.root_digest
        return b"" if root is None else keys.path_hashes(root, tokens, self.page_tokens)

    def counters(self) -> dict[str, int | dict[str, int]]:
        """What this client has seen so far (counters.Counters)."""
        return self._session.counters.snapshot()


def new_session(
    address: str,
    namespace: NamespaceSpec,
    layouts: Sequence[Layout],
    options: ClientOptions,
    clock: Clock,
) -> Session:
    """A session that will attach; UsageError where what is asked for cannot fit together."""
    if not layouts:
        raise InvalidRequest("client: no layouts, name at least one")
    for position, layout in enumerate(layouts):
        if layout.page_tokens != namespace.page_tokens:
            raise SpecMismatch(
                f"layout {position}: pages of {layout.page_tokens} tokens, the namespace's have "
                f"{namespace.page_tokens}"
            )
    sizes = tuple(layout.block_bytes() for layout in layouts)
    return Session(
        parse_address(address), namespace, layouts, sizes, namespace.page_tokens, options, clock
    )


def joining_session(token: bytes, options: ClientOptions, clock: Clock) -> Session:
    """A session that will join the one that `token` comes from."""
    record = decode_session(token)
    attachment = record.attachment
    session = Session(
        parse_address(record.address),
        None,
        (),
        attachment.block_bytes,
        record.page_tokens,
        options,
        clock,
    )
    session.take_over(attachment)
    return session


def opened(session: Session, data: bytes) -> Steps[Found]:
    """A window that another process of the session exported; a miss where its daemon is gone.

    A client that joined moves on to the window's session where that is another one.
    """
    record = decode_window(data)
    mine = session.attachment
    if mine is None or mine.session_id != record.attachment.session_id:
        if session.can_attach:
            is_same_boot = mine is not None and mine.boot_id == record.attachment.boot_id
            return Found("unreachable" if is_same_boot else "boot")
        if record.attachment.block_bytes != session.block_bytes:
            raise SpecMismatch(
                f"window: blocks of {record.attachment.block_bytes} bytes, this client's have "
                f"{session.block_bytes}"
            )
        yield Enter(session.until(None))
        session.take_over(record.attachment)
        session.gate.open()
    expires_at = min(record.expires_at, session.clock.now() + record.left_seconds)
    return Found("", session.attachment, record.reply, expires_at)
