"""Slaves follow the tables by a long poll, and strict changes wait until the set holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.tables.metadata_leader import MAX_FOLLOWER_COUNT, MAX_HOLD_MS, STALE_MS
from rmqha.broker.tables.offsets import OffsetChange
from rmqha.broker.tables.table_version import MAX_REMEMBERED, NO_VERSION, TableChanges, TableVersion
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.authorization.users import UserChange
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveAck
from tests.broker.support import Broker, FakeChannel, send_command

TIMEOUT_MS = 3000


def follow_command(broker: Broker, broker_id: int = 2, **changes: Any) -> Command:
    """A poll of a slave that holds what the master holds now."""
    core = broker.core
    held = {
        "version": 1,
        "masterEpoch": core.replica.epoch,
        "brokerId": broker_id,
        "topics": core.topics.version.stamp,
        "groups": core.groups.version.stamp,
        "offsets": core.offsets.stamp,
        "delays": core.delay_offsets.version.stamp,
        "users": core.users.version.stamp,
        "waitMs": 10_000,
    }
    return Command(RequestCode.RMQHA_FOLLOW_TABLES, {name: str(item) for name, item in (held | changes).items()})


class Slave:
    """What a slave says and hears, by hand."""

    def __init__(self, broker: Broker, broker_id: int = 2) -> None:
        self.broker = broker
        self.broker_id = broker_id
        self.channel = FakeChannel()

    def poll(self, **changes: Any) -> None:
        self.broker.core.processor.received(self.channel, [follow_command(self.broker, self.broker_id, **changes)])

    def heard(self) -> dict[str, Any]:
        reply = self.channel.one()
        assert reply.code == 0, reply.remark
        body: dict[str, Any] = json.loads(bytes(reply.body))
        return body


def update_topic(topic: str = "T", **ext: str) -> Command:
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, **ext})


@pytest.fixture
def slave(broker: Broker) -> Slave:
    return Slave(broker)


# --- what a slave hears -----------------------------------------------------------------------------------------------
def test_a_poll_waits_for_a_change_and_brings_just_that(broker: Broker, slave: Slave) -> None:
    broker.ask(update_topic("Before"))
    slave.poll()
    assert slave.channel.take() == []
    broker.ask(update_topic("T"))
    changes = slave.heard()["topics"]
    assert list(changes["topicConfigTable"]) == ["T"] and changes["removed"] == []
    assert changes["dataVersion"] == broker.core.topics.version.to_json()


def test_what_changed_before_the_poll_comes_at_once(broker: Broker, slave: Slave) -> None:
    before = broker.core.topics.version.stamp
    for command in (update_topic("A"), update_topic("B"), Command(215, {"topic": "A"})):
        assert broker.ask(command).code == 0
    slave.poll(topics=before)
    changes = slave.heard()["topics"]
    assert list(changes["topicConfigTable"]) == ["B"] and changes["removed"] == ["A"]


@pytest.mark.parametrize("stamp", ["0:0", "1:9999", "0:7"])
def test_who_is_of_a_fork_or_long_behind_is_sent_for_the_whole(broker: Broker, slave: Slave, stamp: str) -> None:
    slave.poll(topics=stamp, groups=stamp)
    body = slave.heard()
    assert body["topics"] == body["groups"] == {"whole": True}


def test_groups_offsets_and_delays_follow_too(broker: Broker, slave: Slave) -> None:
    slave.poll()
    broker.core.groups.put({"groupName": "G", "retryMaxTimes": 3})
    assert slave.heard()["groups"]["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    slave.poll()
    broker.core.delay_offsets.put(3, 7)
    assert slave.heard()["delays"]["offsetTable"] == {"3": 7}
    broker.core.offsets.commit("G", "T", 1, 5)
    slave.poll(offsets=NO_VERSION)
    assert slave.channel.take() == []  # commits gather for 100 ms
    broker.core.metadata_leader.timeout()
    ((key, queue_id, offset, *_),) = slave.heard()["offsets"]
    assert (key, queue_id, offset) == ("T@G", 1, 5)


def test_commits_that_a_slave_still_has_come_back_to_a_master_that_was_killed(broker: Broker, slave: Slave) -> None:
    """Found by `make sim SEED=9 THEME=tables`: the replicas' offsets differed for ever."""
    for queue_id in ("0", "0", "0", "1"):
        broker.ask(send_command("T", e=queue_id))
    broker.run()
    broker.core.offsets.commit("G", "T", 0, 3)
    known = broker.core.offsets.stamp
    older, newer = TableVersion(0, 7), TableVersion(known.epoch, known.sequence + 1)
    lost = [
        OffsetChange("T@G", 0, 1, older).to_json(),
        OffsetChange("T@H", 0, None, newer).to_json(),
        OffsetChange("T@G", 1, 5, newer).to_json(),
    ]
    command = follow_command(broker, offsets=NO_VERSION, waitMs=0)
    command.body = lenient_json.dumps({"offsets": lost})
    broker.core.processor.received(slave.channel, [command])
    found = {(key, queue): offset for key, queue, offset, *_ in slave.heard()["offsets"]}
    # the newer ones count, none behind the end of its queue, and replicas hear of them as changes of this master
    assert found == {("T@G", 0): 3, ("T@H", 0): -1, ("T@G", 1): 1}
    assert broker.core.offsets.stamp > newer


