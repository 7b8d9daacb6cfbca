"""CommitLog files read window by window (data plane): a few MiB at a time, so that they stay in the processor's cache
and a task's memory does not depend on the size of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.columns import Records, Source
from rmqha.scan.storage import expect, read_exactly, storage_of
from rmqha.scan.walk import I64, RECORD_MAX_BYTES, RECORD_MIN_BYTES, Chain, Window, describe_break, find_record, walk

WINDOW_BYTES = 4 * 1024 * 1024
"""Bytes of log that make one RecordBatch."""
FILTERED_WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of a window if a filter leaves few of its rows."""
DENSE_BYTES = 32 * 1024
"""Distance of wanted pieces up to which a stretch is fetched from the disk as a whole."""
PROBE_BYTES = 256 * 1024
SPARE = 2
"""Length of the buffer in windows, for `spans` of bodies; the part that is not read into costs no memory."""


@dataclass(frozen=True, slots=True)
class LogFileInfo:
    """A CommitLog file by name; `base_offset` is the physical offset of its first byte."""

    path: str
    base_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """Physical offset at which the file ends."""
        return self.base_offset + self.size_bytes


class RemovedFileError(StoreError):
    """A file that was there when the store was opened has been removed."""


class CutError(StoreError):
    """Records that the walk has found are not there any more: a broker has cut its log meanwhile."""


