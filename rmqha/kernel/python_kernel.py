"""The kernel in Python: the reference, the fallback, and the kernel of the simulation.

There is one pattern match per frame, one pack per record, and one format operation per answer. Functions are long and
call few others, because this is the cost of every send.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from rmqha.kernel.batch_kernel import (
    MAX_BATCH_COUNT,
    Checked,
    Collected,
    KeyedRecords,
    LogBlock,
    PartResult,
    PulledUnits,
    QueueRun,
    QueueSlot,
    Scanned,
    SendContext,
    SendPart,
    SendRead,
    SendResults,
    SendRules,
    SignedSend,
)
from rmqha.kernel.index_entries import PythonIndexKernel
from rmqha.kernel.key_hash import property_value
from rmqha.kernel.log_scan import scan
from rmqha.kernel.send_answer import Answer, json_answer, rocketmq_answer, store_host
from rmqha.kernel.send_header import Send, json_send, rocketmq_send
from rmqha.kernel.signed_sends import signed_sends
from rmqha.kernel.sound_records import collect, skip_sound
from rmqha.model.message import (
    MAX_REMEMBERED_TAGS_BYTES,
    PROPERTY_CRC32,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_V6,
    tags_code,
)
from rmqha.wire.frame import MAX_HEADER_BYTES

_words = struct.Struct(">iI").unpack_from
_unit = struct.Struct(">qiq").pack
"""Physical offset, size, tagsCode (formats.md §3)."""
_HEADS = {(born, stored): struct.Struct(f">iIIiiqqiq{born}siq{stored}siiqi") for born in (4, 16) for stored in (4, 16)}
"""Fields of a record before its body, by the bytes of its two addresses: totalSize, magic, bodyCRC, queueId, flag,
queueOffset, physicalOffset, sysFlag, bornTimestamp, bornHost, storeTimestamp, storeHost, reconsumeTimes,
preparedTransactionOffset, bodyLength (formats.md §2)."""
_PLAIN_FLAGS = SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_COMPRESSION_MASK
_JSON, _ROCKETMQ = 0, 1
_UNIQUE, _TAGS = (f"{name}\x01".encode() for name in (PROPERTY_UNIQUE_KEY, PROPERTY_TAGS))
_UNIQUE_INSIDE, _TAGS_INSIDE = b"\x02" + _UNIQUE, b"\x02" + _TAGS
_CRC32 = PROPERTY_CRC32.encode()
_part_head = struct.Struct(">i8xii").unpack_from
"""Head of a message in a batch: totalSize, flag, bodyLength (formats.md §12.4)."""
_PART_HEAD_BYTES, _LEAST_PART_BYTES = 20, 22
_LENGTH_BYTES = 2
"""Bytes of the length in front of a record's properties."""


Find = Callable[[bytes], object]


class _Run:
    """Entries of one queue of these reads."""

    __slots__ = ("next_offset", "queue_id", "slot", "units")

    def __init__(self, slot: QueueSlot, queue_id: int) -> None:
        self.slot = slot
        self.queue_id = queue_id
        self.next_offset = slot.next_offset
        self.units: list[bytes] = []


