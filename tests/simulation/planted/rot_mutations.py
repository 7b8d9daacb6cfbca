"""Planted bugs of reading and mending what has rotted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rmqha.broker.replication.read_repair import ReadRepair
from rmqha.broker.tables.metadata_follower import AsyncPort
from rmqha.model.epoch import EpochEntry
from rmqha.store.integrity import scrubber
from rmqha.store.integrity.damage import DamagedRecord
from rmqha.store.integrity.incoming import IncomingRecords
from rmqha.store.integrity.repair import RecordRepair, Repair
from rmqha.store.log import record
from rmqha.store.log.record import Record, decode
from rmqha.store.reader import IsWhole, Reader, Unit, any_record


def _unchecked(
    self: Reader, topic: str, queue_id: int, queue_offset: int, unit: Unit, is_whole: IsWhole = any_record
) -> Record:
    view, file_start, _ = self._file_view(unit[0])
    return decode(view[unit[0] - file_start :][: unit[1]])


def _all_of_it(self: IncomingRecords, data: Any) -> str:
    self._log.append_raw(data)
    return ""


def _half_of_it(
    self: RecordRepair, phy_offset: int, size_bytes: int, data: bytes, entry: EpochEntry | None
) -> tuple[Repair, str]:
    """The rest of the record stays as it is."""
    file = self._log.files.find(phy_offset)
    rest = b"" if file is None else bytes(file.region.view(phy_offset - file.start_offset, len(data)))[MENDED_BYTES:]
    outcome, reason = REAL_OFFER(self, phy_offset, size_bytes, data, entry)
    if outcome is Repair.WRITTEN and file is not None:
        file.region.write(phy_offset - file.start_offset + MENDED_BYTES, rest)
    return outcome, reason


async def _asks_nobody(self: ReadRepair, port: AsyncPort, damaged: DamagedRecord) -> bool:
    return False


REAL_OFFER = RecordRepair.offer
MENDED_BYTES = 200

ROT_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a delayed message is made of a rotten one (ruling 30)": lambda: patch.object(Reader, "sound_record", _unchecked),
    "slaves append what is rotten (ruling 30)": lambda: patch.object(IncomingRecords, "append", _all_of_it),
    "whatever a replica offers is written over rot (ruling 30)": lambda: patch.object(
        RecordRepair, "refusal", lambda self, *args: ""
    ),
    "a record's own checksum is not compared (ruling 30)": lambda: patch.object(
        record, "_tail_crc_holds", lambda buffer, at, size, properties_size: True
    ),
    "the scrubber looks at heads alone": lambda: patch.object(scrubber, "verify", record.locate),
    "half of a damaged record is mended": lambda: patch.object(RecordRepair, "offer", _half_of_it),
    "what is damaged is asked of nobody": lambda: patch.object(ReadRepair, "_repair_record", _asks_nobody),
}
