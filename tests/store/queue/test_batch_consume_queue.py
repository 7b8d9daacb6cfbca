"""Queues of topics with queue.type=BatchCQ: offsets of messages, records of many."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqha.model.code import ResponseCode
from rmqha.model.error import StoreError, UsageError
from rmqha.model.message import decode_properties
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.log.record import NewMessage, decode
from rmqha.store.queue.batch_consume_queue import UNIT_BYTES, BatchConsumeQueue, BatchUnit
from rmqha.store.store import Store
from tests.store.support import commit_all, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

TOPICS = json.dumps({"topicConfigTable": {"B": {"attributes": {"queue.type": "BatchCQ"}}}}).encode()
QUEUE_FILE = "batchconsumequeue/B/0/00000000000000000000"


def batch(number: int, count: int, *, topic: str = "B", size: int = 20) -> NewMessage:
    """A record that says it holds `count` messages; the store does not look into its body."""
    properties = b"UNIQ_KEY\x01%d\x02INNER_NUM\x01%d\x02" % (number, count)
    return message(number, topic=topic, body=b"b" * size, properties=properties, sys_flag=0xC0)


def single(number: int, *, topic: str = "B", tags: bytes = b"") -> NewMessage:
    properties = b"KEYS\x01%d\x02" % number + (b"TAGS\x01" + tags + b"\x02" if tags else b"")
    return message(number, topic=topic, body=b"s" * 20, properties=properties)


def batch_store(disk: SimDisk | None = None, trace: RecordingTracer | None = None) -> Store:
    disk = disk or sim_disk()
    if not disk.exists("config/topics.json"):
        disk.write_atomic("config/topics.json", TOPICS)
    return open_store(disk, tracer=trace)


def seen(store: Store, topic: str = "B") -> list[tuple[int, int]]:
    """(first message, messages behind it) of each record, as a consumer walks the queue."""
    offset, high = store.queue_range(topic, 0)
    found = []
    while offset < high:
        result = store.pull(topic, 0, offset, 1, 1 << 20)
        assert result.status is ResponseCode.SUCCESS and len(result.records) == 1
        record = decode(result.records[0])
        found.append((record.queue_offset, result.next_begin_offset - record.queue_offset))
        offset = result.next_begin_offset
    return found


def test_offsets_count_messages() -> None:
    store = batch_store()
    done = [store.append(new, 1) for new in (single(0), batch(1, 3), batch(2, 1), single(3), batch(4, 7))]
    assert [item.queue_offset for item in done] == [0, 1, 4, 5, 6]
    commit_all(store)
    assert store.queue_range("B", 0) == (0, 13)
    assert seen(store) == [(0, 1), (1, 3), (4, 1), (5, 1), (6, 7)]
    assert store.queues() == {"B": [0]}
    view = store.record_at(done[4].phy_offset)
    assert view is not None
    properties = decode_properties(decode(view).properties)
    assert (properties["INNER_BASE"], properties["INNER_NUM"]) == ("6", "7")
    assert decode(view).sys_flag == 0xC0


def test_a_pull_in_the_middle_gives_the_record_that_holds_it() -> None:
    store = batch_store()
    for number in range(3):
        store.append(batch(number, 10), 1)
    commit_all(store)
    for offset in range(30):
        result = store.pull("B", 0, offset, 1, 1 << 20)
        (view,) = result.records
        assert decode(view).queue_offset == offset // 10 * 10
        assert result.next_begin_offset == offset // 10 * 10 + 10
    assert store.pull("B", 0, 30, 1, 1 << 20).status is ResponseCode.PULL_NOT_FOUND
    assert store.pull("B", 0, 31, 1, 1 << 20).status is ResponseCode.PULL_OFFSET_MOVED


def test_a_pull_counts_messages_and_takes_whole_records() -> None:
    store = batch_store()
    sizes = []
    for number in range(4):
        done = store.append(batch(number, 10), 1)
        sizes.append(done.end_offset - done.phy_offset)
    commit_all(store)

    def taken(max_count: int, max_bytes: int) -> int:
        return len(store.pull("B", 0, 0, max_count, max_bytes).records)

    assert [taken(count, 1 << 20) for count in (1, 10, 19, 20, 39, 40)] == [1, 1, 1, 2, 3, 4]
    assert [taken(100, size) for size in (1, sum(sizes[:2]) - 1, sum(sizes[:2]), sum(sizes))] == [1, 1, 2, 4]


def test_a_filter_takes_single_messages_by_tag_and_every_batch() -> None:
    store = batch_store()
    for new in (single(0, tags=b"a"), batch(1, 2), single(2, tags=b"b"), single(3), single(4, tags=b"a")):
        store.append(new, 1)
    commit_all(store)
    result = store.pull("B", 0, 0, 100, 1 << 20, frozenset({ord("a")}))
    assert [decode(view).queue_offset for view in result.records] == [0, 1, 5]
    assert result.next_begin_offset == 6
    nothing = store.pull("B", 0, 3, 1, 1 << 20, frozenset({ord("z")}))
    assert (nothing.status, nothing.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 6)


def test_time() -> None:
    store = batch_store()
    for number, stored_ms in enumerate((100, 100, 200, 300)):
        store.append(batch(number, 5), stored_ms)
    commit_all(store)
    assert [store.offset_by_time("B", 0, stamp) for stamp in (0, 100, 101, 200, 300, 301)] == [0, 0, 10, 10, 15, 20]
    assert [store.first_stored_ms("B", {0: offset}) for offset in (0, 4, 9, 10, 19, 20)] == [
        100,
        100,
        100,
        200,
        300,
        None,
    ]


def test_only_a_batch_topic_takes_an_inner_batch_and_only_alone() -> None:
    store = batch_store()
    with pytest.raises(UsageError, match=r"topic T has not queue\.type=BatchCQ"):
        store.append(batch(0, 2, topic="T"), 1)
    for bad in (b"", b"INNER_NUM\x010\x02", b"INNER_NUM\x0132768\x02", b"INNER_NUM\x01-1\x02", b"INNER_NUM\x01x\x02"):
        with pytest.raises(UsageError, match="expected INNER_NUM from 1 to 32767"):
            store.append(message(topic="B", properties=bad, sys_flag=0xC0), 1)
    with pytest.raises(UsageError, match="is appended alone"):
        store.encode_batch([single(1), batch(0, 2)])
    assert store.max_phy_offset == 0
    store.append_encoded(store.encode_batch([single(1), single(2)]), 1)
    assert store.append(batch(3, 2), 1).queue_offset == 2


def test_offsets_go_on_behind_a_masters_records_and_behind_a_cut() -> None:
    one, two = batch_store(), batch_store()
    ends = [one.append(new, 1).end_offset for new in (single(0), batch(1, 4), batch(2, 6))]
    two.append_raw(PhyOffset(0), one.view(PhyOffset(0), 1 << 20))
    assert two.append(batch(3, 2), 1).queue_offset == 11
    two.truncate(ends[1])
    assert two.append(single(4), 1).queue_offset == 5
    commit_all(two)
    assert seen(two) == [(0, 1), (1, 4), (5, 1)]
    two.truncate(ends[0])
    assert two.queue_range("B", 0) == (0, 1)
    assert two.append(batch(5, 3), 1).queue_offset == 1


def test_more_units_than_a_file_holds_and_what_a_trim_leaves() -> None:
    trace = RecordingTracer()
    disk = sim_disk()
    store = batch_store(disk, trace)
    for number in range(90):
        store.append(batch(number, 2, size=100), number)
    commit_all(store)
    assert len(disk.list("batchconsumequeue/B/0")) == 5
    assert seen(store) == [(2 * number, 2) for number in range(90)]
    store.close()
    (first, *_) = (name for name in disk.list("commitlog"))
    for name in disk.list("commitlog")[:3]:
        disk.remove(f"commitlog/{name}")
    store = batch_store(disk)
    low, high = store.queue_range("B", 0)
    view = store.record_at(store.min_phy_offset)
    assert view is not None and first
    assert (low, high) == (decode(view).queue_offset, 180)
    assert store.pull("B", 0, 0, 1, 1).status is ResponseCode.PULL_OFFSET_MOVED
    assert seen(store)[0] == (low, 2)


def test_a_trim_keeps_what_says_where_the_offsets_go_on() -> None:
    """Units name their offsets, files do not: after a cut of all that is left somebody must know the next offset."""
    units = [BatchUnit(100 * number, 100, 0, number, 3 * number, 3) for number in range(60)]
    for first_kept, files_left in ((0, 3), (19, 3), (20, 3), (21, 2), (40, 2), (41, 1), (59, 1), (60, 1)):
        queue = BatchConsumeQueue(sim_disk(), "B", 0, 20 * UNIT_BYTES)
        assert queue.put(units) == []
        queue.trim(100 * first_kept)
        assert len(queue.files.files) == files_left
        assert (queue.min_offset(100 * first_kept), queue.max_offset) == (3 * first_kept, 180)
        queue.truncate(100 * first_kept)
        assert queue.max_offset == queue.min_offset(100 * first_kept) == 3 * first_kept
        queue.put([BatchUnit(100 * first_kept, 50, 0, 99, 3 * first_kept, 1)])
        assert queue.max_offset == 3 * first_kept + 1


# --- types that become known late -------------------------------------------------------------------------------------
def test_a_topic_that_turns_out_to_be_a_batch_one_keeps_its_messages() -> None:
    """A slave gets records before its topic table."""
    for told in (True, False):
        trace = RecordingTracer()
        disk = sim_disk()
        store = open_store(disk, tracer=trace)
        for number in range(100):
            store.append(single(number, topic="L", tags=b"t%d" % number), number)
            store.append(single(number, topic="T"), number)
        commit_all(store)
        assert disk.exists("consumequeue/L")
        store.append(single(100, topic="L"), 100)
        master = open_store(sim_disk(2))
        master.add_batch_topics(["L"])
        master.append_raw(
            PhyOffset(0),
            b"".join(bytes(store.view(PhyOffset(at), 4096)) for at in range(0, store.max_phy_offset, 4096)),
        )
        if told:
            store.add_batch_topics(["L"])
            store.append(batch(101, 5, topic="L"), 101)
        else:
            end = store.max_phy_offset
            master.append(batch(101, 5, topic="L"), 101)
            store.append_raw(end, master.view(end, 1 << 20))
        commit_all(store)
        assert trace.names().count("queues_moved") == 1
        assert not disk.exists("consumequeue/L") and disk.exists("consumequeue/T")
        assert store.batch_topics == {"L"}
        assert seen(store, "L") == [(number, 1) for number in range(101)] + [(101, 5)]
        assert len(seen(store, "T")) == 100
        assert store.pull("L", 0, 0, 100, 1 << 20, frozenset({3521})).next_begin_offset == 106
        assert store.append(batch(102, 2, topic="L"), 102).queue_offset == 106
        store.close()
        store = open_store(disk)
        commit_all(store)
        assert seen(store, "L") == [(number, 1) for number in range(101)] + [(101, 5), (106, 2)]
        assert store.batch_topics == {"L"}


def test_a_new_topic_does_not_wait_for_a_sync_under_way() -> None:
    """It is made in the broker's loop, and a slow disk may take any time for a sync."""
    disk = sim_disk()
    store = open_store(disk)
    guard = store._batch_queues._guard
    assert guard is store._flush
    with guard, pytest.MonkeyPatch.context() as patches:
        patches.setattr(store._batch_queues, "_guard", None)  # whoever waited for it would wait for ever
        store.add_batch_topics(["New"])
    assert disk.exists("batchconsumequeue/New") and store.batch_topics == {"New"}
    store.append(batch(0, 5, topic="New"), 0)
    commit_all(store)
    assert seen(store, "New") == [(0, 5)]


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_anywhere_in_a_move(power_loss: bool) -> None:
    moved = 0
    for stop in range(1, 200):
        disk = sim_disk(stop)
        store = open_store(disk)
        store.append(single(0, topic="T"), 0)
        for number in range(60):
            store.append(message(number, topic="L", queue_id=number % 2), number * 100)
        commit_all(store)
        store.sync()  # saves: a loss of power does not bring these entries back from the log
        disk.stop_after = disk.operations + stop
        try:
            store.add_batch_topics(["L"])
            store.append(batch(60, 5, topic="L"), 6000)
            commit_all(store)
            store.append(batch(61, 3, topic="L"), 6100)
            commit_all(store)
            store.close()
        except DiskStopped:
            disk.crash(power_loss=power_loss)
        else:
            break
        disk.write_atomic("config/topics.json", TOPICS.replace(b'"B"', b'"L"'))
        store = open_store(disk)
        commit_all(store)
        found = seen(store, "L")
        assert found[:30] == [(number, 1) for number in range(30)]
        assert found[30:] in ([], [(30, 5)], [(30, 5), (35, 3)])
        assert store.queue_range("L", 1) == (0, 30)
        assert not disk.exists("consumequeue/L")
        moved += len(found) > 30
    assert moved > 3 and stop > 10


