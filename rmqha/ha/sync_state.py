"""SyncStateSet as the master knows it: the set that the controller has confirmed, and a change that may be in flight.

                 propose()                         decided() with a higher set epoch
    SETTLED ───────────────────▶ IN_FLIGHT ─────────────────────────────────────────▶ SETTLED
        ▲                         │      ▲
        └──── refused() ──────────┤      │ propose() again
                      lost()      ▼      │
                                 UNKNOWN ┘

If the answer to a change is lost, the controller may or may not have applied it. Records then need the acks of the
union of all sets that may be in force, as in Kafka's maximal ISR (ruling 1, apache/rocketmq 5663), until a higher set
epoch shows the outcome: earlier proposals cannot be applied after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqha.model.offset import BrokerId

Members = tuple[BrokerId, ...]
"""Ids of replicas, sorted, without duplicates."""


def as_members(ids: Iterable[int]) -> Members:
    return tuple(BrokerId(broker_id) for broker_id in sorted(set(ids)))


class SyncStateSet:
    """The confirmed set, and the union that acknowledgements count against."""

    def __init__(self) -> None:
        self.confirmed: Members = ()
        self.set_epoch = 0
        self.union: Members = ()
        """Members of `confirmed` and of every proposal that may have been applied or may yet be."""
        self.proposed: Members | None = None
        """Proposed set whose answer has not come; None if there is none."""
        self.unknown = False
        """True after an answer was lost: only a higher set epoch shows that the request can no longer be applied."""
        self.blind = False
        """True after a restart within an epoch: requests of before the restart may still be applied, so the union may
        lack a member. In CP nothing is committed before the controller has applied a request made since. A higher set
        epoch alone is no proof, because the set known at the restart may have been outdated (docs/internals/spec, "an
        old notice settles")."""
        self.unconfirmed_since_ms: int | None = None
        """Time (ms) since when the local set differs from the confirmed one, in AP without controllers (ruling 5)."""

    def reset(self, confirmed: Members, set_epoch: int) -> None:
        """Begin with a set that the controller has confirmed. Proposals of older master epochs are fenced by then."""
        self.confirmed = self.union = confirmed
        self.set_epoch = set_epoch
        self.proposed = None
        self.unknown = self.blind = False
        self.unconfirmed_since_ms = None
        self._check()

    def _check(self) -> None:
        """Check after each change that the union holds all sets that may be in force. Only in AP, while no controller
        answers, it may be smaller than the confirmed set."""
        assert list(self.union) == sorted(set(self.union)), f"the union {self.union} is not sorted, or names one twice"
        if self.unconfirmed_since_ms is None:
            in_force = {*self.confirmed, *(self.proposed or ())}
            assert in_force <= set(self.union), f"{in_force} may be in force, acknowledgements count {self.union}"

    def propose(self, members: Members) -> None:
        self.proposed = members
        self.union = as_members([*self.union, *members])
        self._check()

    def decided(self, members: Members, set_epoch: int, *, answered: bool) -> bool:
        """Take the set that the controller shows; True if its epoch is new. An unchanged epoch proves nothing about a
        proposal. `answered`: it answers a request made since the start, after which no earlier one can be applied."""
        blind = self.blind and not answered
        is_news = set_epoch > self.set_epoch
        if is_news:
            self.reset(members, set_epoch)
        if is_news or answered:
            self.unknown = self.blind = blind
        return is_news

    def lost(self) -> None:
        """Note that the proposal got no clear answer. It may be proposed again; the union stays."""
        self.proposed = None
        self.unknown = True

    def refused(self) -> None:
        """Drop a proposal that has certainly not been applied."""
        self.proposed = None
        if not self.unknown:
            self.union = self.confirmed
        self._check()

    def shrink_locally(self, now_ms: int, members: Members) -> None:
        """Go on with `members` though no controller has confirmed them (AP only, ruling 5)."""
        self.union = members
        if self.unconfirmed_since_ms is None:
            self.unconfirmed_since_ms = now_ms
        self._check()
