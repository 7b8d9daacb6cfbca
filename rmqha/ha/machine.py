"""The replica of either kind of group: its roles, their legal transitions, and its calls.

STARTING ──▶ SLAVE ◀──▶ PROMOTING ──▶ MASTER ──▶ SLAVE, or PROMOTING in a higher epoch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rmqha.ha.ack import AckQueue
from rmqha.ha.action import Action, Token
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState


@dataclass(frozen=True, slots=True)
class Starting:
    """Role before the first news of the group. `epoch` is the highest that this replica has accepted."""

    role: ClassVar[Role] = Role.STARTING
    epoch: Epoch
    master_id: BrokerId | None = None
    master_address: str = ""


@dataclass(frozen=True, slots=True)
class Slave:
    """Slave of master `master_id`; None: of no master, because the newest epoch could not be written to the disk."""

    role: ClassVar[Role] = Role.SLAVE
    epoch: Epoch
    master_id: BrokerId | None
    master_address: str


@dataclass(frozen=True, slots=True)
class Promoting:
    """New master of `epoch`, whose first byte is at `start_offset`. It serves clients once its log is committed and
    dispatched up to `opens_at`, the end of the log at the role change."""

    role: ClassVar[Role] = Role.PROMOTING
    epoch: Epoch
    master_id: BrokerId
    master_address: str
    start_offset: PhyOffset
    opens_at: PhyOffset

    def opened(self) -> Master:
        return Master(self.epoch, self.master_id, self.master_address, self.start_offset)


@dataclass(frozen=True, slots=True)
class Master:
    """Master that serves clients; fields as in `Promoting`."""

    role: ClassVar[Role] = Role.MASTER
    epoch: Epoch
    master_id: BrokerId
    master_address: str
    start_offset: PhyOffset


RoleState = Starting | Slave | Promoting | Master

TRANSITIONS: Mapping[Role, frozenset[Role]] = {
    Role.STARTING: frozenset((Role.SLAVE, Role.PROMOTING)),
    Role.SLAVE: frozenset((Role.SLAVE, Role.PROMOTING)),
    Role.PROMOTING: frozenset((Role.SLAVE, Role.PROMOTING, Role.MASTER)),
    Role.MASTER: frozenset((Role.SLAVE, Role.PROMOTING)),
}


def check_transition(before: RoleState, after: RoleState) -> None:
    """Assert that a role change is legal: in TRANSITIONS, never to an older epoch, one mastership for each epoch."""
    assert after.role in TRANSITIONS[before.role], f"{before} cannot become {after}"
    assert after.epoch >= before.epoch, f"epoch {after.epoch} after {before.epoch}: {before} cannot become {after}"
    if isinstance(before, Promoting | Master):
        if isinstance(after, Promoting):
            assert after.epoch > before.epoch, f"a mastership begins once in its epoch: {before} cannot become {after}"
        elif isinstance(after, Master):
            assert after == before.opened() if isinstance(before, Promoting) else False, f"{before} became {after}"


class RoleHolder:
    """Base of both replicas: the role's state, and what follows from it as plain attributes, as each send reads
    them."""

    def __init__(self, epoch: Epoch) -> None:
        self._show(Starting(epoch))

    def _enter(self, after: RoleState) -> None:
        check_transition(self._in, after)
        self._show(after)

    def _show(self, state: RoleState) -> None:
        self._in: RoleState = state
        self.role = state.role
        self.is_master = isinstance(state, Promoting | Master)
        """True for MASTER and PROMOTING, so also before it serves clients."""
        self.epoch = state.epoch
        self.master_address = state.master_address


class ReplicaMachine(Protocol):
    """One replica: `Replica` where controllers elect, `StaticReplica` where the configuration says who is master.

    Inputs are methods that take `now_ms` first; outputs are taken by `actions()`."""

    role: Role
    is_master: bool
    epoch: Epoch
    master_address: str
    disk_refusal: str
    """Reason why the disk takes no more sends, "" if it does; set by the shell."""

    # --- time -----------------------------------------------------------------------------------------------------
    def start(self, now_ms: int) -> None: ...

    def timeout(self, now_ms: int) -> None: ...

    def deadline_ms(self) -> int | None: ...

    def stopping(self, now_ms: int) -> None: ...

    def actions(self) -> list[Action]: ...

    # --- who the master is ----------------------------------------------------------------------------------------
    def controller_replied(self, now_ms: int, call_id: int, reply: Command | None) -> None: ...

    def role_notified(self, now_ms: int, command: Command) -> None: ...

    def role_notified_unproven(self, now_ms: int) -> None: ...

    def master_discovered(self, now_ms: int, master_address: str, ha_address: str) -> None: ...

    def disk_probed(self, now_ms: int, problem: str, *, hangs: bool = False) -> None: ...

    def hand_over(self, now_ms: int, epoch: Epoch, target: BrokerId | None, timeout_ms: int, token: Token) -> None: ...

    # --- HA connections -------------------------------------------------------------------------------------------
    def ha_accepted(self, now_ms: int, conn_id: int, peer: str, claim: HaClaim | None = None) -> None: ...

    def ha_resolved(self, now_ms: int, numbers: Mapping[str, tuple[str, ...]]) -> None: ...

    def ha_opened(self, now_ms: int, conn_id: int) -> None: ...

    def ha_received(self, now_ms: int, conn_id: int, data: Buffer) -> None: ...

    def ha_sent(self, now_ms: int, conn_id: int) -> None: ...

    def ha_closed(self, now_ms: int, conn_id: int) -> None: ...

    # --- log and sends --------------------------------------------------------------------------------------------
    def appended(self, now_ms: int) -> None: ...

    def synced(self, now_ms: int) -> None: ...

    def dispatched(self, now_ms: int) -> None: ...

    def log_written(self, now_ms: int) -> None: ...

    def admission(self, now_ms: int) -> tuple[ResponseCode, str]: ...

    def wait(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None: ...

    def limit_copies(self, bytes_per_second: int) -> None: ...

    # --- state ----------------------------------------------------------------------------------------------------
    def other_members(self) -> tuple[BrokerId, ...] | None: ...

    def slave_acks(self) -> list[tuple[BrokerId, PhyOffset]]: ...

    def slave_ends(self) -> dict[int, int]:
        """End offset up to which each slave of this master may serve reads, by id."""
        ...

    def holders(self, phy_offset: PhyOffset) -> list[str]: ...

    def may_follow_tables(self, epoch: int) -> bool:
        """True if this replica is the master of `epoch`, or of a group without epochs."""
        ...

    def state(self, now_ms: int) -> ReplicaState: ...

    @property
    def broker_id(self) -> BrokerId | None: ...

    @property
    def is_following(self) -> bool: ...

    @property
    def is_writing(self) -> bool:
        """True while a thread waits for the disk to finish a change of the log: nothing else may use the log."""
        ...

    @property
    def seeks_master(self) -> bool:
        """True for a slave that learns its master's address by registering with name servers."""
        ...

    @property
    def is_listed_unaligned(self) -> bool:
        """True if name servers list it as a slave before it follows its master."""
        ...

    @property
    def hands_over(self) -> bool: ...

    @property
    def newest_master_address(self) -> str: ...

    @property
    def may_stop(self) -> bool: ...

    @property
    def sync_required(self) -> bool: ...

    @property
    def releasable_offset(self) -> PhyOffset: ...

    @property
    def unacknowledged_bytes(self) -> int: ...

    @property
    def ack_waits(self) -> AckQueue: ...

    @property
    def copy_left_bytes(self) -> int: ...


def common_state(replica: ReplicaMachine, config: BrokerConfig, log: ReplicaLog, now_ms: int) -> ReplicaState:
    """Part of the answer to request 52000 that both kinds of replicas have."""
    admitted, why_not = replica.admission(now_ms)
    return ReplicaState(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=replica.broker_id,
        address=config.address,
        ha_address=config.ha_address,
        role=replica.role.name,
        epoch=replica.epoch,
        master_address=replica.master_address,
        min_phy_offset=log.min_phy_offset,
        max_phy_offset=log.max_phy_offset,
        confirm_offset=log.confirm_offset,
        synced_offset=log.synced_offset,
        dispatched_offset=log.dispatched_offset,
        epochs=[(entry.epoch, entry.start_offset) for entry in log.epochs],
        unclean=log.unclean,
        writable=admitted is ResponseCode.SUCCESS,
        why_not_writable=why_not,
    )
