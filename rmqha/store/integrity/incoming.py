"""Data plane: a master's bytes on their way into a slave's log. Each record is checked before it is appended.

Bytes come cut anywhere. What begins in a piece and ends in a later one is appended as it comes, for acknowledgements go
on meanwhile, and is checked when its end is there: nobody acknowledges, commits or dispatches half a record. One that
is bad then is cut off again.
"""

from __future__ import annotations

from typing import Protocol

from rmqha.kernel.sound_records import SkipSound, skip_sound
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.commit_log import DIRECTORY, CommitLog
from rmqha.store.log.record import (
    BLANK,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MIN_RECORD_BYTES,
    SYS_BORN_V6,
    SYS_STORE_V6,
    BadRecordError,
    verify,
)
from rmqha.store.meta.problem import disk_errors

_BODY_SIZE = BLANK.size // 2
MAX_TAIL_BYTES = 2 * (2 + MAX_PROPERTIES_BYTES)
"""Topic and properties with their lengths: a size field that is off by more is told before its end has come."""


class ReceivingReplica(Protocol):
    """The replica whose log it is; `Store` is one."""

    @property
    def record_end_offset(self) -> PhyOffset: ...

    def truncate(self, end_offset: PhyOffset) -> None: ...


class IncomingRecords:
    """Checks of records that a slave receives. `damage` is told of what is not sound."""

    def __init__(
        self, log: CommitLog, slave: ReceivingReplica, damage: DamageTable, skip_sound: SkipSound = skip_sound
    ) -> None:
        self._log = log
        self._slave = slave
        self._damage = damage
        self._skip_sound = skip_sound
        self._checked = 0
        """Start of the record that is under way; all below it that came here is sound."""
        self._end = -1
        """End of the log when that was true; another end means that somebody else has changed it."""

    def append(self, data: Buffer) -> str:
        """Append `data` up to the first record that is not sound, and say what is wrong with that one; "" if all was
        appended. Raises StoreError."""
        fault = self._append(data)
        self._damage.incoming(self._log.end_offset, fault)
        return fault

    def _append(self, data: Buffer) -> str:
        log, view, start = self._log, memoryview(data), self._log.end_offset
        checked = self._checked if self._end == start else self._slave.record_end_offset
        at, fault = 0, ""
        if checked < start:
            at, fault = self._complete(view, checked)
            if fault:
                self._slave.truncate(PhyOffset(checked))
                return fault
        if at >= 0:
            at, fault = self._scan(view, at, start)
            checked = start + at
        with disk_errors(log.disk, DIRECTORY, "append"):
            log.append_raw(view[:at] if fault else view)
        self._checked, self._end = checked, log.end_offset
        return fault

    def _complete(self, view: memoryview, checked: int) -> tuple[int, str]:
        """(index at which the record that is under way ends, fault); −1 if it does not end in `view`."""
        log = self._log
        begun, file_start, end = log.file_view(checked)
        first, have = checked - file_start, end - (checked - file_start)
        head = bytes(begun[first:end][:MIN_RECORD_BYTES]) + bytes(view[: max(0, MIN_RECORD_BYTES - have)])
        if len(head) < BLANK.size:
            return -1, ""
        size, magic = BLANK.unpack_from(head)
        if magic != MAGIC_BLANK:
            try:
                _check_head(memoryview(head), 0, checked, len(begun) - first)
            except BadRecordError as error:
                return 0, self._sentence(checked, error)
        elif size != len(begun) - first:
            return 0, self._sentence(
                checked, BadRecordError(f"expected a blank record to its file's end, found {size}")
            )
        if size > have + len(view):
            return -1, ""
        if magic == MAGIC_BLANK:
            return size - have, ""
        whole = memoryview(bytes(begun[first:end]) + bytes(view[: size - have]))
        try:
            verify(whole, 0, size, checked)
        except BadRecordError as error:
            return 0, self._sentence(checked, error)
        return size - have, ""

    def _scan(self, view: memoryview, at: int, start: int) -> tuple[int, str]:
        """(index of the first record from `at` on that does not end in `view` or is not sound, fault). Index 0 stands
        at `start` in the log."""
        end = len(view)
        while True:
            at, _ = self._skip_sound(view, at, start, 0)
            if end - at < BLANK.size:
                return at, ""
            position = start + at
            left = self._log.file_size_bytes - (position - self._log.file_start(position))
            size, magic = BLANK.unpack_from(view, at)
            if magic == MAGIC_BLANK and size == left:
                if size > end - at:
                    return at, ""
                at += size
                continue
            try:
                _check_head(view, at, position, left)
                if size > end - at:
                    return at, ""
                verify(view, at, min(end, at + left), position)
            except BadRecordError as error:
                return at, self._sentence(position, error)
            at += size

    def _sentence(self, position: int, error: BadRecordError) -> str:
        return f"the record at {position} that the master sent is not sound: {error}"


def _check_head(view: memoryview, at: int, position: int, left_bytes: int) -> None:
    """Check a record's head as far as it is there: its size must be one that its parts can make. Raises
    BadRecordError."""
    size, magic = BLANK.unpack_from(view, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecordError(f"expected magic 0x{MAGIC_V1:X} or 0x{MAGIC_V2:X}, found 0x{magic:X}")
    if not MIN_RECORD_BYTES <= size <= left_bytes:
        raise BadRecordError(f"expected a totalSize of {MIN_RECORD_BYTES} to {left_bytes}, found {size}")
    if len(view) - at < HEAD.size:
        return
    _, _, _, _, _, _, physical, sys_flag, _ = HEAD.unpack_from(view, at)
    if physical != position:
        raise BadRecordError(f"expected physicalOffset {position}, found {physical}")
    body_at = 88 + (12 if sys_flag & SYS_BORN_V6 else 0) + (12 if sys_flag & SYS_STORE_V6 else 0)
    if len(view) - at < body_at:
        return
    body_bytes = int.from_bytes(view[at + body_at - _BODY_SIZE : at + body_at], "big", signed=True)
    if body_bytes < 0 or not 4 <= size - body_at - body_bytes <= MAX_TAIL_BYTES:
        raise BadRecordError(f"expected a bodyLength that fits totalSize {size}, found {body_bytes}")