# --- damage -----------------------------------------------------------------------------------------------------------
def some_disk(count: int = 50) -> SimDisk:
    disk = sim_disk()
    store = batch_store(disk)
    store.append(single(0, topic="T"), 0)
    for number in range(count):
        store.append(batch(number, 2), number)
    commit_all(store)
    store.close()
    return disk


EXPECTED = [(2 * number, 2) for number in range(50)]


def test_a_missing_directory_is_made_anew() -> None:
    disk = some_disk()
    disk.remove_tree("batchconsumequeue")
    store = batch_store(disk)
    assert "batchconsumequeue/B is not there." in store.recovery.lines
    assert seen(store) == EXPECTED
    store.close()
    store = batch_store(disk)
    assert not any("batchconsumequeue" in line for line in store.recovery.lines)


@pytest.mark.parametrize("index", [0, 7, 19])
@pytest.mark.parametrize("field_at", [0, 8, 20, 28, 36])
def test_a_damaged_unit_is_found_after_a_loss_of_power(index: int, field_at: int) -> None:
    disk = some_disk()
    disk.rot(QUEUE_FILE, index * UNIT_BYTES + field_at, 0x80)
    disk.write_atomic("abort", b"1")
    disk.crash(power_loss=True)
    store = batch_store(disk)
    if field_at == 20:  # a time in the middle of others cannot be told from a true one without the record
        assert [base for base, _ in seen(store)] == [base for base, _ in EXPECTED]
        return
    assert f"batchconsumequeue/B/0: damaged entries from {index} on were dropped." in store.recovery.lines
    assert seen(store) == EXPECTED


