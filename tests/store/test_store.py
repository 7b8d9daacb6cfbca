"""The store's calls, one law each, on a simulated disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.code import ResponseCode
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import StoreError, UsageError
from rmqha.model.message import tags_code
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.store.log.record import NewMessage, decode
from rmqha.store.store import Store
from tests.store.support import HOST, SMALL, bodies, commit_all, filled, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer


def test_the_store_is_the_replicas_log() -> None:
    log: ReplicaLog = open_store(sim_disk())
    assert (log.min_phy_offset, log.max_phy_offset, log.confirm_offset, log.synced_offset) == (0, 0, 0, 0)
    assert log.epochs == EpochHistory()
    assert not log.unclean


# --- append -----------------------------------------------------------------------------------------------------------
def test_appends_get_rising_offsets_per_queue_and_never_an_earlier_time() -> None:
    store = open_store(sim_disk())
    first = store.append(message(1, queue_id=0), 1000)
    second = store.append(message(2, queue_id=1), 900)
    third = store.append(message(3, queue_id=0), 1001)
    assert [item.queue_offset for item in (first, second, third)] == [0, 0, 1]
    assert [item.store_timestamp_ms for item in (first, second, third)] == [1000, 1000, 1001]
    assert first.end_offset == second.phy_offset and third.end_offset == store.max_phy_offset
    record = store.record_at(second.phy_offset)
    assert record is not None and decode(record).queue_id == 1
    assert store.record_at(second.phy_offset + 1) is None


def test_time_does_not_go_back_over_a_restart() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 5000)
    store.close()
    store = open_store(disk)
    assert store.append(message(2), 1000).store_timestamp_ms == 5000


def test_records_never_span_files_and_blank_records_fill_them() -> None:
    store = open_store(sim_disk())
    spots = [store.append(message(number, body=b"x" * 900), number) for number in range(10)]
    for spot in spots:
        assert spot.phy_offset // 4096 == (spot.end_offset + 7) // 4096, "eight bytes stay free for a blank record"
    blank = bytes(store.view(PhyOffset(spots[3].end_offset), 8))
    assert blank == (4096 - spots[3].end_offset).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    assert spots[4].phy_offset == 4096
    commit_all(store)
    assert bodies(store) == [b"x" * 900] * 10


V6 = (bytes(range(16)), 10911)


@given(
    st.lists(
        st.builds(
            message,
            st.integers(0, 9),
            topic=st.sampled_from(["T", "U" * 200]),
            queue_id=st.integers(0, 2),
            body=st.binary(max_size=900),
            sys_flag=st.sampled_from([0, 4, 8, 12]),
            flag=st.integers(-5, 5),
            born_host=st.sampled_from([HOST, V6]),
            store_host=st.sampled_from([HOST, V6]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_a_batch_is_the_same_bytes_as_single_appends(messages: list[NewMessage]) -> None:
    batch, single = open_store(sim_disk()), open_store(sim_disk())
    encoded = batch.encode_batch(messages)
    for wall_ms in (7, 9):
        found = batch.append_encoded(encoded, wall_ms)
        expected = [single.append(item, wall_ms) for item in messages]
        assert list(found.phy_offsets) == [item.phy_offset for item in expected]
        assert list(found.queue_offsets) == [item.queue_offset for item in expected]
        assert (found.end_offset, found.store_timestamp_ms) == (expected[-1].end_offset, wall_ms)
        assert log_bytes(batch) == log_bytes(single)
    commit_all(batch)
    commit_all(single)
    for topic, queue_ids in single.queues().items():
        for queue_id in queue_ids:
            assert batch.queue_range(topic, queue_id) == single.queue_range(topic, queue_id)


def test_prepared_and_rollback_records_take_no_queue_offset() -> None:
    store = open_store(sim_disk())
    kinds = {0: 0, 4: 0, 8: 1, 12: 0}
    for sys_flag, expected in kinds.items():
        assert store.append(message(sys_flag, sys_flag=sys_flag), 1).queue_offset == expected
    commit_all(store)
    assert bodies(store) == [b"body-0", b"body-8"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (message(body=b"x" * 3001), "3001 bytes .* maxMessageSize = 3000"),
        (message(properties=b"x" * 32768), "properties of 32768 bytes"),
        (message(properties=b"KEYS\x01a\0"), "must neither end with a zero byte"),
        (message(properties=b"KEYS\x01" + bytes(512) + b"\x02"), "nor hold 512 of them together"),
        (message(queue_id=-1), "queue -1"),
        (message(topic=""), "topic ''"),
        (message(topic="../../etc/passwd"), "letters, digits"),
        (message(topic="a" * 256), "1 to 255"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(bad: object, said: str) -> None:
    store = open_store(sim_disk())
    store.append(message(1), 1)
    for attempt in (lambda: store.append(bad, 1), lambda: store.encode_batch([message(2), bad])):  # type: ignore[arg-type, list-item]
        with pytest.raises(UsageError, match=said):
            attempt()
    assert store.append(message(3), 1).queue_offset == 1


def test_a_record_larger_than_a_file_is_refused() -> None:
    store = open_store(sim_disk(), replace(SMALL, mapped_file_size_commit_log=4096, max_message_size=8000))
    with pytest.raises(StoreError, match="does not fit a log file of 4096 bytes"):
        store.append(message(body=b"x" * 5000), 1)
    assert store.max_phy_offset == 0


def test_a_full_disk_refuses_appends_and_goes_on_when_there_is_room() -> None:
    disk = sim_disk()
    store = open_store(disk)
    first = [store.append(message(number, body=b"x" * 1000), 1) for number in range(3)]
    disk.capacity_bytes = disk.used_bytes
    end = store.max_phy_offset
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left on device; free some space"):
            store.append(message(9, body=b"x" * 1000), 1)
        with pytest.raises(StoreError, match="No space left"):
            store.append_encoded(store.encode_batch([message(9, body=b"x" * 1000)] * 2), 1)
        assert store.max_phy_offset == end
    assert store.sync() == end, "the file that cannot be made ahead does not fail a sync"
    disk.capacity_bytes = None
    assert store.append(message(4, body=b"x" * 1000), 1).queue_offset == len(first)
    commit_all(store)
    assert len(bodies(store)) == 4


# --- a slave's log ----------------------------------------------------------------------------------------------------
def replicate(master: Store, slave: Store, step: int) -> None:
    while view := master.view(slave.max_phy_offset, step):
        slave.append_raw(slave.max_phy_offset, view)


def test_replicas_are_the_same_bytes_however_the_stream_is_cut() -> None:
    master = filled(sim_disk())
    for step in (1 << 20, 700, 13):
        slave = open_store(sim_disk())
        replicate(master, slave, step)
        assert log_bytes(slave) == log_bytes(master)
        commit_all(slave)
        commit_all(master)
        assert (bodies(slave), bodies(slave, "T", 1)) == (bodies(master), bodies(master, "T", 1))


def test_a_partial_record_is_neither_seen_nor_kept_over_a_restart() -> None:
    master, disk = filled(sim_disk(), 3), sim_disk()
    slave = open_store(disk)
    last = master.max_phy_offset - 100
    slave.append_raw(PhyOffset(0), master.view(PhyOffset(0), last))
    slave.set_confirm_offset(PhyOffset(last))
    assert not slave.dispatch(1 << 20)
    assert slave.max_phy_offset == last
    end = slave.record_end_offset
    assert slave.dispatched_offset == end < last
    with pytest.raises(StoreError, match="not whole"):
        slave.append(message(9), 1)
    slave.close()
    slave = open_store(disk)
    assert slave.max_phy_offset == end
    assert not slave.unclean
    assert any(f"the log ends here, at {end}" in line for line in slave.recovery.lines)
    replicate(master, slave, 1000)
    assert log_bytes(slave) == log_bytes(master)


def test_a_promoted_slave_goes_on_with_the_queue_offsets() -> None:
    master, slave = filled(sim_disk()), open_store(sim_disk())
    replicate(master, slave, 1000)
    slave.set_confirm_offset(PhyOffset(2000))
    slave.dispatch(1 << 20)
    assert slave.append(message(90, queue_id=0), 1).queue_offset == 6, "also before everything is dispatched"
    assert slave.append(message(91, queue_id=1), 1).queue_offset == 6
    commit_all(slave)
    assert slave.append(message(92, queue_id=1), 1).queue_offset == 7
    assert slave.append(message(93, queue_id=0), 1).store_timestamp_ms == 11


def test_a_restarted_master_never_gives_a_queue_offset_twice() -> None:
    """apache/rocketmq 7689: the undispatched part of the log counts too."""
    disk = sim_disk()
    store = filled(disk)
    store.set_confirm_offset(PhyOffset(1500))
    store.dispatch(1 << 20)
    disk.crash(power_loss=False)
    store = open_store(disk)
    assert store.dispatched_offset < store.max_phy_offset
    assert store.append(message(50, queue_id=0), 1).queue_offset == 6
    commit_all(store)
    assert len(bodies(store)) == 7


def test_bytes_that_are_no_records_are_named_at_dispatch() -> None:
    disk = sim_disk()
    source, store = filled(sim_disk()), open_store(disk)
    store.append_raw(PhyOffset(0), log_bytes(source))
    disk.rot(f"commitlog/{0:020}", 4)
    store.set_confirm_offset(store.max_phy_offset)
    with pytest.raises(StoreError, match=r"commitlog/0{20} at byte 0: expected magic .* found 0x25A320A7; remove"):
        store.dispatch(1 << 20)


# --- commit and dispatch ----------------------------------------------------------------------------------------------
def test_consumers_see_what_is_confirmed_and_dispatched() -> None:
    store = open_store(sim_disk())
    spots = [store.append(message(number), number) for number in range(5)]
    assert store.pull("T", 0, 0, 10, 1000).status is ResponseCode.PULL_NOT_FOUND
    store.set_confirm_offset(PhyOffset(spots[2].end_offset - 1))
    assert not store.dispatch(1 << 20)
    assert store.queue_range("T", 0) == (0, 2)
    store.set_confirm_offset(PhyOffset(1 << 40))
    assert store.confirm_offset == store.max_phy_offset
    assert store.dispatch(1), "more remains after a step"
    assert store.queue_range("T", 0) == (0, 3)
    commit_all(store)
    assert store.queue_range("T", 0) == (0, 5)
    assert store.queues() == {"T": [0]}
    store.set_confirm_offset(PhyOffset(0))
    assert store.confirm_offset == 0


def test_schedule_records_carry_their_delivery_time_in_the_queue() -> None:
    store = open_store(sim_disk())
    for delay in (b"3", b"99"):
        store.append(message(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01" + delay + b"\x02"), 1000)
    store.append(message(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02TAGS\x01a\x02"), 1000)
    commit_all(store)
    for code, count in ((1000 + 10_000, 1), (1000 + 7_200_000, 1), (tags_code("a"), 1), (5, 0)):
        found = store.pull("SCHEDULE_TOPIC_XXXX", 0, 0, 10, 10_000, frozenset([code]))
        assert len(found.records) == count


def test_units_and_delivery_times_by_own_levels() -> None:
    store = open_store(sim_disk(), replace(SMALL, delay_levels_ms=(7000,)))
    for _ in range(3):
        store.append(message(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x011\x02"), 1000)
    commit_all(store)
    units = store.units("SCHEDULE_TOPIC_XXXX", 0, 1, 10)
    assert [code for _, _, code in units] == [8000, 8000]
    for phy_offset, size, _ in units:
        record = store.record_at(phy_offset)
        assert record is not None and len(record) == size
    assert store.units("SCHEDULE_TOPIC_XXXX", 0, 0, 1) == store.units("SCHEDULE_TOPIC_XXXX", 0, 0, 9)[:1]
    for queue_id, offset in ((0, 3), (0, -1), (1, 0)):
        assert store.units("SCHEDULE_TOPIC_XXXX", queue_id, offset, 10) == []


def test_when_the_first_of_several_queues_records_was_stored() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number, queue_id in enumerate((1, 0, 1, 0)):
        store.append(message(number, queue_id=queue_id, body=b"x" * 1500), 1000 + number)
    commit_all(store)
    assert store.first_stored_ms("T", {0: 0, 1: 0}) == 1000
    assert store.first_stored_ms("T", {0: 0, 1: 1}) == 1001
    assert store.first_stored_ms("T", {1: 1, 0: 1}) == 1002
    nothing: list[dict[int, int]] = [{}, {0: 2, 1: 7}, {2: 0}]
    assert [store.first_stored_ms("T", offsets) for offsets in nothing] == [None, None, None]
    assert store.first_stored_ms("unknown", {0: 0}) is None
    store.sync()
    store.trim(PhyOffset(4096))
    assert store.first_stored_ms("T", {0: 0, 1: 0}) == 1002, "the log begins there now"
    start = store.units("T", 1, 1, 1)[0][0]
    disk.rot(f"commitlog/{4096:020}", start - 4096 + 4)
    assert store.first_stored_ms("T", {0: 0, 1: 0}) is None, "nobody knows"


def test_a_topic_that_would_leave_its_directory_is_not_queued() -> None:
    disk, trace = sim_disk(), RecordingTracer()
    store = open_store(disk, tracer=trace)
    store.append(message(topic="aXXXXXXb"), 1)
    evil = log_bytes(store).replace(b"aXXXXXXb", b"../../ab")
    slave = open_store(sim_disk(), tracer=trace)
    slave.append_raw(PhyOffset(0), evil)
    commit_all(slave)
    assert slave.queues() == {}
    assert slave.dispatched_offset == slave.max_phy_offset
    assert trace.events[-1] == ("topic_not_queued", {"topic": "../../ab", "phy_offset": 0})


# --- pull -------------------------------------------------------------------------------------------------------------
def pullable() -> Store:
    store = open_store(sim_disk())
    for number in range(40):
        tags = b"TAGS\x01%s\x02" % (b"odd" if number % 2 else b"even")
        store.append(message(number, properties=tags), number)
    commit_all(store)
    return store


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, ResponseCode.SUCCESS, 5),
        (38, ResponseCode.SUCCESS, 40),
        (40, ResponseCode.PULL_NOT_FOUND, 40),
        (41, ResponseCode.PULL_OFFSET_MOVED, 40),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
def test_pull_by_offset(offset: int, status: ResponseCode, next_offset: int) -> None:
    result = pullable().pull("T", 0, offset, 5, 1 << 20)
    assert (result.status, result.next_begin_offset, result.min_offset, result.max_offset) == (
        status,
        next_offset,
        0,
        40,
    )


def test_pull_from_a_queue_that_does_not_exist() -> None:
    store = pullable()
    assert store.pull("U", 0, 0, 1, 1).status is ResponseCode.PULL_NOT_FOUND
    assert store.pull("U", 0, 3, 1, 1).status is ResponseCode.PULL_OFFSET_MOVED
    assert store.pull("U", 0, 3, 1, 1).next_begin_offset == 0


def test_pull_filters_by_tags_code_and_says_where_to_go_on() -> None:
    store = pullable()
    odd = frozenset([tags_code("odd")])
    result = store.pull("T", 0, 0, 3, 1 << 20, odd)
    assert [decode(view).queue_offset for view in result.records] == [1, 3, 5]
    assert result.next_begin_offset == 6
    none = store.pull("T", 0, 0, 3, 1 << 20, frozenset([1]))
    assert (none.status, none.next_begin_offset, none.records) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 40, [])


def test_pull_keeps_to_its_bytes_but_always_gives_one_record() -> None:
    store = pullable()
    size = len(store.pull("T", 0, 0, 1, 1 << 20).records[0])
    assert len(store.pull("T", 0, 0, 32, 1).records) == 1
    three = store.pull("T", 0, 0, 32, 3 * size)
    assert (len(three.records), three.next_begin_offset) == (3, 3)


def test_records_are_views_into_the_log() -> None:
    store = pullable()
    first, second = store.pull("T", 0, 0, 2, 1 << 20).records
    assert bytes(first) + bytes(second) == bytes(store.view(PhyOffset(0), len(first) + len(second)))
    assert first.readonly


def test_offsets_by_time() -> None:
    store = pullable()
    assert [store.offset_by_time("T", 0, at) for at in (-5, 0, 7, 39, 40)] == [0, 0, 7, 39, 40]
    assert store.offset_by_time("U", 0, 7) == 0


# --- cut --------------------------------------------------------------------------------------------------------------
def test_truncate_cuts_log_queues_epochs_and_offsets() -> None:
    disk, trace = sim_disk(), RecordingTracer()
    store = open_store(disk, tracer=trace)
    spots = [store.append(message(number, queue_id=number % 2, body=b"q" * 700), number) for number in range(20)]
    for epoch, spot in ((1, 0), (2, 4), (3, 12)):
        assert store.append_epoch(Epoch(epoch), spots[spot].phy_offset)
    commit_all(store)
    store.sync()
    cut = spots[7].phy_offset
    hooked: list[int] = []
    store.on_truncate(hooked.append)
    store.truncate(cut)
    assert hooked == [cut]
    for end in (store.max_phy_offset, store.confirm_offset, store.synced_offset, store.dispatched_offset):
        assert end == cut
    assert store.epochs == EpochHistory([EpochEntry(Epoch(1), PhyOffset(0)), EpochEntry(Epoch(2), spots[4].phy_offset)])
    assert (store.queue_range("T", 0), store.queue_range("T", 1)) == ((0, 4), (0, 3))
    assert disk.list("commitlog") == [f"{at:020d}" for at in (0, 4096)]
    assert not any(disk.read("commitlog/00000000000000004096")[cut - 4096 :])
    assert trace.events[-1][0] == "log_truncated"
    assert store.append(message(77, queue_id=1), 1).queue_offset == 3
    commit_all(store)
    assert bodies(store, "T", 1)[-1] == b"body-77"


def test_what_follows_a_cut_is_not_told_of_half_a_record() -> None:
    """No queue ends earlier for that, and consumers' offsets must not be held against queues that are still behind."""
    master, store = filled(sim_disk()), open_store(sim_disk())
    store.append_raw(PhyOffset(0), bytes(master.view(PhyOffset(0), 1000)))
    hooked: list[int] = []
    store.on_truncate(hooked.append)
    assert store.record_end_offset < store.max_phy_offset
    store.truncate(store.record_end_offset)
    store.truncate(store.record_end_offset)
    assert hooked == []
    store.truncate(PhyOffset(0))
    assert hooked == [0]


