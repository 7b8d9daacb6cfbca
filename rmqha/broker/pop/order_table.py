"""Messages given in order, by group and queue: config/consumerOrderInfo.json in RocketMQ's form, written when dirty.

Each replica has its own: a group's offset stays at the first message that is not done, so a new master, which does not
know what was given, gives the same messages in the same order again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.positions import PopQueue
from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import mapping
from rmqha.port import Disk

MAX_PLACES = 100_000
"""Bound on queues of groups; the least recently used one is removed."""
FORGET_MS = 24 * 3_600_000
_TABLE = "consumerOrderInfo"


class OrderTable:
    """Order infos. Raises StoreError for an unreadable file."""

    def __init__(self, disk: Disk, is_void: Callable[[PopQueue, int], bool]) -> None:
        """`is_void`: true of a pop (ms) since which the group was set back, or removed: what it gave is forgotten."""
        self._disk = disk
        self._is_void = is_void
        found = config_table.load(disk, _TABLE, parse_orders, ("table",))
        self._infos: dict[PopQueue, OrderInfo] = found.table
        self.findings, self._unknown = found.findings, found.unknown
        self._is_dirty = False

    def __len__(self) -> int:
        return len(self._infos)

    def get(self, place: PopQueue) -> OrderInfo | None:
        info = self._infos.get(place)
        if info is not None and self._is_void(place, info.pop_ms):
            self.remove(place)
            return None
        return info

    def put(self, place: PopQueue, info: OrderInfo) -> None:
        self._infos.pop(place, None)
        self._infos[place] = info
        if len(self._infos) > MAX_PLACES:
            del self._infos[next(iter(self._infos))]
        self._is_dirty = True

    def changed(self) -> None:
        """Take note that one of its infos was changed."""
        self._is_dirty = True

    def remove(self, place: PopQueue) -> None:
        if self._infos.pop(place, None) is not None:
            self._is_dirty = True

    def clear(self) -> None:
        self._is_dirty = self._is_dirty or bool(self._infos)
        self._infos.clear()

    def open_counts(self) -> Iterator[tuple[PopQueue, int]]:
        """Queues with the number of messages that were given and are not done."""
        for place, info in self._infos.items():
            if (count := info.open_count) and not self._is_void(place, info.pop_ms):
                yield place, count

    def unsaved(self, now_ms: int) -> bytes | None:
        """Content for the file, None if the file has it."""
        if not self._is_dirty:
            return None
        self._is_dirty = False
        for place in [place for place, info in self._infos.items() if info.consumed_ms < now_ms - FORGET_MS]:
            del self._infos[place]
        rows: dict[str, dict[int, Any]] = {}
        for place, info in sorted(self._infos.items()):
            rows.setdefault(f"{place.topic}@{place.group}", {})[place.queue_id] = info.to_json()
        return config_table.encode({"table": rows, **self._unknown})

    def write(self, data: bytes) -> None:
        """Write the file. Raises OSError; `unsaved` then returns it again."""
        try:
            config_table.write(self._disk, _TABLE, data)
        except OSError:
            self._is_dirty = True
            raise


def parse_orders(body: Mapping[str, Any]) -> dict[PopQueue, OrderInfo]:
    """Infos of consumerOrderInfo.json. Raises ValueError or TypeError."""
    found: dict[PopQueue, OrderInfo] = {}
    for key, queues in mapping(body.get("table"), "table").items():
        topic, _, group = str(key).rpartition("@")
        for queue_id, value in mapping(queues, str(key)).items():
            info = OrderInfo.from_json(value)
            if info is not None:
                found[PopQueue(topic, group, int(queue_id))] = info
    return found
