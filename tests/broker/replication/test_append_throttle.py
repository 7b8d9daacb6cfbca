"""A crowd that appends megabytes leaves room for small sends, and takes turns by bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.broker.replication.append_throttle import LIGHT_BYTES, NEAR_BYTES, TAIL_BYTES, AppendThrottle, Turn
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.ha_stream import SlaveAck
from tests.broker.support import Broker, FakeChannel, send_command
from tests.support.clock import ManualClock

MIB = 1 << 20


class Log:
    """A log's end and how far replicas hold it; both are moved by hand."""

    def __init__(self) -> None:
        self.end = self.acked = 0

    @property
    def unacknowledged_bytes(self) -> int:
        return self.end - self.acked

    def append(self, size_bytes: int) -> None:
        self.end += size_bytes


class Crowd:
    """Connections that append through the room."""

    def __init__(self) -> None:
        self.log = Log()
        self.clock = ManualClock()
        self.room = AppendThrottle(self.log, self.clock)
        self.served: list[str] = []
        self.late: list[str] = []
        self.waiting: set[str] = set()

    def send(self, name: str, size_bytes: int, timeout_ms: int = 1000) -> bool:
        """True if it has appended at once."""
        if self.room.takes(name, size_bytes):
            self.log.append(size_bytes)
            self.served.append(name)
            return True
        turn = self.room.wait(name, size_bytes, timeout_ms)
        self.waiting.add(name)
        turn.when_over(lambda: self.called(name, turn))
        return False

    def called(self, name: str, turn: Turn) -> None:
        self.waiting.discard(name)
        if turn.is_late:
            self.late.append(name)
        else:
            self.log.append(turn.size_bytes)
            self.served.append(name)
        self.room.took(turn)

    def acked(self, offset: int) -> None:
        self.log.acked = offset
        self.room.moved()


def test_nobody_waits_while_the_tail_is_short() -> None:
    crowd = Crowd()
    assert crowd.send("first", NEAR_BYTES)
    assert crowd.send("second", 8 * MIB)
    assert not crowd.room.is_waited_for


def test_a_small_one_waits_for_one_large_record_and_not_for_two() -> None:
    """By ten connections that sent a MiB each, 3 MiB stood before it: 60 to 130 ms of a replication on two cores."""
    crowd = Crowd()
    names, most_bytes = [f"large-{number}" for number in range(10)], 0
    for _ in range(300):
        for name in names:
            if name not in crowd.waiting:
                crowd.send(name, MIB)
        most_bytes = max(most_bytes, crowd.log.unacknowledged_bytes)
        assert crowd.send("small", 100), "it stands in no line"
        crowd.acked(min(crowd.log.end, crowd.log.acked + 100_000))
    assert most_bytes <= NEAR_BYTES + MIB + 100
    assert len(crowd.served) - crowd.served.count("small") > 25, "there is always something to replicate"


def test_small_ones_need_no_short_tail() -> None:
    crowd = Crowd()
    for number in range(TAIL_BYTES // 1024 - 16):
        assert crowd.send(f"small-{number % 64}", 1024)
    assert not crowd.room.is_full
    assert not crowd.send("large", 100_000)


def test_a_large_one_comes_though_small_ones_keep_the_tail_long() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES)
    assert not crowd.send("large", MIB)
    for _ in range(1000):
        for number in range(200):
            name = f"small-{number}"
            if name not in crowd.waiting:
                crowd.send(name, 1024)
        crowd.acked(min(crowd.log.end, crowd.log.acked + 100_000))
    assert "large" in crowd.served


def test_beyond_the_bound_the_large_wait_and_the_small_do_not() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    assert not crowd.send("large", MIB)
    assert crowd.send("small", 100)
    crowd.acked(crowd.log.end)
    assert crowd.served[-2:] == ["small", "large"]


