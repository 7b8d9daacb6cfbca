"""`rmqha spark archive`: the log as Parquet files that grow, each message once; and back into a store. Needs no Java.

A batch is a range of each log. Its files are written aside, in `_rmqha/staging`. Then its manifest, which names the
files and the place in each log where the batch ends, becomes `_rmqha/pending.json`: from here on the batch counts. Its
files are moved to their places, and the manifest to `_rmqha/batches`. Whoever is killed before the manifest leaves what
the next run removes, and after it what the next run finishes, so no message is lost or comes twice. The places are a
query's (`rmqha.scan.position`): a log that was cut below what was archived is told, and another replica's path goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import Known, StoreView, by_group, prune, read_store
from rmqha.scan.position import Position, between, end_within, has_reached, position_at
from rmqha.spark.options import ReadOptions

VERSION = 1
STATE, STAGING, BATCHES = "_rmqha", "_rmqha/staging", "_rmqha/batches"
PENDING, LAYOUT = "_rmqha/pending.json", "_rmqha/archive.json"
BY = {"topic": "topic", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "brokerName": "brokerName"}
"""Parts of the directories, in Hive's form; day and hour are UTC's, of storeTimestamp."""
BATCH_BYTES = 256 * 1024 * 1024
OPEN_FILES_MAX = 128
UNNAMED = "__HIVE_DEFAULT_PARTITION__"
"""Stands in a directory's name for a null, as Hive and Spark have it."""


