"""The state of timer messages by the files of a store: how far they are delivered, and the files of Apache's broker."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.error import StoreError
from rmqha.port import ReadDisk
from rmqha.store.log.mapped_file import NAME_DIGITS
from rmqha.store.timer import timer_log, timer_wheel, timer_width
from rmqha.store.timer.timer_log import BadTimerLogError

LIMIT_BYTES = 1 << 30
"""Most bytes that are read of one file."""


@dataclass(frozen=True, slots=True)
class TimerInspection:
    """State of a store's timer messages. `read_ms`: messages due before this wall time are delivered; `queue_offset`:
    entries of the timer topic's queue from there on wait, whatever the timer log says. Both are 0 if no file tells
    them. `unit_count`: units of the timer log; `waiting_count`: units that are due at `read_ms` or later; `slot_count`:
    slots of the wheel that were used."""

    read_ms: int
    queue_offset: int
    unit_count: int
    waiting_count: int
    slot_count: int
    problem: str
    """A sentence on the first file with bytes that do not belong there, with the place; "" if none has."""
    change: str
    """A change of timerPrecisionMs while messages waited, with the place; "" if there was none."""


def inspect_timers(disk: ReadDisk) -> TimerInspection | None:
    """State of the timer messages of the store on `disk`; None if no message has ever waited there. Raises StoreError
    for a file that cannot be read."""
    names = sorted(disk.list(timer_log.DIRECTORY)) if disk.is_directory(timer_log.DIRECTORY) else []
    has_check, has_wheel = disk.exists(timer_log.CHECK_PATH), disk.exists(timer_wheel.PATH)
    if not (has_check or has_wheel or names):
        return None
    inspection = _Inspection(disk)
    if has_check:
        inspection.check()
    for name in names:
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
            inspection.log(f"{timer_log.DIRECTORY}/{name}", int(name))
    if has_wheel:
        inspection.wheel()
    return inspection.found()


class _Inspection:
    def __init__(self, disk: ReadDisk) -> None:
        self._disk = disk
        self._read_ms = self._queue_offset = 0
        self._unit_count = self._waiting_count = self._slot_count = 0
        self._problem = self._change = ""

    def found(self) -> TimerInspection:
        counts = self._unit_count, self._waiting_count, self._slot_count
        return TimerInspection(self._read_ms, self._queue_offset, *counts, self._problem, self._change)

    def check(self) -> None:
        path = timer_log.CHECK_PATH
        try:
            data = self._data(path)
            self._read_ms, _, offset, master_offset, *_ = timer_log.check_numbers(data)
            self._queue_offset = min(offset, master_offset)
            widths = timer_width.decode(data)
            if widths is not None and widths.sentence:
                self._change = f"{path} at byte {timer_width.NOTE_AT}: {widths.sentence}"
        except BadTimerLogError as error:
            self._bad(path, error)

    def log(self, path: str, start: int) -> None:
        try:
            for _, unit in timer_log.units(self._data(path), start):
                self._unit_count += 1
                self._waiting_count += unit.slot_ms >= self._read_ms
        except BadTimerLogError as error:
            self._bad(path, error)

    def wheel(self) -> None:
        try:
            for _ in timer_wheel.slots(self._data(timer_wheel.PATH)):
                self._slot_count += 1
        except BadTimerLogError as error:
            self._bad(timer_wheel.PATH, error)

    def _data(self, path: str) -> bytes:
        try:
            return self._disk.read(path, LIMIT_BYTES)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}; check the disk") from None

    def _bad(self, path: str, error: BadTimerLogError) -> None:
        self._problem = self._problem or f"{path} at {error}"
