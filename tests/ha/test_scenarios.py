"""The known ways in which a replicated log loses, forks or repeats messages, each as one story of whole replicas.

What the names mean: a replicated log that is cut to a high watermark (here: the confirm offset) at every restart loses
what was acknowledged and forks unseen; a log that is cut where epochs differ does neither.
"""

from __future__ import annotations

import pytest

from rmqha.ha.action import AckStatus, SendLog
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import ConfigError
from rmqha.model.identity import Role
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.wire.ha_stream import SlaveAck
from tests.ha.group import Group, Node, started
from tests.ha.memory_log import MemoryLog


def log_of(start: int, data: bytes, confirm: int, **epochs: int) -> MemoryLog:
    """A log that begins at `start`; `epochs` as e6=200."""
    log = MemoryLog()
    log.start, log.data = start, bytearray(data)
    log.synced = log.max_phy_offset
    log.confirm = log.dispatched = confirm
    log.epochs = EpochHistory(EpochEntry(Epoch(int(name[1:])), PhyOffset(at)) for name, at in epochs.items())
    log.highest_epoch = Epoch(max(int(name[1:]) for name in epochs))
    return log


def epochs_of(node: Node) -> dict[int, int]:
    return {entry.epoch: entry.start_offset for entry in node.log.epochs}


def acks_arrive(group: Group, master: int, offset: int) -> None:
    """What the slaves have acknowledged reaches `master`; nothing that it answers reaches them any more."""
    group.cut = {(master, number) for number in group.nodes if number != master}
    for conn_id in sorted(conn_id for conn_id in group[master].links if conn_id > 0):
        group[master].replica.ha_received(group.now_ms, conn_id, SlaveAck(PhyOffset(offset)).encode())
    group.settle()


# --- the high watermark is not where to cut ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "ha_mode"), [(2, "cp"), (3, "cp"), (2, "ap"), (3, "ap")])
def test_an_acknowledged_record_above_the_followers_watermark_survives_its_restart_and_promotion(
    count: int, ha_mode: str
) -> None:
    """The follower holds both records and knows the watermark of the first only. It restarts, the leader dies, the
    follower is elected. Cut to its watermark it would lose the second, and the old leader would cut it after it."""
    group = started(count, ha_mode=ha_mode, all_ack_in_sync_state_set=True)
    group.send(1, b"1" * 100)
    group.settle()
    group.run(50)
    group.cut = {(number, 1) for number in group.nodes}
    second = group.send(1, b"2" * 100)
    group.settle()
    acks_arrive(group, 1, 200)
    assert group[1].done[second] is AckStatus.OK
    follower = group[2].log
    assert (follower.max_phy_offset, follower.confirm) == (200, 100)
    group.kill(2)
    group.kill(1)
    group.cut = set()
    group.restart(2)
    group.elect(2)
    group.run(800)
    group.restart(1)
    group.run(2000)
    assert group.master_is(2)
    assert group.controller.members == list(group.nodes)
    for node in group.nodes.values():
        assert node.log.data == b"1" * 100 + b"2" * 100
        assert node.log.confirm == node.log.dispatched == 200


@pytest.mark.parametrize("ha_mode", ["cp", "ap"])
def test_equal_ends_and_watermarks_do_not_hide_a_fork(ha_mode: str) -> None:
    """The leader has written a record that its follower, out of the set, lacks. Both go down; the follower comes first,
    leads, and writes another record of the same length. The old leader finds its own end and watermark at the new
    leader and must see by the epochs that the bytes differ."""
    group = started(2, ha_mode=ha_mode)
    first = group.send(1, b"1" * 100)
    group.settle()
    group.run(50)
    assert group[1].done[first] is AckStatus.OK
    group.kill(2)
    group.controller.silent = ha_mode == "cp"  # nobody confirms that the follower has left the set
    second = group.send(1, b"2" * 100)
    group.settle()
    if ha_mode == "ap":
        assert group[1].done[second] is AckStatus.OK, "AP promises no more"
    else:
        group.run(300)
        assert second not in group[1].done
    group.kill(1)
    group.controller.silent = False
    group.restart(2)
    group.elect(2)
    group.run(1000)
    third = group.send(2, b"3" * 100)
    group.settle()
    assert group[2].done[third] is AckStatus.OK
    old = group.restart(1)
    assert (old.log.max_phy_offset, group[2].log.max_phy_offset) == (200, 200)
    group.run(1000)
    assert old.log.data == group[2].log.data == b"1" * 100 + b"3" * 100
    assert epochs_of(old) == epochs_of(group[2]) == {1: 0, 2: 100}
    assert old.replica.state(group.now_ms).truncated_bytes == 100


