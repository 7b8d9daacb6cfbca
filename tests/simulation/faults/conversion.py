"""An operator who makes a group with controllers of a static one, and back, as docs/operate/migration.md says: stop in
order, compare the stores, start as the other kind. What the comparison refuses is settled as it advises."""

from __future__ import annotations

from rmqha.inspect.migration import Migration, MigrationTarget, check, common_history, give_epochs
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.read_disk import SimReadDisk

LATEST_START_MS = 3000


class Conversion:
    """Of one group, once."""

    def __init__(self, group: BrokerGroup, scheduler: Scheduler, prng: SimPrng, tracer: SimTracer) -> None:
        self._group = group
        self._scheduler = scheduler
        self._prng = prng
        self._tracer = tracer
        self._target = MigrationTarget.CONTROLLER if group.is_static else MigrationTarget.STATIC
        self._waits_for_start = False
        """Some store was refused: the group runs as it was, until it is whole."""
        self._told: set[tuple[str, int]] = set()
        """Hosts that were told to stop, and in which life."""
        slaves = [broker for broker in group.brokers if broker.alive and not broker.replica.is_master]
        self._first = slaves[prng.below(len(slaves))] if slaves and prng.chance(1, 2) else None
        """A slave that is stopped before the others, and lacks what they write meanwhile."""
        self._others_at_ms = scheduler.now_ms + (prng.between(200, 2000) if self._first is not None else 0)

    def lack(self) -> str:
        """One step further, if one is due; "" once the group starts as what it shall be."""
        group = self._group
        group.causes.disturbed()
        if self._waits_for_start:
            if lack := self._unsettled():
                return f"as it was: {lack}"
            self._waits_for_start = False
        if self._first is not None and self._scheduler.now_ms < self._others_at_ms:
            self._stop([broker for broker in (self._first,) if broker.alive])
            return f"{self._first.host} stops first"
        if running := [broker for broker in group.brokers if broker.alive]:
            self._stop(running)
            return f"{[broker.host for broker in running]} are to stop"
        found = check([SimReadDisk(each.disk, each.host) for each in group.brokers], self._target, lambda *_: None)
        if not found.is_safe:
            words = "; ".join(f"{each.label}: {item.words}" for each in found.members for item in each.problems)
            self._tracer.event("operator", settles=words)
            self._waits_for_start = True
            self._start()
            return f"migrate --check says: {words}"
        self._convert(found)
        return ""

    def _unsettled(self) -> str:
        """What keeps the group, as it was, from being stopped again. Producers go on meanwhile."""
        group = self._group
        masters = [broker for broker in group.brokers if broker.alive and broker.admits]
        if len(masters) != 1:
            return f"{[broker.host for broker in masters]} take sends"
        astray = [
            broker.host
            for broker in group.brokers
            if not broker.alive or broker.store.unclean or not (broker.replica.is_master or broker.replica.is_following)
        ]
        return f"{astray} are not whole" if astray else ""

    def _stop(self, running: list[BrokerProcess]) -> None:
        """The master of a static group before its slaves, to which it gives what they lack; another one after them."""
        masters = [broker for broker in running if broker.replica.is_master]
        slaves = [broker for broker in running if not broker.replica.is_master]
        for broker in (masters or slaves) if self._group.is_static else (slaves or masters):
            if (broker.host, broker.life) not in self._told:
                self._told.add((broker.host, broker.life))
                broker.stop_in_order()

    def _convert(self, found: Migration) -> None:
        group = self._group
        self._tracer.event("operator", converts=self._target.value, first=found.reference.label)
        if self._target is MigrationTarget.STATIC:
            group.become_static(found.reference.label)
        else:
            group.become_controlled(found.reference.end_offset)
            if found.needs_epochs:
                history = common_history(found)
                for broker, member in zip(group.brokers, found.members, strict=True):
                    give_epochs(broker.disk, member, history)
        self._start()

    def _start(self) -> None:
        for broker in self._group.brokers:
            self._scheduler.after(self._prng.between(0, LATEST_START_MS), broker.boot)
