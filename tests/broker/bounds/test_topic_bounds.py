"""Room for topics: those of groups take none from others, no account takes all, and name servers take all of them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from rmqha.broker.tables import table_bounds
from rmqha.broker.tables.table_bounds import LOG_END, MAX_NAMES_CHARS, DeletedNames, TopicBounds
from rmqha.broker.tables.topics import (
    DELETED,
    DELETED_ENDS,
    TopicConfig,
    TopicTable,
    parse_deleted,
    parse_deleted_ends,
    parse_table,
)
from rmqha.host.disk import HostDisk
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import encode_properties
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import Entries, Items, dumps, dumps_in_steps, loads
from rmqha.wire.registration import MAX_TOPIC_COUNT, pack
from tests.broker.bounds.test_account_shares import GREEDY, OTHER, ask, make_topic, open_world, stranger
from tests.broker.pop.world import INVISIBLE_MS, later, pop_command
from tests.broker.rights.acl_world import World
from tests.broker.support import TableListener, send_command, topic_table
from tests.support.clock import ManualClock
from tests.support.steps import done

assert open_world, "a fixture"
SHARE = 4


def bounds_of(world: World) -> TopicBounds:
    return world.broker.core.topics._bounds


def counts(bounds: TopicBounds) -> list[tuple[int, int]]:
    return [(kind.count, kind.chars) for kind in (bounds.others, bounds.of_groups)]


@pytest.fixture
def world(open_world: World) -> World:
    """One account may make four topics of groups."""
    open_world.broker.core.live.update("maxTopicCount=1000\nmaxGroupCount=1000")
    bounds_of(open_world).of_groups.creators.most = 2 * SHARE
    return open_world


def join(world: World, key: str, group: str) -> bool:
    """True if a heartbeat of a consumer has made the group's retry topic."""
    consumer = {"groupName": group, "subscriptionDataSet": []}
    body = dumps({"clientID": f"{key}-{group}", "consumerDataSet": [consumer]})
    command, channel = Command(RequestCode.HEART_BEAT, {}, body), stranger()
    sign(command, world.accounts.access.accounts[key].credentials)
    world.guard.received(cast(Session, channel), [command])
    assert [answer.code for answer in channel.take() if answer.is_response] == [0]
    return world.broker.core.topics.get(f"%RETRY%{group}") is not None


def give_up(world: World, key: str, group: str) -> Command:
    """A message that the group's consumer gives up: it makes the topic of dead letters."""
    properties = encode_properties({"UNIQ_KEY": "U"}).decode()
    return ask(world, send_command(f"%RETRY%{group}", 0, b"x", j="17", l="16", i=properties), key)


def pop(world: World, key: str, group: str) -> Command:
    return ask(world, pop_command("Shared", group, maxMsgNums=1), key)


# --- topics of groups -------------------------------------------------------------------------------------------------
def test_topics_of_groups_keep_nobody_from_a_topic(open_world: World) -> None:
    """There are two for each group: one account's half of the groups filled the table for all others."""
    core = open_world.broker.core
    core.live.update(f"maxTopicCount={bounds_of(open_world).others.count + 2}\nmaxGroupCount=1000")
    for number in range(4):
        assert join(open_world, GREEDY, f"g{number}")
        assert give_up(open_world, GREEDY, f"g{number}").code == 0
    assert make_topic(open_world, OTHER, "o1")


def test_one_account_makes_half_of_the_topics_of_groups(world: World) -> None:
    assert [join(world, GREEDY, f"g{number}") for number in range(6)] == [True] * SHARE + [False] * 2
    answer = give_up(world, GREEDY, "g0")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "account greedy has made half of the topics of retries and dead letters" in (answer.remark or "")
    assert make_topic(world, GREEDY, "g"), "others it may make"
    assert join(world, OTHER, "o1") and give_up(world, OTHER, "o1").code == 0, "another one finds room"
    world.broker.core.topics.remove("%RETRY%g1")
    assert give_up(world, GREEDY, "g0").code == 0, "one that is deleted makes room"


