"""Planted bugs of reading and mending what has rotted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rmqha.store.integrity.incoming import IncomingRecords
from rmqha.store.integrity.repair import RecordRepair
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


ROT_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a delayed message is made of a rotten one (ruling 30)": lambda: patch.object(Reader, "sound_record", _unchecked),
    "slaves append what is rotten (ruling 30)": lambda: patch.object(IncomingRecords, "append", _all_of_it),
    "whatever a replica offers is written over rot (ruling 30)": lambda: patch.object(
        RecordRepair, "refusal", lambda self, *args: ""
    ),
    "a record's own checksum is not compared (ruling 30)": lambda: patch.object(
        record, "_tail_crc_holds", lambda buffer, at, size, properties_size: True
    ),
}
