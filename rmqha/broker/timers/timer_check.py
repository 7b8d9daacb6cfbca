"""config/timercheck: progress of the delivery of timer messages (formats.md §11). Pure.

The file has RocketMQ's 56 bytes, then numbers of rmqha where RocketMQ writes zeros. Without those, a delivery that
stopped within a slot begins that slot again, and a start scans the whole queue. RocketMQ's read time is the begin of a
slot, rmqha's may be within one. RocketMQ goes on in steps of a whole slot, and has not delivered the slot of its read
time. The width of its slots is not known for certain, so the widest is assumed, in both directions.

RocketMQ reads waiting messages below its queue offset from its timer log, later ones from the queue. So its bytes have
the first waiting entry unless there is a timer log (ADR 14).

The last number is the `timerPrecisionMs` of the stored messages (`rmqha.store.timer.timer_width`).
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
    """Entries of the timer queue below `taken_offset` are delivered if their (slot, offset) is below (`read_ms`,
    `next_offset`). All entries from `taken_offset` on wait, whatever their time."""

    read_ms: int = 0
    next_offset: int = 0
    taken_offset: int = 0
    first_offset: int = 0
    """Lower bound of all waiting entries."""

    @property
    def front(self) -> tuple[int, int]:
        """(slot, offset) of the first entry that is not delivered."""
        return self.read_ms, self.next_offset

    def is_behind(self, other: TimerProgress) -> bool:
        """True if an entry that is delivered in `other` waits here."""
        return self.front < other.front or self.taken_offset < other.taken_offset


def encode(progress: TimerProgress, version: DataVersion) -> bytes:
    """RocketMQ's 56 bytes, in its file and in the answer to request 60."""
    stamp = version.state_version, version.timestamp, version.counter
    read_ms = progress.read_ms // MAX_WIDTH_MS * MAX_WIDTH_MS
    return _THEIRS.pack(read_ms, 0, progress.taken_offset, progress.taken_offset, *stamp)


def encode_file(
    progress: TimerProgress, version: DataVersion, logged_offset: int | None = None, widths: TimerWidths | None = None
) -> bytes:
    """Bytes of the file. `logged_offset`: end of the timer log's part of the queue; None without a timer log."""
    offset = progress.first_offset if logged_offset is None else logged_offset
    theirs = encode(progress._replace(taken_offset=offset), version)
    ours = theirs + _OURS.pack(_mark(theirs, progress), *progress)
    note = b"" if widths is None else timer_width.encode(widths)
    return (ours.ljust(timer_width.NOTE_AT, b"\0") + note).ljust(_FILE_BYTES, b"\0")


def decode(data: bytes) -> TimerProgress:
    """Progress in a file. Raises ValueError for a malformed one."""
    if len(data) < _THEIRS.size:
        raise ValueError(f"it has {len(data)} bytes; {_THEIRS.size} are the least")
    read_ms, _, offset, master_offset, *_ = _THEIRS.unpack_from(data)
    if min(read_ms, offset, master_offset) < 0:
        raise ValueError(f"a time of {read_ms} and offsets of {offset} and {master_offset} cannot be")
    return _ours(data) or TimerProgress(read_ms // MAX_WIDTH_MS * MAX_WIDTH_MS, 0, min(offset, master_offset), 0)


def is_ours(data: bytes) -> bool:
    """True if no other program has written the file since rmqha."""
    return _ours(data) is not None


def _ours(data: bytes) -> TimerProgress | None:
    if len(data) < _THEIRS.size + _OURS.size:
        return None
    mark, *numbers = _OURS.unpack_from(data, _THEIRS.size)
    progress = TimerProgress(*numbers)
    is_sound = min(numbers) >= 0 and progress.first_offset <= progress.taken_offset
    return progress if is_sound and mark == _mark(data, progress) else None


def _mark(theirs: bytes, progress: TimerProgress) -> int:
    """Checksum of rmqha's numbers and of RocketMQ's read time and offset."""
    return _OURS_MAGIC | crc32(theirs[:8] + theirs[16:24] + _OURS.pack(0, *progress))
