"""One replica of a broker group: the machine that composes role, replication, SyncStateSet and ack rules.

    STARTING ──another is master──▶ SLAVE ◀──another is master, higher epoch── MASTER
        │                             │                                          ▲
        └──────── elected ────────────┴──▶ PROMOTING ──committed and dispatched──┘

PROMOTING: the epoch entry is written, slaves may connect, the name servers know; sends are refused until every record
of earlier epochs is committed and dispatched. In CP that takes a confirmed set of a majority: raising the confirm
offset on one copy would show consumers what an election could still cut.

Inputs are methods that take `now_ms` first; outputs are taken by `actions()`. The machine changes the log directly
(it is synchronous, `rmqha.port.ReplicaLog`) and asks the shell for everything else (`rmqha.ha.action`).

A new epoch, its entry and a truncation are written by a `LogWriter` (`rmqha.ha.log_writes`). Until the disk has written
it, this replica is not master, appends and acknowledges nothing and applies no changes of its group; heartbeats go on.
The shell calls `log_written` when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rmqha.ha.ack import AckQueue
from rmqha.ha.action import AckStatus, Action, CloseHa, Complete, HandedOver, RoleChanged, Token
from rmqha.ha.commit_tracker import CommitTracker
from rmqha.ha.controller_client import ControllerClient, HeartbeatValues
from rmqha.ha.group_info import GroupInfo, parse_group_info
from rmqha.ha.hand_over import HandOver
from rmqha.ha.log_writes import WAITS_FOR_DISK, Continuation, LogWrites, SynchronousLogWrites
from rmqha.ha.machine import Master, Promoting, RoleHolder, Slave, common_state
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.copy_progress import CopyLimit
from rmqha.ha.stream.copy_speed import CopySpeed
from rmqha.ha.stream.registered import parse_sync_state_data
from rmqha.ha.stream.replication_client import ClientState
from rmqha.ha.stream.slaves import Slaves
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError, StoreError
from rmqha.model.identity import HaMode, Role, join_address, parse_address
from rmqha.model.offset import NO_EPOCH, BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import IdentityStore, LogWriter, ReplicaLog, Tracer
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState

HAND_OVER_AFTER_MS = 1000
"""Time (ms) after which a stopping master asks the controller for a new one, if its slaves are not caught up before."""


class Replica(RoleHolder):
    """Replica of a group with a controller, one per broker. Numbers of HA connections: those that the shell accepts
    count from 1 up, those that it opens (OpenHa) are negative."""

    def __init__(
        self,
        config: BrokerConfig,
        log: ReplicaLog,
        identity: IdentityStore,
        tracer: Tracer,
        may_join: Callable[[BrokerId], bool],
        table_waits: Callable[[], int],
        wall_offset_ms: Callable[[], int] = lambda: 0,
        writer: LogWriter | None = None,
    ) -> None:
        """`may_join`: further condition for a slave to be proposed for the SyncStateSet. `table_waits`: number of
        replies that wait until all members have a metadata change, beside those that wait for the log. `now_ms +
        wall_offset_ms()` is the wall time (ms) in requests to the controllers. `writer` None: a change of the log is
        made within the call that needs it."""
        self._config = config
        self._log = log
        self._tracer = tracer
        self._controller = ControllerClient(
            config, identity, tracer, self._heartbeat_values, self._candidacy, wall_offset_ms, self._report
        )
        last = log.epochs.last
        super().__init__(Epoch(max(log.highest_epoch, last.epoch if last else 0)))
        self._has_master = False
        self._total_replicas_epoch, self._total_replicas_call_id = NO_EPOCH, 0
        """Epoch of the group information that last set the number of replicas, and the last call made before it
        came."""
        self._set = SyncStateSetManager(config, log, self._controller, tracer, may_join)
        self._commit_tracker = CommitTracker(config, log, self._controller, self._set, tracer)
        self._writes = LogWrites(writer or SynchronousLogWrites())
        self._is_stuck = False
        """True if a change of the log takes so long that another replica should lead."""
        self._missed_group_change = False
        """True if group information came while a change of the log waited for the disk: it is asked for again then."""
        self._reported_unclean = False
        """True if the log was unclean before the master's last bytes came: the controllers know it."""
        self._client: HaClient | None = None
        self._stopping_at_ms: int | None = None
        self._has_reported_stop = False
        self._hand_over = HandOver()
        self._table_waits = table_waits
        self.newest_master_address = ""
        """Broker address of the newest master known, even if its epoch is not durable here yet."""
        self._speed = CopySpeed()
        self._copy_limit = CopyLimit(config.ha_transfer_bytes_per_second, lambda item: item in self._set.state.union)
        self._slaves = Slaves(config, log, self._controller, self._copy_limit, tracer)
        self._disk_problem, self._disk_hangs = "", False
        self._epoch_refusal = ""
        """Error of the disk that kept the newest epoch from being recorded; "" for none."""
        self._stale_count = 0
        self.disk_refusal = ""
        """Set by the shell: reason why the disk takes no more sends, "" for none. Heartbeats report it."""
        self._actions: list[Action] = []

    # --- time -----------------------------------------------------------------------------------------------------
    def start(self, now_ms: int) -> None:
        self.timeout(now_ms)

    def timeout(self, now_ms: int) -> None:
        """Advance the timers; called at or after `deadline_ms`. It is idempotent."""
        self._is_stuck = self._writes.is_stuck(now_ms)
        self._controller.timeout(now_ms)
        if self._client is not None:
            self._actions += self._client.timeout(now_ms)
        self._slaves.timeout(now_ms)
        self._actions += self._slaves.take()
        if self.is_master:
            self._actions += self._commit_tracker.expire(now_ms)
        self._settle(now_ms)

    def deadline_ms(self) -> int | None:
        known = [self._controller.deadline_ms(), self._commit_tracker.waits.deadline_ms(), *self._slaves.deadlines_ms()]
        if self._client is not None:
            known.append(self._client.deadline_ms())
        if self.is_master:
            known += (self._set.deadline_ms(), self._hand_over.deadline_ms())
        if self._stopping_at_ms is not None and not self._has_reported_stop:
            known.append(self._stopping_at_ms + HAND_OVER_AFTER_MS)
        due = [item for item in known if item is not None]
        return min(due) if due else None

    def actions(self) -> list[Action]:
        """Take the accumulated actions; called after every input. The shell performs them in order."""
        actions, self._actions = self._actions, []
        return actions

    # --- controller -----------------------------------------------------------------------------------------------
    def controller_replied(self, now_ms: int, call_id: int, reply: Command | None) -> None:
        code = self._controller.replied(now_ms, call_id, reply)
        try:
            if code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                self._set.replied(now_ms, call_id, reply)
            elif code is RequestCode.CONTROLLER_GET_SYNC_STATE_DATA and self._log.unclean:
                self._accept_as_sole_replica(now_ms, reply)
            elif code is RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                self._slaves.admit(now_ms, self._slaves.admission.answered(now_ms, reply), self.epoch)
            elif code is not None and reply is not None:
                info = parse_group_info(reply)
                if info is not None:
                    self._apply(now_ms, info, call_id)
        except RemoteProtocolError as error:
            self._tracer.event("controller_nonsense", reason=str(error))
        self._controller.timeout(now_ms)
        self._settle(now_ms)

    def role_notified(self, now_ms: int, command: Command) -> None:
        """Request 1008 arrived. Raises RemoteProtocolError if it cannot be read."""
        info = parse_group_info(command)
        if info is not None and self._controller.broker_id is not None:
            self._apply(now_ms, info)
            self._settle(now_ms)

    def role_notified_unproven(self, now_ms: int) -> None:
        """Request 1008 arrived from a peer that has not proved to be a controller: ask the controllers."""
        if self._controller.broker_id is not None:
            self._controller.group_changed()
            self._settle(now_ms)

    def _heartbeat_values(self) -> HeartbeatValues:
        log = self._log
        last = log.epochs.last
        return HeartbeatValues(
            last.epoch if last else Epoch(-1),
            self.epoch,
            log.max_phy_offset,
            log.confirm_offset,
            log.unclean,
            self._has_master,
            self._has_reported_stop or self._is_stuck,
            self._set.total_replicas,
        )

    def _candidacy(self) -> tuple[bool, bool]:
        return self._log.unclean, self._has_master or self._has_reported_stop or self._is_stuck

    def _report(self, now_ms: int) -> dict[str, str]:
        """Heartbeat fields that only rmqha's controllers read."""
        slaves = self._slaves.connections if self.is_master else ()
        return {
            "zone": self._config.broker_zone,
            "boundTotalReplicas": str(self._commit_tracker.total_replicas),
            "diskProblem": self._disk_problem or self._room_refusal or (WAITS_FOR_DISK if self._is_stuck else ""),
            "slaves": self._speed.report(now_ms, self._log.max_phy_offset, slaves),
        }

    @property
    def _room_refusal(self) -> str:
        """The reason why the disk takes no more sends, or none of the master's bytes; "" for none."""
        return self.disk_refusal or ("" if self._client is None else self._client.room_refusal)

    def master_discovered(self, now_ms: int, master_address: str, ha_address: str) -> None:
        """Ignore the master that a name server knows: the controllers decide."""

    def disk_probed(self, now_ms: int, problem: str, *, hangs: bool = False) -> None:
        """Note the disk probe's finding, "" for none. A change is sent to the controllers at once, in a heartbeat."""
        if problem != self._disk_problem:
            self._disk_problem, self._disk_hangs = problem, hangs
            self._tracer.event("disk_problem" if problem else "disk_well", reason=problem)
            self._controller.heartbeat(now_ms)
            self._settle(now_ms, check_set=False)

    def hand_over(self, now_ms: int, epoch: Epoch, target: BrokerId | None, timeout_ms: int, token: Token) -> None:
        """Request 52012: refuse sends until replica `target` holds the whole log; HandedOver(token, …) follows.
        `target` None cancels a hand-over."""
        if not self.is_master or epoch != self.epoch:
            refusal = f"this broker is not the master of epoch {epoch}, its own is {self.epoch}"
            self._actions.append(HandedOver(token, refusal))
            return
        if target is None:
            self._actions += self._hand_over.end("cancelled")
            self._actions.append(HandedOver(token, ""))
        else:
            self._actions += self._hand_over.begin(now_ms, target, timeout_ms, token)
        self._settle(now_ms)

    def _apply(self, now_ms: int, info: GroupInfo, call_id: int = 0) -> None:
        """Take the role that the controller's group information gives, unless it is outdated. It is level-triggered.
        `call_id`: the call that it answers, 0 for a notice."""
        own_id = self._controller.broker_id
        assert own_id is not None, "a replica without an id asks for nothing about its group"
        if info.epoch < self.epoch:
            self._stale_count += 1
            return
        if self._writes.is_waiting:
            self._missed_group_change = True
            return
        self._take_total_replicas(now_ms, info, call_id)
        self._set.drained_ids = info.drained_ids
        self._slaves.admit(now_ms, self._slaves.admission.registrations_received(now_ms, info.registered), self.epoch)
        if info.master_id is None:
            self._has_master = False
            return
        if info.master_id == own_id:
            if self._log.unclean and not self._unclean_election(info):
                return
            self._has_master = True
            if self.is_master and info.epoch == self.epoch:
                if info.members is not None:
                    self._set.shown(now_ms, info.members, info.set_epoch)
            else:
                self._become_master(now_ms, info, own_id)
            return
        self._has_master = True
        if self.is_master and info.epoch == self.epoch:
            self._stale_count += 1  # two masters in one epoch: the older answer lost the race
            return
        self._become_slave(now_ms, info, own_id)

    def _take_total_replicas(self, now_ms: int, info: GroupInfo, call_id: int) -> None:
        """Take the number of replicas from group information. A smaller number counts only in the answer to a later
        call or in a later epoch: an outdated one would let this master acknowledge with fewer members than the
        controllers count on (ruling 15)."""
        total_replicas, known = info.total_replicas, self._set.total_replicas
        if total_replicas is None:
            return
        if (
            total_replicas < known
            and info.epoch <= self._total_replicas_epoch
            and call_id <= self._total_replicas_call_id
        ):
            self._stale_count += 1
            return
        self._total_replicas_epoch, self._total_replicas_call_id = info.epoch, self._controller.last_call_id
        if total_replicas != known:
            self._set.total_replicas = total_replicas
            self._controller.register_again(now_ms)  # the controllers also go by what a master declares

    def _unclean_election(self, info: GroupInfo) -> bool:
        """Accept an election of this unclean replica. After an unclean boot an old epoch is never resumed, and only an
        election counts that knew of it (ruling 3): an operator's, or that of a group of one."""
        if not info.elected_unclean or info.epoch <= self._log.highest_epoch:
            return False
        self._log.mark_clean()
        self._tracer.event("unclean_accepted", epoch=info.epoch, max_phy_offset=self._log.max_phy_offset)
        return True

    def _accept_as_sole_replica(self, now_ms: int, reply: Command | None) -> None:
        """Count as whole if Apache's controllers have registered no other replica: nobody has a longer log, and they
        know of no unclean replicas. Ours, which tell HA addresses, elect such a replica themselves."""
        if self._writes.is_waiting or reply is None or reply.code != ResponseCode.SUCCESS:
            return
        replicas = parse_sync_state_data(reply, self._config.broker_name)
        if replicas == {self._controller.broker_id: (self._config.address,)}:
            self._log.mark_clean()
            self._tracer.event("unclean_accepted", epoch=self.epoch, max_phy_offset=self._log.max_phy_offset)
            self._controller.register_again(now_ms)

    def _become_master(self, now_ms: int, info: GroupInfo, own_id: BrokerId) -> None:
        before = self._log.highest_epoch
        self._leave_role("elected master")
        self.newest_master_address = self._config.address
        self._accept(now_ms, info.epoch, partial(self._begin_mastership, info, own_id, before))

    def _begin_mastership(self, info: GroupInfo, own_id: BrokerId, before: Epoch, now_ms: int) -> list[Action]:
        last, continuation = self._log.epochs.last, partial(self._promote, info, own_id, before)
        if last is not None and last.epoch == info.epoch:
            return continuation(now_ms)
        self._write(now_ms, partial(self._begin_epoch, info.epoch), continuation)
        return []

    def _begin_epoch(self, epoch: Epoch) -> None:
        """Begin an epoch at the end of the log. An incomplete record at the end, which will never be completed, and an
        epoch entry without bytes, whose epoch the next bytes would get, are removed first."""
        log = self._log
        last, end_offset = log.epochs.last, log.record_end_offset
        if end_offset < log.max_phy_offset or (last is not None and last.start_offset >= end_offset):
            log.truncate(end_offset)
        appended = log.append_epoch(epoch, log.max_phy_offset)
        assert appended, f"epoch {epoch} at {log.max_phy_offset} does not follow {log.epochs}"

    def _promote(self, info: GroupInfo, own_id: BrokerId, before: Epoch, now_ms: int) -> list[Action]:
        log, last = self._log, self._log.epochs.last
        assert last is not None
        # For a master that resumes its epoch the confirm offset on disk is older than what consumers have seen.
        self._enter(Promoting(info.epoch, own_id, self._config.address, last.start_offset, log.max_phy_offset))
        members = info.members if info.members else (own_id,)
        self._set.begin(now_ms, own_id, info.epoch, members, info.set_epoch, resumed=info.epoch == before)
        if self._config.mode is HaMode.AP or self._commit_tracker.total_replicas == 1:
            log.set_confirm_offset(log.max_phy_offset)
        return [RoleChanged(Role.MASTER, self.epoch, own_id, self.master_address)]

    def _become_slave(self, now_ms: int, info: GroupInfo, own_id: BrokerId) -> None:
        assert info.master_id is not None
        ha_address = info.master_ha_address or _ha_address_of(info.master_address)
        before = self._in
        unchanged = isinstance(before, Slave) and (before.epoch, before.master_id) == (info.epoch, info.master_id)
        if unchanged and self._client is not None and self._client.master_address == ha_address:
            return
        self._leave_role(f"broker {info.master_id} is master of epoch {info.epoch}")
        self.newest_master_address = info.master_address
        self._accept(now_ms, info.epoch, partial(self._follow, info, own_id, ha_address, unchanged))

    def _follow(self, info: GroupInfo, own_id: BrokerId, ha_address: str, told: bool, now_ms: int) -> list[Action]:
        self._enter(Slave(info.epoch, info.master_id, info.master_address))
        if self._client is None:
            self._client = HaClient(self._config, self._log, self._writes, own_id, self._tracer)
        self._client.set_master_epoch(info.epoch, info.unclean_epoch)
        actions = self._client.follow(now_ms, ha_address) if ha_address else []
        return actions if told else [*actions, RoleChanged(Role.SLAVE, info.epoch, info.master_id, info.master_address)]

    def _accept(self, now_ms: int, epoch: Epoch, continuation: Continuation) -> None:
        """Make the epoch durable before anything is done in it (ruling 4), then call `continuation`. While the disk
        refuses it, this replica is a slave without a master; each heartbeat's answer is another try."""
        if epoch > self._log.highest_epoch and self._disk_hangs:
            self._refuse_epoch(epoch, self._disk_problem)  # a write would hang another thread
        elif epoch > self._log.highest_epoch:
            refusal: list[str] = []
            self._write(
                now_ms,
                partial(self._record, epoch, refusal),
                partial(self._epoch_recorded, epoch, refusal, continuation),
            )
        else:
            self._epoch_refusal = ""
            self._actions += continuation(now_ms)

    def _record(self, epoch: Epoch, refusal: list[str]) -> None:
        try:
            self._log.accept_epoch(epoch)
        except StoreError as error:
            refusal.append(str(error))

    def _epoch_recorded(
        self, epoch: Epoch, refusal: list[str], continuation: Continuation, now_ms: int
    ) -> list[Action]:
        if refusal:
            self._refuse_epoch(epoch, refusal[0])
            return []
        self._epoch_refusal = ""
        return continuation(now_ms)

    def _refuse_epoch(self, epoch: Epoch, reason: str) -> None:
        if not self._epoch_refusal:
            self._follow_nobody()
            self._tracer.event("epoch_not_accepted", epoch=epoch, reason=reason)
        self._epoch_refusal = reason

    def _follow_nobody(self) -> None:
        self._enter(Slave(self.epoch, None, ""))
        self._actions.append(RoleChanged(Role.SLAVE, self.epoch, None, ""))

    # --- changes of the log -----------------------------------------------------------------------------------------
    def _write(self, now_ms: int, work: Callable[[], None], continuation: Continuation) -> None:
        """Make a change of the log. A master that has to wait for it steps down meanwhile."""
        self._actions += self._writes.make(now_ms, work, continuation)
        if self._writes.is_waiting and self.is_master:
            self._follow_nobody()

    def log_written(self, now_ms: int) -> None:
        """The change of the log for which this machine waits is complete."""
        self._actions += self._writes.written(now_ms)
        if self._client is not None and not self._writes.is_waiting:
            self._actions += self._client.written(now_ms)
            self._report_unclean_state(now_ms)
        if self._missed_group_change and not self._writes.is_waiting:
            self._missed_group_change = False
            self._controller.group_changed()
        if self._is_stuck:
            self._is_stuck = False
            self._controller.heartbeat(now_ms)
        self._controller.timeout(now_ms)
        self._settle(now_ms)

    @property
    def is_writing(self) -> bool:
        """True while a change of the log is being made: nothing but this machine may use the log."""
        return self._writes.is_waiting

    def _leave_role(self, reason: str) -> None:
        """Close all HA connections: acknowledgements count only in the epoch of their connection."""
        self._actions += self._commit_tracker.abandon()
        self._actions += self._hand_over.end("this broker is no longer the master")
        self._slaves.close(reason)
        self._actions += self._slaves.take()
        if self._client is not None:
            self._actions += self._client.leave(reason)

    # --- HA connections -------------------------------------------------------------------------------------------
    def ha_accepted(self, now_ms: int, conn_id: int, peer: str, claim: HaClaim | None = None) -> None:
        """A peer has connected. `claim`: identity that it has proved (haSecurity), if any."""
        if not self.is_master:
            self._actions.append(CloseHa(conn_id, "not master"))
            return
        self._slaves.admission.connected(now_ms, conn_id, peer, claim)
        self._actions += self._slaves.take()

    def ha_resolved(self, now_ms: int, numbers: Mapping[str, tuple[str, ...]]) -> None:
        self._slaves.admit(now_ms, self._slaves.admission.resolved(now_ms, numbers), self.epoch)
        self._settle(now_ms)

    def ha_opened(self, now_ms: int, conn_id: int) -> None:
        if self._client is not None:
            self._actions += self._client.opened(now_ms, conn_id)

    def ha_received(self, now_ms: int, conn_id: int, data: Buffer) -> None:
        if conn_id < 0:
            if self._client is not None:
                if not self._writes.is_waiting:
                    self._reported_unclean = self._log.unclean
                self._actions += self._client.received(now_ms, conn_id, data)
                self._report_unclean_state(now_ms)
        else:
            connection = self._slaves.get(conn_id)
            known = connection is not None and connection.slave_id in self._set.state.union
            self._slaves.received(now_ms, conn_id, data, self.epoch)
            self._settle(now_ms, check_set=not known)
            return
        self._settle(now_ms)

    def _report_unclean_state(self, now_ms: int) -> None:
        if self._writes.is_waiting or not self._log.unclean:
            return
        if not self._reported_unclean:
            self._reported_unclean = True
            self._controller.register_again(now_ms)  # the controller must know it before it elects
            self._controller.timeout(now_ms)
        # An unclean replica that has all that its master had at the handshake is clean again (ruling 3).
        if self._client is not None and self._client.is_caught_up:
            self._actions += self._writes.make(now_ms, self._log.mark_clean, self._whole_again)

    def _whole_again(self, now_ms: int) -> list[Action]:
        self._tracer.event("whole_again", max_phy_offset=self._log.max_phy_offset)
        self._controller.register_again(now_ms)
        self._controller.timeout(now_ms)
        return []

    def ha_sent(self, now_ms: int, conn_id: int) -> None:
        self._slaves.sent(now_ms, conn_id)
        self._actions += self._slaves.take()

    def ha_closed(self, now_ms: int, conn_id: int) -> None:
        if conn_id < 0:
            if self._client is not None:
                self._client.closed(now_ms, conn_id)
        elif self._slaves.closed(conn_id):
            self._settle(now_ms)

    # --- log ------------------------------------------------------------------------------------------------------
    def appended(self, now_ms: int) -> None:
        """The master's send path has appended to the log."""
        self._settle(now_ms, check_set=False)

    def synced(self, now_ms: int) -> None:
        """log.synced_offset has moved."""
        if self._client is not None:
            self._actions += self._client.ack(now_ms)
        self._settle(now_ms, check_set=False)

    def dispatched(self, now_ms: int) -> None:
        """log.dispatched_offset has moved. The driver calls log.dispatch while confirm_offset is ahead of it."""
        self._settle(now_ms, check_set=False)

    # --- sends ----------------------------------------------------------------------------------------------------
    def admission(self, now_ms: int) -> tuple[ResponseCode, str]:
        """(SUCCESS, "") or the refusal to give before anything is written (rulings 1 and 13)."""
        if not self.is_master:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is not the master of its group"
        if self._stopping_at_ms is not None:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is stopping"
        if self._hand_over.target is not None:
            return ResponseCode.SERVICE_NOT_AVAILABLE, f"replica {self._hand_over.target} is about to become master"
        if self.disk_refusal:
            return ResponseCode.SERVICE_NOT_AVAILABLE, self.disk_refusal
        short = self._commit_tracker.shortage(now_ms, self._slaves.connections)
        if short:
            return ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough: {short}"
        if self.role is Role.PROMOTING:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "the new master has not taken over yet"
        return ResponseCode.SUCCESS, ""

    def wait(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None:
        """The record ending at `end_offset` has been appended; Complete(token, …) follows, perhaps at once.

        Call `appended` once per batch of appends, before or after."""
        if not self.is_master:
            self._actions.append(Complete(token, AckStatus.SERVICE_NOT_AVAILABLE))
        else:
            self._actions += self._commit_tracker.wait(now_ms, end_offset, token)

    # --- conclusions: called after every input --------------------------------------------------------------------
    def _settle(self, now_ms: int, *, check_set: bool = True) -> None:
        """Update set, confirm offset, acknowledgements and transfers after an input. `check_set` False: the input
        cannot change who belongs in the set (hot path)."""
        if self.is_master:
            connections = self._slaves.connections
            if check_set:
                self._set.maintain(now_ms, connections)
            acks = self._set.member_acks(connections)
            self._actions += self._commit_tracker.progress(now_ms, acks, connections)
            if isinstance(self._in, Promoting):
                self._open(self._in)
            self._slaves.pump(now_ms)
            if self._hand_over.target is not None:
                self._advance_hand_over(now_ms)
        self._actions += self._slaves.take()
        if self._stopping_at_ms is not None:
            self._report_stop_when_caught_up(now_ms)
        self._actions += self._controller.take()

    def _advance_hand_over(self, now_ms: int) -> None:
        target = self._hand_over.target
        acks = [item.acked_offset for item in self._slaves.connections if item.slave_id == target]
        ack = acks[0] if acks else None
        waiting_count = len(self._commit_tracker.waits) + self._table_waits()
        self._actions += self._hand_over.advance(now_ms, self._log.max_phy_offset, ack, waiting_count)

    def _open(self, promoting: Promoting) -> None:
        """End PROMOTING once all records of earlier epochs are committed and dispatched."""
        log = self._log
        if log.confirm_offset >= promoting.opens_at and log.dispatched_offset >= promoting.opens_at:
            self._enter(promoting.opened())
            self._tracer.event("serving", epoch=self.epoch, max_phy_offset=log.max_phy_offset)

    # --- leaving --------------------------------------------------------------------------------------------------
    def stopping(self, now_ms: int) -> None:
        """SIGTERM: refuse new sends; once the slaves have all, ask the controller for a hand-over (ruling 18)."""
        if self._stopping_at_ms is None:
            self._stopping_at_ms = now_ms
            self._settle(now_ms)

    def _report_stop_when_caught_up(self, now_ms: int) -> None:
        assert self._stopping_at_ms is not None
        if self._has_reported_stop:
            return
        done = not self.is_master or (
            not len(self._commit_tracker.waits) and self._set.all_caught_up(self._slaves.connections)
        )
        if done or now_ms >= self._stopping_at_ms + HAND_OVER_AFTER_MS:
            self._has_reported_stop = True
            self._controller.heartbeat(now_ms)

    @property
    def may_stop(self) -> bool:
        """True once this is no master, or no other member could take over; a stopping shell waits for it, bounded."""
        return not self.is_master or (not len(self._commit_tracker.waits) and len(self._set.state.union) <= 1)

    # --- view -----------------------------------------------------------------------------------------------------
    def slave_acks(self) -> list[tuple[BrokerId, PhyOffset]]:
        """Offset that each slave that is being sent the log has acknowledged, in the set or not: it still needs the
        rest."""
        return self._slaves.acks()

    @property
    def sync_required(self) -> bool:
        """True while acks wait for the disk: the shell then syncs at once instead of at intervals."""
        return self._commit_tracker.sync_required(is_master=self.is_master)

    def slave_ends(self) -> dict[int, int]:
        return dict(self._slaves.acks())

    def may_follow_tables(self, epoch: int) -> bool:
        return self.is_master and epoch == self.epoch

    def holders(self, phy_offset: PhyOffset) -> list[str]:
        """Addresses of the replicas that have the record there: of a master its slaves; of a slave its master, and then
        the others, for a master may have removed what is old already."""
        if not self.is_master:
            addresses = [self.master_address, *self._slaves.admission.addresses_beside(self._controller.broker_id)]
            return list(dict.fromkeys(address for address in addresses if address))
        acks = self._slaves.acks()
        known = (
            self._slaves.admission.address_of(slave_id) for slave_id, end_offset in acks if end_offset > phy_offset
        )
        return [address for address in known if address]

    def other_members(self) -> tuple[BrokerId, ...] | None:
        """All but this replica that are, or may by now be, in the SyncStateSet; None while nothing may be acknowledged
        in CP, since the confirmed set is too small."""
        if self._config.mode is HaMode.CP and not self._commit_tracker.has_quorum():
            return None
        return tuple(member for member in self._set.state.union if member != self._controller.broker_id)

    @property
    def seeks_master(self) -> bool:
        """False: the controllers name the master."""
        return False

    @property
    def is_listed_unaligned(self) -> bool:
        """False: with a controller, a slave that does not follow yet is fenced instead."""
        return False

    @property
    def hands_over(self) -> bool:
        """True during a directed switch: sends are refused."""
        return self._hand_over.target is not None

    @property
    def broker_id(self) -> BrokerId | None:
        return self._controller.broker_id

    @property
    def releasable_offset(self) -> PhyOffset:
        """Records that end at or below it may be answered SEND_OK; 0 on a slave."""
        return self._commit_tracker.releasable

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes at the end of a master's log that are not acknowledged: a later send is answered after them."""
        if releasable := self._commit_tracker.releasable:  # only a master's is above 0
            return self._log.max_phy_offset - releasable
        return self._log.max_phy_offset - self._log.confirm_offset if self.is_master else 0

    @property
    def ack_waits(self) -> AckQueue:
        """Waiting acknowledgements; read only."""
        return self._commit_tracker.waits

    @property
    def is_following(self) -> bool:
        """True for a slave whose log is aligned with its master's; before, it is registered but fenced."""
        return self._client is not None and self._client.state is ClientState.FOLLOWING

    def limit_copies(self, bytes_per_second: int) -> None:
        """haTransferBytesPerSecond has changed."""
        self._copy_limit.bytes_per_second = bytes_per_second

    @property
    def copy_left_bytes(self) -> int:
        """Bytes that a slave still lacks of the log that its master had when they shook hands."""
        return 0 if self._client is None else self._client.left_bytes

    def state(self, now_ms: int) -> ReplicaState:
        """State of the replica, for request 52000 and `rmqha status`."""
        log = self._log
        state = common_state(self, self._config, log, now_ms)
        state.ha_mode = self._config.mode.name.lower()
        state.total_replicas = self._commit_tracker.total_replicas
        state.master_id = self._in.master_id
        state.lacks_queue_ends = log.lacks_queue_ends
        state.async_learner = self._config.async_learner
        state.controller = "away" if self._controller.is_away(now_ms) else self._controller.state.value
        state.controller_refusal = self._controller.refusal
        state.stale_role_count = self._stale_count
        state.disk_problem = (
            self._disk_problem
            or self._epoch_refusal
            or self._room_refusal
            or (WAITS_FOR_DISK if self.is_writing else "")
        )
        state.hands_over_to = self._hand_over.target
        if self.is_master:
            assert isinstance(self._in, Promoting | Master)
            state.epoch_start_offset = self._in.start_offset
            state.releasable_offset = self._commit_tracker.releasable
            state.one_copy_synced = self._commit_tracker.is_one_copy_synced
            state.door = self._slaves.admission.state()
            self._commit_tracker.add_state(state, now_ms, self._slaves.connections)
        elif self._client is not None:
            self._client.add_state(state, now_ms)
            state.truncated_bytes = self._client.truncated_bytes
            state.copy = self._client.progress.state(now_ms, log.max_phy_offset) if self.is_following else None
        return state


def _ha_address_of(broker_address: str) -> str:
    """Ruling 23: the HA port is the listen port + 1 unless the controller says otherwise."""
    try:
        host, port = parse_address(broker_address)
    except ValueError:
        return ""
    return join_address(host, port + 1)
