"""Request 103 of brokers with up to MAX_TOPIC_COUNT topics, plain or compressed, read and written in steps. Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from rmqha.model.error import RemoteProtocolError
from rmqha.model.printable import is_printable, name_refusal
from rmqha.wire.bodies import QueueData, Registration, TopicTableVersion, required
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads, loads_in_steps

MAX_TOPIC_COUNT = 200_000
"""Most topics of one registration."""
MAX_TOPIC_NAME_CHARS = 1024
"""Most characters of a topic's name. The longest that a broker makes, of a group and a topic, has 400."""
MAX_FIELD_COUNT = 12
"""Most fields of a topic in a registration."""
SMALL_BYTES = 64 * 1024
"""Most bytes of a body that is parsed in one step, also if it is not strict JSON, as fastjson writes it."""
_WRAPPER, _TABLE = "topicConfigSerializeWrapper", "topicConfigTable"


def is_known(request: Command, known_digest: Callable[[str], str]) -> bool:
    """True if the topics have the digest that is known for the brokerName; then the body is not read."""
    digest = request.ext.get("topicsDigest", "")
    return bool(digest) and digest == known_digest(request.ext.get("brokerName", ""))


def parse_registration(
    request: Command, known_digest: Callable[[str], str] = lambda name: ""
) -> Generator[None, None, Registration]:
    """Parse request 103, in steps. `known_digest`: digest by brokerName; topics with that digest are not read again, as
    every failover sends them again. Raises RemoteProtocolError for a missing or malformed field, or a body whose CRC
    differs."""
    ext, body = request.ext, bytes(request.body)
    declared = _number(ext.get("bodyCrc32", "0"), "bodyCrc32")
    if declared and declared != zlib.crc32(body) & 0x7FFFFFFF:
        raise RemoteProtocolError("the registration's body does not have the CRC-32 of its header")
    for name in ("clusterName", "brokerName", "brokerAddr", "haServerAddr"):
        if fault := name_refusal(name, ext.get(name, "")):
            raise RemoteProtocolError(fault)
    broker_id = _number(required(ext, "brokerId"), "brokerId")
    if broker_id < 0:
        raise RemoteProtocolError(f"brokerId {broker_id} is negative")
    timeout = ext.get("heartbeatTimeoutMillis")
    version: TopicTableVersion | None = None
    table = _Topics()
    if is_known(request, known_digest):
        version = _version_of(required(ext, "topicsVersion"))
    elif body:
        version = yield from (_read_packed(body, table) if _is_packed(ext, body) else _read_plain(body, table))
    return Registration(
        cluster_name=required(ext, "clusterName"),
        broker_name=required(ext, "brokerName"),
        broker_id=broker_id,
        address=required(ext, "brokerAddr"),
        ha_address=ext.get("haServerAddr", ""),
        version=version,
        topics=table.topics,
        enable_acting_master=ext.get("enableActingMaster") == "true",
        timeout_ms=_number(timeout, "heartbeatTimeoutMillis") if timeout else None,
        digest=ext.get("topicsDigest", ""),
    )


class _Topics:
    """Topics of a registration, collected while it is read."""

    def __init__(self) -> None:
        self.topics: dict[str, QueueData] = {}

    def take(self, name: str, topic: Any) -> None:
        """Add a topic. Raises RemoteProtocolError."""
        if not is_printable(name):
            raise RemoteProtocolError("the registration has a topic whose name cannot be printed")
        if len(name) > MAX_TOPIC_NAME_CHARS:
            raise RemoteProtocolError(
                f"the registration has a topic name of more than {MAX_TOPIC_NAME_CHARS} characters"
            )
        try:
            self.topics[name] = QueueData(
                int(topic.get("readQueueNums", 16)),
                int(topic.get("writeQueueNums", 16)),
                int(topic.get("perm", 6)),
                int(topic.get("topicSysFlag", 0)),
            )
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise _no_table(error) from None
        if len(self.topics) > MAX_TOPIC_COUNT:
            raise RemoteProtocolError(f"the registration has more than {MAX_TOPIC_COUNT} topics, and no more are taken")


