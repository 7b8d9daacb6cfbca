"""Physical offsets that clients name (33, 36, 37, 309): they count only where a record starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import offset_message_id
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.rights import planted
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.transactions import COMMIT, HALF, OP, end_of, prepared


def view(offset: int) -> Command:
    return Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": "T"})


def send_back(offset: int) -> Command:
    fields = {"group": "G", "originTopic": "T", "originMsgId": "", "offset": str(offset), "delayLevel": "0"}
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "maxReconsumeTimes": "16"})


def end(offset: int, queue_offset: int = 0) -> Command:
    fields = {"producerGroup": "P", "commitOrRollback": COMMIT, "fromTransactionCheck": "true", "msgId": "ID"}
    offsets = {"commitLogOffset": str(offset), "tranStateTableOffset": str(queue_offset)}
    return Command(RequestCode.END_TRANSACTION, {**fields, **offsets, "transactionId": "ID"})


def consume(offset: int) -> Command:
    message_id = offset_message_id(planted.HOST, offset)
    fields = {"consumerGroup": "G", "clientId": "c", "msgId": message_id, "topic": "T"}
    return Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)


NAMING: dict[str, Callable[[int], Command]] = {"33": view, "36": send_back, "37": end, "309": consume}


@pytest.fixture
def consumer(broker: Broker) -> FakeChannel:
    channel = FakeChannel("127.0.0.1:7")
    data = [
        {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "subscriptionDataSet": []}
    ]
    body = dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": data})
    broker.core.processor.received(channel, [Command(RequestCode.HEART_BEAT, {}, body)])
    assert channel.take()
    return channel


@pytest.mark.parametrize("code", NAMING)
def test_a_record_inside_a_body_whose_topic_is_no_text_ends_nothing(
    broker: Broker, consumer: FakeChannel, code: str
) -> None:
    """It ended the process: decode raised BadRecordError, which nobody expected there."""
    offset = planted.plant(broker, planted.record(planted.next_offset(broker), field=planted.NO_TEXT))
    end_offset = broker.store.max_phy_offset
    assert broker.ask(NAMING[code](offset)).code == ResponseCode.SYSTEM_ERROR
    assert (broker.store.max_phy_offset, consumer.take()) == (end_offset, [])
    assert broker.ask(send_command()).code == 0


@pytest.mark.parametrize("code", NAMING)
@pytest.mark.parametrize("dispatched", [True, False])
def test_a_whole_record_inside_a_body_is_none(
    broker: Broker, consumer: FakeChannel, code: str, dispatched: bool
) -> None:
    """Of the same queue, with the queue offset that the message itself gets; before and after it has an entry."""
    make = planted.half if code == "37" else planted.record
    body = make(planted.next_offset(broker))
    offset, channel = planted.next_offset(broker), FakeChannel()
    if dispatched:
        planted.plant(broker, body)
    else:
        broker.core.processor.received(channel, [send_command("T", body=body)])
        assert broker.store.dispatched_offset < broker.store.max_phy_offset
    end_offset = broker.store.max_phy_offset
    asker = FakeChannel()
    broker.core.processor.received(asker, [NAMING[code](offset)])
    assert asker.one().code == ResponseCode.SYSTEM_ERROR
    broker.run()
    assert (broker.store.max_phy_offset, consumer.take()) == (end_offset, [])


@pytest.mark.parametrize("code", ["33", "36", "309"])
def test_a_record_that_starts_there_is_found(broker: Broker, consumer: FakeChannel, code: str) -> None:
    offset = broker.store.max_phy_offset
    broker.ask(send_command(body=b"real"))
    channel, given = FakeChannel(), list[Command]()

    def consume(client: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        given.append(command)
        done(command.reply())

    broker.shell.client_call = consume
    broker.core.processor.received(channel, [NAMING[code](offset)])
    broker.run()
    assert channel.one().code == 0
    assert [b"real" in command.body for command in given] == ([True] if code == "309" else [])


def test_the_end_of_a_transaction_counts_at_once_and_only_for_a_half_message(broker: Broker) -> None:
    """A producer ends it before the queue of half messages has the entry."""
    channel = FakeChannel()
    broker.core.processor.received(channel, [prepared(broker)])
    sent = channel.one()
    assert broker.store.queue_range(HALF, 0)[1] == 0
    assert broker.ask(end_of(sent, COMMIT)).code == 0
    assert (broker.store.queue_range("T", 1)[1], broker.store.queue_range(OP, 0)[1]) == (1, 1)
    other = broker.store.max_phy_offset
    broker.ask(send_command(body=b"no half message"))
    assert broker.ask(end(other)).code == ResponseCode.SYSTEM_ERROR


def test_a_half_message_inside_a_body_writes_nowhere(broker: Broker) -> None:
    """Neither into the topic that it names nor a mark that ends the real one of that queue offset."""
    waiting = broker.ask(prepared(broker))
    offset = planted.plant(broker, planted.half(planted.next_offset(broker), real_topic="Foreign"))
    end_offset = broker.store.max_phy_offset
    reply = broker.ask(end(offset))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    assert broker.store.max_phy_offset == end_offset
    assert broker.store.queue_range("Foreign", 0)[1] == broker.store.queue_range(OP, 0)[1] == 0
    assert broker.ask(end_of(waiting, COMMIT)).code == 0


def test_bytes_that_are_not_what_was_written_are_not_stored_again(broker: Broker) -> None:
    offset = broker.store.max_phy_offset
    broker.ask(send_command(body=b"x" * 600))
    view_of = broker.store.view(offset, 1000)
    at = planted.BODY_AT + 300
    path = next((broker.directory / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"y")
    assert view_of[at] == ord("y")
    end_offset = broker.store.max_phy_offset
    assert broker.ask(send_back(offset)).code == ResponseCode.SYSTEM_ERROR
    assert broker.store.max_phy_offset == end_offset


def test_the_earliest_time_is_that_of_the_first_record(broker: Broker) -> None:
    broker.ask(send_command())
    first = decode(broker.store.view(broker.store.min_phy_offset, 1000)).store_timestamp_ms
    assert broker.core.admin.earliest_at_ms() == first
