"""timerlog/: one unit of 52 bytes for each message that was put into the timer wheel (formats.md §11). Pure.

Units of one slot of the wheel are a chain: each names the one before it, and the slot names the last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rmqha.model.offset import Buffer

DIRECTORY = "timerlog"
CHECK_PATH = "config/timercheck"
"""Progress of delivery: times and offsets, 56 bytes that count."""
METRICS_PATH = "config/timermetrics"
"""Number of messages that wait by topic, JSON."""
SNAPSHOT_PATH = "rmqha.timers"
"""Ours: what waits, for a start (`rmqha.broker.timers.snapshot`)."""
UNIT_BYTES = 52
ROLLED = 2
"""Flag: the message waits on when the time of its slot has come."""
DELETES = 4
"""Flag: the message takes another one back."""
NO_POSITION = -1
BLANK_BYTES = 16
_PLAIN = 1
_MAX_MAGIC = 0xF
_MAX_DELAY_MS = 2**31 - 1
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_CHECK = struct.Struct(">7q")
_UNIT = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqi")


class BadTimerLogError(Exception):
    """Bytes that are no timer log; `at` is the position in the file."""

    def __init__(self, at: int, expected: str, found: str) -> None:
        super().__init__(f"byte {at}: expected {expected}, found {found}")
        self.at = at
        self.expected = expected
        self.found = found


class TimerUnit(NamedTuple):
    """One message that was put into the wheel."""

    previous_position: int
    """Position of the unit before it in its slot's chain, -1 for the first one."""
    flags: int
    written_ms: int
    delay_ms: int
    phy_offset: int
    size_bytes: int
    topic_hash: int = 0

    @property
    def slot_ms(self) -> int:
        return self.written_ms + self.delay_ms

    def encode(self) -> bytes:
        magic = _PLAIN | self.flags
        where = self.phy_offset, self.size_bytes, self.topic_hash
        return _UNIT.pack(UNIT_BYTES, self.previous_position, magic, self.written_ms, self.delay_ms, *where, 0)


def units(data: Buffer, start: int = 0) -> Iterator[tuple[int, TimerUnit]]:
    """Each unit with its position, of a file that begins at position `start`, up to its blank or the first zeros.
    Raises BadTimerLogError, once those before are given."""
    for at in range(0, len(data), UNIT_BYTES):
        if len(data) - at < UNIT_BYTES:
            _end(data, at)
            return
        size, previous, magic, written_ms, delay_ms, phy_offset, size_bytes, topic_hash, _ = _UNIT.unpack_from(data, at)
        if size != UNIT_BYTES or not 0 < magic <= _MAX_MAGIC:
            _end(data, at)
            return
        if not NO_POSITION <= previous < start + at:
            raise BadTimerLogError(at + 4, f"a position below {start + at}", f"{previous}")
        if min(written_ms, phy_offset, size_bytes - 1, written_ms + delay_ms) < 0:
            found = f"{written_ms} + {delay_ms}, {phy_offset} and {size_bytes}"
            raise BadTimerLogError(at + 16, "a time, and the place and size of a record", found)
        flags = magic & (ROLLED | DELETES)
        yield start + at, TimerUnit(previous, flags, written_ms, delay_ms, phy_offset, size_bytes, topic_hash)


def _end(data: Buffer, at: int) -> None:
    """Raise BadTimerLogError unless units may end here: at zeros, or at the blank that fills the rest of a file."""
    rest = bytes(data[at : at + UNIT_BYTES])
    if not any(rest):
        return
    if len(rest) >= BLANK_BYTES and _BLANK.unpack_from(rest) == (len(data) - at, 0, _BLANK_MAGIC):
        return
    raise BadTimerLogError(at, "a unit, or zeros behind the last one", rest[:16].hex())


def unit_count(file_size_bytes: int) -> int:
    """Number of units in a full file: a blank must follow the last."""
    return max(0, (file_size_bytes - BLANK_BYTES) // UNIT_BYTES)


def files(
    entries: Iterable[tuple[int, int, int, int]], written_ms: int, precision_ms: int, file_size_bytes: int
) -> Iterator[bytes]:
    """Content of each file, up to its last byte that is not zero, of a log that holds `entries`: the (slot time, flags,
    physical offset, size) of each."""
    last: dict[int, int] = {}
    """Position of the last unit of each slot."""
    limit = unit_count(file_size_bytes) * UNIT_BYTES
    content, start = bytearray(), 0
    for slot_ms, flags, phy_offset, size_bytes in entries:
        if len(content) == limit:
            yield bytes(content + _BLANK.pack(file_size_bytes - limit, 0, _BLANK_MAGIC))
            content, start = bytearray(), start + file_size_bytes
        slot, delay_ms = slot_ms // precision_ms, slot_ms - written_ms
        when = (written_ms, delay_ms) if abs(delay_ms) <= _MAX_DELAY_MS else (slot_ms, 0)
        unit = TimerUnit(last.get(slot, NO_POSITION), flags, *when, phy_offset, size_bytes)
        last[slot] = start + len(content)
        content += unit.encode()
    if content:
        yield bytes(content)


def check_numbers(data: bytes) -> tuple[int, ...]:
    """Read time, position in the timer log, queue offset and the master's, and three numbers of a version, of
    config/timercheck. Raises BadTimerLogError."""
    if len(data) < _CHECK.size:
        raise BadTimerLogError(len(data), f"{_CHECK.size} bytes", f"{len(data)}")
    numbers: tuple[int, ...] = _CHECK.unpack_from(data)
    for index, number in enumerate(numbers[:4]):
        if number < 0:
            raise BadTimerLogError(index * 8, "a time or an offset from 0", f"{number}")
    return numbers