@pytest.mark.parametrize("keep", [0, 5, 12])
def test_truncate_anywhere_then_follow_again(keep: int) -> None:
    master, disk = filled(sim_disk()), sim_disk()
    slave = open_store(disk)
    replicate(master, slave, 900)
    commit_all(slave)
    ends = [PhyOffset(0)]
    while (view := master.record_at(ends[-1])) or master.view(ends[-1], 8):
        step = len(view) if view else 4096 - ends[-1] % 4096
        ends.append(PhyOffset(ends[-1] + step))
    slave.truncate(ends[keep])
    assert slave.min_phy_offset == 0
    replicate(master, slave, 900)
    commit_all(slave)
    commit_all(master)
    assert log_bytes(slave) == log_bytes(master)
    assert bodies(slave) == bodies(master)


def test_restart_at_sets_the_old_files_aside() -> None:
    disk = sim_disk()
    store = filled(disk)
    store.append_epoch(Epoch(1), PhyOffset(0))
    commit_all(store)
    old = log_bytes(store)
    store.restart_at(PhyOffset(40960))
    for end in (store.min_phy_offset, store.max_phy_offset, store.confirm_offset, store.dispatched_offset):
        assert end == 40960
    assert (store.queues(), store.epochs) == ({}, EpochHistory())
    assert disk.list("replaced-1/commitlog") == [f"{at:020d}" for at in (0, 4096)]
    assert disk.read("replaced-1/commitlog/00000000000000000000") == old[:4096]
    assert disk.list("replaced-1/consumequeue/T") == ["0", "1"]
    assert b"1-0" in disk.read("replaced-1/epochFileCheckpoint")
    store.close()
    store = open_store(disk)
    assert (store.min_phy_offset, store.max_phy_offset) == (40960, 40960)
    store.restart_at(PhyOffset(81920))
    assert disk.exists("replaced-2/commitlog")
    with pytest.raises(StoreError, match="no multiple of mappedFileSizeCommitLog = 4096"):
        store.restart_at(PhyOffset(81921))


