"""A slave takes its master's tables, change by change, whole, or from a master that is Apache's; then it is master."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqha.broker.replication.metadata_sync import ForeignProbe, HostAsyncPort, MetadataSync
from rmqha.broker.tables import config_table
from rmqha.broker.tables import metadata_follower as table_follower
from rmqha.broker.tables.metadata_follower import FollowedMaster
from rmqha.broker.tables.offsets import OffsetChange
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
from rmqha.broker.tables.topics import TopicConfig
from rmqha.broker.timers.master_counts import MAX_TOPICS, MasterTimerCounts
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.authorization.policy import from_json
from rmqha.model.authorization.users import UserChange
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.pop.world import ack_all, pop, send
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.support.patience import HANG_S

MASTER = FollowedMaster("127.0.0.1:1", Epoch(1), BrokerId(2))
COUNT = {"count": 1, "timeStamp": 2}
WHOLE = {21, 60, 61, 28, 43, 45, 201, 402}


class Line:
    """A client whose only peer is a broker without sockets; `before` sees each request first. `knows_polls` False: the
    peer answers as Apache's would."""

    def __init__(self, broker: Broker, *, knows_polls: bool = True) -> None:
        self.broker = broker
        self.knows_polls = knows_polls
        self.before: Callable[[Command], None] = lambda command: None
        self.codes: list[int] = []
        self.refused: set[int] = set()

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        assert address == MASTER.address
        self.before(command)
        self.codes.append(command.code)
        await trio.lowlevel.checkpoint()
        if command.code in self.refused:
            return command.reply(ResponseCode.SYSTEM_ERROR)
        if command.code == RequestCode.RMQHA_FOLLOW_TABLES and not self.knows_polls:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        channel = FakeChannel()
        self.broker.core.processor.received(channel, [command])
        self.broker.run()
        while not (sent := channel.take()):
            await trio.sleep(0.001)
            self.broker.core.metadata_leader.timeout()
        return sent[0]


class Slave:
    """Replica 2 of the group, and what keeps its tables."""

    def __init__(self, broker: Broker, line: Line) -> None:
        self.broker = broker
        self.core = broker.core
        self.line = line
        self.master: FollowedMaster | None = MASTER
        self.is_aligned = True
        self.waits_for_log = False
        """Else its log passes for its master's."""
        self.sync = MetadataSync(
            self.core.topics,
            self.core.groups,
            self.core.offsets,
            self.core.delay_offsets,
            self.core.users,
            self.core.modes,
            self.core.master_timer_counts,
            cast("RemotingClient", line),
            lambda: self.master,
            self.holds,
            broker.tracer,
        )

    def holds(self, log_end: int) -> bool:
        return self.is_aligned and (not self.waits_for_log or self.broker.store.max_phy_offset >= log_end)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sync.run)
            yield
            nursery.cancel_scope.cancel()

    async def until_level(self) -> None:
        """Until it holds what the master holds, and has said so."""
        with trio.fail_after(HANG_S):
            while not self._is_level():  # noqa: ASYNC110  (two machines without an event in common)
                await trio.sleep(0.001)

    async def until_offsets_are_told(self) -> None:
        """Until it has said that it holds the master's offsets."""
        master = self.line.broker.core
        with trio.fail_after(HANG_S):
            while master.metadata_leader._followers[BrokerId(2)].offsets < master.offsets.stamp:  # noqa: ASYNC110  (as above)
                await trio.sleep(0.001)

    def _is_level(self) -> bool:
        own, master = self.core, self.line.broker.core
        return (
            master.metadata_leader.caught_up == [2]
            and (not self.is_aligned or own.offsets.stamp >= master.offsets.stamp)
            and (not self.is_aligned or own.delay_offsets.version == master.delay_offsets.version)
        )

    def copy_log(self) -> None:
        own, master = self.broker.store, self.line.broker.store
        own.append_raw(own.max_phy_offset, master.view(own.max_phy_offset, 1 << 20))
        own.sync()

    def promote(self, epoch: int) -> None:
        """The controller makes it master, alone in the set."""
        self.master = None
        self.sync.role_changed()
        controller = self.broker.controller
        controller.next_broker_id = controller.master = 2
        controller.epoch, controller.set_epoch, controller.members = epoch, epoch, [2]
        self.broker.run(1000)
        assert self.core.driver.is_serving


ALLOWED = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}


