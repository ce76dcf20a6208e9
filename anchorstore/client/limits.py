"""How many pages one call may name: what the daemon granted, and whether it is still that daemon.

::

    pages <= granted ----------------------------------> go on
    pages >  granted --> a call that names nothing -+-> same attachment: InvalidRequest
                                                    +-> attached anew:   its grant decides
                                                    +-> no answer:       the caller's call is a miss

A daemon that was started again, with a larger limit, is met by nobody who asks it nothing.
"""

from __future__ import annotations

from anchorstore.client.attachment import Attachment
from anchorstore.client.effects import Steps
from anchorstore.client.options import check_hashes
from anchorstore.client.session import Session
from anchorstore.errors import Refused, Unavailable
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store


def count_pages(session: Session, hashes: bytes, until: float) -> Steps[int]:
    """Pages in a run of path hashes; InvalidRequest unless 32 n bytes, n up to the limit of the
    daemon that runs now, as far as it can be reached."""
    pages, known = check_hashes(hashes, None), session.attachment
    if known is not None and pages > known.max_pages and (yield from _is_there(session, until)):
        assert session.attachment is not None, "a reply came without an attachment"
        check_hashes(hashes, session.attachment.max_pages)
    return pages


def _is_there(session: Session, until: float) -> Steps[bool]:
    """Whether the daemon answers; the client is attached to the one that does."""
    if (yield from session.enter(until)):
        return False
    try:
        yield from session.call(Method.RENEW, _renews_nothing, until)
    except (Unavailable, Refused) as error:
        session.failed(error)
        return False
    return True


def _renews_nothing(attachment: Attachment) -> tuple[bytes, ...]:
    return (store.RenewRequest(session_id=attachment.session_id).SerializeToString(),)
