"""What an operator does for a group that cannot become whole by itself: each what the project's own words advise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.state.replicas_info import BrokerGroup as KnownGroup
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.checkers.logs.reports import Reports
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

PATIENCE_MS = 5000
"""How long an operator watches a group without a master before saying `elect --unclean`."""


class Rescue:
    """Of one group. `take_back` is told of replicas that are drained: a whole group has none."""

    def __init__(
        self,
        group: BrokerGroup,
        controllers: Sequence[ControllerProcess],
        scheduler: Scheduler,
        tracer: SimTracer,
        reports: Reports,
        take_back: Callable[[BrokerGroup, int], None],
    ) -> None:
        self._group = group
        self._controllers = controllers
        self._scheduler = scheduler
        self._tracer = tracer
        self._reports = reports
        self._take_back = take_back
        self._at_ms = 0
        self.accepts_loss = False
        """An unclean election was asked for."""

    def begin(self) -> None:
        self._at_ms = self._scheduler.now_ms + PATIENCE_MS

    def look(self) -> None:
        """Now and then, while the group is not whole."""
        if self._group.is_static:
            return
        self._take_back_drained()
        self._replace_bad_disks()
        if self._scheduler.now_ms < self._at_ms:
            return
        if self._is_needed():
            self._at_ms = self._scheduler.now_ms + PATIENCE_MS
            self._elect_unclean()
        self._empty_refused()

    def _is_needed(self) -> bool:
        """Nobody takes messages; or the controllers' disk was lost, so that they wait for all replicas (ruling 8), and
        one does not count for want of a master to follow."""
        forgotten = any(group.master_id is None for group in self._known())
        return forgotten or not any(item.alive and item.admits for item in self._group.members)

    def _known(self) -> list[KnownGroup]:
        """The group as leading controllers know it."""
        leading = (item for item in self._controllers if item.alive and item.machine.is_leading)
        groups = (item.machine.info.groups.get(self._group.name) for item in leading)
        return [group for group in groups if group is not None]

    def _elect_unclean(self) -> None:
        """What `rmqha elect --unclean` advises: of all replicas the one with the highest (epoch, end). Needed only when
        every electable replica has lost power (ruling 3), or where releases are mixed is said to: one of an earlier
        release that says so late leaves the set once more, though it has accepted its election (mixed-static 3001)."""
        group = self._group
        said = group.options.mixed_releases and any(
            known.master_id is None and known.unclean_ids for known in self._known()
        )
        if not said and not any(broker.store.unclean for broker in group.members):
            return
        best = max(group.members, key=lambda item: (_last_epoch(item), item.store.max_phy_offset, item.host))
        group.accepted_loss(best.store.max_phy_offset)
        self.accepts_loss = True
        self._tracer.event("operator", elects=best.host, end=best.store.max_phy_offset)
        group.clients[0].elect_unclean(self._controllers[0].config.peers, group.name, best)

    def _empty_refused(self) -> None:
        """What a refusal to cut advises (3-3: the master's log and this one have nothing in common). Two masters at
        once may come to that in AP, when the part in common is old enough to be removed. In CP it is a violation, but
        for what an unclean election may lose: `rmqha fork repair` copies such a replica anew."""
        for broker in self._group.brokers:
            if self._group.options.cp and not self._is_repairable(broker):
                continue
            if broker.alive and not broker.replica.is_master and broker.replica.state(0).refusal:
                self._tracer.event("operator", empties=broker.host, end=broker.store.max_phy_offset)
                self._group.causes.disturbed()
                self._reports.replaced(broker.host)
                broker.replace_disk()
                broker.boot()

    def _is_repairable(self, broker: BrokerProcess) -> bool:
        """An unclean election was asked for, another leads, and its set does not hold this one."""
        masters = [item.replica.state(0) for item in self._group.members if item.alive and item.replica.is_master]
        return self.accepts_loss and any(broker.replica.broker_id not in (master.ack_union or ()) for master in masters)

    def _replace_bad_disks(self) -> None:
        """What a store that is refused advises: remove it, and let the replica copy the group's."""
        for broker in self._group.brokers:
            may = not self._group.options.cp or self._group.do_without(broker)
            if broker.has_bad_disk and not broker.alive and may:
                self._tracer.event("operator", empties=broker.host, end=broker.end_offset)
                self._group.causes.disturbed()
                self._reports.replaced(broker.host)
                broker.replace_disk()
                broker.boot()

    def _take_back_drained(self) -> None:
        groups = [item.machine.info.groups.get(self._group.name) for item in self._controllers if item.alive]
        for broker_id in sorted({each for group in groups if group is not None for each in group.drained_ids}):
            self._take_back(self._group, broker_id)


def _last_epoch(broker: BrokerProcess) -> int:
    last = broker.store.epochs.last
    return last.epoch if last is not None else 0
