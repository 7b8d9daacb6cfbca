"""A controller in the simulation: the production ControllerMachine and RaftLog over simulated ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from controller.config import ControllerConfig
from controller.machine import ControllerMachine
from controller.quorum.raft_log import SEGMENT_BYTES, DurableRaftLog
from controller.state.action import Notify, Probe, Reply, SaveConfig, SendRaft, WriteSnapshot
from rmqha.model.code import RequestCode
from rmqha.model.error import StoreError
from rmqha.raft.config import RaftConfig
from rmqha.raft.log import RaftLog
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration
from rmqha.sim.clock import SimClock
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler, Timer
from rmqha.sim.tracer import SimTracer
from rmqha.sim.transport import Connection, Transport
from rmqha.wire.command import Command
from rmqha.wire.raft_message import Snapshot
from tests.simulation.processes.disk_process import DiskProcess
from tests.simulation.processes.node_tracer import NodeTracer
from tests.simulation.processes.process import Rpc
from tests.simulation.processes.versions import TODAY


class ControllerProcess(DiskProcess):
    def __init__(
        self,
        host: str,
        config: ControllerConfig,
        scheduler: Scheduler,
        transport: Transport,
        clock: SimClock,
        prng: SimPrng,
        tracer: SimTracer,
    ) -> None:
        super().__init__(host, scheduler, transport, clock)
        self.config = config
        self.disk = SimDisk(prng.child("disk"))
        self._prng = prng.child("process")
        self._raft_prng = prng.child("raft")
        self._tracer = NodeTracer(tracer, host)
        self.machine: ControllerMachine
        self._log: DurableRaftLog
        self._raft: RaftNode
        self._rpc: Rpc
        self._timer: Timer | None = None
        self.wipe_count = 0
        self.dialect = TODAY
        """Of the release that its next start is of."""
        self.echo_per_mille = 0
        """Chance that a notice arrives once more, late: brokers must stand old news."""
        self._notices: dict[str, list[Command]] = {}
        """To each address, oldest first."""
        self.stepped: Callable[[ControllerProcess], None] = lambda process: None
        self.most_entries = 0
        """Of one append; 0: as by default."""
        self.chunk_bytes = 0
        """Of a snapshot on its way; 0: as by default."""
        self.segment_bytes = 0
        """Of one file of the log; 0: as by default."""
        self.registrations: dict[tuple[str, str, int], int] = {}
        """The place in which the last registration of a broker came by a connection: by group, id and connection."""

    def boot(self) -> None:
        """Read the log and join. A log that cannot be read leaves the process dead."""
        self.begin_life()
        try:
            self.shielded(self._begin)
        except (StoreError, OSError) as error:
            if not self.has_bad_disk:
                raise
            self.alive = False
            self._tracer.event("log_refused", reason=str(error))

    def _begin(self) -> None:
        config = self.config
        raft_prng = self._raft_prng.child(str(self.life))
        self._log = DurableRaftLog(
            self.disk,
            config.controller_dleger_self_id,
            self._tracer,
            raft_prng.child("log"),
            segment_bytes=self.segment_bytes or SEGMENT_BYTES,
        )
        stored = self._log.stored
        usual = RaftConfig.for_timeout(config.election_timeout_ms)
        raft = RaftNode(
            self._log.identity,
            Configuration.static(config.peers),
            stored,
            replace(
                usual,
                max_append_entries=self.most_entries or usual.max_append_entries,
                snapshot_chunk_bytes=self.chunk_bytes or usual.snapshot_chunk_bytes,
            ),
            raft_prng,
            self._tracer,
            self.clock.now_ms(),
        )
        image = stored.snapshot.data if stored.snapshot is not None else b""
        self._raft = raft
        self.machine = ControllerMachine(config, raft, image, self._tracer)
        self._rpc = Rpc(self, self._handle, self._session_closed, self.dialect)
        self._timer = None
        self.transport.listen(self.host, config.self_address, self._rpc)
        self.transport.power_on(self.host)
        self.machine.start(self.clock.now_ms())
        self._pump()

    def kill(self, *, power_loss: bool) -> None:
        self.end_life(power_loss=power_loss)
        self.disk.crash(power_loss=power_loss)

    def post(self, life: int, work: Callable[[], None]) -> None:
        """A failure of the disk ends the process, as it ends the host's; without such a fault it is a finding."""
        try:
            super().post(life, work)
        except (StoreError, OSError) as error:
            if not self.has_bad_disk:
                raise
            self._tracer.event("disk_failed", reason=str(error))
            self.kill(power_loss=False)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.wipe_count += 1
        self.disk = SimDisk(self._prng.child(f"disk-{self.life}"))

    def renew_disk(self, peers: str) -> None:
        """The same of one that is no member: nothing is forgotten. `peers` are its new controllerDLegerPeers: one that
        names itself alone would form a group of its own."""
        self.config = replace(self.config, controller_dleger_peers=peers)
        self.disk = SimDisk(self._prng.child(f"renewed-{self.life}"))

    @property
    def member(self) -> str:
        """Its identity in the group: id and disk."""
        return self._raft.node_id

    @property
    def configuration(self) -> Configuration:
        """The group of controllers as it knows it."""
        return self._raft.configuration

    @property
    def has_booted(self) -> bool:
        return "machine" in self.__dict__

    @property
    def raft_log(self) -> RaftLog:
        """Of its present life, or of its last one."""
        return self._raft._core.log

    @property
    def applied_index(self) -> int:
        return int(self.machine._role_changes.index)

    @property
    def durable_log(self) -> DurableRaftLog:
        return self._log

    @property
    def led_term(self) -> int | None:
        """The Raft term in which this controller leads now."""
        return self._raft.term if self._raft.is_leader else None

    @property
    def holds_lease(self) -> bool:
        """It answers alone, by its own clock."""
        return self._raft.lease_valid(self.clock.now_ms())

    # --- requests ---------------------------------------------------------------------------------------------------
    def ask(self, command: Command) -> None:
        """An operator's oneway request."""
        assert command.is_oneway
        self.machine.request(self.clock.now_ms(), 0, None, command)
        self._pump()

    def _handle(self, conn: Connection, command: Command) -> None:
        if command.code == RequestCode.CONTROLLER_REGISTER_BROKER:
            place = command.ext["brokerName"], command.ext["brokerId"], conn.number
            self.registrations[place] = max(self.registrations.values(), default=0) + 1
        self.machine.request(self.clock.now_ms(), conn.number, (conn, command), command)
        self._pump()

    def _session_closed(self, conn: Connection) -> None:
        self.machine.session_closed(self.clock.now_ms(), conn.number)
        self._pump()

    def _timeout(self) -> None:
        self.machine.timeout(self.clock.now_ms())
        self._pump()

    # --- outputs ----------------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        self._act()
        while (ready := self.machine.ready(self.clock.now_ms())) is not None:
            self._act()
            if ready.must_persist:
                # The disk takes its time; a crash before it is done loses what `ready` asked to persist.
                self.after(self._prng.between(0, 3), partial(self._persist, ready))
            else:
                self.machine.advance(self.clock.now_ms(), ready)
                self._act()
        self._timer = self.wake_at(self.machine.deadline_ms(), self._timer, self._timeout)
        self.stepped(self)

    def _persist(self, ready: Ready) -> None:
        self._log.persist(ready)
        self.machine.advance(self.clock.now_ms(), ready)
        self._pump()

    def _act(self) -> None:
        for action in self.machine.actions():
            match action:
                case Reply(token, command):
                    assert isinstance(token, tuple)
                    conn, request = token
                    command.opaque = request.opaque
                    self._rpc.reply(conn, command)
                case Notify(address, command):
                    self._rpc.oneway(address, command)
                    self._notices.setdefault(address, []).append(command)
                    self._echo(address, command)
                case Probe(probe_id, address, command, timeout_ms):
                    self._rpc.call(address, command, timeout_ms, partial(self._probed, probe_id))
                case SendRaft(_, address, sender_address, data):
                    message = Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": sender_address}, data)
                    self._rpc.oneway(address, message)
                case WriteSnapshot(snapshot):
                    self.after(self._prng.between(0, 30), partial(self._write_snapshot, snapshot))
                case SaveConfig():
                    pass

    def repeat_older(self, address: str, epoch: int) -> None:
        """The newest notice to `address` that is older than `epoch` arrives once more."""
        older = [item for item in self._notices.get(address, ()) if int(item.ext["masterEpoch"]) < epoch]
        if older:
            self._rpc.oneway(address, Command(older[-1].code, dict(older[-1].ext), older[-1].body))

    def _echo(self, address: str, command: Command) -> None:
        if self.echo_per_mille and self._prng.child("echo").child(str(self.scheduler.now_ms)).chance(
            self.echo_per_mille, 1000
        ):
            again = Command(command.code, dict(command.ext), command.body)
            delay_ms = self._prng.child("echo-ms").child(str(self.scheduler.now_ms)).between(200, 5000)
            self.after(delay_ms, lambda: self._rpc.oneway(address, again))

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        self._log.write_snapshot(snapshot)
        self.machine.snapshot_written(self.clock.now_ms(), snapshot)
        self._pump()

    def _probed(self, probe_id: int, reply: Command | None) -> None:
        self.machine.probe_replied(self.clock.now_ms(), probe_id, reply)
        self._pump()
