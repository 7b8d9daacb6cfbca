"""A leader's knowledge of one follower, which decides how it sends to it (after etcd's tracker). Pure.

PROBE      one append at a time, until the point where both logs match is found → REPLICATE | SNAPSHOT
REPLICATE  pipelined appends up to a window; a reject → PROBE
SNAPSHOT   the entries it needs are compacted away: chunks, one at a time → REPLICATE when installed
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from rmqha.model.offset import RaftIndex
from rmqha.wire.raft_message import ZERO_INDEX, Snapshot


class ProgressState(IntEnum):
    """Way of sending to a follower: one append to find where its log agrees, appends without waiting for answers, or
    a snapshot."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


@dataclass(slots=True)
class Progress:
    """State of one follower. Entries up to `match_index` are known to be durable there. Invariant: `match_index` <
    `next_index`, the entry that is sent next."""

    next_index: RaftIndex
    match_index: RaftIndex = ZERO_INDEX
    state: ProgressState = ProgressState.PROBE
    acked_round: int = 0
    heard_at_ms: int | None = None
    """Time (ms) of the follower's last answer; None before the first."""
    probe_sent: bool = False
    """PROBE: True while the append waits for its answer, or for that of a heartbeat."""
    inflight: deque[RaftIndex] = field(default_factory=deque)
    """REPLICATE: last index of each append that has not been answered."""
    snapshot: Snapshot | None = None
    snapshot_offset: int = 0
    """SNAPSHOT: bytes that the follower has confirmed."""
    chunk_sent: bool = False

    def to_probe(self) -> None:
        self.state, self.next_index = ProgressState.PROBE, RaftIndex(self.match_index + 1)
        self._reset()

    def to_replicate(self) -> None:
        self.state, self.next_index = ProgressState.REPLICATE, RaftIndex(self.match_index + 1)
        self._reset()

    def to_snapshot(self, snapshot: Snapshot) -> None:
        self.state = ProgressState.SNAPSHOT
        self._reset()
        self.snapshot = snapshot

    def _reset(self) -> None:
        self.probe_sent = self.chunk_sent = False
        self.inflight.clear()
        self.snapshot, self.snapshot_offset = None, 0

    def acknowledged(self, match_index: RaftIndex) -> bool:
        """Note that the follower holds all entries up to `match_index`; True if the index has advanced."""
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        if match_index < self.match_index or (
            match_index == self.match_index and self.state is not ProgressState.PROBE
        ):
            return False
        advanced = match_index > self.match_index
        self.match_index = match_index
        self.next_index = max(self.next_index, RaftIndex(match_index + 1))
        if self.state is ProgressState.PROBE or (self.snapshot is not None and match_index >= self.snapshot.index):
            self.to_replicate()
        return advanced

    def rejected(self, rejected_index: RaftIndex, next_index: RaftIndex) -> bool:
        """Note that the follower has rejected an append after `rejected_index`; False if the answer is outdated."""
        if self.state is ProgressState.SNAPSHOT or rejected_index <= self.match_index:
            return False
        if self.state is ProgressState.PROBE and rejected_index != self.next_index - 1:
            return False
        self.to_probe()
        self.next_index = max(next_index, RaftIndex(self.match_index + 1))
        return True