@pytest.mark.parametrize("seed", range(20))
def test_files_made_anew_that_were_never_synced_may_go_with_the_power(seed: int) -> None:
    """The second life, after a kill, does not know that the first had not synced them: each may be there or not."""
    machine = BatchQueueMachine()
    machine.start(seed)
    machine.append([0] * 45, 0)
    machine.commit()
    machine.sync()
    machine.restart(power_loss=False, clean=True, remove=True)
    machine.restart(power_loss=False, clean=False, remove=False)
    machine.restart(power_loss=True, clean=False, remove=False)
    machine.queues_are_right()


def test_a_unit_that_points_outside_the_log_is_named() -> None:
    disk = some_disk()
    disk.rot(QUEUE_FILE, 3 * UNIT_BYTES + 3, 0x01)
    store = batch_store(disk)
    with pytest.raises(StoreError, match=f"{QUEUE_FILE} at byte {3 * UNIT_BYTES}: expected an entry of the log"):
        store.pull("B", 0, 6, 1, 1 << 20)


def test_a_queue_offset_that_was_given_twice_is_reported() -> None:
    trace = RecordingTracer()
    store = batch_store(trace=trace)
    store.append(batch(0, 5), 1)
    other = batch_store(sim_disk(2))
    other.append(single(9), 1)
    record = bytearray(other.view(PhyOffset(0), 1 << 20))
    record[28:36] = store.max_phy_offset.to_bytes(8, "big")
    store.append_raw(store.max_phy_offset, record)
    commit_all(store)
    (said,) = [fields for name, fields in trace.events if name == "queue_offset_repeated"]
    assert (said["topic"], said["queue_id"], said["queue_offset"]) == ("B", 0, 0)
    assert seen(store) == [(0, 5)]


