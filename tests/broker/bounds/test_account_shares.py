"""Shares of accounts: of what all share one has half, so that another finds room. A new `Shares` needs a row."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel, Shares
from rmqha.broker.services import transaction
from rmqha.broker.timers import service
from rmqha.host.net.session import Session
from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import RecallHandle, decode_properties, encode_properties
from rmqha.store.index import index_service
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.world import pop_command
from tests.broker.rights.acl_world import ACCOUNTS, FOREIGN, OWN, Side, World, lock, principal, pull
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.transactions import COMMIT, ROUND_MS, end_of, prepared, records

ROOT = Path(__file__).parents[3] / "rmqha"
ROOM = 4
"""What each table has room for here."""
KEYS = {"recall_message_enable": True, "enable_property_filter": True}
numbers = itertools.count()
strangers: list[FakeChannel] = []


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> Iterator[World]:
    world = World(make_broker(**KEYS).start())
    world.broker.shell.client_call = _never_answers
    strangers.clear()
    yield world


def _never_answers(channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
    """A client that is silent."""


def stranger() -> FakeChannel:
    """A new connection."""
    strangers.append(FakeChannel(f"10.1.0.1:{next(numbers)}"))
    return strangers[-1]


def waits(world: World, command: Command, side: Side) -> bool:
    """True if the request is not answered yet."""
    return world.ask(command, side.name, stranger()) == []


def held_pull(world: World, side: Side, **ext: str) -> bool:
    end = world.broker.store.queue_range(side.topic, 0)[1]
    return waits(world, pull(side.topic, side.group, sysFlag="6", queueOffset=str(end), **ext), side)


def filtered_pull(world: World, side: Side) -> bool:
    return held_pull(world, side, subscription="tag")


def held_pop(world: World, side: Side, **ext: str) -> bool:
    return waits(world, pop_command(side.topic, side.group, pollTime=15_000, initMode=1, queueId=3, **ext), side)


def filtered_pop(world: World, side: Side) -> bool:
    return held_pop(world, side, exp="tag")


def search(world: World, side: Side) -> bool:
    world.broker.shell.searches = False
    ext = {"topic": side.topic, "key": f"key-{side.name}", "maxNum": "9", "beginTimestamp": "0"}
    return waits(world, Command(RequestCode.QUERY_MESSAGE, {**ext, "endTimestamp": str(1 << 62)}), side)


def locked(world: World, side: Side, queue_id: int) -> bool:
    command = lock(side.group, side.client_id, side.topic)
    body = loads(command.body)
    body["mqSet"][0]["queueId"] = queue_id
    command.body = dumps(body)
    (answer,) = world.ask(command, side.name, stranger())
    return bool(loads(answer.body)["lockOKMQSet"])


def joined(world: World, side: Side) -> bool:
    beat = {"clientID": f"c{next(numbers)}", "producerDataSet": [{"groupName": side.producers}]}
    channel = stranger()
    (answer,) = world.ask(Command(RequestCode.HEART_BEAT, {}, dumps(beat)), side.name, channel)
    return answer.code == ResponseCode.SUCCESS


def called(world: World, side: Side) -> bool:
    ext = {"group": side.group, "topic": side.topic}
    return waits(world, Command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext), side)


class Row(NamedTuple):
    """`shares` finds the table; `take` takes one place of it and returns True if there was one."""

    where: str
    shares: Callable[[World], Shares]
    take: Callable[[World, Side], bool]


ROWS = {
    "held pulls": Row("requests/pull.py", lambda world: world.broker.core.pull._places, held_pull),
    "filters of pulls": Row(
        "requests/selectors.py", lambda world: world.broker.core.pull._held_filters._shares, filtered_pull
    ),
    "filters of pops": Row(
        "requests/selectors.py", lambda world: world.broker.core.pops.polls.filters._shares, filtered_pop
    ),
    "held pops": Row("pop/requests/polls.py", lambda world: world.broker.core.pops.polls._places, held_pop),
    "bytes of held pops": Row("pop/requests/polls.py", lambda world: world.broker.core.pops.polls._bytes, held_pop),
    "searches": Row("requests/query_requests.py", lambda world: world.broker.core.queries._places, search),
    "memberships": Row("tables/clients.py", lambda world: world.broker.core.clients._places, joined),
}
OTHERWISE = {
    "tables/locks.py": "test_locks_are_shared",
    "services/replies.py": "tests/broker/services/test_replies.py",
    "requests/consumer_calls.py": "tests/broker/requests/test_consumer_calls.py",
    "replication/forward.py": "tests/broker/replication/test_forward.py",
}
"""Where the others are tested."""


def test_each_table_that_is_shared_has_a_row() -> None:
    found = set()
    for path in (ROOT / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Shares":
                found.add(str(path.relative_to(ROOT / "broker")))
    assert found == {row.where for row in ROWS.values()} | OTHERWISE.keys()


@pytest.mark.parametrize("name", ROWS)
def test_one_account_leaves_room_for_another(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 1)
    row = ROWS[name]
    shares = row.shares(world)
    before = shares.used
    assert row.take(world, OWN)
    size = shares.used - before
    shares.most = 2 * before + ROOM * size
    taken = 1 + [row.take(world, OWN) for _ in range(before + 2 * ROOM)].count(True)
    assert taken * size <= shares.most_of(principal(OWN.name)) < (taken + 1) * size
    assert row.take(world, FOREIGN), "another one finds room"
    for channel in strangers:
        world.broker.core.processor.closed(channel)
    assert shares.used == before, "and all of it is given back"


def test_locks_are_shared(world: World) -> None:
    core = world.broker.core
    core.locks.clear()
    core.locks._places.most = ROOM
    assert [locked(world, OWN, queue_id) for queue_id in range(4)] == [True, True, False, False]
    assert locked(world, FOREIGN, 0)
    world.broker.clock.ms += 61_000
    assert locked(world, OWN, 3), "what has ended makes room"


# --- half messages ----------------------------------------------------------------------------------------------------
def half(world: World, side: Side, **more: str) -> Command:
    key = f"ID-{next(numbers)}"
    more = {"PGROUP": side.producers, "CHECK_IMMUNITY_TIME_IN_SECONDS": "259200", **more}
    (answer,) = world.ask(prepared(world.broker, key, side.topic, 0, **more), side.name)
    return answer


@pytest.fixture
def few_halves(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """An account may have three that wait; the world's own two were sent by nobody."""
    monkeypatch.setattr(transaction, "MAX_OPEN_COUNT", 6)
    world.broker.run(ROUND_MS)
    return world


