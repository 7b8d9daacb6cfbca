"""Snapshot of the controllers' state: an image of all groups. Pure.

An image is a CBOR sequence: the head [version, count], then one byte string for each group with its row, in the order
in which the groups were added, which is the same on every member. So members with the same history write the same
bytes. Images are written and read in slices, so that a million replicas delay no heartbeats.
"""

from __future__ import annotations

from typing import Any

import cbor2

from controller.state.event import Cause, array
from controller.state.replicas_info import BrokerGroup, ElectionRecord, ReplicaInfo, ReplicasInfo
from rmqha.model.error import StoreError
from rmqha.model.offset import NO_EPOCH

VERSION = 6
_LATER: list[Any] = [[], []]
"""Last fields of a row that older versions lack: version 2 lacks both, version 3 one."""
_ROW_SIZE = 16
SLICE_GROUPS = 40
"""Groups of one slice: half a millisecond of work, some milliseconds if a million replicas are in no cache."""


def _group_row(group: BrokerGroup) -> bytes:
    row = cbor2.dumps(
        [
            group.cluster_name,
            group.broker_name,
            group.next_broker_id,
            [
                [
                    item.broker_id,
                    item.address,
                    item.check_code,
                    item.ha_address,
                    item.total_replicas,
                    item.ha_mode,
                    item.async_learner,
                    item.joined_epoch,
                ]
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
            group.drained_ids,
            group.maintenance_ids,
        ]
    )
    return cbor2.dumps(row)


class ImageWriter:
    """Writes the image of one moment in slices, while groups change: call `before_change` before each change."""

    def __init__(self, info: ReplicasInfo) -> None:
        self._groups = info.groups
        self._names = info.names
        self._count = len(info.names)
        self._place = 0
        self._kept: dict[str, bytes] = {}
        """Rows of groups that changed before their turn, with the state of that moment."""
        self.data = bytearray(cbor2.dumps([VERSION, self._count]))

    @property
    def is_done(self) -> bool:
        return self._place == self._count

    def before_change(self, group: BrokerGroup) -> None:
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


def _group(row: list[Any], place: int) -> BrokerGroup:
    # version 5 had one epoch for all replicas, that of the last change of the set by a master
    altered_epoch = row.pop() if len(row) == _ROW_SIZE + 1 else NO_EPOCH
    (
        cluster_name, broker_name, next_broker_id, replicas, total_replicas, master_id, master_epoch,
        sync_state_set, sync_state_set_epoch, eligible, unclean_ids, set_known, elections, next_total_replicas,
        drained_ids, maintenance_ids,
    ) = [*row, *_LATER[len(row) - _ROW_SIZE :]] if 0 < _ROW_SIZE - len(row) <= len(_LATER) else row  # fmt: skip
    group = BrokerGroup(
        cluster_name=cluster_name,
        broker_name=broker_name,
        place=place,
        next_broker_id=next_broker_id,
        replicas={item[0]: ReplicaInfo(*item) for item in map(array, array(replicas))},
        total_replicas=total_replicas,
        master_id=master_id,
        master_epoch=master_epoch,
        sync_state_set=tuple(array(sync_state_set)),
        sync_state_set_epoch=sync_state_set_epoch,
        eligible=tuple(array(eligible)),
        unclean_ids=tuple(array(unclean_ids)),
        set_known=set_known,
        elections=tuple(
            ElectionRecord(epoch, broker_id, Cause(cause), *told)
            for epoch, broker_id, cause, *told in map(array, array(elections))
        ),
        next_total_replicas=next_total_replicas,
        drained_ids=tuple(array(drained_ids)),
        maintenance_ids=tuple(array(maintenance_ids)),
    )
    if altered_epoch == master_epoch:
        for member, replica in group.replicas.items():
            replica.joined_epoch = altered_epoch if member in group.sync_state_set else NO_EPOCH
    return group


class ImageReader:
    """Reads an image in slices into `info`. Every method raises StoreError for another version or a malformed image;
    b"" is the empty image."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.info = ReplicasInfo()
        self._data = memoryview(data)
        self._place = 0
        self._left = 0
        if data[:2] == b"\x82\x01":
            self._read_version_1(bytes(data))
        elif data:
            self._head()

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def read(self, group_count: int = SLICE_GROUPS) -> None:
        """Read the next groups."""
        try:
            for _ in range(min(group_count, self._left)):
                group = _group(array(cbor2.loads(self._next_row())), len(self.info.groups))
                self.info.groups[group.broker_name] = group
                self._left -= 1
            self._check_end()
        except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError) as problem:
            raise _unreadable(problem) from problem

    def _read_version_1(self, data: bytes) -> None:
        """Read an image of version 1: one CBOR array [1, rows], without next_total_replicas."""
        try:
            for place, row in enumerate(map(array, array(array(cbor2.loads(data))[1]))):
                group = _group([*row, 0], place)
                self.info.groups[group.broker_name] = group
        except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError) as problem:
            raise _unreadable(problem) from problem

    def _head(self) -> None:
        try:
            version, count = cbor2.loads(bytes(self._data[:32]))
            if version not in (2, 3, 4, 5, VERSION):
                raise StoreError(f"the controllers' snapshot has version {version}; this release reads 1 to {VERSION}")
            self._place = len(cbor2.dumps([version, count]))
            if type(count) is not int or not 0 <= count <= len(self._data):
                raise ValueError(f"{count!r} groups in {len(self._data)} bytes")
            self._left = count
            self._check_end()
        except (cbor2.CBORDecodeError, TypeError, ValueError) as problem:
            raise _unreadable(problem) from problem

    def _check_end(self) -> None:
        if self.is_done and self._place != len(self._data):
            raise ValueError("bytes follow the last group")

    def _next_row(self) -> bytes:
        """Content of the next CBOR byte string (RFC 8949 §3.1, major type 2)."""
        size, start = self._data[self._place] - 0x40, self._place + 1
        if 24 <= size <= 26:
            length_bytes = 1 << size - 24
            size, start = int.from_bytes(self._data[start : start + length_bytes], "big"), start + length_bytes
        if not 0 <= size <= len(self._data) - start:
            raise ValueError(f"no whole group at byte {self._place}")
        self._place = start + size
        return bytes(self._data[start : self._place])


def _unreadable(problem: Exception) -> StoreError:
    return StoreError(f"the controllers' snapshot cannot be read: {problem}")


def decode_image(data: bytes | bytearray) -> ReplicasInfo:
    """State of a whole image. Raises StoreError as ImageReader does."""
    reader = ImageReader(data)
    while not reader.is_done:
        reader.read()
    return reader.info
