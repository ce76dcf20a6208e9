"""One daemon a socket path: a lock file beside the socket, held from bind to the end.

::

    engine.sock        the socket
    engine.sock.lock   locked by the daemon that owns it; gone after a clean end

The socket alone cannot say whether it is stale: a daemon that has bound it and does not listen yet
(it touches its pool first) refuses connections just as a dead one's does.  The kernel drops the
lock with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import pathlib

from anchorstore.errors import ConfigError


def _path_of(socket_path: pathlib.Path) -> pathlib.Path:
    return socket_path.with_name(socket_path.name + ".lock")


def take_lock(socket_path: pathlib.Path) -> int:
    """The lock, as a descriptor; ConfigError where another daemon has it, or nobody can."""
    path = _path_of(socket_path)
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"listen.socket: cannot lock {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(
                f"listen.socket: another daemon listens on {socket_path}, or will: it holds {path}"
            ) from error
        os.close(descriptor)  # its last owner removed it between open and lock


def give_lock(socket_path: pathlib.Path, descriptor: int) -> None:
    """Removes the file, then the lock."""
    _path_of(socket_path).unlink(missing_ok=True)
    os.close(descriptor)
