"""Options of the data source "commitlog": what a user may write, checked before Spark does anything.

Names are case-insensitive, as all of Spark's. Nothing here imports pyspark, so that a command line can check its input
before it waits for a session.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import (
    ALL_ROWS,
    ANY_NUMBER,
    CORRUPT,
    STORE_PATH,
    TIMESTAMP_SLACK_MS,
    TYPES,
    Decoding,
    Interval,
    RowFilter,
    StoreView,
    ViewCache,
    ViewOptions,
    check_no_copies,
    cluster_of,
    open_store,
    read_store,
)
from rmqha.scan.queues import QueueEntries
from rmqha.scan.storage import S3A, of_s3a, storage_of, use_options
from rmqha.spark.row_options import comma_parts, count, duration_ms, offsets_word, parse_rows, size_bytes

OPTIONS = {
    "path": "directory of a store (a broker's storePathRootDir), or an address that fsspec knows",
    "paths": "several directories, as a JSON array; load([...]) sets it",
    "storageOptions": "options of fsspec for addresses such as s3://…, as a JSON object; fs.s3a.… may be given too",
    "topic": "topics to read, parted by commas",
    "subscribe": "the same, under the name that Kafka's source uses",
    "subscribePattern": "a regular expression (RE2's) that the whole topic must match",
    "assign": 'topics and their queues as JSON, {"orders": [0, 1]}',
    "queueId": "queues to read, parted by commas",
    "tags": "tags to read, parted by || or commas; * is all",
    "keys": "keys to read, parted by commas; a message needs one of them",
    "startingOffsets": 'earliest (default), or queue offsets as JSON, {"orders": {"0": 23, "1": -2}}, -2 being '
    "earliest; queues that are not named are read from their begin; latest only for a streaming query",
    "endingOffsets": "latest (default), or queue offsets to stop before as JSON, -1 being latest; not in streaming",
    "startingPhysicalOffset": "first physical offset to read",
    "endingPhysicalOffset": "physical offset to stop before",
    "startingTimestamp": "earliest storeTimestamp to read, in ms since 1970 or as ISO 8601",
    "endingTimestamp": "storeTimestamp to stop before, in ms since 1970 or as ISO 8601",
    "storePathCommitLog": "the directory of the log, where it is not in the store's; for one path",
    "timestampSlackMs": "by how much the brokers' clocks may have stepped back (600000): log that lies further outside "
    "the times is not read at all",
    "columns": "columns to make, parted by commas; fewer are faster",
    "includeProperties": "false leaves the column properties out of the default columns",
    "includeHeaders": "the same, under the name that Kafka's source uses",
    "propertiesAs": "json (a string) or map (map<string,string>)",
    "readUncommitted": "true reads to the end of the log, past the confirm offset",
    "epochPolicy": "of uncommitted records: committed (default) leaves out epochs with nothing committed, all does not",
    "decompress": "false delivers compressed bodies as they are stored",
    "innerBatches": "explode (default): each message of an inner batch (BatchCQ) is a row; raw: the batch is one",
    "verifyCrc": "false does not compare bodies with their CRC",
    "onCorrupt": "a damaged record: fail (default), skip, or row: a row with the place and a sentence in _corrupt",
    "failOnDataLoss": "false reads on where files or offsets that were asked for are gone",
    "replicas": "of several replicas of one group: one (default, the one with the most committed), or verify: compare",
    "minPartitions": "at least so many tasks, where ranges do not fall below 4 MiB",
    "maxRecordsPerPartition": "at most so many records of log for a task",
    "maxBytesPerTrigger": "a micro-batch holds about so many bytes of log at most, such as 256m",
    "minOffsetsPerTrigger": "a micro-batch waits for so many messages of log, at most for maxTriggerDelay",
    "maxTriggerDelay": "how long a micro-batch waits for minOffsetsPerTrigger, such as 30s (15m)",
    "useQueues": "false lets a filter on topics, queues or tags walk the log: consume queues are not asked",
    "trustIndex": "true: queues need not prove that they know every record, and keys are looked up in the index",
    "readReport": "a directory in which every task leaves a JSON file of what it has read",
    "where": 'conditions as JSON, [["topic", "in", ["a"]], ["queueOffset", ">=", 7]]: rows that fail one are not read',
    "pushFilters": "true is refused: Spark 4.3 mixes up the filters of a DataFrame that is scanned twice",
}

TABLE_PROPERTIES = frozenset(("collation", "comment", "external", "is_managed_location", "owner", "provider"))
"""Names, in small letters, that Spark adds to the options of a table (CREATE TABLE … USING commitlog)."""


def is_table(given: Mapping[str, str]) -> bool:
    """True if these are the options of a table, with its properties."""
    return any(name.lower() in TABLE_PROPERTIES for name in given)


def without_table_properties(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a reader or a writer, without what Spark adds for a table; its location is the path unless one
    was given. A table's own properties (TBLPROPERTIES) are not options either: its options come a second time, each
    behind `option.`."""
    if not is_table(given):
        return dict(given)
    lowered = {name.lower(): value for name, value in given.items()}
    kept = {name.removeprefix("option."): value for name, value in lowered.items() if name.startswith("option.")}
    for name in ("path", "paths", *kept):
        kept[name] = lowered.get(name, kept.get(name, ""))
    if not kept["path"] and not kept["paths"]:
        kept["path"] = lowered.get("location", "")
    return {name: value for name, value in kept.items() if value}


