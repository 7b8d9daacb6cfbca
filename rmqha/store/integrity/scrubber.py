"""Data plane: a walk over the whole log that checks every record, a piece at a time, again and again.

Rot in records that nobody reads would otherwise be met when the other copies have rotted too. What is found goes into
the store's `DamageTable`. Only what is committed, synced and in the queues is checked: there an entry proves that a
record begins. The walk begins anew with each start of the broker.
"""

from __future__ import annotations

import re
import struct
from typing import Protocol

from rmqha.kernel.sound_records import SkipSound, skip_sound
from rmqha.model.error import DamagedError, StoreError
from rmqha.model.offset import PhyOffset
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.integrity.repair import RecordRepair
from rmqha.store.log.record import BLANK, MAGIC_BLANK, MIN_RECORD_BYTES, BadRecordError, locate, verify
from rmqha.wire.state.replica_state import ScrubState

PIECE_BYTES = 1024 * 1024
"""Bytes read at once; they are checked in slices."""
SLICE_BYTES = 256 * 1024
"""A millisecond's work for records of some hundred bytes in Python, a tenth of it for the native kernel."""
MAX_SEARCH_BYTES = 8 * 1024 * 1024
"""Bytes behind a damaged record that are searched for the next one; then the walk goes on with the next file."""
_TO_FILE_END = 1 << 40
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_OWN_OFFSET = struct.Struct(">q")
_OWN_OFFSET_AT = 28


class ScrubbedLog(Protocol):
    """The part of a store that the scrubber needs; `Store` has it."""

    damage: DamageTable
    repair: RecordRepair

    @property
    def min_phy_offset(self) -> PhyOffset: ...

    @property
    def settled_offset(self) -> PhyOffset: ...

    def view(self, phy_offset: PhyOffset, limit_bytes: int) -> memoryview: ...


class Scrubber:
    """Walk over the log in pieces. For each piece call `next_piece`, then `read` in a thread, then `check` for all of
    it or for one slice after the other."""

    def __init__(self, log: ScrubbedLog, skip_sound: SkipSound = skip_sound) -> None:
        self._log = log
        self._skip_sound = skip_sound
        self.position = 0
        self.pass_count = 0
        self.checked_bytes = 0
        self.unreadable = ""
        """Place that the disk could not read in this pass or the last one."""
        self._unreadable_now = ""

    def next_piece(self, limit_bytes: int = PIECE_BYTES) -> tuple[int, int] | None:
        """The next piece to check, as physical offsets [start, end) inside one file; None if a pass has ended: the next
        pass begins with the next call."""
        log = self._log
        self.position = max(self.position, log.min_phy_offset)
        end = min(self.position + limit_bytes, log.settled_offset)
        if end <= self.position:
            if self.position > log.min_phy_offset:
                self.pass_count += 1
                self.unreadable, self._unreadable_now = self._unreadable_now, ""
            self.position = 0
            return None
        return self.position, min(end, self.position + len(log.view(PhyOffset(self.position), _TO_FILE_END)))

    def read(self, piece: tuple[int, int]) -> str:
        """Bring the piece into memory; for a thread, since a read through the mapping would stop the event loop, and
        end the process at a bad sector. Returns the disk's error as a sentence, "" without one."""
        try:
            self._log.repair.read(*piece)
        except StoreError as error:
            return str(error)
        return ""

    def check(self, piece: tuple[int, int], trouble: str) -> None:
        """Check the records that begin in the piece; `trouble` is what `read` returned."""
        start, end = piece
        log = self._log
        if start != self.position or start < log.min_phy_offset or end > log.settled_offset:
            return  # the log was cut or trimmed meanwhile
        if trouble:
            self.unreadable = self._unreadable_now = trouble
            self.position += len(log.view(PhyOffset(start), _TO_FILE_END))
            return
        while self.position < end:
            self._step(end)
        self.checked_bytes += self.position - start

    def _step(self, end: int) -> None:
        position = self.position
        view = self._log.view(PhyOffset(position), _TO_FILE_END)
        at, _ = self._skip_sound(view[: max(0, end - position)], 0, position, 0)
        left = len(view) - at
        if left < BLANK.size or BLANK.unpack_from(view, at) == (left, MAGIC_BLANK):
            self.position = position + len(view)
            return
        if position + at >= end:
            self.position = position + at
            return
        try:
            at += verify(view, at, len(view), position + at)[0]
        except BadRecordError:
            try:
                self._log.repair.check(position + at)
            except DamagedError as error:
                self._log.damage.found(error)
            at = _after(view, at, position)
        self.position = position + at

    def state(self) -> ScrubState:
        return ScrubState(
            position=self.position,
            pass_count=self.pass_count,
            checked_bytes=self.checked_bytes,
            unreadable=self.unreadable,
        )


def _after(view: memoryview, at: int, position: int) -> int:
    """Index at which the record behind the damaged one at `at` begins; that of the file's end if none is found.
    `position`: that of index 0."""
    size: int = BLANK.unpack_from(view, at)[0]
    if size >= MIN_RECORD_BYTES and _begins(view, at + size, position):
        return at + size
    stop = min(len(view), at + MAX_SEARCH_BYTES)
    for hit in _MAGIC.finditer(view[:stop], at + 8):
        if _begins(view, hit.start() - 4, position):
            return hit.start() - 4
    return len(view)


def _begins(view: memoryview, at: int, position: int) -> bool:
    if at == len(view):
        return True
    if len(view) - at < _OWN_OFFSET_AT + _OWN_OFFSET.size or _OWN_OFFSET.unpack_from(view, at + _OWN_OFFSET_AT) != (
        position + at,
    ):
        return False
    try:
        locate(view, at, len(view), position + at)
    except BadRecordError:
        return False
    return True