class _Batch:
    """Builder of `SendResults`: records, answers and entries of a read."""

    __slots__ = (
        "_answers",
        "_born",
        "_find_slot",
        "_find_special",
        "_fixed_bytes",
        "_id_form",
        "_keyed",
        "_make_entries",
        "_pack",
        "_phy_offset",
        "_pieces",
        "_room_end",
        "_rules",
        "_runs",
        "_stored_ms",
        "_v6_flags",
        "bounds",
        "message_counts",
        "parts",
        "tail_ends",
        "tail_starts",
        "topics",
    )

    def __init__(
        self, rules: SendRules, find_special: Find, context: SendContext, make_entries: Callable[[KeyedRecords], bytes]
    ) -> None:
        self._rules = rules
        self._find_special = find_special
        self._phy_offset, self._room_end, self._stored_ms, self._find_slot, is_keyed = context
        self._make_entries = make_entries
        self._keyed = KeyedRecords([], [], [], []) if is_keyed else None
        """All records, for the index."""
        self._id_form = store_host(rules) + b"%016X"
        self._runs: dict[tuple[bytes, bytes], _Run] = {}
        self._pieces: list[bytes] = []
        self.parts: list[PartResult] = []
        self.tail_starts: list[int] = []
        self.tail_ends: list[int] = []
        self.topics: list[str] = []
        self.message_counts: list[int] = []
        self.bounds = [self._phy_offset]

    def begin(self, part: SendPart) -> None:
        """Begin a part: all that is added from now on belongs to it."""
        rules = self._rules
        self._born = part.born_address, part.born_port, self._stored_ms, rules.store_address, rules.store_port
        """Values of each record from bornHost to storeHost."""
        born_bytes, store_bytes = len(part.born_address), len(rules.store_address)
        head = _HEADS[born_bytes, store_bytes]
        self._pack, self._fixed_bytes = head.pack, head.size + _LENGTH_BYTES
        self._v6_flags = SYS_FLAG_BORN_HOST_V6 if born_bytes == 16 else 0
        self._v6_flags |= SYS_FLAG_STORE_HOST_V6 if store_bytes == 16 else 0
        self._answers: list[bytes] = []

    def end(self, at: int) -> None:
        """End a part: all of its plain sends are added, and the last of them ends at index `at`."""
        self.parts.append(PartResult(len(self._answers), at, b"".join(self._answers)))

    def add(self, send: Send, body: bytes, answer: Answer) -> bool:
        """Make a record of a send, or those of a batch; False, and nothing has changed, if it is not plain."""
        (topic, queue_text, sys_text, born_text, flag_text, properties, reconsumed), opaque, is_batch = send
        rules, sys_flag, body_bytes = self._rules, int(sys_text), len(body)
        if sys_flag & ~_PLAIN_FLAGS or body_bytes > rules.max_body_bytes or self._find_special(properties):
            return False
        run = self._runs.get((topic, queue_text)) or self._new_run(topic, queue_text)
        if run is None:
            return False
        key = property_value(properties, _UNIQUE, _UNIQUE_INSIDE)
        if not key or b"\x01" in key:
            return False
        if is_batch:
            if len(properties) + len(rules.own_properties) > rules.max_properties_bytes:
                return False
            bounds = self._add_parts(run, body, sys_flag, int(born_text), int(reconsumed))
            if not bounds:
                return False
            ids = b",".join([self._id_form % phy_offset for phy_offset in bounds])
            self.message_counts.append(len(bounds))
            self._answers.append(answer(opaque, ids, queue_text, run.next_offset - len(bounds), key))
            return True
        tags = property_value(properties, _TAGS, _TAGS_INSIDE)
        if properties and properties[-1] != PROPERTY_SEPARATOR:
            properties += b"\x02"
        properties += rules.own_properties
        slot, properties_bytes, phy_offset = run.slot, len(properties), self._phy_offset
        size = self._fixed_bytes + body_bytes + len(slot.field) + properties_bytes
        end_offset = phy_offset + size
        if properties_bytes > rules.max_properties_bytes or end_offset > self._room_end:
            return False
        queue_offset = run.next_offset
        head = self._pack(
            size,
            slot.magic,
            crc32(body) & 0x7FFFFFFF,
            run.queue_id,
            int(flag_text),
            queue_offset,
            phy_offset,
            sys_flag | self._v6_flags,
            int(born_text),
            *self._born,
            int(reconsumed),
            0,
            body_bytes,
        )
        tail = properties_bytes.to_bytes(_LENGTH_BYTES, "big") + properties
        self._pieces += (head, body, slot.field, tail)
        self._answers.append(answer(opaque, self._id_form % phy_offset, queue_text, queue_offset, key))
        self.message_counts.append(1)
        run.units.append(_unit(phy_offset, size, _tags_code(tags) if tags else 0))
        run.next_offset = queue_offset + 1
        self._end_frame(slot.topic, end_offset, len(tail), end_offset)
        if self._keyed is not None:
            self._keyed.add(slot.topic, tail, phy_offset, self._stored_ms)
        return True

    def _end_frame(self, topic: str, first_end: int, tail_bytes: int, end_offset: int) -> None:
        """End a frame: all of its records are added; the first ends at `first_end`, with its tail."""
        tail_end = first_end - self.bounds[0]
        self.topics.append(topic)
        self.tail_starts.append(tail_end - tail_bytes)
        self.tail_ends.append(tail_end)
        self.bounds.append(end_offset)
        self._phy_offset = end_offset

    def _add_parts(self, run: _Run, body: bytes, sys_flag: int, born_ms: int, reconsumed: int) -> list[int]:
        """Make a record of each message of a batch (formats.md §12.4); returns their physical offsets, [] if the batch
        is not plain."""
        parts = _parts(body, self._rules.max_properties_bytes)
        slot, phy_offset = run.slot, self._phy_offset
        fixed_bytes = self._fixed_bytes + len(slot.field) - _LEAST_PART_BYTES
        if phy_offset + len(body) + len(parts) * fixed_bytes > self._room_end:
            return []
        starts, sys_flag, keyed = [], sys_flag | self._v6_flags, self._keyed
        for start, body_end, end, flag, tags in parts:
            content, tail = body[start:body_end], body[body_end:end]
            size = fixed_bytes + end - start + _PART_HEAD_BYTES
            head = self._pack(
                size,
                slot.magic,
                crc32(content) & 0x7FFFFFFF,
                run.queue_id,
                flag,
                run.next_offset,
                phy_offset,
                sys_flag,
                born_ms,
                *self._born,
                reconsumed,
                0,
                body_end - start,
            )
            self._pieces += (head, content, slot.field, tail)
            run.units.append(_unit(phy_offset, size, _tags_code(tags) if tags else 0))
            run.next_offset += 1
            if keyed is not None:
                keyed.add(slot.topic, tail, phy_offset, self._stored_ms)
            starts.append(phy_offset)
            phy_offset += size
        if starts:
            _, body_end, end, _, _ = parts[0]
            self._end_frame(slot.topic, [*starts, phy_offset][1], end - body_end, phy_offset)
        return starts

    def _new_run(self, topic: bytes, queue_text: bytes) -> _Run | None:
        queue_id = int(queue_text)
        if queue_text != b"%d" % queue_id:
            return None  # two texts of one number would be two runs of one queue
        slot = self._find_slot(topic, queue_id)
        if slot is None:
            return None
        run = self._runs[topic, queue_text] = _Run(slot, queue_id)
        return run

    def taken(self) -> SendResults:
        """Results of all parts that were added."""
        runs = [
            QueueRun(run.slot.topic, run.queue_id, run.slot.next_offset, len(run.units), b"".join(run.units))
            for run in self._runs.values()
            if run.units
        ]
        records = b"".join(self._pieces)
        entries = b"" if self._keyed is None else self._make_entries(self._keyed)
        return SendResults(
            self.parts,
            records,
            self.bounds,
            runs,
            entries,
            self.topics,
            self.tail_starts,
            self.tail_ends,
            self.message_counts,
        )