NOTHING: Mapping[str, str] = MappingProxyType({})

SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    pa.int64(): "bigint",
    TYPES["storeTimestamp"]: "timestamp",
    TYPES["keys"]: "array<string>",
}


COMMENTS = {
    "topic": "name of the topic",
    "flag": "number that the producer set for applications",
    "body": "the body, decompressed",
    "properties": "all properties, those of applications too",
    "brokerName": "broker group of the store",
    "queueId": "number of the queue in its topic",
    "queueOffset": "place of the message in its queue",
    "bornTimestamp": "time of the producer when it was sent",
    "storeTimestamp": "time of the broker when it was stored",
    "keys": "property KEYS, parted",
    "tags": "property TAGS",
    "msgId": "the id that clients show: uniqKey, or one of storeHost and physicalOffset where there is none",
    "uniqKey": "the id that the producer gave it, property UNIQ_KEY",
    "physicalOffset": "place of the record in the log, in bytes",
    "storeSize": "bytes of the record",
    "sysFlag": "bits: 1 body compressed, 4 transaction prepared, 8 committed, 12 rolled back, 128 inner batch",
    "bornHost": "address of the producer",
    "storeHost": "address of the broker",
    "reconsumeTimes": "how often it was given back by a consumer",
    "preparedTransactionOffset": "place of the half message of a transaction",
    "bodyCRC": "checksum of the body as it is stored",
    "epoch": "epoch of the master that wrote it, null where none is known",
    CORRUPT: "why the record is damaged, null where it is sound",
    STORE_PATH: "directory or address of the store",
}
"""Comments of the columns, as DESCRIBE shows them."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options with their values checked."""

    paths: tuple[str, ...]
    storage: tuple[tuple[str, str], ...] = ()
    """Options of fsspec as JSON, by the address that paths are below."""
    rows: RowFilter = ALL_ROWS
    """Filter of the rows that the options alone leave."""
    asked_bytes: Interval = ALL_ROWS.physical_offsets
    """Physical offsets that must be there: those of starting… and ending…, not those that `where` compares with."""
    columns: tuple[str, ...] = tuple(TYPES)
    uncommitted: bool = False
    properties_as: str = "json"
    decompress: bool = True
    verify_crc: bool = True
    explode_batches: bool = True
    use_queues: bool = True
    trust_index: bool = False
    read_report: str | None = None
    all_epochs: bool = False
    commit_log: str | None = None
    on_corrupt: str = "fail"
    verify_replicas: bool = False
    timestamp_slack_ms: int = TIMESTAMP_SLACK_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    from_latest: bool = False
    has_ending_offsets: bool = False
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str], session: Mapping[str, str] = NOTHING) -> ReadOptions:
        """UsageError for an unknown name (says the nearest one) or a value of the wrong kind. `session` has the
        settings fs.s3a.… of Spark's session, which count where none is given. Addresses are opened from now on, in this
        process, as these options say."""
        known = {name.lower(): name for name in OPTIONS}
        values: dict[str, str] = {}
        s3a = dict(session)
        for name, value in without_table_properties(given).items():
            if name.lower().startswith(S3A):
                s3a[name.lower()] = value
                continue
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
                raise UsageError(f"unknown option {name} of commitlog; the nearest known one is {known[near]}")
            values[known[name.lower()]] = value
        on_corrupt = _choice(values, "onCorrupt", ("fail", "skip", "row"))
        if _switch(values, "pushFilters", default=False):
            raise UsageError(
                "pushFilters = true gave wrong rows where a DataFrame was scanned twice, since Spark 4.3 mixes up the "
                "filters of its scans: let rmqha.spark.read(spark, paths, where=…) or rmqha.spark.sql(spark, …) prune"
            )
        written = _written_paths(values)
        storage = _storage(written, s3a, values)
        _use(storage)
        return cls(
            paths=tuple(dict.fromkeys(found for path in written for found in _matching(path))),
            storage=storage,
            rows=parse_rows(values),
            asked_bytes=parse_rows({name: values[name] for name in values if name != "where"}).physical_offsets,
            columns=_columns(values, on_corrupt),
            uncommitted=_switch(values, "readUncommitted", default=False),
            properties_as=_choice(values, "propertiesAs", ("json", "map")),
            decompress=_switch(values, "decompress", default=True),
            verify_crc=_switch(values, "verifyCrc", default=True),
            explode_batches=_choice(values, "innerBatches", ("explode", "raw")) == "explode",
            use_queues=_switch(values, "useQueues", default=True),
            trust_index=_switch(values, "trustIndex", default=False),
            read_report=values.get("readReport"),
            commit_log=_commit_log(written, values),
            all_epochs=_choice(values, "epochPolicy", ("committed", "all")) == "all",
            on_corrupt=on_corrupt,
            verify_replicas=_choice(values, "replicas", ("one", "verify")) == "verify",
            timestamp_slack_ms=_number(values, "timestampSlackMs", TIMESTAMP_SLACK_MS),
            min_partitions=count(values, "minPartitions", 1, 100_000),
            max_records_per_partition=count(values, "maxRecordsPerPartition", 1),
            from_latest=offsets_word(values, "startingOffsets") == "latest",
            has_ending_offsets="endingOffsets" in values,
            max_bytes_per_trigger=_size(values, "maxBytesPerTrigger"),
            min_offsets_per_trigger=count(values, "minOffsetsPerTrigger", 1),
            max_trigger_delay_ms=duration_ms("maxTriggerDelay", values.get("maxTriggerDelay", "15m")),
            fail_on_data_loss=_switch(values, "failOnDataLoss", default=True),
        )

    @property
    def ddl(self) -> str:
        """The schema as Spark writes it."""
        kinds = {name: column_type(name, self.properties_as) for name in self.columns}
        return ", ".join(f"`{name}` {kind} COMMENT '{COMMENTS[name]}'" for name, kind in kinds.items())

    def use_storage(self) -> None:
        """Open the addresses as these options say, in a process that has not parsed them."""
        _use(self.storage)

    @property
    def view_options(self) -> ViewOptions:
        """Options with which the stores are opened."""
        passes = self.on_corrupt != "fail", not self.fail_on_data_loss
        return ViewOptions(self.uncommitted, self.all_epochs, *passes, self.commit_log)

    def decoding(self, columns: Sequence[str], properties_as: str) -> Decoding:
        """Choices for the columns of this read."""
        kinds = self.decompress, self.verify_crc, self.on_corrupt, self.explode_batches
        return Decoding(tuple(columns), properties_as, *kinds)

    def check_paths(self) -> None:
        """Raise UsageError for a path that is no store, or if two are of different clusters. No record is read."""
        clusters = [cluster_of(path, self.view_options) for path in self.paths]
        for path, cluster in zip(self.paths, clusters, strict=True):
            if cluster != clusters[0]:
                raise UsageError(
                    f"{path} is of the cluster {cluster or '(unnamed)'} and {self.paths[0]} of "
                    f"{clusters[0] or '(unnamed)'}: read them apart"
                )

    def open(self, caches: Mapping[str, ViewCache] | None = None) -> list[StoreView]:
        """Open every store. `caches`: results of earlier calls, by path. Errors as of `check_paths`, and StoreError for
        damaged files."""
        self.check_paths()
        views = [open_store(path, self.view_options, (caches or {}).get(path)) for path in self.paths]
        check_no_copies(views)
        return views

    def check_loss(self, views: Sequence[StoreView]) -> None:
        """Raise StoreError if offsets that were asked for are not in the log, unless failOnDataLoss is false."""
        if self.fail_on_data_loss:
            for view in views:
                self._check_bytes(view)
            check_queues(self.rows, views)

    def _check_bytes(self, view: StoreView) -> None:
        bounds = self.asked_bytes
        if 0 <= bounds.low < view.min_offset:
            raise StoreError(
                f"{view.root} begins at {view.min_offset}, later than startingPhysicalOffset = {bounds.low}: "
                "older files were removed; failOnDataLoss=false reads what is there"
            )
        if view.end_offset <= bounds.high < 2**63 - 1:
            raise StoreError(
                f"{view.root} can be read up to {view.end_offset}, less than endingPhysicalOffset = {bounds.high + 1}; "
                "failOnDataLoss=false reads what is there"
            )


