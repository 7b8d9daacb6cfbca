"""Data plane: messages that one client sent together to one queue, and their records, made in one pass.

They differ in body, properties and flag only, so what else a record's head holds is packed once (formats.md §2, §12.4).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from rmqha.store.log.record import MAGIC_V1, MAGIC_V2, SYS_BORN_V6, SYS_STORE_V6, V6_FLAGS, Host, NewMessage

_SAME = {(born, stored): struct.Struct(f">iq{born}siq{stored}siiq").pack for born in (4, 16) for stored in (4, 16)}
"""By bytes of the two addresses: sysFlag, bornTimestamp, bornHost, storeTimestamp, storeHost, reconsumeTimes,
preparedTransactionOffset."""
_HEAD = {size: struct.Struct(f">iIIiiqq{size}si").pack for size in (48, 60, 72)}
"""By bytes of what `_SAME` packs: totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, that piece,
bodyLength."""
_FIXED_BYTES = 40


Part = tuple[bytes, bytes, int]
"""Body, properties with their length in front (two bytes), flag."""


@dataclass(frozen=True, slots=True)
class NewBatch:
    """Messages of one client for one queue. None of them is of a transaction, an inner batch or delayed."""

    topic: str
    queue_id: int
    parts: Sequence[Part]
    born_at_ms: int
    born_host: Host
    store_host: Host
    sys_flag: int = 0
    reconsume_times: int = 0

    def messages(self) -> list[NewMessage]:
        """The messages of the batch, each by itself."""
        return [
            NewMessage(
                self.topic,
                self.queue_id,
                body,
                tail[2:],
                self.born_at_ms,
                self.born_host,
                self.store_host,
                flag,
                self.sys_flag,
                self.reconsume_times,
            )
            for body, tail, flag in self.parts
        ]

    def encode(
        self, topic: bytes, version: int, queue_offset: int, phy_offset: int, store_timestamp_ms: int
    ) -> tuple[bytes, list[int]]:
        """The records from the queue offset and the position on, and where each begins and the last one ends. `topic`
        and `version` come from `topic_field`."""
        (born_address, born_port), (store_address, store_port) = self.born_host, self.store_host
        sys_flag = self.sys_flag & ~V6_FLAGS
        sys_flag |= (SYS_BORN_V6 if len(born_address) == 16 else 0) | (SYS_STORE_V6 if len(store_address) == 16 else 0)
        same = _SAME[len(born_address), len(store_address)](
            sys_flag,
            self.born_at_ms,
            born_address,
            born_port,
            store_timestamp_ms,
            store_address,
            store_port,
            self.reconsume_times,
            0,
        )
        pack, magic, queue_id = _HEAD[len(same)], MAGIC_V1 if version == 1 else MAGIC_V2, self.queue_id
        fixed_bytes = _FIXED_BYTES + len(same) + len(topic)
        pieces: list[bytes] = []
        bounds = [phy_offset]
        for body, tail, flag in self.parts:
            body_size = len(body)
            size = fixed_bytes + body_size + len(tail)
            crc = crc32(body) & 0x7FFFFFFF
            pieces += (
                pack(size, magic, crc, queue_id, flag, queue_offset, phy_offset, same, body_size),
                body,
                topic,
                tail,
            )
            phy_offset += size
            queue_offset += 1
            bounds.append(phy_offset)
        return b"".join(pieces), bounds
