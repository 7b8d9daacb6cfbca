"""The configurations in a node's log; the last one is in force, committed or not. Pure.

Source: Ongaro's dissertation §4.1: a configuration is in force as soon as its entry is in the log, and is removed with
the entry when a new leader cuts it.
"""

from __future__ import annotations

from rmqha.model.offset import RaftIndex
from rmqha.raft.log import StoredState
from rmqha.raft.quorum import Configuration
from rmqha.wire.raft_message import ZERO_INDEX, Entry, EntryKind, Snapshot


class Membership:
    """Configurations of one node. Raises RemoteProtocolError if a stored one cannot be read; the durable log has
    checked them."""

    def __init__(self, initial: Configuration, stored: StoredState) -> None:
        self._initial = initial
        self._base = (ZERO_INDEX, initial)
        self._changes: list[tuple[RaftIndex, Configuration]] = []
        if stored.snapshot is not None:
            self.install(stored.snapshot)
        for entry in stored.entries:
            self.append(entry)

    @property
    def current(self) -> Configuration:
        return self._last[1]

    @property
    def index(self) -> RaftIndex:
        """Index of the current configuration's entry; the snapshot's index if it is older, 0 for the initial one."""
        return self._last[0]

    @property
    def previous(self) -> Configuration:
        """Configuration before the current one, as far as the log still has it."""
        return self._changes[-2][1] if len(self._changes) > 1 else self._base[1]

    @property
    def _last(self) -> tuple[RaftIndex, Configuration]:
        return self._changes[-1] if self._changes else self._base

    def append(self, entry: Entry) -> bool:
        """Add an entry; True if it changed the configuration."""
        if entry.kind is not EntryKind.CONFIGURATION:
            return False
        self._changes.append((entry.index, Configuration.decode(entry.data)))
        return True

    def truncate(self, start: RaftIndex) -> bool:
        """Remove the entries from `start` on; True if that changed the configuration."""
        kept = [item for item in self._changes if item[0] < start]
        changed = len(kept) != len(self._changes)
        self._changes = kept
        return changed

    def install(self, snapshot: Snapshot) -> None:
        configuration = Configuration.decode(snapshot.configuration) if snapshot.configuration else self._initial
        self._base, self._changes = (snapshot.index, configuration), []

    def at(self, index: RaftIndex) -> Configuration:
        """Configuration in force after entry `index`, which must not be older than the snapshot."""
        return next((change for at, change in reversed(self._changes) if at <= index), self._base[1])

    def compact(self, index: RaftIndex) -> Configuration:
        """Drop the configurations before `index`; returns the one in force there."""
        older = [item for item in self._changes if item[0] <= index]
        if older:
            self._base = older[-1]
            self._changes = self._changes[len(older) :]
        return self._base[1]