def known_column(name: str, on_corrupt: str = "fail") -> str:
    """The column of this name in its own spelling. For an unknown one UsageError names the nearest."""
    spelled = {column.lower(): column for column in (*TYPES, CORRUPT, STORE_PATH)}
    if name.lower() not in spelled:
        near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.0)[0]
        raise UsageError(f"commitlog has no column {name}; the nearest one is {spelled[near]}")
    if spelled[name.lower()] == CORRUPT and on_corrupt != "row":
        raise UsageError(f"commitlog has the column {CORRUPT} only with the option onCorrupt = 'row'")
    return spelled[name.lower()]


def _columns(values: Mapping[str, str], on_corrupt: str) -> tuple[str, ...]:
    named = comma_parts("columns", values.get("columns"))
    if named:
        return tuple(known_column(name, on_corrupt) for name in named)
    if "includeProperties" in values and "includeHeaders" in values:
        raise UsageError("the options includeProperties and includeHeaders mean the same: give one of them")
    wanted = all(_switch(values, name, default=True) for name in ("includeProperties", "includeHeaders"))
    columns = tuple(name for name in TYPES if wanted or name != "properties")
    return (*columns, CORRUPT) if on_corrupt == "row" else columns


def column_type(name: str, properties_as: str) -> str:
    """Spark's name of a column's type."""
    if name == "properties" and properties_as == "map":
        return "map<string,string>"
    if name in (CORRUPT, STORE_PATH):
        return "string"
    kind: Any = TYPES[name]
    return SPARK_TYPES[kind]


