"""Files of a store directory, and the offset up to which its log is committed (control plane).

Nothing is locked and nothing is written: the store may belong to a running broker, ours or Apache RocketMQ's.

Committed end: the checkpoint's confirmPhyOffset is only written now and then, but dispatch into the ConsumeQueues stops
at the confirm offset, so a queue entry that fits its record proves that the record is committed. The end is the larger
of both, put back to a record's end: a slave's confirm offset may lie inside a record. Bytes that are no record end the
log unless a record stands behind them that its queue has: those are damage, however old the checkpoint is.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rmqha.model.error import RmqhaError, StoreError, UsageError
from rmqha.scan.columns import Records
from rmqha.scan.queues import QueueEntries
from rmqha.scan.read import CutError, LogFile, LogFileInfo
from rmqha.scan.storage import LocalStorage, Storage, storage_of
from rmqha.scan.walk import BLANK_HEADER_BYTES, I64, RECORD_MIN_BYTES, Chain, walk

CONFIRM_OFFSET_AT = 32
TRIES = 8
LOST_BYTES = 1024 * 1024
"""Bytes behind unwritten ones that are searched for records."""
NEW_BYTES = 64 * 1024
"""Bytes read first of what may have been appended since the last view."""
KNOWN_COUNT = 4096
"""Records of a file that are remembered between two views."""
NEIGHBOURS = 64
"""Number of records before a damaged one whose queues are searched for its entry."""
_EPOCH_LINE = re.compile(r"\d+-\d+")
WRITE_MARK = re.compile(rb"1 (\d+)\n")
"""Content of `rmqha.write`: a write is under way, or was broken off; what stands behind this offset does not count."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options with which a store is opened."""

    uncommitted: bool = False
    """True: include records behind the confirm offset."""
    all_epochs: bool = False
    """True: include uncommitted records also of epochs that have nothing committed."""
    pass_damage: bool = False
    """True: readers report damage themselves; else it is a StoreError as soon as it is seen."""
    pass_loss: bool = False
    """True: missing files are passed over; else they are a StoreError."""
    commit_log: str | None = None
    """The directory of the log, where it is not the store's own (storePathCommitLog)."""


COMMITTED = ViewOptions()


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as it was when it was opened; what is appended later is not in it."""

    root: str
    cluster: str | None
    broker_name: str | None
    broker_id: str | None
    """Id of the replica; null, as the names, without `brokerIdentity`."""
    files: tuple[LogFileInfo, ...]
    starts: tuple[int, ...]
    """Physical offset of the first record of each file."""
    end_offset: int
    """Committed end, or the end of the valid log if uncommitted records were asked for."""
    written_end: int
    """Offset at which whole records end, committed or not."""
    epochs: tuple[tuple[int, int], ...]

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is there."""
        return self.starts[0] if self.starts else self.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the log that can be read."""
        return self.end_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last committed records of a file, as positions in it; `head` are the first bytes of the last one."""

    first: int
    starts: I64
    end: int
    head: bytes


@dataclass(slots=True)
class ViewCache:
    """Results of earlier views of one store with the same options: the next one reads what was appended since, and of
    an unchanged store a few KiB. It stays in its process: a pickled one is empty."""

    view: StoreView | None = None
    marks: tuple[Any, ...] = ()
    tails: dict[str, _Tail] = field(default_factory=dict)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {}

    def __setstate__(self, state: object) -> None:
        self.view, self.marks, self.tails = None, (), {}


class _ForgottenError(Exception):
    """A view needs records before those that are known. Never leaves this module."""


def open_store(root: str, options: ViewOptions = COMMITTED, cache: ViewCache | None = None) -> StoreView:
    """Open the store in directory `root` (a broker's storePathRootDir), or at an address that fsspec knows. `cache`
    has the results of earlier views with the same options; it is renewed.

    UsageError if it is no store or may not be read; StoreError if the files are damaged.
    """
    with storage_errors(root):
        try:
            return _inspect(root, options, cache).view()
        except (_ForgottenError, CutError):
            if cache is not None:
                cache.tails.clear()
            return _inspect(root, options, cache).view()


def cluster_of(root: str, options: ViewOptions = COMMITTED) -> str | None:
    """The cluster of a store, by names alone: no record is read. Errors as of `open_store`."""
    with storage_errors(root):
        return _inspect(root, options).cluster()


@contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """Context manager that makes an error of the system or of a storage one sentence: UsageError or StoreError."""
    try:
        yield
    except PermissionError as error:
        raise UsageError(f"{error.filename or root} cannot be read: permission denied") from None
    except OSError as error:
        raise StoreError(f"{error.filename or root} cannot be read: {error.strerror or error}") from None
    except Exception as error:
        if isinstance(error, (RmqhaError, _ForgottenError)) or isinstance(storage_of(root), LocalStorage):
            raise
        # the client of a storage has errors of its own
        raise StoreError(f"{root} cannot be read: {error}") from None


def _inspect(root: str, options: ViewOptions, cache: ViewCache | None = None) -> _Inspection:
    return _Inspection(root.removeprefix("file://").rstrip("/") or "/", options, cache)


def read_epochs(root: str) -> tuple[tuple[int, int], ...]:
    """The store's epochs now, (epoch, start offset), rising; () without any."""
    return _Inspection(root, ViewOptions(pass_damage=True)).epochs()


class _Walked:
    """A CommitLog file, walked at first use: from where its known `tail` ends, if that is still there."""

    def __init__(self, name: LogFileInfo, tail: _Tail | None = None, queues: QueueEntries | None = None) -> None:
        self.name = name
        self._queues = queues
        self._remembered = tail

    @cached_property
    def file(self) -> LogFile:
        return LogFile(self.name)

    @cached_property
    def _tail(self) -> _Tail | None:
        tail = self._remembered
        if tail is None or tail.end > self.name.size_bytes:
            return None
        return tail if self.head_of(int(tail.starts[-1])) == tail.head else None

    def head_of(self, position: int) -> bytes:
        return self.file.window(position, position + RECORD_MIN_BYTES).data.tobytes()

    @cached_property
    def first(self) -> int:
        if self._tail is not None:
            return self._tail.first
        found = self.file.first_record()
        return 0 if 0 < found < self.name.size_bytes and self._is_named_before(found) else found

    def _is_named_before(self, position: int) -> bool:
        """True if the queues of the records from `position` on have records before it in this file: then the log does
        not begin there, and the bytes before are damaged."""
        if self._queues is None or not self._queues.exist:
            return False
        window = self.file.window(position, min(position + NEW_BYTES, self.name.size_bytes))
        starts = walk(window, self.name.size_bytes - position).starts[:NEIGHBOURS]
        records = Records(window, starts)
        records = records.select(records.whole) if len(records) else records
        if not len(records):
            return False
        columns = (records.number(name).tolist() for name in ("queueId", "queueOffset"))
        for topic, queue_id, queue_offset in zip(records.topic.to_pylist(), *columns, strict=True):
            before = self._queues.place(topic, queue_id, queue_offset - 1) if queue_offset > 0 else None
            if before is not None and self.name.base_offset <= before < self.name.base_offset + position:
                return True
        return False

    @cached_property
    def chain(self) -> Chain:
        """The records up to the first bytes that are none; of those that are known only the last ones."""
        tail = self._tail
        if tail is None:
            return self.file.walk(self.first, self.name.size_bytes)
        rest = self.file.walk(tail.end, self.name.size_bytes, NEW_BYTES)
        return Chain(np.concatenate((tail.starts, rest.starts)), rest.end, rest.broken)

    def need(self, offset: int) -> None:
        """Raise _ForgottenError unless all records from physical offset `offset` on are known."""
        if self._tail is not None and offset - self.name.base_offset < self._tail.starts[0] > self.first:
            raise _ForgottenError

    def tail_at(self, end_offset: int) -> _Tail | None:
        """The last records below `end_offset`, if one ends there, or the file does."""
        end = end_offset - self.name.base_offset
        starts = self.chain.starts[self.chain.starts < end][-KNOWN_COUNT:]
        if not len(starts):
            return None
        last = int(starts[-1])
        head = self.head_of(last)
        is_end = last + int.from_bytes(head[:4], "big") == end or end == self.name.size_bytes == self.chain.end
        return _Tail(self.first, starts.copy(), end, head) if is_end else None

    def close(self) -> None:
        if "file" in self.__dict__:
            self.file.close()

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
        self.need(limit)
        starts, base = self.chain.starts, self.name.base_offset
        place = int(np.searchsorted(starts, limit - base, "right")) - 1
        if place < 0:
            return self.first_offset
        after = starts[place + 1] if place + 1 < len(starts) else self._last_end()
        return base + int(after if base + after <= limit else starts[place])

    def named_behind(self, queues: QueueEntries) -> int:
        """The physical end of the last record that its queue has behind bytes of this file that are no record; 0
        without one."""
        at, end = self._first_unsound(), 0
        while at < self.name.size_bytes:
            found = self._named_after(at, queues)
            if found is None:
                return end or self._named_at(at, queues)
            if self.file.record_at(at) is not None:
                return 0  # it was appended meanwhile
            chain = self.file.walk(found, self.name.size_bytes)
            end = queues.last_covered(self.file, chain.starts) or end
            at = chain.end
        return end

    def _first_unsound(self) -> int:
        """The position behind the walked records, or that of the last one if its lengths do not add up."""
        starts = self.chain.starts
        last = int(starts[-1]) if len(starts) else None
        return self.chain.end if last is None or self.file.record_at(last) is not None else last

    def sound_end(self, queues: QueueEntries) -> int:
        """Physical end of the records, without a last one whose lengths do not add up although its queue has it."""
        at = self._first_unsound()
        return self.name.base_offset + at if at < self.chain.end and self._named_at(at, queues) else self.valid_end

    def _named_after(self, at: int, queues: QueueEntries) -> int | None:
        """Position of a record behind `at` that its queue has."""
        size, found = self.name.size_bytes, at
        written = self.file.window(at, min(at + 8, size)).data.any()
        for _ in range(TRIES):
            next_found = self.file.find_record(found + 1, size if written else min(at + LOST_BYTES, size))
            if next_found is None:
                return None
            found = next_found
            whole = self.file.record_at(found) is not None
            if whole and queues.last_covered(self.file, np.array([found], np.int64)) is not None:
                return found
        return None

    def _named_at(self, at: int, queues: QueueEntries) -> int:
        """The physical end of the damaged record at `at`, if the queue of a record before it has it; 0 if not."""
        starts = self.chain.starts[-NEIGHBOURS:]
        starts = starts[starts < at]
        if not len(starts) or not self.file.window(at, min(at + 8, self.name.size_bytes)).data.any():
            return 0
        size = queues.size_of(self.name.base_offset + at, self.file.records(starts))
        return self.name.base_offset + at + size if size and self.file.record_at(at) is None else 0

    def _last_end(self) -> int:
        """The end of the last record, as a position; a blank record may follow it."""
        last = int(self.chain.starts[-1])
        return last + int.from_bytes(self.file.window(last, last + 4).data.tobytes(), "big")


