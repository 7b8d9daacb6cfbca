"""Offsets up to which the log is committed and may be acknowledged. Decisions over offsets; the rules are rulings 1, 6
and 11.

An acknowledged offset of None is "unknown" (a member that is not connected or still shakes hands), never −1.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode
from rmqha.model.offset import PhyOffset


def confirm_offset(current: PhyOffset, acked: Iterable[PhyOffset | None]) -> PhyOffset:
    """The smallest offset that every member has, never below `current`; `current` while any member's is unknown."""
    least: PhyOffset | None = None
    for offset in acked:
        if offset is None:
            return current
        if least is None or offset < least:
            least = offset
    return current if least is None or least < current else least


def needed_count(config: BrokerConfig, live_count: int) -> int:
    """Replicas, the master included, that must hold a record in AP. With enableAutoInSyncReplicas it follows
    `live_count`, the members of the set that are connected and close enough, the master included."""
    if config.broker_role == "ASYNC_MASTER":
        return 1
    if config.enable_auto_in_sync_replicas:
        return max(config.min_in_sync_replicas, min(config.in_sync_replicas, live_count))
    return config.in_sync_replicas


def acked_offset(
    config: BrokerConfig,
    *,
    confirm: PhyOffset,
    own_max: PhyOffset,
    own_synced: PhyOffset,
    member_acks: Iterable[PhyOffset | None],
    live_count: int,
    sync_required: bool,
) -> PhyOffset:
    """Records that end at or below the result may be answered SEND_OK. `member_acks` are the set's other members.

    CP and allAckInSyncStateSet: the confirm offset. Else the largest offset that enough replicas hold. `sync_required`
    (SYNC_FLUSH, or one copy in CP, ruling 6) bounds it by what the master itself has synced.
    """
    if config.mode is HaMode.CP or config.all_ack_in_sync_state_set:
        offset = confirm
    else:
        needed = needed_count(config, live_count)
        held = sorted((own_max, *(ack for ack in member_acks if ack is not None)), reverse=True)
        offset = held[needed - 1] if len(held) >= needed else PhyOffset(0)
    return min(offset, own_synced) if sync_required else offset
