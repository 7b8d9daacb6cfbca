"""Data plane: the store of one replica: log, queues, epochs, and what keeps them whole over crashes.

Implements `rmqha.port.ReplicaLog` for the HA machine and the calls of the broker's send and pull paths. One thread uses
it; only `sync` may run in another at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from threading import Lock

from rmqha.kernel.batch_kernel import BatchKernel, SendResults
from rmqha.kernel.sound_records import skip_sound
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import NoRoomError, StoreError
from rmqha.model.offset import Buffer, Epoch, PhyOffset, QueueOffset
from rmqha.port import Disk, Tracer
from rmqha.store.appender import AppendContext, Appended, AppendedBatch, Appender, EncodedRecords, SendSource
from rmqha.store.cold_range import Bounds, ColdRange, log_loader
from rmqha.store.config import StoreConfig
from rmqha.store.index.index_service import IndexService
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.integrity.incoming import IncomingRecords
from rmqha.store.integrity.record_starts import RecordStarts, StoredRecord
from rmqha.store.integrity.repair import RecordRepair
from rmqha.store.integrity.tail import cut_tail, judge_tail, make_durable
from rmqha.store.layout import lock, next_replaced, set_others_aside
from rmqha.store.log.allocate_mapped_file import AllocateMappedFileService
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import EncodedBatch, Located, NewMessage, Record
from rmqha.store.log.retention import RetainedFile
from rmqha.store.meta import epoch_file, write_mark
from rmqha.store.meta.boot_file import BootFile, LastStop
from rmqha.store.meta.checkpoint import Checkpoint, CheckpointFile, ProgressFile
from rmqha.store.meta.epoch_file import EpochFile, HighestEpochFile
from rmqha.store.meta.failure import StoreFailure
from rmqha.store.meta.problem import disk_errors, place, room_errors
from rmqha.store.queue.batch_consume_queue import BatchConsumeQueues
from rmqha.store.queue.bulk import dispatch, dispatch_in_bulk
from rmqha.store.queue.consume_queue import DIRECTORY as QUEUE_DIRECTORY
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.queue.dispatch_service import DispatchService, QueueOffsets, valid_topic, walk
from rmqha.store.queue.dispatcher import CommitLogDispatcher
from rmqha.store.queue.queue_min_offsets import QueueMinOffsets
from rmqha.store.reader import (
    NO_DISK_LIMITS,
    DiskLimits,
    IsWhole,
    PullResult,
    Reader,
    RecordPredicate,
    Unit,
    any_record,
)
from rmqha.store.recovery import Recovery, batch_topics, check_start, find_end, first_timestamp
from rmqha.store.trimmer import Trimmer

SAVE_INTERVAL_MS = 1000
"""Store time between two saves of queues, checkpoint and progress."""
SAVE_INTERVAL_BYTES = 64 * 1024 * 1024
DISPATCH_STEP_BYTES = 4 * 1024 * 1024
REBUILD_BYTES = 64 * 1024 * 1024
"""Bytes to be dispatched at an opening from which on it is done in one go, as nobody waits for a turn in between."""


class Store:
    """The store of one replica; `Store.open` makes one."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        tracer: Tracer,
        release: Callable[[], None],
        kernel: BatchKernel | None = None,
    ) -> None:
        self._disk = disk
        self._config = config
        self._tracer = tracer
        self._release = release
        self._commit_least_bytes = config.commit_least_bytes
        self._skip_sound = skip_sound if kernel is None else kernel.skip_sound
        self._log = CommitLog(disk, config.mapped_file_size_commit_log, config.pool_bytes)
        self._queues = ConsumeQueues(disk, config.mapped_file_size_consume_queue, tracer, config.delay_levels_ms)
        self.grown = self._queues.grown
        """Queues that have got entries, in that order; whoever serves their waiting pulls takes them out."""
        self._flush = Lock()
        """Held by whoever syncs, cuts or closes files."""
        self._batch_queues = BatchConsumeQueues(
            disk, config.mapper_file_size_batch_consume_queue, self._queues, self._log, self._flush, tracer
        )
        self._queues.batch_topics = self._batch_queues.topics
        self.queue_min_offsets = QueueMinOffsets(disk, self._queues, self._batch_queues)
        self._derived: list[CommitLogDispatcher] = [self._queues, self._batch_queues]
        """Everything that is made from the log: whatever happens to the log happens to each of these."""
        self._offsets = QueueOffsets(self._log, self._queue_end)
        self._dispatch_service = DispatchService(self._log, self._derived, self._offsets.dispatch_cache, tracer, kernel)
        self.index = IndexService(
            disk,
            self._log,
            config,
            self._offsets.dispatch_cache,
            tracer,
            lambda: self._dispatch_service.position,
            self._lower_index,
            kernel,
        )
        self._epochs = EpochFile(disk)
        self._highest_epoch = HighestEpochFile(disk)
        self._boot = BootFile(disk)
        self._failure = StoreFailure(self._boot, self._log.mark, tracer)
        self._checkpoint = CheckpointFile(disk)
        self._progress = ProgressFile(disk)
        self._appender = Appender(
            self._log,
            self._offsets,
            config.max_message_size,
            self._batch_queues.topics,
            enabled_append_prop_crc=config.enabled_append_prop_crc,
            is_keyed=config.message_index_enable,
            kernel=kernel,
        )
        self.damage = DamageTable(tracer)
        self._reader = Reader(self._log, self._queues, self._batch_queues, self.damage, kernel)
        self._starts = RecordStarts(self._log, self._queues, self._batch_queues, self._dispatch_service, self.damage)
        self.repair = RecordRepair(self._log, self._starts, self._flush, self._failure, self)
        self._incoming = IncomingRecords(self._log, self, self.damage, self._skip_sound)
        self._trimmer = Trimmer(disk, self._log, [*self._derived, self.index.files], self._epochs, self._flush, tracer)
        self._confirm = self._synced = 0
        self._mark = (0, 0, 0)
        """Dispatched offset, store time of the newest record below it, and number of queue entries."""
        self._saved_at_ms = self._saved_position = 0
        self.allocation = AllocateMappedFileService(self._log, self._failure, tracer)
        self.queue_refusal = ""
        """The reason why the queues have no room for their next entries, "" while they have."""
        self._truncate_hooks: list[Callable[[int], None]] = [self._starts.forget, self.damage.cut]
        self._before_cut_hooks: list[Callable[[int], None]] = []
        self._restart_hooks: list[Callable[[], None]] = []
        self.recovery = Recovery()

    # --- open and close ---------------------------------------------------------------------------------------------
    @classmethod
    def open(
        cls,
        disk: Disk,
        config: StoreConfig,
        tracer: Tracer,
        *,
        process_id: int = 0,
        kernel: BatchKernel | None = None,
    ) -> Store:
        """Lock the directory, recover, and be ready; `recovery.lines` says what was found.

        `process_id` goes into `abort`. With a kernel, what others have appended is dispatched in blocks. Raises
        UsageError (directory in use, foreign, not writable) with nothing written, and StoreError (files that cannot be
        used, with the choices).
        """
        release = lock(disk)
        store = cls(disk, config, tracer, release, kernel)
        try:
            store._recover(process_id)
            store.undo_write()
        except BaseException:
            store.abandon()
            raise
        return store

    def _recover(self, process_id: int) -> None:
        lines = self.recovery.lines
        lines += self._boot.load()
        self._highest_epoch.load()
        lines += self._checkpoint.load()
        lines += self._progress.load(self._checkpoint.value)
        lines += self._trimmer.load()
        lines += self.queue_min_offsets.load()
        lines += self._log.load()
        self._refuse_missing_log()
        last_stop = self.recovery.last_stop = self._boot.last_stop
        progress, checkpoint = self._progress.position, self._checkpoint.value
        self._boot.running(process_id)
        start = self.recovery.checked_from = check_start(self._log, progress, checkpoint, last_stop)
        end = find_end(self._log, start, self.recovery, self._skip_sound)
        if self._log.files.files:
            lines.append(f"After {last_stop.text} the log was checked from {start} to {end}.")
        if end < max(checkpoint.confirm_phy_offset, progress or 0):
            known = f"what was confirmed or synced ({max(checkpoint.confirm_phy_offset, progress or 0)})"
            lines.append(f"The log ends at {end}, below {known}: this replica counts as unclean.")
            self._boot.set_unclean(True)
        trusted = last_stop is LastStop.CLEAN and progress == start
        was_cut = self._progress.cut_offset == end
        written = None if self._progress.is_foreign else self._log.mark.offset
        is_dirty = judge_tail(
            self._disk, self._log, end, self.recovery, last_stop, trusted=trusted, was_cut=was_cut, written=written
        )
        if self.recovery.damaged or self._failure.is_remembered:
            self._boot.set_unclean(True)
        if is_dirty:
            cut_tail(self._log, end, self.recovery, was_cut=was_cut)
        else:
            self._log.end_at(end)
        self._log.opened_end = end
        lines += self._epochs.load(end, is_foreign=self._progress.is_foreign)
        if dropped := self._epochs.drop_beyond(PhyOffset(end)):
            lines.append(f"{dropped} epoch entries that start behind the log's end {end} were dropped.")
        failed = self._failure.is_remembered
        make_durable(self._log, start, end, self.recovery, last_stop, recorded=progress == start, failed=failed)
        if failed:
            self._epochs.rewrite()
            self._highest_epoch.rewrite()
        self._synced = end
        indexed = None if progress is None else self._progress.index_offset
        lines += self.index.recover(indexed, LastStop.POWER_LOST if failed else last_stop)
        self._recover_queues(start, end, last_stop, trusted=progress == start)
        self._failure.recovered()
        for line in lines:
            self._tracer.event("recovery", finding=line)

    def _refuse_missing_log(self) -> None:
        """StoreError for a log of which no file is left, as where its disk was not mounted: what stands beside it would
        be cut down to nothing, and another log begun in the wrong place."""
        known = max(self._progress.position or 0, self._checkpoint.value.confirm_phy_offset)
        if known and not self._log.files.files:
            raise StoreError(
                f"{place(self._disk, LOG_DIRECTORY)} holds no file, but the log was written up to {known}: mount its"
                " disk, or remove this replica's store and let it copy the group's"
            )

    def _recover_queues(self, start: int, end: int, last_stop: LastStop, *, trusted: bool) -> None:
        """Check the queues, then dispatch again what they may miss."""
        lines = self.recovery.lines
        checkpoint, log = self._checkpoint.value, self._log
        self._batch_queues.topics.update(batch_topics(self._disk, self.recovery))
        by_queues = not trusted and last_stop is LastStop.CLEAN
        position = end if by_queues else min(start, end)
        recovered = [derived.recover(log, position, last_stop) for derived in self._derived]
        lines += [line for found in recovered for line in found.lines]
        lines += self.queue_min_offsets.recovered(
            log.min_offset, self._progress.unit_count, lost=any(found.lost_start for found in recovered)
        )
        repair_from = min((found.repair_from for found in recovered if found.repair_from is not None), default=None)
        if trusted and self._queues.unit_count < self._progress.unit_count:
            found_units = f"{self._queues.unit_count} of {self._progress.unit_count} entries"
            lines.append(f"{QUEUE_DIRECTORY}: only {found_units} are there.")
            repair_from = log.min_offset
        if by_queues:
            covered = max(self._queues.covered_offset, self._batch_queues.covered_offset)
            position = min(max(covered, log.min_offset), end)
        if repair_from is not None and repair_from <= position:
            lines.append(f"The queues are made anew from {repair_from} on.")
            position = max(repair_from, log.min_offset)
        self._dispatch_service.position = position
        self._confirm = max(min(checkpoint.confirm_phy_offset, end), start if trusted else position, log.min_offset)
        self._confirm = min(self._confirm, end)
        newest_ms = self.recovery.last_store_timestamp_ms if start == end else 0
        self._dispatch_service.last_store_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, newest_ms)
        self._offsets.take_from_queues(position)
        self._offsets.last_store_timestamp_ms = max(
            self.recovery.last_store_timestamp_ms, checkpoint.physic_msg_timestamp_ms
        )
        log.probe(position, min(start, self._confirm))
        try:
            if self._confirm - position >= REBUILD_BYTES:
                with room_errors():
                    dispatch_in_bulk(log, self._queues, self._dispatch_service, self._confirm)
            self.dispatch_all()
        except NoRoomError:
            self._set_mark()  # the rest is dispatched when there is room
        self._saved_at_ms, self._saved_position = self._dispatch_service.last_store_timestamp_ms, position
        if self._log.files.files and not (trusted and last_stop is LastStop.CLEAN):
            self._save(*self._mark)

    def begin_write(self) -> None:
        """Begin appends that count only after `end_write`: an open after a crash cuts them off."""
        write_mark.put(self._disk, self.max_phy_offset)

    def end_write(self) -> None:
        """Make all that was appended since `begin_write` durable, and count it."""
        self._sync(save=True)
        write_mark.clear(self._disk)

    def undo_write(self) -> None:
        """Cut off what was appended since `begin_write`, if that was called."""
        length = write_mark.read(self._disk)
        if length is None:
            return
        kept = max(PhyOffset(length), self.min_phy_offset)
        if kept < self.max_phy_offset:
            line = f"A write was broken off: the log is cut from {self.max_phy_offset} to {kept}, as it was before."
            self.recovery.lines.append(line)
            self._tracer.event("recovery", finding=line)
            self.truncate(kept)
        write_mark.clear(self._disk)

    def close(self) -> None:
        """Stop cleanly: dispatch everything below the confirm offset, make all durable, remove `abort`."""
        try:
            self.commit()
            with suppress(NoRoomError):
                self.dispatch_all()  # what has no room is dispatched after the next start
            self.index.finish()
            self._sync(save=True)
            with self._flush:
                self._boot.stopped()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a clean stop: `abort` stays, so that the next start checks more."""
        with self._flush:
            self._failure.close(f"{place(self._disk, '')}: the store is closed")
            for derived in (*self._derived, self.index.files):
                derived.close()
            for file in (self._log, self._checkpoint, self._progress):
                file.close()
        self._release()

    # --- offsets ----------------------------------------------------------------------------------------------------
    @property
    def min_phy_offset(self) -> PhyOffset:
        return PhyOffset(self._log.min_offset)

    @property
    def max_phy_offset(self) -> PhyOffset:
        return PhyOffset(self._log.end_offset)

    @property
    def last_store_timestamp_ms(self) -> int:
        """The highest store timestamp of the log's records, as far as they are dispatched."""
        return self._offsets.last_store_timestamp_ms

    @property
    def record_end_offset(self) -> PhyOffset:
        return PhyOffset(min(self._offsets.cover(), self._log.end_offset))

    @property
    def synced_offset(self) -> PhyOffset:
        return PhyOffset(min(self._synced, self._log.end_offset))

    @property
    def confirm_offset(self) -> PhyOffset:
        return PhyOffset(self._confirm)

    @property
    def confirmed_record_end(self) -> PhyOffset:
        return PhyOffset(self._dispatch_service.whole_below(self._confirm))

    @property
    def dispatched_offset(self) -> PhyOffset:
        return PhyOffset(self._dispatch_service.position)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of committed log that the queues lack."""
        return max(0, self._confirm - self._dispatch_service.position)

    @property
    def epochs(self) -> EpochHistory:
        return self._epochs.history

    @property
    def highest_epoch(self) -> Epoch:
        return self._highest_epoch.value

    @property
    def unclean(self) -> bool:
        return self._boot.unclean

    # --- append -----------------------------------------------------------------------------------------------------
    def append(self, message: NewMessage, wall_ms: int) -> Appended:
        """Append one message as master. Raises UsageError for a message that cannot be stored, StoreError when the
        disk fails or is full; nothing is appended then."""
        self._failure.check()
        return self._appender.append(message, wall_ms)

    def check(self, messages: Sequence[NewMessage]) -> None:
        """Raise UsageError if one of these, none of which is an inner batch, cannot be stored."""
        self._appender.check(messages)

    def encode_batch(self, messages: Sequence[NewMessage], *, are_checked: bool = False) -> EncodedBatch:
        """Records for `append_encoded`; `are_checked` by `check`. Raises UsageError if one cannot be stored."""
        return self._appender.encode_batch(messages, are_checked=are_checked)

    def append_encoded(self, batch: EncodedBatch, wall_ms: int) -> AppendedBatch:
        """Append in order, each contiguous run with one write. All share one store timestamp. StoreError: those that
        went into earlier files may be appended."""
        self._failure.check()
        return self._appender.append_encoded(batch, wall_ms)

    def append_batch(self, batch: NewBatch, wall_ms: int) -> AppendedBatch:
        """Append messages of one queue, as `append_encoded` does. Raises UsageError if one cannot be stored."""
        self._failure.check()
        return self._appender.append_batch(batch, wall_ms)

    def append_sends(self, source: SendSource, wall_ms: int) -> SendResults | None:
        """Append the plain sends at the front of what a connection has sent; None if there is none."""
        self._failure.check()
        return self._appender.append_sends(source, wall_ms)

    def append_made(self, first_size_bytes: int, make: Callable[[AppendContext], EncodedRecords]) -> None:
        """Append the records that `make` gives for the place where a first one of so many bytes will stand."""
        self._failure.check()
        self._appender.append_made(first_size_bytes, make)

    def append_raw(self, phy_offset: PhyOffset, data: Buffer) -> str:
        self.discard_uncommitted()
        assert phy_offset == self._log.end_offset, f"bytes of {phy_offset}, the log ends at {self._log.end_offset}"
        self._failure.check()
        try:
            return self._incoming.append(data)
        except NoRoomError as error:
            self.allocation.failed(str(error))
            raise

    def room_refusal(self, *, anew: bool = False) -> str:
        return self._log.new_log_refusal() if anew else self.allocation.room_refusal

    def commit(self, *, everything: bool = True) -> bool:
        """Write what `append` left waiting in memory (transientStorePoolEnable); unless `everything`, only if it is
        worth a call (commitCommitLogLeastPages). Only then it can be read, synced and sent to slaves: max_phy_offset
        moves. True if it did. Raises StoreError; all of it waits still."""
        waiting_bytes = self.uncommitted_bytes
        if not waiting_bytes or (not everything and waiting_bytes < self._commit_least_bytes):
            return False
        with disk_errors(self._disk, LOG_DIRECTORY, "append"):
            return self._log.commit()

    def discard_uncommitted(self) -> None:
        """Drop what waits in memory: this replica is no master any more, and nobody knows of it."""
        if self._log.discard():
            self._offsets.forget()

    @property
    def uncommitted_bytes(self) -> int:
        return self._log.write_offset - self._log.end_offset

    @property
    def free_buffer_count(self) -> int:
        """Buffers of the pool that are empty; without a pool RocketMQ says 2^31 - 1."""
        if not self._config.transient_store_pool_enable:
            return 2**31 - 1
        used_count = -(-self.uncommitted_bytes // self._config.commit_least_bytes)
        return max(0, self._config.transient_store_pool_size - used_count)

    # --- queue types ------------------------------------------------------------------------------------------------
    @property
    def batch_topics(self) -> Set[str]:
        """Topics with queue.type=BatchCQ: those it was told of, and those whose records say so."""
        return self._batch_queues.topics

    def add_batch_topics(self, topics: Iterable[str]) -> None:
        """These topics are BatchCQ ones, before anything is appended to them as master. A slave may have records of
        theirs already: what their queues hold is moved to the other form, for ever. Raises StoreError."""
        self._batch_queues.add_topics(filter(valid_topic, topics))

    def _queue_end(self, key: tuple[str, int]) -> int:
        queue = self._batch_queues.table.get(key) or self._queues.table.get(key)
        return queue.max_offset if queue is not None else 0

    # --- read -------------------------------------------------------------------------------------------------------
    def view(self, phy_offset: PhyOffset, limit_bytes: int) -> memoryview:
        return self._log.view(phy_offset, limit_bytes)

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        """(min, max) of what consumers may see; (0, 0) for a queue that does not exist."""
        return self._reader.queue_range(topic, queue_id)

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset:
        """The end of a queue, with what the log holds beyond what is dispatched. Raises StoreError if the log cannot be
        read there."""
        self._offsets.cover()
        return QueueOffset(self._offsets.next_for((topic, queue_id)))

    def queue_ends(self, topic: str, queue_ids: Iterable[int]) -> list[int]:
        """The max of `queue_range` for each of these queues."""
        return self._reader.queue_ends(topic, queue_ids)

    def queues(self) -> dict[str, list[int]]:
        """Topics with their queue ids, in order."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(dict.fromkeys((*self._queues.table, *self._batch_queues.table))):
            found.setdefault(topic, []).append(queue_id)
        return found

    def queue_ends_of(self, topic: str, queue_count: int) -> dict[int, int]:
        """The ends of a topic's first queues, by queue id, with what the log holds beyond what is dispatched, but for
        those that never held anything. Raises StoreError if the log cannot be read there."""
        self._offsets.cover()
        known, end_of = self._offsets.next, self._queue_end
        return {n: end for n in range(queue_count) if (end := known.get((topic, n)) or end_of((topic, n)))}

    def hide_before(self, begins: Mapping[str, Mapping[int, int]]) -> None:
        """Hide from consumers whatever stands in front of these offsets, by topic and queue id; they may change."""
        self._reader.begins = begins

    def pull(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int,
        tags_codes: frozenset[int] | None = None, matches: RecordPredicate | None = None,
        on_disk: DiskLimits = NO_DISK_LIMITS, *, joined: bool = False, from_memory: bool = False,
    ) -> PullResult:  # fmt: skip
        """Committed records from entry `offset` on. `tags_codes` and `matches` None take all; one comes at least.
        `joined`: those that follow each other in the log may be one view. `from_memory`: the answer may be that a part
        must be read into memory first, but where batches are entries."""
        given = topic, queue_id, offset, max_count, max_bytes, tags_codes, matches, on_disk
        return self._reader.pull(*given, joined=joined, from_memory=from_memory)

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange:
        """The bounds of the entries and records that are in memory, or the part that must be read first."""
        return self._reader.memory_bounds(topic, queue_id, offset, count)

    def loader(self, topic: str, queue_id: int, cold: ColdRange) -> Callable[[], None]:
        """A function for another thread that reads this part into memory. It raises OSError."""
        return self._reader.loader(topic, queue_id, cold)

    def log_loader(self, phy_offset: PhyOffset, size_bytes: int) -> Callable[[], None] | None:
        """A function like `loader`, for a part of the log; None if it is in memory."""
        return log_loader(self._log, phy_offset, size_bytes)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tagsCode) of at most `count` entries from `offset` on."""
        return self._reader.units(topic, queue_id, offset, count)

    def record_at(self, phy_offset: int) -> memoryview | None:
        """The bytes of whatever record begins there, sound or not; not limited to committed ones."""
        return self._reader.record_at(phy_offset)

    def sound_record(
        self, topic: str, queue_id: int, offset: int, unit: Unit, is_whole: IsWhole = any_record
    ) -> Record:
        """The record of a queue's entry, to make a new one of. Raises DamagedError; `damage` knows of it then."""
        return self._reader.sound_record(topic, queue_id, offset, unit, is_whole)

    def plain_properties(self, topic: str, queue_id: int, offset: int, unit: Unit) -> tuple[int, bytes] | None:
        """Store time (ms) and properties of the record that `sound_record` would give; None if that must be asked."""
        return self._reader.plain_properties(topic, queue_id, offset, unit)

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None:
        """The record at an offset that anybody may name: only if one starts there (`RecordStarts`) and is sound."""
        return self._starts.at(phy_offset)

    def first_stored_ms(self, topic: str, offsets: Mapping[int, int]) -> int | None:
        """Store time of whichever record the log holds first of those at these entries (queue id → offset); ms."""
        return self._reader.first_stored_ms(topic, offsets)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset:
        """The first entry stored at `timestamp_ms` or later; the queue's max if none was."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms)

    # --- commit -----------------------------------------------------------------------------------------------------
    def set_confirm_offset(self, offset: PhyOffset) -> None:
        self._confirm = min(max(offset, self._log.min_offset), self._log.end_offset)

    def dispatch(self, limit_bytes: int) -> bool:
        before = self._dispatch_service.position
        try:
            with room_errors():
                more = dispatch(self._log, self._queues, self._dispatch_service, self._confirm, limit_bytes)
        except NoRoomError as error:
            if not self.queue_refusal:
                self._tracer.event("queues_lack_room", dispatched_offset=before, reason=str(error))
            self.queue_refusal = str(error)
            raise
        self.queue_refusal = ""
        position = self._dispatch_service.position
        assert before <= position, f"dispatched up to {position} after {before}"
        assert position <= max(before, self._confirm), f"dispatched up to {position}, {self._confirm} is confirmed"
        self._set_mark()
        offsets = self._offsets
        if self._dispatch_service.position > offsets.covered:
            offsets.dispatched(self._dispatch_service.position)
            offsets.last_store_timestamp_ms = max(
                offsets.last_store_timestamp_ms, self._dispatch_service.last_store_timestamp_ms
            )
        return more

    def dispatch_all(self) -> None:
        """Dispatch everything below the confirm offset."""
        while self.dispatch(DISPATCH_STEP_BYTES):
            pass

    def _set_mark(self) -> None:
        """The checkpoint that a save would record: one value, for the flusher reads it in its own thread."""
        self._mark = (
            self._dispatch_service.position,
            self._dispatch_service.last_store_timestamp_ms,
            self._queues.unit_count,
        )

    def sync(self) -> PhyOffset:
        """Make the log durable up to its present end and return that end. Blocks; for a worker thread.

        Callers that wait for each other share one sync. About once a second of store time the queues, the checkpoint
        and the progress are saved too. After a failed sync nothing more is accepted: what the disk dropped is unknown.
        """
        return self._sync(save=False)

    def _sync(self, *, save: bool) -> PhyOffset:
        wanted = self._log.end_offset
        with self._flush:
            self._failure.check()
            if self._synced >= wanted and not save:
                return PhyOffset(self._synced)
            dispatched, stored, unit_count = self._mark
            end = self._log.end_offset
            with self._failure.remembered():
                self._log.sync(self._synced, end)
                self._synced = end
                if save or self._save_due(dispatched, stored):
                    self._save(dispatched, stored, unit_count)
        return PhyOffset(end)

    def _save_due(self, dispatched: int, stored: int) -> bool:
        return (
            stored - self._saved_at_ms >= SAVE_INTERVAL_MS or dispatched - self._saved_position >= SAVE_INTERVAL_BYTES
        )

    def _save(self, dispatched: int, stored: int, unit_count: int) -> None:
        """Record that everything below `dispatched` is whole, durable and queued."""
        for derived in self._derived:
            derived.sync()
        old = self._checkpoint.value
        indexed = self.index.files.durable_timestamp_ms or old.index_msg_timestamp_ms
        checkpoint = Checkpoint(stored, stored, indexed, old.master_flushed_offset, dispatched)
        self._progress.unit_count = unit_count
        self._progress.store(dispatched, checkpoint, self.index.files.durable_offset)
        self._checkpoint.store(checkpoint)
        self._progress.sync()
        self._checkpoint.sync()
        self._saved_at_ms, self._saved_position = stored, dispatched

    # --- epochs -----------------------------------------------------------------------------------------------------
    def append_epoch(self, epoch: Epoch, start_offset: PhyOffset) -> bool:
        return self._epochs.append(EpochEntry(epoch, start_offset))

    def clear_epochs(self) -> None:
        self._epochs.clear()

    def accept_epoch(self, epoch: Epoch) -> None:
        self._highest_epoch.raise_to(epoch)

    def mark_unclean(self) -> None:
        self._boot.set_unclean(True)

    def mark_clean(self) -> None:
        self._failure.check()
        self._boot.set_unclean(False)

    # --- old files --------------------------------------------------------------------------------------------------
    @property
    def settled_offset(self) -> PhyOffset:
        """Everything below is committed, durable and dispatched: the log may begin there."""
        return PhyOffset(min(self._confirm, self.synced_offset, self._dispatch_service.position))

    @property
    def pending_deletion_bytes(self) -> int:
        """Size of removed files that are still on the disk."""
        return self._trimmer.pending_deletion_bytes

    def oldest_files(self, count: int, wall_ms: int) -> tuple[list[RetainedFile], RetainedFile | None]:
        """The log's oldest files, at most `count`, and the active one unless it is empty."""
        return self._trimmer.oldest(count, self._offsets.last_store_timestamp_ms, wall_ms)

    def roll(self) -> None:
        """End the active file, unless it is empty, with a blank record. Raises StoreError if the next has no room."""
        self._failure.check()
        if not self._log.is_active_empty:
            self._log.roll()

    def trim(self, start_offset: PhyOffset) -> None:
        """Let the log begin with the file that starts at `start_offset`, which must not be above the settled offset.
        Nothing is removed from the disk before `schedule_unlink`."""
        assert start_offset <= self.settled_offset, f"{start_offset} is above the settled {self.settled_offset}"
        self._trimmer.trim(start_offset)
        self.damage.trimmed(start_offset)

    def trim_derived(self) -> None:
        """Trim what only speaks of removed records: derived files and entries of the epoch history."""
        self._trimmer.trim_derived()
        self._trimmer.trim_epochs()

    def schedule_unlink(self, now_ms: int, timeout_ms: int, retry_ms: int) -> bool:
        """Remove trimmed files from the disk, one log file at a call; True if another is due. Blocks; for a worker
        thread. A file that a reader holds stays for up to `timeout_ms`, one that the disk keeps for `retry_ms`."""
        if self._trimmer.waits and (self._progress.position or 0) < self._log.min_offset:
            self._sync(save=True)
        return self._trimmer.schedule_unlink(now_ms, timeout_ms, retry_ms)

    # --- cut --------------------------------------------------------------------------------------------------------
    def on_truncate(self, hook: Callable[[int], None]) -> None:
        """Register derived state that must follow a cut of the log: `hook(end_offset)` runs after whole records are cut
        and before the epoch history is."""
        self._truncate_hooks.append(hook)

    def before_cut(self, hook: Callable[[int], None]) -> None:
        """Register a reader of whole records before they are cut: `hook(end_offset)`. An error that it raises ends the
        cut before anything is changed."""
        self._before_cut_hooks.append(hook)

    def on_restart(self, hook: Callable[[], None]) -> None:
        """Register what must forget the old log: `hook()` runs once `restart_at` has begun another."""
        self._restart_hooks.append(hook)

    def undispatched(self, start_offset: int) -> Iterator[tuple[memoryview, int, Located]]:
        """Whole records from `start_offset` on that the queues lack, sound or not: the buffer, where in it the record
        begins, and its parts. Raises StoreError for bytes that are no record."""
        start = max(start_offset, self._dispatch_service.position)
        for _, view, at, parts in walk(self._log, start, self.record_end_offset):
            if parts is not None:
                yield view, at, parts

    def truncate(self, end_offset: PhyOffset) -> None:
        log = self._log
        old_end = log.end_offset
        assert log.min_offset <= end_offset <= old_end, f"no cut at {end_offset} of [{log.min_offset}, {old_end})"
        cuts_records = end_offset < self.record_end_offset
        for hook in self._before_cut_hooks if cuts_records else ():
            hook(end_offset)
        with self._flush, self._failure.remembered():
            self._lower_marks(end_offset)
            log.cut(end_offset, old_end)
            self._synced = min(self._synced, end_offset)
            self._confirm = min(self._confirm, end_offset)
            for derived in self._derived:
                derived.truncate(end_offset)
            self.index.truncate(end_offset)
            self._dispatch_service.position = min(self._dispatch_service.position, end_offset)
            self._set_mark()
            self._offsets.take_from_queues(self._dispatch_service.position)
            self._trimmer.cut(end_offset)
            for hook in self._truncate_hooks if cuts_records else ():
                hook(end_offset)
            dropped = self._epochs.truncate(end_offset)
        cut_bytes = old_end - end_offset
        self._tracer.event("log_truncated", end_offset=end_offset, cut_bytes=cut_bytes, epochs_dropped=dropped)

    def _lower_marks(self, end_offset: int) -> None:
        """Progress first, then the checkpoint, both durable: whichever a crash leaves is true of the log before and
        after the cut."""
        takes_bytes = end_offset < self._log.end_offset
        last_ms = first_timestamp(self._log, end_offset) if takes_bytes else self._offsets.last_store_timestamp_ms
        checkpoint = self._checkpoint.value.lowered(last_ms, end_offset)
        position = min(self._progress.position or 0, self._dispatch_service.position, end_offset)
        cut_offset = end_offset if takes_bytes else None
        self._progress.lower(position, checkpoint, self.index.files.durable_below(end_offset), cut_offset=cut_offset)
        self._checkpoint.store(checkpoint)
        self._checkpoint.sync()
        self._saved_position = position
        self._saved_at_ms = checkpoint.logics_msg_timestamp_ms

    def _lower_index(self) -> None:
        """Store the index's durable offset, before durable index files are changed or dropped."""
        with self._flush:
            if self._progress.position is not None:
                durable = min(self._progress.index_offset, self.index.files.durable_offset)
                self._progress.lower(self._progress.position, self._checkpoint.value, durable)

    def restart_at(self, phy_offset: PhyOffset) -> None:
        log = self._log
        if phy_offset % log.file_size_bytes:
            raise StoreError(
                f"the master's log begins at {phy_offset}, which is no multiple of mappedFileSizeCommitLog ="
                f" {log.file_size_bytes}; set the key to the master's value"
            )
        with self._flush, self._failure.remembered(), disk_errors(self._disk, LOG_DIRECTORY, "set the old log aside"):
            if phy_offset:
                self.queue_min_offsets.lose()  # first: after a crash too little may be known, never too much
            directory = self._set_aside() if log.files.files else ""
            self.queue_min_offsets.restarted(phy_offset)
            self._trimmer.forget()
            self._epochs.clear()
            log.start_at(phy_offset)
            self._dispatch_service.position = self._confirm = self._synced = phy_offset
            self._set_mark()
            self._starts.forget(0)
            self.damage.cut(0)
            self.index.restart_at(phy_offset)
            self._offsets.take_from_queues(phy_offset)
        for hook in self._restart_hooks:
            hook()
        self._tracer.event("log_restarted", phy_offset=phy_offset, set_aside=directory)

    @property
    def lacks_queue_ends(self) -> bool:
        return self.queue_min_offsets.lacks

    def _set_aside(self) -> str:
        directory = next_replaced(self._disk)
        self._progress.lower(0, Checkpoint(), 0)
        self._checkpoint.store(Checkpoint())
        self._checkpoint.sync()
        self._disk.make_dirs(directory)
        self._disk.write_atomic(f"{directory}/{epoch_file.PATH}", epoch_file.encode(self._epochs.history))
        for derived in (*self._derived, self.index.files):
            derived.set_aside(directory)
        set_others_aside(self._disk, directory)
        self._log.set_aside(directory)
        self.recovery.lines.append(f"The old log and its queues were set aside into {directory}.")
        return directory
