"""Data plane: how much of a ConsumeQueue file is whole, at the speed of memory. A function of bytes.

A loss of power may take any sector, so every unit has to be checked, millions of them. What a lost sector leaves is
zeros or an older content: zeros show in the size field of every unit, an older content in the order of the records of
one unit in each sector. A unit that lies in two sectors may have lost its beginning alone, so its order is checked
too. Where these quick checks find anything else than a clean end, all units are compared one by one.
"""

from __future__ import annotations

import struct

UNIT = struct.Struct(">qiq")
"""physical offset, size, tagsCode."""
UNIT_BYTES = 20
PREFILL_SIZE = 0x7FFFFFFF
SAMPLE_UNITS = 12
"""Two in each sector of 512 bytes, so that at least one lies whole in it."""
_SECTOR_BYTES = 512
_SIZE_AT = 8
_SIZE_BYTES = 4
_PREFILL_TOP = PREFILL_SIZE >> 24


def ordered_count(units: memoryview, behind: int, log_end: int) -> tuple[int, int]:
    """Number of units, from the first on, that are entries of a log that ends at `log_end`, each behind the one before
    it; and where the record of the last of them ends. `behind` is that end for what stands in front of `units`."""
    count = _filled_count(units)
    if count is None or not _samples_rise(units, count, behind, log_end):
        return _count_one_by_one(units, behind, log_end)
    at = count
    while at:
        at -= 1
        offset, size, _ = UNIT.unpack_from(units, at * UNIT_BYTES)
        if size != PREFILL_SIZE:
            return count, offset + size
    return count, behind


def _filled_count(units: memoryview) -> int | None:
    """The units before the first whose size is zero; None if a size is what none can be."""
    data = bytes(units)
    count = len(data) // UNIT_BYTES
    tops = data[_SIZE_AT::UNIT_BYTES]
    if tops.count(0) + tops.count(_PREFILL_TOP) != count:
        return None
    merged = 0
    for byte in range(_SIZE_BYTES):
        merged |= int.from_bytes(data[_SIZE_AT + byte :: UNIT_BYTES], "big")
    first_zero = merged.to_bytes(count, "big").find(0)
    return count if first_zero < 0 else first_zero


def _samples_rise(units: memoryview, count: int, behind: int, log_end: int) -> bool:
    for at in _sampled(count):
        offset, size, _ = UNIT.unpack_from(units, at)
        if not _plausible(offset, size, log_end):
            return False
        if size != PREFILL_SIZE:
            if offset < behind:
                return False
            behind = offset + size
    return True


def _sampled(count: int) -> list[int]:
    """Positions of the units that are checked: the first and the last, two in each sector, those in two sectors."""
    if not count:
        return []
    last = (count - 1) * UNIT_BYTES
    inside = range(0, last, SAMPLE_UNITS * UNIT_BYTES)
    across = (at - at % UNIT_BYTES for at in range(_SECTOR_BYTES, last, _SECTOR_BYTES))
    return sorted({*inside, *across, last})


def _count_one_by_one(units: memoryview, behind: int, log_end: int) -> tuple[int, int]:
    count = 0
    for offset, size, _ in UNIT.iter_unpack(units):
        filled = size == PREFILL_SIZE
        if not _plausible(offset, size, log_end) or (not filled and offset < behind):
            break
        behind = behind if filled else offset + size
        count += 1
    return count, behind


def _plausible(offset: int, size: int, log_end: int) -> bool:
    if size == PREFILL_SIZE:
        return offset == 0
    return size > 0 and offset >= 0 and offset + size <= log_end
