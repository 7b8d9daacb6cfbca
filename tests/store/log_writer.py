"""A small writer of CommitLog files, and a slow reader of the same: what the vectorised reader is compared with."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqha.model.message import tags_code

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
HOST_V4 = (b"\x7f\x00\x00\x01", 10911)
HOST_V6 = (bytes.fromhex("20010db8000000000000000000000007"), 10911)
HOST_TEXTS = {HOST_V4[0]: "127.0.0.1", HOST_V6[0]: "[2001:db8::7]"}


@dataclass(frozen=True)
class Message:
    topic: bytes = b"orders"
    body: bytes = b"hello"
    properties: bytes = b"KEYS\x01k1 k2\x02TAGS\x01red\x02UNIQ_KEY\x01U1\x02"
    queue_id: int = 0
    queue_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_at_ms: int = 1_700_000_000_000
    stored_at_ms: int = 1_700_000_000_500
    born_v6: bool = False
    store_v6: bool = False
    v2: bool = False
    reconsume_times: int = 0
    prepared: int = 0


def encode(message: Message, phy_offset: int) -> bytes:
    born = HOST_V6 if message.born_v6 else HOST_V4
    store = HOST_V6 if message.store_v6 else HOST_V4
    sys_flag = message.sys_flag | (0x10 if message.born_v6 else 0) | (0x20 if message.store_v6 else 0)
    crc = zlib.crc32(message.body) & 0x7FFFFFFF
    topic_size = struct.pack(">H" if message.v2 else ">B", len(message.topic))
    rest = (
        struct.pack(">iiiiqqiq", *_head(message, crc, phy_offset, sys_flag))
        + born[0]
        + struct.pack(">i", born[1])
        + struct.pack(">q", message.stored_at_ms)
        + store[0]
        + struct.pack(">iiqi", store[1], message.reconsume_times, message.prepared, len(message.body))
        + message.body
        + topic_size
        + message.topic
        + struct.pack(">H", len(message.properties))
        + message.properties
    )
    # magic is the first of rest's fields; the size counts itself
    return struct.pack(">I", len(rest) + 4) + rest


def _head(message: Message, crc: int, phy_offset: int, sys_flag: int) -> tuple[int, ...]:
    magic = (MAGIC_V2 if message.v2 else MAGIC_V1) - 2**32
    return (
        magic,
        crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        phy_offset,
        sys_flag,
        message.born_at_ms,
    )


@dataclass
class LogWriter:
    """Writes files of `file_bytes` below `root`/commitlog, and the ConsumeQueue entries when told to."""

    root: Path
    file_bytes: int = 64 * 1024
    base: int = 0
    end: int = 0
    queue_entries: dict[tuple[bytes, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(queueOffset, physical offset, size)"""
    tags_codes: dict[int, int] = field(default_factory=dict)
    """By physical offset."""
    pieces: dict[int, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end = self.base

    def append(self, message: Message, *, dispatched: bool = True) -> int:
        """Physical offset of the record."""
        record = encode(message, self.end)
        left = self.file_bytes - self.end % self.file_bytes
        if len(record) + 8 > left:
            self._put(struct.pack(">iI", left, MAGIC_BLANK) + b"\xee" * (left - 8))
            record = encode(message, self.end)
        offset = self.end
        self._put(record)
        if dispatched:
            entry = (message.queue_offset, offset, len(record))
            self.tags_codes[offset] = tags_code(slow_properties(message.properties).get("TAGS"))
            self.queue_entries.setdefault((message.topic, message.queue_id), []).append(entry)
        return offset

    def append_all(self, messages: Sequence[Message], *, dispatched: bool = True) -> list[int]:
        return [self.append(message, dispatched=dispatched) for message in messages]

    def _put(self, data: bytes) -> None:
        self.put(self.end, data)
        self.end += len(data)

    def put(self, offset: int, data: bytes) -> None:
        """Write `data` wherever the test wants it: damage, or a torn record."""
        start = offset // self.file_bytes * self.file_bytes
        if start not in self.pieces:
            self.pieces[start] = bytearray(self.file_bytes)
        self.pieces[start][offset - start : offset - start + len(data)] = data

    def write(self, *, confirm_offset: int | None = None, identity: str = "c#group-a#1", epochs: str = "") -> Path:
        """Write all files anew; `confirm_offset` goes into the checkpoint."""
        (self.root / "commitlog").mkdir(parents=True, exist_ok=True)
        for start, piece in self.pieces.items():
            (self.root / "commitlog" / f"{start:020}").write_bytes(piece)
        for (topic, queue_id), entries in self.queue_entries.items():
            directory = self.root / "consumequeue" / topic.decode() / str(queue_id)
            directory.mkdir(parents=True, exist_ok=True)
            queue = bytearray(20 * (max(entries)[0] + 100))
            for queue_offset, offset, size in entries:
                struct.pack_into(">qiq", queue, queue_offset * 20, offset, size, self.tags_codes.get(offset, 0))
            (directory / f"{0:020}").write_bytes(queue)
        if confirm_offset is not None:
            (self.root / "checkpoint").write_bytes(struct.pack(">qqqqq", 0, 0, 0, 0, confirm_offset).ljust(4096, b"\0"))
        if identity:
            (self.root / "brokerIdentity").write_text(identity)
        if epochs:
            (self.root / "epochFileCheckpoint").write_text(epochs)
        return self.root

    def write_topics(self) -> None:
        """Write the broker's table of topics, with as many queues as were written to."""
        counts: dict[str, int] = {}
        for topic, queue_id in self.queue_entries:
            counts[topic.decode()] = max(counts.get(topic.decode(), 0), queue_id + 1)
        table = {
            name: {"topicName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
            for name, count in counts.items()
        }
        (self.root / "config").mkdir(exist_ok=True)
        (self.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def slow_properties(stored: bytes) -> dict[str, str]:
    """As MessageDecoder.string2messageProperties reads them."""
    found = {}
    for piece in stored.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if name and separator and value:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def slow_rows(files: Sequence[tuple[int, bytes]], end: int) -> list[dict[str, Any]]:
    """Every record below `end`, field by field, one struct call each."""
    rows = []
    for base, data in files:
        at = 0
        while at + 8 <= len(data) and base + at < end:
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == MAGIC_BLANK:
                break
            rows.append(slow_row(data, at, magic))
            at += size
    return rows


def slow_row(data: bytes, start: int, magic: int) -> dict[str, Any]:
    size, _, crc, queue_id, flag, queue_offset, phy_offset, sys_flag, born_at_ms = struct.unpack_from(
        ">iIiiiqqiq", data, start
    )
    at = start + 48
    born, at = _host(data, at, bool(sys_flag & 0x10))
    stored_at_ms = struct.unpack_from(">q", data, at)[0]
    store, at = _host(data, at + 8, bool(sys_flag & 0x20))
    reconsume_times, prepared, body_size = struct.unpack_from(">iqi", data, at)
    body = data[at + 16 : at + 16 + body_size]
    at += 16 + body_size
    topic_size = struct.unpack_from(">H" if magic == MAGIC_V2 else ">B", data, at)[0]
    at += 2 if magic == MAGIC_V2 else 1
    topic = data[at : at + topic_size]
    at += topic_size
    properties = slow_properties(data[at + 2 : start + size])
    return {
        "topic": topic.decode("utf-8", "replace"),
        "flag": flag,
        "body": body,
        "properties": json.dumps(properties, ensure_ascii=False, separators=(",", ":")),
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "bornTimestamp": born_at_ms,
        "storeTimestamp": stored_at_ms,
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "tags": properties.get("TAGS"),
        "uniqKey": properties.get("UNIQ_KEY"),
        "physicalOffset": phy_offset,
        "storeSize": size,
        "sysFlag": sys_flag,
        "bornHost": born,
        "storeHost": store,
        "reconsumeTimes": reconsume_times,
        "preparedTransactionOffset": prepared,
        "bodyCRC": crc,
    }


def _host(data: bytes, at: int, wide: bool) -> tuple[str, int]:
    size = 16 if wide else 4
    address, port = data[at : at + size], struct.unpack_from(">i", data, at + size)[0]
    return f"{HOST_TEXTS[address]}:{port}", at + size + 4
