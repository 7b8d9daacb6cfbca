"""The plain records of a block of the log, in Python: the reference of `scan`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from rmqha.kernel.batch_kernel import KeyedRecords, LogBlock, QueueRun, Scanned
from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import (
    MAX_TOPIC_BYTES,
    PROPERTY_TAGS,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_V6,
    find_property,
)

_head = struct.Struct(">iIIiiqqiq").unpack_from
"""totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, bornTimestamp (formats.md §2)."""
_unit = struct.Struct(">qiq").pack
_int16, _int32, _int64 = (struct.Struct(form).unpack_from for form in (">H", ">i", ">q"))
_TOPIC_FIELDS = {0xDAA320A7: 1, 0xDAA320AB: 2}
"""Number of bytes of the topic's length, by magic number."""
_MIN_RECORD_BYTES = 91
_V6_FLAGS = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_PLAIN_FLAGS = SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_COMPRESSION_MASK | _V6_FLAGS
_TOPIC = re.compile(rb"[%%|a-zA-Z0-9_-]{1,%d}" % MAX_TOPIC_BYTES)
_SCHEDULE_TOPIC, _TAGS = SCHEDULE_TOPIC.encode(), PROPERTY_TAGS.encode()


def scan(block: LogBlock, tags_code: Callable[[bytes], int], make_entries: Callable[[KeyedRecords], bytes]) -> Scanned:
    """Find the plain records at the front of `block`. `tags_code` is called with ASCII TAGS that are not empty."""
    data, phy_offset, max_count, max_run_count, is_keyed = block
    found, keyed = Scanned([phy_offset], [], b"", []), KeyedRecords([], [], [], [])
    runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    at = 0
    while len(found.store_timestamps_ms) < max_count:
        place = _place(data, at, phy_offset + at)
        if place is None:
            break
        end, topic, tail_at, queue_id, queue_offset, stored_ms = place
        tags = find_property(data[tail_at + 2 : end], _TAGS) or b""
        first, units = runs.get((topic, queue_id)) or (queue_offset, [])
        if not tags.isascii() or queue_offset != first + len(units) or (not units and len(runs) >= max_run_count):
            break
        runs[topic, queue_id] = first, units
        units.append(_unit(phy_offset + at, end - at, tags_code(tags) if tags else 0))
        found.bounds.append(phy_offset + end)
        if is_keyed:
            keyed.add(topic.decode(), data[tail_at:end], phy_offset + at, stored_ms)
        found.store_timestamps_ms.append(stored_ms)
        at = end
    for (topic, queue_id), (first, units) in runs.items():
        found.runs.append(QueueRun(topic.decode(), queue_id, first, len(units), b"".join(units)))
    return found._replace(entries=make_entries(keyed))


def _place(data: bytes, at: int, phy_offset: int) -> tuple[int, bytes, int, int, int, int] | None:
    """End, topic, start of the tail, queue id, queue offset and store timestamp of the plain record at index `at`; None
    if there is none."""
    if len(data) - at < _MIN_RECORD_BYTES:
        return None
    size, magic, _, queue_id, _, queue_offset, physical, sys_flag, _ = _head(data, at)
    field_bytes, end = _TOPIC_FIELDS.get(magic, 0), at + size
    if (
        not field_bytes
        or physical != phy_offset
        or sys_flag & ~_PLAIN_FLAGS
        or queue_id < 0
        or queue_offset < 0
        or size < _MIN_RECORD_BYTES
        or end > len(data)
    ):
        return None
    stored_at = at + (68 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 56)
    body_at = stored_at + (44 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 32)
    if body_at + field_bytes + 2 > end:
        return None
    (body_bytes,) = _int32(data, body_at - 4)
    topic_at = body_at + body_bytes + field_bytes
    if body_bytes < 0 or topic_at + 2 > end:
        return None
    topic_bytes = int.from_bytes(data[topic_at - field_bytes : topic_at], "big")
    tail_at = topic_at + topic_bytes
    if tail_at + 2 > end or tail_at + 2 + _int16(data, tail_at)[0] != end:
        return None
    topic = data[topic_at:tail_at]
    if not _TOPIC.fullmatch(topic) or topic == _SCHEDULE_TOPIC:
        return None
    return end, topic, tail_at, queue_id, queue_offset, _int64(data, stored_at)[0]
