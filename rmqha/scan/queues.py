"""Lookups in ConsumeQueues, whose entries prove what is committed: dispatch stops at the confirm offset (data plane,
read only)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqha.scan.columns import Records
from rmqha.scan.read import LogFile
from rmqha.scan.storage import Storage, read_exactly
from rmqha.scan.walk import I64, RECORD_MAX_BYTES

UNIT_BYTES = 20
BATCH_UNIT_BYTES = 46
BATCH_REST = [("tagsCode", ">i8"), ("stored", ">i8"), ("base", ">i8"), ("count", ">i2"), ("reserved", "V8")]
STEP_BACK_COUNT = 4096
FEW_RECORDS = 16
"""Number of last records that are looked up first, then ever more: most often one of them is in its queue."""
FEW_ENTRIES = 4
"""Number of entries of a queue that are read one by one; for more its file is read."""
ENTRY_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "storeSize")


class QueueEntries:
    """Lookup of records in their ConsumeQueues; remembers how many entries each queue has."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._roots = [f"{root}/consumequeue", f"{root}/batchconsumequeue"]
        self.exist = any(storage.entries(path) is not None for path in self._roots)
        self._queues: dict[tuple[str, int], _Queue | None] = {}

    def last_covered(self, file: LogFile, starts: I64) -> int | None:
        """Physical end of the last of the records that its queue has; None if no queue has any."""
        high, count = len(starts), FEW_RECORDS
        while high > 0:
            records = file.records(starts[max(high - count, 0) : high])
            high, count = high - count, min(count * 16, STEP_BACK_COUNT)
            records = records.select(records.whole)
            columns = (records.number(name)[::-1].tolist() for name in ENTRY_COLUMNS)
            topics = reversed(records.topic.to_pylist())
            for topic, queue_id, queue_offset, phy_offset, size in zip(topics, *columns, strict=True):
                queue = self._queue(topic, queue_id)
                if queue is not None and queue.has(queue_offset, phy_offset, size):
                    return int(phy_offset + size)
        return None

    def has(self, record: Records) -> bool:
        """True if its queue has this one record. Reads one entry only, not the queue's file."""
        topic, queue_id = str(record.topic[0]), int(record.number("queueId")[0])
        queue = self._queue(topic, queue_id)
        return queue is not None and queue.has(*(int(record.number(name)[0]) for name in ENTRY_COLUMNS[1:]), alone=True)

    def size_of(self, phy_offset: int, records: Records) -> int:
        """The size of the record at `phy_offset`, as an entry of the queues of these records says; 0 without one."""
        queues = set(zip(records.topic.to_pylist(), records.number("queueId").tolist(), strict=True))
        found = [queue.size_of(phy_offset) for name in sorted(queues) if (queue := self._queue(*name)) is not None]
        return max(found, default=0)

    def _queue(self, topic: str, queue_id: int) -> _Queue | None:
        if (topic, queue_id) not in self._queues:
            self._queues[topic, queue_id] = self._open(topic, queue_id)
        return self._queues[topic, queue_id]

    def extent(self, topic: str, queue_id: int, start: int, end: int) -> tuple[int, int] | None:
        """First queue offset, and the one behind the last, of what the queue has in the log's bytes [start, end); twice
        the same if it has nothing there any more. None without such a queue."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else queue.extent(start, end)

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The physical offset of a queue's entry; None without one, and for queues of batches. Reads one entry."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else queue.place(queue_offset)

    def end(self) -> int:
        """The highest physical end that any entry names; 0 without entries. Reads the last file of every queue: only
        for a log that has no record of its own to look up."""
        highest = 0
        for root in self._roots:
            for topic in self._directories(root):
                for queue_id in self._directories(f"{root}/{topic}"):
                    queue = self._open(topic, int(queue_id)) if queue_id.isdecimal() else None
                    highest = max(highest, queue.end() if queue is not None else 0)
        return highest

    def _directories(self, path: str) -> list[str]:
        return [name for name, size in self._storage.entries(path) or () if size is None]

    def _open(self, topic: str, queue_id: int) -> _Queue | None:
        if "/" in topic or topic in ("", ".", ".."):
            return None
        for root, unit_bytes in zip(self._roots, (UNIT_BYTES, BATCH_UNIT_BYTES), strict=True):
            directory = f"{root}/{topic}/{queue_id}"
            names = [name for name, _ in self._storage.entries(directory) or () if len(name) == 20 and name.isdecimal()]
            if names:
                return _Queue(self._storage, {int(name): f"{directory}/{name}" for name in names}, unit_bytes)
        return None


class _Queue:
    """The files of one queue, read when first asked for."""

    def __init__(self, storage: Storage, paths: dict[int, str], unit_bytes: int) -> None:
        self._storage = storage
        self._is_batch = unit_bytes == BATCH_UNIT_BYTES
        rest = BATCH_REST if self._is_batch else [("tagsCode", ">i8")]
        self._unit = np.dtype([("offset", ">i8"), ("size", ">i4"), *rest])
        self._files: dict[int, NDArray[Any]] = {}
        self._asked_count = 0
        self._paths = {base // unit_bytes: path for base, path in paths.items()}

    def has(self, queue_offset: int, phy_offset: int, size: int, *, alone: bool = False) -> bool:
        """True if the queue has this record. A batch queue, whose entries have other numbers, is searched for it.
        `alone`: read only its entry, not the file, since no other one will be asked for."""
        if self._is_batch:
            last = self._entries(max(self._paths))
            return bool(((last["offset"] == phy_offset) & (last["size"] == size)).any())
        first = max((start for start in self._paths if start <= queue_offset), default=None)
        if first is None:
            return False
        at = queue_offset - first
        self._asked_count += 1
        is_alone = (alone or self._asked_count <= FEW_ENTRIES) and first not in self._files
        entry = self._entry(first, at) if is_alone else self._entries(first)[at : at + 1]
        return len(entry) == 1 and int(entry["offset"][0]) == phy_offset and int(entry["size"][0]) == size

    def place(self, queue_offset: int) -> int | None:
        """The physical offset of one entry."""
        first = max((start for start in self._paths if start <= queue_offset), default=None)
        if self._is_batch or first is None:
            return None
        entry = self._entry(first, queue_offset - first)
        is_real = len(entry) == 1 and 0 < entry["size"][0] <= RECORD_MAX_BYTES
        return int(entry["offset"][0]) if is_real else None

    def size_of(self, phy_offset: int) -> int:
        """Size of the record there, by an entry of the last file; 0 without one."""
        last = self._entries(max(self._paths))
        sizes = last["size"][last["offset"] == phy_offset]
        return int(sizes[0]) if len(sizes) and 0 < sizes[0] <= RECORD_MAX_BYTES else 0

    def end(self) -> int:
        """The highest physical end that the entries of the last file name, pre-filled units left out."""
        last = self._entries(max(self._paths))
        real = last[(last["size"] > 0) & (last["size"] <= RECORD_MAX_BYTES) & (last["offset"] >= 0)]
        return int((real["offset"].astype(np.int64) + real["size"]).max()) if len(real) else 0

    def extent(self, start: int, end: int) -> tuple[int, int]:
        """Extent as `QueueEntries` gives it; reads the files from both ends, as far as it must."""
        firsts = sorted(self._paths)
        after = next((held[1] for first in reversed(firsts) if (held := self._held(first, 0, end))), 0)
        begin = next((held[0] for first in firsts if (held := self._held(first, start, end))), after)
        return begin, after

    def _held(self, first: int, start: int, end: int) -> tuple[int, int] | None:
        """The queue offsets of a file's entries for records in [start, end); None without any."""
        entries = self._entries(first)
        real = (entries["size"] > 0) & (entries["size"] <= RECORD_MAX_BYTES)
        places = np.flatnonzero(real & (entries["offset"] >= start) & (entries["offset"] < end))
        if not len(places):
            return None
        low, high = int(places[0]), int(places[-1])
        if self._is_batch:
            return int(entries["base"][low]), int(entries["base"][high]) + max(int(entries["count"][high]), 1)
        return first + low, first + high + 1

    def _entries(self, first: int) -> NDArray[Any]:
        if first not in self._files:
            data = np.frombuffer(self._storage.content(self._paths[first]) or b"", np.uint8)
            self._files[first] = data[: len(data) // self._unit.itemsize * self._unit.itemsize].view(self._unit)
        return self._files[first]

    def _entry(self, first: int, at: int) -> NDArray[Any]:
        """One entry of a file, none behind its end."""
        data = bytearray(self._unit.itemsize)
        try:
            file = self._storage.open(self._paths[first])
        except FileNotFoundError:
            return np.empty(0, self._unit)
        try:
            found = read_exactly(file, at * self._unit.itemsize, data)
        finally:
            file.close()
        return np.frombuffer(data, self._unit, found // self._unit.itemsize)
