"""JSON bodies between brokers, name servers and clients (formats.md §14 and §15), built and parsed. Control plane.

Members are written in the order of Apache RocketMQ's encoder, so that a body equals the captured one byte for byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.printable import is_printable, name_fault
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads

MAX_TOPIC_COUNT = 200_000
"""Topics of one registration."""
MAX_FIELD_COUNT = 12
"""Fields of a topic in it."""
MAX_LENIENT_BYTES = 64 * 1024
"""JSON as fastjson writes it where it is not strict is read up to here."""


class TopicTableVersion(NamedTuple):
    """Version stamp of a broker's topic table. Two tables are the same if all three numbers are."""

    counter: int = 0
    state_version: int = 0
    """The master epoch under which the table was last changed."""
    timestamp: int = 0

    def to_json(self) -> dict[str, int]:
        """The three numbers by the names of RocketMQ's DataVersion."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


class QueueData(NamedTuple):
    """The queues of one topic on one group."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class GroupData:
    """One broker group as clients see it; broker id 0 is the master."""

    broker_name: str
    cluster_name: str
    addresses: Mapping[int, str]
    enable_acting_master: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """Request 103: who a broker is and, with its topics, what it serves. `version` None: sent without a body."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: TopicTableVersion | None
    topics: Mapping[str, QueueData]
    enable_acting_master: bool = False
    timeout_ms: int | None = None
    """Time (ms) for which the broker may stay silent before it counts as gone; None: the name server's own bound."""
    digest: str = ""
    """Digest of the topics without their version, from a broker of ours. `topics` is empty if it is the known one."""


def register_broker_request(
    *,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    address: str,
    ha_address: str,
    topic_config_table: Mapping[str, Mapping[str, Any]],
    data_version: Mapping[str, int],
) -> Command:
    """Request 103. `topic_config_table` and `data_version` have the shape of topics.json (formats.md §9)."""
    body = dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": data_version,
                "mappingDataVersion": TopicTableVersion().to_json(),
                "topicConfigTable": topic_config_table,
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )
    ext = {
        "brokerId": str(int(broker_id)),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "clusterName": cluster_name,
        "brokerAddr": address,
        "enableActingMaster": "false",
        "haServerAddr": ha_address,
        "compressed": "false",
        "brokerName": broker_name,
    }
    return Command(RequestCode.REGISTER_BROKER, ext, body)


def parse_registration(request: Command, known_digest: Callable[[str], str] = lambda name: "") -> Registration:
    """`known_digest` by brokerName: topics with that digest are not read again, since a table of 20,000 takes 70 ms and
    every failover brings it anew. Raises RemoteProtocolError for a missing or malformed field, or a body whose CRC
    differs."""
    ext, body = request.ext, bytes(request.body)
    declared = _number(ext.get("bodyCrc32", "0"), "bodyCrc32")
    if declared and declared != zlib.crc32(body) & 0x7FFFFFFF:
        raise RemoteProtocolError("the registration's body does not have the CRC-32 of its header")
    broker_name, digest = required(ext, "brokerName"), ext.get("topicsDigest", "")
    version: TopicTableVersion | None = None
    topics: dict[str, QueueData] = {}
    if digest and digest == known_digest(broker_name):
        version = _version_of(required(ext, "topicsVersion"))
    elif body:
        version, topics = _parse_topics(unpack(body) if _is_packed(ext, body) else _loads_bounded(body))
    timeout = ext.get("heartbeatTimeoutMillis")
    for name in ("clusterName", "brokerName", "brokerAddr", "haServerAddr"):
        if fault := name_fault(name, ext.get(name, "")):
            raise RemoteProtocolError(fault)
    if not is_printable("".join(topics)):
        raise RemoteProtocolError("the registration has a topic whose name cannot be printed")
    broker_id = _number(required(ext, "brokerId"), "brokerId")
    if broker_id < 0:
        raise RemoteProtocolError(f"brokerId {broker_id} is negative")
    return Registration(
        cluster_name=required(ext, "clusterName"),
        broker_name=broker_name,
        broker_id=broker_id,
        address=required(ext, "brokerAddr"),
        ha_address=ext.get("haServerAddr", ""),
        version=version,
        topics=topics,
        enable_acting_master=ext.get("enableActingMaster") == "true",
        timeout_ms=_number(timeout, "heartbeatTimeoutMillis") if timeout else None,
        digest=digest,
    )


def _loads_bounded(body: bytes) -> Any:
    """A large table must be strict JSON, and have as many values as its topics need: a list of empty lists, or integer
    keys without quotes, cost the event loop seconds."""
    is_large = len(body) > MAX_LENIENT_BYTES
    if is_large and (
        sum(map(body.count, (b"[", b"{"))) > 2 * MAX_TOPIC_COUNT + MAX_LENIENT_BYTES
        or body.count(b",") > MAX_FIELD_COUNT * MAX_TOPIC_COUNT
    ):
        raise RemoteProtocolError(f"the registration has more values than {MAX_TOPIC_COUNT} topics need")
    return loads(body, is_strict=is_large)


def _is_packed(ext: Mapping[str, str], body: bytes) -> bool:
    """Apache's brokers of 5.x send a compressed body under compressed=false: their own name servers refuse it."""
    return ext.get("compressed") == "true" or body[:1] == ZLIB_START


def _version_of(text: str) -> TopicTableVersion:
    parts = text.split(";")
    if len(parts) != len(TopicTableVersion._fields):
        raise RemoteProtocolError(f"topicsVersion {text!r} is not counter;stateVersion;timestamp")
    return TopicTableVersion(*(_number(part, "topicsVersion") for part in parts))