def test_a_leader_that_lost_its_unsynced_tail_does_not_write_it_anew_under_the_same_epoch() -> None:
    """Power fails at the leader alone: an acknowledged record is gone there, its followers hold it. As leader of the
    same epoch it would put other bytes at the same place, which no epoch map could ever tell apart."""
    group = started(3)
    token = group.send(1, b"kept" * 25)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    group.kill(1)
    log = group[1].log
    log.truncate(PhyOffset(0))
    log.append_epoch(Epoch(1), PhyOffset(0))
    log.unclean = True
    again = group.restart(1)
    group.run(300)
    assert group.controller.master == 1, "the controllers have not noticed yet"
    assert again.replica.role is Role.STARTING
    assert again.replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    group.elect(2)
    group.run(1500)
    assert again.log.data == group[2].log.data == b"kept" * 25
    assert not again.log.unclean


# --- a lost answer repeats, and never loses ---------------------------------------------------------------------------


def test_a_lost_ack_copies_nothing_twice() -> None:
    """The bytes arrive, their ack does not; the follower connects anew. It goes on at its own end."""
    group = started(3)
    group.cut = {(2, 1)}
    token = group.send(1, b"once" * 25)
    group.settle()
    assert token not in group[1].done
    for conn_id in [conn_id for conn_id in group[2].links if conn_id < 0]:
        group.close(group[2], conn_id)
        group[2].replica.ha_closed(group.now_ms, conn_id)
    group.cut = set()
    group.run(300)
    assert group[1].done[token] is AckStatus.OK
    assert group[2].log.data == group[3].log.data == b"once" * 25


def test_a_record_whose_producer_was_told_to_try_again_is_kept_so_that_two_copies_are_the_worst() -> None:
    """The master is replaced while the record waits: its producer hears SERVICE_NOT_AVAILABLE and sends again. The new
    master has the record and keeps it: delivered twice, and both copies are whole on every replica."""
    group = started(3)
    group.cut = {(2, 1), (3, 1)}
    token = group.send(1, b"same" * 25)
    group.settle()
    group.elect(2)
    group.cut = set()
    group.run(500)
    assert group[1].done[token] is AckStatus.SERVICE_NOT_AVAILABLE
    again = group.send(2, b"same" * 25)
    group.settle()
    assert group[2].done[again] is AckStatus.OK
    group.run(4000)
    for node in group.nodes.values():
        assert node.log.data == b"same" * 50
        assert epochs_of(node) == {1: 0, 2: 100}


# --- where two logs part ----------------------------------------------------------------------------------------------

SHARED, OURS, THEIRS = b"s" * 1950, b"o" * 250, b"t" * 250


def worked_example(ha_mode: str, slave_confirm: int) -> tuple[Group, Node, Node]:
    """Master: min 300, max 2500, epochs {6: 200, 7: 1200, 8: 2500}. Slave: the same min and max, {6: 200, 7: 1200,
    8: 2250}: it led for a moment too, under a number that the master's predecessor had."""
    group = Group(0, ha_mode=ha_mode, total_replicas=2)
    group.controller.epoch = 7
    master = group.add(1, log_of(300, SHARED + OURS, 2250, e6=200, e7=1200), 1)
    group.elect(1)
    assert epochs_of(master) == {6: 200, 7: 1200, 8: 2500}
    assert (master.log.min_phy_offset, master.log.max_phy_offset) == (300, 2500)
    slave = group.add(2, log_of(300, SHARED + THEIRS, slave_confirm, e6=200, e7=1200, e8=2250), 2)
    group.run(1000)
    return group, master, slave


@pytest.mark.parametrize(("ha_mode", "slave_confirm"), [("cp", 2250), ("ap", 2250), ("ap", 2500)])
def test_the_logs_part_where_the_newest_common_epoch_ends_first(ha_mode: str, slave_confirm: int) -> None:
    """Epoch 8 starts elsewhere, so epoch 7 is the newest that both have; it ends at 2250 in one log and at 2500 in the
    other. The slave keeps [300, 2250), drops 250 bytes and copies the master's."""
    group, master, slave = worked_example(ha_mode, slave_confirm)
    aligned = next(fields for name, fields in slave.trace.events if name == "ha_aligned")
    assert (aligned["end_offset"], aligned["cut_bytes"], aligned["same_epoch_other_start"]) == (2250, 250, 1)
    assert slave.log.data == master.log.data == SHARED + OURS
    assert slave.log.min_phy_offset == 300
    assert group.controller.members == [1, 2]
    token = group.send(1)
    group.settle()
    group.run(50)
    assert group[1].done[token] is AckStatus.OK
    assert epochs_of(slave) == epochs_of(master) == {6: 200, 7: 1200, 8: 2500}


