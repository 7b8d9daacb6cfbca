"""What the host's loop of transactions does: a step now and then, and as soon as copies are held by the set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqha.broker.core import BrokerCore

if TYPE_CHECKING:
    from tests.simulation.processes.broker_process import BrokerProcess

TICK_MS = 200


class Transacting:
    """Of one life of a broker."""

    def __init__(self, process: BrokerProcess, core: BrokerCore) -> None:
        self._process = process
        self._service = core.transactions
        self._is_woken = False
        self._later()

    def _later(self) -> None:
        self._process.after(TICK_MS, self._tick)

    def _tick(self) -> None:
        self._step()
        self._later()

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._process.after(0, self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self._step()

    def _step(self) -> None:
        """Other work goes on between two slices, as between two checkpoints on the host."""
        more = self._service.step()
        self._process.stepped()
        if more:
            self.wake()
