"""What tests of transactions send to a broker, and what they look at."""

from __future__ import annotations

from rmqha.model.code import RequestCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import Record, decode
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel, send_command

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"
ROUND_MS = 30_000


def prepared(broker: Broker, key: str = "ID", topic: str = "T", queue_id: int = 1, **more: str) -> Command:
    """Born now."""
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": key, **more}).decode()
    return send_command(topic, queue_id, key.encode(), i=properties, f="4", g=str(broker.clock.wall_ms()))


def end_of(reply: Command, outcome: str, *, check: bool = False, **ext: str) -> Command:
    """Request 37 after the answer to a send, or to a check."""
    if check:
        offsets = {
            "commitLogOffset": reply.ext["commitLogOffset"],
            "tranStateTableOffset": reply.ext["tranStateTableOffset"],
        }
    else:
        phy_offset = int(reply.ext["msgId"][16:], 16)
        offsets = {"commitLogOffset": str(phy_offset), "tranStateTableOffset": reply.ext["queueOffset"]}
    fields = {
        "producerGroup": "P",
        "msgId": "ID",
        "commitOrRollback": outcome,
        "fromTransactionCheck": str(check).lower(),
    }
    return Command(RequestCode.END_TRANSACTION, {**fields, **offsets, "topic": "T", **ext})


def oneway(broker: Broker, command: Command) -> None:
    command.flag |= FLAG_ONEWAY
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    assert channel.take() == []


def producer(broker: Broker, group: str = "P") -> FakeChannel:
    channel = FakeChannel("127.0.0.1:6")
    body = dumps({"clientID": "c", "producerDataSet": [{"groupName": group}], "consumerDataSet": []})
    assert broker.ask(Command(RequestCode.HEART_BEAT, {}, body), channel).code == 0
    return channel


def records(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[Record]:
    return [decode(record) for record in broker.store.pull(topic, queue_id, 0, 1000, 1 << 20).records]


def bodies(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    return [bytes(record.body) for record in records(broker, topic, queue_id)]


def offsets(broker: Broker) -> tuple[int | None, int | None]:
    """How far half messages and marks are worked off, as consumer offsets say."""
    query = broker.core.offsets.query
    return query("CID_RMQ_SYS_TRANS", HALF, 0), query("CID_RMQ_SYS_TRANS", OP, 0)