def test_what_comes_back_to_a_master_that_opens_is_bound_by_its_queues_once_they_are_whole(
    broker: Broker, slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `make sim SEED=9240359 THEME=tables`: acknowledged commits were lowered to what it had dispatched."""
    broker.core.processor.received(slave.channel, [send_command("T", e="0"), send_command("T", e="0")])
    slave.channel.take()
    monkeypatch.setattr(ReplicaDriver, "is_serving", False)
    known = broker.core.offsets.stamp
    newer = TableVersion(known.epoch, known.sequence + 1)
    command = follow_command(broker, offsets=NO_VERSION, waitMs=0)
    command.body = lenient_json.dumps({"offsets": [OffsetChange("T@G", 0, 2, newer).to_json()]})
    assert broker.store.queue_range("T", 0)[1] == 0, "not dispatched yet"
    broker.core.processor.received(slave.channel, [command])
    assert broker.core.offsets.query("G", "T", 0) == 2
    broker.run()
    broker.core.offsets.commit("G", "T", 1, 1)
    broker.core.opened()
    assert (broker.core.offsets.query("G", "T", 0), broker.core.offsets.query("G", "T", 1)) == (2, 0)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"offsets":[[1]]}', b"{"])
def test_a_slave_that_gives_back_nonsense_is_refused(broker: Broker, slave: Slave, body: bytes) -> None:
    command = follow_command(broker)
    command.body = body
    broker.core.processor.received(slave.channel, [command])
    assert slave.channel.one().code != 0


def test_a_poll_ends_without_news(broker: Broker, slave: Slave) -> None:
    slave.poll()
    broker.clock.ms += MAX_HOLD_MS - 1
    broker.core.metadata_leader.timeout()
    assert slave.channel.take() == []
    broker.clock.ms += 1
    broker.core.metadata_leader.timeout()
    assert slave.heard() == {"version": 1}


@pytest.mark.parametrize("changes", [{"version": 2}, {"masterEpoch": 7}, {"topics": "x"}, {"groups": ""}])
def test_bad_polls_are_refused(broker: Broker, slave: Slave, changes: dict[str, Any]) -> None:
    slave.poll(**changes)
    reply = slave.channel.one()
    assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark


def test_only_so_many_follow(broker: Broker) -> None:
    for broker_id in range(2, MAX_FOLLOWER_COUNT + 2):
        Slave(broker, broker_id).poll()
    other = Slave(broker, MAX_FOLLOWER_COUNT + 2)
    other.poll()
    assert other.channel.one().code == ResponseCode.SYSTEM_BUSY
    known = Slave(broker, 2)
    known.poll()
    assert known.channel.take() == []


def test_a_slave_has_no_tables_to_follow(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.controller.master = 2
    slave = Slave(broker.start(), 3)
    slave.poll()
    assert "not the master of epoch" in (slave.channel.one().remark or "")


def test_a_new_role_ends_polls(broker: Broker, slave: Slave) -> None:
    slave.poll()
    broker.controller.epoch, broker.controller.master = 2, 2
    broker.run(1000)
    assert slave.channel.one().code == ResponseCode.SYSTEM_ERROR


def test_a_lineage_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = TableChanges(TableVersion(1, 0))
    for number in range(1, MAX_REMEMBERED + 3):
        lineage.advance(TableVersion(1, number), [f"T{number}"])
    assert lineage.last == TableVersion(1, MAX_REMEMBERED + 2)
    assert lineage.since(TableVersion(1, 1)) is None
    assert lineage.since(TableVersion(1, MAX_REMEMBERED)) == [f"T{MAX_REMEMBERED + 1}", f"T{MAX_REMEMBERED + 2}"]
    assert lineage.since(lineage.last) == []
    lineage.restart(TableVersion(2, 5))
    assert lineage.since(TableVersion(2, 5)) == [] and lineage.since(TableVersion(2, 4)) is None


# --- strict changes ---------------------------------------------------------------------------------------------------
@pytest.fixture
def strict(make_broker: Callable[..., Broker]) -> Broker:
    """A CP master whose confirmed set is [1, 2]; slave 2 copies the log but has not asked for the tables yet."""
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="")
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    assert broker.core.driver.is_serving
    return broker


def asked(broker: Broker, command: Command) -> FakeChannel:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    return channel


def group_command(code: RequestCode = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) -> Command:
    if code is RequestCode.DELETE_SUBSCRIPTIONGROUP:
        return Command(code, {"groupName": "G", "cleanOffset": "true"})
    return Command(code, {}, lenient_json.dumps({"groupName": "G"}))


@pytest.mark.parametrize(
    "command",
    [
        update_topic(),
        Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "There"}),
        group_command(),
        group_command(RequestCode.DELETE_SUBSCRIPTIONGROUP),
        Command(RequestCode.AUTH_CREATE_USER, {"username": "ann"}, b'{"password": "x"}'),
    ],
)
def test_an_operator_is_answered_when_the_set_holds_the_change(strict: Broker, command: Command) -> None:
    strict.core.topics.create_internal("There", 1)
    strict.core.groups.get_or_create("G")
    slave = Slave(strict)
    slave.poll()
    channel = asked(strict, command)
    assert channel.take() == [] and slave.heard()
    slave.poll()
    assert channel.one().code == 0


def test_a_change_of_users_is_not_told_to_a_slave_that_knows_none(strict: Broker) -> None:
    """Of an earlier release: it is waited for as far as it can follow."""
    slave, command = Slave(strict), follow_command(strict)
    del command.ext["users"]
    strict.core.processor.received(slave.channel, [command])
    strict.core.users.put_user("ann", UserChange("x"))
    strict.core.topics.put(TopicConfig("T", 1, 1))
    assert "users" not in slave.heard()
    del (again := follow_command(strict)).ext["users"]
    strict.core.processor.received(slave.channel, [again])
    assert strict.core.metadata_leader.may_join(BrokerId(2))


def test_a_slave_without_the_users_is_not_proposed_for_the_set(strict: Broker) -> None:
    slave, before = Slave(strict), strict.core.users.version.stamp
    strict.core.users.put_user("ann", UserChange("x"))
    slave.poll(users=before)
    assert not strict.core.metadata_leader.may_join(BrokerId(2))
    assert slave.heard()["users"] == strict.core.users.to_json()
    slave.poll()
    assert strict.core.metadata_leader.may_join(BrokerId(2))


def test_the_same_change_again_waits_too(strict: Broker) -> None:
    """So that a repeated order after an error ends with the certainty that the first one could not give."""
    channel = asked(strict, update_topic())
    strict.clock.ms += TIMEOUT_MS
    strict.core.metadata_leader.timeout()
    refusal = channel.one()
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert refusal.remark == ("the change is made here but replica 2 has not confirmed it within 3000 ms; ask again")
    again = asked(strict, update_topic())
    assert again.take() == []
    Slave(strict).poll()
    assert again.one().code == 0


def test_an_older_version_confirms_nothing(strict: Broker) -> None:
    before = strict.core.topics.version.stamp
    channel = asked(strict, update_topic())
    Slave(strict).poll(topics=before)
    assert channel.take() == []


def test_a_member_that_leaves_the_set_is_not_waited_for(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="ap", total_replicas=3, metadata_sync="strict")
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    channel = asked(broker, update_topic())
    broker.core.driver.ha_closed(1)
    for _ in range(5):
        broker.run(200)
    broker.core.metadata_leader.timeout()
    assert broker.controller.members == [1]
    assert channel.one().code == 0


def test_one_copy_of_three_is_not_enough_for_an_answer(strict: Broker) -> None:
    """The set shrinks to the master while the change waits: as with a message, a majority must hold it (ruling 1)."""
    channel = asked(strict, update_topic())
    strict.core.driver.ha_closed(1)
    for _ in range(5):
        strict.run(200)
    strict.core.metadata_leader.timeout()
    assert strict.controller.members == [1] and channel.take() == []
    strict.run(TIMEOUT_MS)
    strict.core.metadata_leader.timeout()
    assert "a majority of the group has not confirmed it" in (channel.one().remark or "")


def test_without_a_majority_nothing_is_changed(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="")
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    broker.core.driver.ha_closed(1)
    for _ in range(5):
        broker.run(300)
    assert broker.controller.members == [1]
    reply = broker.ask(update_topic())
    assert reply.code == ResponseCode.SYSTEM_ERROR and "in-sync replicas not enough" in (reply.remark or "")
    assert broker.core.topics.get("T") is None


def test_a_deposed_master_says_that_the_outcome_is_open(strict: Broker) -> None:
    channel = asked(strict, update_topic())
    strict.controller.epoch, strict.controller.master = 2, 2
    strict.run(1000)
    reply = channel.one()
    assert reply.code == ResponseCode.SYSTEM_ERROR and "whether the change survives is not known" in (
        reply.remark or ""
    )


def test_a_send_that_makes_its_topic_waits_for_both(strict: Broker) -> None:
    slave = Slave(strict)
    slave.poll()
    channel = asked(strict, send_command("New"))
    assert list(slave.heard()["topics"]["topicConfigTable"]) == ["New"]
    strict.core.driver.ha_sent(1)
    strict.core.driver.ha_received(1, SlaveAck(PhyOffset(strict.store.max_phy_offset)).encode())
    assert channel.take() == []
    slave.poll()
    assert channel.one().code == 0
    channel = asked(strict, send_command("New"))
    strict.core.driver.ha_sent(1)
    strict.core.driver.ha_received(1, SlaveAck(PhyOffset(strict.store.max_phy_offset)).encode())
    assert channel.one().code == 0  # the topic is there: the log's ack is enough


class MadeTopic:
    """A send to a CP master that makes its topic, and a hand-over to the slave."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.slave = Slave(broker)
        self.slave.poll()
        self.sender = asked(broker, send_command("New"))
        assert list(self.slave.heard()["topics"]["topicConfigTable"]) == ["New"]

    def acknowledge(self) -> None:
        self.broker.core.driver.ha_sent(1)
        self.broker.core.driver.ha_received(1, SlaveAck(PhyOffset(self.broker.store.max_phy_offset)).encode())

    def hand_over(self) -> FakeChannel:
        epoch = str(self.broker.core.replica.epoch)
        ext = {"brokerName": "broker-a", "masterEpoch": epoch, "targetBrokerId": "2", "timeoutMs": "2000"}
        return asked(self.broker, Command(RequestCode.RMQHA_HAND_OVER, ext))


@pytest.mark.parametrize("comes_last", ["hand-over", "acknowledgement"])
@pytest.mark.parametrize("lacks", ["slave", "disk"])
def test_a_hand_over_waits_for_a_send_that_makes_its_topic(strict: Broker, comes_last: str, lacks: str) -> None:
    """Its client would else hear that the outcome is open, and send it again: seen on a busy machine."""
    strict.shell.saves_tables = lacks != "disk"
    made = MadeTopic(strict)
    if lacks == "disk":
        made.slave.poll()
    if comes_last == "hand-over":
        made.acknowledge()
        told = made.hand_over()
    else:
        told = made.hand_over()
        made.acknowledge()
    assert told.take() == [] and made.sender.take() == []
    if lacks == "disk":
        strict.core.save_tables()
    else:
        made.slave.poll()
    assert made.sender.one().code == 0
    assert told.one().ext == {"maxOffset": str(strict.store.max_phy_offset)}


def test_a_send_that_makes_its_topic_waits_for_the_log_when_the_tables_come_first(strict: Broker) -> None:
    made = MadeTopic(strict)
    made.slave.poll()
    assert made.sender.take() == []
    made.acknowledge()
    assert made.sender.one().code == 0


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_deposed_master_answers_a_send_that_makes_its_topic_once(strict: Broker, acknowledged: bool) -> None:
    made = MadeTopic(strict)
    if acknowledged:
        made.acknowledge()
    strict.controller.epoch, strict.controller.master = 2, 2
    strict.run(1000)
    code = ResponseCode.FLUSH_SLAVE_TIMEOUT if acknowledged else ResponseCode.SERVICE_NOT_AVAILABLE
    assert made.sender.one().code == code


def test_a_slave_joins_the_set_with_the_tables_only(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="")
    broker.start()
    broker.join_slave(2)
    broker.run(200)
    assert broker.controller.members == [1]
    slave = Slave(broker)
    slave.poll(topics="0:0")
    assert broker.controller.members == [1] and slave.heard()["topics"] == {"whole": True}
    slave.poll()
    assert broker.controller.members == [1, 2]


def test_a_version_that_an_election_has_moved_keeps_no_slave_from_joining(make_broker: Callable[..., Broker]) -> None:
    """Its first poll after a failover is enough: the tables are the same."""
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="")
    broker.start()
    broker.ask(update_topic())
    broker.core.groups.put({"groupName": "G"})
    topics, groups = broker.core.topics.version.stamp, broker.core.groups.version.stamp
    broker.controller.epoch, broker.controller.set_epoch = 2, 7
    broker.run(1000)
    assert broker.core.replica.epoch == 2 and broker.core.topics.version.stamp > topics
    broker.join_slave(2)
    slave = Slave(broker)
    slave.poll(topics=topics, groups=groups)
    assert broker.controller.members == [1, 2]
    assert slave.heard()["topics"]["topicConfigTable"] == {}