def _no_table(error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the registration's body is not a topic table: {error!r}")


def _read_plain(body: bytes, table: _Topics) -> Generator[None, None, TopicTableVersion]:
    """Parse an uncompressed body. A large one must be strict JSON and have no more values than its topics need: a list
    of empty lists, or integer keys without quotes, would block the event loop for seconds."""
    if len(body) <= SMALL_BYTES:
        value = loads(body)
    elif (
        sum(map(body.count, (b"[", b"{"))) > 2 * MAX_TOPIC_COUNT + SMALL_BYTES
        or body.count(b",") > MAX_FIELD_COUNT * MAX_TOPIC_COUNT
    ):
        raise RemoteProtocolError(f"the registration has more values than {MAX_TOPIC_COUNT} topics need")
    else:
        yield
        max_count = 2 * MAX_TOPIC_COUNT
        value = yield from loads_in_steps(body, (_WRAPPER, _TABLE), table.take, max_member_count=max_count)
    try:
        wrapper = value[_WRAPPER]
        version = _version(wrapper.get("dataVersion") or {})
        for name, topic in (wrapper.get(_TABLE) or {}).items():
            table.take(str(name), topic)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _no_table(error) from None
    return version


def parse_data_version(body: bytes) -> TopicTableVersion | None:
    """Parse the body of request 322: a version, None if the body is empty. Raises RemoteProtocolError."""
    if not body:
        return None
    try:
        return _version(loads(body))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RemoteProtocolError(f"the body is no version of a topic table: {error!r}") from None


def parse_queues(body: bytes) -> dict[str, QueueData]:
    """Parse the body of request 217, a topic's route: queues by broker group. Raises RemoteProtocolError."""
    if not body:
        return {}
    table = _Topics()
    try:
        for item in loads(body).get("queueDatas") or ():
            table.take(str(item["brokerName"]), item)
    except (TypeError, KeyError, AttributeError) as error:
        raise RemoteProtocolError(f"the body is no topic's route: {error!r}") from None
    return table.topics


def _version(stamp: Any) -> TopicTableVersion:
    return TopicTableVersion(*(int(stamp.get(name, 0)) for name in ("counter", "stateVersion", "timestamp")))


def _version_of(text: str) -> TopicTableVersion:
    parts = text.split(";")
    if len(parts) != len(TopicTableVersion._fields):
        raise RemoteProtocolError(f"topicsVersion {text!r} is not counter;stateVersion;timestamp")
    return TopicTableVersion(*(_number(part, "topicsVersion") for part in parts))


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"{name} = {text!r} is not a whole number") from None


# --- the compressed body (compressedRegister=true) --------------------------------------------------------------------
# Parts: the data version (JSON); the number of topics and each as "name readQueues writeQueues perm filterType
# attributes"; the filter servers (JSON list); of brokers from 5.0 on the number of static topics and each as JSON.
# Numbers and lengths are 32 bits, big endian. A topic's system flags and order are not in it.

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
ZLIB_START = b"x"
"""First byte of a compressed body; an uncompressed one begins with a brace."""
PACKED_AT_A_TIME = 256
"""Topics that are compressed in one step."""
_PIECE_BYTES = 64 * 1024
"""Bytes that are decompressed at a time."""
_INT = struct.Struct(">i")
_ROW_FIELD_COUNT = 5


def _is_packed(ext: Mapping[str, str], body: bytes) -> bool:
    """True if the body is compressed. Apache's brokers of 5.x send a compressed body with compressed=false, which their
    own name servers refuse."""
    return ext.get("compressed") == "true" or body[:1] == ZLIB_START


