"""The controller's shell: sockets and the durable log around one ControllerMachine. Shell.

Inputs come from the sessions' readers, the timer and the ends of probes. After each, `_pump` performs actions and asks
for `ready()`. Writes that must be durable go to one driver task, which waits for the disk in a worker thread, so the
event loop never waits. Probes and notices are tasks of their own, and Raft messages have a queue for each peer, so a
slow peer delays no other. If thousands of brokers connect at once, each turn of the event loop serves some of them;
timers and the other controllers do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from time import perf_counter_ns

import trio

from controller.config import ControllerConfig
from controller.machine import ControllerMachine
from controller.metrics import collect, readiness
from controller.operations import OperationCounts
from controller.peer_requests import needs_cluster_secret
from controller.quorum.raft_log import DurableRaftLog
from controller.quorum.raft_peer_filter import RaftPeerFilter
from controller.state.action import Notify, Probe, Reply, SaveConfig, SendRaft, Token, WriteSnapshot
from controller.state.event import Cause
from rmqha import __version__
from rmqha.host.access import security, security_watch
from rmqha.host.access.peer_filter import PeerRules
from rmqha.host.access.urgent import prioritize
from rmqha.host.clock import HostClock
from rmqha.host.disk import HostDisk
from rmqha.host.event_counts import CONTROLLER_PHASES
from rmqha.host.http.endpoint import HttpEndpoint
from rmqha.host.log_files import LogFiles
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.poller import Poller
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.prng import HostPrng
from rmqha.host.text_file import read_text
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.base import parse_properties, properties_of
from rmqha.model.error import NoRoomError, RemoteProtocolError, StoreError, UnreachableError, UsageError, whole
from rmqha.model.principal import UNRESTRICTED
from rmqha.model.quota import Quotas
from rmqha.model.readiness import Readiness
from rmqha.model.series import Collecting
from rmqha.port import Disk
from rmqha.raft.config import RaftConfig
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration
from rmqha.store.meta.problem import advice
from rmqha.wire import lenient_json
from rmqha.wire.auth.shown import events_shown
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command
from rmqha.wire.raft_message import Snapshot

OVERRIDES_FILE = "config-overrides.properties"
"""Properties file with the keys that request 1009 changed, in the store directory; it overrides the configuration."""
LOCK_FILE = "lock"
NOTIFY_TIMEOUT_MS = 1000
ROOM_CHECK_MS = 1000
"""Pause (ms) after a write for which the disk had no room."""
MAX_RAFT_QUEUED = 256
"""Raft messages queued for one peer; more are dropped, and Raft repeats them."""
HAND_OVER_TIMEOUT_S = 2.0
MAX_TRACED_REFUSALS = 256


def read_config(path: str) -> ControllerConfig:
    """Raises UsageError, one sentence, if the file cannot be read or holds a wrong key or value."""
    return ControllerConfig.from_properties(parse_properties(read_text(path, "the configuration"), path), path)


class _Store:
    """Store directory: lock, overridden keys, Raft log. It is opened after the port is bound, so that a port in use
    leaves no file behind."""

    def __init__(self, config: ControllerConfig, tracer: HostTracer) -> None:
        """Open the directory. Raises UsageError, one sentence, if it cannot be used."""
        path = config.controller_store_path
        try:
            self.disk: Disk = HostDisk(path)
            self.disk.make_dirs("")
            release = self.disk.lock(LOCK_FILE)
            if release is None:
                raise UsageError(f"{path} is in use by another controller; give each its own controllerStorePath")
            self._release: Callable[[], None] = release
            self.config = self._with_overrides(config, tracer)
            self.log = DurableRaftLog(self.disk, config.controller_dleger_self_id, tracer, HostPrng())
        except StoreError as problem:
            raise UsageError(str(problem)) from None
        except OSError as error:
            place = error.filename or path
            reason = f"{error.strerror or error}{advice(error)}"
            raise UsageError(f"cannot use controllerStorePath {place}: {reason}") from None

    def _with_overrides(self, config: ControllerConfig, tracer: HostTracer) -> ControllerConfig:
        self.overrides: dict[str, str] = {}
        if self.disk.exists(OVERRIDES_FILE):
            source = f"{self.disk.label}/{OVERRIDES_FILE}"
            given = properties_of(self.disk.read(OVERRIDES_FILE), source)
            self.overrides, ignored = config.live_part(given)
            if ignored:
                tracer.event("config_overrides_ignored", keys=ignored, file=source)
            config, _ = config.updated(self.overrides, source)
        return config

    def save_overrides(self, changes: dict[str, str]) -> None:
        self.overrides |= changes
        text = "".join(f"{key}={value}\n" for key, value in sorted(self.overrides.items()))
        self.disk.write_atomic(OVERRIDES_FILE, text.encode())

    def close(self) -> None:
        self.log.close()
        self._release()


def _now_us() -> int:
    return perf_counter_ns() // 1000


def _answer_in_steps(session: Session, command: Command, body: Generator[None, None, bytes]) -> Iterator[None]:
    answer = command.reply(body=(yield from body))
    if not command.is_oneway:
        session.send(answer)


class ControllerServer:
    """Service of the controller's port (`rmqha.host.net.remoting.Service`) and driver of the machine."""

    def __init__(
        self,
        tracer: HostTracer,
        client: RemotingClient,
        raft_client: RemotingClient,
        raft_peer_filter: RaftPeerFilter,
        nursery: trio.Nursery,
        poller: Poller,
        operations: OperationCounts | None = None,
    ) -> None:
        """`raft_client` connects to the other controllers, `client` to brokers. `operations`: counts for /metrics."""
        self._operations = operations
        self._raft_client = raft_client
        self._raft_peer_filter = raft_peer_filter
        self._raft_refusal = ""
        self._replicas_refused: set[tuple[str, str]] = set()
        """Hosts, with the group names of their requests, whose refusal was traced."""
        self._tracer = tracer
        self._poller = poller
        self._client = client
        self._nursery = nursery
        self._clock = HostClock()
        self._machine: ControllerMachine | None = None
        self._store: _Store | None = None
        self._log_files = LogFiles(None, None)
        self._unsaved: Ready | None = None
        self._snapshot_lock = trio.Lock()
        self._config_lock = trio.Lock()
        """Lock of the configuration file: one write at a time."""
        self._work = trio.Event()
        """Set when `_unsaved` waits for the driver."""
        self._unpumped = trio.Event()
        """Set when inputs wait for the next turn, in which all of them are pumped at once."""
        self._earlier = trio.Event()
        """Set when the next deadline is earlier than the timer's; waking it for every heartbeat would cost a third of
        one."""
        self._sleeps_until_ms: int | None = None
        self._resigned = trio.Event()
        """Set by `_pump` while this controller does not lead."""
        self._raft_queues: dict[str, tuple[str, trio.MemorySendChannel[Command]]] = {}
        """Address and queue of each peer's Raft messages."""
        self.remoting = Statistics()
        self.leading = trio.Event()
        """Set when the machine has led for the first time."""

    def start(self, config: ControllerConfig, store: _Store) -> None:
        now_ms = self._clock.now_ms()
        self._log_files = LogFiles.of(config)
        raft_config = RaftConfig.for_timeout(config.election_timeout_ms)
        self._max_committed_entries = raft_config.max_committed_entries
        stored = store.log.stored
        node = RaftNode(
            store.log.identity,
            Configuration.static(config.peers),
            stored,
            raft_config,
            HostPrng(),
            self._tracer,
            now_ms,
        )
        image = stored.snapshot.data if stored.snapshot is not None else b""
        self._store = store
        overridden = frozenset(store.overrides)
        self._machine = ControllerMachine(
            config, node, image, self._tracer, self._wall_offset_ms, overridden, __version__, self._operations
        )
        self._machine.start(now_ms)
        self._nursery.start_soon(self._drive)
        self._nursery.start_soon(self._tick)
        self._nursery.start_soon(self._pump_later)
        self._pump()

    def _wall_offset_ms(self) -> int:
        """Distance (ms) of the wall clock from the monotonic one; it changes when the wall clock is set."""
        return self._clock.wall_ms() - self._clock.now_ms()

    # --- queries ----------------------------------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        """Readiness for /readyz and /role (`rmqha.host.http.endpoint.HealthSource`)."""
        assert self._machine is not None
        return readiness(self._machine, self._clock.now_ms())

    def collect(self) -> Collecting:
        """Metrics for /metrics."""
        assert self._machine is not None
        return collect(self._machine, self._clock.now_ms(), self.remoting.as_dict(), self._operations)

    @property
    def is_sole_voter(self) -> bool:
        return self._machine is not None and self._machine.is_sole_voter

    # --- sessions ---------------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        if self._machine is None:
            session.close()

    def received(self, session: Session, commands: list[Command]) -> None:
        machine, now_ms = self._machine, self._clock.now_ms()
        if machine is None:
            return
        operations = self._operations
        for command in commands:
            if operations is not None:
                operations.received(session.id, command)
            try:
                self._serve(machine, now_ms, session, command)
            except RemoteProtocolError:
                raise
            except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
                if operations is not None:
                    operations.failed(session.id, command.opaque)
                session.fail(error, [command])
                break  # what was decided before is performed all the same
            if operations is not None and command.is_oneway:
                operations.answered(session.id, command.opaque)
        if self._poller.is_busy and commands[0].code != RequestCode.RMQHA_RAFT_MESSAGE:
            self._perform()
            self._unpumped.set()
        else:
            self._pump()

    def peer_refused(self, peer: str, command: Command, reason: str) -> None:
        """Trace a broker's or controller's request from a peer that has not proved the cluster's secret."""
        if command.code == RequestCode.RMQHA_RAFT_MESSAGE:
            self._raft_refused(peer, reason)
            return
        host, name = peer.rpartition(":")[0], command.ext.get("brokerName", "")
        if (host, name) not in self._replicas_refused:  # traced once
            if len(self._replicas_refused) >= MAX_TRACED_REFUSALS:
                self._replicas_refused.clear()
            self._replicas_refused.add((host, name))
            self._tracer.event("replica_refused", peer=peer, code=command.code, broker_name=name, reason=reason)

    def _serve(self, machine: ControllerMachine, now_ms: int, session: Session, command: Command) -> None:
        if command.code == RequestCode.RMQHA_RAFT_MESSAGE and self._refuses(machine, session):
            return
        shown: object = None
        if command.code == RequestCode.RMQHA_READ_LOG_FILE:
            if not command.is_oneway:
                session.send(self._log_files.answer(command))
            return
        if command.code == RequestCode.RMQHA_GET_CONTROLLER_STATE and not body_refusal(command):
            session.work(_answer_in_steps(session, command, machine.state(now_ms)))
            return
        if command.code == RequestCode.RMQHA_GET_HISTORY:
            told = self._tracer.history_answer()
            shown = {**told, "events": events_shown(command.principal, told["events"])}
        elif command.code == RequestCode.RMQHA_GET_SECURITY_STATE:
            shown = security_watch.view(security.ambient.get(), command.principal)
        if shown is not None:
            if not command.is_oneway:
                session.send(command.reply(body=lenient_json.dumps(shown)))
        else:
            if command.code == RequestCode.RMQHA_RAFT_MESSAGE and not session.is_urgent:
                session.is_urgent = machine.may_have_peer_at(session.peer.rpartition(":")[0].strip("[]"))
            elif command.principal is UNRESTRICTED:
                prioritize(session, command)  # it has no guard that knows servers
            machine.request(now_ms, session.id, session, command)

    def _refuses(self, machine: ControllerMachine, session: Session) -> bool:
        reason = self._raft_peer_filter.refusal(session, machine.may_have_peer_at)
        if reason:
            self._raft_refused(session.peer, reason)
        return bool(reason)

    def _raft_refused(self, peer: str, reason: str) -> None:
        if reason != self._raft_refusal:
            self._raft_refusal = reason  # traced once
            self._tracer.event("raft_refused", peer=peer, reason=reason)

    def closed(self, session: Session) -> None:
        self._raft_peer_filter.closed(session)
        if self._operations is not None:
            self._operations.closed(session.id)
        ending = trio.current_effective_deadline() == float("-inf")
        if self._machine is not None and not ending:
            self._machine.session_closed(self._clock.now_ms(), session.id)
            self._pump()

    # --- machine ----------------------------------------------------------------------------------------------------

    @whole
    def _pump(self) -> None:
        """Perform the machine's actions until there are none left or a write must be durable first."""
        machine, now_ms = self._machine, self._clock.now_ms()
        assert machine is not None
        self._perform()
        while (ready := machine.ready(now_ms)) is not None:
            self._perform()
            if ready.must_persist:
                self._unsaved = ready
                self._work.set()
            else:
                machine.advance(now_ms, ready)
                self._perform()
            if len(ready.committed) == self._max_committed_entries:
                # more of them, most likely: timers and sockets come first
                self._unpumped.set()
                break
        deadline_ms, until_ms = machine.deadline_ms(), self._sleeps_until_ms
        if deadline_ms is not None and (until_ms is None or deadline_ms < until_ms):
            self._earlier.set()
        if machine.is_leading:
            self.leading.set()
        else:
            self._resigned.set()

    async def _pump_later(self) -> None:
        while True:
            await self._unpumped.wait()
            self._unpumped = trio.Event()
            self._pump()

    def _perform(self) -> None:
        assert self._machine is not None
        for action in self._machine.actions():
            match action:
                case Reply(token, command):
                    self._answer(token, command)
                case SendRaft(peer, address, sender_address, data):
                    self._queue_raft(peer, address, sender_address, data)
                case Probe():
                    self._nursery.start_soon(self._probe, action)
                case Notify(address, command):
                    self._nursery.start_soon(self._notify, address, command)
                case WriteSnapshot(snapshot):
                    self._nursery.start_soon(self._write_snapshot, snapshot)
                case SaveConfig():
                    self._nursery.start_soon(self._save_config, action)

    def _answer(self, token: Token, reply: Command) -> None:
        assert isinstance(token, Session)
        if self._operations is not None:
            self._operations.answered(token.id, reply.opaque)
        token.send(reply)

    async def _drive(self) -> None:
        """Make `ready()` durable and advance, in a loop. The only task that writes to the log. Raises StoreError when
        the disk fails: the durable state is then unknown, and the controller must end."""
        assert self._machine is not None and self._store is not None
        while True:
            await self._work.wait()
            self._work = trio.Event()
            ready = self._unsaved
            assert ready is not None
            if ready.snapshot is None and ready.compaction is None:
                await self._persist(ready)
            else:
                async with self._snapshot_lock:
                    await self._persist(ready)
            self._unsaved = None
            self._machine.advance(self._clock.now_ms(), ready)
            self._pump()

    async def _persist(self, ready: Ready) -> None:
        assert self._store is not None
        for step in self._store.log.steps(ready):
            await self._write(step)

    async def _write_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot beside the log, so that a large one delays no heartbeat."""
        assert self._machine is not None and self._store is not None
        async with self._snapshot_lock:
            await self._write(partial(self._store.log.write_snapshot, snapshot))
        self._machine.snapshot_written(self._clock.now_ms(), snapshot)
        self._pump()

    async def _save_config(self, action: SaveConfig) -> None:
        """Answer the operator once the configuration is on the disk; a disk error is reported, and ends nothing."""
        assert self._store is not None
        reply = action.reply
        try:
            async with self._config_lock:
                await trio.to_thread.run_sync(self._store.save_overrides, action.properties)
        except OSError as error:
            remark = f"in force until a restart, but {OVERRIDES_FILE} cannot be written: {error.strerror or error}"
            reply = None if reply is None else reply.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if reply is not None:
            self._answer(action.token, reply)

    async def _write(self, write: Callable[[], None]) -> None:
        """Write in a worker thread. While the disk has no room, wait: the controllers then elect another leader. Raises
        StoreError, one sentence, when the disk fails."""
        assert self._store is not None
        room_refusal = False
        while True:
            try:
                await trio.to_thread.run_sync(write)
                return
            except NoRoomError as error:
                if not room_refusal:
                    self._tracer.event("log_lacks_room", reason=str(error))
                room_refusal = True
            except OSError as error:
                raise StoreError(
                    f"{self._store.disk.label}: cannot write the controllers' log: {error.strerror or error}; "
                    "mend the disk, then start the controller again"
                ) from error
            await trio.sleep(ROOM_CHECK_MS / 1000)

    async def _tick(self) -> None:
        assert self._machine is not None
        while True:
            deadline_ms = self._sleeps_until_ms = self._machine.deadline_ms()
            wait_s = float("inf") if deadline_ms is None else max(0, deadline_ms - self._clock.now_ms()) / 1000
            with trio.move_on_after(wait_s):
                await self._earlier.wait()
            self._earlier = trio.Event()
            now_ms = self._clock.now_ms()
            if deadline_ms is not None and now_ms >= deadline_ms:
                self._machine.timeout(now_ms)
                self._pump()

    # --- peers ------------------------------------------------------------------------------------------------------

    def _queue_raft(self, peer: str, address: str, sender_address: str, data: bytes) -> None:
        command = Command(RequestCode.RMQHA_RAFT_MESSAGE, {"address": sender_address}, data)
        known_address, queue = self._raft_queues.get(peer, ("", None))
        if queue is None or known_address != address:
            if queue is not None:
                queue.close()
            queue, receive = trio.open_memory_channel[Command](MAX_RAFT_QUEUED)
            self._raft_queues[peer] = (address, queue)
            self._nursery.start_soon(self._send_raft, address, receive)
        if not queue.statistics().current_buffer_used and self._raft_client.oneway_at_once(address, command):
            return
        try:
            queue.send_nowait(command)
        except trio.WouldBlock:
            self._tracer.event("raft_message_dropped", peer=peer, size_bytes=len(data))

    async def _send_raft(self, address: str, queue: trio.MemoryReceiveChannel[Command]) -> None:
        reachable = True
        async for command in queue:
            # Send all that has gathered: one message in each turn of a busy event loop is slower than they come.
            waiting = [command]
            with suppress(trio.WouldBlock):
                while True:
                    waiting.append(queue.receive_nowait())
            try:
                await self._raft_client.oneway(address, *waiting)
                reachable = True
            except UnreachableError as error:
                if reachable:
                    self._tracer.event("controller_unreachable", address=address, why=str(error))
                reachable = False

    async def _probe(self, probe: Probe) -> None:
        started_ms = self._clock.now_ms()
        reply, refused = None, False
        try:
            reply = await self._client.call(probe.address, probe.command, probe.timeout_ms)
        except UnreachableError:
            # an end before the time-out is a refused or closed connection: no process serves the address
            refused = self._clock.now_ms() - started_ms < probe.timeout_ms
        assert self._machine is not None
        self._machine.probe_replied(self._clock.now_ms(), probe.probe_id, reply, refused=refused)
        self._pump()

    async def _notify(self, address: str, command: Command) -> None:
        try:
            await self._client.oneway(address, command, timeout_ms=NOTIFY_TIMEOUT_MS)
        except UnreachableError as error:
            self._tracer.event("notice_undelivered", address=address, why=str(error))

    # --- end --------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Transfer the leadership to another controller, if there is one, in bounded time."""
        assert self._machine is not None
        self._machine.stopping(self._clock.now_ms())
        self._pump()
        if self._raft_queues:
            with trio.move_on_after(HAND_OVER_TIMEOUT_S):
                while self._machine.is_leading:
                    self._resigned = trio.Event()
                    await self._resigned.wait()


