"""Data plane: a master's own appends: queue offset, store timestamp, record, log.

The one place that gives queue offsets out. The path of a single message is written out flat: it is the send path's
cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.store.commit_log import DIRECTORY, CommitLog
from rmqha.store.problem import os_sentence, place
from rmqha.store.record import (
    MAX_PROPERTIES_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION,
    NewMessage,
    encode,
    fixed_bytes,
    topic_field,
)
from rmqha.store.reput import QueueOffsets, valid_topic

_TAIL_BYTES = 2
"""The length field of the properties."""


class Appended(NamedTuple):
    """Where a message stands now."""

    phy_offset: PhyOffset
    end_offset: PhyOffset
    queue_offset: QueueOffset
    store_timestamp_ms: int


class Appender:
    """Appends messages. `batch_topics` are refused: their queues count otherwise."""

    def __init__(
        self, log: CommitLog, offsets: QueueOffsets, max_message_size: int, batch_topics: frozenset[str]
    ) -> None:
        self._log = log
        self._offsets = offsets
        self._max_message_size = max_message_size
        self._batch_topics = batch_topics
        self._fields: dict[str, tuple[bytes, int]] = {}
        """Topic to the bytes it has in a record and the record's version."""

    def append(self, message: NewMessage, wall_ms: int) -> Appended:
        """Append one message. Raises UsageError for one that cannot be stored, StoreError when the disk fails."""
        log, offsets = self._log, self._offsets
        if offsets.covered != log.end_offset:
            self._take_over()
        topic = message.topic
        field, version = self._fields.get(topic) or self._field(topic)
        body_size, queue_id, properties = len(message.body), message.queue_id, message.properties
        properties_size = len(properties)
        if (
            body_size > self._max_message_size
            or properties_size > MAX_PROPERTIES_BYTES
            or queue_id < 0
            or properties.endswith(b"\0")
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
        size = fixed_bytes(message) + body_size + len(field) + _TAIL_BYTES + properties_size
        try:
            position = log.room_for(size)
            log.append(encode(message, field, version, queue_offset if queued else 0, position, stored))
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            offsets.covered = log.end_offset
        if queued:
            offsets.next[key] = queue_offset + 1
        return Appended(
            PhyOffset(position), PhyOffset(position + size), QueueOffset(queue_offset if queued else 0), stored
        )

    def append_batch(self, messages: Sequence[NewMessage], wall_ms: int) -> list[Appended]:
        """Append in order with one write for each file touched. All share one store timestamp. Nothing is appended if
        one message cannot be stored; when the disk fails, those of the files before may be."""
        log, offsets = self._log, self._offsets
        if offsets.covered != log.end_offset:
            self._take_over()
        for message in messages:
            if (
                len(message.body) > self._max_message_size
                or len(message.properties) > MAX_PROPERTIES_BYTES
                or message.queue_id < 0
                or message.properties.endswith(b"\0")
            ):
                self._refuse(message)
        fields = [self._fields.get(message.topic) or self._field(message.topic) for message in messages]
        offsets.last_store_timestamp_ms = max(offsets.last_store_timestamp_ms, wall_ms)
        try:
            return self._write_all(messages, fields)
        except OSError as error:
            raise StoreError(os_sentence(log.disk, DIRECTORY, "append", error)) from error
        finally:
            if offsets.covered != log.end_offset:
                offsets.forget()

    def _write_all(self, messages: Sequence[NewMessage], fields: list[tuple[bytes, int]]) -> list[Appended]:
        log, offsets, next_offsets = self._log, self._offsets, self._offsets.next
        stored = offsets.last_store_timestamp_ms
        done: list[Appended] = []
        parts: list[bytes] = []
        position = 0
        offsets.covered = -1  # no offset is given twice: until the end the table counts as torn
        for message, (field, version) in zip(messages, fields, strict=True):
            size = fixed_bytes(message) + len(message.body) + len(field) + _TAIL_BYTES + len(message.properties)
            if not parts or not log.fits(position - log.end_offset + size):
                if parts:
                    log.append(b"".join(parts))
                    parts.clear()
                position = log.room_for(size)
            key = (message.topic, message.queue_id)
            queue_offset = 0
            if message.sys_flag & SYS_TRANSACTION in (0, SYS_COMMIT):
                known = next_offsets.get(key)
                queue_offset = known if known is not None else offsets.next_for(key)
                next_offsets[key] = queue_offset + 1
            parts.append(encode(message, field, version, queue_offset, position, stored))
            end = position + size
            done.append(Appended(PhyOffset(position), PhyOffset(end), QueueOffset(queue_offset), stored))
            position = end
        if parts:
            log.append(b"".join(parts))
        offsets.covered = log.end_offset
        return done

    def _take_over(self) -> None:
        """The log has grown by a master's bytes since the last own append: read their queue offsets."""
        if self._offsets.cover() != self._log.end_offset:
            raise StoreError(
                f"{place(self._log.disk, DIRECTORY)}: the log's last record, at {self._offsets.covered}, is not whole;"
                " a master must cut it before it appends"
            )

    def _field(self, topic: str) -> tuple[bytes, int]:
        if not valid_topic(topic):
            raise UsageError(f"topic {topic[:80]!r} must have 1 to 255 letters, digits or the characters % | - _")
        if topic in self._batch_topics:
            raise UsageError(f"topic {topic} has queue.type=BatchCQ, which this release does not write")
        result = self._fields[topic] = topic_field(topic)
        return result

    def _refuse(self, message: NewMessage) -> NoReturn:
        limit = self._max_message_size
        if len(message.body) > limit:
            raise UsageError(
                f"a message of {len(message.body)} bytes for topic {message.topic} exceeds maxMessageSize = {limit}"
            )
        if message.queue_id < 0:
            raise UsageError(f"queue {message.queue_id} of topic {message.topic} cannot exist")
        if message.properties.endswith(b"\0"):
            raise UsageError(f"the properties of a message for topic {message.topic} must not end with a zero byte")
        raise UsageError(
            f"properties of {len(message.properties)} bytes for topic {message.topic}"
            f" exceed {MAX_PROPERTIES_BYTES}; send fewer or shorter ones"
        )
