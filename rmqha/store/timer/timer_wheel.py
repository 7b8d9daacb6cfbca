"""timerwheel: slots of 32 bytes, one for each time of two weeks (formats.md §11). Pure.

A slot names the first and the last unit of the timer log whose messages come at its time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqha.model.offset import Buffer
from rmqha.store.timer.timer_log import NO_POSITION, BadTimerLogError

PATH = "timerwheel"
SLOT_BYTES = 32
SLOT_COUNT = 2 * 7 * 86_400
WHEEL_BYTES = SLOT_COUNT * SLOT_BYTES
_SLOT = struct.Struct(">qqqii")
_STEP_BYTES = 4096
_ZEROS = bytes(_STEP_BYTES)


class WheelSlot(NamedTuple):
    """One time and the messages that come then. `time` counts in units of the precision."""

    time: int
    first_position: int
    last_position: int
    message_count: int
    magic: int = 0

    def encode(self) -> bytes:
        return _SLOT.pack(*self)

    @property
    def byte(self) -> int:
        """Position of the slot in the file."""
        return self.time % SLOT_COUNT * SLOT_BYTES


def is_wheel(name: str) -> bool:
    """True for the name of the wheel's file and of one of its snapshots."""
    head, dot, position = name.partition(".")
    return head == PATH and (not dot or position.isdecimal())


def slots(data: Buffer) -> Iterator[WheelSlot]:
    """Each slot that was ever used. Raises BadTimerLogError for what is no wheel, once those before are given."""
    if len(data) != WHEEL_BYTES:
        raise BadTimerLogError(min(len(data), WHEEL_BYTES), f"{WHEEL_BYTES} bytes", f"{len(data)}")
    for start in range(0, WHEEL_BYTES, _STEP_BYTES):
        step = data[start : start + _STEP_BYTES]
        if step == _ZEROS[: len(step)]:
            continue
        for index, found in enumerate(_SLOT.iter_unpack(step), start // SLOT_BYTES):
            slot = WheelSlot(*found)
            if any(slot):
                _check(slot, index)
                yield slot


def _check(slot: WheelSlot, index: int) -> None:
    at = index * SLOT_BYTES
    if slot.time < 0 or slot.time % SLOT_COUNT != index:
        raise BadTimerLogError(at, f"a time whose remainder by {SLOT_COUNT} is {index}", f"{slot.time}")
    if not NO_POSITION <= slot.first_position <= slot.last_position:
        found = f"{slot.first_position} and {slot.last_position}"
        raise BadTimerLogError(at + 8, "the positions of a first and a last unit", found)
