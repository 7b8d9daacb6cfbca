"""A right that is taken away while a request waits: whatever ends the wait, nothing is told and nothing is changed.

Each way in which a broker lets a request wait, with accounts and with policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from rmqha.broker.requests import consumer_requests, group_requests
from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel, Steps
from rmqha.broker.tables.topics import TopicConfig
from rmqha.ha.action import AckStatus
from rmqha.host.net.session import Session
from rmqha.model.access import AccessList
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties, offset_message_id
from rmqha.store.index import index_service
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.pop.world import ack_command, messages, pop_command
from tests.broker.rights.acl_world import ACCOUNTS, OWN, PUB, World, back, end, pull
from tests.broker.rights.test_policy_matrix import DIRECTORY, POLICIES
from tests.broker.support import Broker, FakeChannel, send_command

WITHOUT = AccessList({**ACCOUNTS, OWN.name: replace(ACCOUNTS[OWN.name], topics={})})
WITHOUT_POLICIES = UserDirectory.of(
    (User(name, account.credentials.secret_key, is_super=account.admin) for name, account in ACCOUNTS.items()),
    {**POLICIES, OWN.name: ()},
    AuthorizationRules(is_on=True, cluster="DefaultCluster"),
)
WITHOUT_USER = AccessList({key: account for key, account in ACCOUNTS.items() if key != OWN.name})


def held_pull(world: World) -> Command:
    end = world.broker.store.queue_range(OWN.topic, 0)[1]
    return pull(OWN.topic, OWN.group, sysFlag="6", queueOffset=str(end))


def held_pop(world: World) -> Command:
    return pop_command(OWN.topic, OWN.group, pollTime=15_000, initMode=1, queueId=3)


def held_notification(world: World) -> Command:
    command = held_pop(world)
    command.code = RequestCode.NOTIFICATION
    return command


def long_search(world: World) -> Command:
    world.broker.shell.searches = False
    ext = {"topic": OWN.topic, "key": f"key-{OWN.name}", "maxNum": "9", "beginTimestamp": "0"}
    return Command(RequestCode.QUERY_MESSAGE, {**ext, "endTimestamp": str(1 << 62)})


def arrival(world: World) -> None:
    for queue_id in (0, 3):
        assert world.broker.ask(send_command(OWN.topic, queue_id, OWN.secret)).code == 0


def timeout(world: World) -> None:
    world.broker.run(60_000)


def new_role(world: World) -> None:
    world.broker.core.pull.role_changed()
    world.broker.core.pops.polls.end_all()


def reset(world: World) -> None:
    world.broker.core.offsets.reset(OWN.group, OWN.topic, 0, 0)
    world.broker.core.pull.offsets_reset(OWN.group, OWN.topic)


def searching(world: World) -> None:
    while world.broker.core.queries.step():
        pass


class Row(NamedTuple):
    make: Callable[[World], Command]
    end: Callable[[World], None]


ROWS = {
    f"{make.__name__}, {end.__name__}": Row(make, end)
    for make, ends in {
        held_pull: (arrival, timeout, new_role, reset),
        held_pop: (arrival, timeout, new_role),
        held_notification: (arrival, timeout, new_role),
        long_search: (searching,),
    }.items()
    for end in ends
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("before", "after"), [(None, WITHOUT), (None, WITHOUT_USER), (DIRECTORY, WITHOUT_POLICIES)])
def test_what_waits_tells_nothing_when_the_right_is_gone(
    make_broker: Callable[..., Broker],
    name: str,
    before: AccessList | None,
    after: AccessList,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 1)
    world, channel, row = World(make_broker().start(), before), FakeChannel("10.0.0.8:1"), ROWS[name]
    denied_count = world.statistics.denied_count
    assert world.ask(row.make(world), OWN.name, channel) == [], "it waits"
    world.accounts.access = after
    row.end(world)
    (answer,) = channel.take()
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body and not answer.ext
    assert world.statistics.denied_count == denied_count + 1


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("access", [None, DIRECTORY])
def test_what_waits_is_served_while_the_right_is_there(
    make_broker: Callable[..., Broker], name: str, access: AccessList | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 1)
    world, channel, row = World(make_broker().start(), access), FakeChannel("10.0.0.8:1"), ROWS[name]
    assert world.ask(row.make(world), OWN.name, channel) == []
    row.end(world)
    (answer,) = channel.take()
    assert answer.code != ResponseCode.NO_PERMISSION


def test_a_code_that_needs_no_policy_needs_none_when_it_has_waited(make_broker: Callable[..., Broker]) -> None:
    """authorizationWhitelist counted for the request, and not for its answer."""
    rules = AuthorizationRules(
        is_on=True, cluster="DefaultCluster", unauthorized_codes=frozenset({int(RequestCode.PULL_MESSAGE)})
    )
    users = [User(name, account.credentials.secret_key, is_super=account.admin) for name, account in ACCOUNTS.items()]
    world = World(make_broker().start(), UserDirectory.of(users, {}, rules))
    channel = FakeChannel("10.0.0.8:1")
    assert world.ask(held_pull(world), OWN.name, channel) == []
    arrival(world)
    (answer,) = channel.take()
    assert answer.code == ResponseCode.SUCCESS


# --- requests that wait unwritten, or for another's answer ------------------------------------------------------------
REPLIES = "DefaultCluster_REPLY_TOPIC"
WITH_REPLIES = AccessList(
    {**ACCOUNTS, OWN.name: replace(ACCOUNTS[OWN.name], topics={**ACCOUNTS[OWN.name].topics, REPLIES: PUB})}
)


def begin(world: World, command: Command, channel: FakeChannel) -> None:
    """Let the account ask; nothing that is due is done."""
    sign(command, ACCOUNTS[OWN.name].credentials)
    world.guard.received(cast(Session, channel), [command])


def a_send(world: World) -> Command:
    return send_command(OWN.topic, 0, OWN.secret)


def a_send_back(world: World) -> Command:
    return back(OWN.group, world.records[OWN].plain, originTopic=OWN.topic)


def an_end(world: World) -> Command:
    return end(world, OWN, topic=OWN.topic)


def an_ack(world: World) -> Command:
    (answer,) = world.ask(pop_command(OWN.topic, OWN.group, initMode=0, queueId=0), OWN.name)
    return ack_command(messages(answer, OWN.topic, OWN.group)[0], group=OWN.group)


THROTTLED = [a_send, a_send_back, an_end, an_ack]


@pytest.mark.parametrize("make", THROTTLED)
@pytest.mark.parametrize(("before", "after"), [(None, WITHOUT), (None, WITHOUT_USER), (DIRECTORY, WITHOUT_POLICIES)])
def test_what_waits_for_room_in_the_log_is_not_written(
    make_broker: Callable[..., Broker],
    make: Callable[[World], Command],
    before: AccessList | None,
    after: AccessList,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, channel = World(make_broker().start(), before), FakeChannel("10.0.0.8:1")
    command = make(world)
    monkeypatch.setattr(world.broker.core.throttle, "takes", lambda owner, size_bytes: False)
    end_offset = world.broker.store.max_phy_offset
    begin(world, command, channel)
    assert not channel.sent, "it waits"
    world.accounts.access = after
    world.broker.core.throttle.moved()
    world.broker.run()
    assert channel.one().code == ResponseCode.NO_PERMISSION
    assert world.broker.store.max_phy_offset == end_offset


@pytest.mark.parametrize("make", THROTTLED)
def test_what_has_waited_for_room_in_the_log_is_written(
    make_broker: Callable[..., Broker], make: Callable[[World], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, channel = World(make_broker().start()), FakeChannel("10.0.0.8:1")
    command = make(world)
    monkeypatch.setattr(world.broker.core.throttle, "takes", lambda owner, size_bytes: False)
    begin(world, command, channel)
    world.broker.core.throttle.moved()
    world.broker.run()
    assert channel.one().code == ResponseCode.SUCCESS


class Clients:
    """Clients that the broker asks; they answer when the test says so."""

    def __init__(self, world: World) -> None:
        self.waiting: list[tuple[Command, Done]] = []
        world.broker.shell.client_call = self._call

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        self.waiting.append((command, done))

    def answer(self) -> None:
        for command, done in self.waiting:
            done(command.reply(0, {"told": OWN.name}, OWN.secret))


def a_reply(world: World) -> Command:
    text = encode_properties({"MSG_TYPE": "reply", "REPLY_TO_CLIENT": OWN.client_id}).decode()
    command = send_command(REPLIES, 0, OWN.secret, i=text)
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return command


def about_a_member(code: int) -> Callable[[World], Command]:
    def make(world: World) -> Command:
        message_id = offset_message_id((b"\x7f\0\0\1", 20911), world.records[OWN].plain)
        ext = {"topic": OWN.topic, "group": OWN.group, "consumerGroup": OWN.group, "clientId": OWN.client_id}
        return Command(code, {**ext, "msgId": message_id})

    return make


ASKED: dict[str, tuple[Callable[[World], Command], AccessList, AccessList]] = {
    "324": (a_reply, WITH_REPLIES, WITHOUT),
    **{
        str(int(code)): (about_a_member(code), DIRECTORY, WITHOUT_POLICIES)
        for code in (
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
        )
    },
}


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("name", ASKED)
def test_a_clients_answer_is_told_to_nobody_whose_right_is_gone(
    make_broker: Callable[..., Broker], name: str, is_lost: bool
) -> None:
    make, before, after = ASKED[name]
    world, channel = World(make_broker().start(), before), FakeChannel("10.0.0.8:1")
    clients = Clients(world)
    assert world.ask(make(world), OWN.name, channel) == [] and len(clients.waiting) == 1, "it waits"
    if is_lost:
        world.accounts.access = after
    clients.answer()
    world.broker.run()
    answer = channel.one()
    assert (answer.code == ResponseCode.NO_PERMISSION) is is_lost
    if is_lost:
        assert not answer.body and not answer.ext and not world.broker.store.queue_range(REPLIES, 0)[1]


@pytest.mark.parametrize("is_lost", [True, False])
def test_popped_messages_whose_checkpoint_waits_go_to_nobody_whose_right_is_gone(
    make_broker: Callable[..., Broker], is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas may take seconds to hold it."""
    world, channel, waiting = World(make_broker().start()), FakeChannel("10.0.0.8:1"), list[Any]()
    monkeypatch.setattr(world.broker.core.driver, "store_waiting", lambda kept, stored, answer: waiting.append(answer))
    begin(world, pop_command(OWN.topic, OWN.group, initMode=0, queueId=0), channel)
    assert not channel.sent and len(waiting) == 1
    if is_lost:
        world.accounts.access = WITHOUT
    waiting[0].finish(AckStatus.OK)
    answer = channel.one()
    assert (answer.code, OWN.secret in bytes(answer.body)) == (
        (ResponseCode.NO_PERMISSION, False) if is_lost else (0, True)
    )


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_large_heartbeat_that_waits_for_another_joins_no_group_whose_right_is_gone(
    make_broker: Callable[..., Broker], is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_requests, "LARGE_HEARTBEAT_BYTES", 1)
    world, channel, other = World(make_broker().start()), FakeChannel("10.0.0.8:1"), FakeChannel("10.0.0.8:2")
    line = world.broker.core.processor._consumers._large_heartbeats
    assert list(line.enter(other, 1)) == []
    beat = {"clientID": "late", "consumerDataSet": [{"groupName": OWN.group, "subscriptionDataSet": []}]}
    begin(world, Command(RequestCode.HEART_BEAT, {}, dumps(beat)), channel)
    assert not channel.sent
    if is_lost:
        world.accounts.access = AccessList({**ACCOUNTS, OWN.name: replace(ACCOUNTS[OWN.name], groups={})})
    line.leave(other)
    (answer,) = (command for command in channel.take() if command.is_response)
    assert (answer.code == ResponseCode.NO_PERMISSION) is is_lost
    group = world.broker.core.clients.consumer_group(OWN.group)
    assert group is not None and ("late" in group.client_ids()) is not is_lost