class _Prepared(NamedTuple):
    """Templates and patterns made from rules."""

    rules: SendRules
    json: Answer
    rocketmq: Answer
    find_special: Find
    """Function that finds a special text; one search for all is five times as fast as one for each."""


def _prepared(rules: SendRules) -> _Prepared:
    assert all(rules.special_texts), "no special text is empty, it would be in all properties"
    special = re.compile(b"|".join(map(re.escape, rules.special_texts)) or b"(?!)")
    return _Prepared(rules, json_answer(rules), rocketmq_answer(rules), special.search)


def _take(data: bytes, part: SendPart, batch: _Batch, prepared: _Prepared) -> int:
    """Add a part's plain sends to the batch; returns the index behind the last one."""
    rules, json, rocketmq, _ = prepared
    at, end, max_count, max_frame_bytes = part.start, part.end, part.max_count, rules.max_frame_bytes
    add, count = batch.add, 0
    while count < max_count and end - at >= 8:
        size, word = _words(data, at)
        header_bytes = word & 0xFFFFFF
        body_at, frame_end = at + 8 + header_bytes, at + 4 + size
        if frame_end > end or body_at > frame_end or size > max_frame_bytes or header_bytes > MAX_HEADER_BYTES:
            break
        codec = word >> 24
        if codec == _JSON:
            found, answer = json_send(data, at + 8, body_at), json
        elif codec == _ROCKETMQ:
            found, answer = rocketmq_send(data, at + 8, body_at), rocketmq
        else:
            break
        if found is None or not add(found, data[body_at:frame_end], answer):
            break
        at = frame_end
        count += 1
    return at


