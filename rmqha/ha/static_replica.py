"""One replica of a static group: its role is a key of its configuration and never changes.

    STARTING ──brokerRole=SLAVE──▶ SLAVE
        └──ASYNC_MASTER, SYNC_MASTER──▶ PROMOTING ──queues hold the log──▶ MASTER

There is no controller, no SyncStateSet and no new epoch. Consumers see what the master has appended. A SYNC_MASTER
waits for inSyncReplicas − 1 slaves, any of those that are close enough. It has the same methods as
`rmqha.ha.replica.Replica` (`rmqha.ha.machine.ReplicaMachine`).
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqha.ha.ack import AckQueue
from rmqha.ha.action import AckStatus, Action, CloseHa, Complete, HandedOver, RoleChanged, Token
from rmqha.ha.machine import Promoting, RoleHolder, Slave, common_state
from rmqha.ha.stream.legacy_client import LegacyHaClient
from rmqha.ha.stream.legacy_connection import LegacyHaConnection
from rmqha.ha.stream.log_sender import ConnectionState
from rmqha.ha.stream.replication_client import ClientState
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import MASTER_ID, BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState, SlaveState

MAX_CONNECTION_COUNT = 16
"""Most connections, of slaves and of peers that have not reported yet; more are closed at once."""
STOP_AFTER_MS = 3000
"""Longest time (ms) for which a stopping master waits until its slaves hold the whole log."""
NO_CONTROLLER = "this broker belongs to a static group (enableControllerMode=false)"


class StaticReplica(RoleHolder):
    """Replica of a group without controllers. Implements `ReplicaMachine`."""

    def __init__(self, config: BrokerConfig, log: ReplicaLog, tracer: Tracer) -> None:
        self._config = config
        self._log = log
        self._tracer = tracer
        last = log.epochs.last
        # the epoch of the time before the group became static: with a lower one, name servers would ignore this broker
        super().__init__(Epoch(max(log.highest_epoch, last.epoch if last else 0)))
        self._connections: dict[int, LegacyHaConnection] = {}
        self._client = LegacyHaClient(config, log, tracer)
        self._acks = AckQueue(config.sync_flush_timeout if config.sync_flush else config.slave_timeout)
        self._releasable = PhyOffset(0)
        self._stopping_at_ms: int | None = None
        self._stop_waited = False
        self._disk_problem = ""
        self.disk_refusal = ""
        """Reason why the disk takes no more sends, "" if it does; set by the shell."""
        self._actions: list[Action] = []

    # --- time -----------------------------------------------------------------------------------------------------
    def start(self, now_ms: int) -> None:
        log = self._log
        if self._config.broker_role == "SLAVE":
            self._enter(Slave(self.epoch, MASTER_ID, ""))
            log.set_confirm_offset(log.max_phy_offset)
            self._actions.append(RoleChanged(Role.SLAVE, self.epoch, MASTER_ID, ""))
            if self._config.ha_master_address:
                self._actions += self._client.follow(now_ms, self._config.ha_master_address)
            return
        if log.record_end_offset < log.max_phy_offset:
            log.truncate(log.record_end_offset)
        if log.unclean:
            log.mark_clean()  # the configuration says that this log is the group's, whatever a power loss took
            self._tracer.event("unclean_accepted", epoch=self.epoch, max_phy_offset=log.max_phy_offset)
        end = log.max_phy_offset
        self._enter(Promoting(self.epoch, MASTER_ID, self._config.address, end, end))
        self._actions.append(RoleChanged(Role.MASTER, self.epoch, MASTER_ID, self.master_address))
        self._settle(now_ms)

    def timeout(self, now_ms: int) -> None:
        self._actions += self._client.timeout(now_ms)
        for connection in list(self._connections.values()):
            self._perform(connection.timeout(now_ms))
        if self.is_master:
            behind_disk = self.sync_required and self._log.synced_offset < (self._acks.oldest_end_offset() or 0)
            status = AckStatus.FLUSH_DISK_TIMEOUT if behind_disk else AckStatus.FLUSH_SLAVE_TIMEOUT
            self._actions += self._acks.expire(now_ms, status)
        if self._stopping_at_ms is not None and now_ms >= self._stopping_at_ms + STOP_AFTER_MS:
            self._stop_waited = True
        self._settle(now_ms)

    def deadline_ms(self) -> int | None:
        due = [self._acks.deadline_ms(), self._client.deadline_ms()]
        due += [connection.deadline_ms() for connection in self._connections.values()]
        if self._stopping_at_ms is not None and not self._stop_waited:
            due.append(self._stopping_at_ms + STOP_AFTER_MS)
        return min((item for item in due if item is not None), default=None)

    def actions(self) -> list[Action]:
        """Take the accumulated actions; called after every input. The shell performs them in order."""
        actions, self._actions = self._actions, []
        return actions

    # --- who the master is ----------------------------------------------------------------------------------------
    def master_discovered(self, now_ms: int, master_address: str, ha_address: str) -> None:
        """Handle a name server's answer to a slave's registration; "" for an address that it does not know. The HA
        address of the configuration (haMasterAddress) wins; the broker address, from which tables are pulled, is
        always the name server's."""
        if self.role is not Role.SLAVE or not master_address:
            return
        if master_address != self.master_address:
            self._enter(Slave(self.epoch, MASTER_ID, master_address))
            self._actions.append(RoleChanged(Role.SLAVE, self.epoch, MASTER_ID, master_address))
        ha_address = self._config.ha_master_address or ha_address
        if ha_address and ha_address != self._client.master_address:
            self._actions += self._client.follow(now_ms, ha_address)

    def controller_replied(self, now_ms: int, call_id: int, reply: Command | None) -> None:
        raise AssertionError("a static replica asks no controller")

    def role_notified(self, now_ms: int, command: Command) -> None:
        """Ignore and trace the notice of a controller that still knows the address of this broker."""
        self._tracer.event("role_notice_ignored", reason=NO_CONTROLLER)

    def role_notified_unproven(self, now_ms: int) -> None:
        self._tracer.event("role_notice_ignored", reason=NO_CONTROLLER)

    def disk_probed(self, now_ms: int, problem: str, *, hangs: bool = False) -> None:
        """Note the disk probe's finding, "" for none. No other replica can take over, so sends continue."""
        if problem != self._disk_problem:
            self._disk_problem = problem
            self._tracer.event("disk_problem" if problem else "disk_well", reason=problem)

    def hand_over(self, now_ms: int, epoch: Epoch, target: BrokerId | None, timeout_ms: int, token: Token) -> None:
        self._actions.append(HandedOver(token, NO_CONTROLLER))

    # --- HA connections -------------------------------------------------------------------------------------------
    def ha_accepted(self, now_ms: int, conn_id: int, peer: str, claim: HaClaim | None = None) -> None:
        if not self.is_master or len(self._connections) >= MAX_CONNECTION_COUNT:
            self._actions.append(CloseHa(conn_id, "too many connections" if self.is_master else "not master"))
            return
        self._connections[conn_id] = LegacyHaConnection(now_ms, conn_id, peer, self._config, self._log)

    def ha_resolved(self, now_ms: int, numbers: Mapping[str, tuple[str, ...]]) -> None:
        raise AssertionError("a static replica asks for no host's numbers")

    def ha_opened(self, now_ms: int, conn_id: int) -> None:
        self._actions += self._client.opened(now_ms, conn_id)

    def ha_received(self, now_ms: int, conn_id: int, data: Buffer) -> None:
        if conn_id < 0:
            self._actions += self._client.received(now_ms, conn_id, data)
        elif (connection := self._connections.get(conn_id)) is not None:
            self._perform(connection.received(now_ms, data))
            self._settle(now_ms)

    def _perform(self, actions: list[Action]) -> None:
        """Add a connection's actions to the output; remove the connection when it closes itself."""
        for action in actions:
            if isinstance(action, CloseHa):
                self._connections.pop(action.conn_id, None)
        self._actions += actions

    def ha_sent(self, now_ms: int, conn_id: int) -> None:
        connection = self._connections.get(conn_id)
        if connection is not None:
            connection.sent()
            self._perform(connection.pump(now_ms))

    def ha_closed(self, now_ms: int, conn_id: int) -> None:
        if conn_id < 0:
            self._client.closed(now_ms, conn_id)
        elif self._connections.pop(conn_id, None) is not None:
            self._settle(now_ms)

    # --- log ------------------------------------------------------------------------------------------------------
    def appended(self, now_ms: int) -> None:
        """The master's send path has appended to the log."""
        self._settle(now_ms)

    def synced(self, now_ms: int) -> None:
        """log.synced_offset has moved."""
        self._actions += self._client.report(now_ms)
        self._settle(now_ms)

    def dispatched(self, now_ms: int) -> None:
        """log.dispatched_offset has moved."""
        self._settle(now_ms)

    def log_written(self, now_ms: int) -> None:
        raise AssertionError("a static replica changes its log at once")

    # --- sends ----------------------------------------------------------------------------------------------------
    def admission(self, now_ms: int) -> tuple[ResponseCode, str]:
        """(SUCCESS, "") or the refusal to give before anything is written."""
        if not self.is_master:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave of a static group"
        if self._stopping_at_ms is not None:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is stopping"
        if self.disk_refusal:
            return ResponseCode.SERVICE_NOT_AVAILABLE, self.disk_refusal
        if self.role is Role.PROMOTING:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "the master is still building its queues"
        return ResponseCode.SUCCESS, ""

    @property
    def sync_required(self) -> bool:
        """True while acks wait for the disk: the shell then syncs at once instead of at intervals."""
        return self._config.sync_flush

    @property
    def _needed_slaves(self) -> int:
        """Number of slaves that must hold a record before SEND_OK."""
        return max(2, self._config.in_sync_replicas) - 1 if self._config.broker_role == "SYNC_MASTER" else 0

    def wait(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None:
        """The record ending at `end_offset` has been appended; Complete(token, …) follows, perhaps at once: with
        SLAVE_NOT_AVAILABLE when too few slaves are near enough to be waited for."""
        if not self.is_master:
            self._actions.append(Complete(token, AckStatus.SERVICE_NOT_AVAILABLE))
        elif sum(1 for item in self._connections.values() if item.is_close_enough) < self._needed_slaves:
            self._actions.append(Complete(token, AckStatus.SLAVE_NOT_AVAILABLE))
        elif end_offset <= self._releasable and not len(self._acks):
            self._acks.acknowledged_at_once()
            self._actions.append(Complete(token, AckStatus.OK))
        else:
            self._acks.add(now_ms, end_offset, token)

    def _settle(self, now_ms: int) -> None:
        if not self.is_master:
            return
        log = self._log
        log.set_confirm_offset(log.max_phy_offset)
        acks = sorted((item.acked_offset or PhyOffset(0) for item in self._connections.values()), reverse=True)
        needed = self._needed_slaves
        held = log.max_phy_offset if not needed else acks[needed - 1] if len(acks) >= needed else PhyOffset(0)
        self._releasable = min(held, log.synced_offset) if self.sync_required else held
        self._actions += self._acks.release(now_ms, self._releasable)
        if isinstance(self._in, Promoting) and log.dispatched_offset >= self._in.opens_at:
            self._enter(self._in.opened())
            self._tracer.event("serving", epoch=self.epoch, max_phy_offset=log.max_phy_offset)
        for connection in list(self._connections.values()):
            connection.note_if_caught_up(now_ms)
            self._perform(connection.pump(now_ms))

    # --- leaving --------------------------------------------------------------------------------------------------
    def stopping(self, now_ms: int) -> None:
        """SIGTERM: refuse new sends; slaves get the rest of the log, for STOP_AFTER_MS at most."""
        if self._stopping_at_ms is None:
            self._stopping_at_ms = now_ms
            self._settle(now_ms)

    @property
    def may_stop(self) -> bool:
        """True once no send waits and every connected slave holds the whole log, or after STOP_AFTER_MS."""
        have_all = all(item.lag_bytes == 0 for item in self._connections.values())
        return not self.is_master or self._stop_waited or (not len(self._acks) and have_all)

    # --- state ----------------------------------------------------------------------------------------------------
    def slave_acks(self) -> list[tuple[BrokerId, PhyOffset]]:
        """Acknowledged offset of each slave that has reported one. The protocol does not identify slaves: they are
        numbered from 1."""
        known = [item.acked_offset for item in self._connections.values() if item.acked_offset is not None]
        return [(BrokerId(number), offset) for number, offset in enumerate(known, 1)]

    def slave_ends(self) -> dict[int, int]:
        """End offset up to which each slave may serve reads: the lowest of all, as slaves are not identified."""
        acks = dict(self.slave_acks())
        return dict.fromkeys(acks, min(acks.values(), default=0))

    def may_follow_tables(self, epoch: int) -> bool:
        """True on the master: a static group has no epochs to compare."""
        return self.is_master

    def holders(self, phy_offset: PhyOffset) -> list[str]:
        """Addresses of other replicas that have the record at `phy_offset`: of a slave its master; of a master none, as
        it does not know its slaves' broker addresses."""
        return [] if self.is_master or not self.master_address else [self.master_address]

    @property
    def seeks_master(self) -> bool:
        """True for a slave that does not follow: it learns the master's address by registering."""
        return not self.is_master and not self.is_following

    @property
    def is_listed_unaligned(self) -> bool:
        """True after the start: only the name servers tell it where its master is. Before it has a role it would
        replace the master in their lists under the epoch of its last mastership."""
        return self.role is not Role.STARTING

    @property
    def hands_over(self) -> bool:
        """False: a static group has no other replica to hand over to."""
        return False

    @property
    def newest_master_address(self) -> str:
        return self.master_address

    @property
    def broker_id(self) -> BrokerId | None:
        return BrokerId(self._config.static_broker_id)

    @property
    def releasable_offset(self) -> PhyOffset:
        """Records that end at or below it may be answered SEND_OK; 0 on a slave."""
        return self._releasable

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes at the end of a master's log that are not acknowledged, as in `Replica`."""
        if not self.is_master:
            return 0
        return self._log.max_phy_offset - (self._releasable or self._log.confirm_offset)

    @property
    def ack_waits(self) -> AckQueue:
        """Waiting acknowledgements; read only."""
        return self._acks

    @property
    def is_writing(self) -> bool:
        """False: no epoch begins and no fork is cut here. Only an incomplete record is cut, before a connection."""
        return False

    @property
    def is_following(self) -> bool:
        return self._client.state is ClientState.FOLLOWING

    def other_members(self) -> tuple[BrokerId, ...]:
        """No other members: a static group has no set."""
        return ()

    def limit_copies(self, bytes_per_second: int) -> None:
        """Ignore the limit: it is for slaves outside of the set, and a static group has no set."""

    @property
    def copy_left_bytes(self) -> int:
        """0: the protocol does not contain the end of the master's log."""
        return 0

    def state(self, now_ms: int) -> ReplicaState:
        """State of the replica, for request 52000 and `rmqha status`."""
        state = common_state(self, self._config, self._log, now_ms)
        state.ha_mode, state.broker_role = "static", self._config.broker_role
        state.master_id, state.controller = MASTER_ID, "none"
        state.disk_problem = self._disk_problem or self.disk_refusal or self._client.room_refusal
        if not self.is_master:
            self._client.add_state(state, now_ms)
            return state
        state.releasable_offset = self._releasable
        state.waiting_count = len(self._acks)
        state.needed_slaves = self._needed_slaves
        state.slaves = [
            SlaveState(
                peer=item.peer,
                state=item.state.value,
                ack_offset=item.acked_offset,
                lag_bytes=item.lag_bytes,
                lag_ms=now_ms - item.caught_up_at_ms,
                in_set=item.state is ConnectionState.TRANSFER and item.is_close_enough,
            )
            for item in self._connections.values()
        ]
        return state