def test_a_log_that_begins_late_has_queues_that_begin_late() -> None:
    master = open_store(sim_disk())
    for number in range(30):
        master.append(message(number, body=b"x" * 700), number)
    slave = open_store(sim_disk())
    slave.restart_at(PhyOffset(8192))
    replicate(master, slave, 1000)
    commit_all(slave)
    low, high = slave.queue_range("T", 0)
    assert (low, high) == (10, 30)
    assert slave.pull("T", 0, 3, 1, 1000).status is ResponseCode.PULL_OFFSET_MOVED
    assert slave.pull("T", 0, 3, 1, 1000).next_begin_offset == 10
    assert decode(slave.pull("T", 0, 10, 1, 1000).records[0]).queue_offset == 10
    assert slave.offset_by_time("T", 0, 0) == 10
    assert slave.append(message(30), 1).queue_offset == 30


@pytest.mark.parametrize("field", ["flag", "sys_flag", "reconsume_times", "queue_id"])
def test_a_number_that_no_record_can_hold_is_refused_and_the_next_append_stands(field: str) -> None:
    store = open_store(sim_disk())
    wrong = replace(message(), **{field: 1 << 31})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no record can hold"):
        store.append(wrong, 1)
    with pytest.raises(UsageError, match="no record can hold"):
        store.encode_batch([message(), wrong])
    assert store.append(message(), 1).phy_offset == 0
