"""`spark.readStream.format("commitlog")`: micro-batches over a live store, up to its confirm offset.

An offset of the query is, for each store, a physical offset with the epoch that wrote the bytes before it. Spark keeps
it in the checkpoint and asks for the same ranges again after a failure, so a sink that takes a batch once takes each
record once. A log that was cut below what a batch had read, or written anew there, ends the query with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from rmqha.model.error import StoreError, UsageError
from rmqha.spark.options import ReadOptions
from rmqha.spark.partition import LogPartition, partitions, read
from rmqha.store.scan import StoreView, by_group, open_store
from rmqha.store.scan_position import Position, between, check_position, end_within, position_at

Offset = dict[str, dict[str, int]]
"""By the store's directory."""


def _to_json(position: Position) -> dict[str, int]:
    return {
        "physicalOffset": position.physical_offset,
        "epoch": position.epoch,
        "epochStart": position.epoch_start,
    }


def _from_json(value: Mapping[str, int]) -> Position:
    return Position(value["physicalOffset"], value.get("epoch", -1), value.get("epochStart", -1))


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one Python process of the driver; `read` runs in those of the tasks."""

    def __init__(self, options: ReadOptions, columns: list[str], properties_as: str) -> None:
        self._options = options
        self._decoding = options.decoding(columns, properties_as)
        self._target: Offset | None = None

    # --- offsets ------------------------------------------------------------------------------------------------------
    def initialOffset(self) -> Offset:  # noqa: N802 - the base class's name
        low = self._options.rows.physical_offsets.low
        found: Offset = {}
        for view in self._open():
            first = view.end_offset if self._options.from_latest else view.min_offset
            if view.min_offset < low and not self._options.from_latest:
                # rows before `low` are left out by the option's own filter
                first = self._end_within(view, view.min_offset, low - view.min_offset)
            found[view.root] = _to_json(position_at(view, first))
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        found: Offset = {}
        for view in self._open():
            begin = self._begin(view, start)
            end = view.end_offset
            if self._target is not None and view.root in self._target:
                end = min(end, self._target[view.root]["physicalOffset"])
            if max_bytes is not None and begin < end:
                end = min(end, self._end_within(view, begin, max(max_bytes // len(self._options.paths), 1)))
            found[view.root] = _to_json(position_at(view, max(end, begin)))
        return found

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {view.root: _to_json(position_at(view, view.end_offset)) for view in self._open()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    def _begin(self, view: StoreView, start: Offset) -> int:
        """Where a batch begins. StoreError if the log is not the one that was read, or has lost what comes next."""
        if view.root not in start:
            return view.min_offset
        position = _from_json(start[view.root])
        check_position(view, position)
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
    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        views = []
        for root, until in end.items():
            view = open_store(root, self._options.looking)
            check_position(view, _from_json(until))
            first, last = self._begin(view, start), until["physicalOffset"]
            if first < last:
                views.append([between(view, first, last)])
        return partitions(self._options, views) if views else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(self._options, partition, self._decoding, self._options.rows)

    def _open(self) -> list[StoreView]:
        groups = by_group(self._options.open())
        twice = next((group for group in groups if len(group) > 1), None)
        if twice is not None:
            raise UsageError(
                f"{twice[0].root} and {twice[1].root} are replicas of one group, {twice[0].broker_name}: a streaming "
                "query reads one of them, give one"
            )
        return [group[0] for group in groups]

    def _end_within(self, view: StoreView, start: int, max_bytes: int) -> int:
        return end_within(view, start, max_bytes, pass_damage=self._options.on_corrupt != "fail")
