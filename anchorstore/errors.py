"""Every error that anchorstore raises, and how each crosses the wire.

A miss is a value, not an error.  What is left is a small closed tree::

    AnchorStoreError
      x UsageError        SpecMismatch . InvalidKey . InvalidRequest . UnknownSession . HandleClosed
      x Unavailable       ConnectFailed . DeadlineExceeded . Overloaded . Draining
      x Refused           CapacityFull . QuotaExceeded . Unauthenticated . Forbidden
      x LeaseError        LeaseExpired . BootChanged
      x DataError         ChecksumMismatch . TornBlock
      x ConfigError       a configuration that cannot be started
      x ModelError        a model or a prompt that cannot be handled, with the reason

UsageError is never worth a retry; Unavailable may be; after a LeaseError look up again; after a
DataError the block is gone.  Messages name the thing, the value and the limit.  A broken
invariant is an AssertionError and stops the daemon: a cache may always forget.
"""

from __future__ import annotations


class AnchorStoreError(Exception):
    """Base of the tree; never raised itself."""

    retry_after_ms: int = 0


class UsageError(AnchorStoreError):
    """The caller is wrong; the same call never succeeds."""


class SpecMismatch(UsageError, ValueError):
    """A layout or namespace that does not fit the one in use."""


class InvalidKey(UsageError, ValueError):
    """Tokens or path hashes that cannot name a page."""


class InvalidRequest(UsageError, ValueError):
    """A message that breaks the schema or a limit."""


class UnknownSession(UsageError, LookupError):
    """The session id is not open here (ended, another boot, another domain): attach again."""


class HandleClosed(UsageError):
    """A window, reservation or client was used after its end."""


class Unavailable(AnchorStoreError):
    """The daemon cannot answer now."""


class ConnectFailed(Unavailable, ConnectionError):
    """No daemon listens there, or it hung up."""


class DeadlineExceeded(Unavailable, TimeoutError):
    """No answer within the deadline."""


class Overloaded(Unavailable):
    """Too much work queued; `retry_after_ms` says when to come back."""


class Draining(Unavailable):
    """The daemon is going down and takes no new work."""


class Refused(AnchorStoreError):
    """The daemon will not do it for this caller now."""


class CapacityFull(Refused):
    """A fixed pool (sessions, reservations, leases, staging) is used up."""


class QuotaExceeded(Refused):
    """The namespace's quota is used up."""


class Unauthenticated(Refused, PermissionError):
    """No valid credentials."""


class Forbidden(Refused, PermissionError):
    """Valid credentials, but not for this."""


class LeaseError(AnchorStoreError):
    """A right to read or write has ended."""


class LeaseExpired(LeaseError):
    """The lease ran out or was never given."""


class BootChanged(LeaseError):
    """The daemon was restarted: every mapping and lease is void."""


class DataError(AnchorStoreError):
    """Bytes that are not the sealed ones; never handed on."""


class ChecksumMismatch(DataError):
    """The xxh3 of the bytes differs from the sealed one."""


class TornBlock(DataError):
    """The slot was reused while it was read."""


class ConfigError(AnchorStoreError, ValueError):
    """A configuration key, value or combination that cannot be used."""


class ModelError(AnchorStoreError, ValueError):
    """A model, prompt or layout that prefix reuse cannot handle; the message says why."""


def _tree(root: type[AnchorStoreError]) -> dict[str, type[AnchorStoreError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[AnchorStoreError]] = _tree(AnchorStoreError)
"""Error class by its name, which is its code on the wire."""


def code_of(error: AnchorStoreError) -> str:
    """Name under which `error` crosses the wire."""
    return type(error).__name__


def from_code(code: str, message: str, retry_after_ms: int = 0) -> AnchorStoreError:
    """The error that the other side raised; an unknown code becomes Unavailable."""
    error = BY_CODE.get(code, Unavailable)(message)
    error.retry_after_ms = retry_after_ms
    return error
