"""Data plane: a master's own appends: queue offset, store timestamp, record, log.

Only this module assigns queue offsets. The path of a single message is written out flat, for it is the cost of a send.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, NoReturn

from rmqha.kernel.batch_kernel import BatchKernel, LogBlock, QueueSlot, SendContext, SendRead, SendResults, SendRules
from rmqha.model.error import StoreError, UsageError
from rmqha.model.message import PROPERTY_INNER_BASE, encode_properties
from rmqha.model.offset import Buffer, PhyOffset, QueueOffset
from rmqha.store.log.commit_log import DIRECTORY, CommitLog
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import (
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    SECTOR_BYTES,
    SYS_COMMIT,
    SYS_INNER_BATCH,
    SYS_TRANSACTION,
    BadRecordError,
    EncodedBatch,
    NewMessage,
    encode,
    message_count,
    seems_lost,
    topic_field,
    with_crc,
    with_crc_room,
)
from rmqha.store.meta.problem import os_sentence, place
from rmqha.store.queue.dispatch_service import QueueOffsets, valid_topic
from rmqha.store.queue.dispatcher import DispatchedBlock, DispatchedRecord, DispatchedRun

_FIXED_BYTES = 82
"""Fixed bytes of each record, beside hosts, body, topic field and properties."""


class Appended(NamedTuple):
    """Place of a message in the log."""

    phy_offset: PhyOffset
    end_offset: PhyOffset
    queue_offset: QueueOffset
    store_timestamp_ms: int


class AppendedBatch(NamedTuple):
    """Places of a batch's messages in the log."""

    phy_offsets: Sequence[int]
    queue_offsets: Sequence[int]
    end_offset: PhyOffset
    store_timestamp_ms: int


class SendSource(NamedTuple):
    """Plain sends that wait to be made records of, and what is known of them."""

    kernel: BatchKernel
    read: SendRead
    rules: SendRules
    queue_count: Callable[[str], int]
    """Number of queues of a topic that plain sends may go to, as it is now; 0 if none may."""


class _PlainTopic(NamedTuple):
    topic: str
    queue_count: int
    """Queues that plain sends may go to."""
    field: bytes
    magic: int


class AppendContext(NamedTuple):
    """The place where the next records will stand, and what they must go on from."""

    phy_offset: int
    room_end: int
    """No record may end behind it."""
    store_timestamp_ms: int
    """Timestamp of the log's last record: none may be older."""
    next_offset: Callable[[tuple[str, int]], int]
    """The next offset of a queue, (topic, queue id)."""


class EncodedRecords(NamedTuple):
    """Whole records for an `AppendContext`, of topics that brokers take, none an inner batch or of a transaction."""

    records: Buffer
    next_offsets: Mapping[tuple[str, int], int]
    """The next offset of each of their queues, behind them."""
    store_timestamp_ms: int
    """The last one's."""
    blocks: Sequence[DispatchedBlock] = ()
    """Entries that dispatch would read of them in the log, from the first record on; of the others it reads them."""