def test_one_account_has_half_of_the_places_of_half_messages(few_halves: World) -> None:
    """Immune for 72 h they held up the checks of all others."""
    answers = [half(few_halves, OWN) for _ in range(4)]
    assert [answer.code for answer in answers] == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
    assert "has 3 transactions that have not ended" in (answers[-1].remark or "")
    assert half(few_halves, FOREIGN).code == 0
    end = end_of(answers[0], COMMIT, producerGroup=OWN.producers, msgId="", topic=OWN.topic)
    (answer,) = few_halves.ask(end, OWN.name)
    assert answer.code == 0 and half(few_halves, OWN).code == 0, "one that has ended makes room"
    assert half(few_halves, OWN).code == ResponseCode.SYSTEM_BUSY


def test_accounts_together_do_not_have_all_places_of_half_messages(few_halves: World) -> None:
    """Two of them filled all that are followed: a third one's were taken, and never checked."""
    for side, count in ((OWN, 3), (FOREIGN, 2)):
        answers = [half(few_halves, side) for _ in range(count + 1)]
        assert [answer.code for answer in answers] == [0] * count + [ResponseCode.SYSTEM_BUSY]
    state = few_halves.broker.core.transactions._state
    assert state is not None and state.owned_room == 1, "for the next account"


def test_an_admin_and_who_needs_no_account_has_all_places(few_halves: World) -> None:
    for _ in range(5):
        assert few_halves.broker.ask(prepared(few_halves.broker, f"ID-{next(numbers)}", OWN.topic, 0)).code == 0
    (answer,) = few_halves.ask(prepared(few_halves.broker, "ID-admin", OWN.topic, 0), "operator")
    assert answer.code == 0


