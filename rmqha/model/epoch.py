"""Epoch-StartOffset history: which master epoch wrote which range of the log. Pure values.

Source: formats.md §7 (epochFileCheckpoint); RocketMQ's EpochFileCache for behaviour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rmqha.model.offset import OPEN_END, Epoch, PhyOffset


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """Range of the log of one epoch: the bytes from `start_offset` up to the next entry's start."""

    epoch: Epoch
    start_offset: PhyOffset


class EpochHistory:
    """Immutable list of entries with strictly rising epochs and start offsets; changes return a new one.

    An epoch under which nothing was written has no entry (legal, apache/rocketmq 9942). The last entry's end is open.
    """

    __slots__ = ("_entries", "_starts")

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Raises ValueError if epochs or starts do not strictly rise."""
        self._entries = tuple(entries)
        self._starts = tuple(entry.start_offset for entry in self._entries)
        for older, newer in zip(self._entries, self._entries[1:], strict=False):
            if newer.epoch <= older.epoch or newer.start_offset <= older.start_offset:
                raise ValueError(f"epoch entries do not rise: {older} then {newer}")

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[EpochEntry]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> EpochEntry:
        return self._entries[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{entry.epoch}:{entry.start_offset}" for entry in self._entries) + "}"

    @property
    def last(self) -> EpochEntry | None:
        return self._entries[-1] if self._entries else None

    def end_offset(self, index: int, open_end: PhyOffset = OPEN_END) -> PhyOffset:
        """Exclusive end offset of entry `index`; `open_end` for the last one."""
        return self._entries[index + 1].start_offset if index + 1 < len(self._entries) else open_end

    def appended(self, entry: EpochEntry) -> EpochHistory | None:
        """History with `entry` added; None unless its epoch and its start exceed those of the last entry."""
        last = self.last
        if last is not None and (entry.epoch <= last.epoch or entry.start_offset <= last.start_offset):
            return None
        return EpochHistory((*self._entries, entry))

    def truncated(self, end_offset: PhyOffset) -> EpochHistory:
        """History without the entries that start at or after `end_offset`."""
        return EpochHistory(entry for entry in self._entries if entry.start_offset < end_offset)

    def trimmed(self, start_offset: PhyOffset) -> EpochHistory:
        """History without the entries that end before `start_offset`; the first one left may start below it. An entry
        that ends exactly there stays: by it an emptied log still has an entry in common with one that ends there."""
        ends = (self.end_offset(index) for index in range(len(self)))
        return EpochHistory(entry for entry, end in zip(self, ends, strict=True) if end >= start_offset)

    def at(self, phy_offset: PhyOffset) -> EpochEntry | None:
        """Entry of the byte at `phy_offset`, written or not; None below the first entry."""
        index = bisect_right(self._starts, phy_offset) - 1
        return self._entries[index] if index >= 0 else None

    def next_start(self, phy_offset: PhyOffset) -> PhyOffset:
        """Start of the first entry beyond `phy_offset`, OPEN_END if there is none: a transfer stops there."""
        index = bisect_right(self._starts, phy_offset)
        return self._starts[index] if index < len(self._starts) else OPEN_END