async def run_controller(
    config: ControllerConfig,
    tracer: HostTracer,
    *,
    stopping: trio.Event | None = None,
    exposure: HttpEndpoint | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Bind, report the actual port by `task_status.started`, and serve until `stopping` is set (the leadership is then
    handed over first) or the task is cancelled.

    Raises UsageError, one sentence, for a port in use and for a store directory that is unwritable, locked, damaged or
    another controller's; StoreError when the disk fails later.
    """
    # the store is closed last, when no worker thread writes any more
    with ExitStack() as cleanup:
        secured = security.ambient.get()
        to_peers = secured.signing_with_secret()
        async with (
            RemotingClient(max_frame_bytes=config.max_frame_bytes, security=to_peers) as client,
            RemotingClient(max_frame_bytes=config.max_frame_bytes, security=to_peers) as raft_client,
            trio.open_nursery() as nursery,
        ):
            poller = Poller()
            operations = OperationCounts(_now_us) if exposure is not None else None
            server = ControllerServer(tracer, client, raft_client, RaftPeerFilter(secured), nursery, poller, operations)
            port: int = await nursery.start(
                lambda task_status: serve(
                    server,
                    config.bind_address,
                    max_frame_bytes=config.max_frame_bytes,
                    poller=poller,
                    statistics=server.remoting,
                    boundary=Boundary(server.remoting, tracer),
                    first_request_timeout_ms=config.first_request_timeout_millis,
                    quotas=Quotas(config.quotas),
                    peer_rules=PeerRules(needs_cluster_secret(config), refused=server.peer_refused),
                    task_status=task_status,
                )
            )
            store = _Store(config, tracer)
            cleanup.callback(store.close)
            server.start(store.config.with_self_port(port), store)
            if exposure is not None:
                exposure.counts.expect(elections=[cause.name.lower() for cause in Cause], phases=CONTROLLER_PHASES)
                exposure.parts["controller"] = server
            if server.is_sole_voter:
                await server.leading.wait()  # a sole controller serves as soon as its first entry is durable
            tracer.event("controller_started", node=config.controller_dleger_self_id, port=port)
            task_status.started(port)
            if stopping is None:
                await trio.sleep_forever()
            else:
                await stopping.wait()
                await server.hand_over()
                nursery.cancel_scope.cancel()