def test_a_new_master_knows_whose_half_messages_wait(few_halves: World) -> None:
    for _ in range(3):
        assert half(few_halves, OWN).code == 0
    few_halves.broker.core.transactions.role_changed()
    few_halves.broker.run(ROUND_MS)
    few_halves.broker.run(ROUND_MS)
    assert half(few_halves, OWN).code == ResponseCode.SYSTEM_BUSY
    assert half(few_halves, FOREIGN).code == 0


def test_one_that_is_checked_counts_once(few_halves: World) -> None:
    for _ in range(3):
        assert half(few_halves, OWN, CHECK_IMMUNITY_TIME_IN_SECONDS="1").code == 0
    state = few_halves.broker.core.transactions._state
    assert state is not None
    for _ in range(3):
        few_halves.broker.run(ROUND_MS)
        assert len(state._marks_of) == 3 and sorted(state._owned_counts.values()) == [3]


def test_no_message_says_whom_it_counts_for(few_halves: World) -> None:
    """Neither by its sender's word, nor when it is there."""
    answer = half(few_halves, OWN, RMQHA_ACCOUNT="0" * 16)
    few_halves.ask(end_of(answer, COMMIT, producerGroup=OWN.producers, msgId="", topic=OWN.topic), OWN.name)
    assert "RMQHA_ACCOUNT" not in decode_properties(records(few_halves.broker, OWN.topic, 0)[-1].properties)
    state = few_halves.broker.core.transactions._state
    assert state is not None and not state._owned_counts


# --- recalls ----------------------------------------------------------------------------------------------------------
def recalled(world: World, side: Side) -> int:
    at_ms = world.broker.clock.wall_ms() + 60_000
    handle = RecallHandle(side.topic, world.broker.config.broker_name, at_ms, f"ID-{next(numbers)}").encode()
    command = Command(RequestCode.RECALL_MESSAGE, {"topic": side.topic, "recallHandle": handle})
    (answer,) = world.ask(command, side.name)
    return answer.code


def recalled_by_a_send(world: World, side: Side) -> int:
    at_ms, key = world.broker.clock.wall_ms() + 60_000, f"ID-{next(numbers)}"
    given = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(at_ms), "TIMER_DEL_UNIQKEY": key, "RMQHA_ACCOUNT": "0" * 16}
    (answer,) = world.ask(send_command(side.topic, 0, b"x", i=encode_properties(given).decode()), side.name)
    return answer.code


