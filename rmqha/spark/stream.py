"""`spark.readStream.format("commitlog")`: micro-batches over a live store, up to its confirm offset.

An offset of the query is, for each group, a physical offset with the epoch that wrote the bytes before it. Spark keeps
it in the checkpoint and asks for the same ranges again after a failure, so a sink that takes a batch once takes each
record once. The replicas of a group are one log, so the path of another replica goes on where the query stood, once
that replica has got as far. A log that was cut below what a batch had read, or written anew there, ends the query with
a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from rmqha.model.error import RmqhaError, StoreError, UsageError
from rmqha.scan.api import (
    ANY_NUMBER,
    Interval,
    LogRange,
    RowFilter,
    StoreView,
    ViewCache,
    by_group,
    check_no_copies,
    open_store,
    prune,
    storage_errors,
)
from rmqha.scan.position import Position, between, end_within, has_reached, may_have_changed, position_at, record_count
from rmqha.spark.errors import sentences
from rmqha.spark.options import ReadOptions, check_queues
from rmqha.spark.partition import UNKNOWN, LogPartition, TaskSizing, partitions, read

LogOffset = dict[str, int | str | None]
"""physicalOffset, epoch, epochStart, and the brokerId of the replica that was read."""
Offset = dict[str, LogOffset]
"""Offset in each log, by `log_name`."""


def log_name(view: StoreView) -> str:
    """Name of the log that a store holds: cluster#brokerName; its directory where it has no identity."""
    return view.root if view.broker_name is None else f"{view.cluster}#{view.broker_name}"


def _log_offset(view: StoreView, physical_offset: int) -> LogOffset:
    position = position_at(view, physical_offset)
    return {
        "physicalOffset": position.physical_offset,
        "epoch": position.epoch,
        "epochStart": position.epoch_start,
        "brokerId": view.broker_id,
    }


def _position(log_offset: Mapping[str, Any]) -> Position:
    return Position(log_offset["physicalOffset"], log_offset.get("epoch", -1), log_offset.get("epochStart", -1))


