"""ConsumeQueues as a proof of what is committed: dispatch stops at the confirm offset (data plane, read only)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqha.store.scan_read import LogFile
from rmqha.store.scan_storage import Storage
from rmqha.store.scan_walk import I64, RECORD_MAX_BYTES

UNIT_BYTES = 20
BATCH_UNIT_BYTES = 46
LOOK_BACK_COUNT = 4096
ENTRY_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "storeSize")


class QueueEntries:
    """Looks records up in their ConsumeQueues; remembers how many entries each queue has."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._roots = [f"{root}/consumequeue", f"{root}/batchconsumequeue"]
        self.exist = any(storage.entries(path) is not None for path in self._roots)
        self._queues: dict[tuple[str, int], _Queue | None] = {}

    def last_covered(self, file: LogFile, starts: I64) -> int | None:
        """Physical end of the last of the records that its queue has; None if no queue has any."""
        for high in range(len(starts), 0, -LOOK_BACK_COUNT):
            records = file.records(starts[max(high - LOOK_BACK_COUNT, 0) : high])
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
        self._unit = np.dtype([("offset", ">i8"), ("size", ">i4"), ("rest", f"V{unit_bytes - 12}")])
        self._files: dict[int, NDArray[Any]] = {}
        self._paths = {base // unit_bytes: path for base, path in paths.items()}
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

    def end(self) -> int:
        """The highest physical end that the entries of the last file name; what fills a queue up has no real size."""
        last = self._entries(max(self._paths))
        real = last[(last["size"] > 0) & (last["size"] <= RECORD_MAX_BYTES) & (last["offset"] >= 0)]
        return int((real["offset"].astype(np.int64) + real["size"]).max()) if len(real) else 0

    def _entries(self, first: int) -> NDArray[Any]:
        if first not in self._files:
            data = np.frombuffer(self._storage.content(self._paths[first]) or b"", np.uint8)
            self._files[first] = data[: len(data) // self._unit.itemsize * self._unit.itemsize].view(self._unit)
        return self._files[first]
