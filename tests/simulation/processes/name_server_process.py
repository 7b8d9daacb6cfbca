"""A name server in the simulation: the production request handling and route table over simulated connections."""

from __future__ import annotations

from collections.abc import Callable

from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.tracer import HostTracer
from rmqha.sim.clock import SimClock
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from rmqha.sim.transport import Connection, Transport
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.simulation.processes.process import Process, Rpc

PORT = 9876
SCAN_MS = 500


class NameServerProcess(Process):
    """It forgets all when it dies, as the real one."""

    def __init__(
        self, host: str, scheduler: Scheduler, transport: Transport, clock: SimClock, tracer: SimTracer
    ) -> None:
        super().__init__(host, scheduler, transport, clock)
        self._tracer = tracer
        self.server: NameServer
        self._rpc: Rpc
        self.stepped: Callable[[NameServerProcess], None] = lambda process: None
        self.ended = set[int]()
        """Numbers of the connections of this life that have ended."""

    @property
    def address(self) -> str:
        return f"{self.host}:{PORT}"

    def boot(self) -> None:
        self.begin_life()
        self.ended = set()
        tracer = HostTracer(clock=self.clock, write=lambda line: self._tracer.event("name_server", line=line))
        self.server = NameServer(NamesrvConfig(), tracer, self.clock, KvConfig())
        self._rpc = Rpc(self, self._handle, self._session_closed)
        self.transport.listen(self.host, self.address, self._rpc)
        self.transport.power_on(self.host)
        self.stepped(self)
        self._scan()

    def kill(self, *, power_loss: bool) -> None:
        self.end_life(power_loss=power_loss)

    def _handle(self, conn: Connection, command: Command) -> None:
        reply = self.server.handle(conn.number, command)
        if not command.is_oneway:
            conn.send(encode_frame(reply))
        self.stepped(self)

    def _session_closed(self, conn: Connection) -> None:
        self.ended.add(conn.number)
        self.server.routes.session_closed(conn.number)
        self.stepped(self)

    def _scan(self) -> None:
        self.server.routes.scan(self.clock.now_ms())
        self.stepped(self)
        self.after(SCAN_MS, self._scan)
