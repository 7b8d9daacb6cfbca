"""A slave's TableFollower in the simulation: production coroutines, resumed by simulated events instead of trio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from zlib import crc32

from rmqha.broker.core import BrokerCore
from rmqha.broker.tables.metadata_follower import MetadataFollower
from rmqha.model.error import UnreachableError
from rmqha.port import Tracer
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import BLANK, locate
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from tests.simulation.processes.broker_process import BrokerProcess
    from tests.simulation.processes.process import Process, Rpc

T = TypeVar("T")
SCRUB_TICK_MS = 500
CRC_AT, BODY_CRC_END = 8, 12
"""Of a body's CRC, in its record."""
WRITE_MS = 5
"""A table is on the disk after that long at most."""


class Later(Generic[T]):
    """A value that an event will bring."""

    def __init__(self) -> None:
        self._done = False
        self._value: T
        self.then: Callable[[], None] = lambda: None

    def set(self, value: T) -> None:
        self._value, self._done = value, True
        self.then()

    def __await__(self) -> Generator[Later[T], None, T]:
        if not self._done:
            yield self
        return self._value


class SimPort:
    """Implements rmqha.broker.tables.metadata_follower.AsyncPort."""

    def __init__(self, process: Process, rpc: Rpc, draws: SimPrng) -> None:
        self._process = process
        self._rpc = rpc
        self._draws = draws
        self._writes: list[Callable[[], None]] = []
        """Those that threads of the host would have begun: they come to their end, whoever stops waiting."""

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        answer: Later[Command | None] = Later()
        self._rpc.call(address, command, timeout_ms, answer.set)
        reply = await answer
        if reply is None:
            raise UnreachableError(f"{address} does not answer")
        return reply

    async def sleep(self, duration_ms: int) -> None:
        over: Later[None] = Later()
        self._process.after(duration_ms, lambda: over.set(None))
        await over

    async def write(self, write: Callable[[T], None], data: T) -> None:
        written: Later[OSError | None] = Later()

        def work() -> None:
            if work not in self._writes:
                return
            if self._process.is_changing_log:
                self._process.after(WRITE_MS, work)  # the host's thread waits for that of the change
                return
            self._writes.remove(work)
            try:
                write(data)
            except OSError as error:
                written.set(error)
            else:
                written.set(None)

        self._writes.append(work)
        self._process.after(self._draws.between(0, WRITE_MS), work)
        error = await written
        if error is not None:
            raise error

    def finish_writes(self) -> None:
        """As a process that stops waits for its threads."""
        for work in tuple(self._writes):
            work()