class Appender:
    """Appends messages. Only `batch_topics` take a record that is an inner batch."""

    def __init__(
        self,
        log: CommitLog,
        offsets: QueueOffsets,
        max_message_size: int,
        batch_topics: Set[str],
        *,
        enabled_append_prop_crc: bool = False,
        is_keyed: bool = True,
        kernel: BatchKernel | None = None,
    ) -> None:
        """`is_keyed`: the index takes entries. `kernel`: finds what is derived from several records."""
        self._is_keyed = is_keyed
        self._kernel = kernel if kernel is not None and kernel.scans_in_bulk else None
        self._log = log
        self._offsets = offsets
        self._max_message_size = max_message_size
        self._batch_topics = batch_topics
        self._has_crc = enabled_append_prop_crc
        """Each record ends with its own checksum."""
        self._fields: dict[str, tuple[bytes, int]] = {}
        """Topic to the bytes it has in a record and the record's version."""

    def append(self, message: NewMessage, wall_ms: int) -> Appended:
        """Append one message. Raises UsageError for one that cannot be stored, StoreError when the disk fails."""
        log, offsets = self._log, self._offsets
        if offsets.covered != log.write_offset:
            self._take_over()
        count = 1
        if message.sys_flag & SYS_INNER_BATCH:
            message, count = self._numbered(message)
        if self._has_crc:
            message = replace(message, properties=with_crc_room(message.properties))
        topic = message.topic
        field, version = self._fields.get(topic) or self._field(topic)
        body_size, queue_id, properties = len(message.body), message.queue_id, message.properties
        properties_size = len(properties)
        if (
            body_size > self._max_message_size
            or properties_size > MAX_PROPERTIES_BYTES
            or queue_id < 0
            or seems_lost(properties)
        ):
            self._refuse(message)
        stored = offsets.last_store_timestamp_ms
        if wall_ms > stored:
            stored = offsets.last_store_timestamp_ms = wall_ms
        key = (topic, queue_id)
        queue_offset = offsets.next.get(key)
        if queue_offset is None:
            queue_offset = offsets.next_for(key)
        queued = not (sys_flag := message.sys_flag) & SYS_TRANSACTION or sys_flag & SYS_TRANSACTION == SYS_COMMIT
        size = (
            _FIXED_BYTES
            + len(message.born_host[0])
            + len(message.store_host[0])
            + body_size
            + len(field)
            + properties_size
        )
        try:
            position = log.room_for(size)
            record = encode(message, field, version, queue_offset if queued else 0, position, stored)
            log.append(with_crc(record) if self._has_crc else record)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        except struct.error as error:
            raise _too_large(topic, error) from None
        finally:
            offsets.covered = log.write_offset
        if queued:
            offsets.next[key] = queue_offset + count
        else:
            queue_offset = 0
        if not sys_flag & SYS_INNER_BATCH:
            offsets.dispatch_cache.add(
                (DispatchedRecord(position, size, topic, queue_id, queue_offset, sys_flag, stored, properties),)
            )
        return Appended(PhyOffset(position), PhyOffset(position + size), QueueOffset(queue_offset), stored)

    def append_batch(self, batch: NewBatch, wall_ms: int) -> AppendedBatch:
        """Append in order. Raises UsageError if one message cannot be stored (none is then), StoreError as
        `append_encoded`."""
        if self._has_crc:
            return self.append_encoded(self.encode_batch(batch.messages()), wall_ms)
        log, offsets = self._log, self._offsets
        if offsets.covered != log.write_offset:
            self._take_over()
        topic, queue_id, position = batch.topic, batch.queue_id, log.write_offset
        field, version = self._fields.get(topic) or self._field(topic)
        stored = max(offsets.last_store_timestamp_ms, wall_ms)
        first = offsets.next_for((topic, queue_id))
        try:
            data, bounds = batch.encode(field, version, first, position, stored)
        except struct.error as error:
            raise _too_large(topic, error) from None
        end = bounds[-1]
        tails = [tail for _, tail, _ in batch.parts]
        if (
            end > log.room_end
            or end - position > self._max_message_size
            or queue_id < 0
            or any(seems_lost(tail[2:]) for tail in tails)
        ):
            return self.append_encoded(self.encode_batch(batch.messages()), wall_ms)
        offsets.last_store_timestamp_ms = stored
        try:
            log.append(data)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            offsets.covered = log.write_offset
        count = len(tails)
        offsets.next[topic, queue_id] = first + count
        offsets.dispatch_cache.add_run(
            DispatchedRun(position, end - position, topic, queue_id, first, batch.sys_flag, stored, bounds, tails)
        )
        return AppendedBatch(bounds[:-1], range(first, first + count), PhyOffset(end), stored)

    def append_sends(self, source: SendSource, wall_ms: int) -> SendResults | None:
        """Append the plain sends at the front of what a connection has sent, with one write; None if there is none.
        Raises StoreError as `append_encoded`."""
        if self._has_crc:
            return None  # each record's own checksum depends on where it stands
        log, offsets = self._log, self._offsets
        if offsets.covered != log.write_offset:
            self._take_over()
        rules, position = source.rules, log.write_offset
        if rules.max_body_bytes > self._max_message_size:
            rules = rules._replace(max_body_bytes=self._max_message_size)
        stored = max(offsets.last_store_timestamp_ms, wall_ms)

        topics: dict[bytes, _PlainTopic] = {}

        def slot(topic_bytes: bytes, queue_id: int) -> QueueSlot | None:
            found = topics.get(topic_bytes)
            if found is None:
                found = topics[topic_bytes] = self._plain_topic(topic_bytes.decode(), source.queue_count)
            topic, queue_count, field, magic = found
            return (
                QueueSlot(topic, field, magic, offsets.next_for((topic, queue_id))) if queue_id < queue_count else None
            )

        context = SendContext(position, log.room_end, stored, slot, self._is_keyed)
        taken = source.kernel.sends(source.read, rules, context)
        if not taken.taken_count:
            return None
        assert taken.bounds[-1] - position == len(taken.records), "records fill their places in the log"
        for run in taken.runs:
            known = offsets.next.get((run.topic, run.queue_id))
            assert run.first_offset == known, f"{run.topic} {run.queue_id} goes on at {known}, not {run.first_offset}"
        offsets.last_store_timestamp_ms = stored
        try:
            log.append(taken.records)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            offsets.covered = log.write_offset
        for run in taken.runs:
            offsets.next[run.topic, run.queue_id] = run.first_offset + run.unit_count
        size_bytes, count = len(taken.records), taken.record_count
        offsets.dispatch_cache.add_block(
            DispatchedBlock(position, size_bytes, taken.runs, taken.entries, count, [position], stored, [stored])
        )
        return taken

    def _plain_topic(self, topic: str, queue_count: Callable[[str], int]) -> _PlainTopic:
        count = 0 if topic in self._batch_topics else queue_count(topic)
        if not count or (topic not in self._fields and not valid_topic(topic)):
            return _PlainTopic(topic, 0, b"", 0)
        field, version = self._fields.get(topic) or self._field(topic)
        return _PlainTopic(topic, count, field, MAGIC_V1 if version == 1 else MAGIC_V2)

    def append_made(self, first_size_bytes: int, make: Callable[[AppendContext], EncodedRecords]) -> None:
        """Append with one write the records that `make` gives for their place, the first of which has so many bytes.
        Raises what `make` raises, and StoreError when the disk fails."""
        assert not self._has_crc, "a record's own checksum depends on where it stands"
        log, offsets = self._log, self._offsets
        if offsets.covered != log.write_offset:
            self._take_over()
        try:
            position = log.room_for(first_size_bytes)
            made = make(AppendContext(position, log.room_end, offsets.last_store_timestamp_ms, offsets.next_for))
            assert 0 < len(made.records) <= log.room_end - position, "records fit the file"
            assert made.store_timestamp_ms >= offsets.last_store_timestamp_ms, "store timestamps do not fall"
            known_bytes = sum(block.size_bytes for block in made.blocks)
            assert known_bytes <= len(made.records), "the blocks are of the records"
            log.append(made.records)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            offsets.covered = log.write_offset
        for key, next_offset in made.next_offsets.items():
            known = offsets.next_for(key)
            assert next_offset >= known, f"{key} goes on at {known}, not {next_offset}"
            offsets.next[key] = next_offset
        offsets.last_store_timestamp_ms = made.store_timestamp_ms
        for block in made.blocks:
            offsets.dispatch_cache.add_block(block)

    def check(self, messages: Sequence[NewMessage]) -> None:
        """Raise UsageError if one of these, none of which is an inner batch, cannot be stored."""
        if self._has_crc:
            self.encode_batch(messages)
        else:
            self._check(messages)

    def _check(self, messages: Sequence[NewMessage]) -> None:
        """Raise UsageError if one cannot be stored in a batch as it is."""
        for message in messages:
            if (
                len(message.body) > self._max_message_size
                or len(message.properties) > MAX_PROPERTIES_BYTES
                or message.queue_id < 0
                or seems_lost(message.properties)
                or message.sys_flag & SYS_INNER_BATCH
            ):
                self._refuse(message)
            if message.topic not in self._fields:
                self._field(message.topic)

    def encode_batch(self, messages: Sequence[NewMessage], *, are_checked: bool = False) -> EncodedBatch:
        """The records, whole but for what depends on their place: for `append_encoded`. Raises UsageError if one
        message cannot be stored. `are_checked`: they have passed `check`."""
        if self._has_crc:
            messages = [replace(message, properties=with_crc_room(message.properties)) for message in messages]
        if not are_checked:
            self._check(messages)
        fields = [self._fields.get(message.topic) or self._field(message.topic) for message in messages]
        try:
            return EncodedBatch(messages, fields, has_crc_room=self._has_crc)
        except struct.error as error:
            raise _too_large(messages[0].topic, error) from None

    def append_encoded(self, batch: EncodedBatch, wall_ms: int) -> AppendedBatch:
        """Append in order with one write for each file touched. All share one store timestamp. When the disk fails,
        those of the files before may be appended."""
        log, offsets = self._log, self._offsets
        if offsets.covered != log.write_offset:
            self._take_over()
        offsets.last_store_timestamp_ms = max(offsets.last_store_timestamp_ms, wall_ms)
        try:
            return self._write_all(batch)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            if offsets.covered != log.write_offset:
                offsets.forget()

    def _write_all(self, batch: EncodedBatch) -> AppendedBatch:
        log, starts = self._log, batch.starts
        stored = self._offsets.last_store_timestamp_ms
        phy_offsets: list[int] = []
        queue_offsets = self._number(batch)
        first, count = 0, len(batch)
        while first < count:
            position = log.room_for(starts[first + 1] - starts[first])
            base = position - starts[first]
            # the starts are the ends of the records before: the last one that the active file has room for
            stop = bisect_right(starts, log.room_end - base, first + 1) - 1
            here = [base + start for start in starts[first:stop]]
            data = batch.place(first, stop, here, queue_offsets[first:stop], stored)
            log.append(data)
            if self._kernel is None or not self._found(self._kernel, data, here, stored):
                self._remember(batch, first, here, queue_offsets, stored)
            phy_offsets += here
            first = stop
        self._offsets.covered = log.write_offset
        return AppendedBatch(phy_offsets, queue_offsets, PhyOffset(log.write_offset), stored)

    def _found(self, kernel: BatchKernel, data: memoryview, starts: list[int], stored: int) -> bool:
        """Remember what is derived from records that have just been appended; False, and nothing is, unless all are
        plain."""
        count, size = len(starts), len(data)
        _, runs, entries, stamps = kernel.scan(LogBlock(bytes(data), starts[0], count, count, self._is_keyed))
        if len(stamps) != count:
            return False
        self._offsets.dispatch_cache.add_block(
            DispatchedBlock(starts[0], size, runs, entries, count, [starts[0]], stored, [stored])
        )
        return True

    def _remember(
        self, batch: EncodedBatch, first: int, starts: list[int], queue_offsets: Sequence[int], stored: int
    ) -> None:
        """Remember the records from number `first` on, which have just been appended at `starts`."""
        ends = [*starts[1:], starts[-1] + batch.starts[first + len(starts)] - batch.starts[first + len(starts) - 1]]
        self._offsets.dispatch_cache.add(
            [
                DispatchedRecord(
                    start,
                    end - start,
                    message.topic,
                    message.queue_id,
                    queue_offset,
                    message.sys_flag,
                    stored,
                    message.properties,
                )
                for message, start, end, queue_offset in zip(
                    batch.messages[first:], starts, ends, queue_offsets[first:], strict=False
                )
            ]
        )

    def _number(self, batch: EncodedBatch) -> list[int]:
        """Queue offsets for all records. None is given twice: until the records stand the table counts as torn."""
        offsets, numbers = self._offsets, list[int]()
        offsets.covered = -1
        for key, count in batch.runs:
            if key is None:
                numbers += [0] * count
                continue
            known = offsets.next.get(key)
            start = known if known is not None else offsets.next_for(key)
            offsets.next[key] = start + count
            numbers += range(start, start + count)
        return numbers

    def _take_over(self) -> None:
        """Read the queue offsets of a master's bytes by which the log has grown since the last own append."""
        try:
            self._log.commit()
        except OSError as error:
            raise StoreError(os_sentence(self._log.disk, DIRECTORY, "append", error)) from error
        if self._offsets.cover() != self._log.end_offset:
            raise StoreError(
                f"{place(self._log.disk, DIRECTORY)}: the log's last record, at {self._offsets.covered}, is not whole;"
                " a master must cut it before it appends"
            )

    def _field(self, topic: str) -> tuple[bytes, int]:
        if not valid_topic(topic):
            raise UsageError(f"topic {topic[:80]!r} must have 1 to 255 letters, digits or the characters % | - _")
        result = self._fields[topic] = topic_field(topic)
        return result

    def _numbered(self, message: NewMessage) -> tuple[NewMessage, int]:
        """An inner batch with its queue offset in its properties, and the number of its messages."""
        topic, queue_id = message.topic, message.queue_id
        if topic not in self._batch_topics:
            raise UsageError(f"topic {topic} has not queue.type=BatchCQ: it takes no inner batch")
        try:
            count = message_count(message.sys_flag, message.properties)
        except BadRecordError as error:
            raise UsageError(f"an inner batch for topic {topic}: {error}") from None
        queue_offset = self._offsets.next_for((topic, queue_id))
        base = encode_properties({PROPERTY_INNER_BASE: str(queue_offset)})
        return replace(message, properties=message.properties + base), count

    def _refuse(self, message: NewMessage) -> NoReturn:
        limit = self._max_message_size
        if message.sys_flag & SYS_INNER_BATCH:
            raise UsageError(f"an inner batch for topic {message.topic} is appended alone")
        if len(message.body) > limit:
            raise UsageError(
                f"a message of {len(message.body)} bytes for topic {message.topic} exceeds maxMessageSize = {limit}"
            )
        if message.queue_id < 0:
            raise UsageError(f"queue {message.queue_id} of topic {message.topic} cannot exist")
        if seems_lost(message.properties):
            raise UsageError(
                f"the properties of a message for topic {message.topic} must neither end with a zero byte nor hold"
                f" {SECTOR_BYTES} of them together"
            )
        raise UsageError(
            f"properties of {len(message.properties)} bytes for topic {message.topic}"
            f" exceed {MAX_PROPERTIES_BYTES}; send fewer or shorter ones"
        )


def _too_large(topic: str, error: struct.error) -> UsageError:
    return UsageError(f"a message for topic {topic} has a number that no record can hold ({error})")
