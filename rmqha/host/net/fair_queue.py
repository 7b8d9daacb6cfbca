"""Order in which a server's sessions are served: start-time fair queueing (SFQ) by owner, and beside it by age. No
clock.

An owner is an account, or an address where there are no accounts; its sessions are one flow. `pop_fairest` serves the
flow with the least virtual time, which is the time (µs) that its slices have taken. A flow that comes back after a
pause begins at the virtual time of the queue less IDLE_CREDIT_US, so a pause earns no more than that. A hundred
connections of one owner therefore get together what one connection of another owner gets. Within a flow the session
with the shortest slices is next, measured by a moving average: a small request waits for the slice that is being
served, not for a round of all sessions that always have more.

`pop_oldest` serves the session that has waited longest, so sessions with long slices are served however many others
come. The poller gives half of its time to each order."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

COST_WEIGHT = 0.25
"""Weight of the last slice in the moving average of a session's cost."""
INITIAL_COST_US = 250.0
"""Cost (µs) of a session that has had no slice. New sessions do not go before those known to have slices as short."""
DRAINED_DIVISOR = 8
"""Divisor of the cost of a slice that has handled all there was."""
NORMAL_REQUEST_COUNT = 16
"""A slice whose sends are handled in a batch with those of other sessions is measured as if it had had this many
requests, if it had more. Sends that gathered during a wait make a slice long, and must not put the session behind those
whose every request is costly. All other requests count in full: a session waits for them as long as they take."""
LONG_SLICE_US = 500.0
"""Cost (µs) from which slices are long, unless their sends are handled in a batch with those of other sessions."""
COST_CLASS_US = 64
"""Width (µs) of the lowest cost class; each class is twice as wide as the one below it. Sessions of one class are
served in the order in which they came, new ones behind the others."""
IDLE_CREDIT_US = 5_000.0
"""Virtual time (µs) that an idle flow may be behind the queue's when it comes back: a turn of a poller."""
NEW_FLOW_DEBIT_US = 2_000.0
"""Virtual time (µs) that a new flow begins ahead of the queue's: a slice. Owners who come once each do not go before
those who have waited meanwhile."""
MAX_LEAD_US = 100_000.0
"""Virtual time (µs) that a flow may be ahead of the queue's. Time that its sessions were given by age is no debt beyond
it."""
MIN_PRUNE_COUNT = 64
"""Number of flows from which idle ones are forgotten."""


