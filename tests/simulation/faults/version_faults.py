"""Operators stop brokers in order and start them again: one, or all of a group at once. Or they install another
release, one process at a time: a later one or, back again, an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmqha.sim.prng import SimPrng
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.versions import OF_BROKERS, OF_CONTROLLERS, drawn

TOGETHER_MS = 60
"""All of a group are told to stop within so much."""


class VersionFaults:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self.kinds: Sequence[tuple[str, int, Callable[[SimPrng], None]]] = (
            ("version", strikes.options.change_version_per_mille, self._change),
        )
        """Name, chance per tick, and what happens."""

    def _change(self, draws: SimPrng) -> None:
        processes: list[BrokerProcess | ControllerProcess] = [*self._strikes.brokers, *self._strikes.controllers]
        process = processes[draws.below(len(processes))]
        if not process.alive or process.is_paused or (isinstance(process, BrokerProcess) and process.is_stopping):
            return
        process.dialect = drawn(draws, OF_BROKERS if isinstance(process, BrokerProcess) else OF_CONTROLLERS)
        self._strikes.tell("version", process.host)
        if isinstance(process, BrokerProcess) and draws.chance(2, 3):
            process.stop_in_order()
        else:
            process.kill(power_loss=False)
        self._strikes.start_when_ended(process, process.life)


class CleanStops:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self.kinds: Sequence[tuple[str, int, Callable[[SimPrng], None]]] = (
            ("clean-stop", strikes.options.clean_stop_per_mille, self._stop),
        )
        """Name, chance per tick, and what happens."""

    def _stop(self, draws: SimPrng) -> None:
        brokers = self._strikes.group_of(draws).brokers
        targets = brokers if draws.chance(1, 4) else [brokers[draws.below(len(brokers))]]
        for broker in targets:
            # ticks are multiples of much else that comes at intervals
            self._strikes.scheduler.after(draws.below(TOGETHER_MS), partial(self._stop_one, broker, broker.life))

    def _stop_one(self, broker: BrokerProcess, life: int) -> None:
        strikes = self._strikes
        if strikes.over or broker.life != life or not broker.alive or broker.is_paused or broker.is_stopping:
            return
        strikes.tell("clean-stop", broker.host)
        broker.stop_in_order()
        strikes.start_when_ended(broker, life)
