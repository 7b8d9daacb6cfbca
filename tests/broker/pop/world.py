"""Requests of pop and their answers, as clients write and read them."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqha.model.code import RequestCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import Record, decode
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import Receipt, kind_of
from tests.broker.support import Broker, FakeChannel, send_command

INVISIBLE_MS = 10_000


class Popped(NamedTuple):
    record: Record
    receipt: Receipt
    topic: str
    """The topic that it was popped from."""

    @property
    def body(self) -> bytes:
        return bytes(self.record.body)


def send(broker: Broker, *bodies: bytes, topic: str = "T", queue_id: int = 0, **properties: str) -> None:
    for body in bodies:
        command = send_command(topic, queue_id, body, d="1")
        command.ext["i"] = encode_properties(properties).decode()
        assert broker.ask(command).code == 0


def pop_command(topic: str = "T", group: str = "G", **ext: Any) -> Command:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        **ext,
    }
    return Command(RequestCode.POP_MESSAGE, {name: str(value) for name, value in fields.items()})


def messages(reply: Command, topic: str = "T", group: str = "G", broker_name: str = "broker-a") -> list[Popped]:
    """The messages of an answer, each with the receipt that a client makes."""
    assert reply.code == 0, reply
    starts = {tuple(item.split(" ")[:2]): int(item.split(" ")[2]) for item in reply.ext["startOffsetInfo"].split(";")}
    found, at, body = [], 0, memoryview(bytes(reply.body))
    while at < len(body):
        record = decode(body, at)
        at += record.size_bytes
        properties = dict(pair.split("\x01") for pair in record.properties.decode().split("\x02") if pair)
        if "POP_CK" in properties:
            receipt = Receipt.decode(properties["POP_CK"])
        else:
            kind = kind_of(record.topic)
            start = starts[kind, str(record.queue_id)]
            times = int(reply.ext["popTime"]), int(reply.ext["invisibleTime"]), int(reply.ext["reviveQid"])
            receipt = Receipt(start, *times, kind, broker_name, record.queue_id, record.queue_offset)
        real = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[receipt.kind]
        found.append(Popped(record, receipt, real))
    return found


def pop(broker: Broker, topic: str = "T", group: str = "G", **ext: Any) -> list[Popped]:
    reply = broker.ask(pop_command(topic, group, **ext))
    return [] if reply.code == 210 else messages(reply, topic, group, broker.config.broker_name)


def named(code: RequestCode, message: Popped, group: str = "G", **ext: Any) -> Command:
    fields = {
        "consumerGroup": group,
        "topic": message.topic,
        "queueId": message.record.queue_id,
        "offset": message.record.queue_offset,
        "extraInfo": message.receipt.encode(),
        **ext,
    }
    return Command(code, {name: str(value) for name, value in fields.items()})


def ack_command(message: Popped, group: str = "G", **ext: Any) -> Command:
    return named(RequestCode.ACK_MESSAGE, message, group, **ext)


def ack_all(broker: Broker, given: list[Popped], group: str = "G") -> None:
    for message in given:
        assert broker.ask(ack_command(message, group)).code == 0


def later(broker: Broker, ms: int) -> None:
    """Let time pass in steps, as loops do."""
    for _ in range(max(1, ms // 500)):
        broker.run(min(ms, 500))
    for _ in range(3):
        broker.run()


def polled(broker: Broker, **ext: Any) -> FakeChannel:
    """The channel of a pop that waits."""
    channel = FakeChannel()
    broker.core.processor.received(channel, [pop_command(pollTime=15_000, **ext)])
    assert channel.take() == []
    return channel
