"""Data plane: the log's old end moves up. Files leave in four steps: forgotten in memory, renamed, unlinked, freed.

A crash between any two leaves a log without a hole: files are renamed oldest first, and only after the progress file
names a position in what stays. They go into their own directory, where no program looks for log files (RocketMQ cannot
start with a strange name in `commitlog`), and the next start finds them there. Whoever holds a view keeps its bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from errno import ENOSPC, EXDEV
from threading import Lock
from typing import NamedTuple

from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.port import Disk, Tracer
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.mapped_file import MappedFile
from rmqha.store.log.record import BadRecordError, locate
from rmqha.store.log.retention import RetainedFile
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.meta.problem import disk_errors
from rmqha.store.queue.dispatcher import CommitLogDispatcher, DetachedFile

DIRECTORY = "rmqha.deleted"


class _PendingUnlink(NamedTuple):
    path: str
    file: MappedFile | None
    since_ms: int
    due_ms: int


class Trimmer:
    """Removal of the log's oldest files, and of what is derived from their records. `trim`, `cut`, `trim_derived`,
    `trim_epochs`, `oldest` and `forget` belong to the store's thread; `schedule_unlink` may run in another. `flush` is
    the store's lock over files."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        derived: Sequence[CommitLogDispatcher],
        epochs: EpochFile,
        flush: Lock,
        tracer: Tracer,
    ) -> None:
        self._disk = disk
        self._log = log
        self._derived = derived
        self._epochs = epochs
        self._flush = flush
        self._tracer = tracer
        self._detached: deque[MappedFile] = deque()
        self._derived_detached: deque[DetachedFile] = deque()
        self._pending_unlinks: deque[_PendingUnlink] = deque()
        self._derived_min = -1
        self._newest: dict[int, int] = {}

    def load(self) -> list[str]:
        """Find what a crash left on its way out. Returns one sentence if there is any."""
        with disk_errors(self._disk, DIRECTORY, "list the directory"):
            names = self._disk.list(DIRECTORY)
        self._pending_unlinks.extend(_PendingUnlink(f"{DIRECTORY}/{name}", None, 0, 0) for name in names)
        if not names:
            return []
        return [f"{DIRECTORY}: {len(names)} old log files that were on their way out are removed now."]

    # --- read -------------------------------------------------------------------------------------------------------
    def oldest(
        self, count: int, last_stored_at_ms: int, wall_ms: int
    ) -> tuple[list[RetainedFile], RetainedFile | None]:
        """The oldest files, at most `count`, and the active one if it holds anything. `last_stored_at_ms` is the store
        time of the log's newest record."""
        log, found = self._log, list[RetainedFile]()
        for file in log.files.files[:-1][:count]:
            if file.end_offset > log.end_offset:
                break
            newest = self._newest_before(file, last_stored_at_ms, wall_ms)
            found.append(RetainedFile(file.start_offset, file.end_offset, newest))
        active = log.files.find(log.end_offset) or (log.files.files[-1] if log.files.files else None)
        if active is None or active.start_offset == log.end_offset:
            return found, None
        return found, RetainedFile(
            active.start_offset, active.end_offset, self._no_later(active, last_stored_at_ms, wall_ms)
        )

    def _newest_before(self, file: MappedFile, last_stored_at_ms: int, wall_ms: int) -> int:
        """Store time of the first record behind `file`: none in it is newer."""
        known = self._newest.get(file.start_offset)
        if known is None:
            if file.end_offset == self._log.end_offset:
                return self._no_later(file, last_stored_at_ms, wall_ms)
            view, start, end = self._log.file_view(file.end_offset)
            try:
                stored = locate(view, 0, end, start)[10]
            except BadRecordError:
                stored = 0
            known = self._newest[file.start_offset] = self._no_later(file, stored, wall_ms)
        return known

    def _no_later(self, file: MappedFile, stored_at_ms: int, wall_ms: int) -> int:
        """Store time from the records; the file's own time if no record tells it, or tells a time in the future."""
        if 0 < stored_at_ms <= wall_ms:
            return stored_at_ms
        with disk_errors(self._disk, file.path, "read its time"):
            return self._disk.modified_at_ms(file.path)

    @property
    def pending_deletion_bytes(self) -> int:
        """Size of the files that are no longer part of the log but still on the disk."""
        return (len(self._detached) + len(self._pending_unlinks)) * self._log.file_size_bytes

    # --- change -----------------------------------------------------------------------------------------------------
    def trim(self, start_offset: int) -> None:
        """The log begins at `start_offset`, the start of a file that stays; nothing is removed from the disk yet."""
        detached = self._log.files.detach_below(start_offset)
        for file in detached:
            self._newest.pop(file.start_offset, None)
        self._detached.extend(detached)
        self.trim_derived()

    def cut(self, end_offset: int) -> None:
        """The log was cut to `end_offset`: of files that reach so far other records may tell the age."""
        size_bytes = self._log.file_size_bytes
        self._newest = {start: newest for start, newest in self._newest.items() if start + size_bytes < end_offset}

    def trim_derived(self) -> None:
        """Trim what is derived from records that are gone; also what a crash kept from going."""
        if self._derived_min != self._log.min_offset:
            self._derived_min = self._log.min_offset
            for derived in self._derived:
                self._derived_detached.extend(derived.trim(self._derived_min))

    def trim_epochs(self) -> int:
        """Drop the epoch entries of removed files, once these are gone. Returns the number of dropped entries."""
        return 0 if self._detached else self._epochs.drop_below(PhyOffset(self._log.min_offset))

    def forget(self) -> None:
        """All files of the log and what is derived from it were set aside, those on their way out too."""
        self._detached.clear()
        self._derived_detached.clear()
        self._newest.clear()

    @property
    def waits(self) -> bool:
        """Files still bear their names."""
        return bool(self._detached)

    def schedule_unlink(self, now_ms: int, timeout_ms: int, retry_ms: int) -> bool:
        """Rename all files that wait, then unlink one; True if another is due. A file that a reader uses is left for up
        to `timeout_ms`. An unlink that the disk refuses is traced and tried again after `retry_ms`."""
        try:
            self._rename_all(now_ms)
            self._remove_derived()
        except StoreError as error:
            self._tracer.event("old_files_not_removed", reason=str(error))
            return False
        for _ in range(len(self._pending_unlinks)):
            pending = self._pending_unlinks.popleft()
            if pending.due_ms > now_ms or (self._in_use(pending) and now_ms < pending.since_ms + timeout_ms):
                self._pending_unlinks.append(pending)
                continue
            self._unlink(pending, now_ms + retry_ms)
            break
        return any(pending.due_ms <= now_ms and not self._in_use(pending) for pending in self._pending_unlinks)

    @staticmethod
    def _in_use(pending: _PendingUnlink) -> bool:
        return pending.file is not None and not pending.file.close()

    def _rename_all(self, now_ms: int) -> None:
        while self._detached:
            with self._flush:
                if not self._detached:
                    return
                file = self._detached[0]
                target = f"{DIRECTORY}/{file.path.rpartition('/')[2]}"
                with disk_errors(self._disk, file.path, "rename the file"):
                    if self._disk.exists(file.path):
                        self._move(file.path, target)
                self._detached.popleft()
                self._pending_unlinks.append(_PendingUnlink(target, file, now_ms, now_ms))

    def _move(self, path: str, target: str) -> None:
        try:
            self._disk.make_dirs(DIRECTORY)
            self._disk.rename(path, target)
        except OSError as error:
            if error.errno not in (ENOSPC, EXDEV):
                raise
            self._disk.remove(path)  # not even a name fits any more, or the log lies on a disk of its own

    def _remove_derived(self) -> None:
        while self._derived_detached:
            with self._flush:
                if not self._derived_detached:
                    return
                file = self._derived_detached[0]
                file.close()
                with disk_errors(self._disk, file.path, "remove the file"):
                    if self._disk.exists(file.path):
                        self._disk.remove(file.path)
                self._derived_detached.popleft()

    def _unlink(self, pending: _PendingUnlink, retry_at_ms: int) -> None:
        try:
            with disk_errors(self._disk, pending.path, "remove the file"):
                if self._disk.exists(pending.path):
                    self._disk.remove(pending.path)
        except StoreError as error:
            self._tracer.event("old_files_not_removed", reason=str(error))
            self._pending_unlinks.append(pending._replace(due_ms=retry_at_ms))
