"""Tables beside the log: consumer offsets with their lag, topics, queues, groups, epochs, replicas (control plane)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rmqha.scan.access.config_files import member_of
from rmqha.scan.files import StoreView, by_group
from rmqha.scan.queues import QueueEntries
from rmqha.scan.storage import storage_of
from rmqha.wire import lenient_json

Rows = Iterator[dict[str, Any]]
TEXT, INT, LONG, SWITCH = pa.string(), pa.int32(), pa.int64(), pa.bool_()
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "offsets": {
        "brokerName": TEXT,
        "consumerGroup": TEXT,
        "topic": TEXT,
        "queueId": INT,
        "consumerOffset": LONG,
        "minOffset": LONG,
        "maxOffset": LONG,
        "lag": LONG,
    },
    "topics": {
        "brokerName": TEXT,
        "topic": TEXT,
        "readQueueNums": INT,
        "writeQueueNums": INT,
        "perm": INT,
        "order": SWITCH,
        "attributes": TEXT,
        "messageCount": LONG,
    },
    "queues": {"brokerName": TEXT, "topic": TEXT, "queueId": INT, "minOffset": LONG, "maxOffset": LONG},
    "groups": {
        "brokerName": TEXT,
        "consumerGroup": TEXT,
        "consumeEnable": SWITCH,
        "consumeBroadcastEnable": SWITCH,
        "consumeMessageOrderly": SWITCH,
        "retryQueueNums": INT,
        "retryMaxTimes": INT,
        "attributes": TEXT,
    },
    "epochs": {"brokerName": TEXT, "epoch": INT, "startOffset": LONG, "endOffset": LONG},
    "replicas": {
        "path": TEXT,
        "cluster": TEXT,
        "brokerName": TEXT,
        "brokerId": LONG,
        "minOffset": LONG,
        "committedOffset": LONG,
        "writtenOffset": LONG,
        "epoch": INT,
        "behindBytes": LONG,
    },
}
"""Columns of each table. `maxOffset` is the offset behind the last committed message of the log; `lag` is the number of
messages that a group has not confirmed; the numbers of `queues` and `offsets` are null where there is no queue."""


def table(name: str, views: Sequence[StoreView]) -> Any:
    """The Arrow table of this name over the stores. Of several replicas of a group only the one with the most committed
    is read, but for the table `replicas`. StoreError for a file that cannot be read."""
    kinds = SCHEMAS[name]
    schema = pa.schema(list(kinds.items()))
    if name == "replicas":
        rows = list(_replicas(views))
    else:
        rows = [row for view, *_ in by_group(views) for row in MAKERS[name](_Store(view))]
    return pa.Table.from_pylist(rows, schema)


class _Store:
    """The files of one store."""

    def __init__(self, view: StoreView) -> None:
        self.view = view
        self.storage = storage_of(view.root)
        self.entries = QueueEntries(self.storage, view.root)

    def config(self, name: str, member: str) -> Mapping[str, Any]:
        """A member of config/NAME.json; empty without any."""
        return member_of(self.storage, self.view.root, name, member)

    def extent(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        return self.entries.extent(topic, queue_id, self.view.min_offset, self.view.end_offset)

    def queues(self) -> Iterator[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for kind in ("consumequeue", "batchconsumequeue"):
            root = f"{self.view.root}/{kind}"
            for topic in self._directories(root):
                found.update((topic, int(name)) for name in self._directories(f"{root}/{topic}") if name.isdecimal())
        yield from sorted(found)

    def _directories(self, path: str) -> list[str]:
        return [name for name, size in self.storage.entries(path) or () if size is None]


def _offsets(store: _Store) -> Rows:
    for name, queues in sorted(store.config("consumerOffset", "offsetTable").items()):
        topic, at, group = name.rpartition("@")
        if not at or not isinstance(queues, Mapping):
            continue
        for key, offset in queues.items():
            if not str(key).isdecimal() or type(offset) is not int:
                continue
            extent = store.extent(topic, int(key))
            low, high = (None, None) if extent is None else extent
            yield {
                "brokerName": store.view.broker_name,
                "consumerGroup": group,
                "topic": topic,
                "queueId": int(key),
                "consumerOffset": offset,
                "minOffset": low,
                "maxOffset": high,
                "lag": None if high is None else max(high - offset, 0),
            }


def _queues(store: _Store) -> Rows:
    for topic, queue_id in store.queues():
        low, high = store.extent(topic, queue_id) or (None, None)
        name = store.view.broker_name
        yield {"brokerName": name, "topic": topic, "queueId": queue_id, "minOffset": low, "maxOffset": high}


def _topics(store: _Store) -> Rows:
    counts: dict[str, int] = {}
    for row in _queues(store):
        counts[row["topic"]] = counts.get(row["topic"], 0) + (row["maxOffset"] or 0) - (row["minOffset"] or 0)
    known = store.config("topics", "topicConfigTable")
    for topic in sorted({*known, *counts}):
        yield {
            **_of(known.get(topic), SCHEMAS["topics"]),
            "brokerName": store.view.broker_name,
            "topic": topic,
            "messageCount": counts.get(topic, 0),
        }


def _groups(store: _Store) -> Rows:
    for name, group in sorted(store.config("subscriptionGroup", "subscriptionGroupTable").items()):
        yield {
            **_of(group, SCHEMAS["groups"]),
            "brokerName": store.view.broker_name,
            "consumerGroup": name,
        }


def _of(given: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The members of `given` that are columns; a value of another kind than its column's is null."""
    found: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name == "attributes":
            found[name] = lenient_json.dumps(value).decode()
        elif (kinds.get(name) == SWITCH and type(value) is bool) or (
            kinds.get(name) == INT and type(value) is int and -(2**31) <= value < 2**31
        ):
            found[name] = value
    return found


def _epochs(store: _Store) -> Rows:
    entries = store.view.epochs
    ends = [*(start for _, start in entries[1:]), store.view.end_offset]
    for (epoch, start), end in zip(entries, ends, strict=False):
        yield {"brokerName": store.view.broker_name, "epoch": epoch, "startOffset": start, "endOffset": end}


def _replicas(views: Sequence[StoreView]) -> Rows:
    for first, *others in by_group(views):
        for view in (first, *others):
            broker_id = view.broker_id or ""
            yield {
                "path": view.root,
                "cluster": view.cluster,
                "brokerName": view.broker_name,
                "brokerId": int(broker_id) if broker_id.isdecimal() else None,
                "minOffset": view.min_offset,
                "committedOffset": view.end_offset,
                "writtenOffset": view.written_end,
                "epoch": view.epochs[-1][0] if view.epochs else None,
                "behindBytes": first.end_offset - view.end_offset,
            }


MAKERS: Mapping[str, Callable[[_Store], Rows]] = {
    "offsets": _offsets,
    "topics": _topics,
    "queues": _queues,
    "groups": _groups,
    "epochs": _epochs,
}