def test_a_flood_of_small_ones_is_no_way_round_it() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    for _ in range(LIGHT_BYTES // 100):
        assert crowd.send("flood", 100)
    assert not crowd.send("flood", 100)


def test_turns_go_by_the_bytes_that_each_has_had() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    asked = {"heavy": 4 * MIB, "modest": 128 * 1024}
    for _ in range(200):
        for name, size_bytes in asked.items():
            if name not in crowd.waiting:
                assert not crowd.send(name, size_bytes)
        crowd.acked(crowd.log.end - NEAR_BYTES)
    count = {name: crowd.served.count(name) for name in asked}
    assert count["modest"] > 150, "it is served as long as it has had less"
    assert count["heavy"] > 1


def test_a_small_one_waits_for_no_round_of_a_hundred_large_ones() -> None:
    """It stood behind all who had had as little since the line began: 100 MiB, more than a second of honest sends."""
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    names, before = [f"large-{number}" for number in range(100)], 0
    for _ in range(300):
        for name in names:
            if name not in crowd.waiting:
                assert not crowd.send(name, MIB)
        while crowd.send("small", 300):
            pass  # what it has free
        before = len(crowd.served)
        crowd.acked(crowd.log.end)
        assert "small" in crowd.served[before : before + 2]
        crowd.acked(crowd.log.end)
    assert min(map(crowd.served.count, names)) > 0


def test_newcomers_without_an_end_do_not_keep_a_large_one_waiting() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    assert not crowd.send("large", MIB)
    number = 0
    while "large" not in crowd.served:
        for _ in range(10):
            number += 1
            assert not crowd.send(f"newcomer-{number}", LIGHT_BYTES + 1)
        crowd.acked(crowd.log.end - NEAR_BYTES)
        assert number * LIGHT_BYTES < 40 * MIB


def test_who_waits_too_long_is_told() -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    crowd.send("large", MIB, timeout_ms=500)
    crowd.clock.ms += 499
    crowd.room.timeout()
    assert crowd.late == []
    crowd.clock.ms += 1
    crowd.room.timeout()
    assert crowd.late == ["large"]
    assert not crowd.room.is_waited_for


@pytest.mark.parametrize("is_called", [False, True])
def test_who_leaves_gives_his_turn_to_the_next(is_called: bool) -> None:
    crowd = Crowd()
    crowd.send("first", TAIL_BYTES + 1)
    turn = crowd.room.wait("gone", 8 * MIB)
    crowd.send("next", 9 * MIB)
    if is_called:
        crowd.acked(crowd.log.end)
        assert turn.is_over
        assert crowd.room.is_waited_for, "what was called and has not appended counts"
    crowd.room.remove("gone")
    crowd.acked(crowd.log.end)
    assert crowd.served[-1] == "next"
    crowd.acked(crowd.log.end)
    assert not crowd.room.is_full


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4 * MIB), st.booleans()), max_size=80))
def test_the_tail_is_bounded_and_nobody_is_forgotten(story: list[tuple[int, int, bool]]) -> None:
    crowd = Crowd()
    busy: set[str] = set()
    asked: list[str] = []
    for number, size_bytes, acks in story:
        name = f"c{number}"
        busy = {turn_owner for turn_owner in busy if crowd.served.count(turn_owner) < asked.count(turn_owner)}
        if name not in busy:
            asked.append(name)
            before_bytes = crowd.log.unacknowledged_bytes
            at_once = crowd.send(name, size_bytes)
            may_be_bytes = NEAR_BYTES if size_bytes >= TAIL_BYTES // 16 else TAIL_BYTES
            assert not at_once or before_bytes <= may_be_bytes or size_bytes <= LIGHT_BYTES
            busy.add(name)
        if acks:
            crowd.acked(crowd.log.end)
    for _ in range(len(story) + 1):
        crowd.acked(crowd.log.end)
    assert sorted(crowd.served) == sorted(asked)
    assert not crowd.room.is_full


