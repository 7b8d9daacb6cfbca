"""The order in which clients are served: one order for those who ask for little, one for all, so that each gets his
share of the time whatever number of requests it sends, and by whatever number of connections. No clock.

`least` goes by owner, an account or an address: the next is the one who has had least of the time since he came, as if
all who wait had had equal shares (virtual time: who comes back after a pause stands where those who wait are, and
CREDIT_US before them). So a hundred connections of one owner, short as their slices may be, do not stand before the
only one of another. Of an owner's connections the one with the shortest slices is next, as they have been lately: a
small request waits for the slice that is being served, not for a round of all who always want more. `oldest` is the one
who has waited longest, so those with long slices are served too, however many others come. A server gives half of its
time to each order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

NEW_SHARE = 0.25
"""Weight of the last slice in what is known of a place."""
NEW_COST_US = 250.0
"""Cost of one who has had no slice: a hundred newcomers do not stand before those who are known to ask for little."""
DRAINED_DIVISOR = 8
USUAL_COUNT = 16
"""A slice with more requests counts as if it had had so many: what has gathered while somebody waits costs more at a
time, and must not make him wait among those whose every request is costly."""
LONG_US = 500.0
"""Slices are long from here on, if they are no sends that are handled together with those of others."""
GRAIN_US = 64
"""Slices below it count as equally short, those up to twice as long too, and so on."""
CREDIT_US = 5_000.0
"""Time that an owner may have before those who wait, however long he has asked for nothing: a turn of a poller."""
DEBIT_US = 2_000.0
"""Time that an owner counts as having had who comes for the first time: a slice. However many come, each once, who has
waited meanwhile gets as much as they."""
AHEAD_US = 100_000.0
"""Time that an owner may have had beyond the others: what many connections get by age is no debt for ever."""
KEPT_COUNT = 64
"""Owners who are remembered before those are looked for who can be forgotten."""


class Place:
    """The place of one who is served again and again by `serve`, a slice of its work in each call; True: there is
    more."""

    __slots__ = (
        "_cost_us",
        "_is_new",
        "_ticket",
        "_waited_as",
        "came_at_s",
        "is_drained",
        "is_urgent",
        "is_waiting",
        "owner",
        "puts_off",
        "request_count",
        "serve",
    )

    def __init__(self, serve: Callable[[], bool | None], owner: str = "") -> None:
        self.serve = serve
        self.owner = owner
        """For whom it is served; it may become another's at any time."""
        self.is_waiting = False
        """In a queue. Who leaves one early sets it to False."""
        self.is_urgent = False
        self.is_drained = False
        """For `serve` to set: its last slice has left nothing, in its socket neither."""
        self.puts_off = False
        """For `serve` to set: what it has read in its last slice is handled with what others have sent."""
        self.request_count = 0
        """For `serve` to set: requests that its last slice has handled."""
        self.came_at_s = 0.0
        """Since when it has waited."""
        self._waited_as = owner
        """Owner when it joined the queue: its slice is charged to him. Connections of one address are all some
        account's once their first request has been looked at; charged to that, the address would never have had any
        time, and the rest of them stood before all others."""
        self._cost_us = NEW_COST_US
        self._is_new = True
        self._ticket = 0

    def begin_slice(self) -> None:
        """For `serve` to call first."""
        self.is_drained = self.puts_off = False
        self.request_count = 0

    @property
    def is_long(self) -> bool:
        """Its slices are, as they have been lately, and nothing of them was put off."""
        return self._cost_us >= LONG_US and not self.puts_off

    def length(self) -> int:
        """Length class of its slices; 0 for the shortest, then one more for each doubling."""
        return (int(self._cost_us) // GRAIN_US).bit_length()

    def charge(self, cost_us: float) -> None:
        """A slice of it took so long. One that has handled all there was counts as shorter: what gathers while somebody
        waits must not make him wait among those who always want more. Of one who is new the first slice counts in full
        if it is long; a short one is no proof yet that he asks for little."""
        cost_us = self._usual(cost_us)
        self._cost_us += (cost_us - self._cost_us) * (1 if self._is_new and cost_us > NEW_COST_US else NEW_SHARE)
        self._is_new = False

    def charge_more(self, cost_us: float) -> None:
        """The slice that was charged last has taken so much more."""
        self._cost_us += self._usual(cost_us) * NEW_SHARE

    def _usual(self, cost_us: float) -> float:
        if self.is_drained:
            cost_us /= DRAINED_DIVISOR
        return cost_us * USUAL_COUNT / self.request_count if self.request_count > USUAL_COUNT else cost_us


class _Owner:
    """`had_us`: virtual time that he has had; `entry`: his number in the order of owners, 0 while he is not in it."""

    __slots__ = "entry", "had_us", "waiting"

    def __init__(self, had_us: float) -> None:
        self.had_us = had_us
        self.waiting: list[tuple[int, int, Place]] = []
        """A heap of his places; those that have been taken by age meanwhile are still in it, with a ticket that is none
        any more."""
        self.entry = 0


class FairQueue:
    """Each is in it once at most."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[Place, None] = OrderedDict()
        self._owners: dict[str, _Owner] = {}
        self._by_use: list[tuple[float, int, _Owner]] = []
        """A heap of the owners who wait; those whose time has changed since are still in it, with a number that is none
        any more."""
        self._next_ticket = self._next_entry = 0
        self._now_us = 0.0
        """Virtual time: what the owner had had who was chosen last by it."""
        self._most_owners = KEPT_COUNT

    def __len__(self) -> int:
        """Number of those that wait; those who left early may still be counted."""
        return len(self._by_age)

    def join(self, place: Place) -> None:
        if place.is_waiting:
            return
        self._by_age.pop(place, None)
        place.is_waiting = True
        self._next_ticket = place._ticket = self._next_ticket + 1
        self._by_age[place] = None
        place._waited_as = place.owner
        owner = self._owner(place.owner)
        if not owner.entry:
            owner.had_us = max(owner.had_us, self._now_us - CREDIT_US)
            self._enter(owner)
        heapq.heappush(owner.waiting, (place.length(), place._ticket, place))
        if len(owner.waiting) > 2 * len(self._by_age) + 64:
            owner.waiting = [item for item in owner.waiting if item[2].is_waiting and item[2]._ticket == item[1]]
            heapq.heapify(owner.waiting)

    def pass_by(self, place: Place) -> None:
        """Take note that `place` is served at once: the queue is empty, and it would be next."""
        place._waited_as = place.owner
        owner = self._owner(place.owner)
        if not owner.entry:
            owner.had_us = max(owner.had_us, self._now_us - CREDIT_US)
        self._now_us = max(self._now_us, owner.had_us)

    def charge(self, place: Place, cost_us: float) -> None:
        """A slice of `place`, which has been taken out, took so long."""
        place.charge(cost_us)
        self._had(place, cost_us)

    def charge_more(self, place: Place, cost_us: float, request_count: int) -> None:
        """The slice that was charged last has taken so much more, for so many requests."""
        place.request_count = request_count
        place.charge_more(cost_us)
        self._had(place, cost_us)

    def least(self) -> Place | None:
        """The one with the shortest slices of the owner who has had least, no longer in the queue."""
        owner = self._first_owner()
        if owner is None:
            return None
        _, _, place = heapq.heappop(owner.waiting)
        self._left(place)
        self._now_us = max(self._now_us, owner.had_us)
        return place

    def short(self) -> Place | None:
        """Look for the one that `least` would find; None if its slices are long."""
        owner = self._first_owner()
        return None if owner is None or owner.waiting[0][2].is_long else self.least()

    def _first_owner(self) -> _Owner | None:
        """The owner who has had least; the first of his heap waits."""
        while self._by_use:
            _, entry, owner = self._by_use[0]
            if entry == owner.entry:
                while owner.waiting:
                    _, ticket, place = owner.waiting[0]
                    if place._ticket == ticket and place.is_waiting:
                        return owner
                    heapq.heappop(owner.waiting)
                    if place._ticket == ticket:
                        self._left(place)
                owner.entry = 0
            heapq.heappop(self._by_use)
        return None

    def oldest(self) -> Place | None:
        """The one that has waited longest, no longer in the queue."""
        while self._by_age:
            place = next(iter(self._by_age))
            if self._left(place):
                return place
        return None

    def _left(self, place: Place) -> bool:
        """Note that one left; True if it was still waiting."""
        was_waiting = place.is_waiting
        self._by_age.pop(place, None)
        place.is_waiting = False
        return was_waiting

    def _owner(self, name: str) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            if len(self._owners) >= self._most_owners:
                self._forget_some()
            owner = self._owners[name] = _Owner(self._now_us + DEBIT_US)
        return owner

    def _forget_some(self) -> None:
        """Forget those who would stand little further back if they came for the first time."""
        self._owners = {
            name: owner for name, owner in self._owners.items() if owner.entry or owner.had_us > self._now_us
        }
        self._most_owners = max(KEPT_COUNT, 2 * len(self._owners))

    def _enter(self, owner: _Owner) -> None:
        self._next_entry = owner.entry = self._next_entry + 1
        heapq.heappush(self._by_use, (owner.had_us, owner.entry, owner))

    def _had(self, place: Place, cost_us: float) -> None:
        owner = self._owner(place._waited_as)
        owner.had_us = min(owner.had_us + cost_us, self._now_us + AHEAD_US)
        if owner.entry:
            self._enter(owner)
