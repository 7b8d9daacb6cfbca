"""Records inside bodies, then every offset named: what a client stores must never be believed to be a record."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from itertools import count

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import HALF_TOPIC, PROPERTY_UNIQUE_KEY, encode_properties
from rmqha.store.log.record import NewMessage, encode
from rmqha.wire.command import Command
from tests.abuse.attack import Attack, Stream
from tests.abuse.scene import NoAnswerError, Scene

TRIES = 60
BODY_AT = 88
"""Where a record's body begins, with IPv4 addresses."""
BEFORE, BEHIND = 40, 300
HOST = (b"\x7f\x00\x00\x01", 10911)
_OFFSET_ID = struct.Struct(">4siq")
_PIECE = 32


def inner_record(phy_offset: int, kind: int, half_group: str) -> bytes:
    """A record that claims to stand at `phy_offset`: as it should be, or with one thing that nobody writes."""
    properties = encode_properties({PROPERTY_UNIQUE_KEY: "0" * 32, "PGROUP": half_group, "REAL_TOPIC": "honest"})
    topic, body = b"honest", b"inner"
    if kind == 1:
        topic = b"\xff\xfe\xfd"
    elif kind == 2:
        topic = HALF_TOPIC.encode()
    elif kind == 3:
        properties = b"\xff\xff\x01\x02\x02\x01no\x01such"
    message = NewMessage("", 2**31 - 1 if kind == 4 else 0, body, properties, 2**62 if kind == 5 else 1, HOST, HOST)
    record = bytearray(encode(message, bytes((len(topic),)) + topic, 1, 2**62 if kind == 4 else 0, phy_offset, 1))
    if kind == 5:
        record[8:12] = b"\0\0\0\0"
    return bytes(record)


def send_request(scene: Scene, topic: str, body: bytes, *, delay: int = 0) -> Command:
    """Request 310 as a client writes it."""
    properties = {PROPERTY_UNIQUE_KEY: "0" * 32, "WAIT": "false"} | ({"DELAY": str(delay)} if delay else {})
    ext = {
        "a": "guest",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
        "n": scene.broker_name,
    }
    return Command(RequestCode.SEND_MESSAGE_V2, ext, body)


def store_inner_record(scene: Scene, kind: int) -> int:
    """Send bodies until one holds a record that claims the place where it landed; that place. Where the log goes on too
    fast for that, the last try's."""
    end = size = inner_at = 0
    with scene.connect("master") as connection:
        for _ in range(TRIES):
            body = inner_record(end + BODY_AT, kind, "guest")
            answer = scene.ask_on(connection, send_request(scene, scene.own_topic, body), "guest")
            if answer.code != ResponseCode.SUCCESS:
                raise NoAnswerError(f"a send was answered {answer.code}: {answer.remark}")
            _, _, at = _OFFSET_ID.unpack(bytes.fromhex(answer.ext["msgId"]))
            inner_at = at + BODY_AT
            if at == end:
                break
            if not size:
                look = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at), "topic": scene.own_topic})
                size = len(scene.ask_on(connection, look, "guest").body)
            end = at + size
    return inner_at


def namings(scene: Scene, offset: int) -> list[Command]:
    """Every request that takes a place in the log, with this one."""
    message_id = _OFFSET_ID.pack(socket.inet_aton("127.0.0.1"), 10911, offset).hex().upper()
    back = {"group": "guest", "offset": str(offset), "delayLevel": "0", "originTopic": scene.own_topic}
    end = {
        "topic": HALF_TOPIC,
        "producerGroup": "guest",
        "tranStateTableOffset": "0",
        "commitLogOffset": str(offset),
        "commitOrRollback": "8",
        "fromTransactionCheck": "true",
        "msgId": "0" * 32,
    }
    direct = {
        "consumerGroup": "guest",
        "clientId": f"guest@{offset}",
        "msgId": message_id,
        "topic": scene.own_topic,
        "brokerName": scene.broker_name,
    }
    return [
        Command(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        Command(RequestCode.END_TRANSACTION, end),
        Command(RequestCode.END_TRANSACTION, {**end, "topic": scene.own_topic}),
        Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": scene.own_topic}),
        Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct),
    ]


def joined(scene: Scene) -> Command:
    """A heartbeat of a member of the guest's group, on the connection that says it."""
    body = {
        "clientID": "guest@1",
        "producerDataSet": [{"groupName": "guest"}],
        "consumerDataSet": [
            {
                "groupName": "guest",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": scene.own_topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
                ],
                "unitMode": False,
            }
        ],
    }
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def inner_records(*kinds: int) -> Stream:
    def stream(scene: Scene, number: int) -> Iterator[bytes]:
        yield scene.frame(joined(scene), "guest")
        for turn in count(number):
            inner_at = store_inner_record(scene, kinds[turn % len(kinds)])
            yield scene.frames(namings(scene, inner_at), "guest")
            for first in range(inner_at - BEFORE, inner_at + BEHIND, _PIECE):
                offsets = range(first, first + _PIECE)
                yield scene.frames((naming for offset in offsets for naming in namings(scene, offset)), "guest")

    return stream


ATTACKS = [
    Attack(
        "record-in-a-body",
        "master",
        inner_records(0, 1, 2, 3, 4, 5),
        "A body that holds a record (foreign, half, broken), then each place around it named by 36, 37, 33, 309",
        "Refused: a place counts only where a record begins",
    ),
]
