"""Parts of a message besides its body: properties, system flags, tag hash and ids. Data plane; pure.

Layouts: formats.md §2.1, §2.2, §3 and §12.3. Checked against records and ids of a real broker (tests/golden/store).
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from typing import NamedTuple

PROPERTY_SEPARATOR = 2
MAX_PROPERTIES_BYTES = 32767
"""The record's length field is a signed int16."""
MAX_TOPIC_BYTES = 255
RETRY_PREFIX = "%RETRY%"
"""Prefix of a consumer group's retry topic; DLQ_PREFIX: of its dead letter topic."""
DLQ_PREFIX = "%DLQ%"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Topic in which transactional messages wait until their producer has ended the transaction."""
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Topic of marks that say which of them no longer wait."""
ROCKSDB_TRANSACTION_TOPICS = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
"""Topics in their place for brokers of Apache's that keep transactions in RocksDB."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Topic in which timer messages wait, all in queue 0."""
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Prefix of a cluster's revive topic, which has the checkpoints of popped messages."""
REVIVE_QUEUE_COUNT = 8
"""Queues of that topic."""
REPLY_TOPIC_POSTFIX = "_REPLY_TOPIC"
"""Suffix of a cluster's reply topic, for answers to messages whose producers wait for them."""
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of messages whose producer never said how the transaction ended."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Consumer group whose offsets are the progress in both transaction topics."""

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT = "WAIT"
PROPERTY_DELAY = "DELAY"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_ON = "TRACE_ON"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_PROPERTIES = (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
"""Properties by which a producer asks for a time; the first that is there counts."""
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DELETE_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_ORIGIN_GROUP = "ORIGIN_GROUP"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_PRIORITY = "_SYS_MSG_PRIORITY_"
PROPERTY_CRC32 = "__CRC32#"
PROPERTY_ACCOUNT = "RMQHA_ACCOUNT"
"""Own. Property of a half message and of a recall: the account (`Principal.mark`) whose share it counts for."""

SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_MULTI_TAGS = 0x2
SYS_FLAG_TRANSACTION_MASK = 0xC
SYS_FLAG_TRANSACTION_PREPARED = 0x4
SYS_FLAG_TRANSACTION_COMMIT = 0x8
SYS_FLAG_TRANSACTION_ROLLBACK = 0xC
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
SYS_FLAG_NEED_UNWRAP = 0x40
SYS_FLAG_INNER_BATCH = 0x80
SYS_FLAG_COMPRESSION_MASK = 0x700
SYS_FLAG_COMPRESSION_LZ4 = 0x100
SYS_FLAG_COMPRESSION_ZSTD = 0x200
SYS_FLAG_COMPRESSION_ZLIB = 0x300
"""Zlib; old clients set SYS_FLAG_COMPRESSED with an all-zero compression field for it."""

_RECALL_VERSION = "v1"
RESERVED_PROPERTIES = (PROPERTY_CRC32, PROPERTY_POP_CK)
"""Properties that no client may set: a record's own CRC (formats.md §2.3), which recovery checks, and the receipt of a
pop, which consumers trust."""
_RESERVED = tuple(name.encode() for name in RESERVED_PROPERTIES)
_PAIRS = re.compile(rb"[^\x01\x02]+\x01[^\x02]*(?:\x02[^\x01\x02]+\x01[^\x02]*)*\x02?")
_INT32 = re.compile("[+-]?[0-9]{1,10}")
_NO_PRIORITY = (PROPERTY_DELAY, *TIMER_PROPERTIES, PROPERTY_SHARDING_KEY)
_PORT = struct.Struct(">i")
_OFFSET_ID_TAIL = struct.Struct(">iq")
_UNIQUE_KEY_TAIL = struct.Struct(">HIIH")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as stored, `name 0x01 value 0x02` for each pair, in the mapping's order: every mapping that
    `decode_properties` gives can be encoded, a value that holds 0x01 too. ValueError if a name is empty or holds a
    separator, if a value holds 0x02, or if something cannot be UTF-8; the caller checks MAX_PROPERTIES_BYTES after
    adding its own pairs."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x02") != len(properties) or "" in properties or "\x01" in "".join(properties):
        raise ValueError("a property's name is empty or holds the character 0x01, or a name or value holds 0x02")
    return text.encode()


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The pairs of a properties field. Lenient as Java's decoder: a pair without 0x01 is skipped, the last 0x02 may be
    missing, a repeated name keeps its last value, bytes that are not UTF-8 become U+FFFD."""
    pairs = str(data, "utf-8", "replace").split("\x02")
    return {name: value for name, separator, value in (pair.partition("\x01") for pair in pairs) if separator and name}


def has_reserved(data: bytes) -> bool:
    """True if encoded properties may contain a reserved one."""
    return any(name in data for name in _RESERVED)


def without_reserved(data: bytes) -> bytes:
    """Encoded properties without the reserved ones."""
    if not has_reserved(data):
        return data
    found = decode_properties(data)
    return encode_properties({name: found[name] for name in found if name not in RESERVED_PROPERTIES})


def priority_of(properties: Mapping[str, str]) -> int | None:
    """Priority of a message, parsed as RocketMQ does; None without one. −1: the property is ignored, because the
    message is transactional, delayed, or ordered."""
    text = properties.get(PROPERTY_PRIORITY, "")
    if not _INT32.fullmatch(text) or not 0 <= (priority := int(text)) < 1 << 31:
        return None
    is_prepared = properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"
    is_other = is_prepared or not properties.keys().isdisjoint(_NO_PRIORITY)
    return -1 if is_other else priority


def are_whole(data: bytes) -> bool:
    """True if encoded properties have the form that brokers write: UTF-8 and complete pairs. Damage rarely passes."""
    if _PAIRS.fullmatch(data) is None:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Value of one property without decoding the others; None if absent. Same result as `decode_properties`."""
    needle = name + b"\x01"
    # a repeated name keeps its last value, so the search runs backwards
    start = data.rfind(needle)
    while start > 0 and data[start - 1] != PROPERTY_SEPARATOR:
        start = data.rfind(needle, 0, start)
    if start < 0:
        return None
    start += len(needle)
    end = data.find(b"\x02", start)
    return data[start:] if end < 0 else data[start:end]


