"""Times and windows of a Raft node. Control plane, pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Milliseconds and bytes. With the defaults and three nodes a killed leader is replaced after a median of about
    0.3 s plus two durable writes: the first of two random timeouts, less the age of the last heartbeat."""

    election_timeout_ms: int = 250
    """A granted lease: how long a follower stands by its leader after hearing from it. Campaigns begin at a random
    moment between once and twice this time."""
    heartbeat_interval_ms: int = 50
    lease_ms: int = 200
    """The held lease: how long after sending a heartbeat round that a majority answered the leader reads alone."""
    max_clock_drift_percent: int = 10
    """Any node's clock runs at most this much too fast or too slow."""
    max_append_bytes: int = 256 * 1024
    max_append_entries: int = 1024
    max_inflight_appends: int = 64
    """Appends on their way to one follower before it has answered any of them."""
    snapshot_chunk_bytes: int = 256 * 1024
    max_committed_entries: int = 64
    """Entries handed out for applying in one Ready: some milliseconds of work where each ends a request."""

    def __post_init__(self) -> None:
        held, granted = self.lease_ms + 2, self.election_timeout_ms
        assert held * (100 + self.max_clock_drift_percent) <= granted * (100 - self.max_clock_drift_percent), (
            "lease_ms must stay below election_timeout_ms by the clock drift of both sides"
        )
        assert 2 * self.heartbeat_interval_ms <= self.lease_ms, "a lease must outlive a lost heartbeat"

    @classmethod
    def for_timeout(cls, election_timeout_ms: int) -> RaftConfig:
        """The times for an election timeout, in their usual ratios to it; from 20 ms on."""
        usual = cls()
        drift = usual.max_clock_drift_percent
        longest_ms = election_timeout_ms * (100 - drift) // (100 + drift) - 2
        return cls(
            election_timeout_ms=election_timeout_ms,
            heartbeat_interval_ms=election_timeout_ms // 5,
            lease_ms=min(election_timeout_ms * 4 // 5, longest_ms),
        )

    @property
    def quorum_timeout_ms(self) -> int:
        """A leader that no majority has answered for this long steps down (check-quorum)."""
        return 2 * self.election_timeout_ms