@pytest.mark.parametrize("is_lost", [True, False])
def test_queues_are_assigned_to_nobody_whose_right_is_gone(make_broker: Callable[..., Broker], is_lost: bool) -> None:
    world, channel = World(make_broker().start()), FakeChannel("10.0.0.8:1")
    body = {"topic": OWN.topic, "consumerGroup": OWN.group, "clientId": OWN.client_id, "strategyName": "AVG"}
    begin(world, Command(RequestCode.QUERY_ASSIGNMENT, {}, dumps(body)), channel)
    ((asked, done),) = world.broker.shell.asked
    assert not channel.sent
    if is_lost:
        world.accounts.access = WITHOUT
    done(asked.reply(0))
    assert (channel.one().code == ResponseCode.NO_PERMISSION) is is_lost


# --- requests in steps, and held polls --------------------------------------------------------------------------------
class SteppedChannel(FakeChannel):
    """Its steps go on when the test says so."""

    steps: Steps = iter(())

    def work(self, steps: Steps) -> None:
        self.steps = steps
        next(steps, None)

    def finish(self) -> None:
        super().work(self.steps)


WITHOUT_OPERATOR = AccessList({key: account for key, account in ACCOUNTS.items() if key != "operator"})
SET_BACK = Command(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": OWN.topic, "group": OWN.group, "timestamp": "0"}
)
CLONE = Command(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": OWN.group, "destGroup": "Copy", "offline": "true"})


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("command", [SET_BACK, CLONE])
def test_the_steps_of_a_request_end_when_the_right_is_gone(
    make_broker: Callable[..., Broker], command: Command, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_requests, "SEARCHED_AT_A_TIME", 1)
    monkeypatch.setattr(group_requests, "CLONED_AT_A_TIME", 1)
    world, channel = World(make_broker().start()), SteppedChannel("10.0.0.8:1")
    offsets = world.broker.core.offsets
    offsets.commit(OWN.group, OWN.topic, 0, 1)
    asked = Command(command.code, dict(command.ext))
    sign(asked, ACCOUNTS["operator"].credentials)
    world.guard.received(cast(Session, channel), [asked])
    assert not channel.sent, "it has steps to go"
    if is_lost:
        world.accounts.access = WITHOUT_OPERATOR
    channel.finish()
    world.broker.run()
    assert (channel.one().code == ResponseCode.NO_PERMISSION) is is_lost
    group, offset = ("Copy", 1) if command is CLONE else (OWN.group, 0)
    assert (offsets.query(group, OWN.topic, 0) == offset) is not is_lost


@pytest.mark.parametrize("is_lost", [True, False])
def test_tables_are_told_to_no_replica_whose_account_is_gone(make_broker: Callable[..., Broker], is_lost: bool) -> None:
    world, channel = World(make_broker().start()), FakeChannel("10.0.0.8:1")
    tables = world.broker.core
    ext = {
        "version": "1",
        "masterEpoch": str(tables.replica.epoch),
        "brokerId": "2",
        "topics": str(tables.topics.version.stamp),
        "groups": str(tables.groups.version.stamp),
        "offsets": str(tables.offsets.stamp),
        "delays": str(tables.delay_offsets.version.stamp),
        "waitMs": "5000",
    }
    command = Command(RequestCode.RMQHA_FOLLOW_TABLES, ext)
    sign(command, ACCOUNTS["operator"].credentials)
    world.guard.received(cast(Session, channel), [command])
    assert not channel.sent
    if is_lost:
        world.accounts.access = WITHOUT_OPERATOR
    tables.topics.put(TopicConfig("Secret", 1, 1))
    tables.metadata_leader.changed()
    answer = channel.one()
    assert (answer.code == ResponseCode.NO_PERMISSION) is is_lost and (b"Secret" in bytes(answer.body)) is not is_lost