_HASH_PIECE = 64
_HASH_POWERS = tuple(pow(31, number, 1 << 32) for number in reversed(range(_HASH_PIECE)))
_HASH_STEP = pow(31, _HASH_PIECE, 1 << 32)


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: a signed 32-bit number over UTF-16 units. tagsCode is the hash of TAGS; the index hashes
    its keys so too."""
    data = text.encode("ascii" if text.isascii() else "utf-16-be")
    units: Sequence[int] = data if text.isascii() else struct.unpack(f">{len(data) // 2}H", data)
    first = len(units) % _HASH_PIECE
    value: int = sum(map(mul, units[:first], _HASH_POWERS[_HASH_PIECE - first :]))
    for start in range(first, len(units), _HASH_PIECE):
        value = (value * _HASH_STEP + sum(map(mul, units[start : start + _HASH_PIECE], _HASH_POWERS))) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


MAX_REMEMBERED_TAGS_BYTES = 256
"""Most bytes of TAGS whose hash is cached: thousands of longer ones would fill the memory."""


def tags_code(tags: str | None) -> int:
    """tagsCode of a message's TAGS in its ConsumeQueue; 0 without TAGS."""
    return java_string_hash(tags) if tags else 0


def offset_message_id(store_host: tuple[bytes, int], phy_offset: int) -> str:
    """offsetMsgId of a record: its broker's address and physical offset, 32 characters for IPv4, 56 for IPv6."""
    address, port = store_host
    return (address + _OFFSET_ID_TAIL.pack(port, phy_offset)).hex().upper()


