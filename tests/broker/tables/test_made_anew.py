"""A topic or a group that is deleted and made again has nothing of the one before: its messages do not come again, and
what was popped of it holds up nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqha.broker.pop.positions import PopQueue
from rmqha.broker.tables.table_bounds import LOG_END, Ends
from rmqha.broker.tables.topics import (
    BEGINS,
    DELETED_ENDS,
    TopicConfig,
    parse_deleted,
    parse_deleted_ends,
    parse_table,
)
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import StoreError
from rmqha.model.message import encode_properties
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.test_order import ordered
from tests.broker.pop.test_pop import bodies
from tests.broker.pop.test_set_back import next_master
from tests.broker.pop.world import INVISIBLE_MS, ack_all, ack_command, later, messages, polled, pop, send
from tests.broker.support import Broker, FakeChannel, FakeShell, pull_command, send_command, topic_table
from tests.broker.transactions import COMMIT, GIVEN_UP, ROLLBACK, ROUND_MS, end_of, prepared, records
from tests.support.clock import ManualClock

MakeBroker = Callable[..., Broker]


def delete_topic(broker: Broker, topic: str = "T") -> None:
    assert broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 0


def delete_group(broker: Broker, group: str = "G") -> None:
    fields = {"groupName": group, "cleanOffset": "true"}
    assert broker.ask(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0


def following(make_broker: MakeBroker, killed: Broker) -> Broker:
    """The next master, whose clock goes on."""
    broker = next_master(make_broker, killed)
    broker.clock.ms = killed.clock.ms
    broker.run()
    return broker


def heard_of_the_deletion_alone(make_broker: MakeBroker) -> Broker:
    """A next master: the topic had the messages a and b, was deleted, and made again with the message c."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    delete_topic(broker)
    broker.core.save()
    heard = (broker.directory / "config" / "topics.json").read_bytes()
    send(broker, b"c")
    broker.core.save()
    broker.store.sync()
    broker.store.close()
    broker.open = False
    (broker.directory / "config" / "topics.json").write_bytes(heard)
    return make_broker().start()


def of_queues(ends: Ends) -> dict[int, int]:
    """Without the log's end."""
    return {queue_id: end for queue_id, end in ends.items() if queue_id != LOG_END}


def topic_of(broker: Broker, name: str = "T") -> TopicConfig:
    topic = broker.core.topics.get(name)
    assert topic is not None
    return topic


@pytest.mark.parametrize("group", ["G", "New"])
@pytest.mark.parametrize("order", ["false", "true"])
def test_a_topic_that_is_made_anew_is_popped_from_where_it_begins(
    make_broker: MakeBroker, group: str, order: str
) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    ack_all(broker, pop(broker, order=order))
    delete_topic(broker)
    send(broker, b"d", b"e", b"f")
    broker = following(make_broker, broker)
    assert bodies(pop(broker, group=group, order=order)) == [b"d", b"e", b"f"]


def test_a_pop_that_waits_gets_nothing_of_a_deleted_topic(broker: Broker) -> None:
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker))
    waiting = polled(broker)
    delete_topic(broker)
    broker.core.pops.polls.wake_all()
    broker.run()
    assert waiting.take() == []
    send(broker, b"c")
    assert bodies(messages(waiting.one())) == [b"c"]


def test_messages_that_nobody_had_read_do_not_come_to_the_new_topic(broker: Broker) -> None:
    """Those too that the queue lacked yet."""
    send(broker, b"a")
    pop(broker)
    broker.core.processor.received(FakeChannel(), [send_command(body=b"b", d="1")])
    delete_topic(broker)
    send(broker, b"c")
    later(broker, INVISIBLE_MS + 5000)
    assert bodies(pop(broker)) == [b"c"]


def test_popped_messages_of_the_old_topic_do_not_come_again(broker: Broker) -> None:
    send(broker, b"a", b"b")
    given = pop(broker)
    delete_topic(broker)
    send(broker, b"c")
    later(broker, INVISIBLE_MS + 5000)
    assert bodies(pop(broker)) == [b"c"]
    assert broker.ask(ack_command(given[0])).code == ResponseCode.NO_MESSAGE
    assert broker.core.pops.in_flight() == {("T", "G"): 1}


