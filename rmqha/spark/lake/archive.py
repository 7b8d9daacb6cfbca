"""`rmqha spark archive`: the log as Parquet files, a Delta or an Iceberg table that grows, each message once; and back
into a store. Needs no Java.

A batch is a range of each log. Its rows are written aside, then its manifest, which says where the batch ends in each
log, becomes `_rmqha/pending.json`, then the batch becomes part of the archive, and the manifest goes to
`_rmqha/batches`. A Parquet batch counts from the pending manifest on, and the next run finishes what a killed run left;
a table's batch counts if the table says so, else it is made anew. So no message is lost or comes twice. The places are
positions as of a streaming query (`rmqha.scan.position`): a log that was cut below what was archived is an error, and
another replica of the group may be read instead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmqha.host import kernel_choice
from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import StoreView, ViewCache, by_group, prune, read_store
from rmqha.scan.native import columns as native_columns
from rmqha.scan.position import Position, between, end_within, has_reached, position_at
from rmqha.spark.lake.files import STATE, ArchiveFiles
from rmqha.spark.lake.formats import BY, ArchiveFormat, ParquetFormat
from rmqha.spark.lake.manifest import PENDING, STAGING, ArchivedEnd, Manifest, batches, path_of, stretches
from rmqha.spark.options import ReadOptions

LAYOUT_VERSION = 1
LAYOUT = f"{STATE}/archive.json"
BATCH_BYTES = 256 * 1024 * 1024
FORMATS = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
"""Formats of an archive, each with the package that it needs."""


def format_of(target: ArchiveFiles, name: str, by: Sequence[str], catalog: str = "") -> ArchiveFormat:
    """The format called `name`. UsageError if it is not known, or if its package is not installed."""
    if name not in FORMATS:
        raise UsageError(f"an archive is of format {', '.join(FORMATS)}, not {name}")
    if find_spec(FORMATS[name]) is None:
        raise UsageError(f"format {name} needs the package {FORMATS[name]}: run `pip install 'rmqha[{name}]'`")
    if name == "delta":
        from rmqha.spark.lake.delta import DeltaFormat

        return DeltaFormat(target, by)
    if name == "iceberg":
        from rmqha.spark.lake.iceberg import IcebergFormat

        return IcebergFormat(target, by, catalog)
    return ParquetFormat(target, by)


@dataclass(slots=True)
class ArchiveReport:
    """Numbers of an archive run."""

    batch_count: int = 0
    row_count: int = 0
    log_bytes: int = 0
    file_count: int = 0
    joined_count: int = 0
    """Small files that compaction put into larger ones."""
    seconds: float = 0.0
    finished_batch: int | None = None
    """The batch that a run before this one had left half done."""
    places: dict[str, int] = field(default_factory=dict)
    """Physical offset up to which each log is archived."""


class Archive:
    """One target; `run` brings it up to what its logs have committed."""

    def __init__(
        self,
        target: ArchiveFiles,
        paths: Sequence[str],
        options: Mapping[str, str],
        by: Sequence[str] = ("topic", "day"),
        batch_bytes: int = BATCH_BYTES,
        say: Callable[[str], None] = lambda text: None,
        *,
        form: str = "parquet",
        catalog: str = "",
        compacts: bool = False,
    ) -> None:
        """`form` is one of FORMATS; `catalog` a name of pyiceberg's configuration; `compacts`: each run joins small
        files at its end. UsageError for wrong options, or for a target that was archived with others."""
        self._target, self._by, self._batch_bytes, self._say = target, tuple(by), batch_bytes, say
        self._options = ReadOptions.parse({**options, "paths": json.dumps(list(paths))})
        self._caches = {path: ViewCache() for path in self._options.paths}
        for name in self._by:
            if name not in BY:
                raise UsageError(f"an archive is parted by {', '.join(BY)}, not by {name}")
        self._form_name, self._form, self._compacts = form, format_of(target, form, by, catalog), compacts

    def run(self) -> ArchiveReport:
        """Archive all that is committed now. StoreError for damage, or a log that was cut below what was archived."""
        started, report = time.monotonic(), ArchiveReport()
        native_columns.use(kernel_choice.native_columns())
        with self._target.locked():
            self._check_layout()
            last = self._resume(report)
            while True:
                done = self._batch(last, report)
                if done is None:
                    break
                last = done
            if self._compacts:
                self._compact(report)
        report.seconds = time.monotonic() - started
        report.places = {name: place.physical_offset for name, place in last.places.items()} if last else {}
        return report

    def _check_layout(self) -> None:
        layout: dict[str, Any] = {"version": LAYOUT_VERSION, "by": list(self._by)}
        if self._form_name != "parquet":
            layout["format"] = self._form_name
        if not self._target.exists(LAYOUT):
            self._target.write(LAYOUT, json.dumps(layout).encode())
            return
        known = json.loads(self._target.read(LAYOUT))
        if known != layout:
            raise UsageError(f"{self._target.address} is an archive of another form, {known}: not {layout}")

    def _resume(self, report: ArchiveReport) -> Manifest | None:
        """Finish or remove what a killed run had left. Returns the last batch that counts, None without one."""
        if self._target.exists(PENDING):
            pending = Manifest.parse(self._target.read(PENDING), f"{self._target.address}/{PENDING}")
            if self._form.finish(pending):
                self._settle(pending)
                report.finished_batch = pending.number
            else:
                self._target.remove(PENDING)
        self._target.clear(STAGING)
        manifests = batches(self._target)
        return manifests[-1] if manifests else None

    def _batch(self, last: Manifest | None, report: ArchiveReport) -> Manifest | None:
        """Archive the next batch; None if there is nothing to archive."""
        places = {} if last is None else dict(last.places)
        ranges: list[StoreView] = []
        groups = by_group(self._options.open(self._caches))
        for view, *_ in groups:
            begin = self._begin(view, places.get(_name(view)))
            end = view.end_offset
            if begin < end:
                share = max(self._batch_bytes // len(groups), 1)
                end = end_within(view, begin, share, pass_damage=self._options.on_corrupt != "fail")
                ranges.append(between(view, begin, end))
                position = position_at(view, end)
                places[_name(view)] = ArchivedEnd(
                    position.physical_offset, position.epoch, position.epoch_start, view.broker_id
                )
        if not ranges:
            return None
        number = 1 if last is None else last.number + 1
        rows = self._form.open_batch(number)
        for item in ranges:
            for batch in self._rows(item):
                rows.add(batch)
        rows.close()
        log_bytes = sum(item.size_bytes for item in ranges)
        made = Manifest(number, places, rows.files, rows.row_count, log_bytes)
        self._target.write(PENDING, made.encode())
        self._form.publish(made, rows)
        self._settle(made)
        report.batch_count += 1
        report.row_count += made.row_count
        report.log_bytes += log_bytes
        report.file_count += len(made.files)
        self._say(f"batch {number}: {made.row_count:,} messages, {log_bytes / 1e6:,.1f} MB of log")
        return made

    def _begin(self, view: StoreView, place: ArchivedEnd | None) -> int:
        if place is None:
            return prune(view, self._options.rows, self._options.timestamp_slack_ms).min_offset
        position = Position(place.physical_offset, place.epoch, place.epoch_start)
        if not has_reached(view, position, same_replica=place.broker_id in (None, view.broker_id)):
            return view.end_offset  # this replica is behind what was archived of another one
        if position.physical_offset < view.min_offset and self._options.fail_on_data_loss:
            raise StoreError(
                f"{view.root} begins at {view.min_offset}, and the archive ends at {position.physical_offset}: what is "
                "between was removed before it was archived; failOnDataLoss=false goes on without it"
            )
        return max(position.physical_offset, view.min_offset)

    def _rows(self, item: StoreView) -> Iterator[Any]:
        options = self._options
        decoding = options.decoding(options.columns, options.properties_as)
        return read_store(item, decoding, options.rows, timestamp_slack_ms=options.timestamp_slack_ms)

    def _settle(self, manifest: Manifest) -> None:
        """Note a batch that is part of the archive, in place of those that it stands for. If it was interrupted it may
        be done again."""
        self._target.write(path_of(manifest.number), manifest.encode())
        for item in batches(self._target) if manifest.spans else ():
            if item.number < manifest.number:
                self._target.remove(path_of(item.number))
        self._target.remove(PENDING)

    def _compact(self, report: ArchiveReport) -> None:
        manifests = batches(self._target)
        made = self._form.compact(manifests) if manifests else None
        if made is not None:
            self._target.write(PENDING, made.encode())
            self._form.finish(made)
            self._settle(made)
            report.joined_count = len(made.removed)
            self._say(f"{len(made.removed)} small files joined")


def _name(view: StoreView) -> str:
    return view.root if view.broker_name is None else f"{view.cluster}#{view.broker_name}"


# --- and back ---------------------------------------------------------------------------------------------------------


def tables(target: ArchiveFiles, topics: Sequence[str] = (), catalog: str = "") -> Iterator[Any]:
    """The messages of each batch as one Arrow table, in the order of each log; of these topics only, if any are named.
    UsageError if there is no archive."""
    if not target.exists(LAYOUT):
        raise UsageError(f"{target.address} is no archive: it has no {LAYOUT}")
    layout, manifests = json.loads(target.read(LAYOUT)), batches(target)
    form = format_of(target, layout.get("format", "parquet"), layout["by"], catalog)
    parts = stretches(manifests)
    if parts is None and not isinstance(form, ParquetFormat):
        manifests = manifests[-1:]
    for manifest in manifests:
        mine = None if parts is None else [parts.pop(0) for _ in manifest.ends]
        for found in form.rows_of(manifest, mine):
            kept = found.filter(pc.is_in(found["topic"], pa.array(topics, pa.string()))) if topics else found
            order = [name for name in ("brokerName", "physicalOffset", "queueOffset") if name in kept.column_names]
            if kept.num_rows:
                yield kept.sort_by([(name, "ascending") for name in order])


def check_columns(columns: Sequence[str]) -> None:
    """UsageError if an archive of these columns could not be restored in order."""
    lacking = [name for name in ("topic", "storeTimestamp", "physicalOffset", "queueOffset") if name not in columns]
    if lacking:
        raise UsageError(f"an archive needs the columns {', '.join(lacking)} too")
