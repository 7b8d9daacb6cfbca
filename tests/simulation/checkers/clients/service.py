"""No stretch without service is longer than faults allow: while a majority of the controllers and enough replicas that
may lead live, undisturbed, some send is acknowledged within a bound."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.sim.scheduler import Scheduler
from tests.simulation.checkers.elections.causes import Causes
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

LOOK_MS = 100
BOUND_MS = 6000
"""A client waits 4 s for a host that has lost its power, and may ask the next one in vain for as long; a dead master is
missed after 2 s; a controller's leader and then a master are elected."""


class Service:
    """Of one group. `brokers` are those that may lead, `copy_count` the replicas that its acknowledgement level needs
    in AP."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        causes: Causes,
        brokers: Sequence[BrokerProcess],
        controllers: Sequence[ControllerProcess],
        *,
        cp: bool,
        copy_count: int,
    ) -> None:
        self._name = name
        self._scheduler = scheduler
        self._causes = causes
        self._brokers = brokers
        self._controllers = controllers
        self._cp = cp
        self._copy_count = copy_count
        self._looked_at_ms = 0
        self._since_ms: int | None = None
        """Of the stretch: the last acknowledgement, or the last moment at which nothing could be demanded. None: no
        client sends."""
        self.longest_ms = 0
        """Of the stretches that could be judged."""

    def wanted(self) -> None:
        """Clients begin to send."""
        self._since_ms = self._scheduler.now_ms

    def unwanted(self) -> None:
        self._since_ms = None

    def acknowledged(self) -> None:
        """A client is answered SEND_OK."""
        if self._since_ms is not None:
            self._since_ms = self._scheduler.now_ms

    def stepped(self, _: BrokerProcess) -> None:
        """A step of a broker: each has a heartbeat to send twice a second."""
        now_ms = self._scheduler.now_ms
        if self._since_ms is None or now_ms < self._looked_at_ms + LOOK_MS:
            return
        self._looked_at_ms = now_ms
        if not self._may_be_demanded(now_ms):
            self._since_ms = now_ms
            return
        self._since_ms = max(self._since_ms, self._causes.disturbed_at_ms)
        stretch_ms = now_ms - self._since_ms
        self.longest_ms = max(self.longest_ms, stretch_ms)
        if stretch_ms > BOUND_MS:
            states = {item.host: (item.replica.role.name, item.driver.admission()[1]) for item in self._living(now_ms)}
            raise InvariantError(
                f"no send of {self._name} has been acknowledged for {stretch_ms} ms, in which nothing has happened;"
                f" its replicas are {states}"
            )

    def _living(self, now_ms: int) -> list[BrokerProcess]:
        return [
            item
            for item in self._brokers
            if item.alive
            and not (item.is_paused or item.disk_fails or item.lost_power or item.store.unclean)
            and item.disturbed_at_ms <= now_ms
        ]

    def _may_be_demanded(self, now_ms: int) -> bool:
        if self._causes.links_disturbed:
            return False
        controllers = [item for item in self._controllers if item.alive and not item.is_paused]
        if 2 * len(controllers) <= len(self._controllers):
            return False
        known = max(controllers, key=lambda item: item.applied_index).machine.info.groups.get(self._name)
        if known is None or not known.set_known:
            return False
        living = {item.broker_id for item in self._living(now_ms)} - known.withheld_ids
        total = known.binding_total_replicas
        needed = self._copy_count if not self._cp else total // 2 + 1 if total > 2 else 1
        return len(living) >= needed and any(item in living for item in known.electable_ids)
