"""Operators install another release, one process at a time: a later one or, back again, an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmqha.sim.prng import SimPrng
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.versions import OF_BROKERS, OF_CONTROLLERS, drawn

LOOK_MS = 50


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
        self._start_when_ended(process, process.life)

    def _start_when_ended(self, process: BrokerProcess | ControllerProcess, life: int) -> None:
        """After the heal too: the operator finishes what was begun."""
        if process.life == life:
            if not process.alive:
                self._strikes.tell("start", process.host)
                process.boot()
            else:
                self._strikes.scheduler.after(LOOK_MS, lambda: self._start_when_ended(process, life))
