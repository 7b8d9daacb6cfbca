"""Texts that clients choose are remembered only while they are short: thousands of long ones would never go."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import RecallHandle, encode_properties
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.timers.test_service import now_ms

COUNT = 50
LONG = 10_000
KEPT_BYTES = COUNT * LONG // 4


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    made = make_broker(
        max_hash_slot_num=64, max_index_num=4096, mapped_file_size_commit_log=1 << 24, recall_message_enable=True
    ).start()
    assert made.ask(send_command()).code == 0
    tracemalloc.start()
    yield made
    tracemalloc.stop()


def padded(number: int) -> Command:
    """A queue id behind blanks, no two alike."""
    return send_command(e=" " * (LONG + number) + "0")


def tagged(number: int, **properties: Any) -> Command:
    return send_command(i=encode_properties({"TAGS": f"{number}" + "t" * LONG, **properties}).decode())


def recalled(broker: Broker, number: int) -> Command:
    handle = RecallHandle(
        "T", broker.config.broker_name, now_ms(broker) + 60_000, f"{number}" + "k" * (LONG // 2)
    )  # it is stored twice
    return Command(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle.encode()})


def kept_bytes(broker: Broker, say: Callable[[int], None]) -> int:
    """Memory that is still held when all is answered and dispatched."""
    say(0)
    broker.run()
    while broker.store.index.build(1 << 20):
        pass
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, COUNT):
        say(number)
    for _ in range(20):
        broker.run(1)
    while broker.store.index.build(1 << 20):
        pass
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.parametrize("kind", ["padded", "tagged", "plain", "recalled"])
def test_no_long_text_is_kept(broker: Broker, kind: str) -> None:
    channel = FakeChannel()
    answered: list[int] = []
    makers: dict[str, Callable[[int], Command]] = {
        "padded": padded,
        "tagged": tagged,
        "recalled": lambda number: recalled(broker, number),
    }

    def say(number: int) -> None:
        processor = broker.core.processor
        if kind == "plain":
            frame = encode_frame(tagged(number, UNIQ_KEY=f"K{number}"))
            assert processor.take([(channel, frame)], 64) == [(len(frame), 1)]
            return
        processor.received(channel, [makers[kind](number)])
        broker.run()
        answered.extend(item.code for item in channel.take())

    assert kept_bytes(broker, say) < KEPT_BYTES
    assert set(answered) <= {ResponseCode.SYSTEM_ERROR if kind == "padded" else ResponseCode.SUCCESS}
