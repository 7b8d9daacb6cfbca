"""Places of consumer offsets: topics of each group, stamps of those that were removed, times of those set back."""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView, Mapping
from itertools import islice, takewhile

from rmqha.broker.tables.table_version import NO_STAMP, TableVersion

Place = tuple[str, int]
""""topic@group" and queue id."""


def last_stamp(stamps: dict[Place, TableVersion]) -> TableVersion:
    """The highest stamp of a dictionary that is in order of stamps."""
    return next(reversed(stamps.values()), NO_STAMP)


def newer_than(stamp: TableVersion, stamps: dict[Place, TableVersion], limit: int) -> list[tuple[Place, TableVersion]]:
    """The oldest of `stamps`, which are in order, that are newer than `stamp`; at most `limit` of them."""
    if next(iter(stamps.values()), NO_STAMP) > stamp:
        return list(islice(stamps.items(), limit))
    found = deque(takewhile(lambda item: item[1] > stamp, reversed(stamps.items())), maxlen=limit)
    return list(reversed(found))


class TopicGroupIndex:
    """Keys "topic@group" by topic and by group."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """Sets in the order in which their items came."""
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
        """In the order in which they came."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """In the order in which they came."""
        return list(self._groups.get(topic, ()))


def _discard(sets: dict[str, dict[str, None]], name: str, item: str) -> None:
    found = sets[name]
    found.pop(item, None)
    if not found:
        del sets[name]


class Removals:
    """Stamps of removed offsets, in their order, and by key."""

    def __init__(self) -> None:
        self._stamps: dict[Place, TableVersion] = {}
        self._by_key: dict[str, dict[int, TableVersion]] = {}

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def last(self) -> TableVersion:
        return last_stamp(self._stamps)

    def get(self, place: Place) -> TableVersion | None:
        return self._stamps.get(place)

    def of(self, key: str) -> Mapping[int, TableVersion]:
        """By queue id."""
        return self._by_key.get(key, {})

    def keys(self) -> KeysView[str]:
        return self._by_key.keys()

    def put(self, place: Place, stamp: TableVersion) -> None:
        """Put an entry as the newest of all, until `sort`."""
        self._stamps.pop(place, None)
        self._stamps[place] = stamp
        self._by_key.setdefault(place[0], {})[place[1]] = stamp

    def pop(self, place: Place) -> None:
        if self._stamps.pop(place, None) is None:
            return
        key, queue_id = place
        queues = self._by_key[key]
        del queues[queue_id]
        if not queues:
            del self._by_key[key]

    def pop_oldest(self, count: int) -> list[Place]:
        """Forget the oldest `count`, and tell them."""
        places = list(islice(self._stamps, count))
        for place in places:
            self.pop(place)
        return places

    def sort(self) -> None:
        """Put them in order again."""
        self._stamps = dict(sorted(self._stamps.items(), key=lambda item: item[1]))

    def clear(self) -> None:
        self._stamps.clear()
        self._by_key.clear()

    @property
    def stamps(self) -> dict[Place, TableVersion]:
        """In order; to read only."""
        return self._stamps


class SetBacks:
    """Times (ms) since which what was popped before says nothing of how far a group is: it was set back, or removed.
    By place."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[int, int]] = {}
        self.last_ms = 0
        """The latest that was ever told."""
        self.put_count = 0

    def get(self, place: Place) -> int:
        """0: never."""
        key, queue_id = place
        queues = self._by_key.get(key)
        return 0 if queues is None else queues.get(queue_id, 0)

    def of(self, key: str) -> Mapping[int, int]:
        """By queue id."""
        return self._by_key.get(key, {})

    def keys(self) -> KeysView[str]:
        return self._by_key.keys()

    def put(self, place: Place, at_ms: int) -> None:
        """0: never."""
        key, queue_id = place
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
