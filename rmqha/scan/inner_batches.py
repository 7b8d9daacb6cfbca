"""Inner batches (records of BatchCQ topics that hold several messages), decoded as a client does (data plane).

Each member becomes a record of its own in a window of its own, so that columns and filters need not know of batches.
A member has the batch's place, times, hosts and sysFlag, the next queueOffset, and its own flag, properties and body.
What RocketMQ's client leaves at 0 in a member (storeSize, bodyCRC, reconsumeTimes, preparedTransactionOffset) is 0 in
its row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rmqha.model.error import StoreError
from rmqha.scan.columns import BATCH_BODY_MAX_BYTES, COMPRESSED, Decoding, Records, crc_of
from rmqha.scan.walk import MAGIC_V2, Window

INNER_BATCH, NEED_UNWRAP = 0x80, 0x40
_HEAD = struct.Struct(">iiiii")
"""totalSize, magic, bodyCRC, flag and bodySize of a member."""
_LENGTH = struct.Struct(">H")
_REST = struct.Struct(">iqi")
"""reconsumeTimes, preparedTransactionOffset, bodySize."""
HEAD_BYTES = 48
"""Bytes of a record before its born host."""


@dataclass(frozen=True, slots=True)
class Member:
    """A message of a batch, as bytes."""

    flag: int
    body: bytes
    properties: bytes


def members(body: bytes) -> Iterator[Member]:
    """The messages of a batch's body. ValueError if they do not fill it."""
    at = 0
    while at < len(body):
        if len(body) - at < _HEAD.size:
            raise ValueError(f"a member that is cut off at byte {at} of {len(body)}")
        _, _, _, flag, body_bytes = _HEAD.unpack_from(body, at)
        body_at = at + _HEAD.size
        length_at = body_at + body_bytes
        if body_bytes < 0 or length_at + _LENGTH.size > len(body):
            raise ValueError(f"a member of {body_bytes} bytes at byte {at} of {len(body)}")
        properties_at = length_at + _LENGTH.size
        end = properties_at + _LENGTH.unpack_from(body, length_at)[0]
        if end > len(body):
            raise ValueError(f"properties up to byte {end} of {len(body)}")
        yield Member(flag, body[body_at:length_at], body[properties_at:end])
        at = end


def explode(records: Records, decoding: Decoding) -> Iterator[Records]:
    """The records, with members where inner batches were, some 32 MiB at a time; as they are if there are none, or if
    `decoding` leaves them whole. StoreError for a batch that is damaged, unless `decoding` passes it: then it stays one
    row that says so."""
    if decoding.explode_batches and records.seen_flags & INNER_BATCH and records.seen_flags & NEED_UNWRAP:
        flags = records.fixed["sysFlag"]
        batches = (flags & INNER_BATCH != 0) & (flags & NEED_UNWRAP != 0)
        if batches.any():
            yield from _Exploder(records, decoding).pieces(np.flatnonzero(batches).tolist())
            return
    yield records


class _Exploder:
    """The records of one call, with members in the place of inner batches."""

    def __init__(self, records: Records, decoding: Decoding) -> None:
        self._records, self._decoding = records, decoding
        self._clear()

    def _clear(self) -> None:
        self._made = bytearray()
        self._starts: list[int] = []
        self._is_member: list[bool] = []
        self._faults: dict[int, str] = {}

    def pieces(self, batches: list[int]) -> Iterator[Records]:
        """The records, some 32 MiB at a time. `batches`: indexes of the inner batches among them."""
        low = 0
        for place in batches:
            self._plain(low, place)
            self._batch(place)
            low = place + 1
            if len(self._made) > BATCH_BODY_MAX_BYTES:
                yield self._piece()
        self._plain(low, len(self._records))
        yield self._piece()

    def _piece(self) -> Records:
        window = self._records.window
        data = np.frombuffer(self._made, np.uint8)
        made = Window(window.path, window.base_offset, self._made, data)
        found = Records(made, np.array(self._starts, np.int64), self._records.source)
        found.members, found.faults = np.array(self._is_member, bool), self._faults
        self._clear()
        return found

    def _plain(self, low: int, high: int) -> None:
        records = self._records
        for place in range(low, high):
            start = int(records.starts[place])
            self._put(bytes(records.window.data[start : start + int(records.fixed["storeSize"][place])]), False)

    def _put(self, record: bytes, is_member: bool) -> None:
        self._starts.append(len(self._made))
        self._is_member.append(is_member)
        self._made += record

    def _batch(self, place: int) -> None:
        records = self._records
        try:
            body = self._body(place)
            found = list(members(body))
        except ValueError as error:
            self._damaged(place, records.describe(place, "an inner batch that whole messages fill", str(error)))
            return
        except StoreError as error:
            self._damaged(place, str(error))
            return
        head, hosts, tail = self._around(place)
        for number, member in enumerate(found):
            self._put(_record(head, hosts, tail, member, number), True)

    def _damaged(self, place: int, sentence: str) -> None:
        if self._decoding.on_corrupt == "fail":
            raise StoreError(sentence)
        self._faults[len(self._starts)] = sentence
        self._plain(place, place + 1)

    def _body(self, place: int) -> bytes:
        """The batch's body, checked and decompressed."""
        records = self._records
        _, _, start, end = records.extent(place)
        body = bytes(records.window.data[start:end])
        if self._decoding.verify_crc:
            stored, found = int(records.fixed["bodyCRC"][place]), crc_of(body)
            if stored != found:
                raise StoreError(records.describe(place, f"body CRC {stored}", str(found)))
        if int(records.fixed["sysFlag"][place]) & COMPRESSED:
            body = records.decompressed(place, body)
        return body

    def _around(self, place: int) -> tuple[bytes, bytes, bytes]:
        """The fixed head of a member's record, its hosts with the time between, and the topic with its length."""
        data = self._records.window.data
        start, rest_at, _, body_end = self._records.extent(place)
        wide = int(self._records.fixed["magic"][place]) == MAGIC_V2
        topic_bytes = int.from_bytes(bytes(data[body_end : body_end + 1 + wide]), "big")
        head, hosts = bytes(data[start : start + HEAD_BYTES]), bytes(data[start + HEAD_BYTES : rest_at])
        return head, hosts, bytes(data[body_end : body_end + 1 + wide + topic_bytes])


_FIXED_HEAD = struct.Struct(">iiiiiqqiq")


def _record(head: bytes, hosts: bytes, topic: bytes, member: Member, number: int) -> bytes:
    _, magic, _, queue_id, _, queue_offset, phy_offset, sys_flag, born_ms = _FIXED_HEAD.unpack(head)
    rest = _REST.pack(0, 0, len(member.body))
    tail = hosts + rest + member.body + topic + _LENGTH.pack(len(member.properties)) + member.properties
    crc = crc_of(member.body)
    flags = sys_flag & ~COMPRESSED
    fixed = magic, crc, queue_id, member.flag, queue_offset + number, phy_offset, flags, born_ms
    return _FIXED_HEAD.pack(HEAD_BYTES + len(tail), *fixed) + tail
