"""Errors of the disk, and of bytes that are not as they must be, as one sentence for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rmqha.model.error import DamagedError, NoRoomError, StoreError, UsageError
from rmqha.port import Disk

_ADVICE = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EACCES: "give this user the right to read and write there",
    errno.EPERM: "give this user the right to read and write there",
    errno.EROFS: "make the file system writable or choose another directory",
    errno.EIO: "check the disk, then replace it or remove this replica",
    errno.ENOTDIR: "choose a directory, not a file",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "raise the limits of memory (ulimit -v) and of mapped files (sysctl vm.max_map_count)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f, or LimitFSIZE of its unit)",
    errno.ENODEV: "choose a directory on a file system that can map files",
    errno.ENOLCK: "choose a directory on a file system that can lock files",
    errno.ESTALE: "put it back in its place, or stop this server and start it again",
}

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG)
"""Errors that say nothing against the disk: they pass when there is room, or a limit is raised."""


def is_no_room(error: OSError) -> bool:
    """True for want of room on the disk or under a limit."""
    return error.errno in _NO_ROOM


def place(disk: Disk, path: str) -> str:
    """The name of a file in a sentence."""
    return f"{disk.label}/{path}" if path else disk.label


def advice(error: OSError) -> str:
    """The end of a sentence about an error that says what to do; "" for an error that needs no such words."""
    known = _ADVICE.get(error.errno or 0)
    return f"; {known}" if known else ""


def os_sentence(disk: Disk, path: str, doing: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "look at the disk and try again")
    return f"{place(disk, path)}: cannot {doing}: {reason}; {advice}"


class DiskErrors:
    """The context manager that `disk_errors` gives. Every write passes through one, so it is no generator."""

    __slots__ = ("_disk", "_doing", "_path")

    def __init__(self, disk: Disk, path: str, doing: str) -> None:
        self._disk = disk
        self._path = path
        self._doing = doing

    def __enter__(self) -> None:
        """Do nothing: only the end of the block matters."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise StoreError(os_sentence(self._disk, self._path, self._doing, error)) from error


def disk_errors(disk: Disk, path: str, doing: str) -> DiskErrors:
    """OSError becomes a StoreError with a sentence."""
    return DiskErrors(disk, path, doing)


@contextmanager
def room_errors() -> Iterator[None]:
    """A StoreError for want of room becomes a NoRoomError: for what is undone, or may be done again, after it."""
    try:
        yield
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and is_no_room(cause):
            raise NoRoomError(str(error)) from cause
        raise


@contextmanager
def usage_errors(disk: Disk, path: str, doing: str) -> Iterator[None]:
    """OSError becomes a UsageError with a sentence: for what the user chose, such as the directory."""
    try:
        yield
    except OSError as error:
        raise UsageError(os_sentence(disk, path, doing, error)) from error


def damaged(
    disk: Disk,
    path: str,
    offset: int,
    expected: str,
    found: str,
    choices: str,
    phy_offset: int = -1,
    size_bytes: int = 0,
) -> DamagedError:
    """The error for a file that is not what it must be: its sentence names file, offset, what was expected and found,
    and what can be done."""
    text = f"{place(disk, path)} at byte {offset}: expected {expected}, found {found}; {choices}"
    return DamagedError(text, phy_offset, size_bytes)