def _storage(paths: Sequence[str], s3a: Mapping[str, str], values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    try:
        given = json.loads(values.get("storageOptions", "{}"))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise UsageError(
            "option storageOptions must be a JSON object of fsspec's options, such as "
            '{"endpoint_url": "http://minio:9000"}'  # what was given may hold a secret
        )
    found = {}
    for path in paths:
        scheme, separator, _ = path.partition("://")
        if separator:
            chosen = {**(of_s3a(s3a) if scheme in ("s3", "s3a") else {}), **given}
            found[_before_magic(path)] = json.dumps(chosen)
    return tuple(found.items())


def _commit_log(paths: Sequence[str], values: Mapping[str, str]) -> str | None:
    value = values.get("storePathCommitLog")
    if value is None:
        return None
    if len(paths) > 1 or has_magic(paths[0]):
        raise UsageError("option storePathCommitLog is for one path: load the stores apart, and union them")
    return plain_path(value).rstrip("/") or "/"


def _before_magic(path: str) -> str:
    """The part of a pattern that names one directory."""
    parts = path.split("/")
    return "/".join(takewhile(lambda part: not has_magic(part), parts))


def _use(storage: Sequence[tuple[str, str]]) -> None:
    for root, options in storage:
        use_options(root, json.loads(options))


def _written_paths(values: Mapping[str, str]) -> list[str]:
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
    return [plain_path(path) for path in paths]


def _matching(path: str) -> list[str]:
    """The directories that match a pattern (*, ?, [ab]); a path that is no pattern, or that exists, itself."""
    if not has_magic(path) or storage_of(path).entries(path) is not None:
        return [path]
    found = storage_of(path).matching(path)
    if not found:
        raise UsageError(f"{path}: no directory matches")
    return found


def plain_path(path: str) -> str:
    """A path without the scheme file, as Spark (file:/a) or others (file:///a) write it."""
    return re.sub(r"^file:/+(?=[^/])", "/", path)


def _choice(values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    value = values.get(name, choices[0]).lower()
    if value not in choices:
        raise UsageError(f"option {name} = {values[name]!r} must be {' or '.join(choices)}")
    return value


def _size(values: Mapping[str, str], name: str) -> int | None:
    return size_bytes(name, values[name]) if name in values else None


def _switch(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice({name: values.get(name, str(default))}, name, ("true", "false")) == "true"


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    found = count(values, name)
    return default if found is None else found


# --- offsets of queues that were asked for and are not there ----------------------------------------------------------

ON = "failOnDataLoss=false reads what is there"


def check_queues(rows: RowFilter, views: Sequence[StoreView], *, streams: bool = False) -> None:
    """Raise StoreError if a queue begins later than its startingOffsets in a store that has it, or if no store has it
    as far as its endingOffsets say; a query that streams waits for those."""
    entries = [QueueEntries(storage_of(view.root), view.root) for view in views] if rows.queue_offsets else []
    for (topic, queue_id), bounds in rows.queue_offsets.items():
        name, end = f"queue {queue_id} of {topic}", 0
        for view, queues in zip(views, entries, strict=True):
            begin, after = _extent(view, queues, topic, queue_id)
            if after > 0 and ANY_NUMBER.low < bounds.low < begin:
                raise StoreError(
                    f"{view.root}: {name} begins at {begin}, later than startingOffsets = {bounds.low}: older messages "
                    f"were removed; {ON}"
                )
            end = max(end, after)
        wanted = "startingOffsets", max(bounds.low, 0)
        if bounds.high < ANY_NUMBER.high:
            wanted = "endingOffsets", max(bounds.high + 1, wanted[1])
        if wanted[1] > end and not streams:
            raise StoreError(
                f"{views[0].root if len(views) == 1 else 'every store'}: {name} can be read up to {end}, less than "
                f"{wanted[0]} = {wanted[1]}; {ON}"
            )


def _extent(view: StoreView, queues: QueueEntries, topic: str, queue_id: int) -> tuple[int, int]:
    """First offset of a queue and the one behind the last, (0, 0) without such a queue. Where the store has no consume
    queues the log is read up to the first message, and the end is not known."""
    if queues.exist:
        return queues.extent(topic, queue_id, view.min_offset, view.end_offset) or (0, 0)
    rows = RowFilter(queues=frozenset([(topic, queue_id)]))
    for batch in read_store(view, Decoding(("queueOffset",), on_corrupt="skip"), rows):
        return int(batch.column(0)[0].as_py()), ANY_NUMBER.high
    return 0, 0
