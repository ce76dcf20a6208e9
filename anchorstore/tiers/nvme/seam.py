"""The one way to a device's file, so that tests can put a failing one in its place.

`DirectFile` is the real one: O_DIRECT where the file system has it, else buffered (tmpfs, some
network mounts), which is slower and fills the page cache but is otherwise the same.  With O_DIRECT
every offset, length and buffer address is a multiple of 4096; callers keep to that always.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anchorstore.errors import ConfigError

Log = Callable[[str], None]
FILE_NAME = "anchorstore.nvme"
DIRECT_BYTES = 4096
LANDING_SECONDS, LANDING_PAUSE_SECONDS = 2.0, 0.02

GONE_ERRORS = frozenset({errno.ENODEV, errno.ENXIO, errno.EBADF, errno.ESTALE, errno.ENOENT})
"""The device itself is no more."""
FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EPERM})
"""It takes no more bytes, and may still be read."""


class FileSeam(Protocol):
    """A device's file.  Every method but `close` may raise OSError."""

    name: str
    is_direct: bool
    is_read_only: bool

    @property
    def descriptor(self) -> int:
        """For an engine that talks to the kernel itself; OSError where it may not."""

    def size(self) -> int:
        """Bytes of the file or block device."""

    def is_removed(self) -> bool:
        """Whether the file has lost its name: nothing finds it after the end."""

    def resize(self, size: int) -> None:
        """Makes a file this long, with its bytes set aside where the file system can."""

    def preadv(self, buffers: Sequence[Any], offset: int) -> int:
        """Bytes read."""

    def pwritev(self, buffers: Sequence[Any], offset: int) -> int:
        """Bytes written."""

    def fdatasync(self) -> None:
        """Returns when what was written outlives a loss of power."""

    def close(self) -> None:
        """Gives the file and its lock back."""


OpenFile = Callable[[pathlib.Path, Log], FileSeam]


class DirectFile:
    """A regular file or a block device, opened and locked."""

    def __init__(self, name: str, descriptor: int, is_direct: bool, is_read_only: bool) -> None:
        self.name, self.descriptor = name, descriptor
        self.is_direct, self.is_read_only = is_direct, is_read_only

    def size(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_END)

    def is_removed(self) -> bool:
        here = os.fstat(self.descriptor)
        if not stat.S_ISREG(here.st_mode):
            return False
        try:
            return not os.path.samestat(here, os.stat(self.name))
        except (FileNotFoundError, NotADirectoryError):
            return True

    def resize(self, size: int) -> None:
        if stat.S_ISBLK(os.fstat(self.descriptor).st_mode):
            return
        before = self.size()
        if size <= before:
            os.ftruncate(self.descriptor, size)
            return
        # What a failing fallocate has taken it keeps: ask first, and give it back.
        system = os.fstatvfs(self.descriptor)
        if size - os.fstat(self.descriptor).st_blocks * 512 > system.f_bavail * system.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            os.posix_fallocate(self.descriptor, 0, size)
        except OSError:
            os.ftruncate(self.descriptor, before)
            raise

    def preadv(self, buffers: Sequence[Any], offset: int) -> int:
        return os.preadv(self.descriptor, buffers, offset)

    def pwritev(self, buffers: Sequence[Any], offset: int) -> int:
        return os.pwritev(self.descriptor, buffers, offset)

    def fdatasync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def open_direct(path: pathlib.Path, log: Log) -> DirectFile:
    """Opens, makes and locks the file of a device.

    A directory gets a file of its own in it.  ConfigError where that cannot be, or where another
    process owns it.
    """
    return _open(path, log, _WAYS)


def open_at_rest(path: pathlib.Path, log: Log) -> DirectFile:
    """The same, but only to read, and only what is there."""
    return _open(path, log, _WAYS[1:])


_WAYS = ((os.O_RDWR | os.O_CREAT, False), (os.O_RDONLY, True))
"""Flags, and whether the file can then only be read."""


def _open(path: pathlib.Path, log: Log, ways: Sequence[tuple[int, bool]]) -> DirectFile:
    target = path / FILE_NAME if path.is_dir() else path
    try:
        descriptor, is_direct, is_read_only = _opened(target, ways)
    except OSError as error:
        raise ConfigError(f"nvme: cannot open {target}: {error.strerror}") from error
    file = DirectFile(str(target), descriptor, is_direct, is_read_only)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise ConfigError(f"nvme: {target} is neither a file, a block device nor a directory")
        lock(file)
        _probe(file)
    except BaseException:
        file.close()
        raise
    if not file.is_direct:
        log(f"nvme: {target}: the file system has no O_DIRECT: buffered reads and writes")
    if is_read_only and len(ways) > 1:
        log(f"nvme: {target} can only be read: nothing new is stored on it")
    return file


def _opened(target: pathlib.Path, ways: Sequence[tuple[int, bool]]) -> tuple[int, bool, bool]:
    """Descriptor, whether it is direct, whether it can only be read."""
    is_block = target.is_block_device()
    # Without O_CREAT, O_EXCL refuses a block device that is mounted.
    flags = os.O_CLOEXEC | (os.O_EXCL if is_block else os.O_NOFOLLOW)
    for mode, is_read_only in ways:
        mode &= ~os.O_CREAT if is_block else ~0
        for direct in (os.O_DIRECT, 0):
            try:
                return os.open(target, flags | mode | direct, 0o600), bool(direct), is_read_only
            except OSError as error:
                if error.errno == errno.EINVAL and direct:
                    continue
                if error.errno != errno.EROFS or is_read_only:
                    raise
                break
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def lock(file: DirectFile, pause: Callable[[float], None] = time.sleep) -> None:
    """Makes this process the file's owner; ConfigError where another one lives that is.

    The calls of an owner that was killed may still be at the kernel, which keeps its lock until
    they have landed: that is waited for, and nothing of ours can fall between them.
    """
    for _ in range(round(LANDING_SECONDS / LANDING_PAUSE_SECONDS)):
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            owner = _lock_owner(file.descriptor)
        if owner is not None:
            break
        pause(LANDING_PAUSE_SECONDS)
    by = f" (process {owner})" if owner else ""
    raise ConfigError(f"nvme: {file.name} is in use by another process{by}")


def _lock_owner(descriptor: int) -> int | None:
    """Process that holds the lock, where the kernel says so and it still lives."""
    inode = os.fstat(descriptor).st_ino
    try:
        lines = pathlib.Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4]) if _is_alive(int(words[4])) else None
    return None


def _is_alive(process: int) -> bool:
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X")


def _probe(file: DirectFile) -> None:
    """Some file systems open with O_DIRECT and refuse the first read."""
    if not file.is_direct:
        return
    try:
        file.preadv([aligned(DIRECT_BYTES)], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise ConfigError(f"nvme: cannot read {file.name}: {error.strerror}") from error
        flags = fcntl.fcntl(file.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(file.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        file.is_direct = False


def aligned(size: int) -> memoryview:
    """`size` bytes of fresh memory that O_DIRECT takes; zeros."""
    return memoryview(mmap.mmap(-1, size))


def address_of(buffer: memoryview) -> int:
    """Where writable memory lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def read_all(file: FileSeam, into: memoryview, offset: int) -> int:
    """Reads until the buffer is full or the file ends; the bytes read."""
    done = 0
    while done < len(into):
        count = file.preadv([into[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def write_all(file: FileSeam, data: memoryview, offset: int) -> None:
    """Writes all of it; OSError with ENOSPC where the device takes nothing more."""
    done = 0
    while done < len(data):
        count = file.pwritev([data[done:]], offset + done)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count