def test_messages_that_waited_to_come_again_go_with_their_topic(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    pop(broker)
    later(broker, INVISIBLE_MS + 5000)
    (first, *_) = pop(broker, maxMsgNums=1)
    assert first.topic == "%RETRY%G_T"
    delete_topic(broker)
    assert broker.core.topics.get("%RETRY%G_T") is None
    send(broker, b"c")
    broker = following(make_broker, broker)
    assert bodies(pop(broker)) == [b"c"]
    later(broker, INVISIBLE_MS + 5000)
    assert bodies(pop(broker)) == [b"c"], "what comes again now is of the new topic"


def test_a_retry_topic_that_another_group_reads_too_stays(broker: Broker) -> None:
    """`%RETRY%a_b_T`: of group a and topic b_T, and of group a_b and topic T."""
    send(broker, b"1", topic="T")
    send(broker, b"2", topic="b_T")
    pop(broker, topic="T", group="a_b")
    pop(broker, topic="b_T", group="a")
    later(broker, INVISIBLE_MS + 5000)
    delete_topic(broker, "T")
    assert bodies(pop(broker, topic="b_T", group="a")) == [b"2"]


def test_what_a_group_of_that_name_has_sent_back_stays(broker: Broker) -> None:
    """`%RETRY%a_b`: of group a, which pops topic b, and of all that the group a_b sends back. That one has no offset
    there before it reads."""
    assert broker.core.groups.get_or_create("a_b") is not None
    send(broker, b"1", topic="b")
    send(broker, b"sent back", topic="%RETRY%a_b")
    pop(broker, topic="b", group="a")
    broker.core.offsets.commit("a", "%RETRY%a_b", 0, 1)
    delete_topic(broker, "b")
    assert broker.core.topics.get("%RETRY%a_b") is not None
    delete_group(broker, "a")
    assert broker.core.topics.get("%RETRY%a_b") is not None


def test_what_was_given_in_order_of_the_old_topic_holds_up_nobody(broker: Broker) -> None:
    send(broker, b"a", b"b")
    assert bodies(ordered(broker)) == [b"a", b"b"]
    delete_topic(broker)
    send(broker, b"c")
    assert bodies(ordered(broker, attemptId="two")) == [b"c"]
    assert broker.core.pops.in_flight() == {("T", "G"): 1}


def test_what_was_given_in_order_to_a_deleted_group_holds_up_nobody(broker: Broker) -> None:
    send(broker, b"a", b"b")
    ordered(broker)
    delete_group(broker)
    assert broker.core.pops.in_flight() == {}
    assert bodies(ordered(broker, attemptId="two")) == [b"a", b"b"]


def test_what_nobody_will_ask_for_is_in_flight_no_more(broker: Broker) -> None:
    send(broker, b"a", b"b")
    pop(broker)
    delete_topic(broker)
    later(broker, INVISIBLE_MS + 5000)
    assert broker.core.pops.in_flight() == {}


def test_a_group_that_is_made_anew_does_not_get_what_came_again_for_the_old_one(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker, maxMsgNums=1))
    pop(broker)
    later(broker, INVISIBLE_MS + 5000)
    again = pop(broker)
    assert bodies(again) == [b"b"] and again[0].topic == "%RETRY%G_T"
    ack_all(broker, again)
    delete_group(broker)
    broker = following(make_broker, broker)
    assert bodies(pop(broker)) == [b"a", b"b"]


