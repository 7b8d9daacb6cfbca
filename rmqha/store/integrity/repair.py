"""Data plane: writing a replica's copy over a damaged record, once it has been proven to be that record.

What a peer sends is a claim. It is written only if it is sound in itself, was written under the same (epoch, start
offset), has the place and the size that this log has for it, and contradicts nothing that is still legible here.
"""

from __future__ import annotations

from enum import Enum
from threading import Lock
from typing import Protocol
from zlib import crc32

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import PhyOffset
from rmqha.store.integrity.record_starts import RecordStarts
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import BLANK, HEAD, MAGIC_BLANK, MIN_RECORD_BYTES, BadRecordError, decode, locate, verify
from rmqha.store.meta.failure import StoreFailure
from rmqha.store.queue.dispatch_service import bad_record


class Repair(Enum):
    """Outcome of an offered copy."""

    WRITTEN = "written"
    SAME = "the same bytes stand here"
    REFUSED = "refused"


def entry_of(epochs: EpochHistory, phy_offset: int) -> EpochEntry | None:
    """The epoch entry under which the byte at `phy_offset` was written; None if there is none."""
    return max((entry for entry in epochs if entry.start_offset <= phy_offset), default=None)


class Owner(Protocol):
    """The replica whose log it is; `Store` is one."""

    @property
    def dispatched_offset(self) -> PhyOffset: ...

    @property
    def epochs(self) -> EpochHistory: ...


class RecordRepair:
    """Repair of damaged records by copies from other replicas. `flush` is held by whoever syncs files."""

    def __init__(self, log: CommitLog, starts: RecordStarts, flush: Lock, failure: StoreFailure, owner: Owner) -> None:
        self._log = log
        self._starts = starts
        self._flush = flush
        self._failure = failure
        self._owner = owner

    def read(self, from_offset: int, to_offset: int) -> None:
        """Read [from, to) as a file, for a thread. Raises StoreError for what the disk cannot read."""
        with self._flush:
            self._log.probe(from_offset, to_offset)

    def check(self, phy_offset: int) -> None:
        """Check the record that begins at `phy_offset`, if one does. Raises DamagedError if it is not sound."""
        log = self._log
        if not log.min_offset <= phy_offset < log.end_offset or (size := self._starts.size_of(phy_offset)) is None:
            return
        view, file_start, end = log.file_view(phy_offset)
        at = phy_offset - file_start
        if len(view) - at >= BLANK.size and BLANK.unpack_from(view, at) == (len(view) - at, MAGIC_BLANK):
            return
        try:
            verify(view, at, end, phy_offset)
        except BadRecordError as error:
            raise bad_record(log, phy_offset, error, size) from None

    def end_of(self, phy_offset: int) -> int:
        """End of the sound record, or the blank one, that begins there."""
        view, file_start, _ = self._log.file_view(phy_offset)
        size: int = BLANK.unpack_from(view, phy_offset - file_start)[0]
        return phy_offset + size

    def offer(self, phy_offset: int, size_bytes: int, data: bytes, entry: EpochEntry | None) -> tuple[Repair, str]:
        """Write `data` over the record at `phy_offset`, or say why not. `size_bytes`: by its queue's entry, 0 if that
        is unknown; `entry`: of the peer's epoch history. It is durable after `sync`. Raises StoreError."""
        refusal = self.refusal(phy_offset, size_bytes, data, entry)
        if refusal:
            return Repair.REFUSED, refusal
        log = self._log
        file = log.files.find(phy_offset)
        assert file is not None and phy_offset + len(data) <= log.end_offset
        at = phy_offset - file.start_offset
        if bytes(file.region.view(at, len(data))) == data:
            return Repair.SAME, ""
        file.region.write(at, data)
        self._starts.forget(0)
        return Repair.WRITTEN, ""

    def sync(self, phy_offset: int) -> None:
        """Make the file that holds it durable; for a thread. Raises StoreError, after which nothing more is taken."""
        with self._flush, self._failure.remembered():
            file = self._log.files.find(phy_offset)
            if file is not None:
                file.sync()

    def refusal(self, phy_offset: int, size_bytes: int, data: bytes, entry: EpochEntry | None) -> str:
        """The reason why `data` is not the record that was written at `phy_offset`, "" if it is."""
        log = self._log
        if not log.min_offset <= phy_offset or phy_offset + len(data) > log.end_offset:
            return f"the log [{log.min_offset}, {log.end_offset}) has no room for {len(data)} bytes there"
        own = entry_of(self._owner.epochs, phy_offset)
        if own != entry:
            return f"it was written under {entry}, the one here under {own}"
        view, file_start, end = log.file_view(phy_offset)
        at = phy_offset - file_start
        if self._is_blank(data, len(view) - at):
            return (
                "" if self._owner.dispatched_offset <= phy_offset or not size_bytes else "a blank record is in no queue"
            )
        try:
            parts = verify(memoryview(data), 0, len(data), phy_offset)
            record = decode(memoryview(data))
        except BadRecordError as error:
            return f"it is not sound: {error}"
        if parts[0] != len(data) or (size_bytes and size_bytes != len(data)):
            return f"it has {len(data)} bytes, expected {size_bytes or parts[0]}"
        if at + len(data) > end:
            return f"it goes on behind the log's end {log.end_offset}"
        if phy_offset < self._owner.dispatched_offset:
            if not self._starts.has_entry(record) and not self._fits(view, at + len(data), end, file_start):
                return f"queue {record.queue_id} of {record.topic} has another record at {record.queue_offset}"
        elif not self._fits(view, at + len(data), end, file_start):
            return "no record follows where it ends"
        return _contradiction(view, at, phy_offset, data, parts[4], parts[5])

    @staticmethod
    def _is_blank(data: bytes, left_bytes: int) -> bool:
        return len(data) == BLANK.size and BLANK.unpack(data) == (left_bytes, MAGIC_BLANK)

    @staticmethod
    def _fits(view: memoryview, at: int, end: int, file_start: int) -> bool:
        """True if the log ends at `at`, or another record begins there."""
        if at == end:
            return True
        if len(view) - at >= BLANK.size and BLANK.unpack_from(view, at) == (len(view) - at, MAGIC_BLANK):
            return True
        try:
            locate(view, at, end, file_start + at)
        except BadRecordError:
            return False
        return True


def _contradiction(view: memoryview, at: int, phy_offset: int, data: bytes, body_at: int, body_bytes: int) -> str:
    """A sentence if the offered copy contradicts what is here. Where the head is legible, either its body's CRC or the
    body must be the offered one's: both differ where another message stood under the same epoch (a power loss that no
    epoch map can show)."""
    if len(view) - at < MIN_RECORD_BYTES:
        return ""
    size, magic, crc, _, _, _, physical, _, _ = HEAD.unpack_from(view, at)
    offered_size, offered_magic, offered_crc = HEAD.unpack_from(data)[:3]
    if (size, magic, physical) != (offered_size, offered_magic, phy_offset) or crc == offered_crc:
        return ""
    if crc32(view[at + body_at : at + body_at + body_bytes]) & 0x7FFFFFFF == offered_crc:
        return ""
    return f"its body has CRC {offered_crc}, that of the record here {crc}, and the bodies differ"
