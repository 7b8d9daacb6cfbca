"""`df.write.format("commitlog")`: a DataFrame becomes a store that our brokers and Apache RocketMQ's open.

The tasks make records of their rows and put them aside, as Arrow files beside the target. One log has one order, so the
commit, in the driver, gives them their places in the order of the partitions, appends them in large pieces, dispatches
all of it into queues and index, and closes the store. A write that fails leaves the store as it was. If the driver was
killed, the next one who opens the store cuts the write off, and readers do not see it (`rmqha.write`). The target must
be a directory that the driver and the tasks share.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmqha.host.disk import HostDisk
from rmqha.host.kernel_choice import choose_kernel
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.model.error import UsageError
from rmqha.spark.errors import sentences
from rmqha.spark.sink.records import MADE, append, made
from rmqha.spark.write_rows import check_schema, written_as
from rmqha.store.config import StoreConfig
from rmqha.store.meta import config_file, epoch_file, identity_file
from rmqha.store.store import Store
from rmqha.wire import lenient_json

RESTORE_MARK = "rmqha.restore"
"""Name of the file with the progress of a restore (`rmqha.spark.lake.restore`)."""
NEW_STORE = frozenset(("lock", "abort", "rmqha.boot", "rmqha.end", "rmqha.reserve", "rmqha.write", RESTORE_MARK))
"""Names that may be in a store to which nothing was appended: a write may have been killed so early."""
STALE_S = 24 * 3600
"""Time (s) after which a later write removes rows aside that a killed driver has left."""


@dataclass
class StagedPart(WriterCommitMessage):
    """Files that one task put aside."""

    partition: int
    path: str
    row_count: int


class _NoTrace:
    def event(self, name: str, **fields: Any) -> None:
        """Drop the event: a library keeps no log, and raises what must be told."""


class CommitLogWriter(DataSourceArrowWriter):
    """Writer of a DataFrame into a new or an existing store."""

    def __init__(self, path: str, config: StoreConfig, *, overwrite: bool) -> None:
        """Check the target. Raises UsageError, one sentence, if nothing can be written there."""
        self._root = Path(path)
        self._config = config
        if overwrite:
            raise UsageError(f"commitlog does not overwrite {self._root}: remove it yourself, or use mode('append')")
        names = {item.name for item in self._root.iterdir()} if self._root.exists() else set()
        if not names <= NEW_STORE and not (self._root / "commitlog").is_dir():
            raise UsageError(f"{self._root} is not a store and not empty: choose another directory")
        _check_no_member(self._root)
        self._staging = self._root.parent / f"{self._staged}{uuid.uuid4().hex}"

    @property
    def _staged(self) -> str:
        """Prefix of the name of each directory with rows for this store."""
        return f".{self._root.name}.rmqha-write-"

    @sentences()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Put a task's rows aside in a file beside the store; runs in the task."""
        context = TaskContext.get()
        assert context is not None
        self._staging.mkdir(parents=True, exist_ok=True)
        path = self._staging / f"{context.partitionId()}-{context.taskAttemptId()}.arrow"
        return StagedPart(context.partitionId(), str(path), self._stage(path, iterator))

    def _stage(self, path: Path, batches: Iterable[Any]) -> int:
        """Put the records of these rows into a file. Returns their number."""
        now_ms, row_count = time.time_ns() // 1_000_000, 0
        with path.open("wb") as file, pa.ipc.new_stream(file, MADE) as sink:
            for batch in batches:
                for piece in made(batch, now_ms, self._config.max_message_size):
                    sink.write_batch(piece)
                row_count += batch.num_rows
        return row_count

    def write_table(self, table: Any) -> None:
        """Append an Arrow table's rows, without Spark. UsageError for columns or rows that cannot be written."""
        check_schema({field.name: written_as(field.type) for field in table.schema})
        self._staging.mkdir(parents=True, exist_ok=True)
        path = self._staging / "0.arrow"
        try:
            parts: list[WriterCommitMessage | None] = [StagedPart(0, str(path), self._stage(path, table.to_batches()))]
        except BaseException:
            self._discard()
            raise
        self.commit(parts)

    @sentences()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what all tasks have put aside, and remove it."""
        parts = sorted((item for item in messages if isinstance(item, StagedPart)), key=lambda item: item.partition)
        try:
            self._append([item for item in parts if item.row_count])
        finally:
            self._discard()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have put aside."""
        self._discard()

    def _discard(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        oldest = time.time() - STALE_S
        for left in self._root.parent.glob(f"{glob.escape(self._staged)}*"):
            with suppress(FileNotFoundError):  # another write may remove it too
                if left.stat().st_mtime < oldest:
                    shutil.rmtree(left, ignore_errors=True)

    def _append(self, parts: list[StagedPart]) -> None:
        existed = self._root.exists()
        is_empty = not existed or all(item.name == RESTORE_MARK for item in self._root.iterdir())
        self._root.mkdir(parents=True, exist_ok=True)
        disk = HostDisk(self._root.absolute())
        try:
            kernel = choose_kernel().kernel
            try:
                store = Store.open(disk, self._config, _NoTrace(), process_id=os.getpid(), kernel=kernel)
            except UsageError:
                is_empty = False  # another write may have come first: what is there now is not this one's
                raise
            try:
                _check_no_member(self._root)  # again: now nobody else has it
                store.begin_write()
                _add_topics(disk, _append_parts(store, parts, kernel))
                store.end_write()
            except BaseException:
                store.undo_write()
                raise
            finally:
                store.close()
        except BaseException:
            if is_empty:
                _remove_content(self._root)
                if not existed:
                    self._root.rmdir()
            raise


def _remove_content(directory: Path) -> None:
    for item in directory.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        else:
            item.unlink()


def _check_no_member(root: Path) -> None:
    """Raise UsageError for a store of a group: bytes that its master did not write would fork its log."""
    for name in (identity_file.PATH, identity_file.PENDING_PATH, epoch_file.PATH):
        if (root / name).exists():
            raise UsageError(
                f"{root} belongs to a member of a broker group ({name}), whose log only its master may write: send the "
                "messages to the group, or write to another directory"
            )


def _append_parts(store: Store, parts: list[StagedPart], kernel: BatchKernel) -> dict[str, int]:
    """Append the parts; the result is the number of queues of each topic."""
    queue_counts: dict[str, int] = {}
    for part in parts:
        with pa.memory_map(part.path) as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                append(store, batch, queue_counts, kernel)
    return queue_counts


def _add_topics(disk: HostDisk, queue_counts: Mapping[str, int]) -> None:
    """Add topics to the table of the store, for brokers serve only those; known ones stay as they are."""
    table = config_file.load(disk, "topics", dict).value or {}
    topics = dict(table.get("topicConfigTable") or {})
    for name, count in queue_counts.items():
        known = topics.get(name) or {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        queues = {key: max(count, int(known.get(key, 0))) for key in ("readQueueNums", "writeQueueNums")}
        topics[name] = {**known, **queues, "topicName": name}
    version = dict(table.get("dataVersion") or {"stateVersion": 0, "timestamp": 0, "counter": 0})
    version["counter"] = int(version.get("counter", 0)) + 1
    version["timestamp"] = time.time_ns() // 1_000_000
    data = lenient_json.dumps({**table, "dataVersion": version, "topicConfigTable": topics})
    config_file.replace(disk, "topics", data)
