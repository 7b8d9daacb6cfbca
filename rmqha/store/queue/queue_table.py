"""Data plane: the parts that both forms of consume queue share: a queue's files, and the table of all queues.

Queues are derived state: what a power loss or a cut takes from them is made again from the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Generic, Protocol, TypeVar

from rmqha.port import Disk
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.mapped_file import MappedFile, MappedFiles, check_sizes, find_queues
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.meta.problem import disk_errors
from rmqha.store.queue.dispatcher import RecoveredEntries

QueueKey = tuple[str, int]
"""Topic and queue id."""


class UnitFiles:
    """The files of one queue: units of one size, one behind the other."""

    __slots__ = ("files", "queue_id", "topic")

    def __init__(self, disk: Disk, directory: str, topic: str, queue_id: int, file_size_bytes: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFiles(disk, f"{directory}/{topic}/{queue_id}", file_size_bytes, reserve=False)

    def write_at(self, at: int, units: memoryview) -> None:
        """Write at byte `at` of the queue, in new files where there is none yet."""
        with disk_errors(self.files.disk, self.files.directory, "write an entry"):
            while units:
                file = self.files.find(at)
                if file is None:
                    self.files.add(self.files.files[-1].end_offset if self.files.files else 0, durable=False)
                    continue
                size = min(len(units), file.end_offset - at)
                file.region.write(at - file.start_offset, units[:size])
                at += size
                units = units[size:]

    def zero_from(self, end: int) -> None:
        """Zero the rest of the file that holds byte `end`, from there on."""
        file = self.files.find(end)
        if file is not None:
            file.zero(end, file.used_end(end))

    def sync(self) -> None:
        for file in list(self.files.files):
            file.sync()

    def close(self) -> None:
        self.files.close()


class Queue(Protocol):
    """The part of a queue that its table needs."""

    @property
    def last_end(self) -> int: ...
    def trim(self, log_min: int) -> list[MappedFile]: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def recover(self, log: CommitLog, position: int, *, whole: bool) -> RecoveredEntries: ...


QueueT = TypeVar("QueueT", bound=Queue)


class QueueTable(ABC, Generic[QueueT]):
    """All queues of one form, by (topic, queue id)."""

    directory: str
    size_key: str
    """Key of the configuration that sets the size of their files."""
    unit_bytes: int

    def __init__(self, disk: Disk, file_size_bytes: int) -> None:
        self._disk = disk
        self.file_size_bytes = -(-file_size_bytes // self.unit_bytes) * self.unit_bytes
        self.table: dict[QueueKey, QueueT] = {}
        self._dirty: set[QueueKey] = set()
        self._dirty_guard = Lock()
        """The flusher takes the dirty queues in its own thread."""

    def __iter__(self) -> Iterator[QueueT]:
        return iter(self.table.values())

    def get(self, topic: str, queue_id: int) -> QueueT | None:
        return self.table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> QueueT:
        queue = self.table.get((topic, queue_id))
        if queue is None:
            queue = self.table[topic, queue_id] = self._new(topic, queue_id)
        return queue

    @abstractmethod
    def _new(self, topic: str, queue_id: int) -> QueueT:
        """Make a queue that is not in the table."""

    @property
    def covered_offset(self) -> int:
        """The physical end of the newest record that has an entry: dispatch goes in log order."""
        return max((queue.last_end for queue in self), default=0)

    def _recover_all(
        self, log: CommitLog, position: int, last_stop: LastStop
    ) -> tuple[list[QueueKey], list[str], list[int], bool]:
        """Find and check the queues on disk: their keys, lines for the operator, where to make entries anew from, and
        whether a queue has lost its beginning."""
        keys, lines = find_queues(self._disk, self.directory)
        check_sizes(self._disk, self.directory, keys, self.size_key, self.file_size_bytes, self.unit_bytes)
        found = [self.make(*key).recover(log, position, whole=last_stop is LastStop.POWER_LOST) for key in keys]
        lines = [*lines, *(line for item in found for line in item.lines)]
        repairs = [item.repair_from for item in found if item.repair_from is not None]
        return keys, lines, repairs, any(item.lost_start for item in found)

    def _mark_dirty(self, keys: Iterable[QueueKey]) -> None:
        with self._dirty_guard:
            self._dirty.update(keys)

    def trim(self, log_min: int) -> list[MappedFile]:
        """Trim all queues. Each keeps at least its newest file, which says where its offsets go on."""
        return [file for queue in self for file in queue.trim(log_min)]

    def sync(self) -> None:
        with self._dirty_guard:
            dirty, self._dirty = self._dirty, set()
        for key in sorted(dirty):
            queue = self.table.get(key)
            if queue is not None:
                queue.sync()

    def set_aside(self, directory: str) -> None:
        self.close()
        with disk_errors(self._disk, self.directory, "move the old queues aside"):
            if self._disk.exists(self.directory):
                self._disk.rename(self.directory, f"{directory}/{self.directory}")
        self.table.clear()

    def close(self) -> None:
        for queue in self:
            queue.close()