def _parse_topics(value: Any) -> tuple[TopicTableVersion, dict[str, QueueData]]:
    try:
        wrapper = value["topicConfigSerializeWrapper"]
        stamp = wrapper.get("dataVersion") or {}
        table = wrapper.get("topicConfigTable") or {}
        if len(table) > MAX_TOPIC_COUNT:
            raise RemoteProtocolError(f"the registration has {len(table)} topics; at most {MAX_TOPIC_COUNT} are taken")
        version = TopicTableVersion(*(int(stamp.get(name, 0)) for name in ("counter", "stateVersion", "timestamp")))
        topics = {
            str(name): QueueData(
                int(topic.get("readQueueNums", 16)),
                int(topic.get("writeQueueNums", 16)),
                int(topic.get("perm", 6)),
                int(topic.get("topicSysFlag", 0)),
            )
            for name, topic in table.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise RemoteProtocolError(f"the registration's body is not a topic table: {error!r}") from None
    return version, topics


def encode_topic_route(
    groups: Iterable[GroupData],
    queues: Mapping[str, QueueData],
    *,
    order_topic_conf: str | None = None,
    standard_json: bool,
) -> bytes:
    """Body of answer 105. Without `standard_json` broker ids are unquoted, which old clients expect (§15.1)."""
    order = {} if order_topic_conf is None else {"orderTopicConf": order_topic_conf}
    route = {
        "brokerDatas": [_group_json(group) for group in groups],
        "filterServerTable": {},
        **order,
        "queueDatas": [
            {
                "brokerName": broker_name,
                "perm": data.perm,
                "readQueueNums": data.read_queue_count,
                "topicSysFlag": data.topic_sys_flag,
                "writeQueueNums": data.write_queue_count,
            }
            for broker_name, data in queues.items()
        ],
    }
    return dumps(route, unquoted_integer_keys=not standard_json)


def encode_cluster_info(groups: Iterable[GroupData]) -> bytes:
    """Body of answer 106; broker ids are unquoted, as Apache's name server always writes them here."""
    groups = list(groups)
    clusters: dict[str, list[str]] = {}
    for group in groups:
        clusters.setdefault(group.cluster_name, []).append(group.broker_name)
    table = {group.broker_name: _group_json(group) for group in groups}
    return dumps({"brokerAddrTable": table, "clusterAddrTable": clusters}, unquoted_integer_keys=True)


def _group_json(group: GroupData) -> dict[str, Any]:
    return {
        "brokerAddrs": {key: group.addresses[key] for key in sorted(group.addresses)},
        "brokerName": group.broker_name,
        "cluster": group.cluster_name,
        "enableActingMaster": group.enable_acting_master,
    }


def required(ext: Mapping[str, str], name: str) -> str:
    """A field that a request must have. Raises RemoteProtocolError."""
    value = ext.get(name)
    if not value:
        raise RemoteProtocolError(f"the request has no {name}")
    return value


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"{name} = {text!r} is not a whole number") from None


# --- the compressed body of request 103 (compressedRegister=true) -----------------------------------------------------
# Parts: the data version (JSON); the number of topics and each as "name readQueues writeQueues perm filterType
# attributes"; the filter servers (JSON list); of brokers from 5.0 on the number of static topics and each as JSON.
# Numbers and lengths are 32 bits, big endian. A topic's system flags and order are not in it.

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
ZLIB_START = b"x"
"""First byte of the stream; an uncompressed body begins with a brace."""
_INT = struct.Struct(">i")
_ROW_FIELD_COUNT = 5


def pack(data_version: Mapping[str, int], topic_config_table: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Both of the shapes of topics.json (formats.md §9)."""
    parts = [_part(dumps(data_version)), _INT.pack(len(topic_config_table))]
    parts += (_part(_row(topic)) for topic in topic_config_table.values())
    parts += (_part(b"[]"), _INT.pack(0))
    return zlib.compress(b"".join(parts), 9)


def unpack(body: bytes) -> dict[str, Any]:
    """The uncompressed body's shape, with what is packed. Raises RemoteProtocolError."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed registration cannot be unpacked: {error}") from None
    if not stream.eof:
        raise RemoteProtocolError(f"the compressed registration is cut off, or above {MAX_UNPACKED_BYTES} bytes")
    try:
        return {"topicConfigSerializeWrapper": _wrapper(data)}
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the compressed registration is not one: {error}") from None


def _wrapper(data: bytes) -> dict[str, Any]:
    version, offset = _take(data, 0)
    (count,) = _INT.unpack_from(data, offset)
    if count > MAX_TOPIC_COUNT:
        raise ValueError(f"{count} topics; at most {MAX_TOPIC_COUNT} are taken")
    table = {row["topicName"]: row for row in _rows(data, offset + _INT.size, count)}
    return {"dataVersion": loads(version), "topicConfigTable": table}


def _rows(data: bytes, offset: int, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        row, offset = _take(data, offset)
        fields = row.decode().split(" ")
        if len(fields) < _ROW_FIELD_COUNT:
            raise ValueError(f"{row[:100]!r} is not a topic")
        name, read_count, write_count, perm = fields[:4]
        yield {
            "topicName": name,
            "readQueueNums": int(read_count),
            "writeQueueNums": int(write_count),
            "perm": int(perm),
        }


def _take(data: bytes, offset: int) -> tuple[bytes, int]:
    """The part at `offset`, and where the next one begins."""
    (size,) = _INT.unpack_from(data, offset)
    start = offset + _INT.size
    if size < 0 or start + size > len(data):
        raise ValueError(f"a part of {size} bytes at {offset} of {len(data)}")
    return data[start : start + size], start + size


def _part(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _row(topic: Mapping[str, Any]) -> bytes:
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    return " ".join(str(topic[name]) for name in names).encode() + b" " + dumps(topic.get("attributes") or {})
