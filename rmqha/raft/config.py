"""Times and windows of a Raft node. Control plane, pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Milliseconds and bytes. With the defaults and three nodes a killed leader is replaced after a median of about
    0.3 s plus two durable writes: the first of two random timeouts, less the age of the last heartbeat."""

    election_timeout_ms: int = 250
    """Granted lease: time (ms) after a leader's message in which a follower votes for no other node. Campaigns begin at
    a random moment between once and twice this time."""
    heartbeat_interval_ms: int = 50
    lease_ms: int = 200
    """Held lease: time (ms) after the start of a heartbeat round that a majority answered in which the leader answers
    reads without asking the others."""
    max_clock_drift_percent: int = 10
    """Bound on the rate error of any node's clock, in percent."""
    max_append_bytes: int = 256 * 1024
    max_append_entries: int = 1024
    max_inflight_appends: int = 64
    """Most appends that are on their way to one follower, unanswered."""
    snapshot_chunk_bytes: int = 256 * 1024
    max_committed_entries: int = 64
    """Most committed entries in one Ready: applying them takes some milliseconds if each ends a request."""

    def __post_init__(self) -> None:
        held, granted = self.lease_ms + 2, self.election_timeout_ms
        assert held * (100 + self.max_clock_drift_percent) <= granted * (100 - self.max_clock_drift_percent), (
            "lease_ms must stay below election_timeout_ms by the clock drift of both sides"
        )
        assert 2 * self.heartbeat_interval_ms <= self.lease_ms, "a lease must outlive a lost heartbeat"

    @classmethod
    def for_timeout(cls, election_timeout_ms: int) -> RaftConfig:
        """Configuration with this election timeout (20 ms or more) and the other times in their usual ratios to it."""
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
        """Time (ms) without answers of a majority after which a leader steps down (check-quorum)."""
        return 2 * self.election_timeout_ms
