"""Control plane: a store directory read from outside, as it is at one moment. Nothing is locked or written.

Committed end: the checkpoint's confirmPhyOffset is written only now and then, but dispatch into the queues stops at the
confirm offset, so a queue entry that fits its record proves that the record is committed; our own progress file proves
it too. The end is the largest of the three.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rmqha.inspect.finding import FindingKind, Findings, Severity
from rmqha.inspect.log_reader import LogPiece, LogReader
from rmqha.model.error import StoreError, UsageError
from rmqha.port import ReadDisk, ReadFile
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.mapped_file import NAME_DIGITS, file_name
from rmqha.store.meta import sidecar
from rmqha.store.meta.boot_file import ABORT_PATH
from rmqha.store.meta.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_PATH, PROGRESS_PATH, SLOT_BYTES, Checkpoint
from rmqha.store.meta.identity_file import PATH as IDENTITY_PATH

LOCK_PATH = "lock"
TOPICS_PATH = "config/topics.json"
# the layouts are defined here again: a check that shared them with the writer would share its mistakes
QUEUE_DIRECTORY = "consumequeue"
BATCH_DIRECTORY = "batchconsumequeue"
UNIT = struct.Struct(">qiq")
"""An entry of a ConsumeQueue: physical offset, size, tagsCode."""
BATCH_UNIT = struct.Struct(">qiqqqhii")
"""An entry of a batch queue: physical offset, size, tagsCode, storeTimestamp, baseOffset, batchNum, compacted offset
(-1), reserved (0)."""
PREFILL_SIZE = 0x7FFFFFFF
PREFILL = UNIT.pack(0, PREFILL_SIZE, 0)
UNIT_BYTES = UNIT.size
BATCH_UNIT_BYTES = BATCH_UNIT.size
HEAD = struct.Struct(">qi")
"""Head of the entries of both kinds of queue: physical offset, size."""
STEP_BACK_COUNT = 64
"""Most damaged entries at the end of a queue that the search for the newest good one skips."""
SIZE_UNIT_BYTES = 4096
"""Assumed divisor of the size of log files."""
EPOCHS_LIMIT_BYTES = 16 * 1024 * 1024


def is_run_name(name: str) -> bool:
    """True for the name of a file of a run: its start offset in 20 digits."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) < 1 << 63


def size_of(disk: ReadDisk, path: str) -> int:
    """Size of a file. Raises OSError, also for a directory."""
    if disk.is_directory(path):
        raise IsADirectoryError(f"{path} is a directory")
    file = disk.open_read(path)
    try:
        return file.size_bytes
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class CommitLogFiles:
    """The log's files by name and size. `sizes` are those on disk."""

    files: tuple[LogPiece, ...]
    file_size_bytes: int
    """Size of a file by the names, or, if there is only one, its own size; 0 for a log without files."""
    sizes: dict[str, int]
    foreign_files: tuple[str, ...]
    unreadable: dict[str, str]

    @property
    def end_offset(self) -> int:
        return self.files[-1].end_offset if self.files else 0

    def judge(self, findings: Findings) -> None:
        """Report wrong names and sizes. Holes are found by a walk of the log."""
        for name in self.foreign_files:
            findings.note(f"{LOG_DIRECTORY}/{name}", "not one of the store's files")
        for path, reason in self.unreadable.items():
            findings.add(Severity.ERROR, FindingKind.OTHER, path, None, "a file that can be read", reason)
        wanted = self.file_size_bytes
        for piece in self.files:
            size = self.sizes[piece.path]
            lonely = len(self.files) == 1 and (size % SIZE_UNIT_BYTES or piece.start_offset % max(size, 1))
            if size != wanted or lonely:
                expected = f"a multiple of {SIZE_UNIT_BYTES} bytes" if lonely else f"{wanted} bytes like the others"
                advice = "say --repair --file-size BYTES with the broker's mappedFileSizeCommitLog" if lonely else ""
                findings.add(Severity.ERROR, FindingKind.LOG_SIZE, piece.path, None, expected, f"{size} bytes", advice)


def list_log(disk: ReadDisk) -> CommitLogFiles:
    """The log's files. Raises OSError if the directory cannot be listed."""
    sizes: dict[str, int] = {}
    starts: list[int] = []
    foreign_files: list[str] = []
    unreadable: dict[str, str] = {}
    for name in disk.list(LOG_DIRECTORY):
        path = f"{LOG_DIRECTORY}/{name}"
        if not is_run_name(name):
            foreign_files.append(name)
            continue
        try:
            sizes[path] = size_of(disk, path)
        except FileNotFoundError:
            continue  # expired between the listing and now
        except OSError as error:
            unreadable[path] = error.strerror or str(error)
            continue
        starts.append(int(name))
    distances = [later - earlier for earlier, later in pairwise(starts)]
    votes = Counter([*distances, *sizes.values()])
    wanted = max(votes, key=lambda size: (votes[size], size), default=0)
    files = []
    for index, start in enumerate(starts):
        path = f"{LOG_DIRECTORY}/{file_name(start)}"
        room = min(wanted, distances[index]) if index < len(distances) else wanted
        files.append(LogPiece(path, start, min(sizes[path], room)))
    return CommitLogFiles(tuple(files), wanted, sizes, tuple(foreign_files), unreadable)


