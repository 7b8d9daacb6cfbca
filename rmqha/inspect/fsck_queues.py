"""Control plane: checks of all records against their queue entries, and of all entries, in one pass of the log.

Sources: formats.md §3 (ConsumeQueue) and §4 (BatchConsumeQueue). `Queues.record` is called for the log's records in
order, `Queues.finish` at its end; whatever entry no record has claimed by then is judged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rmqha.inspect.finding import FindingKind, Findings, Severity
from rmqha.inspect.log_reader import LogReader
from rmqha.inspect.store_inspection import (
    BATCH_DIRECTORY,
    BATCH_UNIT,
    BATCH_UNIT_BYTES,
    HEAD,
    PREFILL,
    PREFILL_SIZE,
    QUEUE_DIRECTORY,
    TOPICS_PATH,
    UNIT,
    UNIT_BYTES,
    QueueFiles,
    StoreInspection,
    queue_directories,
)
from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.error import RmqhaError
from rmqha.model.message import (
    PROPERTY_INNER_NUM,
    SYS_FLAG_INNER_BATCH,
    find_property,
)
from rmqha.port import ReadDisk
from rmqha.store.log.record import SYS_COMMIT, SYS_TRANSACTION, Located
from rmqha.store.queue.dispatch_service import valid_topic
from rmqha.store.queue.tags_codes import TagsCodes
from rmqha.wire import lenient_json

MAX_GAP_COUNT = 1 << 20
"""Most entries that dispatch fills in where records are missing."""
EXTENSION_DIRECTORY = "consumequeue_ext"
"""Directory of which the tagsCode of an entry is an address, with enableConsumeQueueExt."""
LITE_PREFIX = "%LMQ%"
"""Queues of these topics hold records of other topics (RocketMQ's multi-dispatch)."""
UNITS_AT_ONCE = 1024
ADVICE = "rmqha fsck --repair makes the queue anew from the log"
_INNER_NUM = PROPERTY_INNER_NUM.encode()

QueueKey = tuple[bytes, int]


class UnitCodec:
    """Entries that the queues must have for a record."""

    def __init__(self) -> None:
        self._tags_codes = TagsCodes()

    def unit(self, position: int, parts: Located, topic: bytes, properties: bytes) -> bytes:
        """The entry of a record in its ConsumeQueue, 20 bytes."""
        return UNIT.pack(position, parts[0], self._tags_codes.code(topic, properties, parts[10]))

    def batch_unit(self, position: int, parts: Located, topic: bytes, properties: bytes) -> bytes:
        """The entry of a record in its batch queue, 46 bytes."""
        count = find_property(properties, _INNER_NUM) if parts[1] & SYS_FLAG_INNER_BATCH else None
        number = int(count) if count is not None and count.isdigit() and len(count) < 5 else 1
        code = self._tags_codes.code(topic, properties, parts[10])
        return BATCH_UNIT.pack(position, parts[0], code, parts[10], parts[3], number, -1, 0)


def batch_topics(disk: ReadDisk) -> tuple[frozenset[bytes], frozenset[str] | None]:
    """Topics with queue.type=BatchCQ, and all topics of config/topics.json, None if that cannot be read."""
    found: set[str] = set()
    known: set[str] | None = set()
    try:
        if disk.is_directory(BATCH_DIRECTORY):
            found.update(disk.list(BATCH_DIRECTORY))
        table = lenient_json.loads(disk.read(TOPICS_PATH, 1 << 30))["topicConfigTable"]
        for topic, config in table.items():
            attributes = config.get("attributes") or {}
            if "BatchCQ" in (attributes.get("queue.type"), attributes.get("+queue.type")):
                found.add(str(topic))
        known = {str(topic) for topic in table}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RmqhaError):
        known = None
    names = frozenset(topic.encode("utf-8", "surrogateescape") for topic in sorted(found))
    return names, frozenset(known) if known else None