def test_in_cp_what_the_slave_knows_to_be_confirmed_is_not_dropped_even_so() -> None:
    """The same logs, but the slave knows that one of the 250 bytes was confirmed: an operator must choose."""
    _, master, slave = worked_example("cp", 2251)
    assert slave.log.data == SHARED + THEIRS
    assert master.log.data == SHARED + OURS
    assert "2250" in slave.replica.state(0).to_json()["refusal"]
    assert slave.replica.state(0).follow_state == "refused"


def test_the_longer_of_two_slaves_loses_its_unconfirmed_tail_when_the_shorter_leads() -> None:
    """Asynchronous copies: B has more of A's log than C when A dies, and C is elected. B parts from C at C's start."""
    group = started(3, ha_mode="ap")
    group.send(1, b"both" * 25)
    group.settle()
    group.cut = {(1, 3)}
    group.send(1, b"tail" * 25)
    group.settle()
    group.kill(1)
    group.cut = set()
    assert [group[number].log.max_phy_offset for number in (2, 3)] == [200, 100]
    group.elect(3)
    group.run(500)
    group.send(3, b"next" * 25)
    group.settle()
    group.run(100)
    assert group[2].log.data == group[3].log.data == b"both" * 25 + b"next" * 25
    assert group[2].replica.state(group.now_ms).truncated_bytes == 100
    assert epochs_of(group[2]) == {1: 0, 2: 100}


# --- two masters ------------------------------------------------------------------------------------------------------


def cut_off_from_the_controllers(**options: object) -> Group:
    """A cannot hear the controllers, which elect B. B knows first; A still serves, C still follows A."""
    group = started(3, **options)
    group.controller.silent = True  # until the test says otherwise nothing is answered
    group.elect(2, tell=(2,))
    assert group[1].replica.is_master
    assert group[2].replica.is_master
    assert group[3].replica.master_address == group[1].config.address
    return group


def test_of_two_masters_at_once_the_older_acknowledges_nothing_in_cp() -> None:
    group = cut_off_from_the_controllers()
    token = group.send(1, b"old!" * 25)
    group.run(400)
    assert group[3].log.max_phy_offset == 100, "C copies from the older one still"
    assert token not in group[1].done
    assert group[1].log.confirm == 0
    group.controller.silent = False
    group.run(1000)
    assert group.master_is(2)
    assert group[1].done[token] is AckStatus.SERVICE_NOT_AVAILABLE
    kept = group.send(2, b"new!" * 25)
    group.settle()
    assert group[2].done[kept] is AckStatus.OK
    group.run(100)
    for node in group.nodes.values():
        assert node.log.data == b"new!" * 25
        assert epochs_of(node) == {2: 0}


def test_of_two_masters_at_once_the_older_forks_in_ap_and_says_what_it_cut() -> None:
    group = cut_off_from_the_controllers(ha_mode="ap")
    lost = group.send(1, b"old!" * 25)
    group.settle()
    assert group[1].done[lost] is AckStatus.OK, "AP takes messages on both sides"
    kept = group.send(2, b"new!" * 30)
    group.settle()
    assert group[2].done[kept] is AckStatus.OK
    group.controller.silent = False
    group.run(1500)
    for node in group.nodes.values():
        assert node.log.data == b"new!" * 30
    for number in (1, 3):
        told = [name for name, _ in group[number].trace.events if name in ("ha_aligned", "ha_restarted")]
        assert told, f"replica {number} says that it dropped its fork"


