"""Formats of an archive: how a batch of rows becomes part of it. The port, and Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Protocol
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmqha.model.error import StoreError
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.lake.manifest import STAGING, Manifest, Stretch

BY = {"topic": "topic", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "brokerName": "brokerName"}
"""Parts of the directories' names, in Hive's form; day and hour are UTC's, of storeTimestamp."""
OPEN_FILES_MAX = 128
SMALL_FILE_BYTES, MERGED_FILE_BYTES = 128 * 1024 * 1024, 512 * 1024 * 1024
UNNAMED = "__HIVE_DEFAULT_PARTITION__"
"""Text for a null in a directory's name, as Hive and Spark have it."""


class BatchRows(Protocol):
    """The rows of one batch, while they come."""

    files: dict[str, str]
    """Files of the batch's manifest, once it is closed."""
    row_count: int

    def add(self, batch: Any) -> None:
        """Take a RecordBatch."""
        ...

    def close(self) -> None:
        """End the writing."""
        ...


class ArchiveFormat(Protocol):
    """Port: the format of an archive. Implementations: Parquet, Delta, Iceberg."""

    def open_batch(self, number: int) -> BatchRows:
        """Rows of the batch of this number; readers do not see them before `publish`."""
        ...

    def publish(self, manifest: Manifest, rows: BatchRows) -> None:
        """Make the batch part of the archive. Its manifest is pending."""
        ...

    def finish(self, manifest: Manifest) -> bool:
        """Finish a pending batch whose run has ended: True if it is part of the archive, now wholly; False if it is not
        and is made anew."""
        ...

    def compact(self, manifests: Sequence[Manifest]) -> Manifest | None:
        """Join small files. Returns a manifest that replaces all of these once it is finished; None if nothing is to be
        joined. UsageError if the format has no compaction."""
        ...

    def rows_of(self, manifest: Manifest, stretches: Sequence[Sequence[Stretch]] | None) -> Iterator[Any]:
        """The rows of a manifest as tables, one for each of the stretches of its batches; in no order."""
        ...


class ParquetFormat:
    """Format of an archive as directories of Parquet files. A batch counts from the moment when its manifest is
    pending."""

    def __init__(self, target: ArchiveFiles, by: Sequence[str]) -> None:
        self._target, self._by = target, tuple(by)

    def open_batch(self, number: int) -> ParquetRows:
        """Rows of a batch, in files aside."""
        return ParquetRows(self._target, self._by, number)

    def publish(self, manifest: Manifest, rows: BatchRows) -> None:
        """Move the files to their places."""
        self.finish(manifest)

    def finish(self, manifest: Manifest) -> bool:
        """Move the files aside to their places. If it was interrupted it may be done again."""
        target = self._target
        for path, aside in manifest.files.items():
            if aside and target.exists(aside):
                target.move(aside, path)
            elif not target.exists(path):
                raise StoreError(f"{target.address}/{path} is gone, and so is {aside}: batch {manifest.number}")
        for path in manifest.removed:
            if target.exists(path):
                target.remove(path)
        return True

    def compact(self, manifests: Sequence[Manifest]) -> Manifest | None:
        """Join the small files of each directory, in their order, to larger ones; files of other columns stay apart."""
        last, kept, removed = manifests[-1], dict[str, str](), list[str]()
        known = {path for manifest in manifests for path in manifest.files}
        for directory, paths in _by_directory(manifests).items():
            for group in self._groups(paths):
                if len(group) == 1:
                    kept[group[0]] = ""
                    continue
                aside = f"{STAGING}/joined-{len(kept)}.parquet"
                self._join(group, aside)
                begin = f"{directory}/part-{last.number:08}-joined-".lstrip("/")
                names = (f"{begin}{number:05}.parquet" for number in count(len(kept)))
                kept[next(name for name in names if name not in known and name not in kept)] = aside
                removed += group
        if not removed:
            return None
        rows, log_bytes = (sum(getattr(item, name) for item in manifests) for name in ("row_count", "log_bytes"))
        spans = [end for item in manifests for end in item.ends]
        return Manifest(last.number, last.places, kept, rows, log_bytes, spans, removed)

    def _groups(self, paths: Sequence[str]) -> list[list[str]]:
        groups, filled, columns = list[list[str]](), MERGED_FILE_BYTES, None
        for path in paths:
            size = self._target.size_bytes(path)
            if size >= SMALL_FILE_BYTES:
                groups.append([path])
                filled = MERGED_FILE_BYTES
                continue
            before, columns = columns, self._columns(path)
            if filled + size > MERGED_FILE_BYTES or columns != before:
                groups.append([path])
                filled = size
            else:
                groups[-1].append(path)
                filled += size
        return groups

    def _columns(self, path: str) -> Any:
        with self._target.open_input(path) as file:
            return pq.read_schema(file)

    def _join(self, paths: Sequence[str], aside: str) -> None:
        writer = None
        with self._target.open_output(aside) as stream:
            for path in paths:
                with self._target.open_input(path) as file, pq.ParquetFile(file) as source:
                    writer = writer or pq.ParquetWriter(stream, source.schema_arrow, compression="zstd")
                    for batch in source.iter_batches():
                        writer.write_batch(batch)
            assert writer is not None
            writer.close()
        self._target.sync(aside)

    def rows_of(self, manifest: Manifest, stretches: Sequence[Sequence[Stretch]] | None) -> Iterator[Any]:
        """Read the files of a batch; of joined ones only the row groups that have a stretch."""
        for wanted in stretches if stretches is not None and manifest.spans else [None]:
            by_columns = dict[Any, list[Any]]()
            for path in manifest.files:
                part = self._read(path, wanted)
                if part.num_rows:
                    columns = frozenset((field.name, str(field.type)) for field in part.schema)
                    by_columns.setdefault(columns, []).append(part)
            for parts in by_columns.values():
                yield pa.concat_tables([part.select(parts[0].column_names) for part in parts])

    def _read(self, path: str, wanted: Sequence[Stretch] | None) -> Any:
        values = dict(piece.split("=", 1) for piece in path.split("/")[:-1])
        named = "brokerName" in values
        if wanted is not None and named:
            name = None if values["brokerName"] == UNNAMED else unquote(values["brokerName"])
            wanted = [item for item in wanted if item.broker_name in (None, name)]
        with self._target.open_input(path) as file:
            part = pq.read_table(file, filters=None if wanted is None else inside(wanted, by_name=not named))
        for name in ("topic", "brokerName"):
            if name in values:
                text = None if values[name] == UNNAMED else unquote(values[name])
                part = part.append_column(name, pa.array([text] * part.num_rows, pa.string()))
        return part


