"""config/timercheck: how far the delivery of timer messages is (formats.md §11). Pure.

RocketMQ's 56 bytes, and behind them numbers of ours where its files hold zeros: without them a delivery that stopped
within a slot begins that slot again, and a start looks through the whole queue.

RocketMQ looks in its timer log for what waits below the queue offset of its bytes, and in the queue from there on. So
it is told of the first entry that waits, unless there is a timer log (ADR 14).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rmqha.broker.tables.config_table import DataVersion

PATH = "config/timercheck"
_THEIRS = struct.Struct(">4q3q")
_OURS = struct.Struct(">4q")
_OURS_MAGIC = 0x726D716861
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
    return _THEIRS.pack(progress.read_ms, 0, progress.taken_offset, progress.taken_offset, *stamp)


def encode_file(progress: TimerProgress, version: DataVersion, logged_offset: int | None = None) -> bytes:
    """`logged_offset`: what waits below it is in the timer log; None: there is none."""
    offset = progress.first_offset if logged_offset is None else logged_offset
    mark = _OURS_MAGIC ^ progress.read_ms ^ offset
    ours = _OURS.pack(mark, progress.next_offset, progress.taken_offset, progress.first_offset)
    return (encode(progress._replace(taken_offset=offset), version) + ours).ljust(_FILE_BYTES, b"\0")


def decode(data: bytes) -> TimerProgress:
    """Raises ValueError for what is no such file."""
    return _decode(data)[0]


def is_ours(data: bytes) -> bool:
    """True if no other program has written the file since ours did. Raises ValueError for what is no such file."""
    return _decode(data)[1]


def _decode(data: bytes) -> tuple[TimerProgress, bool]:
    if len(data) < _THEIRS.size:
        raise ValueError(f"it has {len(data)} bytes; {_THEIRS.size} are the least")
    read_ms, _, offset, master_offset, *_ = _THEIRS.unpack_from(data)
    if min(read_ms, offset, master_offset) < 0:
        raise ValueError(f"a time of {read_ms} and offsets of {offset} and {master_offset} cannot be")
    if len(data) >= _THEIRS.size + _OURS.size:
        mark, next_offset, taken_offset, first_offset = _OURS.unpack_from(data, _THEIRS.size)
        if mark == _OURS_MAGIC ^ read_ms ^ offset and 0 <= first_offset <= taken_offset and next_offset >= 0:
            return TimerProgress(read_ms, next_offset, taken_offset, first_offset), True
    return TimerProgress(read_ms, 0, min(offset, master_offset), 0), False
