"""State of the messages of one queue that a group was given in order: which are done, and when others come again. Pure.

Until then the queue gives messages to no other attempt. Forms are RocketMQ's (config/consumerOrderInfo.json, formats of
its OrderInfo).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmqha.broker.tables.config_table import mapping

MAX_COUNT = 64
"""Bound of RocketMQ, whose bits of done messages are a Java long."""
STALE = -1
"""Result of `OrderInfo.done`: the message is none of these."""
OTHER_POP = -2
"""Result of `OrderInfo.done`: the messages have been given again since."""


@dataclass(slots=True)
class OrderInfo:
    pop_ms: int
    invisible_ms: int
    queue_offsets: tuple[int, ...]
    """Ascending, at least one."""
    attempt_id: str | None = None
    done_bits: int = 0
    visible_ms: dict[int, int] = field(default_factory=dict)
    """Time (ms) at which a message with a changed invisible time comes again, by queue offset."""
    counts: dict[int, int] = field(default_factory=dict)
    """Number of earlier deliveries, by queue offset."""
    consumed_ms: int = 0

    @classmethod
    def given(
        cls,
        before: OrderInfo | None,
        attempt_id: str | None,
        pop_ms: int,
        invisible_ms: int,
        queue_offsets: Sequence[int],
        now_ms: int,
    ) -> OrderInfo:
        """State after a pop gives these messages, with the counts of `before`."""
        counts: dict[int, int] = {}
        if before is not None and before.attempt_id is not None and before.attempt_id == attempt_id:
            counts = before.counts
        elif before is not None:
            again = set(before.queue_offsets)
            counts = {offset: before.counts.get(offset, 0) + 1 for offset in queue_offsets if offset in again}
        return cls(pop_ms, invisible_ms, tuple(queue_offsets), attempt_id, counts=counts, consumed_ms=now_ms)

    def is_done(self, place: int) -> bool:
        return bool(self.done_bits >> place & 1)

    @property
    def open_count(self) -> int:
        return sum(not self.is_done(place) for place in range(len(self.queue_offsets)))

    def free_ms(self) -> int:
        """Time (ms) from which the queue gives messages to anybody, when the open ones come again; 0 if all are
        done."""
        open_offsets = (offset for place, offset in enumerate(self.queue_offsets) if not self.is_done(place))
        return max((self.visible_ms.get(offset, self.pop_ms + self.invisible_ms) for offset in open_offsets), default=0)

    def blocks(self, attempt_id: str | None, now_ms: int) -> bool:
        if self.attempt_id is not None and self.attempt_id == attempt_id:
            return False  # a client that lost the answer asks again
        return now_ms < self.free_ms()

    def done(self, queue_offset: int, pop_ms: int) -> int:
        """Mark a message as done. Returns the next offset of the group, STALE or OTHER_POP."""
        if pop_ms != self.pop_ms:
            return OTHER_POP
        if queue_offset not in self.queue_offsets:
            return STALE
        self.done_bits |= 1 << self.queue_offsets.index(queue_offset)
        for place, offset in enumerate(self.queue_offsets):
            if not self.is_done(place):
                return offset
        return self.queue_offsets[-1] + 1

    def settle(self, next_offset: int) -> None:
        """Mark all before `next_offset`, the group's offset, as done."""
        for place, offset in enumerate(self.queue_offsets):
            if offset < next_offset:
                self.done_bits |= 1 << place

    def delay(self, queue_offset: int, pop_ms: int, visible_ms: int) -> bool:
        """Change the invisible time of a message; True if it is one of these."""
        if pop_ms != self.pop_ms or queue_offset not in self.queue_offsets:
            return False
        self.visible_ms[queue_offset] = visible_ms
        return True

    # --- RocketMQ's form ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        first = self.queue_offsets[0]
        return {
            **({"a": self.attempt_id} if self.attempt_id is not None else {}),
            "cm": self.done_bits - (1 << 64) if self.done_bits >> 63 else self.done_bits,
            "i": self.invisible_ms,
            "l": self.consumed_ms,
            "o": [first, *(offset - first for offset in self.queue_offsets[1:])],
            **({"oc": dict(sorted(self.counts.items()))} if self.counts else {}),
            **({"ot": dict(sorted(self.visible_ms.items()))} if self.visible_ms else {}),
            "popTime": self.pop_ms,
        }

    @classmethod
    def from_json(cls, value: Any) -> OrderInfo | None:
        """State of a JSON value, None without messages. Raises ValueError or TypeError."""
        given = mapping(value, "an order info")
        steps = [int(item) for item in given.get("o") or ()]
        if not steps:
            return None
        attempt_id = given.get("a")
        return cls(
            int(given.get("popTime", 0)),
            int(given.get("i") or 0),
            (steps[0], *(steps[0] + item for item in steps[1:MAX_COUNT])),
            None if attempt_id is None else str(attempt_id),
            int(given.get("cm", 0)) & (1 << 64) - 1,
            _numbers(given, "ot"),
            _numbers(given, "oc"),
            int(given.get("l", 0)),
        )


def _numbers(given: Mapping[str, Any], name: str) -> dict[int, int]:
    return {int(key): int(item) for key, item in mapping(given.get(name), name).items()}
