"""The snapshot of the controllers' state: an image of all groups. Pure.

An image is a CBOR sequence: the head [version, count], then one row per group in the order in which the groups came to
be, which is the same on every member. So members with the same history write the same bytes, and an image can be
written and read in slices: a million replicas must not keep a leader from its heartbeats.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import cbor2

from controller.event import Cause
from controller.replicas_info import ElectionRecord, Group, ReplicaInfo, ReplicasInfo
from rmqha.model.error import StoreError

VERSION = 2
SLICE_GROUPS = 250
"""Groups of one slice; about 3 ms of work."""


def _group_row(group: Group) -> bytes:
    return cbor2.dumps(
        [
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
            [[item.master_epoch, item.broker_id, item.cause, item.at_ms, item.reason] for item in group.elections],
            group.next_total_replicas,
        ]
    )


class ImageWriter:
    """Writes the image of one moment, slice by slice, while the groups change: call `before_change` ahead of each."""

    def __init__(self, info: ReplicasInfo) -> None:
        self._groups = info.groups
        self._names = info.names
        self._count = len(info.names)
        self._place = 0
        self._kept: dict[str, bytes] = {}
        """Rows of groups that changed before their turn, as they were at that moment."""
        self.data = bytearray(cbor2.dumps([VERSION, self._count]))

    @property
    def is_done(self) -> bool:
        return self._place == self._count

    def before_change(self, group: Group) -> None:
        name = group.broker_name
        if self._place <= group.place < self._count and name not in self._kept:
            self._kept[name] = _group_row(group)

    def write(self, group_count: int = SLICE_GROUPS) -> None:
        """Append the rows of the next groups to `data`."""
        end = min(self._place + group_count, self._count)
        for name in self._names[self._place : end]:
            self.data += self._kept.pop(name, b"") or _group_row(self._groups[name])
        self._place = end


def encode_image(info: ReplicasInfo) -> bytes:
    writer = ImageWriter(info)
    while not writer.is_done:
        writer.write()
    return bytes(writer.data)


def _group(row: Any, place: int, version: int) -> Group:
    (
        cluster_name, broker_name, next_broker_id, replicas, total_replicas, master_id, master_epoch,
        sync_state_set, sync_state_set_epoch, eligible, unclean_ids, set_known, elections, next_total_replicas,
    ) = row if version == VERSION else (*row, 0)  # fmt: skip
    return Group(
        cluster_name=cluster_name,
        broker_name=broker_name,
        place=place,
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
        elections=tuple(
            ElectionRecord(epoch, broker_id, Cause(cause), *told) for epoch, broker_id, cause, *told in elections
        ),
        next_total_replicas=next_total_replicas,
    )


def decode_image(data: bytes | bytearray) -> ReplicasInfo:
    """Raises StoreError for another version or for bytes that are no image. b"" is the image of nothing."""
    info = ReplicasInfo()
    if not data:
        return info
    try:
        with BytesIO(data) as stream:
            decoder = cbor2.CBORDecoder(stream)
            version, rows = decoder.decode()
            if version == VERSION:
                rows = (decoder.decode() for _ in range(rows))
            elif version != 1:
                raise StoreError(f"the controllers' snapshot has version {version}; this release reads 1 and {VERSION}")
            for place, row in enumerate(rows):
                group = _group(row, place, version)
                info.groups[group.broker_name] = group
            if stream.tell() != len(data):
                raise ValueError("bytes follow the last group")
    except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError) as problem:
        raise StoreError(f"the controllers' snapshot cannot be read: {problem}") from problem
    return info
