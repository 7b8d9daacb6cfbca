"""`df.write.format("rocketmq")` and `df.writeStream.format("rocketmq")`: rows become messages of a live cluster.

At least once: a task ends when each of its rows is acknowledged, and one that Spark runs again sends its rows again,
under the same UNIQ_KEYs, so whoever consumes can tell a copy. A key is the row's own (`uniqKey`) or is made of the
write, the task and the row's number in it: the same for the same row as long as the rows of a task come in the same
order, as they do from files and logs.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendResult
from rmqha.host.access.client_security import for_client
from rmqha.host.clock import local_month_ms
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, PROPERTY_WAIT, unique_key
from rmqha.spark.errors import sentences
from rmqha.spark.row_options import count, duration_ms
from rmqha.spark.write_rows import MADE_ANEW, WriterTerms, check_schema

OPTIONS = {
    "namesrv": "name servers, host:port, several parted by semicolons",
    "group": "the producer group (rmqha-spark)",
    "timeout": "how long a message is tried, through failovers, before the task fails (30s)",
    "window": "messages of a task on their way at once (512)",
    "batch": "messages that may share one request (32)",
    "compression": "zlib (default), lz4, zstd or none, of bodies over 4 KiB",
    "securityFile": "how to ask secured servers: tls.*, accessKey, secretKey; a file that each worker has",
}
WORDS = WriterTerms("rocketmq", "send", "sent")
THEIRS = ("bornTimestamp", "storeTimestamp", "reconsumeTimes", *MADE_ANEW)
"""Columns that a read gives and the cluster makes anew."""
SET_BY_BROKERS = frozenset((PROPERTY_WAIT, "CLUSTER", "MSG_REGION", "TRACE_ON", "__CRC32#"))
SPARKS_OWN = frozenset(("checkpointlocation", "queryname"))
"""Options, in small letters, that Spark hands on to the sink of a streaming query."""
CHUNK_ROWS = 2048
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a streaming query's tasks."""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Options of the sink, checked."""

    namesrv: str
    group: str = "rmqha-spark"
    timeout_ms: int = 30_000
    window: int = 512
    batch: int = 32
    compression: str | None = "zlib"
    security_file: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SendOptions:
        """UsageError for an unknown name (says the nearest one) or a value of the wrong kind."""
        known = {name.lower(): name for name in OPTIONS}
        values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in SPARKS_OWN:
                continue
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
                raise UsageError(f"unknown option {name} of rocketmq; the nearest known one is {known[near]}")
            values[known[name.lower()]] = value
        if not values.get("namesrv"):
            raise UsageError("rocketmq needs the option namesrv: option('namesrv', 'host:9876')")
        compression = values.get("compression", "zlib").lower()
        if compression not in ("zlib", "lz4", "zstd", "none"):
            raise UsageError(f"option compression = {values['compression']!r} must be zlib, lz4, zstd or none")
        batch = count(values, "batch", 1, 1024) or 32
        window = count(values, "window", 1, 65536) or 512
        if window < batch:
            raise UsageError(f"option window = {window} must be at least batch = {batch}")
        return cls(
            namesrv=values["namesrv"],
            group=values.get("group") or "rmqha-spark",
            timeout_ms=duration_ms("timeout", values.get("timeout", "30s")),
            window=window,
            batch=batch,
            compression=None if compression == "none" else compression,
            security_file=values.get("securityFile", ""),
        )


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise UsageError, one sentence, unless rows with these columns and Spark types can be sent."""
    check_schema(columns, WORDS, THEIRS)


class RocketmqSink(DataSource):
    """The sink "rocketmq", registered by `rmqha.spark.register`; there is nothing to read."""

    @classmethod
    def name(cls) -> str:
        """Name of the sink in `df.write.format`."""
        return "rocketmq"

    @sentences()
    def schema(self) -> StructType:
        """Raise UsageError: the log itself is read by format("commitlog")."""
        raise UsageError("rocketmq is a sink: a broker's log is read with format('commitlog') and its directory")

    @sentences()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Raise UsageError: this sink cannot be read."""
        self.schema()
        raise AssertionError

    @sentences()
    def writer(self, schema: StructType, overwrite: bool) -> Sender:
        """Writer of a batch. Raises UsageError for wrong options or columns."""
        if overwrite:
            raise UsageError("rocketmq appends messages to topics: use mode('append')")
        return Sender(self._checked(schema), uuid.uuid4().hex, time.time_ns() // 1_000_000)

    @sentences()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSender:  # noqa: N802 - the base class's name
        """Writer of a streaming query's batches. Raises UsageError for wrong options or columns."""
        if overwrite:
            raise UsageError("rocketmq appends messages to topics: use outputMode('append')")
        return StreamSender(self._checked(schema), "", 0)

    def _checked(self, schema: StructType) -> SendOptions:
        options = SendOptions.parse(self.options)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        return options


