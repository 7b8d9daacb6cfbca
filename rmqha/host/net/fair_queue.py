"""The order in which clients are served: one order for those who ask for little, one for all, so that each gets his
share of the time whatever number of requests it sends. No clock.

Of each it is known what a slice of its work has taken lately. `least` takes one with the shortest slices (so a small
request waits for the slice that is being served, not for a round of all who always want more), `oldest` the one who has
waited longest (so those with long slices are served too, however many others come). A server gives half of its time to
each order. Slices count as shorter by the share that their owner, an account or an address, has of those who wait: a
hundred connections of one do not stand before the only one of another, whose slices are long too by now since it waits.
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
GRAIN_US = 64
"""Slices below it count as equally short, those up to twice as long too, and so on."""


class Place:
    """The place of one who is served again and again by `serve`, a slice of its work in each call; True: there is
    more."""

    __slots__ = "_cost_us", "_is_new", "_ticket", "came_at_s", "is_drained", "is_urgent", "is_waiting", "owner", "serve"

    def __init__(self, serve: Callable[[], bool | None], owner: str = "") -> None:
        self.serve = serve
        self.owner = owner
        """For whom it is served; it may become another's at any time."""
        self.is_waiting = False
        """In a queue. Who leaves one early sets it to False."""
        self.is_urgent = False
        self.is_drained = False
        """For `serve` to set: its last slice has left nothing, in its socket neither."""
        self.came_at_s = 0.0
        """Since when it has waited."""
        self._cost_us = NEW_COST_US
        self._is_new = True
        self._ticket = 0

    def length(self, share: float = 1.0) -> int:
        """Length class of its slices if its owner has such a share of those who wait; 0 for the shortest, then one more
        for each doubling."""
        return (int(self._cost_us * share) // GRAIN_US).bit_length()

    def charge(self, cost_us: float) -> None:
        """A slice of it took so long. One that has handled all there was counts as shorter: what gathers while somebody
        waits must not make him wait among those who always want more."""
        if self.is_drained:
            cost_us /= DRAINED_DIVISOR
        self._cost_us += (cost_us - self._cost_us) * (1 if self._is_new else NEW_SHARE)
        self._is_new = False

    def charge_more(self, cost_us: float) -> None:
        """The slice that was charged last has taken so much more."""
        self._cost_us += cost_us * NEW_SHARE / (DRAINED_DIVISOR if self.is_drained else 1)


class FairQueue:
    """Each is in it once at most."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[Place, str] = OrderedDict()
        """Each with its owner when it came."""
        self._counts: dict[str, int] = {}
        """Number of those that wait, by owner."""
        self._by_use: list[tuple[int, int, Place]] = []
        """A heap; those that have been taken by age meanwhile are still in it, with a ticket that is none any more."""
        self._next_ticket = 0

    def __len__(self) -> int:
        """Number of those that wait; those who left early may still be counted."""
        return len(self._by_age)

    def join(self, place: Place) -> None:
        if place.is_waiting:
            return
        self._forget(place)
        place.is_waiting = True
        self._next_ticket = place._ticket = self._next_ticket + 1
        owner = self._by_age[place] = place.owner
        count = self._counts[owner] = self._counts.get(owner, 0) + 1
        heapq.heappush(self._by_use, (place.length(count / len(self._by_age)), place._ticket, place))
        if len(self._by_use) > 2 * len(self._by_age) + 64:
            self._by_use = [item for item in self._by_use if item[2].is_waiting and item[2]._ticket == item[1]]
            heapq.heapify(self._by_use)

    def least(self) -> Place | None:
        """The one with the shortest slices, no longer in the queue."""
        heap = self._by_use
        while heap:
            _, ticket, place = heapq.heappop(heap)
            if place._ticket == ticket and self._left(place):
                return place
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
        self._forget(place)
        place.is_waiting = False
        return was_waiting

    def _forget(self, place: Place) -> None:
        owner = self._by_age.pop(place, None)
        if owner is not None:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
