"""A node's Raft log in memory: its entries, which of them are handed to the disk, and which are durable. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmqha.model.offset import RaftIndex, Term
from rmqha.wire.raft_message import ZERO_INDEX, ZERO_TERM, Entry, Snapshot


@dataclass(frozen=True, slots=True)
class StoredState:
    """Content of the durable log when the node started. `entries` follow the snapshot without a gap."""

    term: Term = ZERO_TERM
    voted_for: str = ""
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class LogChange:
    """Changes that must be made durable, in the order of the fields."""

    truncate_from: RaftIndex | None
    entries: tuple[Entry, ...]
    installed: Snapshot | None
    compaction: Snapshot | None


class RaftLog:
    """Entries (snapshot.index, last_index]. durable_index ≤ last_index; commit_index never moves back."""

    def __init__(self, stored: StoredState) -> None:
        self.snapshot = stored.snapshot
        self._entries = list(stored.entries)
        self.commit_index = self.snapshot_index
        self.durable_index = self.last_index
        self._unhanded_from = RaftIndex(self.last_index + 1)
        self._truncate_from: RaftIndex | None = None
        self._installed: Snapshot | None = None
        self._compaction: Snapshot | None = None

    @property
    def snapshot_index(self) -> RaftIndex:
        return self.snapshot.index if self.snapshot else ZERO_INDEX

    @property
    def snapshot_term(self) -> Term:
        return self.snapshot.term if self.snapshot else ZERO_TERM

    @property
    def last_index(self) -> RaftIndex:
        return RaftIndex(self.snapshot_index + len(self._entries))

    @property
    def last_term(self) -> Term:
        return self._entries[-1].term if self._entries else self.snapshot_term

    @property
    def handed_index(self) -> RaftIndex:
        """Last entry that was handed out for persisting."""
        return RaftIndex(self._unhanded_from - 1)

    def term_at(self, index: RaftIndex) -> Term | None:
        """Term of an entry; None if it is compacted away or beyond the end. The snapshot's last entry is known."""
        if index == self.snapshot_index:
            return self.snapshot_term
        if self.snapshot_index < index <= self.last_index:
            return self._entries[index - self.snapshot_index - 1].term
        return None

    def slice(self, start: RaftIndex, end: RaftIndex) -> tuple[Entry, ...]:
        """Entries [start, end); all must be here."""
        assert self.snapshot_index < start and end <= self.last_index + 1, f"no entries [{start}, {end})"
        base = self.snapshot_index + 1
        return tuple(self._entries[start - base : end - base])

    def batch(self, start: RaftIndex, max_entries: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `start` within both limits, at least one if there is any."""
        end, size_bytes = start, 0
        while end <= self.last_index and end - start < max_entries:
            size_bytes += len(self._entries[end - self.snapshot_index - 1].data)
            if size_bytes > max_bytes and end > start:
                break
            end = RaftIndex(end + 1)
        return self.slice(start, end) if end > start else ()

    def is_up_to_date(self, last_index: RaftIndex, last_term: Term) -> bool:
        """True if a log that ends so is at least as good as this one (dissertation §3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_index_not_above(self, index: RaftIndex, term: Term) -> RaftIndex:
        """Last position ≤ `index` whose term is ≤ `term`: the best possible match with the other log. Positions below
        the snapshot, whose terms are not known any more, count as possible."""
        position = min(index, self.last_index)
        while (own_term := self.term_at(position)) is not None and own_term > term:
            position = RaftIndex(position - 1)
        return position

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, f"entry {entry.index} after {self.last_index}"
        self._entries.append(entry)

    def first_conflict(self, entries: Iterable[Entry]) -> Entry | None:
        """The first of `entries` that is not in the log with the same term."""
        return next((entry for entry in entries if self.term_at(entry.index) != entry.term), None)

    def replace_from(self, entries: tuple[Entry, ...]) -> None:
        """Cut the log before entries[0] and append them. Never cuts committed entries."""
        start = entries[0].index
        assert self.commit_index < start <= self.last_index + 1, (
            f"replacing from {start}, committed {self.commit_index}"
        )
        del self._entries[start - self.snapshot_index - 1 :]
        if start < self._unhanded_from:
            self._truncate_from = start if self._truncate_from is None else min(self._truncate_from, start)
            self._unhanded_from = start
        self.durable_index = min(self.durable_index, RaftIndex(start - 1))
        self._entries.extend(entries)

    def commit_to(self, index: RaftIndex) -> bool:
        """Raise the commit index; True if it moved."""
        assert index <= self.last_index, f"commit {index} beyond the end {self.last_index}"
        if index <= self.commit_index:
            return False
        assert index > self.snapshot_index, f"commit {index} within the snapshot up to {self.snapshot_index}"
        self.commit_index = index
        return True

    def install(self, snapshot: Snapshot) -> None:
        """Replace everything by a leader's snapshot."""
        assert snapshot.index > self.commit_index, f"snapshot {snapshot.index} at or below {self.commit_index}"
        self.snapshot, self._installed, self._compaction = snapshot, snapshot, None
        self._entries.clear()
        self.commit_index = snapshot.index
        self.durable_index = self.snapshot_index
        self._unhanded_from = RaftIndex(snapshot.index + 1)
        self._truncate_from = None

    def compact(self, index: RaftIndex, data: bytes | bytearray, configuration: bytes = b"") -> None:
        """Replace the entries up to `index` by a snapshot: `data` is the application's state after them,
        `configuration` the encoded configuration in force there."""
        term = self.term_at(index)
        assert term is not None and self.snapshot_index < index <= min(self.commit_index, self.handed_index)
        del self._entries[: index - self.snapshot_index]
        self.snapshot = self._compaction = Snapshot(index, term, data, configuration)
        self.durable_index = max(self.durable_index, index)

    def has_changes(self) -> bool:
        return (
            self._truncate_from is not None
            or self._unhanded_from <= self.last_index
            or self._installed is not None
            or self._compaction is not None
        )

    @property
    def installs(self) -> bool:
        """True while a leader's snapshot is not handed out yet."""
        return self._installed is not None

    def take_changes(self) -> LogChange:
        """Take all changes that are not handed out for persisting yet."""
        entries = self.slice(self._unhanded_from, RaftIndex(self.last_index + 1))
        change = LogChange(self._truncate_from, entries, self._installed, self._compaction)
        self._truncate_from = self._installed = self._compaction = None
        self._unhanded_from = RaftIndex(self.last_index + 1)
        return change

    def persisted(self, last: Entry) -> None:
        """Note that `last` and all entries before it are durable, unless they were replaced after they were handed
        out."""
        if self.term_at(last.index) == last.term:
            self.durable_index = max(self.durable_index, min(last.index, self.handed_index))
