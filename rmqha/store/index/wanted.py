"""The messages that a query by key asks for, and the comparison of a record with that. Data plane; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rmqha.store.index.index_key import has_key
from rmqha.store.queue.dispatcher import DispatchedRecord

RecordFilter = Callable[[DispatchedRecord], bool]


def any_record(record: DispatchedRecord) -> bool:
    return True


class Wanted(NamedTuple):
    """Messages of a topic to find: the newest with a key, stored in [begin_ms, end_ms], for which `takes` returns
    True."""

    topic: str
    key: str
    max_count: int
    begin_ms: int
    end_ms: int
    index_type: str
    takes: RecordFilter = any_record

    def matches(self, record: DispatchedRecord) -> bool:
        """True if a record is one of those."""
        return (
            record.topic == self.topic
            and self.begin_ms <= record.store_timestamp_ms <= self.end_ms
            and has_key(record.properties, self.key, self.index_type)
            and self.takes(record)
        )
