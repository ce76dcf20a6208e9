"""Goal: a system error is told in a few words, without its number and without what was tried.
Method: reason_of() of errors as the system and the event loops raise them.
"""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from anchorstore.transport.reasons import reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "No such file or dir"),
        (OSError(errno.EADDRINUSE, "error while attempting to bind on address x"), "Address alr"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not"),
        (ssl.SSLError(ssl.SSL_ERROR_SSL, "[SSL] certificate required"), "[SSL] certificate req"),
        (OSError("AF_UNIX path too long"), "AF_UNIX path too long"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_reason_of_an_error_is_the_system_s_words(error: OSError, reason: str) -> None:
    assert reason_of(error).startswith(reason)