def _close(files: Sequence[_Walked]) -> None:
    for item in files:
        item.close()


class _Inspection:
    def __init__(self, root: str, options: ViewOptions, cache: ViewCache | None = None) -> None:
        self._root = root
        self._cache = ViewCache() if cache is None else cache
        self._options = options
        self._storage: Storage = storage_of(root)
        self._log = options.commit_log or f"{root}/commitlog"
        self._queues: QueueEntries
        self._write_limit: int | None = None
        self._begin_offset = 0
        """Physical offset at which the log's first file starts, also if that file has no bytes yet."""
        self._counted_end: int | None = None
        """Physical offset behind which marks speak of files that do not count yet."""

    def cluster(self) -> str | None:
        self._commit_log_files()
        return self._identity()[0]

    def view(self) -> StoreView:
        epochs = self.epochs()
        cache = self._cache
        marks = (*self._commit_log_files(), self._storage.content(f"{self._root}/checkpoint"), epochs, self._identity())
        if cache.view is not None and marks == cache.marks and self._is_unchanged(cache.view):
            return cache.view
        self._drop_tails(epochs)
        found = self._view(epochs)
        # a log that was cut and written anew meanwhile is not to be taken for one with these epochs
        if self.epochs() != epochs:
            return self.view()
        cache.view, cache.marks = found, marks
        return found

    def _drop_tails(self, epochs: tuple[tuple[int, int], ...]) -> None:
        """Forget what was proven, if another epoch wrote it."""
        view = self._cache.view
        before = () if view is None else tuple(item for item in view.epochs if item[1] < view.end_offset)
        if view is None or before != tuple(item for item in epochs if item[1] < view.end_offset):
            self._cache.tails.clear()

    def _is_unchanged(self, view: StoreView) -> bool:
        """True if everything that was written is committed, the last record is the same, and nothing is behind it."""
        tail = None if not view.files else self._cache.tails.get(view.files[-1].path)
        if tail is None or view.end_offset != view.written_end or self._read_write_limit() is not None:
            return False
        name = view.files[-1]
        item = _Walked(name, tail)
        try:
            behind = item.file.window(tail.end, min(tail.end + BLANK_HEADER_BYTES, name.size_bytes)).data
            return not behind.any() and item.head_of(int(tail.starts[-1])) == tail.head
        finally:
            item.close()

    def _view(self, epochs: tuple[tuple[int, int], ...]) -> StoreView:
        # the limits are taken before the log is read: a running broker only makes the log longer
        self._write_limit = self._read_write_limit()
        confirm = self._confirm_offset()
        self._queues = QueueEntries(self._storage, self._root)
        everything = self._commit_log()
        try:
            if self._named_behind(everything) > confirm:
                # what the queues name must be in a log that is read after them, and a cut takes the log first
                _close(everything)
                everything = self._commit_log()
                self._queues = QueueEntries(self._storage, self._root)
                confirm = max(confirm, self._named_behind(everything))
            files, end = self._readable(everything, confirm, epochs)
            files, end = self._before_write(files, end)
            starts = tuple(item.first_offset if item is files[0] else item.name.base_offset for item in files)
            written = end if self._write_limit is not None else max(end, files[-1].valid_end) if files else end
            tail = files[-1].tail_at(end) if files else None
            self._cache.tails = {} if tail is None else {files[-1].name.path: tail}
        finally:
            _close(everything)
        kept = tuple(item.name for item in files)
        return StoreView(self._root, *self._identity(), kept, starts, end, written, epochs if files else ())

    def _named_behind(self, everything: Sequence[_Walked]) -> int:
        """The end of the last record that its queue has behind bytes that are none: those are damaged, not the log's
        end. 0 without one."""
        if not self._queues.exist:
            return 0
        if not any(len(item.chain.starts) for item in reversed(everything)):
            return self._queues.end()
        for item in reversed(everything):
            named = item.named_behind(self._queues)
            if named or len(item.chain.starts):
                return named
        return 0

    def _commit_log(self) -> list[_Walked]:
        tails, queues = self._cache.tails, self._queues
        return [_Walked(name, tails.get(name.path), queues) for name in self._commit_log_files()]

    def _readable(
        self, everything: list[_Walked], confirm: int, epochs: tuple[tuple[int, int], ...]
    ) -> tuple[list[_Walked], int]:
        """The files that have records, and where the readable log ends."""
        files = everything.copy()
        while files and not len(files[-1].chain.starts):
            files.pop()
        # an empty log with marks that say otherwise is a damaged one; bytes without any marks may be
        written = any(item.first < item.name.size_bytes for item in everything)
        if written and not confirm and not self._queues.exist and not self._options.uncommitted:
            raise UsageError(
                f"{self._root} has neither a confirm offset nor consume queues: how far its log is committed cannot be "
                "told; copy checkpoint and consumequeue too, or read all of it with readUncommitted=true"
            )
        committed = self._covered_end(files, confirm)
        if self._counted_end is not None:
            committed = min(committed, self._counted_end)
        valid_end = files[-1].sound_end(self._queues) if files else self._begin_offset
        if committed > valid_end and (everything or not self._options.pass_loss):
            if not self._options.pass_damage or not everything:
                raise StoreError(self._shortfall(everything, valid_end, committed))
            files = [item for item in everything if item.name.base_offset < committed]
            return files, min(committed, files[-1].name.end_offset)
        if not files:
            return [], self._begin_offset
        end = self._uncommitted_end(files[-1], committed, epochs) if self._options.uncommitted else committed
        while files and files[-1].name.base_offset >= end:
            files.pop()
        return files, min(end, files[-1].record_end(end)) if files else end

    def _before_write(self, files: list[_Walked], end: int) -> tuple[list[_Walked], int]:
        """Files and end of the log without a write that is not done."""
        limit = self._write_limit
        if limit is None or limit >= end:
            return files, end
        kept = [item for item in files if item.name.base_offset < limit]
        return kept, limit if kept else self._begin_offset

    def _read_write_limit(self) -> int | None:
        path = f"{self._root}/rmqha.write"
        content = self._storage.content(path)
        if content is None:
            return None
        found = WRITE_MARK.fullmatch(content)
        if found is None:
            raise StoreError(f"{path}: expected version 1 and an offset, found {content[:60]!r}: use a newer release")
        return int(found[1])

    def _uncommitted_end(self, last: _Walked, committed: int, epochs: tuple[tuple[int, int], ...]) -> int:
        """End of the valid records above the committed end; these also need a body that matches its CRC."""
        end = last.valid_end
        if not self._options.all_epochs:
            end = min([end, *(start for _, start in epochs if start >= committed)])
        last.need(max(committed, last.first_offset))
        starts, base = last.chain.starts, last.name.base_offset
        starts = starts[starts + base >= committed]
        if len(starts):
            for position, window, chain in last.file.windows(int(starts[0]), last.chain.end):
                sound = Records(window, chain.starts).sound_count()
                if sound < len(chain.starts):
                    return min(end, base + position + int(chain.starts[sound]))
        return end

    def _shortfall(self, files: list[_Walked], valid_end: int, committed: int) -> str:
        for item in files:
            if item.name.base_offset <= valid_end < item.name.end_offset:
                broken = item.file.describe_break(valid_end - item.name.base_offset, item.name.size_bytes)
                return f"{broken} (committed up to {committed}: the tail is damaged or was not copied)"
        log = self._log
        found = f"them up to {valid_end}" if files else "none"
        return f"{log}: expected files up to the committed end {committed}, found {found}"

    def _covered_end(self, files: Sequence[_Walked], confirm: int) -> int:
        """End of the last record that its ConsumeQueue has; records before `confirm` are not searched."""
        for item in reversed(files if self._queues.exist else ()):
            if item.name.end_offset <= confirm:
                break
            starts = item.chain.starts
            starts = starts[starts + item.name.base_offset >= confirm]
            covered = self._queues.last_covered(item.file, starts)
            if covered is not None:
                return covered
            item.need(max(confirm, item.first_offset))
        return confirm

    # --- what stands beside the log -----------------------------------------------------------------------------------

    def _commit_log_files(self) -> list[LogFileInfo]:
        log, root = self._log, self._root
        entries = storage_of(log).entries(log)
        if entries is None and self._options.commit_log is not None:
            raise UsageError(f"{log}: no such directory; give the storePathCommitLog of {root}")
        if entries is None:
            beside = self._storage.entries(root)
            if beside is None:
                raise UsageError(f"{root}: no such directory; give a broker's data directory (storePathRootDir)")
            inner = f"{root}/store"
            is_inner = self._storage.entries(f"{inner}/commitlog") is not None
            hint = f"did you mean {inner}" if is_inner else "give a broker's storePathRootDir"
            raise UsageError(f"{root} is not a store, it has no commitlog directory: {hint}")
        found = sorted((name, size or 0) for name, size in entries if len(name) == 20 and name.isdecimal())
        names = [LogFileInfo(f"{log}/{name}", int(name), size) for name, size in found]
        self._begin_offset = names[0].base_offset if names else 0
        while names and names[-1].size_bytes == 0:  # being created
            names.pop()
        self._counted_end = None
        for place, (earlier, later) in enumerate(pairwise(names), 1):
            if earlier.end_offset < later.base_offset:
                # a copy that is under way: the files behind the gap do not count yet
                limit = self._read_write_limit()
                if limit is not None and limit <= earlier.end_offset:
                    self._counted_end = limit
                    return names[:place]
            if earlier.end_offset > later.base_offset or (
                earlier.end_offset < later.base_offset and not self._options.pass_loss
            ):
                expected = f"expected a file that starts at {earlier.end_offset}, found {later.base_offset}"
                raise StoreError(f"{log}: {expected}: the log has a gap")
        return names

    def _identity(self) -> tuple[str | None, str | None, str | None]:
        """Cluster, brokerName and brokerId."""
        content = self._storage.content(f"{self._root}/brokerIdentity")
        if content is None:
            return None, None, None
        parts = content.decode("utf-8", "replace").strip().split("#")
        if len(parts) == 3:
            return parts[0], parts[1], parts[2]
        if self._options.pass_damage:
            return None, None, None
        raise StoreError(
            f"{self._root}/brokerIdentity: expected cluster#brokerName#brokerId, found {'#'.join(parts)!r}"
        )

    def _confirm_offset(self) -> int:
        stored = self._storage.content(f"{self._root}/checkpoint") or b""
        if len(stored) < CONFIRM_OFFSET_AT + 8:
            return 0
        return max(int(struct.unpack_from(">q", stored, CONFIRM_OFFSET_AT)[0]), 0)

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """The entries of the epoch file, or of its .bak while the file itself is being rewritten; () without both."""
        path = f"{self._root}/epochFileCheckpoint"
        contents = [self._storage.content(path), self._storage.content(f"{path}.bak")]
        for content in contents:
            entries = None if content is None else _parse_epochs(content.decode("ascii", "replace"))
            if entries is not None:
                return entries
        if any(content is not None for content in contents) and not self._options.pass_damage:
            raise StoreError(f"{path}: expected a count, a CRC and lines epoch-startOffset, found other text")
        return ()


