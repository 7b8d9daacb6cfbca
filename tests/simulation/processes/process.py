"""A simulated operating-system process: a clock, timers, connections; it can be paused, killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmqha.broker.requests.request import Steps
from rmqha.sim.clock import SimClock
from rmqha.sim.scheduler import Scheduler, Timer
from rmqha.sim.transport import Connection, Transport
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.simulation.history import InvariantError
from tests.simulation.processes.versions import TODAY, Dialect, known

Answer = Callable[[Command | None], None]
MAX_FRAME_BYTES = 16 * 1024 * 1024
MOST_WAKES_PER_MS = 20_000


class Process:
    """What happens to a paused process waits for it; what is meant for a former life is dropped."""

    def __init__(self, host: str, scheduler: Scheduler, transport: Transport, clock: SimClock) -> None:
        self.host = host
        self.scheduler = scheduler
        self.transport = transport
        self.clock = clock
        self.alive = False
        self.life = 0
        self._paused = False
        self.disturbed_at_ms = 0
        """When it last started, stood still or had trouble with its disk; of a slow disk when the last sync ends."""
        self._held: list[Callable[[], None]] = []
        self._woken_at_ms = -1
        self._wake_count = 0

    def boot(self) -> None:
        """Start the process; each kind has its own."""
        raise AssertionError(f"{self.host} is of no kind")

    def begin_life(self) -> None:
        self.life += 1
        self.alive = True
        self.disturb(self.scheduler.now_ms)
        self._paused = False
        self._held.clear()

    def disturb(self, at_ms: int) -> None:
        """A pause does not end what a slow disk began."""
        self.disturbed_at_ms = max(self.disturbed_at_ms, at_ms)

    def end_life(self, *, power_loss: bool) -> None:
        self.alive = False
        self._held.clear()
        if power_loss:
            self.transport.power_off(self.host)
        else:
            self.transport.stop_process(self.host)

    def post(self, life: int, work: Callable[[], None]) -> None:
        if not self.alive or life != self.life:
            return
        if self._paused:
            self._held.append(work)
        else:
            work()

    def shielded(self, work: Callable[[], None]) -> None:
        """Do `work` now, paused or not. What may stop in the midst of it overrides this."""
        work()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.disturb(self.scheduler.now_ms)
        held, self._held = self._held, []
        for work in held:
            self.post(self.life, work)

    @property
    def is_changing_log(self) -> bool:
        """One of its threads changes the log and waits for the disk; others that need the log wait for it."""
        return False

    @property
    def is_paused(self) -> bool:
        return self._paused

    def after(self, delay_ms: int, work: Callable[[], None]) -> Timer:
        """By this host's own clock, which may drift."""
        return self.at(self.clock.now_ms() + delay_ms, work)

    def wake_at(self, deadline_ms: int | None, timer: Timer | None, work: Callable[[], None]) -> Timer | None:
        """A machine's deadline, instead of the last one, `timer`, which does the same `work`. One that is never in the
        future keeps a core busy: that is a finding."""
        if deadline_ms is None:
            if timer is not None:
                timer.cancel()
            return None
        now_ms = self.scheduler.now_ms
        if now_ms != self._woken_at_ms:
            self._woken_at_ms, self._wake_count = now_ms, 0
        # a deadline ahead is asked for after every input, and a copy of a long log makes thousands of those in a moment
        self._wake_count += deadline_ms <= self.clock.now_ms()
        if self._wake_count > MOST_WAKES_PER_MS:
            raise InvariantError(f"{self.host} spins: its deadline {deadline_ms} does not move")
        if timer is not None and timer.is_pending:
            return self.scheduler.move(timer, self.clock.virtual_ms_of(max(deadline_ms, self.clock.now_ms())))
        return self.at(max(deadline_ms, self.clock.now_ms()), work)

    def at(self, deadline_ms: int, work: Callable[[], None]) -> Timer:
        return self.scheduler.at(self.clock.virtual_ms_of(deadline_ms), partial(self.post, self.life, work))


