"""The bytes of a log in which a flipped bit is noticed (docs/start/guarantees.md): a record's own checksum covers all
of it (enabledAppendPropCRC); without one its size, magic, place and body are protected, and the rest is not."""

from __future__ import annotations

import struct

from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import (
    BLANK,
    BLANK_HEADER_BYTES,
    CRC_PROPERTY_BYTES,
    MAGIC_BLANK,
    BadRecordError,
    locate,
)
from rmqha.store.store import Store

_ALL = 1 << 40
_HEAD = (range(12), range(28, 36))
"""totalSize, magic and bodyCRC; physicalOffset."""


def is_noticed(store: Store, file_bytes: int, position: int, new: bytes, *, by_record: bool) -> bool:
    """Whether each record is known to be damaged once `new` stands at `position`, whole sectors of one file. Text over
    the end of a record takes its checksum along; zeros there are no record's."""
    start, stop = max(position // file_bytes * file_bytes, int(store.min_phy_offset)), position + len(new)
    while start < stop:
        view = store.view(PhyOffset(start), _ALL)
        try:
            size, _, _, _, body_at, body_bytes, *_ = locate(view, 0, len(view), start)
        except (BadRecordError, struct.error):
            return False
        low, high = max(position - start, 0), min(stop - start, size)
        changed = [at for at in range(low, high) if view[at] != new[start + at - position]]
        parts = (*_HEAD, range(body_at - 4, body_at + body_bytes))
        is_seen = not changed or (by_record and all(at < size - CRC_PROPERTY_BYTES for at in changed))
        is_seen = is_seen or (not any(new) and any(at >= body_at + body_bytes for at in changed))
        if not is_seen and not any(at in part for at in changed for part in parts):
            return False
        start += size
    return True


def is_covered(store: Store, file_bytes: int, position: int, *, by_record: bool) -> bool:
    """`by_record`: records carry checksums of all of them."""
    start = max(position // file_bytes * file_bytes, int(store.min_phy_offset))
    while start <= position:
        view = store.view(PhyOffset(start), _ALL)
        if len(view) < BLANK.size:
            return False
        if BLANK.unpack_from(view) == (len(view), MAGIC_BLANK):
            return position < start + BLANK_HEADER_BYTES
        try:
            size, _, _, _, body_at, body_bytes, *_ = locate(view, 0, len(view), start)
        except BadRecordError:
            return False
        at = position - start
        if at < size:
            return by_record or any(at in part for part in (*_HEAD, range(body_at - 4, body_at + body_bytes)))
        start += size
    return False