def test_nothing_waits_for_a_slave_that_is_not_ours(strict: Broker) -> None:
    metadata_leader, slave = strict.core.metadata_leader, BrokerId(2)
    channel = asked(strict, update_topic())
    assert metadata_leader.unknown([slave]) == [slave] and not metadata_leader.may_join(slave)
    metadata_leader.mark_foreign(slave)
    assert channel.one().code == 0 and metadata_leader.may_join(slave) and metadata_leader.unknown([slave]) == []
    assert strict.core.driver.state().metadata_foreign == [2]
    assert strict.tracer.names().count("metadata_not_strict") == 1
    Slave(strict).poll()  # it is ours now
    assert strict.core.driver.state().metadata_foreign == []
    strict.clock.ms += STALE_MS + 1
    assert metadata_leader.unknown([slave]) == [slave]


# --- offsets ----------------------------------------------------------------------------------------------------------
def commit_command(offset: int) -> Command:
    ext = {"consumerGroup": "G", "topic": "There", "queueId": "0", "commitOffset": str(offset)}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_a_commit_is_answered_at_once_unless_offsets_are_strict(strict: Broker) -> None:
    strict.core.topics.create_internal("There", 1)
    strict.core.groups.get_or_create("G")
    assert asked(strict, commit_command(1)).one().code == 0