@dataclass(frozen=True, slots=True)
class ArchivedEnd:
    """The end of what was archived of a log."""

    physical_offset: int
    epoch: int = -1
    epoch_start: int = -1
    broker_id: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch: where it ends in each log (by cluster#brokerName, or by directory), and its files with where each was
    written aside."""

    number: int
    places: dict[str, ArchivedEnd]
    files: dict[str, str]
    row_count: int
    log_bytes: int
    version: int = VERSION

    @classmethod
    def parse(cls, content: bytes, where: str) -> Manifest:
        """StoreError for content that is none, or of a newer version."""
        try:
            given = json.loads(content)
            if int(given["version"]) > VERSION:
                raise StoreError(f"{where} has version {given['version']}, this release reads up to {VERSION}")
            places = {name: ArchivedEnd(**place) for name, place in given["places"].items()}
            return cls(**{**given, "places": places})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where}: expected a batch of an archive, found other content ({error})") from None


@dataclass(slots=True)
class ArchiveReport:
    """Numbers of a run."""

    batch_count: int = 0
    row_count: int = 0
    log_bytes: int = 0
    file_count: int = 0
    seconds: float = 0.0
    finished_batch: int | None = None
    """The batch that a run before this one had left half done."""
    places: dict[str, int] = field(default_factory=dict)
    """Physical offset up to which each log is archived."""


class ArchiveFiles:
    """The archive's files: a directory, s3://…, or what fsspec knows. Paths are relative."""

    def __init__(self, address: str) -> None:
        """UsageError for an address that cannot be used."""
        self.address = address
        try:
            if "://" in address:
                self._files, self._root = pyarrow.fs.FileSystem.from_uri(address)
            else:
                self._files, self._root = pyarrow.fs.LocalFileSystem(), str(Path(address).absolute())
        except (pa.ArrowInvalid, OSError):
            self._files, self._root = _of_fsspec(address)
        self.is_local = isinstance(self._files, pyarrow.fs.LocalFileSystem)

    def local_path(self, path: str) -> Path:
        """The path of a file on this machine."""
        assert self.is_local
        return Path(self._root, path)

    def exists(self, path: str) -> bool:
        """Is there such a file or directory?"""
        return bool(self._files.get_file_info(self._at(path)).type != pyarrow.fs.FileType.NotFound)

    def names(self, path: str) -> list[str]:
        """Names of the files in a directory."""
        selected = pyarrow.fs.FileSelector(self._at(path), allow_not_found=True)
        return sorted(item.base_name for item in self._files.get_file_info(selected) if item.is_file)

    def read(self, path: str) -> bytes:
        """A whole file."""
        with self._files.open_input_stream(self._at(path)) as file:
            return bytes(file.read())

    def open_input(self, path: str) -> Any:
        """Open a file for reading."""
        return self._files.open_input_file(self._at(path))

    def open_output(self, path: str) -> Any:
        """Open a new file for writing."""
        self.make_parent(path)
        return self._files.open_output_stream(self._at(path))

    def make_parent(self, path: str) -> None:
        """Make the directory of a file."""
        self._files.create_dir(self._at(path).rpartition("/")[0], recursive=True)

    def write(self, path: str, content: bytes) -> None:
        """Whole or not at all, and durable on a local disk."""
        aside = f"{path}.tmp" if self.is_local else path
        with self.open_output(aside) as file:
            file.write(content)
        if self.is_local:
            self.sync(aside)
            self.move(aside, path)

    def move(self, source: str, target: str) -> None:
        """Move a file, durably on a local disk."""
        self.make_parent(target)
        self._files.move(self._at(source), self._at(target))
        if self.is_local:
            _sync(self.local_path(target).parent)

    def sync(self, path: str) -> None:
        """Make a file of a local disk durable."""
        if self.is_local:
            _sync(self.local_path(path))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._files.delete_file(self._at(path))

    def clear(self, path: str) -> None:
        """Remove all files of a directory."""
        if self.exists(path):
            self._files.delete_dir_contents(self._at(path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other archivers of this machine out; elsewhere nobody is. UsageError if one is at work."""
        if not self.is_local:
            yield
            return
        self.make_parent(f"{STATE}/lock")
        with self.local_path(f"{STATE}/lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.address} is being written by another archiver: wait for its end") from None
            yield

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else self._root


def _of_fsspec(address: str) -> tuple[Any, str]:
    try:
        import fsspec

        filesystem, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{address} cannot be written to: {error}") from None
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem)), root


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    ) -> None:
        """UsageError for wrong options, or a target that is archived otherwise."""
        self._target, self._by, self._batch_bytes, self._say = target, tuple(by), batch_bytes, say
        self._options = ReadOptions.parse({**options, "paths": json.dumps(list(paths))})
        self._known = {path: Known() for path in self._options.paths}
        for name in self._by:
            if name not in BY:
                raise UsageError(f"an archive is parted by {', '.join(BY)}, not by {name}")

    def run(self) -> ArchiveReport:
        """Archive all that is committed now. StoreError for damage, or a log that was cut below what was archived."""
        started, report = time.monotonic(), ArchiveReport()
        with self._target.locked():
            self._check_layout()
            last = self._resume(report)
            while True:
                done = self._batch(last, report)
                if done is None:
                    break
                last = done
        report.seconds = time.monotonic() - started
        report.places = {name: place.physical_offset for name, place in last.places.items()} if last else {}
        return report

    def _check_layout(self) -> None:
        layout = {"version": VERSION, "by": list(self._by)}
        if not self._target.exists(LAYOUT):
            self._target.write(LAYOUT, json.dumps(layout).encode())
            return
        known = json.loads(self._target.read(LAYOUT))
        if known != layout:
            raise UsageError(f"{self._target.address} is an archive of another form, {known}: not {layout}")

    def _resume(self, report: ArchiveReport) -> Manifest | None:
        """The last batch that counts; what a killed run had left is finished or removed."""
        if self._target.exists(PENDING):
            pending = Manifest.parse(self._target.read(PENDING), f"{self._target.address}/{PENDING}")
            self._settle(pending)
            report.finished_batch = pending.number
        self._target.clear(STAGING)
        manifests = batches(self._target)
        return manifests[-1] if manifests else None

    def _batch(self, last: Manifest | None, report: ArchiveReport) -> Manifest | None:
        """The next batch, None if there is nothing to archive."""
        places = {} if last is None else dict(last.places)
        ranges: list[StoreView] = []
        groups = by_group(self._options.open(self._known))
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
        files = _Files(self._target, self._by, number)
        for item in ranges:
            for batch in self._rows(item):
                files.add(batch)
        files.close()
        log_bytes = sum(item.size_bytes for item in ranges)
        made = Manifest(number, places, files.made, files.row_count, log_bytes)
        self._target.write(PENDING, _encode(made))
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
        """Move a batch that counts to its places. May be done again after any part of it."""
        for path, aside in manifest.files.items():
            if self._target.exists(aside):
                self._target.move(aside, path)
            elif not self._target.exists(path):
                raise StoreError(f"{self._target.address}/{path} is gone, and so is {aside}: batch {manifest.number}")
        self._target.write(f"{BATCHES}/{manifest.number:020}.json", _encode(manifest))
        self._target.remove(PENDING)


def _encode(manifest: Manifest) -> bytes:
    return json.dumps(asdict(manifest), ensure_ascii=False).encode()


def _name(view: StoreView) -> str:
    return view.root if view.broker_name is None else f"{view.cluster}#{view.broker_name}"


def batches(target: ArchiveFiles) -> list[Manifest]:
    """The batches that an archive has, in order. StoreError for one that cannot be read."""
    names = [name for name in target.names(BATCHES) if name.endswith(".json")]
    return [Manifest.parse(target.read(f"{BATCHES}/{name}"), f"{target.address}/{BATCHES}/{name}") for name in names]


class _Files:
    """The Parquet files of one batch, written aside."""

    def __init__(self, target: ArchiveFiles, by: Sequence[str], number: int) -> None:
        self._target, self._by, self._number = target, by, number
        self._open: dict[str, tuple[str, Any, Any]] = {}
        """By directory: the path aside, the stream, the writer; the one that was written last stands last."""
        self.made: dict[str, str] = {}
        self.row_count = 0

    def add(self, batch: Any) -> None:
        """Write each row to the file of its directory."""
        self.row_count += batch.num_rows
        keys = [_part(batch, name) for name in self._by]
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
            aside = f"{STAGING}/{self._number}-{len(self.made)}.parquet"
            stream = self._target.open_output(aside)
            found = aside, stream, pq.ParquetWriter(stream, schema, compression="zstd")
            self.made[f"{directory}/part-{self._number:08}-{len(self.made):05}.parquet".lstrip("/")] = aside
        self._open[directory] = found
        return found[2]

    def _close(self, directory: str) -> None:
        aside, stream, writer = self._open.pop(directory)
        writer.close()
        stream.close()
        self._target.sync(aside)

    def close(self) -> None:
        for directory in list(self._open):
            self._close(directory)


def _part(batch: Any, name: str) -> Any:
    """The texts of one part of the directories, dictionary-encoded."""
    if name in ("day", "hour"):
        times = pc.strftime(batch["storeTimestamp"], format=BY[name])
        return pc.fill_null(times, UNNAMED).dictionary_encode()
    return pc.fill_null(batch[name], UNNAMED).dictionary_encode()


def escaped(text: str) -> str:
    """A value in a directory's name, as Hive and Spark write it."""
    return quote(text, safe=" !$&()+,-.;@_`|~")


# --- and back ---------------------------------------------------------------------------------------------------------


def tables(target: ArchiveFiles, topics: Sequence[str] = ()) -> Iterator[Any]:
    """The messages of each batch as one Arrow table, in the order of each log; of these topics only, if any are named.
    UsageError if there is no archive."""
    if not target.exists(LAYOUT):
        raise UsageError(f"{target.address} is no archive: it has no {LAYOUT}")
    for manifest in batches(target):
        parts = []
        for path in manifest.files:
            values = dict(piece.split("=", 1) for piece in path.split("/")[:-1])
            topic = unquote(values["topic"]) if "topic" in values else None
            if topics and topic is not None and topic not in topics:
                continue
            with target.open_input(path) as file:
                part = pq.read_table(file)
            if topic is not None:
                part = part.append_column("topic", pa.array([topic] * part.num_rows, pa.string()))
            if "brokerName" in values:
                name = None if values["brokerName"] == UNNAMED else unquote(values["brokerName"])
                part = part.append_column("brokerName", pa.array([name] * part.num_rows, pa.string()))
            parts.append(part if not topics else part.filter(pc.is_in(part["topic"], pa.array(topics, pa.string()))))
        if parts:
            found = pa.concat_tables([part.select(parts[0].column_names) for part in parts])
            order = [("brokerName", "ascending"), ("physicalOffset", "ascending"), ("queueOffset", "ascending")]
            yield found.sort_by(order)


def check_columns(columns: Sequence[str]) -> None:
    """UsageError if an archive of these columns could not be restored in order."""
    lacking = [name for name in ("topic", "storeTimestamp", "physicalOffset", "queueOffset") if name not in columns]
    if lacking:
        raise UsageError(f"an archive needs the columns {', '.join(lacking)} too")