class Rpc:
    """Remoting over simulated connections: requests answered by opaque, one connection per address, frames as bytes."""

    def __init__(
        self,
        process: Process,
        handle: Callable[[Connection, Command], None],
        session_closed: Callable[[Connection], None] = lambda conn: None,
        dialect: Dialect = TODAY,
    ) -> None:
        self._process = process
        self._dialect = dialect
        self._life = process.life
        self._handle = handle
        self._session_closed = session_closed
        self._parsers: dict[int, FrameParser] = {}
        self._dialed: dict[str, Connection] = {}
        self._address_of: dict[int, str] = {}
        self._waiting: dict[int, tuple[str, Answer, Timer]] = {}
        self._unsent: dict[int, Callable[[], None]] = {}
        """Of requests that wait: who is told if they were never sent, by opaque."""
        self._backlog: dict[str, list[bytes]] = {}
        self._next_opaque = 1
        self.lost: Callable[[str], None] = lambda address: None
        """Told of an address to which the connection has broken."""

    # --- Endpoint ---------------------------------------------------------------------------------------------------
    def accepted(self, conn: Connection, port: str) -> None:
        self._parsers[conn.number] = FrameParser(MAX_FRAME_BYTES)

    def received(self, conn: Connection, data: bytes) -> None:
        self._process.post(self._life, partial(self._received, conn, data))

    def _received(self, conn: Connection, data: bytes) -> None:
        for command in self._parsers[conn.number].feed(data):
            if command.is_response:
                waiting = self._waiting.pop(command.opaque, None)
                self._unsent.pop(command.opaque, None)
                if waiting is not None:
                    _, answer, timer = waiting
                    timer.cancel()
                    answer(command)
            else:
                self._heard(conn, command)

    def _heard(self, conn: Connection, command: Command) -> None:
        refusal = self._dialect.refusal(command)
        if refusal is None:
            self._dialect.strip(command)
            self._handle(conn, command)
        elif not command.is_oneway:
            self.reply(conn, refusal)

    def reply(self, conn: Connection, command: Command) -> None:
        """Answer, in the words that this process knows."""
        self._dialect.strip(command)
        conn.send(encode_frame(command))

    def closed(self, conn: Connection) -> None:
        self._process.post(self._life, lambda: self._closed(conn))

    def _closed(self, conn: Connection) -> None:
        address = self._address_of.pop(conn.number, None)
        if address is None:
            self._session_closed(conn)
        else:
            self._fail(address)
            self.lost(address)

    # --- requests ---------------------------------------------------------------------------------------------------
    def call(
        self,
        address: str,
        command: Command,
        timeout_ms: int,
        answer: Answer,
        unsent: Callable[[], None] | None = None,
    ) -> None:
        """`answer` is called once, with None when nothing came in time or the connection broke; instead of it `unsent`,
        where given, when there was no connection."""
        refusal = self._dialect.refusal(command)
        if refusal is not None:
            self._process.after(0, partial(answer, refusal))  # that release does as if nobody knew the request
            return
        self._dialect.strip(command)
        answer = known(self._dialect, answer)
        opaque = self._next_opaque
        self._next_opaque += 1
        if unsent is not None and not self._is_open(address):
            self._unsent[opaque] = unsent
        command.opaque = opaque
        self._waiting[opaque] = (address, answer, self._process.after(timeout_ms, partial(self._expire, opaque)))
        self._transmit(address, encode_frame(command))

    def oneway(self, address: str, command: Command) -> None:
        command.flag |= FLAG_ONEWAY
        self._dialect.strip(command)
        self._transmit(address, encode_frame(command))

    def _expire(self, opaque: int) -> None:
        waiting = self._waiting.pop(opaque, None)
        self._unsent.pop(opaque, None)
        if waiting is not None:
            waiting[1](None)

    def _is_open(self, address: str) -> bool:
        conn = self._dialed.get(address)
        return conn is not None and conn.is_open

    def _transmit(self, address: str, frame: bytes) -> None:
        if self._is_open(address):
            self._dialed[address].send(frame)
            return
        dialing = address in self._backlog
        self._backlog.setdefault(address, []).append(frame)
        if not dialing:
            self._process.transport.connect(self._process.host, self, address, lambda conn: self._opened(address, conn))
            # A dial that is blocked is never answered: try again when the next request comes.
            self._process.after(1000, lambda: self._give_up(address))

    def _opened(self, address: str, conn: Connection | None) -> None:
        if not self._process.alive or self._process.life != self._life:
            if conn is not None:
                conn.close()
            return
        frames = self._backlog.pop(address, [])
        if conn is None:
            self._process.shielded(partial(self._fail, address, was_dialing=True))
            return
        self._dialed[address] = conn
        self._address_of[conn.number] = address
        self._parsers[conn.number] = FrameParser(MAX_FRAME_BYTES)
        for opaque in [item for item in self._unsent if self._waiting[item][0] == address]:
            del self._unsent[opaque]
        for frame in frames:
            conn.send(frame)

    def _give_up(self, address: str) -> None:
        if self._backlog.pop(address, None) is not None:
            self._fail(address, was_dialing=True)

    def _fail(self, address: str, *, was_dialing: bool = False) -> None:
        """`was_dialing`: what waits for a connection goes nowhere; behind one that broke it may go on the next."""
        self._dialed.pop(address, None)
        lost = [opaque for opaque, (target, *_) in self._waiting.items() if target == address]
        for opaque in lost:
            unsent = self._unsent.pop(opaque, None) if was_dialing else None
            if unsent is None:
                self._expire(opaque)
            else:
                self._waiting.pop(opaque)[2].cancel()
                unsent()


class SimChannel:
    """A client's connection as request processors see it."""

    waited_ms = 0

    def __init__(self, rpc: Rpc, conn: Connection, later: Callable[[Callable[[], None]], object]) -> None:
        """`later` calls what it is given in a turn of its own."""
        self._rpc = rpc
        self._conn = conn
        self._later = later
        self.answered: dict[int, Callable[[Command], None]] = {}
        """By the number of a request: who wants to know its answer."""
        self.peer = f"127.0.0.9:{conn.number % 60000 + 1}"

    def send(self, command: Command) -> None:
        self._tell(command)
        self._rpc.reply(self._conn, command)

    send_at_once = send

    def send_frames(self, frames: bytes, count: int) -> None:
        if self.answered:
            for command in FrameParser(MAX_FRAME_BYTES).feed(frames):
                self._tell(command)
        self._conn.send(frames)

    def _tell(self, command: Command) -> None:
        if self.answered and (told := self.answered.pop(command.opaque, None)) is not None:
            told(command)

    def work(self, steps: Steps) -> None:
        for pause in steps:
            if pause is not None:
                pause.when_over(lambda: self._go_on_later(steps))
                return

    def _go_on_later(self, steps: Steps) -> None:
        self._later(lambda: self.work(steps))

    def fail(self, error: Exception, commands: Sequence[Command]) -> None:
        raise error