def _parse_epochs(content: str) -> tuple[tuple[int, int], ...] | None:
    """The entries of an epoch file; None unless the count and the CRC (0 = unchecked) fit them."""
    lines = content.split()
    if len(lines) < 2 or not all(_EPOCH_LINE.fullmatch(line) for line in lines[2:]):
        return None
    found = zlib.crc32("".join(line + "\n" for line in lines[2:]).encode("ascii")) & 0x7FFFFFFF
    if lines[0] != str(len(lines) - 2) or lines[1] not in ("0", str(found)):
        return None
    pairs = (line.split("-") for line in lines[2:])
    return tuple((int(epoch), int(start)) for epoch, start in pairs)


def by_group(views: Sequence[StoreView]) -> list[list[StoreView]]:
    """The views of each group, the one with the most committed first. A store without an identity is its own group."""
    groups: dict[str, list[StoreView]] = {}
    for view in views:
        groups.setdefault(f"group {view.broker_name}" if view.broker_name is not None else view.root, []).append(view)
    return [sorted(group, key=lambda view: -view.end_offset) for group in groups.values()]


def check_no_copies(views: Sequence[StoreView]) -> None:
    """UsageError if two stores of which one has no `brokerIdentity` hold the same records: each row would come twice.
    They are told apart by the first record that both logs reach."""
    for number, view in enumerate(views):
        for other in views[:number]:
            nameless = view.broker_name is None or other.broker_name is None
            if nameless and _share_a_record(view, other):
                raise UsageError(
                    f"{other.root} and {view.root} are copies of one log, and without a brokerIdentity in both nothing "
                    "shows that they are replicas: each row would come twice, give one of them"
                )