def test_no_account_makes_more_than_name_servers_take(world: World) -> None:
    """Beyond that they refuse the registration, and no client finds the group."""
    bounds = bounds_of(world)
    for most in (1, 50_000, MAX_TOPIC_COUNT // 2):
        bounds.configure(most)
        assert bounds.others.most + bounds.of_groups.most == MAX_TOPIC_COUNT
    bounds.configure(10_000_000)
    assert bounds.of_groups.most == MAX_TOPIC_COUNT // 2
    bounds.of_groups.most = bounds.of_groups.count + 1
    assert join(world, OTHER, "o1") and not join(world, GREEDY, "g1") and not join(world, OTHER, "o2")


# --- pops -------------------------------------------------------------------------------------------------------------
def test_who_pops_makes_half_of_the_topics_of_groups(world: World) -> None:
    """Each group has one more of each topic that it pops from: without an end, and never charged."""
    assert make_topic(world, "operator", "Shared")
    for number in range(20):
        ask(world, send_command("Shared", 0, b"%d" % number), "operator")
    for number in range(SHARE):
        assert pop(world, GREEDY, f"g{number}").code == 0
    later(world.broker, INVISIBLE_MS + 5000)
    topics = world.broker.core.topics
    assert all(topics.get(f"%RETRY%g{number}_Shared") for number in range(SHARE))
    answer = pop(world, GREEDY, "more")
    assert answer.code == ResponseCode.SYSTEM_BUSY and "account greedy has made half" in (answer.remark or "")
    assert pop(world, GREEDY, "g0").code == 0, "what is there is used on"
    assert pop(world, OTHER, "o1").code == 0, "another one finds room"
    later(world.broker, INVISIBLE_MS + 5000)
    assert topics.get("%RETRY%o1_Shared") is not None


def test_what_was_popped_waits_for_room_and_is_not_lost(world: World) -> None:
    assert make_topic(world, "operator", "Shared")
    assert pop(world, GREEDY, "g").code == 0
    bounds, topics = bounds_of(world), world.broker.core.topics
    most, bounds.of_groups.most = bounds.of_groups.most, 0
    later(world.broker, INVISIBLE_MS + 20_000)
    assert topics.get("%RETRY%g_Shared") is None
    bounds.of_groups.most = most
    later(world.broker, 120_000)
    assert topics.get("%RETRY%g_Shared") is not None
    answer = pop(world, GREEDY, "g")
    assert answer.code == 0 and len(answer.body)


# --- names ------------------------------------------------------------------------------------------------------------
def test_long_names_take_more_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = bounds_of(world)
    monkeypatch.setattr(table_bounds, "MAX_NAMES_CHARS", 2 * (bounds.others.chars + 250))
    assert make_topic(world, OTHER, "o" * 100)
    assert not make_topic(world, OTHER, "p" * 127) or not make_topic(world, OTHER, "q" * 127)
    assert make_topic(world, OTHER, "short")
    answer = ask(world, send_command("r" * 127, 0, b"x", d="1"), OTHER)
    assert (
        f"names of this broker's topics have as many characters as it takes, {table_bounds.MAX_NAMES_CHARS // 2}: "
        in (answer.remark or "")
    )


@pytest.mark.parametrize(("others", "name"), [("%RETRY%", "orders"), ("", "%RETRY%orders")])
def test_long_names_of_one_kind_take_no_room_from_the_other(others: str, name: str) -> None:
    bounds = TopicBounds()
    bounds.configure(100_000)
    bounds.recount([f"{others}{number:05d}" + "x" * 240 for number in range(49_950)])
    assert not bounds.refusal(name, UNRESTRICTED)
    assert bounds.refusal(f"{others}orders" + "x" * 240, UNRESTRICTED)


def test_a_remark_names_the_bound_that_is_reached(open_world: World) -> None:
    bounds, account = TopicBounds(), Principal(open_world.accounts, GREEDY)
    bounds.configure(4)
    bounds.of_groups.creators.most = 4
    for name in ("a", "b", "%RETRY%a", "%RETRY%b"):
        bounds.created(name, account)
    for name, remark in {
        "c": "half of the topics that maxTopicCount allows, 4: delete some or raise it",
        "%RETRY%c": "half of the topics of retries and dead letters that this broker takes, 4: delete some",
    }.items():
        assert bounds.refusal(name, account) == f"account greedy has made {remark}"
    bounds.others.creators.most = bounds.of_groups.creators.most = 100
    bounds.others.creators.max_chars = bounds.of_groups.creators.max_chars = 4
    for name, what in {"c": "topics", "%RETRY%c": "topics of retries and dead letters"}.items():
        remark = "whose names have half of the characters that this broker takes, 4: delete some"
        assert bounds.refusal(name, account) == f"account greedy has made {what} {remark}"


def test_one_account_has_a_quarter_of_the_characters_of_names(world: World) -> None:
    bounds_of(world).others.creators.max_chars = 400
    assert [make_topic(world, GREEDY, f"{number}" * 100) for number in range(1, 5)] == [True, True, False, False]
    assert make_topic(world, OTHER, "o" * 100)


def test_so_many_names_fit_into_a_frame() -> None:
    """Compressed, whatever their characters: a registration is one frame."""
    chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|"
    prng, share_of_all = random.Random(7), 16
    count = MAX_TOPIC_COUNT // share_of_all
    length = MAX_NAMES_CHARS // MAX_TOPIC_COUNT
    rows = (TopicConfig("".join(prng.choices(chars, k=length)), 16, 16).to_json() for _ in range(count))
    body = done(pack({"counter": 1, "stateVersion": 2, "timestamp": 3}, count, rows))
    assert share_of_all * len(body) < BrokerConfig().max_frame_bytes - 64 * 1024


# --- deleted topics ---------------------------------------------------------------------------------------------------
def test_a_deleted_topic_without_messages_leaves_nothing(tmp_path: Path) -> None:
    """Who may create and delete topics could add names to the table, to each registration and to all replicas, without
    an end."""
    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    slave = topic_table(HostDisk(tmp_path / "slave"), BrokerConfig(), ManualClock())
    before = table.to_json()
    for number in range(3):
        table.put(TopicConfig(f"T{number}", 1, 1))
        heard = table.version.stamp
        table.remove(f"T{number}")
        changes = table.changes_since(heard)
        assert changes is not None
        slave.apply(changes)
    assert not table.deleted and not slave.deleted
    assert table.to_json().keys() == before.keys()


def test_a_slave_remembers_what_the_release_before_has_deleted(tmp_path: Path) -> None:
    slave = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    slave.apply({"dataVersion": {}, "removed": ["T"], "topicConfigTable": {}})
    assert slave.deleted == {"T"}


def test_a_deleted_topic_makes_room(open_world: World) -> None:
    """Also one with messages, whose queues stay: else names that were used once filled the table for all, for ever."""
    core = open_world.broker.core
    core.live.update(f"maxTopicCount={bounds_of(open_world).others.count + 1}")
    for number in range(3):
        assert make_topic(open_world, OTHER, f"T{number}") and not make_topic(open_world, OTHER, "more")
        core.topics.remove(f"T{number}")
    assert core.topics.deleted == {"T0", "T1", "T2"}
    assert make_topic(open_world, OTHER, "T0") and not make_topic(open_world, OTHER, "T1")


def test_the_oldest_deleted_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without messages first."""
    monkeypatch.setattr(table_bounds, "MAX_DELETED_COUNT", 3)
    names = DeletedNames("abc", {"a": {LOG_END: 3, 0: 1}, "b": {LOG_END: 2}, "c": {LOG_END: 1, 0: 1}})
    assert list(names.names) == ["c", "b", "a"]
    names.add("d", {LOG_END: 4, 0: 1})
    assert list(names.names) == ["c", "a", "d"]
    names.add("e", {LOG_END: 5, 0: 1})
    assert list(names.names) == ["a", "d", "e"]
    names.add("a", {0: 2})
    names.add("f", {0: 1})
    assert list(names.names) == ["e", "a", "f"]
    assert names.take_changed() == {
        **dict.fromkeys("bcd"), "e": {LOG_END: 5, 0: 1}, "a": {0: 2}, "f": {0: 1}
    }  # fmt: skip
    assert not names.take_changed()


def json_bytes(names: DeletedNames) -> int:
    ends = {name: {str(key): str(end) for key, end in of_name.items()} for name, of_name in names.ends.items()}
    return len(dumps({DELETED: list(names.names), DELETED_ENDS: ends}))


def test_the_ends_of_deleted_topics_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand queues each of a hundred thousand topics fit into no frame: slaves could not follow their master."""
    monkeypatch.setattr(table_bounds, "MAX_DELETED_BYTES", 100_000)
    names = DeletedNames()
    for number in range(50):
        names.add(f"small-{number}", {LOG_END: 1 << 40, 0: 1})
    for number in range(20):
        names.add(f"large-{number}", {LOG_END: 1 << 40, **dict.fromkeys(range(1024), 10**12)})
        assert json_bytes(names) <= 100_000
    assert list(names.names) == [f"large-{number}" for number in (16, 17, 18, 19)]
    assert DeletedNames(names.names, names.ends).ends == names.ends
    for name in list(names.names):
        names.discard(name)
    assert not names._size_bytes and not names.ends


def test_a_change_of_a_topic_costs_nothing_of_those_deleted(tmp_path: Path) -> None:
    """Each change encoded all of them, on the event loop: a quarter of a second for 30,000."""
    table = TopicTable(
        HostDisk(tmp_path), BrokerConfig(), ManualClock(), TableListener(), queue_ends=lambda _, count: {0: 7}
    )
    for number in range(3000):
        table.put(TopicConfig(f"T{number}", 1, 1))
        table.remove(f"T{number}")
    table.save()
    table.put(TopicConfig("one", 1, 1))
    data = table.unsaved()
    assert data is not None and len(dumps({name: str(value) for name, value in data.members.items()})) < 1000
    table.file.write(data)
    table.remove("one")
    table.put(TopicConfig("T7", 1, 1))
    table.save()
    again = TopicTable(HostDisk(tmp_path), BrokerConfig(), ManualClock(), TableListener())
    assert again.deleted == table.deleted and again.deleted_ends == table.deleted_ends
    assert "one" in again.deleted and "T7" not in again.deleted


def test_deleted_topics_are_told_once_and_in_steps(tmp_path: Path) -> None:
    """They stood in each part of the table, and in each registration, all made in one step."""
    table = TopicTable(
        HostDisk(tmp_path), BrokerConfig(), ManualClock(), TableListener(), queue_ends=lambda _, count: {0: 7}
    )
    for number in range(3000):
        table.put(TopicConfig(f"T{number}", 1, 1))
        table.remove(f"T{number}")
    slave = topic_table(HostDisk(tmp_path / "slave"), BrokerConfig(), ManualClock())
    bodies = []
    for is_last in (False, True):
        members = done(table.members(0, 5, is_last=is_last))
        assert all(len(dumps(value)) < 5000 for value in members.values() if not isinstance(value, Entries | Items))
        bodies.append(loads(done(dumps_in_steps(members))))
    assert DELETED not in bodies[0] and DELETED_ENDS not in bodies[0]
    slave.replace(
        parse_table(bodies[1]), replace(table.version), parse_deleted(bodies[1]), parse_deleted_ends(bodies[1])
    )
    assert slave.deleted_ends == table.deleted_ends
    assert b"T2999" not in done(table.registration()).body


def test_whoever_makes_and_deletes_topics_adds_no_names_without_an_end(
    open_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_bounds, "MAX_DELETED_COUNT", 3)
    topics = open_world.broker.core.topics
    for number in range(6):
        topics.put(TopicConfig(f"T{number}", 1, 1))
        topics.remove(f"T{number}")
    assert topics.deleted == {"T3", "T4", "T5"}, "messages wait here"


def test_forgotten_topics_do_not_come_back_beyond_what_name_servers_take(tmp_path: Path) -> None:
    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    table._bounds.others.most, table._bounds.of_groups.most = len(table) + 1, 1
    assert table.restore({name: [0] for name in "ABCD"}) == ["A", "B"]
    assert table.restore({name: [0, 1] for name in "ABCD"}) == ["A", "B"], "what is there gets its queues"


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_new_master_has_counted_what_it_has_heard_of(tmp_path: Path, is_whole: bool) -> None:
    """By each change: a failover waits for no count of all."""
    master = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    slave = topic_table(HostDisk(tmp_path / "slave"), BrokerConfig(), ManualClock())
    slave.restore({"%RETRY%Old": [0], "Old": [0]})

    def follow() -> None:
        changes = None if is_whole else master.changes_since(slave.version.stamp)
        if changes is None:
            slave.replace(parse_table(master.to_json()), replace(master.version))
        else:
            slave.apply(changes)
        counted = TopicBounds()
        counted.recount(slave.names())
        assert counts(slave._bounds) == counts(counted)
        assert slave.names() == master.names()

    follow()
    for name in ("A", "Long" * 9, "%RETRY%G", "%DLQ%G", "A"):
        master.put(TopicConfig(name, 1, 1))
        follow()
    for name in ("A", "%DLQ%G"):
        master.remove(name)
        follow()
    assert slave.restore({"New": [0], "A": [0, 1]}) == ["A", "New"]
    master.restore({"New": [0], "A": [0, 1]})
    follow()