def test_pulls_begin_there_too(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    delete_topic(broker)
    send(broker, b"d")
    moved = broker.ask(pull_command())
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    asked = Command(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "P", "topic": "T", "queueId": "0"})
    assert broker.ask(asked).ext["offset"] == "3"
    least = broker.ask(Command(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"}))
    assert least.ext["offset"] == "3"


def test_a_new_group_that_wants_the_newest_begins_with_the_first_of_a_new_topic(make_broker: MakeBroker) -> None:
    """As of any queue that is all in memory."""
    broker = make_broker(memory_bytes=1 << 30).start()
    send(broker, b"a", b"b", b"c")
    delete_topic(broker)
    send(broker, b"d", b"e")
    assert bodies(pop(broker, initMode=1)) == [b"d", b"e"]


def test_a_topic_may_be_made_anew_again_and_again(broker: Broker) -> None:
    for number in range(3):
        send(broker, b"%d" % number)
        assert bodies(pop(broker)) == [b"%d" % number]
        delete_topic(broker)
    assert broker.store.queue_range("T", 0) == (0, 3) and not broker.core.topics.begins


def test_where_a_topic_begins_stays_when_it_is_changed(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    delete_topic(broker)
    send(broker, b"c")
    fields = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    claim = {"topicName": "T", "readQueueNums": 3, "writeQueueNums": 3, BEGINS: {"0": "0"}}
    body = dumps({"topicConfigList": [claim]})
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == 0
    assert topic_of(broker).read_queue_count == 3 and of_queues(topic_of(broker).begins) == {0: 2}
    broker = following(make_broker, broker)
    assert bodies(pop(broker)) == [b"c"]


def test_who_makes_a_topic_does_not_say_where_it_begins(broker: Broker) -> None:
    claim = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, BEGINS: {"0": "5"}}
    body = dumps({"topicConfigList": [claim]})
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == 0
    send(broker, b"a")
    assert bodies(pop(broker)) == [b"a"]


def test_slaves_hear_where_a_topic_begins_and_name_servers_do_not(broker: Broker) -> None:
    send(broker, b"a", b"b")
    delete_topic(broker)
    send(broker, b"c")
    delete_topic(broker)
    send(broker, b"d")
    delete_topic(broker)
    gone: dict[str, Any] = loads(dumps(broker.core.topics.to_json()))
    end = gone[DELETED_ENDS]["T"].pop("-1")
    assert gone[DELETED_ENDS] == {"T": {"0": "4"}} and int(end) == broker.store.max_phy_offset
    send(broker, b"e")
    told: dict[str, Any] = loads(dumps(broker.core.topics.to_json()))
    assert told["topicConfigTable"]["T"][BEGINS] == {"-1": end, "0": "4"}
    assert TopicConfig.from_json("T", told["topicConfigTable"]["T"]) == topic_of(broker)
    steps = broker.core.topics.registration()
    try:
        while True:
            next(steps)
    except StopIteration as end:
        assert BEGINS.encode() not in end.value.body


@pytest.mark.parametrize("is_whole", [False, True])
def test_slaves_hear_where_a_deleted_topic_ended(broker: Broker, tmp_path: Path, is_whole: bool) -> None:
    send(broker, b"a", b"b")
    master = broker.core.topics
    slave = topic_table(HostDisk(tmp_path / "slave"), broker.config, broker.clock)

    def follow() -> None:
        body = loads(dumps(master.to_json()))
        changes = None if is_whole else master.changes_since(slave.version.stamp)
        if changes is None:
            deleted = parse_deleted(body), parse_deleted_ends(body)
            slave.replace(parse_table(body), replace(master.version), *deleted)
        else:
            slave.apply(loads(dumps(changes)))
        assert slave.to_json() == master.to_json()

    follow()
    delete_topic(broker)
    follow()
    assert slave.deleted_ends == {"T": {LOG_END: broker.store.max_phy_offset, 0: 2}}
    send(broker, b"c")
    follow()
    assert of_queues(slave.begins["T"]) == {0: 2} and slave.deleted_ends == {}
    slave.save()
    again = topic_table(HostDisk(tmp_path / "slave"), broker.config, broker.clock)
    assert again.begins == slave.begins


def test_a_new_topic_begins_at_its_end_where_records_of_the_old_one_were_lost(broker: Broker) -> None:
    send(broker, b"a", b"b")
    delete_topic(broker)
    broker.core.topics.deleted_ends["T"] = {0: 7, 3: 9}
    send(broker, b"c")
    assert of_queues(topic_of(broker).begins) == {0: 2}
    assert bodies(pop(broker)) == [b"c"]


def test_what_the_next_master_has_not_heard_of_does_not_hide_messages(make_broker: MakeBroker) -> None:
    """It knows that the topic was deleted and not that it was made again, as in AP: what was sent meanwhile comes."""
    broker = heard_of_the_deletion_alone(make_broker)
    send(broker, b"d")
    assert bodies(pop(broker)) == [b"c", b"d"]


def test_a_topic_that_was_made_again_is_there_though_the_next_master_has_not_heard_of_it(
    make_broker: MakeBroker,
) -> None:
    """What it was sent is acknowledged, and nobody may make the topic a third time."""
    broker = heard_of_the_deletion_alone(make_broker)
    assert of_queues(topic_of(broker).begins) == {0: 2}
    assert bodies(pop(broker)) == [b"c"]
    delete_topic(broker)
    broker = following(make_broker, broker)
    assert broker.core.topics.get("T") is None, "nothing has come since"


def test_where_a_topic_begins_is_on_the_disk_before_anything_is_sent(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would else lower it to the queue's end of then, and hide what was acknowledged meanwhile."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    delete_topic(broker)
    send(broker, b"c")
    broker.core.topics.file.change("topicConfigTable", {"T": replace(topic_of(broker), begins={0: 7})})
    monkeypatch.setattr(FakeShell, "save_tables_soon", lambda self: None)
    broker = following(make_broker, broker)
    table = parse_table(loads((broker.directory / "config" / "topics.json").read_bytes()))
    assert table["T"].begins == {0: 3}


def test_a_topic_whose_ends_cannot_be_read_is_not_half_deleted(tmp_path: Path) -> None:
    """The operator who asks again was told that it is gone, and slaves never heard of it."""

    def ends(topic: str, count: int) -> dict[int, int]:
        raise StoreError("a record is damaged")

    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock(), queue_ends=ends)
    table.put(TopicConfig("T", 4, 4))
    for _ in range(2):
        with pytest.raises(StoreError):
            table.remove("T")
        assert table.get("T") is not None
        assert not table.deleted


WAITING = ({"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"})


@pytest.mark.parametrize("properties", WAITING)
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_deleted_topic_whose_only_message_waited_does_not_come_back(
    make_broker: MakeBroker, properties: dict[str, str], fails_over: bool
) -> None:
    """It was forgotten, since its queues were empty; a new master found the message there, and made it again. What
    waited goes with the topic."""
    broker = make_broker().start()
    broker.core.topics.put(TopicConfig("D", 1, 1))
    given = encode_properties({"UNIQ_KEY": "U", **properties}).decode()
    assert broker.ask(send_command("D", 0, b"x", i=given)).code == 0
    delete_topic(broker, "D")
    if fails_over:
        broker = following(make_broker, broker)
    for _ in range(20):
        broker.run(1000)
    assert broker.store.queue_range("D", 0)[1] == 0
    assert broker.core.timers.waiting_count == 0 and broker.core.schedule.statistics().get(1, (1, 1)) == (1, 1)
    broker = following(make_broker, broker)
    assert broker.core.topics.get("D") is None


def prepare(broker: Broker, body: bytes) -> Command:
    """A half message of T. Returns the answer."""
    return broker.ask(prepared(broker, body.decode(), queue_id=0))


@pytest.mark.parametrize("properties", [*WAITING, {"TIMER_DELAY_MS": str(60 * 3_600_000)}])
@pytest.mark.parametrize("fails_over", [False, True])
def test_what_waited_for_a_deleted_topic_does_not_come_to_the_new_one(
    make_broker: MakeBroker, properties: dict[str, str], fails_over: bool
) -> None:
    """Rolled timer messages too, which are stored again before their time."""
    broker = make_broker().start()
    given = {"UNIQ_KEY": "U", **properties}
    send(broker, b"old", topic="T", queue_id=0, **given)
    delete_topic(broker)
    send(broker, b"new", topic="T", queue_id=0, **given)
    if fails_over:
        broker = following(make_broker, broker)
    hours = 80 if len(properties.get("TIMER_DELAY_MS", "")) > 5 else 0
    for _ in range(20 + 2 * hours):
        broker.run(3_600_000 // 2 if hours else 1000)
    assert bodies(pop(broker)) == [b"new"]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_transaction_of_a_deleted_topic_does_not_end_in_the_new_one(
    make_broker: MakeBroker, fails_over: bool
) -> None:
    broker = make_broker().start()
    send(broker, b"first")
    old = prepare(broker, b"old")
    delete_topic(broker)
    send(broker, b"second")
    new = prepare(broker, b"new")
    if fails_over:
        broker = following(make_broker, broker)
    refused = broker.ask(end_of(old, COMMIT, msgId="old"))
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST and refused.remark == "topic[T] was deleted meanwhile"
    assert broker.ask(end_of(new, COMMIT, msgId="new")).code == 0
    assert bodies(pop(broker)) == [b"second", b"new"]
    for _ in range(10):
        broker.run(ROUND_MS)
    (given_up,) = records(broker, GIVEN_UP, 0)
    assert bytes(given_up.body) == b"old" and not broker.core.transactions.waiting_count
    assert prepare(broker, b"more").code == 0


def test_a_transaction_of_a_deleted_topic_may_be_rolled_back(broker: Broker) -> None:
    old = prepare(broker, b"old")
    delete_topic(broker)
    assert broker.ask(end_of(old, ROLLBACK, msgId="old")).code == 0


def test_a_loss_of_the_log_hides_nothing_that_waits(make_broker: MakeBroker) -> None:
    """A new master whose log ends before the deletion, of which it has heard: what comes there is of the new topic."""
    broker = make_broker().start()
    send(broker, b"a")
    delete_topic(broker)
    topics = broker.core.topics
    for name in ("T", "Gone"):
        topics._deleted.add(name, {LOG_END: 1 << 40, 0: 1})
    send(broker, b"b")
    topics._topics["T"] = replace(topic_of(broker), begins={LOG_END: 1 << 40})
    topics.file.change("topicConfigTable", {"T": topic_of(broker)})
    broker = following(make_broker, broker)
    end_offset = broker.store.max_phy_offset
    assert topic_of(broker).begins[LOG_END] == broker.core.topics.deleted_ends["Gone"][LOG_END] == end_offset
    send(broker, b"c", DELAY="1")
    broker.run(2000)
    assert b"c" in bodies(pop(broker))


def test_nobody_is_hidden_where_a_queue_lost_what_it_began_behind(make_broker: MakeBroker) -> None:
    """A new master whose queue ends in front of where the topic began: what comes next there must be seen."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    delete_topic(broker)
    send(broker, b"c")
    topic = topic_of(broker)
    broker.core.topics._topics["T"] = replace(topic, begins={0: 7})
    broker.core.topics.file.change("topicConfigTable", {"T": replace(topic, begins={0: 7})})
    broker = following(make_broker, broker)
    assert of_queues(topic_of(broker).begins) == {0: 3}
    send(broker, b"d")
    assert bodies(pop(broker)) == [b"d"]


def test_a_slave_that_is_behind_shows_an_empty_queue(broker: Broker) -> None:
    send(broker, b"a", b"b")
    topic = topic_of(broker)
    broker.core.topics.replace({"T": replace(topic, begins={0: 7})}, replace(broker.core.topics.version, counter=99))
    assert broker.store.queue_range("T", 0) == (2, 2)
    assert broker.core.pops.positions.next_offset(PopQueue("T", "G", 0)) is None


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_deleted_no_message_of_before_comes_and_none_of_now_is_left_out(
    make_broker: MakeBroker, seed: int
) -> None:
    draws = Random(seed)
    broker = make_broker().start()
    present, done = set[bytes](), set[bytes]()
    order = "true" if seed % 3 == 0 else "false"
    for number in range(40):
        match draws.randrange(8):
            case 0 | 1 | 2:
                present.add(b"%d" % number)
                send(broker, b"%d" % number)
            case 3 | 4 if present:
                given = pop(broker, order=order)
                assert set(bodies(given)) <= present - done
                taken = [message for message in given if draws.random() < 0.5 or order == "true"]
                ack_all(broker, taken)
                done.update(bodies(taken))
            case 5:
                later(broker, INVISIBLE_MS + 5000)
            case 6 if present and draws.random() < 0.5:
                delete_topic(broker)
                present, done = set(), set()
            case 7 if draws.random() < 0.5:
                delete_group(broker)
                later(broker, INVISIBLE_MS + 5000)  # what it had is forgotten while there is no such group
                done = set()
            case _:
                broker = following(make_broker, broker)
    for _ in range(4):
        later(broker, INVISIBLE_MS + 5000)
        while present and (given := pop(broker, order=order)):
            assert set(bodies(given)) <= present
            ack_all(broker, given)
            done.update(bodies(given))
    assert done == present
