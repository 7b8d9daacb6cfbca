"""Requests that take much memory are worked on one at a time; what all accounts share has room for each of them."""

from __future__ import annotations

import pytest

from rmqha.broker.requests.consumer_requests import LARGE_HEARTBEAT_BYTES
from rmqha.broker.requests.request import Shares, Steps, give_back_all, take_all
from rmqha.broker.tables.topics import TopicConfig
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.rights.acl_world import FOREIGN, OWN, principal
from tests.broker.support import Broker, FakeChannel


class SteppedChannel(FakeChannel):
    """Does a step of its request when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self._steps: Steps = iter(())

    def work(self, steps: Steps) -> None:
        self._steps = steps

    def step(self) -> bool:
        """One step, unless it waits; True if there may be more."""
        if self.is_held:
            return True
        try:
            pause = next(self._steps)
        except StopIteration:
            return False
        if pause is not None:
            assert pause.size_bytes >= LARGE_HEARTBEAT_BYTES
            self.is_held = True
            pause.when_over(self._resume)
        return True

    def _resume(self) -> None:
        self.is_held = False

    def finish(self) -> Command:
        while self.step():
            assert not self.is_held
        return self.take()[-1]


def heartbeat(name: str, subscription_count: int) -> Command:
    rows = [{"topic": f"topic-{number:06d}", "subString": "*"} for number in range(subscription_count)]
    groups = [{"groupName": f"{name}{number}", "subscriptionDataSet": rows} for number in range(3)]
    return Command(RequestCode.HEART_BEAT, {}, dumps({"clientID": name, "consumerDataSet": groups}))


def begin(broker: Broker, command: Command) -> SteppedChannel:
    channel = SteppedChannel()
    broker.core.processor.received(channel, [command])
    channel.step()
    return channel


def test_one_large_heartbeat_is_taken_at_a_time(broker: Broker) -> None:
    first, second, third = (begin(broker, heartbeat(name, 900)) for name in "abc")
    assert (first.is_held, second.is_held, third.is_held) == (False, True, True)
    assert begin(broker, heartbeat("d", 2)).finish().code == ResponseCode.SUCCESS, "a small one does not wait"
    assert first.finish().code == ResponseCode.SUCCESS
    assert (second.is_held, third.is_held) == (False, True), "in the order of their coming"
    assert second.finish().code == ResponseCode.SUCCESS and third.finish().code == ResponseCode.SUCCESS
    group = broker.core.clients.consumer_group("c2")
    assert group is not None and len(group.subscriptions) == 900


def test_one_that_closes_makes_room_for_the_next(broker: Broker) -> None:
    first, second, third = (begin(broker, heartbeat(name, 900)) for name in "abc")
    broker.core.processor.closed(second)
    broker.core.processor.closed(first)
    assert not third.is_held and third.finish().code == ResponseCode.SUCCESS
    assert broker.core.clients.consumer_group("a2") is None


def test_a_refused_one_makes_room_for_the_next(broker: Broker) -> None:
    bad = heartbeat("a", 900)
    head, _, tail = bytes(bad.body).rpartition(b"topic-000899")
    bad.body = head + b"topic 000899" + tail
    first, second = begin(broker, bad), begin(broker, heartbeat("b", 900))
    assert second.is_held
    assert first.finish().code == ResponseCode.SYSTEM_ERROR
    assert second.finish().code == ResponseCode.SUCCESS


@pytest.mark.parametrize("subscription_count", [2, 900])
def test_a_connection_goes_on_after_its_heartbeat(broker: Broker, subscription_count: int) -> None:
    channel = begin(broker, heartbeat("a", subscription_count))
    assert channel.finish().code == ResponseCode.SUCCESS
    broker.core.processor.received(channel, [heartbeat("a", subscription_count)])
    assert channel.finish().code == ResponseCode.SUCCESS


def writes_log(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    """A thread changes the log from now on."""
    monkeypatch.setattr(type(broker.core.driver), "is_log_free", property(lambda driver: False))


@pytest.mark.parametrize(
    "command",
    [
        Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "G", "timestamp": "1"}),
        Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
    ],
    ids=["looks at queues", "changes a table"],
)
def test_what_is_done_in_steps_ends_where_a_change_of_the_log_begins(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    broker.core.topics.put(TopicConfig("T", 64, 64))
    broker.core.groups.put({"groupName": "G"})
    for queue_id in range(64):
        broker.core.offsets.commit("G", "T", queue_id, 0)
    channel = begin(broker, command)
    writes_log(monkeypatch, broker)
    assert not channel.step(), "nothing looks at the log now"
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK)


def test_a_heartbeat_goes_on_while_the_log_is_being_changed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = begin(broker, heartbeat("a", 900))
    writes_log(monkeypatch, broker)
    assert channel.finish().code == ResponseCode.SUCCESS


def test_a_heartbeat_makes_nothing_once_another_is_master(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = begin(broker, heartbeat("a", 2))
    while broker.core.topics.get("%RETRY%a0") is None:
        assert channel.step()
    monkeypatch.setattr(type(broker.core.driver), "is_serving", property(lambda driver: False))
    assert channel.finish().code == ResponseCode.SUCCESS
    assert broker.core.topics.get("%RETRY%a1") is None


@pytest.mark.parametrize(("most", "share"), [(8, 4), (5, 3), (1, 1)])
def test_an_account_has_half_of_what_all_share(most: int, share: int) -> None:
    shares, own = Shares(most), principal(OWN.name)
    assert shares.most_of(own) == share and shares.take(own, share)
    assert not shares.take(own) and shares.used == share
    shares.give_back(OWN.name)
    assert shares.take(own) and not shares.take(own)
    assert shares.take(principal(FOREIGN.name), most - share) and not shares.take(principal("operator"))
    shares.give_back(OWN.name, share)
    shares.give_back(FOREIGN.name, most - share)
    assert (shares.used, dict(shares._used_by)) == (0, {})


@pytest.mark.parametrize("who", [principal("operator"), UNRESTRICTED])
def test_admins_and_who_needs_no_account_have_all_of_it(who: Principal) -> None:
    shares = Shares(8)
    assert shares.take(who, 8) and not shares.take(who)


def test_of_several_uses_all_are_counted_or_none() -> None:
    places, sizes, own = Shares(4), Shares(8), principal("operator")
    assert take_all([(places, own, 1), (sizes, own, 8)])
    assert not take_all([(places, own, 1), (places, own, 2), (sizes, own, 1)])
    assert (places.used, sizes.used) == (1, 8)
    give_back_all([(places, own, 1), (sizes, own, 8)])
    assert (places.used, sizes.used) == (0, 0)
