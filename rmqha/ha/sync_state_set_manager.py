"""The manager of the master's SyncStateSet: which replicas join and leave, and the alter requests to the controller.

A slave joins when it has acked the confirm offset and the end that the log had when this mastership began. If it has
often left the set, it must keep that up for a time (`FlapGuard`). A member leaves when it is disconnected for
DISCONNECT_GRACE_MS, not caught up for haMaxTimeSlaveNotCatchup, further behind than haMaxGapNotInSync, or lacks bytes
and sends no new ack for haAckStallBoundMs. All members that must leave at one check leave in one request
(apache/rocketmq PR 9897).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.group_info import parse_set
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.stream.log_sender import ConnectionState
from rmqha.ha.sync_state import Members, SyncStateSet, as_members
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import SetMember

_CERTAIN_REFUSALS = (
    ResponseCode.CONTROLLER_INVALID_REPLICAS,
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
    ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
)
"""Codes given after both epochs were found right: nothing was applied. A fenced set epoch (2001) is not among them: the
set has moved, perhaps by an earlier copy of the same request."""

DISCONNECT_GRACE_MS = 500
CHECK_INTERVAL_MS = 100
REFUSED_RETRY_MS = 50
LOST_RETRY_MS = 500


LeaveCause = Literal["disconnected", "too_far_behind", "not_level", "no_acks", "controllers"]
"""Reason why a member left the set, as a label of metrics; `controllers`: they removed it without this master's
request."""
LEAVE_CAUSES: tuple[LeaveCause, ...] = get_args(LeaveCause)


class PendingRemoval(NamedTuple):
    """Time and reason at which a member will leave the set, unless something changes."""

    at_ms: int
    cause: LeaveCause
    reason: str


class SyncStateSetManager:
    """Owner of the SyncStateSet of one master."""

    def __init__(
        self,
        config: BrokerConfig,
        log: ReplicaLog,
        controller: ControllerClient,
        tracer: Tracer,
        may_join: Callable[[BrokerId], bool],
    ) -> None:
        """`may_join`: further condition for a slave to join, beside that on its log."""
        self.state = SyncStateSet()
        self.total_replicas = config.total_replicas
        """Number of replicas as the controllers have it; before their first answer the configured one."""
        self._config = config
        self._log = log
        self._controller = controller
        self._tracer = tracer
        self._leave_causes: dict[BrokerId, LeaveCause] = {}
        """Reason for each member that the last proposal removes."""
        self._may_join = may_join
        self.drained_ids: Members = ()
        """Replicas that an operator keeps out of the set."""
        self._own_id = BrokerId(0)
        self._epoch = Epoch(0)
        self._inherited_end = PhyOffset(0)
        """Offset below which records may have been acknowledged: by earlier masters, or by this one before a restart,
        whose confirm offset on disk is older than its last acknowledgements."""
        self._alter_call_id: int | None = None
        self._alter_at_ms = 0
        self._refusal_count = 0
        self._seen_at_ms: dict[BrokerId, int] = {}
        self._checked_at_ms = 0
        self._flaps = FlapGuard()

    def begin(
        self,
        now_ms: int,
        own_id: BrokerId,
        epoch: Epoch,
        members: Members,
        set_epoch: int,
        *,
        resumed: bool,
    ) -> None:
        """Begin the mastership of `epoch` with `members` as the controller's set.

        `resumed`: it was master of this epoch before a restart, whose last requests may still reach the controller.
        Until the set epoch has moved nothing is committed in CP.
        """
        self._own_id, self._epoch, self._inherited_end = own_id, epoch, self._log.max_phy_offset
        self.state.reset(members, set_epoch)
        self.state.unknown = self.state.blind = resumed
        self._alter_call_id = None
        self._alter_at_ms = now_ms
        self._refusal_count = 0
        self._flaps = FlapGuard()
        # Members get a grace period to connect before they count as gone.
        self._seen_at_ms = dict.fromkeys(members, now_ms)

    @property
    def majority(self) -> int:
        return self.total_replicas // 2 + 1

    # --- acks -----------------------------------------------------------------------------------------------------
    def _connected(self, connections: Iterable[HaConnection]) -> dict[BrokerId, HaConnection]:
        """Slaves that copy and may be in the set, by id."""
        return {
            item.slave_id: item
            for item in connections
            if item.slave_id is not None
            and item.state is ConnectionState.TRANSFER
            and not item.async_learner
            and item.slave_id not in self.drained_ids
        }

    def member_acks(self, connections: Iterable[HaConnection]) -> list[PhyOffset | None]:
        """Offset that each other member of the union has acked under this epoch; None where unknown."""
        acks = dict.fromkeys(self.state.union)
        acks.pop(self._own_id, None)
        for member, item in self._connected(connections).items():
            if member in acks:
                acks[member] = item.acked_offset
        return list(acks.values())

    def all_caught_up(self, connections: Iterable[HaConnection]) -> bool:
        """True if every other member of the union holds the whole log."""
        own_max = self._log.max_phy_offset
        return all(ack is not None and ack >= own_max for ack in self.member_acks(connections))

    def members_state(self, now_ms: int, connections: Iterable[HaConnection]) -> list[SetMember]:
        """State of each other member of the union, with the time at which it leaves if nothing changes."""
        connected = self._connected(connections)
        rows = []
        for member in self.state.union:
            if member == self._own_id:
                continue
            item = connected.get(member)
            removal = self.pending_removal(now_ms, member, item)
            heard_at_ms = self._seen_at_ms.get(member, now_ms) if item is None else item.progress_at_ms
            rows.append(
                SetMember(
                    broker_id=member,
                    connected=item is not None,
                    ack_offset=None if item is None else item.acked_offset,
                    silent_for_ms=now_ms - heard_at_ms,
                    leaves_in_ms=None if removal is None else max(0, removal.at_ms - now_ms),
                    leaves_because=None if removal is None else removal.reason,
                    confirmed=member in self.state.confirmed,
                )
            )
        return rows

    def unreachable(self, connections: Iterable[HaConnection]) -> list[int]:
        connected = self._connected(connections)
        return [member for member in self.state.union if member != self._own_id and member not in connected]

    def close_enough_count(self, now_ms: int, connections: Iterable[HaConnection]) -> int:
        """Number of other members of the union that are connected and have no reason to leave it."""
        connected = self._connected(connections)
        return sum(
            1
            for member in self.state.union
            if member in connected and not self._lags(now_ms, member, connected[member])
        )

    # --- joining and leaving --------------------------------------------------------------------------------------
    def maintain(self, now_ms: int, connections: Iterable[HaConnection]) -> None:
        """Compute the wanted set, and propose it if it differs and no change is in flight."""
        connected = self._connected(connections)
        for member, item in connected.items():
            self._seen_at_ms[member] = now_ms
            item.note_if_caught_up(now_ms)
        self._checked_at_ms = now_ms
        if self._alter_call_id is not None or now_ms < self._alter_at_ms:
            return
        wanted = self._wanted(now_ms, connected)
        gone = [member for member in self._current() if member not in wanted]
        leaves = ((member, self.pending_removal(now_ms, member, connected.get(member))) for member in gone)
        self._leave_causes = {member: removal.cause for member, removal in leaves if removal is not None}
        if wanted != self.state.confirmed:
            self._propose(now_ms, self._limit_joining(wanted))
        elif self.state.unknown:
            # Proposing the same set again moves the set epoch, which settles what may still be under way.
            self._propose(now_ms, wanted)
            if self._config.mode is HaMode.AP:
                self.state.union = wanted

    def _wanted(self, now_ms: int, connected: dict[BrokerId, HaConnection]) -> Members:
        bar = max(self._log.confirm_offset, self._inherited_end)
        current = self._current()
        ids = [self._own_id]
        for member in current:
            if member != self._own_id and not self._lags(now_ms, member, connected.get(member)):
                ids.append(member)
        self._flaps.fit(
            now_ms,
            [
                member
                for member, item in connected.items()
                if member not in current
                and item.acked_offset is not None
                and item.acked_offset >= bar
                and not self._lags(now_ms, member, item)
                and self._may_join(member)
            ],
        )
        joins = self._flaps.joins_at_ms(now_ms, needed=len(ids) < self._enough_count())
        return as_members([*ids, *(member for member, at_ms in joins.items() if at_ms <= now_ms)])

    def _current(self) -> Members:
        """Confirmed members, without those that were removed locally while no controller answers (AP)."""
        return tuple(member for member in self.state.confirmed if member in self.state.union)

    def _enough_count(self) -> int:
        """Number of members that is enough for sends to be accepted and acknowledged."""
        config = self._config
        if config.mode is HaMode.CP:
            return self.majority
        fixed = config.broker_role != "ASYNC_MASTER" and not config.all_ack_in_sync_state_set
        return max(config.min_in_sync_replicas, config.in_sync_replicas if fixed else 1)

    def pending_removal(self, now_ms: int, member: BrokerId, item: HaConnection | None) -> PendingRemoval | None:
        """Time and reason of `member`'s leave if nothing changes; `item` is its connection in transfer, if it has
        one."""
        config = self._config
        if item is None:
            return PendingRemoval(
                self._seen_at_ms.get(member, 0) + DISCONNECT_GRACE_MS, "disconnected", "it is not connected"
            )
        lag_bytes = self._log.max_phy_offset - (item.acked_offset or 0)
        if lag_bytes <= 0:
            return None
        if lag_bytes > config.ha_max_gap_not_in_sync:
            reason = f"it is more than haMaxGapNotInSync = {config.ha_max_gap_not_in_sync} bytes behind"
            return PendingRemoval(now_ms, "too_far_behind", reason)
        slow_at_ms = item.caught_up_at_ms + config.ha_max_time_slave_not_catchup
        slow = PendingRemoval(slow_at_ms, "not_level", "it was not level for so long")
        silent_at_ms = item.progress_at_ms + config.ha_ack_stall_bound_ms
        silent = PendingRemoval(silent_at_ms, "no_acks", "it owes bytes and acknowledges none")
        return min(slow, silent)

    def held_back(self, now_ms: int) -> dict[BrokerId, int]:
        """Time (ms) at which each slave may join that could join now but has left the set too often."""
        joins = self._flaps.joins_at_ms(now_ms, needed=len(self._current()) < self._enough_count())
        return {member: at_ms for member, at_ms in joins.items() if at_ms > now_ms}

    def _lags(self, now_ms: int, member: BrokerId, item: HaConnection | None) -> bool:
        removal = self.pending_removal(now_ms, member, item)
        return removal is not None and removal.at_ms <= now_ms

    def _limit_joining(self, wanted: Members) -> Members:
        """Add one replica at a time after a refusal: one that the controller does not know must not block the rest."""
        new = [member for member in wanted if member not in self.state.confirmed]
        if self._refusal_count == 0 or len(new) < 2:
            return wanted
        chosen = new[self._refusal_count % len(new)]
        return as_members([member for member in wanted if member not in new or member == chosen])

    def _propose(self, now_ms: int, members: Members) -> None:
        self.state.propose(members)
        self._alter_call_id = self._controller.alter_sync_state_set(now_ms, self._epoch, members, self.state.set_epoch)

    # --- answers --------------------------------------------------------------------------------------------------
    def replied(self, now_ms: int, call_id: int, reply: Command | None) -> None:
        """Handle the answer to 1001. Raises RemoteProtocolError if a success cannot be read."""
        if call_id != self._alter_call_id:
            return
        self._alter_call_id = None
        proposed = self.state.proposed
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            members, set_epoch = parse_set(reply)
            self._refusal_count = 0
            self._alter_at_ms = now_ms
            self._decided(now_ms, members if members is not None else proposed or (), set_epoch, answered=True)
            return
        if reply is None:
            self.state.lost()
            self._alter_at_ms = now_ms + LOST_RETRY_MS
            if self._config.mode is HaMode.AP and proposed is not None and proposed != self.state.union:
                before = self._current()
                self._note_left(now_ms, proposed)
                self.state.shrink_locally(now_ms, proposed)
                self._tell(before, proposed, confirmed=False)
            return
        if reply.code in _CERTAIN_REFUSALS:
            unchanged = proposed == self.state.confirmed
            self.state.refused()
            # Apache's controller refuses an unchanged set instead of moving its epoch; it cannot be asked more.
            if unchanged and reply.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED:
                self.state.unknown = self.state.blind = False
        else:
            self.state.lost()
        self._refusal_count += 1
        self._alter_at_ms = now_ms + REFUSED_RETRY_MS
        self._controller.ask_replica_info()

    def shown(self, now_ms: int, members: Members, set_epoch: int) -> None:
        """Handle the controller's set in any other answer."""
        if self._decided(now_ms, members, set_epoch, answered=False) and not self.state.blind:
            self._alter_call_id = None
            self._alter_at_ms = now_ms

    def _decided(self, now_ms: int, members: Members, set_epoch: int, *, answered: bool) -> bool:
        before = self._current()
        if set_epoch > self.state.set_epoch:
            self._note_left(now_ms, members)
        if not self.state.decided(members, set_epoch, answered=answered):
            return False
        self._tell(before, members, confirmed=True)
        return True

    def _tell(self, before: Members, after: Members, *, confirmed: bool) -> None:
        """Trace a change of the set. `confirmed` False: the controllers do not know of it yet (AP)."""
        joined = [member for member in after if member not in before]
        left = {str(member): self._leave_causes.get(member, "controllers") for member in before if member not in after}
        if joined or left:
            fields = {"members": after, "joined": joined, "left": left, "confirmed": confirmed}
            self._tracer.event("set_changed", epoch=self._epoch, **fields)

    def _note_left(self, now_ms: int, members: Members) -> None:
        for member in self._current():
            if member not in members:
                self._flaps.left(now_ms, member)

    def deadline_ms(self) -> int:
        """Time (ms) of the next check: after CHECK_INTERVAL_MS, or when a change may be proposed."""
        return max(self._checked_at_ms + CHECK_INTERVAL_MS, self._alter_at_ms)