BODY = bytes(90_000)
KEYS: dict[str, Any] = {
    "all_ack_in_sync_state_set": True,
    "broker_role": "SYNC_MASTER",
    "ha_ack_stall_bound_ms": 60_000,
    "mapped_file_size_commit_log": 8 * MIB,
}


def overloaded(make_broker: Callable[..., Broker]) -> Broker:
    """A master with so much for its only slave that its log's tail has room for small records only."""
    broker = make_broker(total_replicas=2, **KEYS).start()
    broker.join_slave(2)
    broker.run(10)
    while not broker.core.throttle.is_waited_for:
        channel = FakeChannel()
        broker.core.processor.received(channel, [send_command(body=bytes(8192))])
    broker.core.processor.closed(channel)
    return broker


def ack_all(broker: Broker) -> None:
    driver = broker.core.driver
    for _ in range(200):
        driver.ha_sent(1)
    driver.ha_received(1, SlaveAck(broker.store.max_phy_offset).encode())


@pytest.mark.parametrize("oneway", [False, True])
def test_a_large_send_is_not_written_before_there_is_room(make_broker: Callable[..., Broker], oneway: bool) -> None:
    """Whoever asks for no answer makes the others wait as well."""
    broker, large, small = overloaded(make_broker), FakeChannel(), FakeChannel()
    end = broker.store.max_phy_offset
    command = send_command(body=BODY)
    command.flag |= FLAG_ONEWAY if oneway else 0
    broker.core.processor.received(large, [command])
    assert broker.store.max_phy_offset == end
    broker.core.processor.received(small, [send_command()])
    assert end < broker.store.max_phy_offset < end + 1000
    ack_all(broker)
    assert broker.store.max_phy_offset > end + len(BODY)
    ack_all(broker)
    assert [reply.code for reply in large.take()] == ([] if oneway else [0])
    assert small.one().code == 0


def test_a_send_that_finds_no_room_in_time_is_refused_and_not_written(make_broker: Callable[..., Broker]) -> None:
    broker, large = overloaded(make_broker), FakeChannel()
    end = broker.store.max_phy_offset
    broker.core.processor.received(large, [send_command(body=BODY)])
    broker.clock.ms += broker.config.wait_time_mills_in_send_queue
    broker.core.throttle.timeout()
    reply = large.one()
    assert reply.code == ResponseCode.SYSTEM_BUSY and "TIMEOUT_CLEAN_QUEUE" in (reply.remark or "")
    assert broker.store.max_phy_offset == end


@pytest.mark.parametrize("code", [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION])
def test_small_requests_that_append_large_records_wait_too(make_broker: Callable[..., Broker], code: int) -> None:
    broker, channel = overloaded(make_broker), FakeChannel()
    broker.core.processor.received(channel, [Command(code, {})])
    assert channel.take() == []
    ack_all(broker)
    assert channel.one().code != 0, "it is answered when its turn comes"


def test_what_waits_for_room_does_not_look_at_a_log_that_is_being_changed(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, channel = overloaded(make_broker), FakeChannel()
    command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "G", "delayLevel": "0"})
    broker.core.processor.received(channel, [command])
    driver = broker.core.driver
    monkeypatch.setattr(type(driver), "is_log_free", property(lambda driver: False))
    ack_all(broker)
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK)


def test_a_connection_that_closes_leaves_the_line(make_broker: Callable[..., Broker]) -> None:
    broker, large = overloaded(make_broker), FakeChannel()
    broker.core.processor.received(large, [send_command(body=BODY)])
    broker.core.processor.closed(large)
    end = broker.store.max_phy_offset
    ack_all(broker)
    assert broker.store.max_phy_offset == end
    assert not broker.core.throttle.is_full


def test_a_master_that_is_overtaken_refuses_those_in_line(make_broker: Callable[..., Broker]) -> None:
    broker, large = overloaded(make_broker), FakeChannel()
    broker.core.processor.received(large, [send_command(body=BODY)])
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    assert large.one().code == ResponseCode.SERVICE_NOT_AVAILABLE
