"""System errors in the system's few words: for messages that name the thing themselves."""

from __future__ import annotations

import os
import socket
import ssl


def reason_of(error: OSError) -> str:
    """E.g. "Address already in use": without the number, and without what was tried."""
    if error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):  # own numbers
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