@pytest.fixture
def line(broker: Broker) -> Line:
    """To a master with something in each table."""
    for topic in ("T", "Deleted"):
        broker.ask(send_command(topic))
    broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Deleted"}))
    broker.core.groups.put({"groupName": "G", "retryMaxTimes": 3})
    broker.core.offsets.commit("G", "T", 0, 1)
    broker.ask(send_command(i="DELAY\x011\x02"))
    broker.run(1000)
    return Line(broker)


@pytest.fixture
def slave(line: Line, make_broker: Callable[..., Broker]) -> Slave:
    broker = make_broker("slave")
    broker.controller.next_broker_id, broker.controller.master = 2, 1
    return Slave(broker.start(), line)


def check_all_tables(slave: Slave) -> None:
    core = slave.core
    assert core.topics.get("T") is not None and core.topics.deleted == {"Deleted"}
    group = core.groups.get("G")
    assert group is not None and group["retryMaxTimes"] == 3
    assert core.offsets.query("G", "T", 0) == 1
    assert core.delay_offsets.get(1) == 1 and core.delay_offsets.unsaved() is not None


async def test_what_is_to_be_written_is_though_nobody_waits(line: Line) -> None:
    """Its table counts on it; a stop and another master end what follows."""
    written = list[int]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await HostAsyncPort(cast(RemotingClient, line)).write(written.append, 1)
    assert written == [1]


async def test_all_tables_of_a_master_that_does_not_know_polls(slave: Slave, line: Line) -> None:
    line.knows_polls = False
    slave.copy_log()
    async with slave.following():
        with trio.fail_after(HANG_S):
            while slave.core.master_timer_counts.of(MASTER) is None:  # noqa: ASYNC110  (the last table that is pulled)
                await trio.sleep(0.001)
    check_all_tables(slave)
    assert line.codes[0] == RequestCode.RMQHA_FOLLOW_TABLES and set(line.codes[1:]) == WHOLE


async def test_delay_offsets_of_such_a_master_count_once_its_log_is_here(slave: Slave, line: Line) -> None:
    await slave.sync.follower.pull(MASTER)
    assert slave.core.delay_offsets.get(1) == 0
    slave.copy_log()
    assert slave.core.delay_offsets.get(1) == 1


async def test_a_new_slave_takes_tables_whole_and_then_changes_alone(slave: Slave, line: Line) -> None:
    master = line.broker
    slave.copy_log()
    async with slave.following():
        await slave.until_level()
        check_all_tables(slave)
        assert set(line.codes) == {RequestCode.RMQHA_FOLLOW_TABLES, 21, 201}
        line.codes.clear()
        master.core.topics.put(TopicConfig("Batch", 2, 2, attributes={"queue.type": "BatchCQ"}))
        master.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
        master.core.groups.remove("G")
        await slave.until_level()
    core = slave.core
    assert set(line.codes) == {RequestCode.RMQHA_FOLLOW_TABLES}
    assert core.topics.get("T") is None and core.topics.deleted == {"Deleted", "T"}
    assert core.topics.to_json() == master.core.topics.to_json()
    assert core.groups.to_json() == master.core.groups.to_json()
    assert core.offsets.query("G", "T", 0) is None and core.offsets.stamp == master.core.offsets.stamp
    assert slave.broker.store.batch_topics == {"Batch"}
    slave.broker.close()
    again = type(slave.broker)(slave.broker.directory)
    assert again.core.topics.to_json() == core.topics.to_json()
    assert again.core.groups.version.stamp == core.groups.version.stamp
    again.close()


async def test_users_and_policies_are_a_slaves_before_it_says_so(slave: Slave, line: Line) -> None:
    users = line.broker.core.users
    async with slave.following():
        await slave.until_level()
        users.put_user("ann", UserChange("ann-secret"))
        users.put_policies("ann", from_json([{"entries": [ALLOWED]}]))
        await slave.until_level()
        assert slave.core.users.to_json() == users.to_json() and slave.core.users.file.is_saved
        assert slave.core.users.access.accounts.keys() == {"ann"}
        users.remove_user("ann")
        await slave.until_level()
    assert slave.core.users.to_json() == users.to_json() and not slave.core.users.access.accounts


