"""SyncStateSet as its one owner, the master, sees it: confirmed by the controller, and perhaps a change in flight.

                 propose()                         decided() with a higher set epoch
    SETTLED ───────────────────▶ IN_FLIGHT ─────────────────────────────────────────▶ SETTLED
        ▲                         │      ▲
        └──── refused() ──────────┤      │ propose() again
                      lost()      ▼      │
                                 UNKNOWN ┘

A lost answer leaves the change possible: acks count against the union of everything that may be in force (ruling 1,
apache/rocketmq 5663) until a higher set epoch shows the outcome; only then can no earlier proposal still be applied.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqha.model.offset import BrokerId

Members = tuple[BrokerId, ...]
"""Sorted, without duplicates."""


def as_members(ids: Iterable[int]) -> Members:
    return tuple(BrokerId(broker_id) for broker_id in sorted(set(ids)))


class SyncStateSet:
    def __init__(self) -> None:
        self.confirmed: Members = ()
        self.set_epoch = 0
        self.union: Members = ()
        """confirmed ∪ every proposal that may have been or may yet be applied."""
        self.proposed: Members | None = None
        """The change in flight, waiting for its answer."""
        self.unknown = False
        """An answer was lost: only a higher set epoch shows that the request can no longer be applied."""
        self.blind = False
        """True if the union is `unknown`, but it was a former life of this master that asked, so the union may lack a
        member: in CP nothing is committed before the controller has applied a request of this life. That it shows a
        higher set epoch is no proof: what this life knew before may have been old news (docs/internals/spec, "an old
        notice settles")."""
        self.unconfirmed_since_ms: int | None = None
        """AP with the controllers away: since when the local set is ahead of the confirmed one (ruling 5)."""

    def reset(self, confirmed: Members, set_epoch: int) -> None:
        """A new master epoch begins: what older epochs proposed can no longer be applied (fenced by master epoch)."""
        self.confirmed = self.union = confirmed
        self.set_epoch = set_epoch
        self.proposed = None
        self.unknown = self.blind = False
        self.unconfirmed_since_ms = None
        self._check()

    def _check(self) -> None:
        """Invariants of each change: acknowledgements count against everybody who may be in force. Only in AP, while no
        controller answers, the union is smaller than what one has confirmed."""
        assert list(self.union) == sorted(set(self.union)), f"the union {self.union} is not sorted, or names one twice"
        if self.unconfirmed_since_ms is None:
            in_force = {*self.confirmed, *(self.proposed or ())}
            assert in_force <= set(self.union), f"{in_force} may be in force, acknowledgements count {self.union}"

    def propose(self, members: Members) -> None:
        self.proposed = members
        self.union = as_members([*self.union, *members])
        self._check()

    def decided(self, members: Members, set_epoch: int, *, answered: bool) -> bool:
        """The controller showed its set; True if that is news. An unchanged epoch proves nothing about a proposal.
        `answered`: as the answer to a request of this life, behind which no earlier one can be applied any more."""
        blind = self.blind and not answered
        is_news = set_epoch > self.set_epoch
        if is_news:
            self.reset(members, set_epoch)
        if is_news or answered:
            self.unknown = self.blind = blind
        return is_news

    def lost(self) -> None:
        """The proposal got no clear answer: it may be proposed anew; the union stays."""
        self.proposed = None
        self.unknown = True

    def refused(self) -> None:
        """The proposal has certainly not been applied."""
        self.proposed = None
        if not self.unknown:
            self.union = self.confirmed
        self._check()

    def shrink_locally(self, now_ms: int, members: Members) -> None:
        """AP only: go on with `members` though no controller has confirmed it (ruling 5)."""
        self.union = members
        if self.unconfirmed_since_ms is None:
            self.unconfirmed_since_ms = now_ms
        self._check()