def test_an_inner_batch_without_its_number_is_named() -> None:
    disk = sim_disk()
    store = batch_store(disk)
    store.append(batch(0, 5), 1)
    data = bytes(store.view(PhyOffset(0), 1 << 20)).replace(b"INNER_NUM\x015", b"INNER_NUM\x01x")
    store.truncate(PhyOffset(0))
    store.append_raw(PhyOffset(0), data)
    store.set_confirm_offset(store.max_phy_offset)
    with pytest.raises(StoreError, match="at byte 0: expected INNER_NUM from 1 to 32767 in an inner batch, found b'x'"):
        store.dispatch(1 << 20)
    with pytest.raises(StoreError, match="at byte 0: expected INNER_NUM"):
        store.append(single(1), 1)


# --- model ------------------------------------------------------------------------------------------------------------
@dataclass
class Model:
    """Per queue: (base, number, physical end) of each record."""

    queues: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: {0: [], 1: []})

    def next(self, queue_id: int) -> int:
        queue = self.queues[queue_id]
        return queue[-1][0] + queue[-1][1] if queue else 0

    def cut(self, end: int) -> None:
        self.queues = {key: [item for item in queue if item[2] <= end] for key, queue in self.queues.items()}


class BatchQueueMachine(RuleBasedStateMachine):
    """Against lists. Everything that was appended is confirmed; a loss of power may take what was not synced."""

    @initialize(seed=st.integers(0, 1 << 16))
    def start(self, seed: int) -> None:
        self.disk = sim_disk(seed)
        self.disk.write_atomic("config/topics.json", TOPICS)
        self.trace = RecordingTracer()
        self.store = open_store(self.disk, tracer=self.trace)
        self.model = Model()
        self.clock_ms = 0
        self.ends = [0]

    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=30), queue_id=st.integers(0, 1))
    def append(self, counts: list[int], queue_id: int) -> None:
        for count in counts:
            self.clock_ms += 100
            new = batch(self.clock_ms, count) if count else single(self.clock_ms)
            new.queue_id = queue_id
            done = self.store.append(new, self.clock_ms)
            assert done.queue_offset == self.model.next(queue_id)
            self.model.queues[queue_id].append((done.queue_offset, count or 1, done.end_offset))
            self.ends.append(done.end_offset)

    @rule()
    def commit(self) -> None:
        commit_all(self.store)

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @precondition(lambda self: len(self.ends) > 1)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self._to(data.draw(st.sampled_from(self.ends)))
        self.store.truncate(PhyOffset(self.ends[-1]))

    def _to(self, end: int) -> None:
        self.ends = [known for known in self.ends if known <= end]
        self.model.cut(end)

    @rule(power_loss=st.booleans(), clean=st.booleans(), remove=st.booleans())
    def restart(self, power_loss: bool, clean: bool, remove: bool) -> None:
        if clean:
            self.store.close()
        self.disk.crash(power_loss=power_loss and not clean)
        if remove:
            self.disk.remove_tree("batchconsumequeue")
        self.store = open_store(self.disk, tracer=self.trace)
        assert "queue_offset_repeated" not in self.trace.names()
        end = int(self.store.max_phy_offset)
        assert end in self.ends or end % 4096 == 0
        self._to(end)

    @invariant()
    def queues_are_right(self) -> None:
        dispatched = self.store.dispatched_offset
        for queue_id, records in self.model.queues.items():
            known = [item for item in records if item[2] <= dispatched]
            expected = (known[0][0], known[-1][0] + known[-1][1]) if known else (0, 0)
            assert self.store.queue_range("B", queue_id) == expected
            for base, number, end in known:
                for offset in {base, base + number - 1}:
                    result = self.store.pull("B", queue_id, offset, 1, 1)
                    (view,) = result.records
                    record = decode(view)
                    assert (record.queue_offset, record.phy_offset + record.size_bytes) == (base, end)
                    assert result.next_begin_offset == base + number


TestBatchQueueMachine = BatchQueueMachine.TestCase
TestBatchQueueMachine.settings = settings(max_examples=40)