@pytest.mark.parametrize("knows_polls", [True, False], ids=["ours", "apaches"])
async def test_request_modes_are_those_of_the_master(slave: Slave, line: Line, knows_polls: bool) -> None:
    """Else clients that pop would pull after a switch."""
    line.knows_polls = knows_polls
    mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    async with slave.following():
        if knows_polls:
            await slave.until_level()  # its poll is held now
        done = line.broker.ask(Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, lenient_json.dumps(mode)))
        assert done.code == ResponseCode.SUCCESS
        with trio.fail_after(HANG_S):
            while slave.core.modes.get("T", "G") is None:  # noqa: ASYNC110  (two machines without an event in common)
                await trio.sleep(0.001)
    assert slave.core.modes.to_json() == line.broker.core.modes.to_json()
    slave.broker.close()
    again = type(slave.broker)(slave.broker.directory)
    assert again.core.modes.to_json() == slave.core.modes.to_json()
    again.close()


async def test_a_killed_slave_says_nothing_before_its_tables_are_written_again(
    slave: Slave, line: Line, make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of its life before may have failed, which the system forgets with the process (ruling 29). A disk that
    takes no table ends nothing: it tries again."""
    async with slave.following():
        await slave.until_level()
    slave.core.save()
    slave.broker.open = False
    slave.broker.store.abandon()
    line.codes.clear()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(table_follower, "RETRY_MS", 1)
    with patch.object(config_table, "write", side_effect=full) as write:
        broker = make_broker("slave")
        broker.controller.next_broker_id, broker.controller.master = 2, 1
        again = Slave(broker.start(), line)
        files = again.core.topics.file, again.core.groups.file
        assert not any(file.is_saved for file in files)
        write.reset_mock()
        async with again.following():
            with trio.fail_after(HANG_S):
                while write.call_count < 3:  # noqa: ASYNC110  (two machines without an event in common)
                    await trio.sleep(0.001)
    assert line.codes == [] and broker.tracer.names().count("metadata_not_synced") == 1
    path = broker.directory / "config" / "topics.json"
    inode = path.stat().st_ino if path.exists() else 0
    async with again.following():
        await again.until_level()
    assert all(file.is_saved for file in files) and path.stat().st_ino != inode


async def test_a_table_that_changes_between_its_slices_is_read_anew(
    slave: Slave, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_follower, "OWN_SLICE_COUNT", 3)

    def change(command: Command) -> None:
        if command.ext.get("topicSeq") == "3" and line.codes.count(21) == 1:
            line.broker.core.topics.put(TopicConfig("AAA", 1, 1))  # sorts into the slice that has been read

    line.before = change
    async with slave.following():
        await slave.until_level()
    assert slave.core.topics.get("AAA") is not None
    assert len(slave.core.topics) == len(line.broker.core.topics)


async def test_what_comes_from_a_master_of_yesterday_is_dropped(slave: Slave, line: Line) -> None:
    def switch(command: Command) -> None:
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            slave.master = None

    line.before = switch
    await slave.sync.follower.pull(MASTER)
    assert slave.core.offsets.query("G", "T", 0) == 1
    assert slave.core.delay_offsets.levels() == []


async def test_what_apaches_master_says_of_timers_is_true_of_a_log_with_its_copies(slave: Slave, line: Line) -> None:
    """Less a margin: it may look at a message later than it was stored."""
    line.broker.core.delay_offsets.put_timer(TimerProgress(100_000, 3, 5, 2), 0)
    await slave.sync.follower.pull(MASTER)
    told = slave.core.delay_offsets.to_follower()
    assert told["timer"] == [95_000, 0, 5, 0]
    assert told["logEnd"] == line.broker.store.max_phy_offset


def told_counts(slave: Slave) -> Any:
    reply = slave.broker.ask(Command(RequestCode.GET_TIMER_METRICS))
    return lenient_json.loads(reply.body)["timingCount"]


async def test_a_slave_of_apaches_master_answers_with_the_counts_of_waiting_messages_that_it_has_asked_for(
    slave: Slave, line: Line
) -> None:
    """As long as it follows that one: what it knows of its own queue is seconds behind."""
    for body in (b"1", b"2", b"0"):
        line.broker.ask(send_command(body=body, i="TIMER_DELAY_SEC\x0160\x02"))
    line.broker.run()
    assert slave.core.followed_master == MASTER and told_counts(slave) == {}
    assert await slave.sync.follower.pull(MASTER)
    assert told_counts(slave) == {"T": {"count": 3, "timeStamp": line.broker.clock.wall_ms()}}
    slave.promote(2)
    assert told_counts(slave) == {}


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"timingCount": 5}, {"timingCount": {"T": 5}}, {"timingCount": {"T": {"count": 1}}}),
        *({"timingCount": {"T": {"count": 2**63, "timeStamp": 1}}}, {"timingCount": {"T" * 256: COUNT}}),
        {"timingCount": {f"T{number}": COUNT for number in range(MAX_TOPICS + 1)}},
    ],
    ids=["nothing", "no object", "no count", "no time", "huge", "long name", "many"],
)
def test_counts_of_a_master_that_cannot_be_are_not_held(body: dict[str, Any]) -> None:
    held = MasterTimerCounts()
    held.hold(MASTER, {"dataVersion": {}, "timingCount": {"T": COUNT}})
    assert held.of(MASTER) == {"dataVersion": {}, "timingCount": {"T": COUNT}} and held.of(None) is None
    with pytest.raises(ValueError, match="timingCount"):
        held.hold(MASTER, body)
    assert held.of(MASTER) is None


async def test_a_slave_of_a_master_without_the_wheel_answers_with_its_own_counts(slave: Slave, line: Line) -> None:
    held = slave.core.master_timer_counts
    held.hold(MASTER, {"dataVersion": {}, "timingCount": {"T": COUNT}})
    line.refused = {RequestCode.GET_TIMER_METRICS}
    assert await slave.sync.follower.pull(MASTER)
    assert held.of(MASTER) is None and told_counts(slave) == {}


async def test_an_answer_of_a_master_of_yesterday_is_dropped(slave: Slave, line: Line) -> None:
    def switch(command: Command) -> None:
        if command.code == RequestCode.RMQHA_FOLLOW_TABLES:
            slave.master = None

    line.before = switch
    await slave.sync.follower.follow(MASTER)
    assert slave.core.offsets.stamp == NO_VERSION and slave.core.topics.get("T") is None


async def test_a_master_that_was_killed_and_is_back_gets_the_commits_that_its_file_lacks(
    slave: Slave, line: Line
) -> None:
    async with slave.following():
        await slave.until_level()
        lost = slave.core.offsets._next_stamp()._replace(epoch=line.broker.core.offsets.epoch)
        slave.core.offsets.merge([OffsetChange("T@H", 0, 1, lost)])
        slave.sync.role_changed()
        with trio.fail_after(HANG_S):
            while line.broker.core.offsets.query("H", "T", 0) != 1:  # noqa: ASYNC110
                await trio.sleep(0.001)
        await slave.until_level()
    changes = [core.offsets.changes_since(NO_VERSION, 10) for core in (slave.core, line.broker.core)]
    assert changes[0] == changes[1] and len(changes[0]) == 2


async def test_nothing_is_given_back_before_the_logs_are_aligned(slave: Slave, line: Line) -> None:
    """An offset behind a fork is none: what stands there in the master's log was never consumed."""
    slave.is_aligned = False
    stamp = TableVersion(1, line.broker.core.offsets.stamp.sequence + 1)
    slave.core.offsets.merge([OffsetChange("T@H", 0, 1, stamp)])
    async with slave.following():
        await slave.until_level()
        slave.is_aligned = True
        assert line.broker.core.offsets.query("H", "T", 0) is None
        line.broker.core.topics.create_internal("More", 1)  # ends the poll that is held
        with trio.fail_after(HANG_S):
            while line.broker.core.offsets.query("H", "T", 0) != 1:  # noqa: ASYNC110
                await trio.sleep(0.001)


async def test_offsets_count_once_the_log_that_they_count_on_is_here(slave: Slave, line: Line) -> None:
    """What was popped is given again by whoever lacks its checkpoint. Found by `make sim SEED=2027 THEME=pop`."""
    master = line.broker
    send(master, b"a", topic="T")
    slave.copy_log()
    slave.waits_for_log = True
    pop(master, "T")
    master.store.sync()
    master.core.pops.advance()
    popped = master.core.offsets.query("G", "T", 0)
    assert popped is not None
    async with slave.following():
        with trio.fail_after(HANG_S):
            while master.core.metadata_leader.caught_up != [2]:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert slave.core.offsets.query("G", "T", 0) is None
        slave.copy_log()
        await slave.until_offsets_are_told()
    assert slave.core.offsets.query("G", "T", 0) == popped


async def test_a_cut_of_the_log_lowers_offsets_until_the_master_tells_them_again(slave: Slave, line: Line) -> None:
    """Found by `make sim SEED=47 THEME=tables`: a slave that cut its log after it had heard kept the lower one."""
    async with slave.following():
        await slave.until_level()
        slave.core.offsets.clamp(lambda topic, queue_id: 0)
        assert slave.core.offsets.query("G", "T", 0) == 0
        slave.sync.follower.log_cut()
        line.broker.core.offsets.commit("G", "T", 1, 0)
        line.broker.core.metadata_leader.timeout()
        with trio.fail_after(HANG_S):
            while slave.core.offsets.query("G", "T", 0) != 1:  # noqa: ASYNC110
                await trio.sleep(0.001)


async def test_a_master_that_refuses_is_told_once(slave: Slave, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(address: str, command: Command, timeout_ms: int) -> Command:
        return command.reply(ResponseCode.SYSTEM_ERROR, remark="no")

    monkeypatch.setattr(line, "call", refuse)
    assert not await slave.sync.follower.pull(MASTER)
    assert not await slave.sync.follower.pull(MASTER)
    assert slave.broker.tracer.names().count("metadata_not_synced") == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"version":2}', b'{"version":1,"offsets":[["T@G",0]]}', b'{"version":1,"topics":{"removed":7}}'],
)
async def test_an_answer_that_cannot_be_read_changes_nothing(
    slave: Slave, line: Line, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    asked = trio.Event()
    count = 0

    async def nonsense(address: str, command: Command, timeout_ms: int) -> Command:
        nonlocal count
        count += 1
        if count == 2:
            asked.set()
        return command.reply(body=body)

    monkeypatch.setattr(line, "call", nonsense)
    before = slave.core.topics.to_json()
    async with slave.following():
        with trio.fail_after(HANG_S):
            await asked.wait()
    assert slave.core.topics.to_json() == before
    assert slave.broker.tracer.names().count("metadata_not_synced") == 1


# --- after a switch ---------------------------------------------------------------------------------------------------
async def test_a_topic_created_used_and_deleted_inside_one_period_stays_deleted(slave: Slave, line: Line) -> None:
    async with slave.following():
        await slave.until_level()
        line.broker.ask(send_command("Short"))
        line.broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Short"}))
        await slave.until_level()
    slave.copy_log()
    slave.promote(2)
    # Its records stand in the log and its queues: they do not bring it back.
    assert slave.broker.store.queue_range("Short", 0) == (0, 1)
    assert slave.core.topics.get("Short") is None


async def test_a_topic_that_only_the_log_holds_is_made_anew_at_promotion(slave: Slave, line: Line) -> None:
    async with slave.following():
        await slave.until_level()
    assert slave.core.topics.restore({"Unheard": [0, 1]}) == ["Unheard"]
    assert slave.core.topics.get("Unheard") == TopicConfig("Unheard", 2, 2)


async def test_two_consumers_of_one_queue_on_master_and_slave_during_a_switch(slave: Slave, line: Line) -> None:
    """The one at the slave cannot commit there. After the switch the newest commit counts, whatever its size, and what
    the old master remembers when it comes back is older."""
    old, new = line.broker, slave.broker
    for _ in range(9):
        old.ask(send_command("T"))

    def commit(broker: Broker, offset: int) -> int:
        ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        return broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code

    async with slave.following():
        assert commit(old, 9) == 0
        await slave.until_level()
        assert commit(new, 4) == ResponseCode.SYSTEM_ERROR
        new.core.processor.received(FakeChannel(), [pull_command("T", offset=4, sysFlag="7", commitOffset="4")])
        assert new.core.offsets.query("G", "T", 0) == 9
    slave.copy_log()
    slave.promote(2)
    assert new.core.offsets.query("G", "T", 0) == 9
    commit(old, 10)  # acknowledged by the old master alone
    assert commit(new, 8) == 0
    old.core.offsets.merge(new.core.offsets.changes_since(NO_VERSION, 100))
    assert old.core.offsets.query("G", "T", 0) == 8
    new.core.offsets.merge(old.core.offsets.changes_since(NO_VERSION, 100))
    assert new.core.offsets.query("G", "T", 0) == 8


async def test_all_four_paths_of_an_offset_reach_a_slave(slave: Slave, line: Line) -> None:
    """Request 15, the flag of a pull, an operator's 222, and what a master has itself as slave taken from another."""
    master = line.broker
    for _ in range(5):
        master.ask(send_command("T"))
    async with slave.following():
        ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
        master.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
        await slave.until_level()
        assert slave.core.offsets.query("G", "T", 0) == 3
        master.ask(pull_command("T", offset=4, sysFlag="7", commitOffset="4"))
        await slave.until_level()
        assert slave.core.offsets.query("G", "T", 0) == 4
        ext = {"group": "G", "topic": "T", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "2"}
        assert master.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == 0
        await slave.until_level()
        assert slave.core.offsets.query("G", "T", 0) == 2
        master.core.offsets.merge([OffsetChange("T@H", 1, 7, TableVersion(1, 1 << 60))])
        await slave.until_level()
        assert slave.core.offsets.query("H", "T", 1) == 7


async def test_a_reset_backwards_survives_a_switch_and_the_member_is_told(slave: Slave, line: Line) -> None:
    old, new = line.broker, slave.broker
    for _ in range(5):
        old.ask(send_command("T"))
    old.core.offsets.commit("G", "T", 0, 5)
    async with slave.following():
        await slave.until_level()
        assert new.core.offsets.query("G", "T", 0) == 5
        ext = {"group": "G", "topic": "T", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
        assert old.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == 0
        await slave.until_offsets_are_told()
        assert new.core.offsets.saved_stamp >= old.core.offsets.ordered_stamp > NO_VERSION  # a kill of all takes none
    slave.copy_log()
    slave.promote(2)
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "5"}
    assert new.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0
    assert new.core.offsets.query("G", "T", 0) == 1  # the member has not been told: its commit is of before the reset
    moved = new.ask(pull_command("T", offset=5))
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert new.ask(pull_command("T", offset=1)).code == ResponseCode.SUCCESS  # it has heard it
    assert new.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0
    assert new.core.offsets.query("G", "T", 0) == 5


async def test_a_group_that_pops_stays_set_back_at_a_switch(slave: Slave, line: Line) -> None:
    """The log of the new master holds what the group popped before: it has heard when the group was set back."""
    old, new = line.broker, slave.broker
    send(old, b"a", b"b", b"c", b"d")
    async with slave.following():
        await slave.until_level()
        ack_all(old, pop(old))
        ext = {"group": "G", "topic": "T", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
        assert old.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == 0
        assert [message.record.queue_offset for message in pop(old, maxMsgNums=1)] == [1]
        await slave.until_offsets_are_told()
    slave.copy_log()
    slave.promote(2)
    assert [message.record.queue_offset for message in pop(new, maxMsgNums=1)] == [2]
    assert [message.body for message in pop(new)][-1:] == [b"d"]


async def test_delay_offsets_are_level_within_one_poll(slave: Slave, line: Line) -> None:
    master = line.broker
    async with slave.following():
        await slave.until_level()
        master.ask(send_command(i="DELAY\x011\x02"))
        master.run(1000)
        known = master.core.delay_offsets.get(1)
        assert known == 2
        await slave.until_level()
        assert slave.core.delay_offsets.get(1) == 0, "its log does not hold the copies"
        slave.copy_log()
        assert slave.core.delay_offsets.get(1) == known


async def test_delay_offsets_are_no_use_to_a_log_with_a_fork(slave: Slave, line: Line) -> None:
    """However long it is: the master's copies are not in it."""
    slave.copy_log()
    slave.is_aligned = False
    async with slave.following():
        await slave.until_level()
        assert slave.core.delay_offsets.get(1) == 0
        slave.is_aligned = True
        line.broker.core.topics.create_internal("More", 1)  # ends the poll that is held
        await slave.until_level()
    assert slave.core.delay_offsets.get(1) == 1


async def test_delay_offsets_come_while_the_log_does_not(slave: Slave, line: Line) -> None:
    """Found by `make sim SEED=25 THEME=delays`: what came during a break was heard, not taken and never told again."""
    slave.copy_log()
    async with slave.following():
        await slave.until_level()
        slave.is_aligned = False
        line.broker.ask(send_command(i="DELAY\x011\x02"))
        line.broker.run(1000)
        await wait_all_tasks_blocked()
        slave.is_aligned = True
        await slave.until_level()
    slave.copy_log()
    assert slave.core.delay_offsets.get(1) == 2


async def test_delay_offsets_do_not_come_after_a_switch_that_a_write_waited_through(slave: Slave, line: Line) -> None:
    """What the next master's log will hold at those places are other records."""
    follower, master = slave.sync.follower, line.broker.core
    taken: list[Any] = []

    async def write(write: Callable[[Any], None], data: Any) -> None:
        taken.append(slave.core.delay_offsets.version)
        slave.master = None

    slave.copy_log()
    with patch.object(follower, "_saves_offsets", True), patch.object(follower._port, "write", write):
        await follower.follow(MASTER)
    assert taken and slave.core.delay_offsets.version == taken[-1]
    assert slave.core.delay_offsets.version == master.delay_offsets.version, "it was taken before, while it was true"


async def test_topics_do_not_come_after_a_switch_that_a_write_waited_through(slave: Slave, line: Line) -> None:
    follower = slave.sync.follower
    async with slave.following():
        await slave.until_level()
    line.broker.core.topics.create_internal("More", 1)
    asked_count = len(line.codes)

    async def write(write: Callable[[Any], None], data: Any) -> None:
        slave.master = None

    with patch.object(follower, "_saves_offsets", True), patch.object(follower._port, "write", write):
        await follower.follow(MASTER)
    assert len(line.codes) == asked_count + 1 and slave.master is None
    assert slave.core.topics.get("More") is None


async def test_removed_offsets_are_on_a_slaves_disk_before_it_says_so(slave: Slave, line: Line) -> None:
    """All replicas may be killed then, and whoever leads knows nothing of the group any more."""
    async with slave.following():
        await slave.until_level()
        for _ in line.broker.core.offsets.remove_group("G"):
            pass
        await slave.until_offsets_are_told()
    assert slave.core.offsets.query("G", "T", 0) is None
    assert slave.core.offsets.unsaved() is None


async def test_delay_offsets_that_are_ahead_are_told_again_after_a_break(slave: Slave, line: Line) -> None:
    """The master may have been killed and have lost what they count on."""
    async with slave.following():
        await slave.until_level()
    assert slave.core.delay_offsets.version == line.broker.core.delay_offsets.version
    slave.sync.follower.log_cut()
    assert slave.core.delay_offsets.version != line.broker.core.delay_offsets.version
    slave.copy_log()
    assert slave.core.delay_offsets.get(1) == 0
    async with slave.following():
        await slave.until_level()
    assert slave.core.delay_offsets.get(1) == 1


# --- slaves that are not ours -----------------------------------------------------------------------------------------
class Cluster:
    """A controller that knows two slaves, one of ours and one of Apache's."""

    def __init__(self) -> None:
        self.codes: list[tuple[str, int]] = []

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.codes.append((address, command.code))
        await trio.lowlevel.checkpoint()
        match address:
            case "controller:1" | "controller:2":
                replicas = [{"brokerId": number, "brokerAddress": f"slave:{number}"} for number in (2, 3)]
                table = {"inSyncReplicas": replicas, "notInSyncReplicas": []}
                return command.reply(body=lenient_json.dumps({"replicasInfoTable": {"broker-a": table}}))
            case "slave:2":
                return command.reply(ResponseCode.SYSTEM_ERROR, remark="not the master")
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def test_the_probe_finds_out_who_is_not_ours(
    make_broker: Callable[..., Broker], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3, metadata_sync="").start()
    cluster, metadata_leader, addresses = Cluster(), broker.core.metadata_leader, ["controller:1"]
    probe = ForeignProbe(
        metadata_leader,
        cast("RemotingClient", cluster),
        lambda: addresses,
        "broker-a",
        lambda: [BrokerId(2), BrokerId(3)],
        lambda: broker.core.replica.epoch,
    )
    with trio.move_on_after(1.2):
        await probe.run()
    assert metadata_leader.may_join(BrokerId(3)) and not metadata_leader.may_join(BrokerId(2))
    assert cluster.codes == [("controller:1", 1006), ("slave:2", 52030), ("slave:3", 52030)]
    cluster.codes.clear()
    addresses[:] = ["controller:2"]  # controllerAddr names others since, and a slave is asked about again
    metadata_leader.role_changed()
    with trio.move_on_after(1.2):
        await probe.run()
    assert cluster.codes[0] == ("controller:2", 1006) and metadata_leader.may_join(BrokerId(3))