def pack(
    data_version: Mapping[str, int], topic_count: int, topics: Iterable[Mapping[str, Any]]
) -> Generator[None, None, bytes]:
    """Compress a data version and topics, both in the form of topics.json (formats.md §9), in steps."""
    stream = zlib.compressobj(9)
    packed = [stream.compress(_part(dumps(data_version)) + _INT.pack(topic_count))]
    for place, topic in enumerate(topics, start=1):
        packed.append(stream.compress(_part(_row(topic))))
        if place % PACKED_AT_A_TIME == 0:
            yield
    packed += (stream.compress(_part(b"[]") + _INT.pack(0)), stream.flush())
    return b"".join(packed)


def _read_packed(body: bytes, table: _Topics) -> Generator[None, None, TopicTableVersion]:
    parts = _Parts(_inflated(body))
    try:
        version = _version(loads(parts.part()))
        count = parts.number()
        if count > MAX_TOPIC_COUNT:
            raise ValueError(f"{count} topics; at most {MAX_TOPIC_COUNT} are taken")
        for _ in range(count):
            _take_row(parts.part().decode(), table)
            if parts.has_grown():
                yield
        while parts.skip():  # not read, but a part of it
            yield
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RemoteProtocolError(f"the compressed registration is not one: {error}") from None
    return version


def _take_row(row: str, table: _Topics) -> None:
    fields = row.split(" ")
    if len(fields) < _ROW_FIELD_COUNT:
        raise ValueError(f"{row[:100]!r} is not a topic")
    name, read_count, write_count, perm = fields[:4]
    table.take(name, {"readQueueNums": read_count, "writeQueueNums": write_count, "perm": perm})


def _inflated(body: bytes) -> Iterator[bytes]:
    """Decompress a body piece by piece: one of 16 MiB may have a thousand times as many bytes."""
    stream, size_bytes, view = zlib.decompressobj(), 0, memoryview(body)
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            packed: bytes | memoryview = view[start : start + _PIECE_BYTES]
            while packed and not stream.eof:
                piece = stream.decompress(packed, _PIECE_BYTES)
                packed = stream.unconsumed_tail
                size_bytes += len(piece)
                if size_bytes > MAX_UNPACKED_BYTES:
                    raise RemoteProtocolError(f"the compressed registration is above {MAX_UNPACKED_BYTES} bytes")
                yield piece
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed registration cannot be unpacked: {error}") from None
    if not stream.eof:
        raise RemoteProtocolError("the compressed registration is cut off")


class _Parts:
    """Reader of the parts of a decompressed body. Raises ValueError for bytes that are no such parts."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data, self._at = b"", 0
        self._has_grown = False

    def grow(self) -> bool:
        """Drop the bytes that were read and decompress another piece; False if there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._data, self._at, self._has_grown = self._data[self._at :] + piece, 0, True
        return True

    def skip(self) -> bool:
        """Decompress another piece and drop it; False if there is none."""
        self._data, self._at = b"", 0
        return next(self._pieces, None) is not None

    def has_grown(self) -> bool:
        """True if `grow` has decompressed a piece since the last call."""
        has_grown, self._has_grown = self._has_grown, False
        return has_grown

    def _take(self, size_bytes: int) -> bytes:
        while len(self._data) < self._at + size_bytes:
            if not self.grow():
                raise ValueError(f"it ends {self._at + size_bytes - len(self._data)} bytes too early")
        start, self._at = self._at, self._at + size_bytes
        return self._data[start : self._at]

    def number(self) -> int:
        value: int = _INT.unpack(self._take(_INT.size))[0]
        return value

    def part(self) -> bytes:
        size_bytes = self.number()
        if not 0 <= size_bytes <= SMALL_BYTES:
            raise ValueError(f"a part of {size_bytes} bytes")
        return self._take(size_bytes)


def _part(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _row(topic: Mapping[str, Any]) -> bytes:
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    return " ".join(str(topic[name]) for name in names).encode() + b" " + dumps(topic.get("attributes") or {})
