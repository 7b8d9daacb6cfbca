"""Compressed registrations: what Apache's encoder wrote is read, ours is what theirs reads, damage is a sentence."""

from __future__ import annotations

import struct
import zlib

import pytest

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.bodies import QueueData, Registration, TopicTableVersion
from rmqha.wire.command import Command
from rmqha.wire.registration import MAX_UNPACKED_BYTES, _Parts, pack, parse_registration
from tests.support.steps import done

VERSION = {"counter": 3, "stateVersion": 2, "timestamp": 1}
TABLE = {
    name: {
        "topicName": name,
        "readQueueNums": 4,
        "writeQueueNums": 8,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "attributes": {"+queue.type": "BatchCQ"},
    }
    for name in ("T", "%RETRY%G")
}


def request(body: bytes) -> Command:
    ext = {
        "compressed": "true",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "clusterName": "c",
        "brokerName": "g",
        "brokerId": "0",
        "brokerAddr": "127.0.0.1:1",
    }
    return Command(103, ext, body)


def packed(*names: str) -> bytes:
    return done(pack(VERSION, len(names), (TABLE[name] for name in names)))


def parsed(body: bytes) -> Registration:
    return done(parse_registration(request(body)))


def test_the_layout() -> None:
    data = zlib.decompress(packed("T"))
    version = b'{"counter":3,"stateVersion":2,"timestamp":1}'
    topic = b'T 4 8 6 SINGLE_TAG {"+queue.type":"BatchCQ"}'
    expected: list[bytes | int] = [version, 1, topic, b"[]", 0]
    parts = (
        struct.pack(">i", item) if isinstance(item, int) else struct.pack(">i", len(item)) + item for item in expected
    )
    assert data == b"".join(parts)


def test_a_registration_is_read() -> None:
    found = parsed(packed(*TABLE))
    assert found.version == TopicTableVersion(3, 2, 1)
    assert found.topics == {"T": QueueData(4, 8, 6), "%RETRY%G": QueueData(4, 8, 6)}


def test_apaches_brokers_compress_without_saying_so() -> None:
    command = request(packed(*TABLE))
    command.ext["compressed"] = "false"
    assert done(parse_registration(command)) == parsed(packed(*TABLE))


APACHES = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d4512a2e492c490d4b2d2acecccf53b232d7512ac9cc4d050ae61600a5cd2d4d8d8d8d8d4c8dcdcc8c6a"
    "1918189880584635c835242852d55dc11008cd14823dfddc7d5ce3431cdd15aa416a7442144c142cd02494b40b4b534b53f54a2a0b5295ac949c124b"
    "92339c0395c06646c702490600724d2748"
)
"""What RegisterBrokerBody.encode(true) of 5.4.0 made."""


def test_what_apaches_encoder_wrote() -> None:
    found = parsed(APACHES)
    assert found.version == TopicTableVersion(1, 7, 1795333253662)
    assert found.topics == {"T": QueueData(4, 8, 6), "%RETRY%G": QueueData(1, 1, 6)}


def test_a_broker_before_five_has_no_static_topics() -> None:
    whole = zlib.decompress(packed(*TABLE))
    assert parsed(zlib.compress(whole[:-4])) == parsed(packed(*TABLE))


@pytest.mark.parametrize("cut", [0, 1, 30, 60])
def test_damage_is_a_sentence(cut: int) -> None:
    whole = zlib.decompress(packed(*TABLE))
    for body in (zlib.compress(whole[:cut]), packed(*TABLE)[: cut + 1], zlib.compress(b"\xff" * 40)):
        with pytest.raises(RemoteProtocolError, match="compressed registration"):
            parsed(body)


def test_what_grows_too_large_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="above"):
        parsed(zlib.compress(zlib.decompress(packed()) + bytes(MAX_UNPACKED_BYTES)))


def test_what_follows_the_topics_is_not_kept() -> None:
    """256 MiB of zeros behind them took 22 s: each piece was joined to all before it."""
    parts = _Parts(iter([b"\0\0\0\1x", *[b"z" * 100] * 5]))
    assert parts.part() == b"x"
    while parts.skip():
        assert not parts._data
    assert not parts.grow()