@pytest.mark.parametrize("take", [recalled, recalled_by_a_send])
def test_one_account_has_half_of_the_recalls(
    world: World, take: Callable[[World, Side], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_RECALL_COUNT_OF_ONE", 2)
    assert [take(world, OWN) for _ in range(3)] == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert take(world, FOREIGN) == 0
    timers = world.broker.core.timers
    kept = timers._recalls.kept(), timers._recalls.kept_marks()
    again = type(timers._recalls)()
    again.take(*kept)
    assert (again.kept(), again.kept_marks(), again._counts) == (*kept, timers._recalls._counts)
    world.broker.run(120_000)
    world.broker.run(1000)
    assert take(world, OWN) == 0, "their time has come"


def test_who_reads_the_queue_anew_knows_whose_they_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_RECALL_COUNT_OF_ONE", 2)
    assert [recalled(world, OWN) for _ in range(2)] == [0, 0]
    world.broker.core.timers.log_cut()
    world.broker.run(1)
    assert recalled(world, OWN) == ResponseCode.SYSTEM_BUSY and recalled(world, FOREIGN) == 0


# --- topics and groups ------------------------------------------------------------------------------------------------
GREEDY, OTHER = "greedy", "other"


@pytest.fixture
def open_world(make_broker: Callable[..., Broker]) -> World:
    """Two accounts that may everything by default, on a broker with room for eight topics and groups more."""
    world = World(make_broker(auto_create_max_per_second=1000, **KEYS).start())
    for name in (GREEDY, OTHER):
        credentials = replace(ACCOUNTS[OWN.name].credentials, access_key=name)
        both = Permission.PUB | Permission.SUB
        account = Account(credentials=credentials, default_topic=both, default_group=Permission.SUB)
        world.accounts.access = AccessList({**world.accounts.access.accounts, name: account})
    topics, groups = len(world.broker.core.topics), len(world.broker.core.groups)
    world.broker.core.live.update(f"maxTopicCount={topics + 8}\nmaxGroupCount={groups + 8}")
    return world


def ask(world: World, command: Command, key: str) -> Command:
    sign(command, world.accounts.access.accounts[key].credentials)
    channel = stranger()
    world.guard.received(cast(Session, channel), [command])
    world.broker.run()
    return channel.one()


def make_topic(world: World, key: str, name: str) -> bool:
    return ask(world, send_command(name, 0, b"x", d="1"), key).code == ResponseCode.SUCCESS


def make_group(world: World, key: str, name: str) -> bool:
    ask(world, Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}), key)
    return world.broker.core.groups.get(name) is not None


@pytest.mark.parametrize(("make", "table"), [(make_topic, "topics"), (make_group, "groups")])
def test_one_account_makes_half_of_the_topics_and_groups(
    open_world: World, make: Callable[[World, str, str], bool], table: str
) -> None:
    """By first uses alone it kept all others from a new topic or group, for ever."""
    made = getattr(open_world.broker.core, table)
    (made._bounds.others.creators if table == "topics" else made._creators).most = 8
    assert [make(open_world, GREEDY, f"g{number}") for number in range(6)] == [True] * 4 + [False] * 2
    assert make(open_world, OTHER, "o1") and make(open_world, GREEDY, "g0"), "what is there is used on"
    made.remove("g0")
    assert make(open_world, GREEDY, "g7"), "one that is deleted makes room"
    assert not make(open_world, GREEDY, "g8")


def test_who_is_refused_a_topic_is_told_why(open_world: World) -> None:
    open_world.broker.core.topics._bounds.others.creators.most = 2
    assert make_topic(open_world, GREEDY, "g0")
    answer = ask(open_world, send_command("g1", 0, b"x", d="1"), GREEDY)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "account greedy has made half of the topics that maxTopicCount allows" in (answer.remark or "")


# --- offsets ----------------------------------------------------------------------------------------------------------
def commit(world: World, key: str, group: str, topic: str) -> int:
    make_group(world, key, group)
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
    return ask(world, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext), key).code


def popped(world: World, key: str, group: str, topic: str) -> int:
    make_group(world, key, group)
    answer = ask(world, pop_command(topic, group, initMode=0, queueId=0), key)
    return ResponseCode.SUCCESS if answer.code == 0 else ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("take", [commit, popped])
def test_one_account_has_half_of_the_pairs_of_topic_and_group_with_an_offset(
    open_world: World, take: Callable[[World, str, str, str], int]
) -> None:
    """A thousand groups in a thousand topics filled the table: no new group of others kept an offset any more."""
    assert make_topic(open_world, "operator", "Shared")
    for _ in range(8):
        ask(open_world, send_command("Shared", 0, b"x"), "operator")
    offsets = open_world.broker.core.offsets
    offsets._creators.most = 6
    codes = [take(open_world, GREEDY, f"g{number}", "Shared") for number in range(4)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
    assert take(open_world, OTHER, "o1", "Shared") == 0
    for _ in offsets.remove_group("g0"):
        pass
    assert take(open_world, GREEDY, "g3", "Shared") == 0, "what is deleted makes room"
    offsets.new_epoch(9, open_world.broker.clock.wall_ms())
    assert take(open_world, GREEDY, "g0", "Shared") == 0, "a new master does not know whose they are"
