"""What every kind of fault stands on: whom it may touch, its draws, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from rmqha.sim.transport import Transport
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.options import Options
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.name_server_process import NameServerProcess

LOOK_MS = 50


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts of a world that faults touch. `only`: keys of the faults that may happen, None for all."""

    options: Options
    scheduler: Scheduler
    transport: Transport
    prng: SimPrng
    tracer: SimTracer
    groups: Sequence[BrokerGroup]
    controllers: Sequence[ControllerProcess]
    name_servers: Sequence[NameServerProcess]
    only: frozenset[str] | None = None


class Strikes:
    def __init__(self, stage: Stage) -> None:
        self.options = stage.options
        self.scheduler = stage.scheduler
        self.transport = stage.transport
        self._prng = stage.prng
        self._tracer = stage.tracer
        self.groups = stage.groups[:1] if stage.options.spared else stage.groups
        """Those that faults may touch."""
        self.brokers = [broker for group in self.groups for broker in group.brokers]
        self.controllers = stage.controllers
        self.name_servers = stage.name_servers
        self._only = stage.only
        self.begun = self.over = False
        self.count = 0
        self.disturbed: Callable[[Sequence[str]], None] = lambda hosts: None
        """Told of the hosts that a fault, or the end of one, touches."""
        self.wiped: Callable[[BrokerProcess], None] = lambda broker: None
        """Told of a broker that is about to lose its disk."""
        self.keys: list[str] = []
        """Of the faults that happened, in order."""

    def tell(self, what: str, whom: str, *hosts: str) -> None:
        """`hosts`: what it touches, if that is not `whom`."""
        self.count += 1
        self._tracer.event("fault", what=what, whom=whom)
        self.disturbed(hosts or (whom,))

    def chance(self, name: str, moment: str, per_mille: int, act: Callable[[SimPrng], None]) -> None:
        draws, key = self._prng.child(name).child(moment), f"{name}@{moment}"
        if draws.chance(per_mille, 1000) and (self._only is None or key in self._only):
            self.keys.append(key)
            act(draws)

    def restart_later(
        self,
        process: BrokerProcess | ControllerProcess | NameServerProcess,
        draws: SimPrng,
        least_ms: int = 1,
        most_ms: int = 0,
    ) -> None:
        def start() -> None:
            # `stop` has started all; who dies later, in the last trial, stays away until that is over
            if not process.alive and not self.over:
                self.tell("start", process.host)
                if isinstance(process, BrokerProcess) and self.options.clock_at_start_per_mille:
                    self._set_clock(process)
                process.boot()

        self.scheduler.after(draws.between(least_ms, most_ms or self.options.restart_after_ms), start)

    def start_when_ended(self, process: BrokerProcess | ControllerProcess, life: int) -> None:
        """After the heal too: the operator finishes what was begun."""
        if process.life == life:
            if not process.alive:
                self.tell("start", process.host)
                process.boot()
            else:
                self.scheduler.after(LOOK_MS, lambda: self.start_when_ended(process, life))

    def _set_clock(self, broker: BrokerProcess) -> None:
        moment = f"{broker.host} {self.scheduler.now_ms}"
        self.chance(
            "clock-at-start",
            moment,
            self.options.clock_at_start_per_mille,
            lambda draws: broker.clock.step_wall(draws.between(-3_600_000, 3_600_000)),
        )

    def hold_still(
        self, process: BrokerProcess | ControllerProcess, draws: SimPrng, least_ms: int = 100, most_ms: int = 4000
    ) -> None:
        if process.alive and not process.is_paused:
            self.tell("pause", process.host)
            process.pause()
            life = process.life

            def resume() -> None:
                if process.life == life and process.alive:
                    process.resume()
                    self.disturbed((process.host,))

            self.scheduler.after(draws.between(least_ms, most_ms), resume)

    def group_of(self, draws: SimPrng) -> BrokerGroup:
        return self.groups[draws.below(len(self.groups)) if len(self.groups) > 1 else 0]

    def broker_of(self, draws: SimPrng) -> BrokerProcess:
        brokers = self.group_of(draws).brokers
        return brokers[draws.below(len(brokers))]

    def may_strike(self, process: BrokerProcess | ControllerProcess) -> bool:
        spared = isinstance(process, ControllerProcess) and self.options.spared
        return not self.over and not spared and (process in self.brokers or process in self.controllers)

    def group_with(self, broker: BrokerProcess) -> BrokerGroup:
        return next(group for group in self.groups if broker in group.brokers)

    def may_lose_power(self, broker: BrokerProcess) -> bool:
        """ASYNC_FLUSH promises to survive the loss of a minority: replicas not whole again count as lost (ruling 3).
        One of two that acknowledges alone has all synced (ruling 6)."""
        group = self.group_with(broker)
        options, brokers = group.options, group.brokers
        if not options.cp or options.sync_flush:
            return True
        if len(brokers) == 2:
            return broker.alive and broker.replica.sync_required and not any(item.lost_power for item in brokers)
        others = [item for item in brokers if item is not broker]
        return sum(not item.alive or item.lost_power or item.store.unclean for item in others) < (len(brokers) - 1) // 2