def offset_message_ids(store_host: tuple[bytes, int], phy_offsets: Sequence[int]) -> str:
    """Offset message ids of records (`offset_message_id`), separated by commas."""
    address, port = store_host
    host = (address + _PORT.pack(port)).hex().upper()
    offsets = struct.pack(f">{len(phy_offsets)}q", *phy_offsets).hex(",", 8).upper()
    return host + offsets.replace(",", "," + host)


def parse_offset_message_id(message_id: str) -> tuple[tuple[bytes, int], int]:
    """Parse an offsetMsgId: (store host, physical offset). Raises ValueError."""
    # fromhex skips white space, so the decoded length is what counts
    data = bytes.fromhex(message_id)
    if len(data) not in (16, 28):
        raise ValueError(f"{message_id!r} is not an offset message id: it must have 32 or 56 hex digits")
    port, phy_offset = _OFFSET_ID_TAIL.unpack(data[-_OFFSET_ID_TAIL.size :])
    return (data[: -_OFFSET_ID_TAIL.size], port), phy_offset


def unique_key(ip: bytes, pid: int, month_ms: int, counter: int, instance_hash: int = 0) -> str:
    """UNIQ_KEY, the producer's message id: 32 characters for a 4-byte `ip`, 56 for 16 bytes.

    `month_ms` counts from the start of the current month; `instance_hash` tells processes that share a pid apart
    (Java puts its class loader's hash there). Numbers wrap to their field's width.
    """
    tail = _UNIQUE_KEY_TAIL.pack(pid & 0xFFFF, instance_hash & 0xFFFFFFFF, month_ms & 0xFFFFFFFF, counter & 0xFFFF)
    return (ip + tail).hex().upper()


class UniqueKeys:
    """Generator of the unique keys of one producer, or of a broker for messages without one."""

    def __init__(self, ip: bytes, pid: int, instance_hash: int, month_of: Callable[[int], tuple[int, int]]) -> None:
        """`month_of`: start and end (ms) of the local month of a wall time, as RocketMQ's tools count."""
        self._ip = ip
        self._pid = pid
        self._instance_hash = instance_hash
        self._month_of = month_of
        self._month_ms = 0, 0
        self._counter = 0

    def make(self, wall_ms: int) -> str:
        self._counter += 1
        start_ms, end_ms = self._month_ms
        if not start_ms <= wall_ms < end_ms:
            start_ms, end_ms = self._month_ms = self._month_of(wall_ms)
        return unique_key(self._ip, self._pid, wall_ms - start_ms, self._counter, self._instance_hash)


class RecallHandle(NamedTuple):
    """Handle for the recall of a timer message. `at_ms`: wall time (ms) in the slot of its delivery."""

    topic: str
    broker_name: str
    at_ms: int
    unique_key: str

    def encode(self) -> str:
        text = " ".join((_RECALL_VERSION, self.topic, self.broker_name, str(self.at_ms), self.unique_key))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Parse a handle. Raises ValueError for a text that is none. A time that is no number is −1, as in RocketMQ."""
        try:
            # Java's decoder bears missing padding, and nothing that is not of its alphabet
            data = base64.b64decode(handle + "=" * (-len(handle) % 4), altchars=b"-_", validate=True)
            text = data.decode()
        except (binascii.Error, ValueError):
            raise ValueError(f"{handle[:40]!r} is no recall handle: it is not base64 of text") from None
        version, *parts = text.split(" ", 4)
        if version != _RECALL_VERSION or len(parts) != 4 or not all(parts) or not text.isprintable():
            raise ValueError(f"{handle[:40]!r} is no recall handle: it does not name topic, broker, time and message")
        topic, broker_name, time, unique_key = parts
        is_time = time.isascii() and time.isdigit() and len(time) <= 18
        return cls(topic, broker_name, int(time) if is_time else -1, unique_key)