def test_of_two_replicas_the_old_master_waits_for_both_and_the_promoted_slave_syncs_its_one_copy() -> None:
    """The old master, cut off from its slave and the controllers, asks for two copies and gets none; the slave that the
    controllers promoted goes on with one, synced."""
    group = started(2)
    group.controller.silent = True
    group.cut = {(1, 2), (2, 1)}
    old = group.send(1, b"old!" * 25)
    group.elect(2, tell=(2,))
    group.run(100)
    assert group.master_is(2)
    group.auto_sync = False
    new = group.send(2, b"new!" * 25)
    group.settle()
    assert new not in group[2].done, "one copy that is not synced is none"
    group.auto_sync = True
    group.settle()
    assert group[2].done[new] is AckStatus.OK
    group.run(3500)
    assert group[1].done[old] is AckStatus.FLUSH_SLAVE_TIMEOUT
    group.controller.silent = False
    group.cut = set()
    group.run(1500)
    assert group[1].log.data == group[2].log.data == b"new!" * 25
    assert group.controller.members == [1, 2]


# --- what was on its way at a promotion -------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "ha_mode"), [(2, "ap"), (3, "cp"), (5, "cp")])
def test_a_promoted_slave_commits_what_its_master_may_have_acknowledged(
    count: int, ha_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master's end is 100; it sends [40, 100) together with confirm offset 40, gets the acks of 100, answers the
    producer, and dies before anybody hears of confirm offset 100. Its successor must raise 40 to 100, and build the
    queues up to there, before it takes a message: those 60 bytes have fixed places in the queues already."""
    group = started(count, ha_mode=ha_mode, all_ack_in_sync_state_set=True)
    first = group.send(1, b"a" * 40)
    group.settle()
    group.run(50)
    assert group[1].done[first] is AckStatus.OK
    group.cut = {(number, 1) for number in group.nodes}
    second = group.send(1, b"b" * 60)
    group.settle()
    acks_arrive(group, 1, 100)
    assert group[1].done[second] is AckStatus.OK
    assert group[1].log.confirm == 100
    heir = group[2]
    assert (heir.log.max_phy_offset, heir.log.confirm) == (100, 40)

    group.kill(1)
    group.cut = set()
    with monkeypatch.context() as slow:
        slow.setattr(heir.log, "dispatch", lambda limit_bytes: False)
        group.elect(2)
        group.run(800)
        assert heir.log.confirm == 100
        assert heir.log.dispatched == 40
        assert heir.replica.role is Role.PROMOTING
        assert heir.replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    group.run(50)
    assert heir.log.dispatched == 100
    assert group.master_is(2)
    third = group.send(2, b"c" * 10)
    group.settle()
    assert heir.done[third] is AckStatus.OK
    assert heir.log.data == b"a" * 40 + b"b" * 60 + b"c" * 10
    assert epochs_of(heir) == {1: 0, 2: 100}


# --- what a master does alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ha_mode", ["cp", "ap"])
def test_a_master_that_restarts_while_the_controllers_are_away_is_no_master_by_memory(ha_mode: str) -> None:
    """Another may have been elected meanwhile: it waits for a controller's word."""
    group = started(3, ha_mode=ha_mode)
    group.send(1)
    group.settle()
    group.kill(1)
    group.controller.away = True
    again = group.restart(1)
    group.run(3000)
    assert again.replica.role is Role.STARTING
    assert again.replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    group.controller.away = False
    group.run(1500)
    assert group.master_is(1)


def test_a_cut_off_master_goes_on_showing_what_was_confirmed_and_nothing_more() -> None:
    """It holds no lease that would end: consumers may read what is committed for ever, the rest they never see."""
    group = started(3)
    group.send(1)
    group.settle()
    group.run(50)
    group.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    group.controller.silent = True
    group.send(1)
    group.run(10_000)
    log = group[1].log
    assert group.master_is(1)
    assert (log.max_phy_offset, log.confirm, log.dispatched) == (200, 100, 100)


def test_no_transfer_is_larger_than_a_mebibyte() -> None:
    """The cap for every peer, a Java slave too: its read buffer holds 4 MiB."""
    group = started(2)
    sizes: list[int] = []
    perform = group.perform

    def watched(node: Node, action: object) -> None:
        if isinstance(action, SendLog):
            sizes.append(action.size_bytes)
        perform(node, action)

    group.perform = watched  # type: ignore[method-assign]
    group.send(1, b"x" * (2 * 1024 * 1024 + 1))
    group.settle()
    assert sizes == [1024 * 1024, 1024 * 1024, 1]
    assert group[2].log.data == group[1].log.data
    with pytest.raises(ConfigError, match="haTransferBatchSize"):
        BrokerConfig.from_properties({"haTransferBatchSize": str(1024 * 1024 + 1)}, "broker.conf")