def strict_master(make_broker: Callable[..., Broker]) -> Broker:
    """Of two replicas in the set, with a topic and a group; commits wait for both."""
    broker = make_broker(ha_mode="cp", total_replicas=3, offset_sync="strict")
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    broker.core.topics.create_internal("There", 1)
    broker.core.groups.get_or_create("G")
    return broker


def test_who_has_not_heard_of_a_strict_commit_does_not_join(make_broker: Callable[..., Broker]) -> None:
    broker = strict_master(make_broker)
    members, later = Slave(broker, 2), Slave(broker, 3)
    later.poll()
    assert broker.core.metadata_leader.may_join(BrokerId(3))
    channel = asked(broker, commit_command(0))
    members.poll()
    broker.core.save()
    broker.core.metadata_leader.saved()
    assert channel.one().code == 0
    assert not broker.core.metadata_leader.may_join(BrokerId(3))
    later.poll()
    assert broker.core.metadata_leader.may_join(BrokerId(3))


def test_a_strict_commit_waits_for_the_set(make_broker: Callable[..., Broker]) -> None:
    broker = strict_master(make_broker)
    slave = Slave(broker)
    slave.poll()
    channel = asked(broker, commit_command(0))
    assert channel.take() == []
    ((key, _, offset, *_),) = slave.heard()["offsets"]
    assert (key, offset) == ("There@G", 0)
    slave.poll()
    assert channel.take() == []  # a master that is killed may come back as master, with what its own disk holds
    broker.core.save()
    broker.core.metadata_leader.saved()
    assert channel.one().code == 0


