"""Which files a store directory has, how far its log is committed, and how to cut it into ranges (control plane).

Nothing is locked and nothing is written: the store may belong to a running broker, ours or Apache RocketMQ's.

Committed end: the checkpoint's confirmPhyOffset is only written now and then, but dispatch into the ConsumeQueues stops
at the confirm offset, so a queue entry that fits its record proves that the record is committed. The end is the larger
of both, put back to a record's end: a slave's confirm offset may lie inside a record.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqha.model.error import StoreError, UsageError
from rmqha.store.scan_columns import I64, Records, Source, body_is_whole, record_sizes
from rmqha.store.scan_walk import Chain, LogFile, describe_break, first_record, walk

UNIT_BYTES = 20
BATCH_UNIT_BYTES = 46
CONFIRM_OFFSET_AT = 32
RANGE_MIN_BYTES = 4 * 1024 * 1024
LOOK_BACK_COUNT = 4096
ENTRY_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "storeSize")
_EPOCH_LINE = re.compile(r"\d+-\d+")


@dataclass(frozen=True, slots=True)
class FileName:
    """A CommitLog file by name; `base_offset` is the physical offset of its first byte."""

    path: str
    base_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole records of one file: physical offsets [start, end). Picklable."""

    file: FileName
    start: int
    end: int
    source: Source

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as it was when it was looked at; what is appended later is not in it."""

    root: str
    cluster: str | None
    broker_name: str | None
    files: tuple[FileName, ...]
    starts: tuple[int, ...]
    """Physical offset of the first record of each file."""
    end_offset: int
    """Committed end, or the end of the valid log if uncommitted records were asked for."""
    epochs: tuple[tuple[int, int], ...]

    @property
    def min_offset(self) -> int:
        return self.starts[0] if self.starts else self.end_offset


def map_file(name: FileName) -> LogFile:
    """Map a file for reading. StoreError if it has gone since, as expired files do."""
    try:
        data = _mapped_bytes(name.path)
    except FileNotFoundError:
        raise StoreError(f"{name.path} was removed while it was read, as expired files are: ask again") from None
    except PermissionError:
        raise UsageError(f"{name.path} cannot be read: permission denied") from None
    if len(data) < name.size_bytes:
        raise StoreError(f"{name.path}: expected {name.size_bytes} bytes, found {len(data)}: the file was shortened")
    return LogFile(name.path, name.base_offset, data[: name.size_bytes])


def _mapped_bytes(path: str) -> NDArray[np.uint8]:
    if Path(path).stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(pa.memory_map(path, "r").read_buffer(), np.uint8)


def open_store(root: str, *, uncommitted: bool = False) -> StoreView:
    """Look at the store in directory `root` (a broker's storePathRootDir).

    UsageError if it is no store or may not be read; StoreError if the files are damaged.
    """
    directory = Path(root)
    try:
        return _look(directory, uncommitted)
    except PermissionError as error:
        raise UsageError(f"{error.filename or directory} cannot be read: permission denied") from None
    except OSError as error:
        raise StoreError(f"{error.filename or directory} cannot be read: {error.strerror or error}") from None


def _look(directory: Path, uncommitted: bool) -> StoreView:
    names = _commit_log_files(directory)
    cluster, broker_name = _identity(directory)
    # the limit is taken before the log is walked: a running broker only makes the log longer
    confirm = _confirm_offset(directory)
    everything = [_Walked(name) for name in names]
    files = everything.copy()
    while files and not len(files[-1].chain.starts):
        files.pop()
    if not files:
        return StoreView(str(directory), cluster, broker_name, (), (), names[0].base_offset if names else 0, ())
    committed = max(confirm, _covered_end(directory, files, confirm))
    last = files[-1]
    if committed > last.valid_end:
        raise StoreError(_shortfall(directory, everything, last.valid_end, committed))
    end = _whole_end(last, committed) if uncommitted else committed
    while files and files[-1].name.base_offset >= end:
        files.pop()
    if files:
        end = min(end, files[-1].record_end(end))
    starts = tuple(item.first_offset if item is files[0] else item.name.base_offset for item in files)
    kept = tuple(item.name for item in files)
    return StoreView(str(directory), cluster, broker_name, kept, starts, end, _epochs(directory))


def _shortfall(directory: Path, files: list[_Walked], valid_end: int, committed: int) -> str:
    for item in files:
        if item.name.base_offset <= valid_end < item.name.end_offset:
            broken = describe_break(item.file, valid_end - item.name.base_offset, item.file.size_bytes)
            return f"{broken} (committed up to {committed}: the tail is damaged or was not copied)"
    return f"{directory}/commitlog: expected files up to the committed end {committed}, found them up to {valid_end}"


class _Walked:
    """A CommitLog file, mapped and walked when first asked for."""

    def __init__(self, name: FileName) -> None:
        self.name = name

    @cached_property
    def file(self) -> LogFile:
        return map_file(self.name)

    @cached_property
    def first(self) -> int:
        return first_record(self.file, self.file.size_bytes)

    @cached_property
    def chain(self) -> Chain:
        """The records up to the first bytes that are none."""
        return walk(self.file, self.first, self.file.size_bytes)

    @property
    def first_offset(self) -> int:
        return self.name.base_offset + self.first

    @property
    def valid_end(self) -> int:
        return self.name.base_offset + self.chain.end

    def record_end(self, limit: int) -> int:
        """The last end of a record at or below physical offset `limit`; the file's end if a blank closes it there."""
        if limit >= self.name.end_offset:
            return self.name.end_offset
        if limit >= self.valid_end:
            return self.valid_end
        starts, base = self.chain.starts, self.name.base_offset
        place = int(np.searchsorted(starts, limit - base, "right")) - 1
        if place < 0:
            return self.first_offset
        start = int(starts[place])
        end = start + int(record_sizes(self.file, starts[place : place + 1])[0])
        return base + (end if base + end <= limit else start)


def plan_ranges(view: StoreView, *, min_ranges: int, low: int = 0, high: int = 2**63 - 1) -> list[LogRange]:
    """Cut the log into ranges at record starts, at least `min_ranges` where they would not fall below 4 MiB.

    Only files that hold physical offsets of [low, high] are taken. A file that must be cut is walked for its record
    starts; a file that fits one range is not read here.
    """
    source = Source(view.broker_name, view.epochs)
    whole = []
    for name, start in zip(view.files, view.starts, strict=True):
        end = min(name.end_offset, view.end_offset)
        if start < end and start <= high and end > low:
            whole.append(LogRange(name, start, end, source))
    total = sum(item.size_bytes for item in whole)
    target = max(RANGE_MIN_BYTES, -(-total // max(min_ranges, 1)))
    return [piece for item in whole for piece in _cut(item, target)]


def _cut(item: LogRange, target: int) -> list[LogRange]:
    pieces = round(item.size_bytes / target)
    if pieces <= 1:
        return [item]
    file = map_file(item.file)
    base = file.base_offset
    chain = walk(file, item.start - base, item.end - base)
    if chain.broken:
        raise StoreError(describe_break(file, chain.end, item.end - base))
    goals = item.start - base + np.arange(1, pieces) * (item.size_bytes // pieces)
    places = np.searchsorted(chain.starts, goals)
    cuts = sorted({int(chain.starts[place]) + base for place in places if place < len(chain.starts)} - {item.start})
    bounds = [item.start, *cuts, item.end]
    return [LogRange(item.file, low, high, item.source) for low, high in pairwise(bounds)]


def group_ranges(ranges: Sequence[LogRange], target_bytes: int) -> list[tuple[LogRange, ...]]:
    """Put small neighbouring ranges together, so that a log of many small files does not make as many tasks."""
    groups: list[list[LogRange]] = []
    filled = target_bytes
    for item in ranges:
        if filled + item.size_bytes > target_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += item.size_bytes
    return [tuple(group) for group in groups]


def _commit_log_files(directory: Path) -> list[FileName]:
    log = directory / "commitlog"
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such directory; give a broker's data directory (storePathRootDir)")
    if not log.is_dir():
        inner = directory / "store"
        hint = f"did you mean {inner}" if (inner / "commitlog").is_dir() else "give a broker's storePathRootDir"
        raise UsageError(f"{directory} is not a store, it has no commitlog directory: {hint}")
    paths = sorted(path for path in log.iterdir() if len(path.name) == 20 and path.name.isdecimal())
    names = [FileName(str(path), int(path.name), path.stat().st_size) for path in paths]
    while names and names[-1].size_bytes == 0:  # being created
        names.pop()
    for earlier, later in pairwise(names):
        if earlier.end_offset != later.base_offset:
            expected = f"expected a file that starts at {earlier.end_offset}, found {later.base_offset}"
            raise StoreError(f"{log}: {expected}: the log has a gap")
    return names


def _identity(directory: Path) -> tuple[str | None, str | None]:
    try:
        parts = (directory / "brokerIdentity").read_text("utf-8").strip().split("#")
    except FileNotFoundError:
        return None, None
    if len(parts) != 3:
        raise StoreError(f"{directory}/brokerIdentity: expected cluster#brokerName#brokerId, found {'#'.join(parts)!r}")
    return parts[0], parts[1]


def _confirm_offset(directory: Path) -> int:
    try:
        stored = (directory / "checkpoint").read_bytes()
    except FileNotFoundError:
        return 0
    if len(stored) < CONFIRM_OFFSET_AT + 8:
        return 0
    return max(int(struct.unpack_from(">q", stored, CONFIRM_OFFSET_AT)[0]), 0)


def _epochs(directory: Path) -> tuple[tuple[int, int], ...]:
    """The entries of the epoch file, or of its .bak while the file itself is being rewritten; () without either."""
    paths = [directory / "epochFileCheckpoint", directory / "epochFileCheckpoint.bak"]
    paths = [path for path in paths if path.exists()]
    for path in paths:
        entries = _parse_epochs(path.read_text("ascii", "replace"))
        if entries is not None:
            return entries
    if paths:
        raise StoreError(f"{paths[0]}: expected a count, a CRC and lines epoch-startOffset, found other text")
    return ()


def _parse_epochs(content: str) -> tuple[tuple[int, int], ...] | None:
    """None unless the count and the CRC (0 = unchecked) fit the entries."""
    lines = content.split()
    if len(lines) < 2 or not all(_EPOCH_LINE.fullmatch(line) for line in lines[2:]):
        return None
    found = zlib.crc32("".join(line + "\n" for line in lines[2:]).encode("ascii")) & 0x7FFFFFFF
    if lines[0] != str(len(lines) - 2) or lines[1] not in ("0", str(found)):
        return None
    pairs = (line.split("-") for line in lines[2:])
    return tuple((int(epoch), int(start)) for epoch, start in pairs)


def _whole_end(last: _Walked, committed: int) -> int:
    """Where the readable log ends: records above the committed end also need a body that matches its CRC."""
    starts = last.chain.starts
    for start in starts[starts + last.name.base_offset >= committed].tolist():
        if not body_is_whole(last.file, start):
            return last.name.base_offset + int(start)
    return last.valid_end


def _covered_end(directory: Path, files: list[_Walked], confirm: int) -> int:
    """End of the last record that its ConsumeQueue has, looking back from the log's end no further than `confirm`."""
    queues = _QueueEntries(directory)
    for item in reversed(files if queues.exist else []):
        if item.name.end_offset <= confirm:
            break
        starts = item.chain.starts
        starts = starts[starts + item.name.base_offset >= confirm]
        covered = queues.last_covered(item.file, starts)
        if covered is not None:
            return covered
    return confirm


class _QueueEntries:
    """Looks records up in their ConsumeQueues; remembers how many entries each queue has."""

    def __init__(self, directory: Path) -> None:
        self._roots = [directory / "consumequeue", directory / "batchconsumequeue"]
        self.exist = any(root.is_dir() for root in self._roots)
        self._queues: dict[tuple[str, int], _Queue | None] = {}

    def last_covered(self, file: LogFile, starts: I64) -> int | None:
        """Physical end of the last of the records that its queue has; None if no queue has any."""
        for high in range(len(starts), 0, -LOOK_BACK_COUNT):
            records = Records(file, starts[max(high - LOOK_BACK_COUNT, 0) : high])
            records = records.select(records.whole)
            columns = (records.number(name)[::-1].tolist() for name in ENTRY_COLUMNS)
            topics = reversed(records.topic.to_pylist())
            for topic, queue_id, queue_offset, phy_offset, size in zip(topics, *columns, strict=True):
                if (topic, queue_id) not in self._queues:
                    self._queues[topic, queue_id] = self._open(topic, queue_id)
                queue = self._queues[topic, queue_id]
                if queue is not None and queue.has(queue_offset, phy_offset, size):
                    return int(phy_offset + size)
        return None

    def _open(self, topic: str, queue_id: int) -> _Queue | None:
        if "/" in topic or topic in ("", ".", ".."):
            return None
        for root, unit_bytes in zip(self._roots, (UNIT_BYTES, BATCH_UNIT_BYTES), strict=True):
            paths = sorted(path for path in (root / topic / str(queue_id)).glob("[0-9]" * 20))
            if paths:
                return _Queue(paths, unit_bytes)
        return None


class _Queue:
    """The files of one queue, mapped when first asked for."""

    def __init__(self, paths: list[Path], unit_bytes: int) -> None:
        self._unit = np.dtype([("offset", ">i8"), ("size", ">i4"), ("rest", f"V{unit_bytes - 12}")])
        self._files: dict[int, NDArray[Any]] = {}
        self._paths = {int(path.name) // unit_bytes: path for path in paths}
        self._is_batch = unit_bytes == BATCH_UNIT_BYTES

    def has(self, queue_offset: int, phy_offset: int, size: int) -> bool:
        """Does the queue have this record? A batch queue, whose entries have other numbers, is searched for it."""
        if self._is_batch:
            last = self._entries(max(self._paths))
            return bool(((last["offset"] == phy_offset) & (last["size"] == size)).any())
        first = max((start for start in self._paths if start <= queue_offset), default=None)
        if first is None:
            return False
        entries = self._entries(first)
        if queue_offset - first >= len(entries):
            return False
        entry = entries[queue_offset - first]
        return int(entry["offset"]) == phy_offset and int(entry["size"]) == size

    def _entries(self, first: int) -> NDArray[Any]:
        if first not in self._files:
            data = _mapped_bytes(str(self._paths[first]))
            self._files[first] = data[: len(data) // self._unit.itemsize * self._unit.itemsize].view(self._unit)
        return self._files[first]