class PythonKernel(PythonIndexKernel):
    """Kernel in Python. Implements BatchKernel."""

    scans_in_bulk = False

    def __init__(self) -> None:
        super().__init__()
        self._prepared: _Prepared | None = None
        """Templates of the last rules: to find them by the rules' value would cost as much as a frame."""

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        """Take the plain sends at the front of each part of `read`."""
        prepared = self._prepared
        if prepared is None or prepared.rules is not rules:
            prepared = self._prepared = _prepared(rules)
        batch = _Batch(rules, prepared.find_special, context, self.index_entries)
        for part in read.parts:
            batch.begin(part)
            batch.end(_take(read.data, part, batch, prepared))
        return batch.taken()

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        """Find the signed sends at the front of what a connection has sent."""
        return signed_sends(data, max_count, nonce, proven)

    def scan(self, block: LogBlock) -> Scanned:
        """Find the plain records at the front of `block`."""
        return scan(block, _tags_code, self.index_entries)

    def skip_sound(self, view: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
        """Go past the records of the commonest form whose CRC holds."""
        return skip_sound(view, at, phy_offset, newest_ms)

    def collect(self, view: memoryview, start: int, pulled: PulledUnits) -> Collected:
        """Find the sound records that entries lead to."""
        return collect(view, start, pulled)


_Part = tuple[int, int, int, int, bytes | None]
"""A message in a batch: start and end of its body, end of the message, flag, TAGS."""


def _parts(body: bytes, max_properties_bytes: int) -> list[_Part]:
    """Messages of a batch; [] if it is not plain."""
    parts: list[_Part] = []
    at, end = 0, len(body)
    while at < end:
        if end - at < _LEAST_PART_BYTES or len(parts) == MAX_BATCH_COUNT:
            return []
        size, flag, body_bytes = _part_head(body, at)
        start = at + _PART_HEAD_BYTES
        body_end, stop = start + body_bytes, at + size
        if body_bytes < 0 or not body_end + _LENGTH_BYTES <= stop <= end:
            return []
        properties = body[body_end + _LENGTH_BYTES : stop]
        properties_bytes = len(properties)
        tags = property_value(properties, _TAGS, _TAGS_INSIDE)
        if (
            properties_bytes != (body[body_end] << 8) + body[body_end + 1]
            or properties_bytes > max_properties_bytes
            or b"\0" in properties
            or _CRC32 in properties
            or (tags is not None and not tags.isascii())
        ):
            return []
        parts.append((start, body_end, stop, flag, tags))
        at = stop
    return parts


def _tags_code(tags: bytes) -> int:
    return _short_tags_code(tags) if len(tags) <= MAX_REMEMBERED_TAGS_BYTES else tags_code(tags.decode())


@lru_cache(maxsize=4096)
def _short_tags_code(tags: bytes) -> int:
    return tags_code(tags.decode())
