"""Records with a right CRC, in Python: the reference of `skip_sound` and `collect`. The store checks records of rarer
forms."""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

from rmqha.kernel.batch_kernel import Checked, Collected, PulledUnits
from rmqha.model.message import PROPERTY_CRC32, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6

SkipSound = Callable[[memoryview, int, int, int], Checked]
"""`BatchKernel.skip_sound`."""
_MAGIC_V1, _MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
MIN_RECORD_BYTES = 91
SECTOR_BYTES = 512
"""The unit that a disk writes whole or not at all."""
CRC_PROPERTY_BYTES = len(PROPERTY_CRC32) + 12
"""Bytes of the property that may end a record: name, separators and ten digits."""
UNDERSCORE = PROPERTY_CRC32.encode()[0]
"""First character of __CRC32#, which begins with two of them: after one flipped bit one of them is still there."""
_V6 = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_PREFILL_SIZE = 0x7FFFFFFF
"""Size in a queue entry without a message, which pre-fills a new file."""
_PLAIN = struct.Struct(">iIi16xqi16xq20xi")
"""totalSize, magic, bodyCRC, physicalOffset, sysFlag, storeTimestamp, bodyLength of a record with two IPv4 hosts."""
_PLAIN_BODY_AT = 88
_READ = struct.Struct(">iIii4xqqi44xi")
"""totalSize, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag; bodyLength where both hosts are IPv4."""
_INT32 = struct.Struct(">i")
_UNIT = struct.Struct(">qiq")


def skip_sound(buffer: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
    """Skip the records of the commonest form that `verify` would find undamaged, at a third of its cost. Returns the
    index of the first other one, and the newest store timestamp, `newest_ms` or a later one of theirs.

    `phy_offset` is the position in the log of index 0. The form: version 1, IPv4 hosts, topic and properties in at
    most two sectors, no property __CRC32#."""
    unpack, mark, end = _PLAIN.unpack_from, UNDERSCORE, len(buffer)
    no_tail = end - MIN_RECORD_BYTES
    while at <= no_tail:
        size, magic, crc, physical, sys_flag, stored_ms, body_size = unpack(buffer, at)
        record_end, topic_at = at + size, at + _PLAIN_BODY_AT + body_size
        tail_bytes = record_end - topic_at
        if (
            magic != _MAGIC_V1
            or physical != phy_offset + at
            or sys_flag & _V6
            or body_size < 0
            or record_end > end
            or not 4 <= tail_bytes <= SECTOR_BYTES
        ):
            break
        topic_size = buffer[topic_at]
        properties_size = tail_bytes - 3 - topic_size
        if (
            not topic_size
            or properties_size < 0
            or (buffer[record_end - properties_size - 2] << 8) + buffer[record_end - properties_size - 1]
            != properties_size
            or crc32(buffer[at + _PLAIN_BODY_AT : topic_at]) & 0x7FFFFFFF != crc
            or (properties_size and not buffer[record_end - 1])
            or buffer[record_end - CRC_PROPERTY_BYTES] == mark
            or buffer[record_end + 1 - CRC_PROPERTY_BYTES] == mark
        ):
            break
        next_sector = topic_at + SECTOR_BYTES - (phy_offset + topic_at) % SECTOR_BYTES
        if next_sector < record_end and not buffer[next_sector]:
            break
        if stored_ms > newest_ms:
            newest_ms = stored_ms
        at = record_end
    return Checked(at, newest_ms)


def parts_of(
    record: memoryview, phy_offset: int, size_bytes: int, topic: bytes, queue_id: int, queue_offset: int
) -> tuple[int, int, int, int] | None:
    """(start of the body, its end, bytes of the properties, CRC of the body) of the record of a queue entry; None if
    the bytes are not that record, or its lengths contradict each other. `queue_offset` −1: any."""
    if len(record) != size_bytes or size_bytes < MIN_RECORD_BYTES:
        return None
    size, magic, crc, found_id, found_offset, position, sys_flag, body_size = _READ.unpack_from(record)
    if size != size_bytes or position != phy_offset or found_id != queue_id or queue_offset not in (-1, found_offset):
        return None
    body_at = _PLAIN_BODY_AT
    if sys_flag & _V6:
        body_at += (12 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0) + (12 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 0)
        if body_at > size_bytes:
            return None
        (body_size,) = _INT32.unpack_from(record, body_at - 4)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 4 > size_bytes:
        return None
    if magic == _MAGIC_V1:
        name_at = topic_at + 1
        properties_at = name_at + record[topic_at]
    elif magic == _MAGIC_V2:
        name_at = topic_at + 2
        properties_at = name_at + (record[topic_at] << 8) + record[topic_at + 1]
    else:
        return None
    if properties_at + 2 > size_bytes or record[name_at:properties_at] != topic:
        return None
    if properties_at + 2 + (record[properties_at] << 8) + record[properties_at + 1] != size_bytes:
        return None
    return body_at, topic_at, size_bytes - properties_at - 2, crc


def collect(view: memoryview, start: int, pulled: PulledUnits) -> Collected:
    """Find the undamaged records of queue entries, up to the first that may have a property __CRC32#."""
    units, topic, queue_id, offset, max_count, max_bytes, disk_end, disk_max_count, disk_max_bytes, codes = pulled
    runs: list[tuple[int, int]] = []
    end, total, count, mark, record_count, run_end = len(view), 0, 0, UNDERSCORE, 0, -1
    for position, size, code in _UNIT.iter_unpack(units):
        if record_count >= max_count:
            return Collected(runs, record_count, count, total, True)
        if size != _PREFILL_SIZE and (codes is None or code in codes):
            if record_count and (
                total + size > max_bytes
                or (position < disk_end and (total + size > disk_max_bytes or record_count >= disk_max_count))
            ):
                return Collected(runs, record_count, count, total, True)
            at = position - start
            if at < 0 or size < MIN_RECORD_BYTES or at + size > end:
                break
            record = view[at : at + size]
            parts = parts_of(record, position, size, topic, queue_id, offset + count)
            if parts is None:
                break
            body_at, body_end, _, crc = parts
            if (
                record[size - CRC_PROPERTY_BYTES] == mark
                or record[size + 1 - CRC_PROPERTY_BYTES] == mark
                or crc32(record[body_at:body_end]) & 0x7FFFFFFF != crc
            ):
                break
            if at == run_end:
                runs[-1] = runs[-1][0], runs[-1][1] + size
            else:
                runs.append((at, size))
            run_end = at + size
            record_count += 1
            total += size
        count += 1
    return Collected(runs, record_count, count, total, False)