def inside(wanted: Sequence[Stretch], *, by_name: bool) -> Any:
    """Arrow expression of the rows of these stretches."""
    found = pc.scalar(False)
    for item in wanted:
        part = (pc.field("physicalOffset") >= item.low) & (pc.field("physicalOffset") < item.high)
        if by_name and item.broker_name is not None:
            part &= pc.field("brokerName") == item.broker_name
        found = found | part
    return found


def _by_directory(manifests: Sequence[Manifest]) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for manifest in manifests:
        for path in manifest.files:
            found.setdefault(path.rpartition("/")[0], []).append(path)
    return found


class ParquetRows:
    """The Parquet files of one batch, written aside."""

    def __init__(self, target: ArchiveFiles, by: Sequence[str], number: int) -> None:
        self._target, self._by, self._number = target, by, number
        self._open: dict[str, tuple[str, Any, Any]] = {}
        """Path aside, stream and writer of each directory; the one that was written last stands last."""
        self.files: dict[str, str] = {}
        self.row_count = 0

    def add(self, batch: Any) -> None:
        """Write each row to the file of its directory."""
        self.row_count += batch.num_rows
        keys = [part_of(batch, name).dictionary_encode() for name in self._by]
        codes = np.zeros(batch.num_rows, np.int64)
        for key in keys:
            codes = codes * len(key.dictionary) + np.asarray(key.indices)
        kept = batch.drop_columns([name for name in self._by if name in batch.schema.names])
        for code in np.unique(codes):
            places = np.flatnonzero(codes == code)
            texts = (key[int(places[0])].as_py() for key in keys)
            directory = "/".join(f"{name}={escaped(text)}" for name, text in zip(self._by, texts, strict=True))
            self._writer(directory, kept.schema).write_batch(kept.take(pa.array(places)))

    def _writer(self, directory: str, schema: Any) -> Any:
        found = self._open.pop(directory, None)
        if found is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            aside = f"{STAGING}/{self._number}-{len(self.files)}.parquet"
            stream = self._target.open_output(aside)
            found = aside, stream, pq.ParquetWriter(stream, schema, compression="zstd")
            self.files[f"{directory}/part-{self._number:08}-{len(self.files):05}.parquet".lstrip("/")] = aside
        self._open[directory] = found
        return found[2]

    def _close(self, directory: str) -> None:
        aside, stream, writer = self._open.pop(directory)
        writer.close()
        stream.close()
        self._target.sync(aside)

    def close(self) -> None:
        """Make all files durable."""
        for directory in list(self._open):
            self._close(directory)


def part_of(batch: Any, name: str) -> Any:
    """Text of one part of the directory's name, for each row."""
    if name in ("day", "hour"):
        return pc.fill_null(pc.strftime(batch["storeTimestamp"], format=BY[name]), UNNAMED)
    return pc.fill_null(batch[name], UNNAMED)


def escaped(text: str) -> str:
    """A value in a directory's name, as Hive and Spark write it."""
    return quote(text, safe=" !$&()+,-.;@_`|~")