class Coroutines:
    """One coroutine at a time, resumed by what it awaits; a new one ends the last."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self._running: Coroutine[Any, Any, None] | None = None
        self._ended = ended

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def start(self, running: Coroutine[Any, Any, None]) -> None:
        self.stop()
        self._running = running
        self._resume(running)

    def _resume(self, running: Coroutine[Any, Any, None]) -> None:
        if running is not self._running:
            return  # its answer came when another was running
        try:
            later: Later[Any] = running.send(None)
        except StopIteration:
            self._running = None
            self._ended()
        else:
            later.then = lambda: self._resume(running)


class Following:
    """What MetadataSync does on the host: follow whoever is master, anew at each change."""

    def __init__(self, process: Process, rpc: Rpc, core: BrokerCore, tracer: Tracer, draws: SimPrng) -> None:
        tables = (
            core.topics,
            core.groups,
            core.offsets,
            core.delay_offsets,
            core.users,
            core.modes,
            core.master_timer_counts,
        )
        self._process = process
        self._core = core
        self._port = SimPort(process, rpc, draws)
        self._follower = MetadataFollower(
            *tables,
            self._port,
            lambda: core.followed_master,
            core.holds_log,
            tracer,
            saves_offsets=core.config.offset_sync == "strict",
        )
        core.store.on_truncate(lambda end_offset: self._follower.log_cut())
        self._work = Coroutines(self._begin)

    def stop(self) -> None:
        self._work.stop()
        self._port.finish_writes()

    def role_changed(self) -> None:
        self._work.stop()
        self._process.after(0, self._begin)

    def _begin(self) -> None:
        master = self._core.followed_master
        if master is not None and not self._work.is_busy:
            self._work.start(self._follower.follow(master))


class LearningEnds:
    """What QueueEndsSync does on the host."""

    def __init__(self, process: Process, rpc: Rpc, core: BrokerCore, draws: SimPrng) -> None:
        self._process = process
        self._ends = core.queue_ends
        self._port = SimPort(process, rpc, draws)
        self._work = Coroutines()
        starts = core.store.queue_min_offsets
        starts.subscribe(self._begin_soon)
        if starts.lacks:
            self._begin_soon()

    def _begin_soon(self) -> None:
        self._process.after(0, self._begin)

    def _begin(self) -> None:
        if not self._work.is_busy:
            self._work.start(self._ends.learn(self._port))


class RottenOffers(SimPort):
    """One of three records that replicas give back is another by one bit of its body, where records rot; or another
    message of the same length, sound in itself, written there under another epoch: what a log holds that has forked."""

    def __init__(self, process: BrokerProcess, rpc: Rpc, draws: SimPrng) -> None:
        super().__init__(process, rpc, draws)
        self._broker = process
        self._foreign_draws = draws.child("foreign")

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        reply = await super().call(address, command, timeout_ms)
        data = bytearray(reply.body)
        if self._broker.takes_rotten_offers and data and self._draws.chance(1, 3):
            body_at, body_bytes = locate(memoryview(data), 0, len(data), int(command.ext["phyOffset"]))[4:6]
            data[body_at + self._draws.below(body_bytes)] ^= 1 << self._draws.below(8)
            reply.body, reply.ext["crc32"] = bytes(data), str(crc32(data))
        elif self._broker.takes_foreign_offers and len(data) > BLANK.size and self._foreign_draws.chance(1, 3):
            self._make_foreign(reply, data, int(command.ext["phyOffset"]))
        return reply

    def _make_foreign(self, reply: Command, data: bytearray, phy_offset: int) -> None:
        """Another message and its CRC, and the entry of the epoch that wrote it."""
        draws = self._foreign_draws
        body_at, body_bytes = locate(memoryview(data), 0, len(data), phy_offset)[4:6]
        data[body_at + draws.below(body_bytes)] ^= 1 << draws.below(8)
        data[CRC_AT:BODY_CRC_END] = (crc32(data[body_at : body_at + body_bytes]) & 0x7FFFFFFF).to_bytes(4, "big")
        reply.body, reply.ext["crc32"] = bytes(data), str(crc32(data))
        reply.ext["epoch"] = str(int(reply.ext.get("epoch", "0")) + 1)
        reply.ext["epochStartOffset"] = str(phy_offset)


class Repairing:
    """What RepairLoop does on the host."""

    def __init__(self, process: BrokerProcess, rpc: Rpc, core: BrokerCore, draws: SimPrng) -> None:
        self._process = process
        self._core = core
        self._port = RottenOffers(process, rpc, draws)
        self._work = Coroutines(self._begin_if_due)
        core.store.damage.subscribe(self._begin_soon)
        self._begin_if_due()

    def _begin_if_due(self) -> None:
        if self._core.store.damage.records:
            self._begin_soon()

    def _begin_soon(self) -> None:
        self._process.after(0, self._begin)

    def _begin(self) -> None:
        if not self._work.is_busy:
            self._work.start(self._core.read_repair.run(self._port))


class Scrubbing:
    """What ScrubLoop does on the host, more at a time."""

    def __init__(self, process: BrokerProcess, core: BrokerCore) -> None:
        self._process = process
        self._core = core
        process.after(SCRUB_TICK_MS, self._tick)

    def _tick(self) -> None:
        scrubber = self._core.scrubber
        limit_bytes = self._core.config.scrub_bytes_per_second * SCRUB_TICK_MS // 1000
        if limit_bytes and self._core.driver.is_log_free and not self._core.driver.is_copying:
            piece = scrubber.next_piece(limit_bytes)
            if piece is not None:
                scrubber.check(piece, scrubber.read(piece))
                self._process.stepped()
        self._process.after(SCRUB_TICK_MS, self._tick)
