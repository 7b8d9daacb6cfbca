"""The rules of docs/internals/spec/group.pml for the controllers' register and for a master's view of the set, as a
reference that runs beside a simulated group. Pure.

Each action of the model is a method of its name in small letters: it raises InvariantError where the model's guard does
not let it happen, and does to the state what the model does. Sets are Python's, offsets and epochs are the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.history import InvariantError

Ids = frozenset[int]
NONE: Ids = frozenset()
Request = tuple[int, int, int, Ids]
"""Who asks (1001), its master epoch, the set epoch that it knows, the members."""


def holds(condition: bool, rule: str, told: str) -> None:
    if not condition:
        raise InvariantError(f"the specification has no such step: {rule}: {told}")


@dataclass(slots=True)
class Declared:
    """What a replica has said of itself as it registered."""

    is_cp: bool = False
    total: int = 0
    is_learner: bool = False


@dataclass(slots=True)
class Register:
    """The controllers: what their log makes of one group."""

    master: int | None = None
    epoch: int = 0
    members: Ids = NONE
    set_epoch: int = 0
    eligible: Ids = NONE
    total: int = 0
    next_total: int = 0
    declared: dict[int, Declared] = field(default_factory=dict)
    winners: dict[int, int] = field(default_factory=dict)
    """By epoch."""
    sets: dict[int, Ids] = field(default_factory=dict)
    """By set epoch."""
    requests: set[Request] = field(default_factory=set)
    refused: set[Request] = field(default_factory=set)
    """Those whose master has heard a certain refusal."""

    @property
    def electable(self) -> Ids:
        return self.members | self.eligible

    @property
    def state(self) -> tuple[int | None, int, Ids, int, Ids, int, int]:
        return self.master, self.epoch, self.members, self.set_epoch, self.eligible, self.total, self.next_total

    def least(self, master: int) -> int:
        """Members that the set must have for this master to acknowledge: LEAST of the model, and ruling 6."""
        declared = self.declared.get(master)
        if declared is None or not declared.is_cp or not declared.total:
            return 1
        total = min(declared.total, self.total or declared.total)
        return 1 if total <= 2 else total // 2 + 1

    def _shows(self) -> None:
        self.sets[self.set_epoch] = self.members

    # --- actions ----------------------------------------------------------------------------------------------------
    def elect(self, winner: int, epoch: int, eligible: Ids, *, accepts_loss: bool) -> None:
        """`accepts_loss`: a first election, or one by an operator: outside the model."""
        told = f"replica {winner} in epoch {epoch}, eligible {sorted(eligible)}; the state was {self}"
        holds(epoch > self.epoch, "an election has an epoch of its own", told)
        if not accepts_loss:
            holds(winner in self.electable, "one of the set or an eligible one is elected", told)
        allowed = NONE if self.least(winner) == 1 or accepts_loss else self.electable - {winner}
        holds(eligible <= allowed, "who may lack what is acknowledged stays eligible after an election", told)
        self.master, self.epoch, self.members, self.eligible = winner, epoch, frozenset({winner}), eligible
        self.set_epoch += 1
        self.winners[epoch] = winner
        self._shows()

    def deliver(self, epoch: int, set_epoch: int, members: Ids, eligible: Ids) -> None:
        """A change of the set; `set_epoch` is the new one. Late ones meet a fence."""
        if epoch != self.epoch or set_epoch != self.set_epoch + 1 or self.master not in members:
            return
        assert self.master is not None
        told = f"{sorted(members)}, set epoch {set_epoch}, eligible {sorted(eligible)}; the state was {self}"
        request = (self.master, epoch, self.set_epoch, members)
        holds(request in self.requests, "the set is what its master has asked for", told)
        holds(request not in self.refused, "what was refused for certain is not applied", told)
        enough = len(members) >= self.least(self.master)
        holds(eligible == (NONE if enough else self.electable - members), "eligible beside the set", told)
        self.members, self.set_epoch, self.eligible = members, set_epoch, eligible
        self._shows()

    def leave(self, gone: Ids) -> None:
        """RegisterUnclean of the model; replicas that are drained, cleaned or become learners go the same way."""
        if self.members & gone:
            self.members -= gone
            self.set_epoch += 1
            self._shows()
        self.eligible -= gone
        if self.master in gone:
            self.master = None

    def vacate(self, epoch: int) -> None:
        if epoch == self.epoch:
            self.master = None

    def resize(self, total: int) -> None:
        self.next_total = 0 if total == self.total else total

    def resized(self, total: int) -> None:
        self.total, self.next_total = total, 0

    def end_eligibility(self) -> None:
        """After each entry: the set, as it stands, may be enough to acknowledge in CP."""
        counted = [item for item, known in self.declared.items() if not known.is_learner]
        masters = [item for item in (counted if self.master is None else [self.master]) if self.declared[item].is_cp]
        if self.eligible and masters and len(self.members) >= min(map(self.least, masters)):
            self.eligible = NONE


@dataclass(frozen=True, slots=True)
class View:
    """A replica at one moment. `leads` 0: it is a slave."""

    life: int
    leads: int
    accepted: int
    confirmed: Ids = NONE
    set_epoch: int = 0
    in_force: Ids = NONE
    proposed: Ids | None = None
    unknown: bool = False
    blind: bool = False
    total: int = 0
    confirm: int = 0


@dataclass(slots=True)
class MasterView:
    """One replica, and what the model says is in force while it leads."""

    own_id: int
    is_cp: bool
    register: Register
    last: View
    in_force: Ids = NONE
    led: set[int] = field(default_factory=set)
    """Epochs."""

    def moves(self, now: View, acked: Mapping[int, int], inherited: int) -> None:
        """Find the actions that lead from the last view to this one. `acked`: of its slaves, `inherited`: where its log
        ended when this mastership, or this life of it, began."""
        before, self.last = self.last, now
        told = f"replica {self.own_id}: {now}; before {before}"
        holds(now.accepted >= before.accepted, "no replica accepts an older master", told)
        if not now.leads:
            return
        if now.leads != before.leads or now.life != before.life:
            self._begin(now, told)
        elif now.set_epoch != before.set_epoch:
            self._take_set(before, now, told)
        elif before.proposed is not None and now.proposed is None:
            self._end(before, now)
        if now.proposed is not None and (now.proposed != before.proposed or now.set_epoch != before.set_epoch):
            self._propose(before, now, acked, inherited, told)
        if self.is_cp:
            holds(now.in_force >= self.in_force, "all that may be in force is waited for", f"{told}; {self.in_force}")
            if now.confirm > before.confirm and now.leads == before.leads and now.life == before.life:
                self._commit(now, acked, told)

    def _begin(self, now: View, told: str) -> None:
        """Learn, Resume, ResumeLate."""
        winner = self.register.winners.get(now.leads)
        holds(winner == self.own_id, "who leads an epoch was elected in it", f"{told}; winner {winner}")
        if now.leads in self.led and self.is_cp:
            holds(now.blind and now.unknown, "a restarted master settles first", told)
        self.led.add(now.leads)
        self._holds_shown(now, told)
        self.in_force = now.confirmed

    def _holds_shown(self, now: View, told: str) -> None:
        shown = self.register.sets.get(now.set_epoch)
        holds(now.confirmed == shown, "the confirmed set is one that the controllers have had", f"{told}; {shown}")

    def _take_set(self, before: View, now: View, told: str) -> None:
        """DeliverAndAnswer, Shown."""
        holds(now.set_epoch > before.set_epoch, "a master's set epoch rises", told)
        self._holds_shown(now, told)
        if self.is_cp and before.blind and not now.blind:
            answered = before.proposed == now.confirmed and now.set_epoch == before.set_epoch + 1
            holds(answered, "only the answer to a request of this life settles", told)
        self.in_force = now.confirmed

    def _end(self, before: View, now: View) -> None:
        """TimeOut, Refuse."""
        assert before.proposed is not None
        if not now.unknown:
            self.in_force = before.confirmed
            self.register.refused.add((self.own_id, now.leads, before.set_epoch, before.proposed))
        elif not self.is_cp and now.in_force == before.proposed:
            self.in_force = before.proposed  # nobody answers: it goes on with what it has asked for

    def _propose(self, before: View, now: View, acked: Mapping[int, int], inherited: int, told: str) -> None:
        members = now.proposed
        assert members is not None
        holds(self.own_id in members, "a master asks for a set with itself", told)
        holds(members != now.confirmed or now.unknown, "a request changes the set, or settles", told)
        same = now.leads == before.leads and now.life == before.life
        # no confirm offset falls within a mastership, and a newcomer's acknowledgement may just have raised it
        bar = max(before.confirm if same else 0, inherited)
        for member in members - {self.own_id} - (now.confirmed & self.in_force):
            holds(
                acked.get(member, -1) >= bar,
                "who joins holds what may have been acknowledged",
                f"{told}; replica {member} has acknowledged {acked.get(member)}, not {bar}",
            )
        self.in_force = members if not self.is_cp and members == now.confirmed else self.in_force | members
        request = (self.own_id, now.leads, now.set_epoch, members)
        self.register.requests.add(request)
        self.register.refused.discard(request)  # this is another one

    def _commit(self, now: View, acked: Mapping[int, int], told: str) -> None:
        alone = now.total == 2 and now.confirmed == self.in_force == {self.own_id}
        enough = len(now.confirmed) >= now.total // 2 + 1 or alone
        holds(enough and not now.blind, "a majority is confirmed before anything is committed", told)
        for member in self.in_force - {self.own_id}:
            holds(
                acked.get(member, -1) >= now.confirm,
                "all that may be in force has acknowledged what is committed",
                f"{told}; replica {member} has acknowledged {acked.get(member)}",
            )