WINDOW_MS = 60_000
FREE_COUNT = 2
HOLD_FIRST_MS = 1000
HOLD_MAX_MS = 10_000
HOLD_NEEDED_MAX_MS = 1000
"""Longest delay (ms) of a slave without which the set is too small for sends."""
MAX_LEAVES_PER_WINDOW = 12
"""Consequence of these numbers: no slave leaves the set more often within WINDOW_MS, as long as it is not needed."""


class FlapGuard:
    """Delay before a slave that has left the set may come back: at once, unless it comes and goes.

    The first FREE_COUNT times within WINDOW_MS cost nothing, so that a killed broker is back as soon as it is level.
    Each further time doubles how long it must have been fit without a break, from HOLD_FIRST_MS up to HOLD_MAX_MS.
    """

    def __init__(self) -> None:
        self._left_at_ms: dict[BrokerId, deque[int]] = {}
        self._fit_since_ms: dict[BrokerId, int] = {}

    def left(self, now_ms: int, member: BrokerId) -> None:
        """Note that `member` has left the set."""
        moments = self._left_at_ms.setdefault(member, deque(maxlen=MAX_LEAVES_PER_WINDOW))
        moments.append(now_ms)

    def fit(self, now_ms: int, members: Iterable[BrokerId]) -> None:
        """Note the slaves that are outside the set and could join it now; called at every check, with all of them."""
        self._fit_since_ms = {member: self._fit_since_ms.get(member, now_ms) for member in members}

    def hold_ms(self, now_ms: int, member: BrokerId) -> int:
        """Time (ms) for which `member` must be fit before it joins."""
        moments = self._left_at_ms.get(member)
        if moments is None:
            return 0
        while moments and now_ms - moments[0] >= WINDOW_MS:
            moments.popleft()
        extra = len(moments) - FREE_COUNT
        return 0 if extra <= 0 else min(HOLD_MAX_MS, HOLD_FIRST_MS << (extra - 1))

    def joins_at_ms(self, now_ms: int, *, needed: bool) -> dict[BrokerId, int]:
        """Time (ms) at which each fit one may join. `needed`: the set is too small for sends without them."""
        limit_ms = HOLD_NEEDED_MAX_MS if needed else HOLD_MAX_MS
        return {
            member: since_ms + min(limit_ms, self.hold_ms(now_ms, member))
            for member, since_ms in self._fit_since_ms.items()
        }
