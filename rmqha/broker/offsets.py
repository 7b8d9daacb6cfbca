"""Consumer offsets: how far each group has read each queue. config/consumerOffset.json, written when dirty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmqha.broker import config_table
from rmqha.broker.config_table import DataVersion, mapping
from rmqha.port import Disk

MAX_ENTRY_COUNT = 1_000_000
"""Bound on (group, topic) pairs, since any client may name new ones."""

_TABLE = "consumerOffset"


class OffsetTable:
    """Offsets by "topic@group" and queue id. A commit takes the offset as it is, backwards too: a reset is one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        found = config_table.load(disk, _TABLE, parse_table, ("offsetTable", "groupTopicMap"))
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self._offsets = found.table
        self._resets: dict[tuple[str, str, int], int] = {}
        """(group, topic, queue id) to where its members must go; their own commits do not count until they know."""
        self._dirty = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """False if the table is full. Nothing changes while a reset waits to be told."""
        if self._resets and (group, topic, queue_id) in self._resets:
            return True
        return self._put(group, topic, queue_id, offset)

    def _put(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        key = f"{topic}@{group}"
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) >= MAX_ENTRY_COUNT:
                return False
            queues = self._offsets[key] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._dirty = True
        return True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """An operator's order; `take_reset` tells the group's member with its next pull."""
        if self._put(group, topic, queue_id, offset) and len(self._resets) < MAX_ENTRY_COUNT:
            self._resets[group, topic, queue_id] = offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a member must go on, once; None if it may go on where it is."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has an offset, sorted."""
        places = (key.rpartition("@") for key in self._offsets)
        return sorted(topic for topic, _, name in places if name == group)

    def remove_group(self, group: str) -> None:
        self._remove([f"{topic}@{group}" for topic in self.topics_of(group)])

    def remove_topic(self, topic: str) -> None:
        self._remove([f"{topic}@{group}" for group in self.groups_of(topic)])

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            topic, _, group = key.rpartition("@")
            for queue_id in self._offsets.pop(key):
                self._resets.pop((group, topic, queue_id), None)
            self._dirty = True

    def groups_of(self, topic: str) -> list[str]:
        """Groups with an offset in the topic, sorted."""
        places = (key.rpartition("@") for key in self._offsets)
        return sorted(group for name, _, group in places if name == topic)

    def clamp(self, end_of: Callable[[str, int], int]) -> int:
        """No offset may lie behind its queue (`end_of(topic, queue_id)`), as after a cut of the log: messages that come
        to stand there would never be consumed. Returns how many did."""
        count = 0
        for key, queues in self._offsets.items():
            topic = key.rpartition("@")[0]
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    count += 1
        self._dirty = self._dirty or count > 0
        return count

    def to_json(self) -> dict[str, Any]:
        """Body of request 43 and content of the file; queue ids stay integers."""
        topics: dict[str, list[str]] = {}
        for key in sorted(self._offsets):
            topic, _, group = key.rpartition("@")
            topics.setdefault(group, []).append(topic)
        return {
            "dataVersion": self.version.to_json(),
            "groupTopicMap": topics,
            "offsetTable": {key: dict(sorted(self._offsets[key].items())) for key in sorted(self._offsets)},
        }

    def replace(self, body: Mapping[str, Any]) -> None:
        """A slave takes its master's whole table: the master's is the newer one by definition."""
        table = parse_table(body)
        self._resets.clear()
        if table != self._offsets:
            self._offsets = table
            self._dirty = True
        self.version = DataVersion.from_json(body.get("dataVersion"))

    def unsaved(self) -> bytes | None:
        """What the file must hold, None if it does; the caller writes it with `write`, in a thread if it likes."""
        if not self._dirty:
            return None
        self._dirty = False
        return config_table.encode({**self.to_json(), **self._unknown})

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        config_table.write(self._disk, _TABLE, data)


def parse_table(body: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """The offsets of consumerOffset.json or of a body of request 43."""
    return {
        str(key): {int(queue_id): int(offset) for queue_id, offset in mapping(queues, str(key)).items()}
        for key, queues in mapping(body.get("offsetTable"), "offsetTable").items()
    }
