"""Bodies that hold records, and every offset in them named by every request: an offset counts only where a record
starts. Nobody raises, nothing is answered or appended out of a body, and the broker goes on.

Which requests take an offset is found out, not listed: every field that a handler asks for, and that is not needed to
get so far, holds the offset; whoever answers otherwise where a record starts takes one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.model.code import RequestCode
from rmqha.model.message import SYS_FLAG_INNER_BATCH, offset_message_id
from rmqha.store.log.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmqha.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from rmqha.wire.lenient_json import dumps
from tests.broker.rights import planted
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.transactions import prepared
from tests.fuzz.budget import fuzz_seconds
from tests.support.seeds import drawn_seed

LEAST_BODIES = 4
LONG_COUNT = 24
"""Offsets around which all codes are tried in a body that is too long to try all of them everywhere."""
SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
"""They append what they say, and name no offset."""
ROLES = frozenset({RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.RMQHA_HAND_OVER})
"""They end a mastership, as they should."""
CODES = [code for code in RequestCode if code not in SENDS | ROLES]
KNOWN_TO_TAKE_ONE = {33, 36, 37, 309}
MARKER = b"PLANTED"
NEEDED = {
    "group": "G",
    "consumerGroup": "G",
    "producerGroup": "P",
    "clientId": "c",
    "topic": "Own",
    "originTopic": "Own",
    "queueId": "0",
    "tranStateTableOffset": "0",
    "commitOrRollback": "8",
    "fromTransactionCheck": "true",
    "delayLevel": "0",
    "maxReconsumeTimes": "16",
    "transactionId": "",
    "subscription": "*",
    "sysFlag": "0",
    "maxMsgNums": "32",
}
"""What a request must say to come as far as to look at an offset."""


class Naming(dict[str, str]):
    """Fields of a request: those that are needed, and the offset in every other, as a number or as a message id."""

    def __init__(self, offset: int, needed: dict[str, str]) -> None:
        super().__init__(needed)
        self._number = str(offset)
        self._message_id = offset_message_id(planted.HOST, max(offset, 0))

    def get(self, name: str, default: Any = None) -> Any:
        found = super().get(name)
        return self[name] if found is None else found

    def __missing__(self, name: str) -> str:
        return self._message_id if name.lower().endswith(("msgid", "id")) else self._number


class Scene:
    """A broker with a consumer, and what is surely a record in its log."""

    def __init__(self, directory: Path) -> None:
        keys = {"mapped_file_size_commit_log": 1 << 26, "max_message_size": 1 << 20}
        self.broker = Broker(directory, total_replicas=1, auto_create_topic_enable=True, **keys).start()
        self.starts: set[int] = set()
        self.given: list[bytes] = []
        """What the consumer was given by 309."""
        self.broker.shell.client_call = self._call
        for topic in ("Own", "Foreign"):
            self.send(b"real " + topic.encode(), topic)
        broker = self.broker
        self.half_at = broker.store.max_phy_offset
        self.starts.add(self.half_at)
        broker.ask(prepared(broker, topic="Own", queue_id=0))
        self.real_at = min(self.starts)

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        if command.body:
            self.given.append(bytes(command.body))
        done(command.reply())

    def send(self, body: bytes, topic: str = "Own", *, run: bool = True) -> int:
        """The offset of the first byte of the body."""
        at = self.broker.store.max_phy_offset
        self.starts.add(at)
        self.broker.core.processor.received(FakeChannel(), [send_command(topic, body=body)])
        if run:
            self.broker.run()
        return at + planted.BODY_AT

    def beat(self) -> None:
        """The consumer lives still, whatever else was asked."""
        group: dict[str, Any] = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        data = [{**group, "subscriptionDataSet": []}]
        body = dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": data})
        self.consumer = FakeChannel("127.0.0.1:7")
        self.broker.core.processor.received(self.consumer, [Command(RequestCode.HEART_BEAT, {}, body)])

    def name(self, code: int, offset: int, needed: dict[str, str]) -> tuple[int | None, bool]:
        """The answer's code, None without one; and whether anything came of the offset: an answer's body or a record
        for the consumer with bytes that are in the log, or a record more in the log."""
        channel, end_offset = FakeChannel(), self.broker.store.max_phy_offset
        self.given.clear()
        self.broker.core.processor.received(channel, [Command(code, Naming(offset, needed), opaque=7)])
        answers = [answer for answer in channel.take() if answer.flag & FLAG_RESPONSE and not answer.flag & FLAG_ONEWAY]
        assert len(answers) <= 1, (code, offset)
        self.broker.core.processor.closed(channel)
        bodies = [*self.given, *(bytes(answer.body) for answer in answers)]
        for body in bodies:
            self.check(body, code, offset)
        grown = self.broker.store.max_phy_offset > end_offset
        if grown:
            self.grew(end_offset)
        return (answers[0].code if answers else None), grown or bool(self.given)

    def grew(self, end_offset: int) -> None:
        """Records of the broker's own making, all of them real."""
        at, end = int(end_offset), int(self.broker.store.max_phy_offset)
        while at < end:
            self.starts.add(at)
            at += struct.unpack_from(">i", self.broker.store.view(self.broker.store.min_phy_offset, 1 << 30), at)[0]

    def check(self, body: bytes, code: int, offset: int) -> None:
        """Records in an answer are those of the log."""
        at = 0
        while at + 91 <= len(body) and struct.unpack_from(">I", body, at + 4)[0] in (MAGIC_V1, MAGIC_V2):
            size, phy_offset = struct.unpack_from(">i", body, at)[0], struct.unpack_from(">q", body, at + 28)[0]
            assert phy_offset in self.starts, (code, offset, phy_offset)
            at += size
        assert MARKER not in body or at == len(body), (code, offset)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.broker.close()