@dataclass
class Sent(WriterCommitMessage):
    """Number of messages that a task has sent, all acknowledged."""

    message_count: int


class Sender(DataSourceArrowWriter):
    """Writer that sends the rows of each task; `write_id` and `started_ms` go into the keys."""

    def __init__(self, options: SendOptions, write_id: str, started_ms: int) -> None:
        self._options, self._write_id, self._started_ms = options, write_id, started_ms

    @sentences()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of a task and wait for all answers. RmqhaError for a message that was not taken in time."""
        context = TaskContext.get()
        assert context is not None
        keys = RowKeys(f"{self._write_of(context)}/{context.partitionId()}", self._started_ms)
        return Sent(trio.run(send, self._options, iterator, keys))

    def _write_of(self, context: TaskContext) -> str:
        return self._write_id

    def commit(self, messages: list[WriterCommitMessage | None], *batch: int) -> None:
        """Do nothing: all messages are sent already."""

    def abort(self, messages: list[WriterCommitMessage | None], *batch: int) -> None:
        """Do nothing: what was sent stays, and comes again under the same keys."""


class StreamSender(Sender, DataSourceStreamArrowWriter):
    """Writer that sends the batches of a streaming query: one that comes again after a restart has the keys that it
    had."""

    def _write_of(self, context: TaskContext) -> str:
        return f"{context.getLocalProperty(QUERY_ID)}/{context.getLocalProperty(BATCH_ID)}"


class RowKeys:
    """UNIQ_KEYs of one task's rows, in RocketMQ's form: a digest of the task where a producer has its address and
    process, the time of the write, and the row's number."""

    def __init__(self, task: str, started_ms: int) -> None:
        digest = hashlib.sha256(task.encode()).digest()
        self._ip, self._pid = digest[:4], int.from_bytes(digest[4:6], "big")
        self._instance = int.from_bytes(digest[6:10], "big")
        self._month_ms = started_ms - local_month_ms(started_ms)[0] if started_ms else 0

    def of(self, row_number: int) -> str:
        """The key of a row."""
        month_ms, counter = self._month_ms + (row_number >> 16), row_number & 0xFFFF
        return unique_key(self._ip, self._pid, month_ms, counter, self._instance)


async def send(options: SendOptions, batches: Iterator[Any], keys: RowKeys) -> int:
    """Send all rows. Returns their number. Raises RmqhaError, one sentence, for the first that is not acknowledged."""
    security = for_client(options.security_file) if options.security_file else None
    first, failures = 0, list[RmqhaError]()

    def note(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
        if isinstance(outcome, RmqhaError):
            failures.append(outcome)

    async with Producer(options.namesrv, options.group, compression=options.compression, security=security) as producer:
        for batch in batches:
            for low in range(0, batch.num_rows, CHUNK_ROWS):
                rows = batch.slice(low, CHUNK_ROWS).to_pylist()
                messages = [message_of(row, keys.of(first + at)) for at, row in enumerate(rows)]
                await producer.send_many(
                    messages,
                    window=options.window,
                    batch=options.batch,
                    timeout_ms=options.timeout_ms,
                    on_result=note,
                )
                if failures:
                    raise failures[0]
                first += len(messages)
    return first


def message_of(row: Mapping[str, Any], key: str) -> OutgoingMessage:
    """A row as a message; `key` is its UNIQ_KEY if it has none. UsageError for a row that cannot be one."""
    topic, body = row["topic"], row["body"]
    if not topic or body is None:
        raise UsageError("rocketmq cannot send a row whose topic or body is null")
    if row.get("flag"):
        raise UsageError(f"rocketmq sends no flag, and a row of topic {topic} has {row['flag']}: leave the column out")
    given = row.get("properties") or {}
    try:
        properties = {str(name): str(value) for name, value in _pairs(given) if value is not None}
    except (TypeError, ValueError) as error:
        raise UsageError(f"rocketmq cannot send the properties of a row of topic {topic}: {error}") from None
    kept = {name: properties.pop(name, "") for name in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY)}
    keys, queue_id = row.get("keys"), row.get("queueId")
    return OutgoingMessage(
        topic,
        body.encode() if isinstance(body, str) else body,
        keys=(keys if isinstance(keys, str) else " ".join(keys)) if keys else kept[PROPERTY_KEYS],
        tags=row.get("tags") or kept[PROPERTY_TAGS],
        properties={name: value for name, value in properties.items() if name not in SET_BY_BROKERS},
        queue_id=None if queue_id is None else int(queue_id),
        unique_key=row.get("uniqKey") or kept[PROPERTY_UNIQUE_KEY] or key,
    )


def _pairs(given: str | Mapping[str, Any] | Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    found = json.loads(given) if isinstance(given, str) else given
    return list(dict(found).items())
