"""What an attack did to a cluster and its honest clients, and which of the promises it broke. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def percentile_ms(taken_ms: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent do not exceed; 0 of nothing."""
    if not taken_ms:
        return 0.0
    ordered = sorted(taken_ms)
    return ordered[-(-len(ordered) * percent // 100) - 1]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run holds an attack to. `ratio`: of the p99 under attack to the p99 of the same cluster before anybody
    attacked it; it counts only where the p99 is above `floor_ms`, for below that the machine's own noise is larger.
    `after_ratio`: the same of the p99 after the attack."""

    ratio: float
    floor_ms: float
    after_ratio: float = 4.0
    grown_mib: float = 128.0
    left_mib: float = 64.0
    beat_gap_ms: int = 1500
    """Three heartbeats: a controller takes a broker for dead after four."""
    ack_gap_ms: int = 2000
    """haAckStallBoundMs: a slave that acknowledges nothing for so long leaves the SyncStateSet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    attack: str
    setup: str
    connections: int
    did: Mapping[str, int]
    """What the attacker counted."""
    quiet_p99_ms: float
    """Of the undisturbed cluster."""
    taken_ms: Sequence[float]
    """Of the honest sends that fell due during the attack."""
    after_ms: Sequence[float]
    """Of those that did when memory had fallen back and sends were answered again."""
    failures: Sequence[str]
    dead: Mapping[str, str]
    changed: Mapping[str, Any]
    """Brokers whose role or epoch is another: before and after."""
    grown_mib: Mapping[str, float]
    left_mib: Mapping[str, float]
    settled_s: float
    settled: bool = True
    """Memory and honest sends were as before when waiting ended."""
    beat_gap_ms: int = 0
    """The longest time in which a broker sent no controller a heartbeat."""
    ack_gap_ms: int = 0
    """The longest time in which a slave acknowledged nothing."""
    wrong_answers: Sequence[int] = ()
    """Codes that no answer to this attack may have."""

    @property
    def p99_ms(self) -> float:
        return percentile_ms(self.taken_ms, 99)

    @property
    def after_p99_ms(self) -> float:
        return percentile_ms(self.after_ms, 99)

    @property
    def ratio(self) -> float:
        return self.p99_ms / self.quiet_p99_ms if self.quiet_p99_ms else 0.0

    @property
    def is_over(self) -> bool:
        """The cluster is no longer the one that the next attack should meet."""
        return bool(self.dead or self.changed) or not self.settled

    def row(self) -> dict[str, Any]:
        """For tables and JSON."""
        return {
            "attack": self.attack,
            "set-up": self.setup,
            "connections": self.connections,
            "quiet p99 ms": self.quiet_p99_ms,
            "p99 ms": self.p99_ms,
            "ratio": self.ratio,
            "p99 after ms": self.after_p99_ms,
            "max ms": max(self.taken_ms, default=0.0),
            "failed": len(self.failures),
            "role changes": len(self.changed),
            "ended": ", ".join(self.dead),
            "grown MiB": max(self.grown_mib.values()),
            "left MiB": max(self.left_mib.values()),
            "heartbeat gap ms": self.beat_gap_ms,
            "ack gap ms": self.ack_gap_ms,
            "settled s": self.settled_s,
            "MB written": self.did.get("bytes written", 0) / 1e6,
            "thrown out": self.did.get("thrown out", 0) + self.did.get("refused", 0),
        }

    def problems(self, bounds: Bounds) -> list[str]:
        """Sentences; none if all promises were kept."""
        found = [f"{name} has ended: {words}" for name, words in self.dead.items()]
        found += [f"{name} was {before} and is {after}" for name, (before, after) in self.changed.items()]
        if self.failures:
            said = "; ".join(f"{count} × {text}" for text, count in Counter(self.failures).most_common(3))
            found.append(f"{len(self.failures)} of {len(self.taken_ms)} honest sends failed: {said}")
        if not self.settled and not self.dead:
            found.append(f"not as before {self.settled_s:g} s after the attack")
        if self.wrong_answers:
            found.append(f"answered with the codes {', '.join(map(str, self.wrong_answers))}")
        if not self.did.get("connected") and not self.did.get("refused"):
            found.append("the attacker reached nobody")
        if not self.taken_ms:
            found.append("no honest send was due")
        if self.p99_ms > max(bounds.floor_ms, bounds.ratio * self.quiet_p99_ms):
            found.append(
                f"honest p99 was {self.p99_ms:.0f} ms, {self.ratio:.0f} × the quiet {self.quiet_p99_ms:.1f} ms"
            )
        if not self.after_ms and not self.dead:
            found.append("no honest send was due after the attack")
        if self.after_p99_ms > max(bounds.floor_ms, bounds.after_ratio * self.quiet_p99_ms):
            found.append(
                f"honest p99 after the attack was {self.after_p99_ms:.0f} ms, {self.quiet_p99_ms:.1f} before it"
            )
        if self.beat_gap_ms > bounds.beat_gap_ms and not self.dead:
            found.append(f"a broker sent no heartbeat for {self.beat_gap_ms} ms")
        if self.ack_gap_ms > bounds.ack_gap_ms and not self.dead:
            found.append(f"a slave acknowledged nothing for {self.ack_gap_ms} ms")
        for name, size in self.grown_mib.items():
            if size > bounds.grown_mib:
                found.append(f"{name} grew by {size:.0f} MiB")
        for name, size in self.left_mib.items():
            if size > bounds.left_mib:
                found.append(f"{name} kept {size:.0f} MiB {self.settled_s:g} s after the attack")
        return found
