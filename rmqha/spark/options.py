"""Options of the data source "commitlog": what a user may write, checked before Spark does anything.

Names are case-insensitive, as all of Spark's. Nothing here imports pyspark, so that a command line can check its input
before it waits for a session.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmqha.model.error import UsageError
from rmqha.store.scan import ALL_ROWS, TYPES, Decoding, Interval, Looking, RowFilter, StoreView, open_store

OPTIONS = {
    "path": "directory of a store (a broker's storePathRootDir)",
    "paths": "several directories, as a JSON array; load([...]) sets it",
    "topic": "topics to read, parted by commas",
    "subscribe": "the same, under the name that Kafka's source uses",
    "queueId": "queues to read, parted by commas",
    "startingPhysicalOffset": "first physical offset to read",
    "endingPhysicalOffset": "physical offset to stop before",
    "startingTimestamp": "earliest storeTimestamp to read, in ms since 1970",
    "endingTimestamp": "storeTimestamp to stop before, in ms since 1970",
    "columns": "columns to make, parted by commas; fewer are faster",
    "readUncommitted": "true reads to the end of the log, past the confirm offset",
    "propertiesAs": "json (a string) or map (map<string,string>)",
    "decompress": "false delivers compressed bodies as they are stored",
    "verifyCrc": "false does not compare bodies with their CRC",
    "onCorrupt": "fail, the only way so far to treat a damaged record",
    "pushFilters": "true lets WHERE prune the read; only for a DataFrame that is scanned once (see spark/source.py)",
    "startingOffsets": "earliest or latest: where a new streaming query begins",
    "maxBytesPerTrigger": "a micro-batch holds about so many bytes of log at most",
    "failOnDataLoss": "false lets a streaming query go on where the log now begins when old files went too early",
    "minPartitions": "at least so many tasks, where ranges do not fall below 4 MiB",
}

SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    TYPES["storeTimestamp"]: "timestamp",
    TYPES["keys"]: "array<string>",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options with their values checked."""

    paths: tuple[str, ...]
    rows: RowFilter = ALL_ROWS
    """What the options alone already leave out."""
    columns: tuple[str, ...] = tuple(TYPES)
    uncommitted: bool = False
    properties_as: str = "json"
    decompress: bool = True
    verify_crc: bool = True
    push_filters: bool = False
    min_partitions: int | None = None
    from_latest: bool = False
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """UsageError for an unknown name (says the nearest one) or a value of the wrong kind."""
        known = {name.lower(): name for name in OPTIONS}
        values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
                raise UsageError(f"unknown option {name} of commitlog; the nearest known one is {known[near]}")
            values[known[name.lower()]] = value
        if "topic" in values and "subscribe" in values:
            raise UsageError("the options topic and subscribe mean the same: give one of them")
        columns = _words("columns", values.get("columns"))
        _choice(values, "onCorrupt", ("fail",))
        return cls(
            paths=_paths(values),
            rows=_rows(values),
            columns=tuple(map(known_column, columns)) if columns else tuple(TYPES),
            uncommitted=_switch(values, "readUncommitted", default=False),
            properties_as=_choice(values, "propertiesAs", ("json", "map")),
            decompress=_switch(values, "decompress", default=True),
            verify_crc=_switch(values, "verifyCrc", default=True),
            push_filters=_switch(values, "pushFilters", default=False),
            min_partitions=_count(values, "minPartitions", 1, 100_000),
            from_latest=_choice(values, "startingOffsets", ("earliest", "latest")) == "latest",
            max_bytes_per_trigger=_count(values, "maxBytesPerTrigger", 1),
            fail_on_data_loss=_switch(values, "failOnDataLoss", default=True),
        )

    @property
    def ddl(self) -> str:
        """The schema as Spark writes it."""
        return ", ".join(f"`{name}` {column_type(name, self.properties_as)}" for name in self.columns)

    @property
    def looking(self) -> Looking:
        return Looking(uncommitted=self.uncommitted)

    def decoding(self, columns: Sequence[str], properties_as: str) -> Decoding:
        return Decoding(tuple(columns), properties_as, self.decompress, self.verify_crc)

    def open(self) -> list[StoreView]:
        """Look at every store. UsageError if two are replicas of one group or of different clusters."""
        views = [open_store(path, self.looking) for path in self.paths]
        groups: dict[str, str] = {}
        for view in views:
            if view.cluster != views[0].cluster:
                raise UsageError(
                    f"{view.root} is of the cluster {view.cluster or '(unnamed)'} and {views[0].root} of "
                    f"{views[0].cluster or '(unnamed)'}: read them apart"
                )
            if view.broker_name is not None and groups.setdefault(view.broker_name, view.root) != view.root:
                raise UsageError(
                    f"{groups[view.broker_name]} and {view.root} are replicas of one group, {view.broker_name}: every "
                    "message would come twice; give one of them"
                )
        return views


def known_column(name: str) -> str:
    """The column of this name in its own spelling. UsageError names the nearest one."""
    spelled = {column.lower(): column for column in TYPES}
    if name.lower() not in spelled:
        near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.0)[0]
        raise UsageError(f"commitlog has no column {name}; the nearest one is {spelled[near]}")
    return spelled[name.lower()]


def column_type(name: str, properties_as: str) -> str:
    """Spark's name of a column's type."""
    if name == "properties" and properties_as == "map":
        return "map<string,string>"
    kind: Any = TYPES[name]
    return SPARK_TYPES[kind]


def _paths(values: Mapping[str, str]) -> tuple[str, ...]:
    paths = [values["path"]] if values.get("path") else []
    if values.get("paths"):
        try:
            more = json.loads(values["paths"])
        except ValueError:
            more = None
        if not isinstance(more, list) or not all(isinstance(path, str) for path in more):
            raise UsageError(f"option paths = {values['paths']!r} must be a JSON array of directories")
        paths += more
    if not paths:
        raise UsageError("commitlog needs a path: load('/data/broker-a'), the broker's data directory")
    return tuple(dict.fromkeys(path.removeprefix("file://") for path in paths))


def _words(name: str, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    words = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    if not words:
        raise UsageError(f"option {name} is empty: leave it out to read all")
    return words


def _choice(values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    value = values.get(name, choices[0]).lower()
    if value not in choices:
        raise UsageError(f"option {name} = {values[name]!r} must be {' or '.join(choices)}")
    return value


def _switch(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice({name: values.get(name, str(default))}, name, ("true", "false")) == "true"


def _count(values: Mapping[str, str], name: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not low <= int(value) <= high:
        raise UsageError(f"option {name} = {value!r} must be a whole number from {low} to {high}")
    return int(value)


def _rows(values: Mapping[str, str]) -> RowFilter:
    rows = RowFilter()
    topics = _words("topic", values.get("topic", values.get("subscribe")))
    if topics:
        rows = rows.with_topics(frozenset(topics))
    queues = _words("queueId", values.get("queueId"))
    if queues:
        if not all(queue.isdecimal() for queue in queues):
            raise UsageError(f"option queueId = {values['queueId']!r} must be whole numbers parted by commas")
        rows = rows.with_values("queueId", frozenset(map(int, queues)))
    for column, suffix in (("physicalOffset", "PhysicalOffset"), ("storeTimestamp", "Timestamp")):
        low, end = _count(values, f"starting{suffix}"), _count(values, f"ending{suffix}")
        if low is not None:
            rows = rows.with_interval(column, Interval(low=low))
        if end is not None:
            rows = rows.with_interval(column, Interval(high=end - 1))
    return rows