class LogFile:
    """A CommitLog file, open for reading. Positions are bytes from its start.

    RemovedFileError if it was removed since the store was opened, as expired files are; StoreError if it has become
    shorter."""

    def __init__(self, name: LogFileInfo) -> None:
        self.name = name
        try:
            self._file = storage_of(name.path).open(name.path)
        except FileNotFoundError:
            sentence = f"{name.path} was removed while it was read, as expired files are: ask again"
            raise RemovedFileError(sentence) from None
        except PermissionError:
            raise UsageError(f"{name.path} cannot be read: permission denied") from None
        self._buffer = bytearray()
        self.read_bytes = 0
        """Bytes that were read until now."""

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def window(self, start: int, stop: int, *, reused: bool = False) -> Window:
        """The bytes [start, stop). A `reused` window is only valid until the next one is read."""
        size = stop - start
        raw = self._reused(size) if reused else bytearray(size)
        self._read(start, memoryview(raw)[:size])
        data = np.frombuffer(raw, np.uint8, size)
        return Window(self.name.path, self.name.base_offset + start, raw, data, self.name.size_bytes - stop)

    def packed(self, runs: Sequence[tuple[int, int]]) -> Window:
        """A reused window of these stretches, (position, size), one behind the other. Its base offset means nothing."""
        size = sum(size for _, size in runs)
        raw = self._reused(size)
        span = runs[-1][0] + runs[-1][1] - runs[0][0]
        if span < DENSE_BYTES * len(runs):
            # of a file that is not in the cache many small pieces cost several times as much as all of it
            expect(self._file, runs[0][0], span)
        view, at = memoryview(raw), 0
        for position, length in runs:
            self._read(position, view[at : at + length])
            at += length
        return Window(self.name.path, 0, raw, np.frombuffer(raw, np.uint8, size))

    def _reused(self, size: int) -> bytearray:
        if len(self._buffer) < SPARE * size:
            self._buffer = bytearray(SPARE * size)
        return self._buffer

    def _read(self, start: int, target: memoryview) -> None:
        path = self.name.path
        try:
            found = read_exactly(self._file, start, target)
        except OSError as error:
            raise StoreError(f"{path} cannot be read at {start}: {error.strerror or error}") from None
        self.read_bytes += found
        if found < len(target):
            expected = start + len(target)
            raise StoreError(f"{path}: expected {expected} bytes, found {start + found}: the file was shortened")

    def windows(self, start: int, stop: int, size: int = WINDOW_BYTES) -> Iterator[tuple[int, Window, Chain]]:
        """The records of [start, stop), `start` being a record's start: the position of each window, the window, and
        its chain; only the last one can be broken. Windows are reused, the first one has `size` bytes."""
        position, largest = start, max(size, WINDOW_BYTES)
        while position < stop:
            window = self.window(position, min(position + size, stop), reused=True)
            chain = walk(window, stop - position)
            if not len(chain.starts) and not chain.broken and not chain.end:
                size = min(size * 4, 2 * RECORD_MAX_BYTES)  # one record is longer than the window
                continue
            yield position, window, chain
            if chain.broken:
                return
            position, size = position + chain.end, min(size * 4, largest)

    def walk(self, start: int, stop: int, size: int = WINDOW_BYTES) -> Chain:
        """All records of [start, stop) at once, as positions in the file; `size` bytes are read first."""
        pieces, end, broken = [np.empty(0, np.int64)], start, False
        for position, _, chain in self.windows(start, stop, size):
            pieces.append(chain.starts + position)
            end, broken = position + chain.end, chain.broken
        return Chain(np.concatenate(pieces), end, broken)

    def describe_break(self, position: int, stop: int) -> str:
        """The reason why no record of [.., stop) starts at `position`, as a sentence."""
        head = self.window(position, min(position + RECORD_MIN_BYTES, stop))
        if find_record(head, 0, stop - position) == 0:
            window = self.window(position, position + int.from_bytes(head.data[:4].tobytes(), "big"))
            return Records(window, np.zeros(1, np.int64)).describe_incomplete(0)
        return describe_break(self.window(position, min(position + RECORD_MIN_BYTES, stop)), 0, stop - position)

    def find_record(self, position: int, stop: int) -> int | None:
        """The first position in [position, stop) with the magic and the own offset of a record; None without one."""
        size = PROBE_BYTES
        while stop - position >= RECORD_MIN_BYTES:
            window = self.window(position, min(position + size, stop), reused=True)
            found = find_record(window, 0, stop - position)
            if found is not None:
                return position + found
            # a record may start in the last bytes, its header cut by the window's end
            position += max(window.size_bytes - RECORD_MIN_BYTES, 1)
            size = WINDOW_BYTES
        return None

    def first_record(self) -> int:
        """Offset at which the records begin: 0, unless nothing was ever written before (a log that starts inside the
        file)."""
        size = self.name.size_bytes
        if size >= 8 and not self.window(0, 8).data.any():
            found = self.find_record(0, size)
            if found is None:
                return size
            if self._unwritten(found):
                return found
        return 0

    def _unwritten(self, stop: int) -> bool:
        """True if all bytes up to there are 0. If not, the first ones are a damaged header."""
        steps = range(0, stop, WINDOW_BYTES)
        return not any(self.window(at, min(at + WINDOW_BYTES, stop), reused=True).data.any() for at in steps)

    def record_at(self, position: int) -> Records | None:
        """The record that starts there, None if none does whose lengths add up."""
        size = self.name.size_bytes
        if size - position < RECORD_MIN_BYTES:
            return None
        head = self.window(position, position + RECORD_MIN_BYTES)
        if find_record(head, 0, size - position) != 0:
            return None
        record = self.window(position, position + int.from_bytes(head.data[:4].tobytes(), "big"))
        found = Records(record, np.zeros(1, np.int64))
        return found if found.whole.all() else None

    def records(self, starts: I64, source: Source | None = None) -> Records:
        """The records at `starts`, which a walk has found, in a window of their own. Raises CutError if they have been
        cut since."""
        low, last = int(starts[0]), int(starts[-1])
        size = int.from_bytes(self.window(last, last + 4).data.tobytes(), "big")
        if not RECORD_MIN_BYTES <= size <= self.name.size_bytes - last:
            raise CutError(f"{self.name.path}: the record at {last} was cut while the store was read: read it again")
        return Records(self.window(low, last + size), starts - low, source or Source())
