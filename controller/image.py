"""The snapshot of the controllers' state: the encoded image of all groups. Pure.

Groups stand sorted by name and replicas by id, so that members with the same history write the same bytes.
"""

from __future__ import annotations

from typing import Any

import cbor2

from controller.event import Cause
from controller.replicas_info import ElectionRecord, Group, ReplicaInfo, ReplicasInfo
from rmqha.model.error import StoreError

VERSION = 1


def _group_row(group: Group) -> list[Any]:
    return [
        group.cluster_name,
        group.broker_name,
        group.next_broker_id,
        [
            [item.broker_id, item.address, item.check_code, item.ha_address, item.total_replicas, item.ha_mode]
            for item in group.replicas.values()
        ],
        group.total_replicas,
        group.master_id,
        group.master_epoch,
        group.sync_state_set,
        group.sync_state_set_epoch,
        group.eligible,
        group.unclean_ids,
        group.set_known,
        [[item.master_epoch, item.broker_id, item.cause] for item in group.elections],
    ]


def encode_image(info: ReplicasInfo) -> bytes:
    return cbor2.dumps([VERSION, [_group_row(group) for _, group in sorted(info.groups.items())]])


def _group(row: Any) -> Group:
    (
        cluster_name, broker_name, next_broker_id, replicas, total_replicas, master_id, master_epoch,
        sync_state_set, sync_state_set_epoch, eligible, unclean_ids, set_known, elections,
    ) = row  # fmt: skip
    return Group(
        cluster_name=cluster_name,
        broker_name=broker_name,
        next_broker_id=next_broker_id,
        replicas={item[0]: ReplicaInfo(*item) for item in replicas},
        total_replicas=total_replicas,
        master_id=master_id,
        master_epoch=master_epoch,
        sync_state_set=tuple(sync_state_set),
        sync_state_set_epoch=sync_state_set_epoch,
        eligible=tuple(eligible),
        unclean_ids=tuple(unclean_ids),
        set_known=set_known,
        elections=tuple(ElectionRecord(epoch, broker_id, Cause(cause)) for epoch, broker_id, cause in elections),
    )


def decode_image(data: bytes) -> ReplicasInfo:
    """Raises StoreError for another version or for bytes that are no image. b"" is the image of nothing."""
    info = ReplicasInfo()
    if not data:
        return info
    try:
        version, rows = cbor2.loads(data)
        if version == VERSION:
            info.groups = {group.broker_name: group for group in map(_group, rows)}
            return info
    except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError) as problem:
        raise StoreError(f"the controllers' snapshot cannot be read: {problem}") from problem
    raise StoreError(f"the controllers' snapshot has version {version}; this release reads version {VERSION}")
