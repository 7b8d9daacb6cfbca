"""config/timercheck: how far the delivery of timer messages is (formats.md §11). Pure.

RocketMQ's 56 bytes, and behind them numbers of ours where its files hold zeros: without them a delivery that stopped
within a slot begins that slot again, and a start looks through the whole queue. The read time in its bytes begins a
slot of its wheel, ours may lie within one: RocketMQ goes on in steps of a whole slot from the time that it is given,
and has not delivered the slot in which that time lies. How wide its slots are is not known for certain, so that of the
widest is taken, in both directions.

RocketMQ looks in its timer log for what waits below the queue offset of its bytes, and in the queue from there on. So
it is told of the first entry that waits, unless there is a timer log (ADR 14).

Last comes a note of ours: with which `timerPrecisionMs` the messages were stored (`rmqha.store.timer.timer_width`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from rmqha.broker.tables.config_table import DataVersion
from rmqha.store.timer import timer_width
from rmqha.store.timer.timer_width import MAX_WIDTH_MS, TimerWidths

PATH = "config/timercheck"
_THEIRS = struct.Struct(">4q3q")
_OURS = struct.Struct(">5q")
_OURS_MAGIC = 0x726D7132 << 32
_FILE_BYTES = 4096


class TimerProgress(NamedTuple):
    """Delivered is each entry of the timer topic's queue below `taken_offset` whose (slot, offset) lies below
    (`read_ms`, `next_offset`). Entries from `taken_offset` on all wait, whatever their time."""

    read_ms: int = 0
    next_offset: int = 0
    taken_offset: int = 0
    first_offset: int = 0
    """No entry below it waits."""

    @property
    def front(self) -> tuple[int, int]:
        """(slot, offset) of the first entry that is not delivered."""
        return self.read_ms, self.next_offset

    def is_behind(self, other: TimerProgress) -> bool:
        """True if something that `other` calls delivered is not."""
        return self.front < other.front or self.taken_offset < other.taken_offset


def encode(progress: TimerProgress, version: DataVersion) -> bytes:
    """The 56 bytes that RocketMQ has, in its file and in the answer to request 60."""
    stamp = version.state_version, version.timestamp, version.counter
    read_ms = progress.read_ms // MAX_WIDTH_MS * MAX_WIDTH_MS
    return _THEIRS.pack(read_ms, 0, progress.taken_offset, progress.taken_offset, *stamp)


def encode_file(
    progress: TimerProgress, version: DataVersion, logged_offset: int | None = None, widths: TimerWidths | None = None
) -> bytes:
    """`logged_offset`: what waits below it is in the timer log; None: there is none."""
    offset = progress.first_offset if logged_offset is None else logged_offset
    theirs = encode(progress._replace(taken_offset=offset), version)
    ours = theirs + _OURS.pack(_mark(theirs, progress), *progress)
    note = b"" if widths is None else timer_width.encode(widths)
    return (ours.ljust(timer_width.NOTE_AT, b"\0") + note).ljust(_FILE_BYTES, b"\0")


def decode(data: bytes) -> TimerProgress:
    """Raises ValueError for what is no such file."""
    if len(data) < _THEIRS.size:
        raise ValueError(f"it has {len(data)} bytes; {_THEIRS.size} are the least")
    read_ms, _, offset, master_offset, *_ = _THEIRS.unpack_from(data)
    if min(read_ms, offset, master_offset) < 0:
        raise ValueError(f"a time of {read_ms} and offsets of {offset} and {master_offset} cannot be")
    return _ours(data) or TimerProgress(read_ms // MAX_WIDTH_MS * MAX_WIDTH_MS, 0, min(offset, master_offset), 0)


def is_ours(data: bytes) -> bool:
    """True if no other program has written the file since ours did."""
    return _ours(data) is not None


def _ours(data: bytes) -> TimerProgress | None:
    if len(data) < _THEIRS.size + _OURS.size:
        return None
    mark, *numbers = _OURS.unpack_from(data, _THEIRS.size)
    progress = TimerProgress(*numbers)
    is_sound = min(numbers) >= 0 and progress.first_offset <= progress.taken_offset
    return progress if is_sound and mark == _mark(data, progress) else None


def _mark(theirs: bytes, progress: TimerProgress) -> int:
    """A check of our numbers and of RocketMQ's read time and offset."""
    return _OURS_MAGIC | crc32(theirs[:8] + theirs[16:24] + _OURS.pack(0, *progress))