class QueueCursor:
    """One queue's entries, claimed in order by the records of the log."""

    __slots__ = ("_base", "_data", "_delay_ms", "_unit", "claimed", "damaged", "expired", "files", "next", "topic")

    def __init__(self, files: QueueFiles, topic: str, log_min: int, findings: Findings) -> None:
        self.files = files
        self.topic = topic
        self._unit = files.unit_bytes
        self._base = 0
        self._data = b""
        self._delay_ms: int | None = None
        self.next = files.first_byte // self._unit
        """Number of the first entry that is not judged yet."""
        self.claimed = 0
        self.damaged = False
        self._skip_expired(log_min, findings)
        self.expired = self.next
        """Entries below it belong to records that are not in the log any more."""

    def at(self, number: int) -> bytes:
        """An entry's bytes, b"" beyond the files."""
        index = (number - self._base) * self._unit
        if not 0 <= index < len(self._data):
            self._data = self.files.read(number * self._unit, UNITS_AT_ONCE * self._unit)
            self._base, index = number, 0
        return self._data[index : index + self._unit]

    def report(self, findings: Findings, number: int, expected: str, found: str) -> None:
        path, at = self.files.place(number * self._unit)
        self.damaged = True
        findings.add(Severity.ERROR, FindingKind.QUEUE, path, at, expected, found, ADVICE)

    def _skip_expired(self, log_min: int, findings: Findings) -> None:
        behind = 0
        while len(data := self.at(self.next)) == self._unit:
            offset, size = HEAD.unpack_from(data)
            if data[:UNIT_BYTES] == PREFILL:
                self.next += 1
                continue
            if size <= 0 or not 0 <= offset < log_min:
                return
            if offset < behind or offset + size > log_min:
                self.report(
                    findings, self.next, f"an offset from {behind} below the log's start {log_min}", _shown(data)
                )
            behind = max(behind, offset + size)
            self.next += 1

    def expect(self, number: int, unit: bytes, position: int, facts: LogFacts) -> None:
        """Check that entry `number` is `unit`, that of the record at `position`."""
        if number > self.next:
            self.unclaimed(number, facts)
        found = self.at(number)
        if found == unit or (found and self._fits_otherwise(found, unit, facts)):
            self.claimed += 1
        elif not any(found):
            if facts.required(position):
                facts.lacking.append((self, number, position))
        elif HEAD.unpack_from(found.ljust(HEAD.size, b"\0"))[0] < facts.end or not facts.live:
            self.report(facts.findings, number, f"{_shown(unit)} for the record at {position}", _shown(found))
        self.next = max(self.next, number + 1)

    def _fits_otherwise(self, found: bytes, unit: bytes, facts: LogFacts) -> bool:
        """True if the entry is of the same record and has another tagsCode for a good reason."""
        if found[:12] != unit[:12] or found[20:] != unit[20:]:
            return False
        if facts.has_extension:
            return True
        if self.topic != SCHEDULE_TOPIC:
            return False
        # one queue is one delay level; the broker may have other levels than the default ones
        delay_ms: int = struct.unpack_from(">q", found, 12)[0] - facts.stored_ms
        if self._delay_ms is None and delay_ms > 0 and delay_ms % 1000 == 0:
            self._delay_ms = delay_ms
        return delay_ms == self._delay_ms

    def unclaimed(self, end_number: int, facts: LogFacts) -> None:
        """LogFacts the entries from `next` to `end_number`, which no record has claimed, as far as files go."""
        while self.next < end_number and (data := self.at(self.next)):
            self._judge_unclaimed(self.next, data, facts)
            self.next += 1
        self.next = max(self.next, end_number)

    def _judge_unclaimed(self, number: int, data: bytes, facts: LogFacts) -> None:
        if not any(data) or data[:UNIT_BYTES] == PREFILL:
            if self._unit == BATCH_UNIT_BYTES and any(data):
                self.report(facts.findings, number, "an entry of a batch queue", _shown(data))
            return
        offset, size = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
        if facts.live and (offset >= facts.end or offset < facts.log_min):
            return
        if facts.is_in_bad_range(offset) or (self.topic.startswith(LITE_PREFIX) and facts.is_record(offset, size)):
            self.claimed += 1
            return
        if facts.is_record(offset, size):
            # the record's own fields say another queue: which of the two is right, no checksum tells
            facts.foreign[offset] = f"entry {number} of {self.topic} in {self.files.directory}"
            self.claimed += 1
            return
        if offset >= facts.end:
            self.report(facts.findings, number, f"a record below the log's end {facts.end}", _shown(data))
        else:
            self.report(facts.findings, number, f"a record of {self.topic} that says so", _shown(data))

    def finish(self, facts: LogFacts) -> None:
        """LogFacts the bytes behind the last claimed entry: entries of no record, bytes behind an unwritten entry."""
        files, unit = self.files, self._unit
        unwritten: int | None = None
        for start in sorted(files.sizes):
            byte = max(self.next * unit, start)
            while data := files.read(byte, UNITS_AT_ONCE * unit) if byte >= start else b"":
                if data.count(0) != len(data):
                    unwritten = self._finish_window(byte // unit, data, unwritten, facts)
                elif unwritten is None:
                    unwritten = byte // unit
                byte += len(data)
                if byte >= start + files.sizes[start]:
                    break
        files.close()

    def _finish_window(self, number: int, data: bytes, unwritten: int | None, facts: LogFacts) -> int | None:
        for index in range(0, len(data), self._unit):
            unit = data[index : index + self._unit]
            if unit.count(0) == len(unit):
                unwritten = number if unwritten is None else unwritten
            elif unwritten is not None and not facts.live:
                self.report(facts.findings, number, f"zeros, as entry {unwritten} is unwritten", _shown(unit))
            else:
                self._judge_unclaimed(number, unit, facts)
            number += 1
        return unwritten


class LogFacts:
    """Facts of the log by which a queue's entries are judged."""

    def __init__(self, store: StoreInspection, reader: LogReader, findings: Findings, end: int) -> None:
        self.findings = findings
        self.live = store.live
        self.log_min = store.min_offset
        self.end = end
        """Offset at which the valid log ends; of a live store, where the check does."""
        self.stored_ms = 0
        """Store time of the record at hand."""
        self.lacking: list[tuple[QueueCursor, int, int]] = []
        """Records whose entry is unwritten: (queue, entry, position)."""
        self.foreign: dict[int, str] = {}
        """Entry of another queue that names a record, by the record's position."""
        self.bad_ranges: list[tuple[int, int]] = []
        """Parts of the log that hold no record, which are already reported."""
        self.has_extension = store.disk.exists(EXTENSION_DIRECTORY)
        self._required_end = store.dispatched_end
        self._reader = reader

    def required(self, position: int) -> bool:
        """True if the record there must have its entry already."""
        return position < self._required_end

    def is_in_bad_range(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.bad_ranges)

    def is_record(self, offset: int, size: int) -> bool:
        reader = LogReader(self._reader.disk, self._reader.files)
        try:
            entry = reader.record_at(offset)
            return entry is not None and entry[3] is not None and entry[3][0] == size
        finally:
            reader.close()


class Queues:
    """All queues of the store. Raises OSError from the disk."""

    def __init__(self, store: StoreInspection, facts: LogFacts) -> None:
        self._judge = facts
        self._codec = UnitCodec()
        self._live = store.live
        self.batch, self._known = batch_topics(store.disk)
        self.cursors: dict[QueueKey, QueueCursor] = {}
        self.missing: dict[QueueKey, list[int]] = {}
        """Positions of records whose queue has no directory, by queue."""
        self._gone: dict[bytes, int] = {}
        self.file_sizes = {UNIT_BYTES: 0, BATCH_UNIT_BYTES: 0}
        for directory, topic, queue_id, unit_bytes in queue_directories(store.disk):
            name = topic.encode("utf-8", "surrogateescape")
            if (unit_bytes == BATCH_UNIT_BYTES) != (name in self.batch):
                facts.findings.note(directory, "not used: the topic's queues have another form")
                continue
            self._open(store.disk, directory, name, queue_id, unit_bytes)
        self._judge_files()

    def _open(self, disk: ReadDisk, directory: str, name: bytes, queue_id: int, unit_bytes: int) -> None:
        findings, topic = self._judge.findings, name.decode("utf-8", "surrogateescape")
        try:
            files = QueueFiles(disk, directory, unit_bytes)
        except OSError as error:
            reason = error.strerror or str(error)
            findings.add(Severity.ERROR, FindingKind.QUEUE, directory, None, "files that can be read", reason, ADVICE)
            return
        for foreign in files.foreign_files:
            findings.note(f"{directory}/{foreign}", "not one of the store's files")
        self.cursors[name, queue_id] = QueueCursor(files, topic, self._judge.log_min, findings)

    def _judge_files(self) -> None:
        """Check sizes and holes: all files of one kind of queue must have one size."""
        for unit_bytes in self.file_sizes:
            cursors = [cursor for cursor in self.cursors.values() if cursor.files.unit_bytes == unit_bytes]
            votes: dict[int, int] = {}
            for cursor in cursors:
                for size in cursor.files.sizes.values():
                    votes[size] = votes.get(size, 0) + 1
            wanted = max(votes, key=lambda size: (votes[size], size), default=0)
            self.file_sizes[unit_bytes] = wanted
            for cursor in cursors:
                self._judge_run(cursor, wanted)

    def _judge_run(self, cursor: QueueCursor, wanted: int) -> None:
        findings, files = self._judge.findings, cursor.files
        behind: int | None = None
        for start in sorted(files.sizes):
            size = files.sizes[start]
            if size != wanted or size % files.unit_bytes:
                expected = f"{wanted} bytes like the others" if size != wanted else "whole entries"
                findings.add(
                    Severity.ERROR, FindingKind.QUEUE, files.path(start), None, expected, f"{size} bytes", ADVICE
                )
                cursor.damaged = True
            if behind not in (None, start):
                expected, found = f"a file that starts at {behind}", f"{start}"
                findings.add(Severity.ERROR, FindingKind.QUEUE, files.path(start), None, expected, found, ADVICE)
                cursor.damaged = True
            behind = start + wanted

    # --- the pass ---------------------------------------------------------------------------------------------------
    def record(self, position: int, view: memoryview, parts: Located) -> str:
        """Check one record against its queue. Returns a sentence if the record itself is wrong, else ""."""
        sys_flag, queue_id, queue_offset = parts[1], parts[2], parts[3]
        if sys_flag & SYS_TRANSACTION not in (0, SYS_COMMIT):
            return ""
        topic = bytes(view[parts[6] : parts[6] + parts[7]])
        if queue_id < 0 or queue_offset < 0:
            return f"queueId {queue_id} and queueOffset {queue_offset}"
        cursor = self.cursors.get((topic, queue_id))
        if cursor is None:
            self._without_queue(topic, queue_id, position)
            return ""
        properties = bytes(view[parts[8] : parts[8] + parts[9]])
        facts = self._judge
        facts.stored_ms = parts[10]
        if topic in self.batch:
            unit = self._codec.batch_unit(position, parts, topic, properties)
            self._expect_batch(cursor, unit, position)
            return ""
        if sys_flag & SYS_FLAG_INNER_BATCH:
            return ""
        if queue_offset != cursor.next and cursor.at(cursor.next).startswith(unit_head(position, parts[0])):
            cursor.claimed += 1
            cursor.next += 1
            return f"queueOffset {queue_offset}, though entry {cursor.next - 1} of the queue has this record"
        if queue_offset < cursor.next and cursor.claimed:
            if not cursor.at(queue_offset).startswith(unit_head(position, parts[0])):
                return f"queueOffset {queue_offset} where {cursor.next} comes next"
        elif queue_offset > cursor.next + MAX_GAP_COUNT:
            return f"queueOffset {queue_offset} where {cursor.next} comes next"
        cursor.expect(queue_offset, self._codec.unit(position, parts, topic, properties), position, facts)
        return ""

    def _expect_batch(self, cursor: QueueCursor, unit: bytes, position: int) -> None:
        """Check that the next entry of a batch queue is `unit`: entries stand in log order, whatever their offsets."""
        while len(found := cursor.at(cursor.next)) == BATCH_UNIT_BYTES and any(found):
            if HEAD.unpack_from(found)[0] >= position:
                break
            cursor.unclaimed(cursor.next + 1, self._judge)
        if len(found) == BATCH_UNIT_BYTES and any(found) and HEAD.unpack_from(found)[0] > position:
            if self._judge.required(position):
                cursor.report(
                    self._judge.findings, cursor.next, f"the entry of the record at {position}", _shown(found)
                )
            return
        cursor.expect(cursor.next, unit, position, self._judge)

    def _without_queue(self, topic: bytes, queue_id: int, position: int) -> None:
        text = topic.decode("utf-8", "replace")
        if not valid_topic(text) or not self._judge.required(position):
            return
        if self._known is not None and text not in self._known and not any(name == topic for name, _ in self.cursors):
            self._gone[topic] = self._gone.get(topic, 0) + 1
        else:
            self.missing.setdefault((topic, queue_id), []).append(position)

    def finish(self) -> None:
        findings = self._judge.findings
        for cursor in self.cursors.values():
            try:
                cursor.finish(self._judge)
            except OSError as error:
                cursor.damaged = True
                reason, path = error.strerror or str(error), cursor.files.directory
                findings.add(Severity.ERROR, FindingKind.QUEUE, path, None, "files that can be read", reason, ADVICE)
        foreign = self._judge.foreign
        for cursor, number, position in self._judge.lacking:
            if position not in foreign:
                cursor.report(findings, number, f"the entry of the record at {position}", "none")
        wanted = {key: [at for at in places if at not in foreign] for key, places in self.missing.items()}
        self.missing = {key: places for key, places in wanted.items() if places}
        for (topic, queue_id), places in self.missing.items():
            root = BATCH_DIRECTORY if topic in self.batch else QUEUE_DIRECTORY
            path = f"{root}/{topic.decode('utf-8', 'replace')}/{queue_id}"
            expected = f"entries of {len(places)} records"
            findings.add(Severity.ERROR, FindingKind.QUEUE, path, None, expected, "no such queue", ADVICE)
        for topic, count in self._gone.items():
            text = topic.decode("utf-8", "replace")
            findings.note(TOPICS_PATH, f"{count} records in the log are of topic {text}, which was deleted")

    def damaged(self) -> Iterator[tuple[str, QueueKey, int, int]]:
        """Queues to be made anew: (directory, key, bytes of an entry, entries of expired records)."""
        for key, cursor in self.cursors.items():
            if cursor.damaged:
                yield cursor.files.directory, key, cursor.files.unit_bytes, cursor.expired
        for topic, queue_id in self.missing:
            batch = topic in self.batch
            root, unit_bytes = (BATCH_DIRECTORY, BATCH_UNIT_BYTES) if batch else (QUEUE_DIRECTORY, UNIT_BYTES)
            yield f"{root}/{topic.decode()}/{queue_id}", (topic, queue_id), unit_bytes, 0


def unit_head(position: int, size_bytes: int) -> bytes:
    return HEAD.pack(position, size_bytes)


def _shown(data: bytes) -> str:
    """An entry as text for a finding."""
    if len(data) < HEAD.size:
        return f"{len(data)} bytes" if data else "the end of the files"
    offset, size = HEAD.unpack_from(data)
    if size == PREFILL_SIZE:
        return "a filled-in entry" if data[:UNIT_BYTES] == PREFILL else f"a filled-in entry with offset {offset}"
    code = struct.unpack_from(">q", data, 12)[0] if len(data) >= UNIT_BYTES else "none"
    return f"offset {offset}, size {size}, tagsCode {code}" if any(data) else "an unwritten entry"