def test_a_commit_is_not_answered_for_what_a_former_life_has_told_a_slave(make_broker: Callable[..., Broker]) -> None:
    """The master was killed and its clock set back: the slave has a higher stamp for an older commit, and keeps it."""
    broker = strict_master(make_broker)
    slave, stamp = Slave(broker), broker.core.offsets.stamp
    former = OffsetChange("There@G", 0, 9, TableVersion(broker.core.offsets.epoch, 1 << 60)).to_json()
    channel = asked(broker, commit_command(0))
    broker.core.save()
    broker.core.metadata_leader.saved()
    command = follow_command(broker)
    command.body = lenient_json.dumps({"offsets": [former]})
    broker.core.processor.received(slave.channel, [command])
    assert channel.take() == []
    ((key, _, offset, epoch, sequence, _),) = slave.heard()["offsets"]
    assert (key, offset) == ("There@G", 0) and TableVersion(epoch, sequence) > TableVersion(epoch, 1 << 60) > stamp
    slave.poll()
    broker.core.save()
    broker.core.metadata_leader.saved()
    assert channel.one().code == 0


def test_an_order_to_members_is_on_the_disk_and_who_has_not_heard_of_it_does_not_join(
    make_broker: Callable[..., Broker],
) -> None:
    """Under offsetSync=periodic too: it survives whatever a message would."""
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="")
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    broker.core.topics.create_internal("There", 1)
    broker.core.groups.get_or_create("G")
    member, later = Slave(broker, 2), Slave(broker, 3)
    member.poll()
    later.poll()
    ext = {"group": "G", "topic": "There", "queueId": "0", "offset": "0", "timestamp": "-1"}
    channel = asked(broker, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext))
    assert member.heard()["offsets"][0][0] == "There@G"
    member.poll()
    assert channel.take() == []  # a master that is killed may come back as master, with what its own disk holds
    broker.core.save()
    broker.core.metadata_leader.saved()
    assert channel.one().code == 0
    assert not broker.core.metadata_leader.may_join(BrokerId(3))
    broker.core.metadata_leader.role_changed()  # the next master holds it, and asks the same of whoever joins
    later.poll(offsets=NO_VERSION)
    assert not broker.core.metadata_leader.may_join(BrokerId(3))
    later.poll()
    assert broker.core.metadata_leader.may_join(BrokerId(3))


def test_many_changes_that_wait_for_the_disk_cost_no_more_each(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who makes topics by the thousand, before the file is written, holds up everybody: each looked at all."""
    core = broker.core
    broker.shell.saves_tables = False
    looks: list[int] = []
    missing = core.metadata_leader._missing

    def look(wait: Any) -> str:
        looks.append(1)
        return missing(wait)

    monkeypatch.setattr(core.metadata_leader, "_missing", look)
    channel = FakeChannel()
    for number in range(200):
        core.processor.received(channel, [update_topic(f"many-{number}")])
    assert core.metadata_leader.waiting_count == 200
    assert len(looks) < 10
    core.save_tables()
    assert [reply.code for reply in channel.take()] == [ResponseCode.SUCCESS] * 200
