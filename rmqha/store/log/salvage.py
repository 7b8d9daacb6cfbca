"""Control plane: what recovery is about to cut from the log's end is judged, and saved if it may be more than a torn
write. Nothing saved is ever removed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from errno import EDQUOT, ENOSPC
from typing import NamedTuple

from rmqha.model.error import StoreError
from rmqha.port import Disk
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.commit_log import UNREADABLE, CommitLog
from rmqha.store.log.mapped_file import file_name
from rmqha.store.log.record import (
    BLANK,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    SYS_BORN_V6,
    SYS_STORE_V6,
    BadRecordError,
    verify,
)
from rmqha.store.meta.problem import disk_errors, place

PREFIX = "rmqha.cut-"
_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)))


class TrailingBytes(NamedTuple):
    """Bytes of one file behind the end that are not zero, from the physical `offset` on."""

    offset: int
    data: memoryview


class LogTail(NamedTuple):
    pieces: list[TrailingBytes]
    torn: bool
    """True if the tail is at most one record whose write was interrupted by the end of the process or machine."""
    record_offset: int | None
    """Offset at which a whole, valid record of this log stands in it; None if there is none."""

    @property
    def size_bytes(self) -> int:
        return sum(len(piece.data) for piece in self.pieces)


def find_tail(log: CommitLog, end: int) -> LogTail:
    """The bytes behind the log's end. Raises StoreError for bytes that the disk cannot read."""
    pieces = []
    for file in log.files.files:
        start = max(end, file.start_offset)
        if start >= file.end_offset:
            continue
        file.probe(start, file.end_offset, UNREADABLE)
        used_end = file.used_end(start)
        if used_end > start:
            pieces.append(TrailingBytes(start, file.region.view(start - file.start_offset, used_end - start)))
    return LogTail(pieces, _is_torn(log, end, pieces), _find_record(log, end, pieces))


def _is_torn(log: CommitLog, end: int, pieces: list[TrailingBytes]) -> bool:
    """True if one record's beginning stands at `end`, and zeros behind that record."""
    if not pieces or len(pieces) > 1 or pieces[0].offset != end:
        return not pieces
    file = log.files.find(end)
    assert file is not None
    head = bytes(file.region.view(end - file.start_offset, min(BLANK.size, file.end_offset - end)))
    size, magic = BLANK.unpack(head.ljust(BLANK.size, b"\0"))
    used = len(pieces[0].data)
    return bool(used <= size <= file.end_offset - end and (used <= 4 or _may_become_magic(magic, used - 4)))


def is_beginning(log: CommitLog, start: int, stop: int) -> bool:
    """True if [start, stop) may be the beginning of a record, or of a blank one, that ends behind `stop`: a slave's log
    ends so wherever a transfer did. All its lengths that are here must agree."""
    file = log.files.find(start)
    if file is None or stop > file.end_offset:
        return False
    have, room = stop - start, file.end_offset - start
    if have < MIN_RECORD_BYTES:
        return True
    view = file.region.view(start - file.start_offset, have)
    size, magic, _, _, _, _, position, sys_flag, _ = HEAD.unpack_from(view)
    if not have < size <= room:
        return False
    if magic == MAGIC_BLANK:
        return bool(size == room)
    body_at = 88 + (12 if sys_flag & SYS_BORN_V6 else 0) + (12 if sys_flag & SYS_STORE_V6 else 0)
    if position != start or magic not in (MAGIC_V1, MAGIC_V2) or body_at + 4 > size:
        return False
    topic_bytes = 1 if magic == MAGIC_V1 else 2
    at = body_at
    if at <= have:
        at += int.from_bytes(view[at - 4 : at], "big", signed=True)
    for length_bytes in (topic_bytes, 2):
        if not body_at <= at <= size - length_bytes:
            return False
        if at + length_bytes > have:
            return True
        at += length_bytes + int.from_bytes(view[at : at + length_bytes], "big")
    return bool(at == size)


def _may_become_magic(magic: int, written: int) -> bool:
    """True if the bytes of a magic that have been written are those of one."""
    shown = magic.to_bytes(4, "big")[:written]
    return any(known.to_bytes(4, "big").startswith(shown) for known in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


def _find_record(log: CommitLog, end: int, pieces: Iterable[TrailingBytes]) -> int | None:
    for offset, data in pieces:
        file = log.files.find(offset)
        assert file is not None
        view, limit = file.region.view(0, log.file_size_bytes), log.file_size_bytes
        for found in _MAGIC.finditer(data):
            position = offset + found.start() - 4
            if position <= end:
                continue
            try:
                verify(view, position - file.start_offset, limit, position)
            except BadRecordError:
                continue
            return position
    return None


def save(disk: Disk, tail: LogTail) -> str:
    """Write the pieces into a new directory, durably; each file is named by the offset of its first byte. Returns the
    directory. Raises StoreError, with nothing kept, if there is no room."""
    numbers = [int(name[len(PREFIX) :]) for name in _directories(disk)]
    directory = f"{PREFIX}{1 + max(numbers, default=0)}"
    free_bytes = disk.space()[1]
    if tail.size_bytes > free_bytes:
        raise _no_room(disk, tail, free_bytes)
    try:
        for piece in tail.pieces:
            disk.write_atomic(f"{directory}/{file_name(piece.offset)}", piece.data)
    except OSError as error:
        if disk.exists(directory):
            disk.remove_tree(directory)
        if error.errno in (ENOSPC, EDQUOT):
            raise _no_room(disk, tail, disk.space()[1]) from error
        with disk_errors(disk, directory, "save what must be cut"):
            raise
    return directory


def _no_room(disk: Disk, tail: LogTail, free_bytes: int) -> StoreError:
    return StoreError(
        f"{place(disk, LOG_DIRECTORY)}: {tail.size_bytes} bytes from {tail.pieces[0].offset} on must be saved before"
        f" they are cut, and the disk has {free_bytes} free; free some space, or remove this replica's store and let it"
        " copy the group's"
    )


def _directories(disk: Disk) -> list[str]:
    with disk_errors(disk, "", "list the directory"):
        names = disk.list("")
    return [name for name in names if name.startswith(PREFIX) and name[len(PREFIX) :].isdigit()]


def earlier(disk: Disk) -> list[str]:
    """One sentence if earlier starts have saved something."""
    found = _directories(disk)
    if not found:
        return []
    with disk_errors(disk, found[0], "list the directory"):
        size_bytes = sum(_size(disk, f"{name}/{each}") for name in found for each in disk.list(name))
    return [
        f"{', '.join(found)}: {size_bytes} bytes that were cut from the log at earlier starts; `rmqha log kept`"
        " removes them when nobody needs them."
    ]


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.size_bytes(path)
    except (FileNotFoundError, IsADirectoryError):
        return 0  # somebody tidies up, or keeps other things there