class QueueEntry:
    """One session in the queue. `serve` does one slice of its work and returns True if there is more."""

    __slots__ = (
        "_charged_owner",
        "_is_new",
        "_mean_cost_us",
        "_ticket",
        "is_deferred",
        "is_drained",
        "is_queued",
        "is_urgent",
        "owner",
        "queued_at_s",
        "request_count",
        "serve",
    )

    def __init__(self, serve: Callable[[], bool | None], owner: str = "") -> None:
        self.serve = serve
        self.owner = owner
        """Account or address that its time is charged to; it may change at any time."""
        self.is_queued = False
        """True while it is in a queue. Set to False to leave the queue early."""
        self.is_urgent = False
        self.is_drained = False
        """Set by `serve`: the last slice has left nothing to do, in the socket neither."""
        self.is_deferred = False
        """Set by `serve`: the requests read in the last slice are handled in a batch at the end of the turn."""
        self.request_count = 0
        """Set by `serve`: number of requests that the last slice has handled."""
        self.queued_at_s = 0.0
        """Monotonic time (s) since when it has waited."""
        self._charged_owner = owner
        """Owner when it was queued, to which the slice is charged. All connections of an address may belong to one
        account once their first request is checked. If their slices were charged to the account, the address would have
        no virtual time, and its other connections would be served before all others."""
        self._mean_cost_us = INITIAL_COST_US
        self._is_new = True
        self._ticket = 0

    def begin_slice(self) -> None:
        """Reset what `serve` sets. `serve` calls it first."""
        self.is_drained = self.is_deferred = False
        self.request_count = 0

    @property
    def is_long(self) -> bool:
        """True if its slices have been long lately, and the last one deferred nothing."""
        return self._mean_cost_us >= LONG_SLICE_US and not self.is_deferred

    def cost_class(self) -> int:
        """Class of its mean cost; 0 is the lowest, then one more for each doubling."""
        return (int(self._mean_cost_us) // COST_CLASS_US).bit_length()

    def rank(self) -> int:
        """Place among the sessions of its flow: the cost class, and in each class new sessions behind the others."""
        return 2 * self.cost_class() + self._is_new

    def charge(self, cost_us: float) -> None:
        """Add a slice to the moving average. A long first slice counts in full; a short one has the usual weight, as it
        does not prove yet that the session has short slices."""
        cost_us = self._normalized_us(cost_us)
        weight = 1 if self._is_new and cost_us > INITIAL_COST_US else COST_WEIGHT
        self._mean_cost_us += (cost_us - self._mean_cost_us) * weight
        self._is_new = False

    def charge_deferred(self, cost_us: float) -> None:
        """Add the cost of deferred requests to the slice that was charged last."""
        self._mean_cost_us += self._normalized_us(cost_us) * COST_WEIGHT

    def _normalized_us(self, cost_us: float) -> float:
        """Cost (µs) as it is averaged. Sends that gathered during a wait must not make the session wait longer."""
        if self.is_drained:
            cost_us /= DRAINED_DIVISOR
        if self.is_deferred and self.request_count > NORMAL_REQUEST_COUNT:
            return cost_us * NORMAL_REQUEST_COUNT / self.request_count
        return cost_us


class _Flow:
    """Sessions of one owner."""

    __slots__ = "ticket", "virtual_time_us", "waiting"

    def __init__(self, virtual_time_us: float) -> None:
        self.virtual_time_us = virtual_time_us
        """Time (µs) that its slices have taken, bounded by IDLE_CREDIT_US and MAX_LEAD_US around the queue's."""
        self.waiting: list[tuple[int, int, QueueEntry]] = []
        """Heap of (rank, ticket, session). Items that were popped by age stay in it, with an outdated ticket."""
        self.ticket = 0
        """Ticket of its valid item in the heap of flows; 0 while it is not queued."""


class FairQueue:
    """Sessions that wait to be served; each is in it at most once."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[QueueEntry, None] = OrderedDict()
        self._flows: dict[str, _Flow] = {}
        self._flow_heap: list[tuple[float, int, _Flow]] = []
        """Heap of (virtual time, ticket, flow) of queued flows. When a flow's time changes a new item is pushed; the
        old one stays in it, with an outdated ticket."""
        self._last_ticket = self._last_flow_ticket = 0
        self._virtual_time_us = 0.0
        """Virtual time (µs) of the flow that was served last as the fairest."""
        self._prune_count = MIN_PRUNE_COUNT
        """Number of flows at which the next new one makes it forget idle ones."""

    def __len__(self) -> int:
        """Number of sessions that wait; those that left early may still be counted."""
        return len(self._by_age)

    def push(self, entry: QueueEntry) -> None:
        """Queue a session; nothing happens if it is queued."""
        if entry.is_queued:
            return
        self._by_age.pop(entry, None)
        entry.is_queued = True
        self._last_ticket = entry._ticket = self._last_ticket + 1
        self._by_age[entry] = None
        entry._charged_owner = entry.owner
        flow = self._flow(entry.owner)
        if not flow.ticket:
            flow.virtual_time_us = max(flow.virtual_time_us, self._virtual_time_us - IDLE_CREDIT_US)
            self._push_flow(flow)
        heapq.heappush(flow.waiting, (entry.rank(), entry._ticket, entry))
        if len(flow.waiting) > 2 * len(self._by_age) + 64:
            flow.waiting = [item for item in flow.waiting if item[2].is_queued and item[2]._ticket == item[1]]
            heapq.heapify(flow.waiting)

    def bypass(self, entry: QueueEntry) -> None:
        """Update the virtual times as if `entry` were pushed and popped: the queue is empty, and it is served at
        once."""
        entry._charged_owner = entry.owner
        flow = self._flow(entry.owner)
        if not flow.ticket:
            flow.virtual_time_us = max(flow.virtual_time_us, self._virtual_time_us - IDLE_CREDIT_US)
        self._virtual_time_us = max(self._virtual_time_us, flow.virtual_time_us)

    def charge(self, entry: QueueEntry, cost_us: float) -> None:
        """Charge a slice of `entry`, which was popped, to its owner."""
        entry.charge(cost_us)
        self._advance(entry, cost_us)

    def charge_deferred(self, entry: QueueEntry, cost_us: float, request_count: int) -> None:
        """Add the cost of deferred requests, `request_count` of them, to the slice that was charged last."""
        entry.request_count = request_count
        entry.charge_deferred(cost_us)
        self._advance(entry, cost_us)

    def pop_fairest(self) -> QueueEntry | None:
        """Pop the session with the shortest slices of the flow with the least virtual time."""
        flow = self._fairest_flow()
        if flow is None:
            return None
        _, _, entry = heapq.heappop(flow.waiting)
        self._remove(entry)
        self._virtual_time_us = max(self._virtual_time_us, flow.virtual_time_us)
        return entry

    def pop_fairest_if_short(self) -> QueueEntry | None:
        """Pop as `pop_fairest` does; None, and nothing is popped, if the slices of that session are long."""
        flow = self._fairest_flow()
        return None if flow is None or flow.waiting[0][2].is_long else self.pop_fairest()

    def _fairest_flow(self) -> _Flow | None:
        """Flow with the least virtual time; the first item of its heap is valid."""
        while self._flow_heap:
            _, flow_ticket, flow = self._flow_heap[0]
            if flow_ticket == flow.ticket:
                while flow.waiting:
                    _, ticket, entry = flow.waiting[0]
                    if entry._ticket == ticket and entry.is_queued:
                        return flow
                    heapq.heappop(flow.waiting)
                    if entry._ticket == ticket:
                        self._remove(entry)
                flow.ticket = 0
            heapq.heappop(self._flow_heap)
        return None

    def pop_oldest(self) -> QueueEntry | None:
        """Pop the session that has waited longest."""
        while self._by_age:
            entry = next(iter(self._by_age))
            if self._remove(entry):
                return entry
        return None

    def _remove(self, entry: QueueEntry) -> bool:
        """Remove a session from the order of age; True if it was queued."""
        was_queued = entry.is_queued
        self._by_age.pop(entry, None)
        entry.is_queued = False
        return was_queued

    def _flow(self, owner: str) -> _Flow:
        flow = self._flows.get(owner)
        if flow is None:
            if len(self._flows) >= self._prune_count:
                self._forget_idle_flows()
            flow = self._flows[owner] = _Flow(self._virtual_time_us + NEW_FLOW_DEBIT_US)
        return flow

    def _forget_idle_flows(self) -> None:
        """Forget flows that are not queued and have no lead: as new ones they would begin little further back."""
        self._flows = {
            owner: flow
            for owner, flow in self._flows.items()
            if flow.ticket or flow.virtual_time_us > self._virtual_time_us
        }
        self._prune_count = max(MIN_PRUNE_COUNT, 2 * len(self._flows))

    def _push_flow(self, flow: _Flow) -> None:
        self._last_flow_ticket = flow.ticket = self._last_flow_ticket + 1
        heapq.heappush(self._flow_heap, (flow.virtual_time_us, flow.ticket, flow))

    def _advance(self, entry: QueueEntry, cost_us: float) -> None:
        """Advance the virtual time of the flow that `entry` is charged to."""
        flow = self._flow(entry._charged_owner)
        flow.virtual_time_us = min(flow.virtual_time_us + cost_us, self._virtual_time_us + MAX_LEAD_US)
        if flow.ticket:
            self._push_flow(flow)
