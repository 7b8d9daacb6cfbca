"""What one request of pop, or what comes of many, may cost."""

from __future__ import annotations

import base64
import gc
import tracemalloc
from collections.abc import Callable

import pytest

from rmqha.broker.pop import revive
from rmqha.broker.pop.requests import polls
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.store.log.record import NewMessage
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.pop.world import INVISIBLE_MS, later, pop, pop_command, send
from tests.broker.support import Broker, FakeChannel

BODY_BYTES = 60_000
COUNT = 20


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(max_hash_slot_num=64, max_index_num=256).start()


def test_what_comes_again_is_stored_in_pieces(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of megabytes, all due at once, would make an append of hundreds of them."""
    monkeypatch.setattr(revive, "MAX_COPY_BYTES", 3 * BODY_BYTES)
    send(broker, *(bytes(BODY_BYTES) for _ in range(COUNT)))
    for _ in range(COUNT):
        assert len(pop(broker, maxMsgNums=1)) == 1
    driver, pieces = broker.core.driver, []
    append = driver.append

    def measured(messages: list[NewMessage]) -> object:
        pieces.append(sum(len(message.body) for message in messages if message.topic.startswith("%RETRY%")))
        return append(messages)

    monkeypatch.setattr(driver, "append", measured)
    later(broker, INVISIBLE_MS + 3000)
    for _ in range(COUNT):
        broker.run()
    large = [size for size in pieces if size >= BODY_BYTES]
    assert sum(large) == COUNT * BODY_BYTES and max(large) <= 3 * BODY_BYTES


def batch_ack(*items: dict[str, object]) -> Command:
    return Command(RequestCode.BATCH_ACK_MESSAGE, {}, dumps({"brokerName": "broker-a", "acks": list(items)}))


def acknowledgement(bits: bytes = b"\xff" * 128, **more: object) -> dict[str, object]:
    fields = {"t": "T", "c": "G", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
    return {**fields, "b": base64.b64encode(bits).decode(), **more}


def test_one_batch_acknowledges_a_bounded_number_of_messages(broker: Broker) -> None:
    """64 KiB of bits name 300,000; each is ten bytes of the log."""
    send(broker, *(b"x" for _ in range(40)))
    end = broker.store.max_phy_offset
    few = broker.ask(batch_ack(*(acknowledgement(b"\xff" * 4, pt=number) for number in range(1, 33))))
    assert few.code == ResponseCode.SUCCESS and broker.store.max_phy_offset > end
    end = broker.store.max_phy_offset
    many = broker.ask(batch_ack(*(acknowledgement(pt=number) for number in range(1, 34))))
    assert many.code == ResponseCode.INVALID_PARAMETER and broker.store.max_phy_offset == end


@pytest.mark.parametrize("name", ["so", "rq", "pt", "it", "q"])
@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "9" * 400, "1.5e300"])
def test_a_number_that_is_none_is_refused(broker: Broker, name: str, value: str) -> None:
    """Or names nothing that there is."""
    send(broker, b"x")
    end = broker.store.max_phy_offset
    command = batch_ack(acknowledgement(b"\1", **{name: 12_345}))
    command.body = bytes(command.body).replace(b"12345", value.encode())
    assert broker.ask(command).remark or name in ("so", "q")
    assert broker.store.max_phy_offset == end


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
def test_a_long_attempt_id_is_refused(broker: Broker, code: RequestCode) -> None:
    """It is kept in the table of what is given in order, and in its file."""
    send(broker, b"x")
    command = pop_command(order="true", attemptId="a" * 257)
    command.code = code
    assert broker.ask(command).code == ResponseCode.INVALID_PARAMETER
    command.ext["attemptId"] = "a" * 256
    assert broker.ask(command).code == ResponseCode.SUCCESS


def waiting(broker: Broker, channel: FakeChannel, numbers: range, **ext: str) -> list[int]:
    """Codes of the answers to so many pops, of 50 groups, that want to wait."""
    for number in numbers:
        command = pop_command(group=f"G{number % 50}", pollTime=15_000, **ext)
        broker.core.processor.received(channel, [command])
    return [reply.code for reply in channel.take()]


def test_pops_that_wait_are_bounded_by_their_memory(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has a part of it; who finds no room is answered as RocketMQ answers."""
    broker.core.topics.create_internal("T", 1)
    size_bytes = polls.poll_bytes("T", "G1")
    broker.core.pops.polls._bytes.most = 8 * size_bytes
    monkeypatch.setattr(polls, "MAX_POLL_BYTES_OF_CHANNEL", 3 * size_bytes)
    first, second, third = FakeChannel(), FakeChannel(), FakeChannel()
    assert waiting(broker, first, range(4)) == [ResponseCode.POLLING_FULL]
    assert waiting(broker, second, range(3)) == []
    assert waiting(broker, third, range(3)) == [ResponseCode.POLLING_FULL]
    held = broker.core.pops.polls
    assert (held.count, held.size_bytes) == (8, 8 * size_bytes)
    broker.core.processor.closed(first)
    assert waiting(broker, third, range(5, 6), attemptId="x" * 256) == [ResponseCode.POLLING_FULL]
    assert waiting(broker, third, range(5, 6)) == []
    later(broker, 16_000)
    assert (held.count, held.size_bytes) == (0, 0)
    assert {reply.code for reply in second.take()} == {ResponseCode.POLLING_TIMEOUT}


def test_a_pop_that_waits_takes_no_more_memory_than_is_reckoned(broker: Broker) -> None:
    broker.core.topics.create_internal("T", 1)
    count, attempt_id = 400, "x" * 200
    waiting(broker, FakeChannel(), range(count), attemptId=attempt_id)  # groups, and all that comes once
    held = broker.core.pops.polls
    gc.collect()
    tracemalloc.start()
    try:
        waiting(broker, FakeChannel(), range(count), attemptId=attempt_id)
        gc.collect()
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held.count == 2 * count
    assert taken_bytes < held.size_bytes / 2, (taken_bytes / count, held.size_bytes / held.count)