def _log_offsets(views: Sequence[StoreView], offset: Offset) -> list[LogOffset | None]:
    """Offset of each store's log in `offset`. Raises UsageError if `offset` names a log that may be one without an
    offset."""
    found = [offset.get(log_name(view), offset.get(view.root)) for view in views]
    known = {name for view in views for name in (log_name(view), view.root)}
    lost = sorted(name for name in offset if name not in known)
    for view, log_offset in zip(views, found, strict=True):
        if log_offset is None and lost and (view.broker_name is None or "#" not in lost[0]):
            raise UsageError(
                f"the query has read {lost[0]} and is to read {view.root} now, and without a brokerIdentity in both "
                "nothing shows whether they are one log: give the path as it was, or start a new query (another "
                "checkpointLocation)"
            )
    return found


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch in one store."""

    root: str
    position: Position
    same_replica: bool


class StreamPartition(LogPartition):
    """Range of a task, and the ends of its batch, by which a cut of the log during the read is detected."""

    def __init__(self, ranges: tuple[LogRange, ...], ends: tuple[BatchEnd, ...]) -> None:
        super().__init__(ranges)
        self.ends = ends


def _is_of(view: StoreView, log_offset: LogOffset) -> bool:
    """True if the offset was taken from this replica."""
    return log_offset.get("brokerId") in (None, view.broker_id)


def _of_history(group: Sequence[StoreView], offset: Offset) -> StoreView:
    """First replica of a group with the history of the offset, else the first one."""
    log_offset = offset.get(log_name(group[0]))
    for view in group if log_offset is not None and len(group) > 1 else ():
        with suppress(StoreError):
            if has_reached(view, _position(log_offset or {}), same_replica=_is_of(view, log_offset or {})):
                return view
    return group[0]


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader in one Python process of the driver; `read` runs in those of the tasks."""

    def __init__(
        self, options: ReadOptions, columns: list[str], properties_as: str, sizing: TaskSizing = UNKNOWN
    ) -> None:
        self._options, self._sizing = options, sizing
        self._decoding = options.decoding(columns, properties_as)
        self._target: Offset | None = None
        self._caches = {path: ViewCache() for path in options.paths}
        self._logs: dict[str, str] = {}
        """Name of the log at each path."""
        self._waits_since_ms: int | None = None

    # --- offsets ------------------------------------------------------------------------------------------------------
    @sentences()
    def initialOffset(self) -> Offset:  # noqa: N802 - the base class's name
        """Start offset of a query without a checkpoint."""
        low = self._options.rows.physical_offsets.low
        times = Interval(low=self._options.rows.store_timestamps.low)
        found: Offset = {}
        views = self._open({})
        if self._options.fail_on_data_loss:
            check_queues(self._options.rows, views, streams=True)
        for view in views:
            first = view.end_offset if self._options.from_latest else view.min_offset
            if view.min_offset < low and not self._options.from_latest:
                # rows before `low` are left out by the option's own filter
                first = self._end_within(view, view.min_offset, low - view.min_offset)
            if times.low > ANY_NUMBER.low and not self._options.from_latest:
                # log that is older by more than brokers' clocks step back holds no row of this query
                later = prune(view, RowFilter(intervals={"storeTimestamp": times}), self._options.timestamp_slack_ms)
                first = max(first, later.min_offset)
            found[log_name(view)] = _log_offset(view, first)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Bytes of a batch: maxBytesPerTrigger, or everything."""
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @sentences()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """End of the next batch, which begins at `start` and has at most `limit` bytes."""
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        views = self._open(start)
        found: Offset = {}
        for view, log_offset in zip(views, _log_offsets(views, start), strict=True):
            name = log_name(view)
            begin, end = self._begin(view, log_offset), view.end_offset
            if self._target is not None and name in self._target:
                end = min(end, _position(self._target[name]).physical_offset)
            if max_bytes is not None and begin < end:
                end = min(end, self._end_within(view, begin, max(max_bytes // len(self._options.paths), 1)))
            found[name] = log_offset if log_offset is not None and end <= begin else _log_offset(view, max(end, begin))
        return start if start and self._is_to_wait(views, start, found) else found

    def _is_to_wait(self, views: Sequence[StoreView], start: Offset, end: Offset) -> bool:
        """True if there are fewer messages than minOffsetsPerTrigger and maxTriggerDelay is not over."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        left, has_more = least, False
        for view, log_offset, until in zip(views, _log_offsets(views, start), _log_offsets(views, end), strict=True):
            first, last = self._begin(view, log_offset), _position(until or {}).physical_offset
            if first < last:
                has_more = True
                left -= record_count(between(view, first, last), left, pass_damage=self._options.on_corrupt != "fail")
        now_ms = time.monotonic_ns() // 1_000_000
        if not has_more or left <= 0:
            self._waits_since_ms = None
            return False
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        if now_ms - self._waits_since_ms < self._options.max_trigger_delay_ms:
            return True
        self._waits_since_ms = None
        return False

    @sentences()
    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Present ends of the stores, for Spark's statistics."""
        return {log_name(view): _log_offset(view, view.end_offset) for view in self._open({})}

    @sentences()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the present end as that of the query."""
        self._target = self.reportLatestOffset()

    def _begin(self, view: StoreView, log_offset: LogOffset | None) -> int:
        """Start of a batch (physical offset). Raises StoreError if the log is another one, or lacks the next
        records."""
        if log_offset is None:
            return view.min_offset
        position = _position(log_offset)
        has_reached(view, position, same_replica=_is_of(view, log_offset))
        if position.physical_offset < view.min_offset:
            if self._options.fail_on_data_loss:
                raise StoreError(
                    f"{view.root} begins at {view.min_offset}, and the query had read up to "
                    f"{position.physical_offset}: {view.min_offset - position.physical_offset} bytes were removed "
                    "before they were read; failOnDataLoss=false goes on without them"
                )
            return view.min_offset
        return position.physical_offset

    # --- rows ---------------------------------------------------------------------------------------------------------
    @sentences()
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of the batch from `start` to `end`, one for each task."""
        views = self._open(end)
        kept, ends = [], list[BatchEnd]()
        for view, log_offset, until in zip(views, _log_offsets(views, start), _log_offsets(views, end), strict=True):
            if until is None:
                continue  # this store was added after the batch was planned
            first, last = self._begin(view, log_offset), _position(until)
            if first >= last.physical_offset:
                continue
            if not has_reached(view, last, same_replica=_is_of(view, until)):
                raise StoreError(
                    f"{view.root} can be read up to {view.end_offset}, and the batch under way goes to "
                    f"{last.physical_offset}: start the query again when this replica has caught up, or give the path "
                    "of one that has"
                )
            kept.append([between(view, first, last.physical_offset)])
            ends.append(BatchEnd(view.root, last, _is_of(view, until)))
        with storage_errors(", ".join(self._options.paths)):
            found = partitions(self._options, kept, self._options.rows, self._sizing) if kept else []
        return [StreamPartition(item.value, tuple(ends)) for item in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Rows of a partition. Raises StoreError if the log was cut during the read, since rows may be of either
        version."""
        with sentences():
            yield from self._read(partition)

    def _read(self, partition: InputPartition) -> Iterator[Any]:
        ends: tuple[BatchEnd, ...] = getattr(partition, "ends", ())
        try:
            yield from read(self._options, partition, self._decoding, self._options.rows)
        except StoreError as error:
            for end in ends:
                self._check(end, error)
            raise
        for end in ends:
            if may_have_changed(end.root, end.position):
                self._check(end, None)

    def _check(self, end: BatchEnd, error: StoreError | None) -> None:
        try:
            view = open_store(end.root, self._options.view_options)
        except StoreError:
            raise error or StoreError(f"{end.root} was cut while it was read: ask again") from None
        try:
            has_reached(view, end.position, same_replica=end.same_replica)
        except StoreError as cut:
            raise cut from None

    def _open(self, offset: Offset) -> list[StoreView]:
        """One store for each log: of its replicas with the history of the offset, the one with the highest confirm
        offset. A store that cannot be opened is skipped if another replica can."""
        views, wrong = [], dict[str, RmqhaError]()
        if not self._logs:
            self._options.check_paths()
        for path in self._options.paths:
            try:
                views.append(open_store(path, self._options.view_options, self._caches[path]))
                self._logs[path] = log_name(views[-1])
            except (StoreError, UsageError) as error:
                wrong[path] = error
        there = {log_name(view) for view in views}
        for path, problem in wrong.items():
            if self._logs.get(path) not in there:
                raise problem
        check_no_copies(views)
        return [_of_history(group, offset) for group in by_group(views)]

    def _end_within(self, view: StoreView, start: int, max_bytes: int) -> int:
        return end_within(view, start, max_bytes, pass_damage=self._options.on_corrupt != "fail")
