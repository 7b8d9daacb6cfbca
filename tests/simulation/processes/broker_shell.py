"""What a broker's core tells: done by timers of its process, as the host's tasks do it. And turns of its event loop, as
the host's poller gives them: what several connections have sent meanwhile is served in one, sends that are plain are
taken together, and what can be done for all is done at its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rmqha.broker.requests.request import Channel
from rmqha.ha.action import RoleChanged
from rmqha.sim.prng import SimPrng
from rmqha.sim.transport import Connection
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame

if TYPE_CHECKING:
    from tests.simulation.processes.broker_process import BrokerProcess
    from tests.simulation.processes.process import SimChannel

MOST_MS = 4
"""Between what comes first and the turn that serves it."""
MAX_COUNT = 64
HELD_BACK_MS = 2
COLD_READ_MS = 20
"""Time for which a thread reads what is not in memory; all that waits together is read one after the other."""


class SimShell:
    """Of one life of a broker."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self.role_changed: Callable[[RoleChanged], None] = process.role_changed
        self.stepped = process.wake_timer
        self.wake_dispatch = process.wake_dispatch
        self.wake_flush = process.flush_soon

    def write(self, work: Callable[[], None]) -> bool:
        return self._process.write(work)

    def at_turn_end(self, work: Callable[[], None]) -> bool:
        turns = self._process.turns
        return turns is not None and turns.at_end(work)  # else each delivery is a turn of its own

    def wake_schedule(self) -> None:
        if self._process.is_delivering:
            self._process.deliver_soon()

    def wake_schedule_soon(self) -> None:
        self.wake_schedule()

    def wake_transactions(self) -> None:
        if self._process.transacting is not None:
            self._process.transacting.wake()

    def wake_retention(self) -> None:
        """Operators of these runs ask for nothing."""

    def wake_notices(self) -> None:
        while self._process.core.notices.step():
            pass

    def wake_cold_reads(self) -> None:
        """A thread reads, and the disk takes its time."""
        self._process.after(COLD_READ_MS, self._read_cold)

    def _read_cold(self) -> None:
        process = self._process
        if not process.driver.is_log_free:
            process.after(HELD_BACK_MS, self._read_cold)
        elif (part := process.core.cold_reads.begin()) is not None:
            process.store.loader(*part)()
            process.core.cold_reads.end(part)
            process.core.loaded(part)
            self.wake_cold_reads()

    def wake_searches(self) -> None:
        while self._process.core.queries.step():
            pass

    def save_offsets_soon(self) -> None:
        if self._process.follows_tables:
            self._process.save_soon()

    def save_tables_soon(self) -> None:
        if self._process.follows_tables:
            self._process.save_tables_soon()
        else:
            self._process.core.save_tables()

    def topics_changed(self) -> None:
        if self._process.registering is not None:
            self._process.registering.changed()

    def when_routed(self, done: Callable[[], None]) -> None:
        """Operators of these runs do not wait for routes."""
        done()

    def is_holding(self, channel: Channel) -> bool:
        return self._process.forwarder is not None and self._process.forwarder.is_holding(channel)

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        return self._process.forwarder is not None and self._process.forwarder.hold(channel, commands)

    def call_client(
        self, channel: Channel, command: Command, timeout_ms: int, done: Callable[[Command | str], None]
    ) -> None:
        """No operator of these runs asks a client."""
        done("no client answers")

    def ask_name_server(self, command: Command, done: Callable[[Command | str], None]) -> None:
        """No client of these runs lets the broker divide queues."""
        done("no name server answers")

    def address_problem(self) -> str:
        return ""


class Turns:
    """Of one life of `process`."""

    def __init__(self, process: BrokerProcess, draws: SimPrng) -> None:
        self._process = process
        self._draws = draws
        self._waiting: dict[SimChannel, list[Command]] = {}
        """By connection, in the order of their coming."""
        self._is_busy = False
        self._at_end: list[Callable[[], None]] = []
        self.shared_count = 0
        """Turns that served several connections, and had something to do at their end."""
        self._news: dict[int, tuple[Connection, bytes]] = {}
        """By connection of a slave: a frame that tells only what the next one tells too, held back."""

    def came(self, channel: SimChannel, command: Command) -> None:
        if not self._waiting:
            self._process.after(self._draws.below(MOST_MS), self._turn)
        self._waiting.setdefault(channel, []).append(command)

    def closed(self, channel: SimChannel) -> None:
        """Nobody serves what it has sent."""
        if channel in self._waiting:
            self._waiting[channel].clear()

    def at_end(self, work: Callable[[], None]) -> bool:
        """As `Poller.at_turn_end`."""
        if self._is_busy:
            self._at_end.append(work)
        return self._is_busy

    def _turn(self) -> None:
        process, waiting = self._process, self._waiting
        self._waiting = {}
        self._is_busy = len(waiting) > 1
        processor = process.core.processor
        reads = [(channel, b"".join(map(encode_frame, commands))) for channel, commands in waiting.items()]
        taken = processor.take(reads, MAX_COUNT)
        for (channel, commands), (_, count) in zip(waiting.items(), taken, strict=True):
            if rest := commands[count:]:
                processor.received(channel, rest)
        self._is_busy = False
        works, self._at_end = self._at_end, []
        self.shared_count += bool(works)
        for work in works:
            work()
        process.stepped()

    # --- what the host puts off ---------------------------------------------------------------------------------------
    def hold_news(self, conn: Connection, data: bytes) -> None:
        """A transfer may come before it leaves, and tells it too."""
        if conn.number not in self._news:
            self._process.after(HELD_BACK_MS, partial(self._let_go, conn.number))
        self._news[conn.number] = conn, data

    def told_otherwise(self, conn: Connection) -> None:
        self._news.pop(conn.number, None)

    def _let_go(self, number: int) -> None:
        held = self._news.pop(number, None)
        if held is not None:
            held[0].send(held[1])