def _share_a_record(first: StoreView, second: StoreView) -> bool:
    start = max(first.min_offset, second.min_offset)
    held = [_record_bytes(view, start) for view in (first, second)]
    return held[0] is not None and held[0] == held[1]


def _record_bytes(view: StoreView, offset: int) -> bytes | None:
    """The record at this offset; None if none starts there."""
    for name in view.files:
        if name.base_offset <= offset < min(name.end_offset, view.end_offset):
            with LogFile(name) as file:
                record = file.record_at(offset - name.base_offset)
                return None if record is None else record.window.data.tobytes()
    return None


def check_same(records: Records, peers: Sequence[StoreView]) -> None:
    """StoreError if a peer's log holds other bytes where it has these records; names the first that differs."""
    if not peers or not len(records):
        return
    window, starts = records.window, records.starts
    ends = starts + records.fixed["storeSize"]
    for peer in peers:
        held = (starts + window.base_offset >= peer.min_offset) & (ends + window.base_offset <= peer.end_offset)
        if not held.any():
            continue
        low, high = int(starts[held][0]), int(ends[held][-1])
        theirs = _read(peer, low + window.base_offset, high + window.base_offset)
        same = window.data[low:high] == theirs
        if same.all():
            continue
        first = low + int(np.argmin(same))
        place = int(starts[np.searchsorted(starts, first, "right") - 1]) + window.base_offset
        raise StoreError(
            f"{window.path} and {peer.root} are replicas of one group and differ in the record at physical offset "
            f"{place}: compare them with `rmqha epochs diff` and `rmqha fsck`"
        )


def _read(view: StoreView, start: int, end: int) -> np.ndarray:
    """The bytes [start, end) of a log."""
    found = np.zeros(end - start, np.uint8)
    for name in view.files:
        low, high = max(start, name.base_offset), min(end, name.end_offset)
        if low < high:
            with LogFile(name) as file:
                piece = file.window(low - name.base_offset, high - name.base_offset).data
            found[low - start : high - start] = piece
    return found
