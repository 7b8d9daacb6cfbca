"""A right that is taken away while a request waits: whatever ends the wait, nothing is told and nothing is changed.

Each way in which a broker lets a request wait, with accounts and with policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from rmqha.model.access import AccessList
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.store.index import index_service
from rmqha.wire.command import Command
from tests.broker.pop.world import pop_command
from tests.broker.rights.acl_world import ACCOUNTS, OWN, World, pull
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
