"""Indexes of consumer offsets: topics of each group, versions of removed offsets, times of resets."""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView, Mapping
from itertools import islice, takewhile

from rmqha.broker.tables.table_version import NO_VERSION, TableVersion

OffsetKey = tuple[str, int]
"""Key of a consumer offset: "topic@group" and queue id."""


def last_stamp(stamps: dict[OffsetKey, TableVersion]) -> TableVersion:
    """Highest version of a dictionary in the order of versions."""
    return next(reversed(stamps.values()), NO_VERSION)


def newer_than(
    stamp: TableVersion, stamps: dict[OffsetKey, TableVersion], limit: int
) -> list[tuple[OffsetKey, TableVersion]]:
    """Oldest of `stamps`, in their order, that are newer than `stamp`; at most `limit`."""
    if next(iter(stamps.values()), NO_VERSION) > stamp:
        return list(islice(stamps.items(), limit))
    found = deque(takewhile(lambda item: item[1] > stamp, reversed(stamps.items())), maxlen=limit)
    return list(reversed(found))


class TopicGroupIndex:
    """Index of the keys "topic@group" by topic and by group."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """Ordered sets, in the order of insertion."""
        self._changed: set[str] = set()

    def take_changed(self) -> set[str]:
        """Groups whose topics have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def add(self, key: str) -> None:
        topic, _, group = key.rpartition("@")
        topics = self._topics.setdefault(group, {})
        if topic not in topics:
            topics[topic] = None
            self._groups.setdefault(topic, {})[group] = None
            self._changed.add(group)

    def remove(self, key: str) -> None:
        topic, _, group = key.rpartition("@")
        self._changed.add(group)
        _discard(self._topics, group, topic)
        _discard(self._groups, topic, group)

    def clear(self) -> None:
        self._changed.update(self._topics)
        self._topics.clear()
        self._groups.clear()

    def topics_of(self, group: str) -> list[str]:
        """Topics in the order of insertion."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Groups in the order of insertion."""
        return list(self._groups.get(topic, ()))


def _discard(sets: dict[str, dict[str, None]], name: str, item: str) -> None:
    found = sets[name]
    found.pop(item, None)
    if not found:
        del sets[name]


class Removals:
    """Versions of removed offsets, in order, and by key."""

    def __init__(self) -> None:
        self._stamps: dict[OffsetKey, TableVersion] = {}
        self._by_key: dict[str, dict[int, TableVersion]] = {}

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def last(self) -> TableVersion:
        return last_stamp(self._stamps)

    def get(self, offset_key: OffsetKey) -> TableVersion | None:
        return self._stamps.get(offset_key)

    def of(self, key: str) -> Mapping[int, TableVersion]:
        """Versions by queue id."""
        return self._by_key.get(key, {})

    def keys(self) -> KeysView[str]:
        return self._by_key.keys()

    def put(self, offset_key: OffsetKey, stamp: TableVersion) -> None:
        """Put an entry as the newest of all, until `sort`."""
        self._stamps.pop(offset_key, None)
        self._stamps[offset_key] = stamp
        self._by_key.setdefault(offset_key[0], {})[offset_key[1]] = stamp

    def pop(self, offset_key: OffsetKey) -> None:
        if self._stamps.pop(offset_key, None) is None:
            return
        key, queue_id = offset_key
        queues = self._by_key[key]
        del queues[queue_id]
        if not queues:
            del self._by_key[key]

    def pop_oldest(self, count: int) -> list[OffsetKey]:
        """Remove and return the oldest `count` keys."""
        offset_keys = list(islice(self._stamps, count))
        for offset_key in offset_keys:
            self.pop(offset_key)
        return offset_keys

    def sort(self) -> None:
        """Restore the order after `put`."""
        self._stamps = dict(sorted(self._stamps.items(), key=lambda item: item[1]))

    def clear(self) -> None:
        self._stamps.clear()
        self._by_key.clear()

    @property
    def stamps(self) -> dict[OffsetKey, TableVersion]:
        """Versions in order; read only."""
        return self._stamps


class ResetTimes:
    """Times (ms) of the last reset or removal of an offset, by key: earlier pops do not advance it."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[int, int]] = {}
        self.last_ms = 0
        """Latest time (ms) so far."""
        self.put_count = 0

    def get(self, offset_key: OffsetKey) -> int:
        """Time (ms) of the last reset; 0 for none."""
        key, queue_id = offset_key
        queues = self._by_key.get(key)
        return 0 if queues is None else queues.get(queue_id, 0)

    def of(self, key: str) -> Mapping[int, int]:
        """Times (ms) by queue id."""
        return self._by_key.get(key, {})

    def keys(self) -> KeysView[str]:
        return self._by_key.keys()

    def put(self, offset_key: OffsetKey, at_ms: int) -> None:
        """Store a time (ms); 0: no reset."""
        key, queue_id = offset_key
        if at_ms:
            self.put_count += 1
            self._by_key.setdefault(key, {})[queue_id] = at_ms
            self.last_ms = max(self.last_ms, at_ms)
        elif key in self._by_key:
            self._by_key[key].pop(queue_id, None)
            if not self._by_key[key]:
                del self._by_key[key]

    def clear(self) -> None:
        self._by_key.clear()
