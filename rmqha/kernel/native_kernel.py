"""The kernel in native code: a shared library with a C ABI (`native/src/border.rs`), called through ctypes.

All memory is allocated by Python and kept from call to call; the library has no state. A read takes two calls: the
first finds the sends and their queues, the second makes records, with the results of `SendContext.slot`. All steps here
are per read or per queue, except for the few lists of `SendResults`, which are per frame.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Final

from rmqha.kernel.batch_kernel import (
    NEW_ENTRY,
    Checked,
    Collected,
    IndexFront,
    KeyedRecords,
    LogBlock,
    PartResult,
    PlacedEntries,
    PulledUnits,
    QueueRun,
    Scanned,
    SendContext,
    SendPart,
    SendRead,
    SendResults,
    SendRules,
    SignedSend,
)
from rmqha.kernel.send_answer import json_literals, rocketmq_literals, store_host
from rmqha.wire.auth.session_signature import session_front

ABI_VERSION: Final = 12
_FULL: Final = -1
_FAULTS = {-2: "refuses what it was given", -3: "has a bug and has printed where"}
_NUMBERS = struct.Struct(">qqqi")
_SIZE = struct.Struct(">I")
_CONTEXT = struct.Struct("=qqqqQQ")
"""Physical offset, end of the room, store timestamp, 1 for entries of the index, address of the parts, number of
parts."""
_PART = struct.Struct("=QQQqQ16s")
"""Front of a `Part`: where it begins and ends, frames at most, born port, bytes of the born address, it."""
_PART_TAKEN = struct.Struct("=QQQ")
"""The end of a `Part`: number of frames, index behind the last, and behind its last answer."""
_PART_TAKEN_AT = _PART.size + 8
_PART_BYTES = _PART_TAKEN_AT + _PART_TAKEN.size
_FOUND = struct.Struct("=QQQQ")
"""Number of records, bytes of the records, of the answers, of entries of the index."""
_TOPIC = struct.Struct("=QQqQ")
"""Front of a `Queue`: where its topic is in the read, queue id, number of entries."""
_SLOT = struct.Struct("=qqqQQ16x")
"""The rest of a `Queue`: 1 if it is known, magic number, next offset, place of its field among all fields."""
_QUEUE_BYTES = _TOPIC.size + _SLOT.size
_UNIT_BYTES, _WORD_BYTES = 20, 4
_ROW_COUNT, _PART_COUNT, _BYTE_COUNT = 64, 8, 1 << 16
"""Least sizes of the memory: for the frames of a slice, and for the records of a usual read."""
_KEPT_BYTES, _KEPT_COUNT = 1 << 20, 1 << 14
"""Most memory that is kept, for records and for lists of them; a larger one is freed after the read that needed it."""
_LEAST_FRAME_BYTES = 100
_LEAST_RECORD_BYTES = 91
_SIGNED = struct.Struct("=QqQQQQQQqQQ")
"""`Signed` of signed.rs: end, code, where topic, access key and signature are, count, end of the message, bytes of body
and values."""
_LITERAL_COUNT = 7
_LIST_COUNT = 9
_TAIL_STARTS, _TAIL_ENDS, _SEND_ENDS, _SEND_PLACES, _COUNTS, _ENDS, _, _, _STORED = range(_LIST_COUNT)
"""Lists of a call, with a place for each send: where the tail of its first record starts and ends, its end, queue and
number of records; with one for each record: its end, queue, tagsCode and store timestamp."""


class _Sends(ctypes.Structure):
    """Layout of `Sends` of border.rs."""

    _fields_ = (
        ("rules", ctypes.c_char_p),
        ("rules_bytes", ctypes.c_size_t),
        ("rows", ctypes.c_void_p),
        ("queues", ctypes.c_void_p),
        ("lists", ctypes.c_void_p),
        ("units", ctypes.c_void_p),
        ("row_limit", ctypes.c_size_t),
        ("record_limit", ctypes.c_size_t),
        ("records", ctypes.c_void_p),
        ("answers", ctypes.c_void_p),
        ("entries", ctypes.c_void_p),
        ("byte_limit", ctypes.c_size_t),
        ("context", ctypes.c_char * _CONTEXT.size),
        ("row_count", ctypes.c_size_t),
        ("queue_count", ctypes.c_size_t),
        ("record_count", ctypes.c_size_t),
        ("found", ctypes.c_char * _FOUND.size),
    )


class _Collect(ctypes.Structure):
    """Layout of `Collect` of border.rs."""

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        *("start", "queue_id", "offset", "max_count", "max_bytes", "disk_end", "disk_max_count", "disk_max_bytes"),
        *("takes_all", "unit_count", "size_bytes", "is_full", "record_count"),
    ))  # fmt: skip


_PULL = struct.Struct("=9q")
_COLLECTED = struct.Struct("=4q")


class _Place(ctypes.Structure):
    """Layout of `Place` of border.rs."""

    _fields_ = tuple((name, ctypes.c_int64) for name in (
        *("slot_count", "first", "begin_ms", "table_count", "new_slot_count"),
    ))  # fmt: skip


_Bytes = ctypes.c_char * 0
_Held = bytes | ctypes.Array[ctypes.c_char]


def _held(view: memoryview) -> _Held:
    """Argument for the library with the bytes of `view`, valid while it is referenced; a copy if the view is
    read-only."""
    return bytes(view) if view.readonly else _Bytes.from_buffer(view)


class _Memory:
    """Memory at a fixed address."""

    def __init__(self, size_bytes: int) -> None:
        words = (ctypes.c_int64 * (-(-size_bytes // 8)))()
        self.address = ctypes.addressof(words)
        self.view = memoryview(words).cast("B")


_NOTHING: Final = _Memory(8)


class NativeKernel:
    """Kernel in native code, for one thread. Implements BatchKernel."""

    scans_in_bulk = True

    def __init__(self, library: ctypes.PyDLL) -> None:
        """Raises AttributeError if `library` is no kernel, ValueError if it is of another version."""
        library.rmqha_kernel_abi.restype = ctypes.c_int64
        found = library.rmqha_kernel_abi()
        if found != ABI_VERSION:
            raise ValueError(f"its interface is version {found}, not {ABI_VERSION}")
        library.rmqha_kernel_row_bytes.restype = ctypes.c_size_t
        self._row_bytes: int = library.rmqha_kernel_row_bytes()
        size, address = ctypes.c_size_t, ctypes.c_void_p
        self._parse, self._build = library.rmqha_sends_parse, library.rmqha_sends_build
        self._parse.argtypes = ctypes.c_char_p, size, address
        self._build.argtypes = ctypes.c_char_p, size, ctypes.c_char_p, size, address
        self._scan = library.rmqha_scan
        self._scan.argtypes = ctypes.c_char_p, size, ctypes.c_int64, size, size, ctypes.c_int64, address
        self._parse.restype = self._build.restype = self._scan.restype = ctypes.c_int64
        self._skip, self._collect = library.rmqha_skip_sound, library.rmqha_collect
        self._skip.argtypes = address, size, size, ctypes.c_int64, address
        self._collect.argtypes = address, size, address, size, ctypes.c_char_p, size, address, size, address, address
        self._find_signed = library.rmqha_signed
        given = ctypes.c_char_p, size, ctypes.c_char_p, size, ctypes.c_int64
        self._find_signed.argtypes = *given, address, size, address, size
        self._entries, self._place = library.rmqha_index_entries, library.rmqha_index_place
        self._entries.argtypes = (
            *(ctypes.c_char_p, size, size, ctypes.c_char_p, address, size, address, address, address, address, size),
        )
        self._place.argtypes = (*(address, size, ctypes.c_char_p, size, address, address, address), address, address)
        self._put_words = library.rmqha_put_words
        self._put_words.argtypes = address, size, address, ctypes.c_char_p, size
        for function in (self._skip, self._collect, self._find_signed, self._entries, self._place, self._put_words):
            function.restype = ctypes.c_int64
        self._newest = ctypes.c_int64()
        self._pull, self._front = _Collect(), _Place()
        self._pull_view = memoryview(self._pull).cast("B")
        self._make_index(_ROW_COUNT)
        self._call = _Sends()
        self._address = ctypes.addressof(self._call)
        self._call_view = memoryview(self._call).cast("B")
        self._rules: SendRules | None = None
        self._parts = _Memory(_PART_COUNT * _PART_BYTES)
        self._make_rows(_ROW_COUNT)
        self._make_lists(_ROW_COUNT)
        self._make_bytes(0)
        self._make_signed(_ROW_COUNT)
        self._messages = _Memory(_BYTE_COUNT)

    def _make_signed(self, count: int) -> None:
        self._signed_limit, self._signed_rows = count, _Memory(count * _SIGNED.size)

    def _make_rows(self, count: int) -> None:
        self._row_limit = self._call.row_limit = count
        self._rows = _Memory(count * self._row_bytes)
        self._queues = _Memory(count * _QUEUE_BYTES)
        self._call.rows, self._call.queues = self._rows.address, self._queues.address

    def _make_lists(self, count: int) -> None:
        self._record_limit = self._call.record_limit = count
        self._lists = _Memory(_LIST_COUNT * count * 8)
        self._numbers = self._lists.view.cast("q")
        self._units = _Memory(count * _UNIT_BYTES)
        self._call.lists, self._call.units = self._lists.address, self._units.address

    def _make_bytes(self, size_bytes: int) -> None:
        self._byte_limit = self._call.byte_limit = size_bytes
        self._records, self._answers, self._entries_made = (_Memory(size_bytes) for _ in range(3))
        self._call.records, self._call.answers = self._records.address, self._answers.address
        self._call.entries = self._entries_made.address

    def _make_index(self, count: int) -> None:
        """Allocate memory for `count` entries of the index, and for the places of as many records."""
        self._index_limit = count
        self._table_count = 1 << (2 * count).bit_length()
        self._index_entries, self._slots = _Memory(count * NEW_ENTRY.size), _Memory(2 * count * 8)
        self._words = _Memory(count * _WORD_BYTES)
        self._table = _Memory(self._table_count * 4)

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        """Take the plain sends at the front of each part of `read`."""
        if rules is not self._rules:
            self._rules, encoded = rules, _encoded(rules)
            self._call.rules, self._call.rules_bytes = encoded, len(encoded)
        data, parts = read
        phy_offset, room_end, stored_ms, find_slot, is_keyed = context
        self._give_parts(parts)
        _CONTEXT.pack_into(
            *(self._call_view, _Sends.context.offset, phy_offset, room_end, stored_ms),
            *(is_keyed, self._parts.address, len(parts)),
        )
        data_bytes = len(data)
        queue_count = self._parse(data, data_bytes, self._address)
        if queue_count < 0:
            raise _fault(queue_count)
        topics, fields, queues, is_any_known = [], b"", self._queues.view, False
        for place in range(queue_count):
            queue_at = place * _QUEUE_BYTES
            start, end, queue_id, _ = _TOPIC.unpack_from(queues, queue_at)
            slot = find_slot(data[start:end], queue_id)
            if slot is None:
                topics.append("")
                continue  # parse has zeroed the rest
            is_any_known = True
            topic, field, magic, next_offset = slot
            field_at = len(fields)
            fields += field
            topics.append(topic)
            _SLOT.pack_into(queues, queue_at + _TOPIC.size, 1, magic, next_offset, field_at, len(fields))
        if not is_any_known:
            none = [PartResult(0, part.start, b"") for part in parts]
            return SendResults(none, b"", [phy_offset], [], b"", [], [], [], [])
        if self._call.record_count > self._record_limit:
            self._make_lists(self._call.record_count)
        while (count := self._build(data, data_bytes, fields, len(fields), self._address)) == _FULL:
            self._more_bytes(data_bytes)
        if count < 0:
            raise _fault(count)
        return self._taken(count, topics, phy_offset, len(parts))

    def _more_bytes(self, data_bytes: int) -> None:
        self._make_bytes(max(self._byte_limit * 2, data_bytes * 2, _BYTE_COUNT))

    def _entries_of(self, size_bytes: int) -> bytes:
        """Entries of the index that a call has made; a larger memory than usual is then freed."""
        entries = bytes(self._entries_made.view[:size_bytes])
        if self._byte_limit > _KEPT_BYTES:
            self._make_bytes(_BYTE_COUNT)
        return entries

    def _give_parts(self, parts: Sequence[SendPart]) -> None:
        if len(parts) * _PART_BYTES > len(self._parts.view):
            self._parts = _Memory(len(parts) * _PART_BYTES)
        view, at, row_count = self._parts.view, 0, 0
        for start, end, max_count, born_address, born_port in parts:
            most = min(max_count, (end - start) // _LEAST_FRAME_BYTES)
            row_count += most
            _PART.pack_into(view, at, start, end, most, born_port, len(born_address), born_address)
            at += _PART_BYTES
        if row_count > self._row_limit:
            self._make_rows(row_count)

    def _taken(self, count: int, topics: list[str], phy_offset: int, part_count: int) -> SendResults:
        _, records_bytes, answers_bytes, entries_bytes = _FOUND.unpack_from(self._call_view, _Sends.found.offset)
        records = bytes(self._records.view[:records_bytes])
        parts, answers, answers_at = [], self._answers.view, 0
        for at in range(_PART_TAKEN_AT, part_count * _PART_BYTES, _PART_BYTES):
            taken_count, end, answers_end = _PART_TAKEN.unpack_from(self._parts.view, at)
            parts.append(PartResult(taken_count, end, bytes(answers[answers_at:answers_end])))
            answers_at = answers_end
        assert answers_at == answers_bytes, "each answer is of a part"
        taken = SendResults(
            parts,
            records,
            [phy_offset, *[phy_offset + send_end for send_end in self._list(_SEND_ENDS, count)]],
            self._runs(topics),
            self._entries_of(entries_bytes),
            topics * count if len(topics) == 1 else [topics[place] for place in self._list(_SEND_PLACES, count)],
            self._list(_TAIL_STARTS, count),
            self._list(_TAIL_ENDS, count),
            self._list(_COUNTS, count),
        )
        if self._record_limit > _KEPT_COUNT:
            self._make_lists(_ROW_COUNT)
        return taken

    def _list(self, number: int, count: int) -> list[int]:
        start = number * self._record_limit
        return self._numbers[start : start + count].tolist()

    def _runs(self, topics: list[str]) -> list[QueueRun]:
        """Entries of each queue; `topics`: topic of each."""
        runs, queues, units, units_at = [], self._queues.view, self._units.view, 0
        for place, topic in enumerate(topics):
            queue_at = place * _QUEUE_BYTES
            _, _, queue_id, unit_count = _TOPIC.unpack_from(queues, queue_at)
            if unit_count:
                units_end = units_at + unit_count * _UNIT_BYTES
                first_offset = _SLOT.unpack_from(queues, queue_at + _TOPIC.size)[2]
                runs.append(QueueRun(topic, queue_id, first_offset, unit_count, bytes(units[units_at:units_end])))
                units_at = units_end
        return runs

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        """Find the signed sends at the front of what a connection has sent."""
        limit, front = min(max_count, len(data) // _LEAST_FRAME_BYTES), session_front(nonce).encode() if nonce else b""
        if limit > self._signed_limit:
            self._make_signed(limit)
        given = data, len(data), front, len(front), bool(proven), self._signed_rows.address, limit
        while (count := self._find_signed(*given, self._messages.address, len(self._messages.view))) == _FULL:
            self._messages = _Memory(2 * max(len(self._messages.view), len(data)))
        if count < 0:
            raise _fault(count)
        found, messages, start = list[SignedSend](), self._messages.view, 0
        for at in range(0, count * _SIGNED.size, _SIGNED.size):
            row = _SIGNED.unpack_from(self._signed_rows.view, at)
            frame_end, code, topic, topic_end, key, key_end, given_at, given_end, number, end, size_bytes = row
            if key == key_end:
                name = data[topic:topic_end].decode()
                found.append(SignedSend(frame_end, code, name, proven, 0, b"", b"", size_bytes))
                continue
            found.append(
                SignedSend(
                    frame_end,
                    code,
                    data[topic:topic_end].decode(),
                    data[key:key_end].decode(),
                    number,
                    data[given_at:given_end],
                    bytes(messages[start:end]),
                    size_bytes,
                )
            )
            start = end
        if len(messages) > _KEPT_BYTES:
            self._messages = _Memory(_BYTE_COUNT)
        return found

    def scan(self, block: LogBlock) -> Scanned:
        """Find the plain records at the front of `block`."""
        data, phy_offset, max_count, max_run_count, is_keyed = block
        limit = min(max_count, len(data) // _LEAST_RECORD_BYTES)
        if limit > self._row_limit:
            self._make_rows(limit)
        if limit > self._record_limit:
            self._make_lists(limit)
        given = data, len(data), phy_offset, max(limit, 0), max_run_count, is_keyed, self._address
        while (count := self._scan(*given)) == _FULL:
            self._more_bytes(len(data))
        if count < 0:
            raise _fault(count)
        topics, queues = [], self._queues.view
        for place in range(self._call.queue_count):
            start, end, _, _ = _TOPIC.unpack_from(queues, place * _QUEUE_BYTES)
            topics.append(data[start:end].decode())
        *_, entries_bytes = _FOUND.unpack_from(self._call_view, _Sends.found.offset)
        return Scanned(
            [phy_offset, *[phy_offset + end for end in self._list(_ENDS, count)]],
            self._runs(topics),
            self._entries_of(entries_bytes),
            self._list(_STORED, count),
        )

    def index_entries(self, records: KeyedRecords) -> bytes:
        """Make an entry for each key of each record."""
        topics, tails, phy_offsets, stamps = records
        count = len(tails)
        if not count:
            return b""
        names = dict.fromkeys(topics)
        places = None
        if len(names) > 1:
            number_of = {name: number for number, name in enumerate(names)}
            places = _numbers([number_of[topic] for topic in topics])
        encoded = [name.encode() for name in names]
        ends, end = array("q"), 0
        for name in encoded:
            end += len(name)
            ends.append(end)
        joined, all_tails = b"".join(encoded), b"".join(tails)
        given = (
            *(all_tails, len(all_tails), count, joined, _address(ends), len(ends), places and _address(places)),
            *(_address(offsets := _numbers(phy_offsets)), _address(times := _numbers(stamps))),
        )
        while True:
            limit = self._index_limit * NEW_ENTRY.size
            size = self._entries(*given, self._index_entries.address, limit)
            if size != _FULL:
                break
            self._make_index(self._index_limit * 2)
        del offsets, times
        if size < 0:
            raise _fault(size)
        found = bytes(self._index_entries.view[:size])
        self._keep_index()
        return found

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        """Find the place of new entries."""
        view, slot_count, first, begin_ms = front
        count = len(entries) // NEW_ENTRY.size
        if count > self._index_limit:
            self._make_index(count)
        call, slots, file = self._front, self._slots, _held(view)
        call.slot_count, call.first, call.begin_ms, call.table_count = slot_count, first, begin_ms, self._table_count
        found = self._place(
            *(file, len(view), entries, count, self._index_entries.address, slots.address, self._words.address),
            *(self._table.address, ctypes.addressof(call)),
        )
        if found < 0:
            raise _fault(found)
        placed = PlacedEntries(
            bytes(self._index_entries.view[: count * NEW_ENTRY.size]),
            array("q", bytes(slots.view[: found * 8])),
            bytes(self._words.view[: found * _WORD_BYTES]),
            call.new_slot_count,
        )
        self._keep_index()
        return placed

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None:
        """Copy four bytes to each position."""
        numbers = positions if isinstance(positions, array) else _numbers(positions)
        assert len(words) == len(numbers) * _WORD_BYTES, "a word for each position"
        done = self._put_words(_held(memory), len(memory), _address(numbers), words, len(numbers))
        if done < 0:
            raise _fault(done)

    def _keep_index(self) -> None:
        if self._index_limit > _KEPT_COUNT:
            self._make_index(_ROW_COUNT)

    def skip_sound(self, view: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
        """Go past the records of the commonest form whose CRC holds."""
        self._newest.value = newest_ms
        end = self._skip(_held(view), len(view), at, phy_offset, ctypes.addressof(self._newest))
        if end < 0:
            raise _fault(end)
        return Checked(end, self._newest.value)

    def collect(self, view: memoryview, start: int, pulled: PulledUnits) -> Collected:
        """Find the sound records that entries lead to."""
        units, topic, queue_id, offset, max_count, max_bytes, disk_end, disk_max_count, disk_max_bytes, codes = pulled
        unit_count = len(units) // _UNIT_BYTES
        limit = min(max_count, unit_count)
        if limit > self._index_limit:
            self._make_index(limit)
        wanted = array("q", codes or ())
        _PULL.pack_into(
            *(self._pull_view, 0, start, queue_id, offset, limit, max_bytes, disk_end, disk_max_count, disk_max_bytes),
            codes is None,
        )
        count = self._collect(
            *(_held(view), len(view), _held(units), unit_count, topic, len(topic), _address(wanted), len(wanted)),
            *(self._slots.address, ctypes.addressof(self._pull)),
        )
        if count < 0:
            raise _fault(count)
        numbers = self._slots.view.cast("q")
        runs = list(zip(numbers[:count], numbers[limit : limit + count], strict=True))
        seen_count, size_bytes, is_full, record_count = _COLLECTED.unpack_from(self._pull_view, _PULL.size)
        self._keep_index()
        return Collected(runs, record_count, seen_count, size_bytes, bool(is_full))


def _numbers(values: Sequence[int]) -> array[int]:
    return array("q", values)


def _address(numbers: array[int]) -> int:
    """Address of the numbers, valid while `numbers` is referenced and not resized. It is never 0, which is no valid
    address of a slice."""
    return numbers.buffer_info()[0] or _NOTHING.address


def _fault(code: int) -> RuntimeError:
    return RuntimeError(f"the native kernel {_FAULTS.get(code, f'answers {code}')}: start with RMQHA_KERNEL=python")


def _encoded(rules: SendRules) -> bytes:
    """Rules encoded for `native/src/rules.rs`."""
    assert all(rules.special_texts), "no special text is empty, it would be in all properties"
    numbers = _NUMBERS.pack(rules.max_frame_bytes, rules.max_body_bytes, rules.max_properties_bytes, rules.store_port)
    texts = [rules.own_properties, rules.store_address, store_host(rules)]
    for literals in (json_literals(rules), rocketmq_literals(rules)):
        texts += [*literals, *[b""] * (_LITERAL_COUNT - len(literals))]
    texts += rules.special_texts
    return numbers + b"".join([_SIZE.pack(len(text)) + text for text in texts])
