"""How each error of anchorstore.errors looks on gRPC.

On frames an error crosses as ErrorReply under its own name.  gRPC has a fixed set of codes, so a
caller that wants the exact error reads it from the trailing metadata; others see the code below.
Only names here: this module loads no grpc.
"""

from __future__ import annotations

from anchorstore import errors
from anchorstore.wire.v1 import store_pb2 as store

STATUS_OF_CODE = {
    "SpecMismatch": "FAILED_PRECONDITION",
    "InvalidKey": "INVALID_ARGUMENT",
    "InvalidRequest": "INVALID_ARGUMENT",
    "UnknownSession": "NOT_FOUND",
    "HandleClosed": "FAILED_PRECONDITION",
    "UsageError": "INVALID_ARGUMENT",
    "ConnectFailed": "UNAVAILABLE",
    "DeadlineExceeded": "DEADLINE_EXCEEDED",
    "Overloaded": "RESOURCE_EXHAUSTED",
    "Draining": "UNAVAILABLE",
    "Unavailable": "UNAVAILABLE",
    "CapacityFull": "RESOURCE_EXHAUSTED",
    "QuotaExceeded": "RESOURCE_EXHAUSTED",
    "Unauthenticated": "UNAUTHENTICATED",
    "Forbidden": "PERMISSION_DENIED",
    "Refused": "FAILED_PRECONDITION",
    "LeaseExpired": "FAILED_PRECONDITION",
    "BootChanged": "ABORTED",
    "LeaseError": "FAILED_PRECONDITION",
    "ChecksumMismatch": "DATA_LOSS",
    "TornBlock": "DATA_LOSS",
    "DataError": "DATA_LOSS",
    "ConfigError": "FAILED_PRECONDITION",
    "ModelError": "FAILED_PRECONDITION",
    "AnchorStoreError": "UNKNOWN",
}
"""Name in grpc.StatusCode, by the error's code; complete (a test walks the tree)."""

CODE_METADATA_KEY = "anchorstore-code"
RETRY_METADATA_KEY = "anchorstore-retry-after-ms"


def error_message(error: errors.AnchorStoreError) -> store.ErrorReply:
    """`error` as it crosses on a frame."""
    return store.ErrorReply(
        code=errors.code_of(error), message=str(error), retry_after_ms=error.retry_after_ms
    )


def error_of(message: store.ErrorReply) -> errors.AnchorStoreError:
    """The error that the other side raised."""
    return errors.from_code(message.code, message.message, message.retry_after_ms)
