"""The widths of RocketMQ's timer slots (`timerPrecisionMs`) with which the messages were stored that wait. Pure.

Ours notes them in config/timercheck, behind the numbers that say how far delivery is: RocketMQ maps the file and
changes its first 56 bytes only. A wheel of RocketMQ's says them by the times of its slots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from rmqha.store.timer.timer_wheel import WheelSlot

WIDTHS_MS = (1000, 500, 200, 100)
"""The values of RocketMQ; each slot lies within one of the widest."""
MAX_WIDTH_MS = WIDTHS_MS[0]
NOTE_AT = 96
"""Byte of config/timercheck at which the note begins."""
_NOTE = struct.Struct(">4q")
_MAGIC = 0x726D7157 << 32
_MAX_MS = 1 << 31
_LEAST_AGREEMENT = 5
"""A wheel holds times of two weeks: a width is its own if the time that it makes of a slot differs from the time of the
store by less than a fifth of that."""


def slot_width_ms(precision_ms: int) -> int:
    """Width of a slot of RocketMQ's wheel with that `timerPrecisionMs`: the next lower one that it has."""
    for width_ms in WIDTHS_MS:
        if width_ms <= precision_ms:
            return width_ms
    return WIDTHS_MS[-1]


class TimerWidths(NamedTuple):
    """Widths of the slots. `width_ms` is that of the broker that wrote this. Entries of the timer topic's queue below
    `before_end` may have been stored with another one, the last of which was `before_ms`; 0: none."""

    width_ms: int
    before_ms: int = 0
    before_end: int = 0

    def changed(self, width_ms: int, first_offset: int, end_offset: int) -> TimerWidths:
        """The widths if `width_ms` counts from now on. Entries from `first_offset` to `end_offset` wait."""
        kept = self.settled(first_offset)
        if width_ms == kept.width_ms or first_offset >= end_offset:
            return kept._replace(width_ms=width_ms)
        return TimerWidths(width_ms, kept.width_ms, end_offset)

    @property
    def sentence(self) -> str:
        """A sentence on a change while messages waited, "" if there was none."""
        if not self.before_ms:
            return ""
        return (
            f"messages that wait below entry {self.before_end} of the timer queue were stored with"
            f" timerPrecisionMs={self.before_ms}, now it is {self.width_ms}"
        )

    def settled(self, first_offset: int) -> TimerWidths:
        """The widths once no entry below `first_offset` waits."""
        return self if self.before_end > first_offset else TimerWidths(self.width_ms)


def encode(widths: TimerWidths) -> bytes:
    return _NOTE.pack(_mark(widths), *widths)


def decode(data: bytes) -> TimerWidths | None:
    """The note in the content of config/timercheck; None if there is none."""
    if len(data) < NOTE_AT + _NOTE.size:
        return None
    mark, *numbers = _NOTE.unpack_from(data, NOTE_AT)
    widths = TimerWidths(*numbers)
    is_sound = mark == _mark(widths) and 0 < widths.width_ms < _MAX_MS and 0 <= widths.before_ms < _MAX_MS
    return widths if is_sound and widths.before_end >= 0 else None


def _mark(widths: TimerWidths) -> int:
    return _MAGIC | crc32(struct.pack(">3q", *widths))


class WheelWidth(NamedTuple):
    """Width of most slots of a wheel, and the byte and width of the first one that has another and is not delivered;
    None: there is none."""

    width_ms: int
    other: tuple[int, int] | None


def wheel_width(slots: Iterable[WheelSlot], read_ms: int) -> WheelWidth | None:
    """Width of the wheel's slots; None if no slot says it. `read_ms`: time up to which messages are delivered, or that
    of the store's last record, which are near those of the wheel. Raises what `slots` raises."""
    counts: dict[int, int] = {}
    first_at: dict[int, int] = {}
    for slot in slots:
        width_ms = min(WIDTHS_MS, key=lambda width: abs(slot.time * width - read_ms))
        if slot.time and abs(slot.time * width_ms - read_ms) * _LEAST_AGREEMENT < read_ms:
            counts[width_ms] = counts.get(width_ms, 0) + 1
            if slot.time * width_ms >= read_ms:
                first_at.setdefault(width_ms, slot.byte)
    if not counts:
        return None
    most = max(counts, key=lambda width: counts[width])
    others = [(at, width) for width, at in first_at.items() if width != most]
    return WheelWidth(most, min(others) if others else None)
