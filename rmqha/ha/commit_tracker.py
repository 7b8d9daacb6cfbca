"""Confirm offset and acknowledgements of a master: the quorum and ack rules of one group.

It decides whether sends are accepted, how far consumers may read (confirm offset) and which sends are answered SEND_OK.
Ack rules are evaluated when an ack is due, never at append (ruling 1). Used by `Replica` while it is master; the
SyncStateSet is owned by SyncStateSetManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.ha.ack import AckQueue
from rmqha.ha.action import AckStatus, Action, Complete, Token
from rmqha.ha.confirm_offset import acked_offset, confirm_offset, needed_count
from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode
from rmqha.model.offset import PhyOffset
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.state.replica_state import AckRule, ReplicaState, SlaveState, StallState, WaitingSends

Acks = list[PhyOffset | None]
STALL_SHOWN_MS = 600_000
"""Time (ms) after its end for which the last stall is part of the replica's state."""


class CommitTracker:
    """High watermark of one master, and the sends that wait for it."""

    def __init__(
        self,
        config: BrokerConfig,
        log: ReplicaLog,
        controller: ControllerClient,
        set_manager: SyncStateSetManager,
        tracer: Tracer,
    ) -> None:
        self.releasable = PhyOffset(0)
        """Records that end at or below it may be answered SEND_OK; 0 on a slave."""
        self.waits = AckQueue(config.sync_flush_timeout if config.sync_flush else config.slave_timeout)
        self._config = config
        self._log = log
        self._controller = controller
        self._set = set_manager
        self._tracer = tracer
        self._needs_whole_set = config.mode is HaMode.CP or config.all_ack_in_sync_state_set
        self._last_confirm = PhyOffset(0)
        """Confirm offset of the last step as this master; it never goes back."""
        self._needed_count: int | None = None
        """Number of replicas that enableAutoInSyncReplicas last asked for; None before it was computed."""

    # --- quorum ---------------------------------------------------------------------------------------------------
    @property
    def total_replicas(self) -> int:
        return self._set.total_replicas

    def has_quorum(self) -> bool:
        """True if CP allows to commit records: the confirmed set has a majority, or this is the only copy of two and
        its disk holds them (ruling 6)."""
        sync = self._set.state
        return not sync.blind and (len(sync.confirmed) >= self._set.majority or self.is_sole_copy())

    def is_sole_copy(self) -> bool:
        sync = self._set.state
        own = (self._controller.broker_id,)
        return self.total_replicas == 2 and sync.confirmed == own and sync.union == own

    @property
    def is_one_copy_synced(self) -> bool:
        """True if this master acknowledges alone in CP, as one of two replicas, and only what its disk holds."""
        return self._config.mode is HaMode.CP and self.is_sole_copy()

    def sync_required(self, *, is_master: bool) -> bool:
        """True while acks wait for the disk: the shell then syncs at once instead of at intervals."""
        return self._config.sync_flush or (is_master and self._set.total_replicas == 2 and self.is_one_copy_synced)

    def shortage(self, now_ms: int, connections: Sequence[HaConnection]) -> str:
        """Reason why the set is too small for a send; "" if it is not."""
        sync = self._set.state
        if self._config.mode is HaMode.AP:
            needed = self._config.min_in_sync_replicas
            return f"{len(sync.union)} of {needed}" if len(sync.union) < needed else ""
        if not self.has_quorum():
            if sync.blind:
                return "the controller has not settled yet what this master asked for before its restart"
            return (
                f"the confirmed set {list(sync.confirmed)} has less than {self._set.majority} of {self.total_replicas}"
            )
        if self._controller.is_away(now_ms):
            # Without a controller the set cannot shrink, so a send would only wait for its time-out (ruling 5).
            gone = self._set.unreachable(connections)
            if gone:
                return f"replicas {gone} of the confirmed set are away, and so are the controllers"
        return ""

    # --- progress -------------------------------------------------------------------------------------------------
    def progress(self, now_ms: int, acks: Acks, connections: Sequence[HaConnection]) -> list[Complete]:
        """Raise the confirm offset to the offset that all members of the union hold, and acknowledge by the ack
        rule."""
        log, cp = self._log, self._config.mode is HaMode.CP
        own_max, confirm = log.max_phy_offset, log.confirm_offset
        synced = self.sync_required(is_master=True)
        own_synced = log.synced_offset if synced else own_max
        if not cp or self.has_quorum():
            offset = confirm_offset(confirm, (own_synced if cp else own_max, *acks))
            if offset > confirm:
                log.set_confirm_offset(offset)
                confirm = log.confirm_offset
        if cp:
            releasable = min(confirm, own_synced)
        else:
            releasable = acked_offset(
                self._config,
                confirm=confirm,
                own_max=own_max,
                own_synced=own_synced,
                member_acks=acks,
                live_count=self._live_count(now_ms, connections),
                sync_required=synced,
            )
        self.releasable = releasable
        self._check(confirm, own_max, releasable)
        return self.waits.release(now_ms, releasable)

    def _check(self, confirm: PhyOffset, own_max: PhyOffset, releasable: PhyOffset) -> None:
        """Check the invariants of each step before anything is acknowledged."""
        assert confirm <= own_max, f"confirm offset {confirm} beyond the log's end {own_max}"
        assert releasable <= own_max, f"{releasable} could be acknowledged, the log ends at {own_max}"
        if self._needs_whole_set:
            assert releasable <= confirm, f"{releasable} could be acknowledged, the set holds {confirm}"
        assert confirm >= self._last_confirm, f"confirm offset {confirm} after {self._last_confirm} in one mastership"
        self._last_confirm = confirm

    def _live_count(self, now_ms: int, connections: Sequence[HaConnection]) -> int:
        """Number of live replicas for enableAutoInSyncReplicas; traces changes of the number that this needs."""
        config = self._config
        if not config.enable_auto_in_sync_replicas:
            return len(self._set.state.union)
        live_count = 1 + self._set.close_enough_count(now_ms, connections)
        needed = needed_count(config, live_count)
        if needed != self._needed_count:
            self._needed_count = needed
            self._tracer.event(
                "ack_level", needed=needed, in_sync_replicas=config.in_sync_replicas, live_replicas=live_count
            )
        return live_count

    # --- waits ----------------------------------------------------------------------------------------------------
    def wait(self, now_ms: int, end_offset: PhyOffset, token: Token) -> list[Action]:
        """Answer the send whose record ends at `end_offset` now if the ack rule allows, else queue it."""
        if end_offset <= self.releasable and not len(self.waits):
            self.waits.acknowledged_at_once()
            return [Complete(token, AckStatus.OK)]
        self.waits.add(now_ms, end_offset, token)
        return []

    def expire(self, now_ms: int) -> list[Complete]:
        """End waits that have timed out; the status says whether the disk or a slave was late."""
        return self.waits.expire(now_ms, self._late())

    def _late(self) -> AckStatus:
        """Status of a time-out of the oldest wait."""
        end_offset = self.waits.oldest_end_offset() or 0
        behind_disk = self.sync_required(is_master=True) and self._log.synced_offset < end_offset
        return AckStatus.FLUSH_DISK_TIMEOUT if behind_disk else AckStatus.FLUSH_SLAVE_TIMEOUT

    def abandon(self) -> list[Complete]:
        """End all waits: this replica is no longer master of their epoch."""
        self.releasable = self._last_confirm = PhyOffset(0)
        self._needed_count = None
        return self.waits.abandon()

    def _last_stall(self, now_ms: int) -> StallState | None:
        stall = self.waits.last_stall
        if stall is None or now_ms - stall.ended_at_ms > STALL_SHOWN_MS:
            return None
        return StallState(
            ended_ms_ago=now_ms - stall.ended_at_ms,
            lasted_ms=stall.ended_at_ms - stall.began_at_ms,
            longest_ms=stall.longest_ms,
            count=stall.count,
            ended_with=stall.ended_with.name,
        )

    # --- view -----------------------------------------------------------------------------------------------------
    def add_state(self, state: ReplicaState, now_ms: int, connections: Sequence[HaConnection]) -> None:
        """Fill in the set, the present ack rule, the waiting sends, the slaves and when members would leave the set."""
        config, sync = self._config, self._set.state
        whole_set = config.mode is HaMode.CP or config.all_ack_in_sync_state_set
        live_count = 1 + self._set.close_enough_count(now_ms, connections)
        deadline_ms, added_at_ms = self.waits.deadline_ms(), self.waits.oldest_added_at_ms()
        since_ms = sync.unconfirmed_since_ms
        state.sync_state_set, state.sync_state_set_epoch = list(sync.confirmed), sync.set_epoch
        state.ack_union = list(sync.union)
        state.unconfirmed_for_ms = None if since_ms is None else now_ms - since_ms
        state.waiting_count = len(self.waits)
        state.ack_rule = AckRule(
            whole_set=whole_set,
            needed=len(sync.union) if whole_set else needed_count(config, live_count),
            in_sync_replicas=config.in_sync_replicas,
            adaptive=config.enable_auto_in_sync_replicas and not whole_set,
            live_replicas=live_count,
            majority=self._set.majority if config.mode is HaMode.CP else None,
            min_in_sync_replicas=config.min_in_sync_replicas,
            synced=self.sync_required(is_master=True),
        )
        state.waits = WaitingSends(
            count=len(self.waits),
            oldest_end_offset=self.waits.oldest_end_offset(),
            oldest_age_ms=None if added_at_ms is None else now_ms - added_at_ms,
            ends_in_ms=None if deadline_ms is None else max(0, deadline_ms - now_ms),
            ends_with=self._late().name,
            latency_counts=self.waits.counted_latencies(),
            latency_total_ms=self.waits.latency_total_ms,
        )
        state.last_stall = self._last_stall(now_ms)
        state.set_members = self._set.members_state(now_ms, connections)
        state.set_proposed = None if sync.proposed is None else list(sync.proposed)
        state.set_outcome_unknown = sync.unknown
        state.held_back = {str(member): at_ms - now_ms for member, at_ms in self._set.held_back(now_ms).items()}
        state.slaves = [
            SlaveState(
                broker_id=item.slave_id,
                peer=item.peer,
                state=item.state.value,
                ack_offset=item.acked_offset,
                lag_bytes=None if item.acked_offset is None else self._log.max_phy_offset - item.acked_offset,
                lag_ms=now_ms - item.caught_up_at_ms,
                in_set=item.slave_id in sync.confirmed,
            )
            for item in connections
        ]
