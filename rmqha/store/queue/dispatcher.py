"""Derived state, made from the log and to be made again at will: the contract of all derived state. Data plane.

ConsumeQueues, batch queues and the index implement `CommitLogDispatcher`; the store keeps one list of them, so that
whatever happens to the log (a cut, a lost power, old files that go) happens to each. Nothing here is a source of truth:
a derived file that cannot be trusted is dropped and its part of the log dispatched again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from rmqha.kernel.batch_kernel import QueueRun
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop


class DispatchedRecord(NamedTuple):
    """A whole record below the confirm offset, as derived state needs it."""

    phy_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    properties: bytes
    """The encoded form (`name 0x01 value 0x02`…)."""


class DispatchedRun(NamedTuple):
    """Whole records that follow each other in the log and in one queue, none of a transaction and none an inner batch.
    Its first fields mean what they mean in `DispatchedRecord`, of the first record and of all bytes."""

    phy_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    bounds: list[int]
    """Offsets at which each record begins in the log, and the end of the last one."""
    tails: list[bytes]
    """Tail of each record: the encoded properties with their length in front, two bytes."""

    def count_to(self, stop: int, end_offset: int) -> int:
        """Number of records, from the first on, that begin below `stop` and end at or below `end_offset`."""
        bounds = self.bounds
        return min(bisect_left(bounds, stop, 0, len(bounds) - 1), bisect_right(bounds, end_offset, 1) - 1)

    def part(self, first: int, stop: int) -> DispatchedRun:
        """The records [first, stop); there must be one."""
        bounds = self.bounds[first : stop + 1]
        return self._replace(
            phy_offset=bounds[0],
            size_bytes=bounds[-1] - bounds[0],
            queue_offset=self.queue_offset + first,
            bounds=bounds,
            tails=self.tails[first:stop],
        )

    def records(self) -> Iterator[DispatchedRecord]:
        bounds = self.bounds
        for place, (start, tail) in enumerate(zip(bounds, self.tails, strict=False)):
            yield DispatchedRecord(
                start,
                bounds[place + 1] - start,
                self.topic,
                self.queue_id,
                self.queue_offset + place,
                self.sys_flag,
                self.store_timestamp_ms,
                tail[2:],
            )


class DispatchedBlock(NamedTuple):
    """Whole records that follow each other in the log, of any queues, as a batch kernel made or found them: none of a
    transaction, none an inner batch. Its first two fields and the newest store timestamp stand where those of
    `DispatchedRecord` stand."""

    phy_offset: int
    size_bytes: int
    runs: list[QueueRun]
    entries: bytes
    """Entries of the index, a `NEW_ENTRY` for each key of each record."""
    record_count: int
    bounds: list[int]
    """Offsets at which stretches of records with one store timestamp begin in the log; the end may follow."""
    store_timestamp_ms: int
    store_timestamps_ms: list[int]
    """Each stretch's."""

    @property
    def end_offset(self) -> int:
        return self.phy_offset + self.size_bytes


class RecoveredEntries(NamedTuple):
    """Result of a recovery of derived state: one sentence per finding, and the physical offset from which records must
    be dispatched again if entries below the position that was asked for are gone; None if none are. `lost_start`: True
    if it is not known where queues without a record in the log go on."""

    lines: list[str]
    repair_from: int | None
    lost_start: bool = False


class DetachedFile(Protocol):
    """A file that is no longer in use but still open and on disk."""

    @property
    def path(self) -> str: ...

    def close(self) -> object: ...


class CommitLogDispatcher(Protocol):
    """State made from the log. One thread uses it; only `sync` may run in another at the same time.

    Records come in log order. Those it holds already may come again and change nothing. All methods raise StoreError
    when the disk fails.
    """

    to_make_count: int
    """Number of new queues among what has been collected: each will make a file."""

    def missing_count(self, block: DispatchedBlock) -> int:
        """Number of queues of a block that are to be made."""
        ...

    @property
    def directory(self) -> str:
        """Directory of its files, under the store's root."""
        ...

    def recover(self, log: CommitLog, position: int, last_stop: LastStop) -> RecoveredEntries:
        """Find the files; drop what belongs to records at or behind `position` or is not to be trusted after
        `last_stop`."""
        ...

    def collect(self, record: DispatchedRecord) -> None:
        """Remember a record until `write` or `forget`; nothing is seen by readers yet."""
        ...

    def collect_run(self, run: DispatchedRun) -> None:
        """Collect as `collect` does, for each of its records."""
        ...

    def collect_block(self, block: DispatchedBlock) -> None:
        """Collect as `collect` does, for each of its records."""
        ...

    def write(self) -> None:
        """Write what was collected. After an error all of it may be collected and written again."""
        ...

    def forget(self) -> None:
        """Drop what was collected."""
        ...

    def truncate(self, end_offset: int) -> None:
        """Drop everything of records at or behind `end_offset`."""
        ...

    def trim(self, log_min: int) -> Sequence[DetachedFile]:
        """Forget the files that only speak of records before `log_min`, where the log begins now. They stay on disk and
        open; the caller closes and removes them, in this order, in another thread."""
        ...

    def sync(self) -> None:
        """Make everything durable that was written before the call. Blocks."""
        ...

    def set_aside(self, directory: str) -> None:
        """Move all files into `directory` and forget them."""
        ...

    def close(self) -> None: ...
