"""A broker in the simulation: the production BrokerCore (store, machine, processors) over simulated ports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, cast
from unittest.mock import patch

from rmqha.broker.core import BrokerCore
from rmqha.broker.identity import BrokerIdentity
from rmqha.broker.loops import dispatch_delay_ms
from rmqha.broker.replication.controller_route import ControllerRoute, answer_to, is_redirect
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.server import HAND_OVER_MS
from rmqha.ha.action import CallController, RoleChanged
from rmqha.ha.replica import Replica
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError, RemoteProtocolError, StoreError, UsageError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.sim.clock import SimClock
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler, Timer
from rmqha.sim.tracer import SimTracer
from rmqha.sim.transport import Connection, Transport
from rmqha.store import store as store_module
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import locate
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.simulation.faults.covered import is_covered, is_noticed
from tests.simulation.processes.broker_shell import SimShell, Turns
from tests.simulation.processes.disk_process import DiskProcess
from tests.simulation.processes.following import Following, LearningEnds, Repairing, Scrubbing
from tests.simulation.processes.forwarding import forwarding
from tests.simulation.processes.hung_writes import HungWrites, LoopLock
from tests.simulation.processes.node_tracer import NodeTracer
from tests.simulation.processes.process import Rpc, SimChannel
from tests.simulation.processes.registering import Registering
from tests.simulation.processes.transacting import Transacting
from tests.simulation.processes.versions import TODAY

FEED_TICK_MS = 100
SAVE_INTERVAL_MS = 5000
LEAVE_TICK_MS = 20
SCHEDULE_TICK_MS = 100
SYNC_MS = 5
"""A sync takes that long at most, on a disk that is well."""
STORES_AT = 100
INDEX_STEP_BYTES = 16 * 1024
NOTICES = (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.RMQHA_HAND_OVER)
"""What controllers say unasked."""
Observer = Callable[["BrokerProcess", str, dict[str, int]], None]


class BrokerProcess(DiskProcess):
    """`observe(broker, what, values)` is told of role changes, cuts and its end, for the checkers."""

    kernel: ClassVar[BatchKernel] = PythonKernel()
    has_turns = False
    is_cold = False
    """What it had when it was started is often not in memory."""
    """What several connections have sent is served in one turn, as on the host."""
    hand_overs_cancelled = 0
    """How often a controller has told it to go on as master."""
    forwards = False
    """It passes sends on to a new master, as on the host."""
    takes_rotten_offers = False
    takes_foreign_offers = False
    """As copies of its own records."""
    turns: Turns | None = None

    def __init__(
        self,
        config: BrokerConfig,
        controllers: list[str],
        scheduler: Scheduler,
        transport: Transport,
        clock: SimClock,
        prng: SimPrng,
        tracer: SimTracer,
        observe: Observer,
    ) -> None:
        super().__init__(config.broker_ip1, scheduler, transport, clock)
        self.config = config
        self.disk = self._new_disk(prng.child("disk"))
        self.disk_count = 1
        """How many it has had: each new one makes it another replica."""
        self.failed = ""
        """Why it ended, or did not start, by itself."""
        self.lost_power = False
        """Since its last whole state; over once its store counts as clean again."""
        self.struck: dict[int, tuple[int, int]] = {}
        """Bytes of its log that theme `rotting` has changed: offset to what was there, and what is there now."""
        self._controllers = controllers
        self._prng = prng.child("process")
        self._tracer = NodeTracer(tracer, self.host)
        self._tracer.watch = self._traced
        self._observe = observe
        self.checks: Sequence[Callable[[BrokerProcess], None]] = ()
        """Looks of the checkers after every step."""
        self.static_checks: Sequence[Callable[[BrokerProcess], None]] = ()
        """Those instead, while it belongs to a static group."""
        self.heard: Callable[[BrokerProcess, Command], None] = lambda broker, command: None
        """Told of what a controller says, answers and notices, before it is acted on."""
        self.asks_for_set: Callable[[BrokerProcess, Command], None] = lambda broker, command: None
        """Told of each request for a new set, before it is sent."""
        self.sends: Callable[[BrokerProcess, bytes], None] = lambda broker, data: None
        """Told of each frame on an HA connection, before it is sent."""
        self.asked: Callable[[BrokerProcess, SimChannel, Command], None] = lambda broker, channel, command: None
        """Told of each request, before it is served."""
        self.stopped: Callable[[BrokerProcess], None] = lambda broker: None
        """Told when it has stopped in order."""
        self.handed_over: tuple[int, int, int] | None = None
        """What it has answered last to a request for a hand-over, if it was SUCCESS: its epoch, to which replica, and
        where its log ended."""
        self._sync_ms = SYNC_MS
        self._slow_until_ms = 0
        self.dialect = TODAY
        """Of the release that its next start is of."""
        self.is_stopping = False
        self.disk_fails = False
        self.flip_next: tuple[str, SimPrng] | None = None
        """A bit flips in the next records that it sends to that host."""
        self.rotten: dict[int, int] = {}
        """Bytes of its log that rotted while it ran, by offset: what they were."""
        self.follows_tables = False
        """Slaves take topics, groups and offsets, as on the host."""
        self.has_transactions = False
        """The loop of transactions runs, as on the host."""
        self.name_servers: list[str] = []
        """Addresses, where it registers."""
        self._following: Following | None = None
        self.forwarder: SendForwarder | None = None
        self.registering: Registering | None = None
        self.transacting: Transacting | None = None
        self.store: Store
        self.core: BrokerCore
        self.replica: Replica
        """Of `core`; asked for after every step. That of a static group answers the same calls."""
        self._rpc: Rpc
        self._channels: dict[int, SimChannel] = {}
        self._timer: Timer | None = None
        self._dispatching = self._flushing = self.is_delivering = False
        self._dispatch_due_ms = 0
        self._saving = self._saving_tables = False
        self._stop_by_ms = 0
        self._issued_id: BrokerId | None = None
        self._hangs_until_ms = 0
        self.hung_writes = HungWrites(self.host, self._prng.child("hung-writes"), self.after, self._log_written)
        self.hung_writes.left_ms = lambda: max(0, self._hangs_until_ms - self.scheduler.now_ms)
        self._table_draws = self._prng

    # --- life -------------------------------------------------------------------------------------------------------
    def boot(self) -> None:
        """Open the store and join. A store that cannot be opened leaves the process dead, its reason in `failed`."""
        if self.disk_fails:
            self.failed = "the disk fails"
            return
        self.failed = ""
        self.begin_life()
        try:
            self.shielded(self._begin)
        except (StoreError, OSError, UsageError) as error:
            if not self.has_bad_disk:
                raise
            self.failed = str(error)
            if self.alive:
                self.kill(power_loss=False)
            self._tracer.event("store_refused", reason=str(error))

    def _begin(self) -> None:
        config = self.config
        try:
            with patch.object(store_module, "Lock", partial(LoopLock, self.host)):
                self.store = Store.open(self.disk, self.store_config, self._tracer, kernel=self.kernel)
        except StoreError as error:
            self.failed = str(error)
            self.alive = False
            self._tracer.event("store_refused", reason=str(error))
            return
        self._tracer.event("booted", unclean=self.store.unclean, end=self.store.max_phy_offset)
        self._observe(self, "booted", {})
        identity = BrokerIdentity(IdentityFile(self.disk), config.broker_cluster_name, config.broker_name)
        # where sends are passed on, the address in a message's id says who has stored it
        place = STORES_AT + int(self.host[1:]) if self.forwards else 1
        store_host = (bytes((127, 0, 0, place)), config.listen_port)
        self._dispatching = self._flushing = self.is_delivering = self.is_stopping = False
        self._timer = None
        self._following = self.registering = self.transacting = None
        self.disk.cold = self._prng.child(f"cold-{self.life}") if self.is_cold else None
        self.turns = Turns(self, self._prng.child(f"turns-{self.life}")) if self.has_turns else None
        shell = SimShell(self)
        self.core = BrokerCore(
            config, self.disk, self.store, identity, self.clock, self._tracer, store_host, shell, self.kernel
        )
        self.core.timer_snapshots.least_count = 3  # hardly any run has as many as the host waits for
        self.replica = cast(Replica, self.core.replica)
        self._rpc = Rpc(self, self._handle, self._session_closed, self.dialect)
        self._channels = {}
        links = self.ha_links = HaLinks(self)
        self.driver.ha = links
        if not self.is_static:
            self.driver.controller = ControllerCalls(self, self._rpc, self._controllers)
        self.forwarder = forwarding(self, self._rpc, self.core, self.stepped, self._tracer) if self.forwards else None
        self._learning = LearningEnds(self, self._rpc, self.core, self._prng.child(f"ends-{self.life}"))
        self._repairing = Repairing(self, self._rpc, self.core, self._prng.child(f"repairs-{self.life}"))
        if self.name_servers:
            draws = self._prng.child(f"registering-{self.life}")
            self.registering = Registering(self, self._rpc, self.core, self.name_servers, self._tracer, draws)
        if self.follows_tables:
            draws = self._prng.child(f"tables-{self.life}")
            self._following = Following(self, self._rpc, self.core, self._tracer, draws)
            self._saving = False
            self._saving_tables = False
            self._table_draws = self._prng.child(f"table-writes-{self.life}")
            self._feed_later()
            self._save_later()
        if self.has_transactions:
            self.transacting = Transacting(self, self.core)
        self.transport.listen(self.host, config.address, self._rpc)
        self.transport.listen(self.host, config.ha_address, links)
        self.transport.power_on(self.host)
        self.driver.start()
        self._flush_later()
        self._clean_later()
        if config.transient_store_pool_enable:
            self._commit_later()
        Scrubbing(self, self.core)

    @property
    def store_config(self) -> StoreConfig:
        config = self.config
        return StoreConfig(
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
            mapper_file_size_batch_consume_queue=config.mapper_file_size_batch_consume_queue,
            transient_store_pool_enable=config.transient_store_pool_enable,
            transient_store_pool_size=config.transient_store_pool_size,
            commit_commit_log_least_pages=config.commit_commit_log_least_pages,
            max_message_size=config.max_message_size,
            enabled_append_prop_crc=config.enabled_append_prop_crc,
            max_hash_slot_num=config.max_hash_slot_num,
            max_index_num=config.max_index_num,
        )

    @property
    def is_static(self) -> bool:
        return not self.config.enable_controller_mode

    @property
    def driver(self) -> ReplicaDriver:
        return self.core.driver

    @property
    def broker_id(self) -> BrokerId | None:
        """The one that controllers have issued, of this life or of the last one that asked them."""
        if "core" in self.__dict__ and isinstance(self.core.replica, Replica):
            return self.replica.broker_id
        return self._issued_id

    @property
    def end_offset(self) -> int:
        """Of the log, or of the one that a dead broker left; 0 before the first start."""
        return self.store.max_phy_offset if "store" in self.__dict__ else 0

    @property
    def admits(self) -> bool:
        """Whether it would take a message now."""
        return self.driver.admission()[0] is ResponseCode.SUCCESS

    def kill(self, *, power_loss: bool) -> None:
        self.lost_power = self.lost_power or power_loss
        self._issued_id = self.broker_id
        self.hung_writes.abandon()
        self.end_life(power_loss=power_loss)
        self.disk.crash(power_loss=power_loss)
        self._observe(self, "died", {})

    def stop_in_order(self) -> None:
        """As after SIGTERM: it refuses what is new, gives others what they lack, and closes its store."""
        self.is_stopping = True
        self._stop_by_ms = self.clock.now_ms() + HAND_OVER_MS
        self.core.leave()
        self.stepped()
        self._leave()

    def _leave(self) -> None:
        if not (self.replica.may_stop and self.driver.is_log_free) and self.clock.now_ms() < self._stop_by_ms:
            self.after(LEAVE_TICK_MS, self._leave)
            return
        if self.driver.is_log_free:
            if self._following is not None:
                self._following.stop()
            self.core.close()
            self._tracer.event("stopped", end=self.store.max_phy_offset)
            self.stopped(self)
        self.kill(power_loss=False)

    def _new_disk(self, prng: SimPrng) -> SimDisk:
        disk = SimDisk(prng, clock=self.clock)
        disk.read_only_views = sys.implementation.name != "pypy"
        return disk

    def replace_disk(self) -> None:
        """Die, and have an empty disk: the next life is another replica."""
        self.restore_disk(self._new_disk(self._prng.child(f"disk-{self.life}")))
        self.lost_power = self.is_restored = self.has_bad_disk = False
        self.disk_count += 1

    def restore_disk(self, disk: SimDisk) -> None:
        """Die, and have a disk of before: others take it for the replica that it was."""
        self.kill(power_loss=False)
        self.lost_power = self.is_restored = True
        self.disk = disk
        self.rotten.clear()
        self.struck.clear()

    def post(self, life: int, work: Callable[[], None]) -> None:
        """A failure of the disk ends the process, as it ends the host's; without such a fault it is a finding."""
        if self._paused or life != self.life or not self.alive:
            super().post(life, work)
            return
        try:
            work()
        except DiskStopped:
            self.disk_stopped()
        except (StoreError, OSError) as error:
            if not self.has_bad_disk and (not self.disk_fails or isinstance(error, DamagedError)):
                raise
            self._tracer.event("disk_failed", reason=str(error))
            self.failed = str(error)
            if self.alive:
                self.kill(power_loss=False)

    def fail_disk(self, *, full: bool) -> None:
        """No room for another byte, or every write and sync ends with EIO; until `repair_disk`."""
        self.disk_fails = True
        self.disturb(self.scheduler.now_ms)
        if full:
            self.disk.capacity_bytes = self.disk.used_bytes
        else:
            self.disk.failing = frozenset(("write", "sync"))

    def repair_disk(self) -> None:
        self.disk_fails = False
        self.disturb(self.scheduler.now_ms)
        self.disk.capacity_bytes = None
        self.disk.failing = frozenset()

    def slow_disk(self, duration_ms: int, sync_ms: int) -> None:
        """For that long a sync may take up to `sync_ms`."""
        self._slow_until_ms, self._sync_ms = self.scheduler.now_ms + duration_ms, sync_ms
        self.disturb(self._slow_until_ms + sync_ms)

    def hang_disk(self, duration_ms: int, sync_ms: int) -> None:
        """As `slow_disk`; and a change of the log that begins meanwhile hangs until the end, within any of its
        writes."""
        self.slow_disk(duration_ms, sync_ms)
        self._hangs_until_ms = self._slow_until_ms
        self.disk.hang = self.hung_writes.at_change

    def rot(self, draws: SimPrng) -> bool:
        """Die, while a byte of a body changes that the next start must read and that is not the last record's. False if
        there is none."""
        if not self.alive or self.is_paused:
            return False
        log, size = self.store, self.config.mapped_file_size_commit_log
        end = log.record_end_offset
        bodies, position = [], max(log._progress.position or 0, log.min_phy_offset, end // size * size)
        while position < end:
            view = log.view(PhyOffset(position), end - position)
            record_bytes, *_, body_at, body_bytes = locate(view, 0, len(view), position)[:6]
            if body_bytes:
                bodies.append(position + body_at)
            position += record_bytes
        if len(bodies) < 2:
            return False
        at = bodies[draws.below(len(bodies) - 1)]
        self.kill(power_loss=False)
        self.lost_power = True
        self.disk.rot(f"commitlog/{at // size * size:020d}", at % size)
        return True

    def rot_byte(self, position: int, mask: int) -> bool:
        """A byte of the log is another one while the process runs; False if no checksum covers it."""
        by_record, file_bytes = self.config.enabled_append_prop_crc, self.config.mapped_file_size_commit_log
        if not is_covered(self.store, file_bytes, position, by_record=by_record):
            return False
        self.rotten.setdefault(position, self.store.view(PhyOffset(position), 1)[0])
        self.disk.rot(f"commitlog/{position // file_bytes * file_bytes:020d}", position % file_bytes, mask)
        return True

    def overwrite(self, position: int, new: bytes) -> bool:
        """Other bytes stand in its log while it runs, all in one file. False if no checksum would notice; then nothing
        is changed."""
        file_bytes, by_record = self.config.mapped_file_size_commit_log, self.config.enabled_append_prop_crc
        old = bytes(self.store.view(PhyOffset(position), len(new)))
        if old == new or not is_noticed(self.store, file_bytes, position, new, by_record=by_record):
            return False
        path = f"commitlog/{position // file_bytes * file_bytes:020d}"
        for offset, (before, after) in enumerate(zip(old, new, strict=True), position):
            if before != after:
                self.rotten.setdefault(offset, before)
                self.disk.rot(path, offset % file_bytes, before ^ after)
        return True

    def has_rot(self, start: int, end: int) -> bool:
        """Whether a rotten byte of the log in [start, end) is not mended yet."""
        log = self.store
        for offset, byte in list(self.rotten.items()):
            if not log.min_phy_offset <= offset < log.max_phy_offset or log.view(PhyOffset(offset), 1)[0] == byte:
                del self.rotten[offset]
        return any(start <= offset < end for offset in self.rotten)

    def stepped(self) -> None:
        """Every entry into the broker ends here."""
        if self.lost_power and self.alive and not self.store.unclean and not self.is_restored:
            self.lost_power = False
        if self.alive and self.driver.is_log_free:
            for check in self.static_checks if self.is_static else self.checks:
                check(self)

    def _traced(self, name: str, fields: dict[str, Any]) -> None:
        if name == "ha_aligned" and fields["cut_bytes"]:
            self._observe(self, "cut", {})
        elif name == "log_restarted" and fields["set_aside"]:
            self._observe(self, "gave-up", {})

    def role_changed(self, action: RoleChanged) -> None:
        if self._following is not None:
            self._following.role_changed()
        if self.registering is not None:
            self.registering.role_changed(action)
        if self.forwarder is not None:
            self.forwarder.role_changed()
        self._observe(self, "role", {"role": action.role, "epoch": action.epoch})

    # --- requests ---------------------------------------------------------------------------------------------------
    def _handle(self, conn: Connection, command: Command) -> None:
        channel = self._channels.get(conn.number)
        if channel is None:
            channel = self._channels[conn.number] = SimChannel(self._rpc, conn, lambda work: self.after(0, work))
        if command.code in NOTICES:
            self.heard(self, command)
        self.asked(self, channel, command)
        if command.code == RequestCode.RMQHA_HAND_OVER:
            self._asked_to_hand_over(channel, command)
        if self.turns is not None:
            self.turns.came(channel, command)
            return
        ((_, taken_count),) = self.core.processor.take([(channel, encode_frame(command))], 1)
        if not taken_count:
            self.core.processor.received(channel, [command])
        self.stepped()

    def _asked_to_hand_over(self, channel: SimChannel, command: Command) -> None:
        target = int(command.ext.get("targetBrokerId") or 0)
        if not target:
            self.hand_overs_cancelled += 1
            return

        def answered(reply: Command) -> None:
            if reply.code == ResponseCode.SUCCESS:
                self.handed_over = int(self.replica.epoch), target, int(self.store.max_phy_offset)

        channel.answered[command.opaque] = answered

    def _session_closed(self, conn: Connection) -> None:
        channel = self._channels.pop(conn.number, None)
        if channel is not None:
            if self.turns is not None:
                self.turns.closed(channel)
            self.core.processor.closed(channel)

    # --- work that the host shell does in tasks ---------------------------------------------------------------------
    def wake_timer(self) -> None:
        self._timer = self.wake_at(self.replica.deadline_ms(), self._timer, self._timeout)

    def _timeout(self) -> None:
        self.driver.timeout()
        self.stepped()

    @property
    def is_changing_log(self) -> bool:
        return self.hung_writes.is_under_way

    def write(self, work: Callable[[], None]) -> bool:
        return self.hung_writes.write(work)

    def _log_written(self, error: BaseException | None) -> None:
        self.driver.log_written(error)
        self.stepped()

    def wake_dispatch(self) -> None:
        due_ms = self.scheduler.now_ms + (0 if self.turns is None else dispatch_delay_ms(self.core))
        if not self._dispatching or due_ms < self._dispatch_due_ms:
            self._dispatching, self._dispatch_due_ms = True, due_ms
            self.after(due_ms - self.scheduler.now_ms, self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self.driver.dispatch():
            self.wake_dispatch()
        if self.driver.is_log_free:
            self.store.index.build(INDEX_STEP_BYTES)
        self._watch_schedule()
        self.stepped()

    def _flush_later(self) -> None:
        self.after(self.config.flush_interval_commit_log, self._flush_tick)

    def _flush_tick(self) -> None:
        self.flush_soon()
        self._flush_later()

    def flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            most_ms = self._sync_ms if self.scheduler.now_ms < self._slow_until_ms else SYNC_MS
            self.after(self._prng.between(0, most_ms), self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self.driver.is_log_free:
            self.flush_soon()  # the host's thread waits for that of the change
            return
        self.driver.flush_begins()
        try:
            self.store.sync()
            self.store.index.sync()
        except StoreError as error:
            self._tracer.event("disk_failed", reason=str(error))
            self.kill(power_loss=False)
            return
        self.driver.synced()
        if self.store.allocation.is_due:
            self.store.allocation.allocate_ahead()
        self.stepped()

    def _commit_later(self) -> None:
        self.after(self.config.commit_interval_commit_log, self._commit_tick)

    def _commit_tick(self) -> None:
        self.driver.commit()
        self.stepped()
        self._commit_later()

    # --- tables -----------------------------------------------------------------------------------------------------
    def _feed_later(self) -> None:
        self.after(FEED_TICK_MS, self._feed_tick)

    def _feed_tick(self) -> None:
        if self.driver.is_log_free:
            self.core.pull.timeout()
            self.core.pops.timeout()
        self.core.metadata_leader.timeout()
        self.core.throttle.timeout()
        self.stepped()
        self._feed_later()

    def _save_later(self) -> None:
        self.after(SAVE_INTERVAL_MS, self._save_tick)

    def _save_tick(self) -> None:
        self.save_soon()
        self._save_later()

    def save_soon(self) -> None:
        if not self._saving:
            self._saving = True
            self.after(self._prng.between(0, SYNC_MS), self._save)

    def _save(self) -> None:
        self._saving = False
        self.core.save()
        self.core.metadata_leader.saved()
        self.stepped()

    def save_tables_soon(self) -> None:
        """As a thread of the host does: what changes before it begins shares a write, what is told meanwhile may come
        before it."""
        if not self._saving_tables:
            self._saving_tables = True
            self.after(self._table_draws.between(0, SYNC_MS), self._save_tables)

    def _save_tables(self) -> None:
        self._saving_tables = False
        self.core.save_tables()
        self.stepped()

    # --- delayed messages -------------------------------------------------------------------------------------------
    def _watch_schedule(self) -> None:
        """From the first message that waits on, as the host does from the start."""
        if not self.is_delivering and (self.core.schedule.end_of(1) or self.core.timers.end_offset):
            self.is_delivering = True
            self._deliver_later()

    def deliver_soon(self) -> None:
        self.after(0, self._deliver)

    def _deliver_later(self) -> None:
        self.after(SCHEDULE_TICK_MS, self._deliver_tick)

    def _deliver_tick(self) -> None:
        self._deliver()
        self._deliver_later()

    def _deliver(self) -> None:
        self.core.deliver()
        self.stepped()

    # --- old files --------------------------------------------------------------------------------------------------
    def _clean_later(self) -> None:
        self.after(self.config.clean_resource_interval, self._clean_tick)

    def _clean_tick(self) -> None:
        if self.store.index.has_failed and self.driver.is_log_free:
            self.store.index.retry()
        self._clean()
        self._clean_later()

    def clean(self, start_offset: int) -> None:
        """An operator asks for it."""
        self.core.retention.demand(start_offset)
        self._clean()

    def _clean(self) -> None:
        retention = self.core.retention
        retention.check()
        while retention.schedule_unlink():
            pass
        retention.pending_unlink()
        self.stepped()


def flipped(broker: BrokerProcess, phy_offset: int, data: bytes, draws: SimPrng) -> bytes:
    """Bytes of its log with another bit, if that is one which a checksum covers."""
    at, config = draws.below(len(data)), broker.config
    by_record, file_bytes = config.enabled_append_prop_crc, config.mapped_file_size_commit_log
    if not is_covered(broker.store, file_bytes, phy_offset + at, by_record=by_record):
        return data
    return data[:at] + bytes([data[at] ^ 1 << draws.below(8)]) + data[at + 1 :]


class HaLinks:
    """HA connections: accepted ones are numbered from 1, dialed ones carry the machine's own numbers."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._life = broker.life
        self._conns: dict[int, Connection] = {}
        self._numbers: dict[int, int] = {}
        self._next = 1

    def connections(self) -> list[Connection]:
        """Those that are open, by their numbers."""
        return [conn for _, conn in sorted(self._conns.items())]

    def _post(self, work: Callable[..., None], *args: Any) -> None:
        self._broker.post(self._life, partial(self._run, work, args))

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        work(*args)
        if self._broker.alive:
            self._broker.stepped()

    # --- Endpoint ---------------------------------------------------------------------------------------------------
    def accepted(self, conn: Connection, port: str) -> None:
        number = self._next
        self._next += 1
        self._add(number, conn)
        self._post(lambda: self._broker.driver.ha_accepted(number, conn.peer_host))

    def received(self, conn: Connection, data: bytes) -> None:
        number = self._numbers[conn.number]
        self._post(self._read, number, data)

    def _read(self, number: int, data: bytes) -> None:
        """Into a buffer that takes other bytes as soon as the call returns, as the host's does."""
        buffer = bytearray(data)
        self._broker.core.driver.ha_received(number, memoryview(buffer))
        buffer[:] = b"\xee" * len(buffer)

    def closed(self, conn: Connection) -> None:
        number = self._numbers.pop(conn.number)
        self._conns.pop(number, None)
        self._post(lambda: self._broker.driver.ha_closed(number))

    def _add(self, number: int, conn: Connection) -> None:
        self._conns[number] = conn
        self._numbers[conn.number] = number

    # --- HaPort -----------------------------------------------------------------------------------------------------
    def open(self, conn_id: int, address: str) -> None:
        def opened(conn: Connection | None) -> None:
            if conn is None:
                self._post(lambda: self._broker.driver.ha_closed(conn_id))
            elif self._broker.life != self._life or not self._broker.alive:
                conn.close()
            else:
                self._add(conn_id, conn)
                self._post(lambda: self._broker.driver.ha_opened(conn_id))

        self._broker.transport.connect(self._broker.host, self, address, opened)

    def send(self, conn_id: int, data: bytes, *, may_wait: bool) -> None:
        conn, turns = self._conns.get(conn_id), self._broker.turns
        self._broker.sends(self._broker, data)
        if conn is not None and may_wait and turns is not None:
            turns.hold_news(conn, data)
        elif conn is not None:
            conn.send(data)

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None:
        conn = self._conns.get(conn_id)
        if conn is not None:
            if self._broker.turns is not None:
                self._broker.turns.told_otherwise(conn)
            data = bytes(self._broker.store.view(phy_offset, size_bytes))
            self._broker.sends(self._broker, header + data)
            flip = self._broker.flip_next
            if flip is not None and flip[0] == conn.peer_host:
                data, self._broker.flip_next = flipped(self._broker, phy_offset, data, flip[1]), None
            conn.send(header + data)
            self._broker.after(0, partial(self._sent, conn_id))

    def _sent(self, conn_id: int) -> None:
        self._broker.driver.ha_sent(conn_id)
        self._broker.stepped()

    def resolve(self, names: tuple[str, ...]) -> None:
        """A simulated host's name is its address: whoever comes from elsewhere is not that replica."""
        self._run(self._broker.driver.ha_resolved, ({},))

    def close(self, conn_id: int) -> None:
        conn = self._conns.pop(conn_id, None)
        if conn is not None:
            self._numbers.pop(conn.number, None)
            conn.close()


class ControllerCalls:
    """The controller link of the host shell, with its decision class, over simulated remoting."""

    def __init__(self, broker: BrokerProcess, rpc: Rpc, addresses: list[str]) -> None:
        self._broker = broker
        self._rpc = rpc
        self._route = ControllerRoute(addresses)

    def call(self, action: CallController) -> None:
        if action.command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
            self._broker.asks_for_set(self._broker, action.command)
        self._attempt(action, self._broker.clock.now_ms() + action.timeout_ms, self._route.max_attempts)

    def _attempt(self, action: CallController, deadline_ms: int, attempts: int, *, is_open: bool = False) -> None:
        """`is_open`: an earlier try has had no answer."""
        left_ms = deadline_ms - self._broker.clock.now_ms()
        if left_ms <= 0 or attempts == 0:
            self._broker.after(0, partial(self._answer, action, None))
            return
        address = self._route.target
        command = Command(action.command.code, dict(action.command.ext), action.command.body)

        def failed(*, is_open: bool) -> None:
            self._route.failed(address)
            self._attempt(action, deadline_ms, attempts - 1, is_open=is_open)

        def answered(reply: Command | None) -> None:
            if reply is None:
                failed(is_open=True)
            elif is_redirect(reply):
                self._route.redirected(address, reply.ext.get("controllerLeaderAddress") or "")
                self._attempt(action, deadline_ms, attempts - 1, is_open=is_open)
            else:
                self._route.answered(address)
                self._answer(action, answer_to(action.command, reply, is_open=is_open))

        timeout_ms = self._route.attempt_timeout_ms(left_ms)
        self._rpc.call(address, command, timeout_ms, answered, unsent=lambda: failed(is_open=is_open))

    def _answer(self, action: CallController, reply: Command | None) -> None:
        if reply is not None:
            self._broker.heard(self._broker, reply)
        try:
            self._broker.driver.controller_replied(action.call_id, reply)
        except RemoteProtocolError as error:
            raise AssertionError(f"our controller talks nonsense: {error}") from error
        self._broker.stepped()