def progress_slots(data: bytes, where: str) -> Iterator[tuple[int, int, int, bytes, str]]:
    """Slots of our progress file: (byte, position, indexed up to, the checkpoint's bytes, a sentence if it is
    wrong)."""
    for at in range(0, min(len(data), 2 * SLOT_BYTES), SLOT_BYTES):
        slot = data[at : at + SLOT_BYTES]
        if not any(slot):
            continue
        size = int.from_bytes(slot[:2], "big")
        try:
            fields = sidecar.decode(slot[2 : 2 + size], where)
            seen = fields.get("checkpoint")
            if not isinstance(seen, bytes) or any(slot[2 + size :]):
                raise sidecar.BadSidecarError("expected the checkpoint's bytes and zeros behind, found something else")
            indexed = sidecar.number(fields, "index") if "index" in fields else 0
            yield at, sidecar.number(fields, "position"), indexed, seen, ""
        except (sidecar.BadSidecarError, StoreError) as error:
            yield at, 0, 0, b"", str(error)


class QueueFiles:
    """The files of one queue, units of `unit_bytes` each. Reads by pread; raises OSError."""

    def __init__(self, disk: ReadDisk, directory: str, unit_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.unit_bytes = unit_bytes
        self.foreign_files: list[str] = []
        self.sizes: dict[int, int] = {}
        """Start byte to size on disk."""
        for name in disk.list(directory):
            if not is_run_name(name):
                self.foreign_files.append(name)
            else:
                self.sizes[int(name)] = size_of(disk, f"{directory}/{name}")
        self._open: tuple[int, ReadFile] | None = None

    @property
    def first_byte(self) -> int:
        return min(self.sizes, default=0)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def path(self, start: int) -> str:
        return f"{self.directory}/{file_name(start)}"

    def place(self, byte: int) -> tuple[str, int]:
        """Path, and byte in that file, of a byte of the queue."""
        start = max((start for start in self.sizes if start <= byte), default=self.first_byte)
        return self.path(start), byte - start

    def read(self, byte: int, size_bytes: int) -> bytes:
        """The bytes of the queue from `byte` on, inside one file; b"" where there are none."""
        start = max((start for start in self.sizes if start <= byte), default=None)
        if start is None or byte >= start + self.sizes[start]:
            return b""
        if self._open is None or self._open[0] != start:
            self.close()
            self._open = (start, self.disk.open_read(self.path(start)))
        return self._open[1].read_at(byte - start, min(size_bytes, start + self.sizes[start] - byte))

    def newest(self) -> Iterator[tuple[int, int]]:
        """Physical offset and size of the newest entries, the last first. Entries are written in order, so a binary
        search finds the end."""
        unit = self.unit_bytes
        if not self.sizes:
            return
        last = max(self.sizes)
        low, high = self.first_byte // unit, (last + self.sizes[last]) // unit
        while low < high:
            middle = (low + high) // 2
            data = self.read(middle * unit, HEAD.size)
            if len(data) == HEAD.size and HEAD.unpack(data)[1] != 0:
                low = middle + 1
            else:
                high = middle
        for number in range(low - 1, max(low - 1 - STEP_BACK_COUNT, self.first_byte // unit - 1), -1):
            data = self.read(number * unit, HEAD.size)
            if len(data) == HEAD.size:
                yield HEAD.unpack(data)


def queue_directories(disk: ReadDisk) -> Iterator[tuple[str, str, int, int]]:
    """All queues: (directory, topic, queue id, bytes of an entry). Raises OSError."""
    for root, unit_bytes in ((QUEUE_DIRECTORY, UNIT_BYTES), (BATCH_DIRECTORY, BATCH_UNIT_BYTES)):
        if not disk.is_directory(root):
            continue
        for topic in disk.list(root):
            if not disk.is_directory(f"{root}/{topic}"):
                continue
            for name in disk.list(f"{root}/{topic}"):
                directory = f"{root}/{topic}/{name}"
                if name.isascii() and name.isdigit() and len(name) <= 10 and disk.is_directory(directory):
                    yield directory, topic, int(name), unit_bytes


@dataclass(frozen=True, slots=True)
class StoreInspection:
    """A store at the moment of its inspection; what is appended later is not in it."""

    disk: ReadDisk
    log: CommitLogFiles
    live: bool
    """True if another process holds the store's lock."""
    stopped_cleanly: bool
    checkpoint: Checkpoint
    """Zeros if the file is missing or holds other bytes."""
    progress: tuple[int, int] | None
    """Offsets up to which records are dispatched and indexed, by our progress file; None if another program used the
    store last."""
    covered_offset: int
    """End of the newest record that a queue has."""

    @property
    def min_offset(self) -> int:
        return self.log.files[0].start_offset if self.log.files else 0

    @property
    def progress_offset(self) -> int | None:
        return None if self.progress is None else self.progress[0]

    @property
    def indexed_end(self) -> int:
        """Offset below which every record must be in the index, which our broker builds when there is time."""
        return self.dispatched_end if self.progress is None else min(self.progress[1], self.dispatched_end)

    @property
    def committed_end(self) -> int:
        return max(self.checkpoint.confirm_phy_offset, self.progress_offset or 0, self.covered_offset, self.min_offset)

    @property
    def dispatched_end(self) -> int:
        """Offset below which every record must be in its queue. After a crash, and while a broker runs, only the saved
        offset counts: our dispatch writes queue by queue, Java's record by record."""
        if self.stopped_cleanly and not self.live:
            return self.committed_end
        return self.covered_offset if self.progress_offset is None else self.progress_offset

    def reader(self) -> LogReader:
        return LogReader(self.disk, self.log.files)


def inspect_store(disk: ReadDisk, *, locked_by_us: bool = False) -> StoreInspection:
    """Inspect the store on `disk`. UsageError for what is no store or cannot be read at all."""
    try:
        return _inspect(disk, locked_by_us)
    except OSError as error:
        raise UsageError(f"{disk.label} cannot be read: {error.strerror or error}; check the path and rights") from None


def require_store(disk: ReadDisk) -> None:
    """Raise UsageError for what is no store; OSError from the disk."""
    if not disk.is_directory(""):
        raise UsageError(f"{disk.label} is no directory; give a broker's storePathRootDir")
    if not disk.is_directory(LOG_DIRECTORY):
        if disk.exists(IDENTITY_PATH):
            raise UsageError(
                f"{disk.label} has no directory {LOG_DIRECTORY}: the broker of this store has stored no message yet"
            )
        inner = disk.is_directory(f"store/{LOG_DIRECTORY}")
        hint = f"did you mean {disk.label}/store?" if inner else "give a broker's storePathRootDir"
        raise UsageError(f"{disk.label} is no message store, it has no directory {LOG_DIRECTORY}: {hint}")


def _inspect(disk: ReadDisk, locked_by_us: bool) -> StoreInspection:
    require_store(disk)
    live = not locked_by_us and disk.is_locked(LOCK_PATH)
    # the limits are taken before the files are listed: a running broker only makes the log longer
    checkpoint, progress = _marks(disk)
    log = list_log(disk)
    covered = _covered(disk, LogReader(disk, log.files))
    return StoreInspection(disk, log, live, not disk.exists(ABORT_PATH), checkpoint, progress, covered)


def _marks(disk: ReadDisk) -> tuple[Checkpoint, tuple[int, int] | None]:
    """The checkpoint, and the progress that belongs to it. Both are read again if a running broker wrote in between."""
    data = read_or_empty(disk, CHECKPOINT_PATH, CHECKPOINT_BYTES)
    for _ in range(5):
        slots = read_or_empty(disk, PROGRESS_PATH, 2 * SLOT_BYTES)
        again = read_or_empty(disk, CHECKPOINT_PATH, CHECKPOINT_BYTES)
        if again == data:
            break
        data = again
    try:
        checkpoint = Checkpoint.decode(data.ljust(CHECKPOINT_BYTES, b"\0"))
    except ValueError:
        checkpoint = Checkpoint()
    fitting = [
        (position, indexed)
        for _, position, indexed, seen, wrong in progress_slots(slots, PROGRESS_PATH)
        if not wrong and seen == checkpoint.encode()
    ]
    return checkpoint, max(fitting, default=None)


def read_or_empty(disk: ReadDisk, path: str, limit_bytes: int) -> bytes:
    """Content of a file; b"" if it is missing or cannot be read."""
    try:
        return disk.read(path, limit_bytes)
    except OSError:
        return b""


def _covered(disk: ReadDisk, reader: LogReader) -> int:
    """Physical end of the newest record that its queue has; 0 if none has any."""
    covered = 0
    try:
        directories = list(queue_directories(disk))
    except OSError:
        directories = []
    for directory, topic, queue_id, unit_bytes in directories:
        try:
            covered = max(covered, _covered_by(QueueFiles(disk, directory, unit_bytes), reader, topic, queue_id))
        except OSError:
            continue  # whoever checks the queue says so
    reader.close()
    return covered


def _covered_by(files: QueueFiles, reader: LogReader, topic: str, queue_id: int) -> int:
    try:
        for offset, size in files.newest():
            if size <= 0 or size == PREFILL_SIZE or not reader.min_offset <= offset < reader.max_offset:
                continue
            entry = reader.record_at(offset)
            if entry is None or entry[3] is None:
                continue
            view, parts = entry[1], entry[3]
            name = bytes(view[parts[6] : parts[6] + parts[7]])
            if (parts[0], parts[2], name) == (size, queue_id, topic.encode("utf-8", "surrogateescape")):
                return offset + size
    finally:
        files.close()
    return 0
