"""Data plane: read-only access to the CommitLog of a store, in windows by pread.

One code path for a store of any size, live or dead, ours or Apache RocketMQ's: nothing is mapped, locked or written.
`LogReader.records` goes from record to record and says in `stop` why it ended.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from rmqha.port import ReadDisk, ReadFile
from rmqha.store.log.record import (
    BLANK,
    BLANK_HEADER_BYTES,
    MAGIC_BLANK,
    MIN_RECORD_BYTES,
    BadRecordError,
    Located,
    locate,
    verify,
)

WINDOW_BYTES = 4 * 1024 * 1024
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_OWN_OFFSET = struct.Struct(">q")
_OWN_OFFSET_AT = 28
_ZEROS = bytes(WINDOW_BYTES)

Check = Callable[[memoryview, int, int, int], Located]
Entry = tuple[int, memoryview, int, Located | None]
"""A record: (position, buffer, index in it, parts). The buffer holds the whole record; parts is None for a blank
one."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """One file of the log, or its used part. `start_offset` is its name."""

    path: str
    start_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.size_bytes


class StopReason(Enum):
    """The reason why a walk ended."""

    END = 0
    """At the end that was asked for, or a record would cross it."""
    UNWRITTEN = 1
    """Zeros stand where a record could begin."""
    BAD = 2
    """Other bytes stand there."""
    NO_FILE = 3
    UNREADABLE = 4


@dataclass(frozen=True, slots=True)
class Stop:
    """The place where a walk ended; `at` is the byte in the file `path`."""

    why: StopReason
    position: int
    path: str
    at: int
    expected: str = ""
    found: str = ""
    size_bytes: int = 0
    """Size of the bad record, if its lengths add up: the next one may stand behind it."""


class LogReader:
    """Reader of the records of `files`, which rise and do not overlap."""

    def __init__(self, disk: ReadDisk, files: Sequence[LogPiece]) -> None:
        self.disk = disk
        self.files = tuple(files)
        self.stop = Stop(StopReason.END, 0, "", 0)
        self._starts = [piece.start_offset for piece in self.files]
        self._open: tuple[LogPiece, ReadFile] | None = None

    @property
    def min_offset(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def max_offset(self) -> int:
        """End of the last file."""
        return self.files[-1].end_offset if self.files else 0

    def find(self, offset: int) -> LogPiece | None:
        index = bisect_right(self._starts, offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end_offset else None

    def where(self, offset: int) -> tuple[str, int]:
        """Path and byte of a physical offset; those of the file before it if none holds it."""
        index = max(bisect_right(self._starts, offset) - 1, 0)
        return (self.files[index].path, offset - self._starts[index]) if self.files else ("commitlog", offset)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def read(self, piece: LogPiece, at: int, size_bytes: int) -> bytes:
        """Bytes of a file; fewer at its end. Raises OSError."""
        if self._open is None or self._open[0] is not piece:
            self.close()
            self._open = (piece, self.disk.open_read(piece.path))
        return self._open[1].read_at(at, min(size_bytes, piece.size_bytes - at))

    def windows(self, piece: LogPiece, at: int) -> Iterator[tuple[int, bytes]]:
        """Windows of a file from `at` to its end: (byte in the file, bytes)."""
        while data := self.read(piece, at, WINDOW_BYTES):
            yield at, data
            at += len(data)

    # --- records ----------------------------------------------------------------------------------------------------
    def records(self, start: int, end: int, check: Check = verify) -> Iterator[Entry]:
        """The records of [start, end); `start` must be a record's start. Afterwards `stop` says where the walk ended,
        and why."""
        position = start
        while position < end:
            piece = self.find(position)
            if piece is None:
                path, at = self.where(position)
                self.stop = Stop(StopReason.NO_FILE, position, path, at, f"a file that holds offset {position}", "none")
                return
            try:
                stop = yield from self._of_piece(piece, position - piece.start_offset, end - piece.start_offset, check)
            except OSError as error:
                at = position - piece.start_offset
                self.stop = Stop(StopReason.UNREADABLE, position, piece.path, at, "readable bytes", _reason(error))
                return
            if stop is not None:
                self.stop = stop
                return
            position = piece.end_offset
        path, at = self.where(position)
        self.stop = Stop(StopReason.END, position, path, at)

    def _of_piece(self, piece: LogPiece, at: int, end: int, check: Check) -> Generator[Entry, None, Stop | None]:
        """The records of one file from byte `at` on; returns None at the file's end, else why it ended."""
        limit, base_offset = piece.size_bytes, piece.start_offset
        view, base = memoryview(b""), at
        while at < limit:
            left = limit - at
            if at >= end:
                return Stop(StopReason.END, base_offset + at, piece.path, at)
            if base + len(view) - at < min(left, MIN_RECORD_BYTES):
                view, base = memoryview(self.read(piece, at, WINDOW_BYTES)), at
                if len(view) < min(left, MIN_RECORD_BYTES):
                    return _cut_short(piece, at, len(view))
            if left < BLANK_HEADER_BYTES:
                return _bad(piece, at, "a blank record", f"the last {left} bytes of the file")
            index = at - base
            size, magic = BLANK.unpack_from(view, index)
            if magic == MAGIC_BLANK:
                if size != left:
                    return _bad(piece, at, f"a blank record of {left} bytes", f"one of {size}")
                yield base_offset + at, view, index, None
                return None
            if size == 0 and magic == 0:
                return Stop(StopReason.UNWRITTEN, base_offset + at, piece.path, at, "a record", "unwritten bytes")
            framed = MIN_RECORD_BYTES <= size <= left
            if framed and index + size > len(view):
                view, base, index = memoryview(self.read(piece, at, max(size, WINDOW_BYTES))), at, 0
                if len(view) < size:
                    return _cut_short(piece, at, len(view))
            try:
                parts = check(view, index, index + left, base_offset + at)
            except BadRecordError as error:
                expected, _, found = str(error).removeprefix("expected ").partition(", found ")
                return _bad(piece, at, expected, found, size if framed else 0)
            if at + size > end:
                return Stop(StopReason.END, base_offset + at, piece.path, at)
            yield base_offset + at, view, index, parts
            at += size
        return None

    def record_at(self, position: int) -> Entry | None:
        """The record that starts at `position`, None if none does."""
        for entry in self.records(position, position + (1 << 62), locate):
            return entry if entry[3] is not None else None
        return None

    def whole_size(self, position: int) -> int:
        """Size of the whole and valid record at `position`, 0 if there is none."""
        piece = self.find(position)
        if piece is None:
            return 0
        at = position - piece.start_offset
        head = self.read(piece, at, MIN_RECORD_BYTES)
        if len(head) < MIN_RECORD_BYTES:
            return 0
        size = BLANK.unpack_from(head)[0]
        if not MIN_RECORD_BYTES <= size <= piece.size_bytes - at:
            return 0
        data = memoryview(self.read(piece, at, size))
        try:
            return verify(data, 0, len(data), position)[0]
        except BadRecordError:
            return 0

    def next_whole(self, position: int, end: int) -> int | None:
        """The first place in [position, end) where a whole and valid record starts, found by its magic and its own
        offset. Raises OSError."""
        for piece in self.files:
            if piece.end_offset <= position or piece.start_offset >= end:
                continue
            at = max(position - piece.start_offset, 0)
            while data := self.read(piece, at, WINDOW_BYTES):
                for hit in _MAGIC.finditer(data, 4):
                    start = piece.start_offset + at + hit.start() - 4
                    if start >= end:
                        return None
                    own = data[hit.start() - 4 + _OWN_OFFSET_AT : hit.start() + 4 + _OWN_OFFSET_AT]
                    if len(own) == 8 and _OWN_OFFSET.unpack(own)[0] == start and self.whole_size(start):
                        return start
                if len(data) < WINDOW_BYTES:
                    break
                at += len(data) - MIN_RECORD_BYTES
        return None

    def used_end(self, piece: LogPiece, at: int) -> int:
        """The byte behind the last one from `at` on that is not zero; `at` if none is. Raises OSError."""
        used = at
        for start, data in self.windows(piece, at):
            if data != _ZEROS[: len(data)]:
                used = start + len(data.rstrip(b"\0"))
        return used


def _bad(piece: LogPiece, at: int, expected: str, found: str, size_bytes: int = 0) -> Stop:
    return Stop(StopReason.BAD, piece.start_offset + at, piece.path, at, expected, found, size_bytes)


def _cut_short(piece: LogPiece, at: int, found_bytes: int) -> Stop:
    expected = f"{piece.size_bytes - at} more bytes"
    return Stop(StopReason.UNREADABLE, piece.start_offset + at, piece.path, at, expected, f"{found_bytes}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