def taking(scene: Scene) -> list[int]:
    """Codes to which it matters whether a record starts at an offset."""
    found = []
    nowhere = scene.broker.store.max_phy_offset + 10_000
    for code in CODES:
        scene.beat()
        expected = scene.name(code, nowhere, NEEDED)
        if any(scene.name(code, offset, NEEDED) != expected for offset in (scene.real_at, scene.half_at)):
            found.append(int(code))
    return found


def one(random: Random, scene: Scene, at: int, depth: int = 0) -> bytes:
    """A record that says it stands at `at`, which it does, and most of the time is one in every respect."""
    topic = random.choice(["Own", "Foreign", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "New", "%RETRY%G"])
    high = scene.broker.store.queue_range(topic, 0)[1]
    body = MARKER
    if depth < 2 and random.random() < 0.3:
        body = one(random, scene, at + planted.BODY_AT, depth + 1) + MARKER
    properties = {"REAL_TOPIC": "Foreign", "REAL_QID": "0", "PGROUP": "P", "TRAN_MSG": "true", "INNER_NUM": "3"}
    field = random.choice([None] * 6 + [planted.NO_TEXT, b"\x00", b"\xff" + b"t" * 255])
    made = bytearray(
        planted.record(
            at,
            topic,
            queue_id=random.choice([0, 0, 0, 1, 17]),
            queue_offset=random.choice([0, max(0, high - 1), high, high + 1, -1, 1 << 40]),
            body=body,
            properties=properties,
            sys_flag=random.choice([0, 0, 0, 4, 8, 12, SYS_FLAG_INNER_BATCH, 0x30]),
            field=field,
        )
    )
    match random.randrange(8):
        case 0:
            struct.pack_into(">i", made, 0, random.choice([-1, 0, 90, 1 << 20, 2**31 - 1, len(made) + 40]))
        case 1:
            struct.pack_into(">I", made, 4, random.choice([MAGIC_BLANK, MAGIC_V2, 0]))
        case 2:
            made[random.randrange(len(made))] ^= 1 << random.randrange(8)
        case _:
            pass
    return bytes(made)


def body_of_records(random: Random, scene: Scene) -> bytes:
    """Records behind each other, some with bytes in between."""
    at = scene.broker.store.max_phy_offset + planted.BODY_AT
    body = b""
    for _ in range(random.randint(1, 4)):
        body += bytes(random.randrange(4))
        body += one(random, scene, at + len(body))
    return body


def test_what_takes_an_offset_is_found_out(scene: Scene) -> None:
    assert set(taking(scene)) >= KNOWN_TO_TAKE_ONE


def test_no_offset_inside_a_body_counts(scene: Scene) -> None:
    """Byte by byte by those that take one; by all others at the places that matter, and with RMQHA_FUZZ_SECONDS
    everywhere in a first body."""
    seed = drawn_seed()
    random = Random(seed)
    codes = taking(scene)
    print(f"taking an offset: {codes}")
    nowhere = scene.broker.store.max_phy_offset + (1 << 25)
    expected = {code: scene.name(code, nowhere, NEEDED)[0] for code in codes}
    until, count = time.monotonic() + fuzz_seconds(), 0
    while count < LEAST_BODIES or time.monotonic() < until:
        count += 1
        body = body_of_records(random, scene)
        scene.beat()
        start = scene.send(body, run=random.random() < 0.5)
        queue_offset = str(random.choice([0, 1, scene.broker.store.queue_range("Own", 0)[1]]))
        needed = NEEDED | {"tranStateTableOffset": queue_offset}
        for offset in range(start, start + len(body)):
            for code in codes:
                answered, has_come_of_it = scene.name(code, offset, needed)
                assert (answered, has_come_of_it) == (expected[code], False), (code, offset - start, body)
        everywhere = count == 1 and fuzz_seconds() > 0
        others = range(start, start + (len(body) if everywhere else min(len(body), LONG_COUNT)))
        for code in CODES:
            for offset in others if code not in codes else ():
                assert not scene.name(code, offset, needed)[1], (code, offset - start, body)
        scene.broker.run()
        assert scene.broker.core.driver.is_serving
    end = scene.broker.store.max_phy_offset
    assert scene.send(b"still") == end + planted.BODY_AT
    assert scene.name(RequestCode.VIEW_MESSAGE_BY_ID, int(end), NEEDED)[0] == 0
    assert scene.broker.store.queue_range("New", 0)[1] == 0
