"""Bounded work in each turn of the event loop. Shell.

In one turn trio runs every task that is ready, and looks at timers and sockets only then. When thousands of connections
have something to say at once, a turn takes a second, and what must not wait waits with the rest: a leading controller
loses its lease. A server that has `Turns` lets ADMITTED_COUNT sessions read in each turn. The others stand in line, the
oldest first.
"""

from __future__ import annotations

import trio

ADMITTED_COUNT = 256
"""At 0.1 to 0.3 ms for a request some 50 ms, a quarter of a lease. A turn itself costs some ms among 6,000 sockets:
with 16 a heartbeat took 490 us of CPU instead of 165."""


class Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self._free_count = ADMITTED_COUNT
        self._line = trio.lowlevel.ParkingLot()
        self._somebody_waits = trio.Event()

    def after_io_wait(self, timeout: float) -> None:
        """trio's: a turn begins. Those in line come first."""
        self._free_count = ADMITTED_COUNT - len(self._line)

    @property
    def is_busy(self) -> bool:
        """Others have been admitted in this turn before: what can be done for all together should wait for its end."""
        return self._free_count < ADMITTED_COUNT - 1

    def admits(self) -> bool:
        """Whether one more session may read in this turn; it must `wait` otherwise."""
        self._free_count -= 1
        return self._free_count >= 0

    async def wait(self) -> None:
        """Stand in line."""
        self._somebody_waits.set()
        await self._line.park()

    async def run(self) -> None:
        """Let in who waits, until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                await self._somebody_waits.wait()
                while self._line:
                    self._line.unpark(count=ADMITTED_COUNT)
                    await trio.lowlevel.checkpoint()
                self._somebody_waits = trio.Event()
        finally:
            trio.lowlevel.remove_instrument(self)
