"""Offsets of a streaming query: which log they speak of, and whether a store still has it. No session is needed."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmqha.host.disk import HostDisk
from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.spark.options import ReadOptions
from rmqha.spark.queries import behind
from rmqha.spark.stream import CommitLogStreamReader, Offset
from rmqha.store.store import Store
from tests.store.log_writer import LogWriter, Message
from tests.store.support import commit_all, message, open_store

FILE_BYTES = 16 * 1024
ONE_EPOCH = "1\n0\n1-0\n"


class Replica:
    def __init__(self, root: Path, identity: str) -> None:
        self.writer, self.identity, self.numbers = LogWriter(root, FILE_BYTES), identity, 0

    def write(
        self, count: int, *, epochs: str = ONE_EPOCH, dispatched: bool = True, confirm_offset: int | None = None
    ) -> int:
        """Appends so many; the end."""
        for number in range(self.numbers, self.numbers + count):
            self.writer.append(Message(body=f"{number}".encode(), queue_offset=number), dispatched=dispatched)
        self.numbers += count
        confirm = self.writer.end if confirm_offset is None else confirm_offset
        self.writer.write(confirm_offset=confirm, epochs=epochs, identity=self.identity)
        return self.writer.end


class Query:
    """What Spark does with a reader: batches from where the last one ended, its offsets kept as JSON."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.place: Offset | None = None

    def plan(self, *replicas: Replica | Path) -> tuple[CommitLogStreamReader, Offset, Offset]:
        roots = [replica if isinstance(replica, Path) else replica.writer.root for replica in replicas]
        paths = json.dumps([str(root) for root in roots])
        options = ReadOptions.parse({"paths": paths, **self.options})
        reader = CommitLogStreamReader(options, ["body"], "json")
        start = reader.initialOffset() if self.place is None else self.place
        return reader, start, json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))

    def reader(self, *roots: Path) -> CommitLogStreamReader:
        paths = json.dumps([str(root) for root in roots])
        return CommitLogStreamReader(ReadOptions.parse({"paths": paths, **self.options}), ["body"], "json")

    def batch_of(self, reader: CommitLogStreamReader) -> list[int]:
        """The next batch of a reader that goes on."""
        start = reader.initialOffset() if self.place is None else self.place
        self.place = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
        return self.rows(reader, start, self.place) if self.place != start else []

    def batch(self, *replicas: Replica | Path) -> list[int]:
        reader, start, end = self.plan(*replicas)
        self.place = end
        return self.rows(reader, start, end)

    @staticmethod
    def rows(reader: CommitLogStreamReader, start: Offset, end: Offset) -> list[int]:
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        return sorted(int(row["body"]) for batch in batches for row in batch.to_pylist())


def test_another_replica_goes_on_where_the_query_stood(tmp_path: Path) -> None:
    first, second = Replica(tmp_path / "1", "c#a#1"), Replica(tmp_path / "2", "c#a#2")
    query = Query()
    first.write(30)
    assert query.batch(first) == list(range(30))
    second.write(20)
    before = query.place
    assert query.batch(second) == [] and query.place == before, "a replica that is behind is waited for"
    second.write(30)
    assert query.batch(second) == list(range(30, 50))
    assert query.batch(first) == []


def test_a_batch_under_way_is_not_read_from_a_replica_that_lacks_it(tmp_path: Path) -> None:
    first, second = Replica(tmp_path / "1", "c#a#1"), Replica(tmp_path / "2", "c#a#2")
    first.write(30)
    end = second.write(20)
    query = Query()
    _, start, until = query.plan(first)
    later, *_ = query.plan(second)
    with pytest.raises(
        StoreError, match=rf"can be read up to {end}, and the batch under way goes to {first.writer.end}"
    ):
        query.rows(later, start, until)
    second.write(20)
    assert query.rows(later, start, until) == list(range(30)), "the batch as it was planned"


def test_a_replica_with_another_history_is_refused(tmp_path: Path) -> None:
    first, second = Replica(tmp_path / "1", "c#a#1"), Replica(tmp_path / "2", "c#a#2")
    first.write(30)
    kept = second.write(20)
    query = Query()
    query.batch(first)
    # the second became master in epoch 2, without the first one's last ten
    second.write(5, epochs=f"2\n0\n1-0\n2-{kept}\n")
    sentence = (
        f"{first.writer.end} had been read, of epoch 1 from 0, and now epoch 2 from {kept} wrote those bytes: the "
    )
    with pytest.raises(StoreError, match=sentence + f"log was cut at {kept} and written anew; start a new query"):
        query.batch(second)
    query = Query()
    query.batch(second)
    first.write(5)
    with pytest.raises(StoreError, match="this replica has bytes of epoch 1 there, which the group's log does not"):
        query.batch(first)


def append(store: Store, numbers: range) -> int:
    """Unconfirmed; the end."""
    for number in numbers:
        store.append(message(number, body=b"%d" % number), 1_700_000_000_000 + number)
    store.commit()
    return int(store.max_phy_offset)


def fill(store: Store, numbers: range) -> int:
    """Appends them, all confirmed; the end."""
    end = append(store, numbers)
    commit_all(store)
    return end


@pytest.mark.parametrize("written_anew", [False, True])
def test_a_log_that_is_cut_in_the_middle_of_a_batch_is_told_as_that(tmp_path: Path, written_anew: bool) -> None:
    """By the store of a broker: zeros and missing files behind the cut, and in the end another epoch's records."""
    store, query = open_store(HostDisk(tmp_path)), Query()
    (tmp_path / "brokerIdentity").write_text("c#a#1")
    store.append_epoch(Epoch(1), PhyOffset(0))
    first = fill(store, range(20))
    assert query.batch(tmp_path) == list(range(20))
    cut = fill(store, range(20, 40))
    end = fill(store, range(40, 90))
    reader, start, until = query.plan(tmp_path)
    parts = reader.partitions(start, until)
    store.truncate(PhyOffset(cut))
    told = f"what was read behind {cut} was cut"
    if written_anew:
        store.append_epoch(Epoch(2), PhyOffset(cut))
        fill(store, range(100, 200))
        told = f"from 0, and now epoch 2 from {cut} wrote those bytes: the log was cut at {cut} and written anew"
    assert first < cut < end < store.max_phy_offset or not written_anew
    with pytest.raises(StoreError, match=f"{end} had been read, of epoch 1.*{told}"):
        for part in parts:
            list(reader.read(part))
    with pytest.raises(StoreError, match=told):
        reader.partitions(start, until)
    query.place = until
    with pytest.raises(StoreError, match=told):
        query.plan(tmp_path)
    anew = [*range(100, 200)] if written_anew else []
    query.place = start
    assert query.batch(tmp_path) == [*range(20, 40), *anew], "what was read before the cut stands"
    assert Query(startingPhysicalOffset=str(cut)).batch(tmp_path) == anew
    store.close()


def test_an_uncommitted_tail_that_is_cut_is_no_ones_loss(tmp_path: Path) -> None:
    """CP: a slave's store has bytes past the confirm offset; another master's come in their place, in the middle of a
    batch. What was read stops at the confirm offset, so the query goes on."""
    store, query = open_store(HostDisk(tmp_path)), Query()
    (tmp_path / "brokerIdentity").write_text("c#a#1")
    store.append_epoch(Epoch(1), PhyOffset(0))
    confirmed = fill(store, range(60))
    tail = append(store, range(60, 90))
    reader, start, until = query.plan(tmp_path)
    parts = reader.partitions(start, until)
    assert [place["physicalOffset"] for place in until.values()] == [confirmed] and tail > confirmed
    reads = [batch for part in parts[:1] for batch in reader.read(part)]
    store.truncate(PhyOffset(confirmed))
    store.append_epoch(Epoch(2), PhyOffset(confirmed))
    append(store, range(100, 110))
    reads += [batch for part in parts[1:] for batch in reader.read(part)]
    assert sorted(int(row["body"]) for batch in reads for row in batch.to_pylist()) == list(range(60))
    query.place = until
    assert query.batch(tmp_path) == [], "what took the tail's place is not committed either"
    commit_all(store)
    assert query.batch(tmp_path) == list(range(100, 110))
    store.close()


def test_a_confirm_offset_that_was_put_back_is_no_cut(tmp_path: Path) -> None:
    """After kill -9 a broker begins at what it had saved of it; the records are all there."""
    replica, query = Replica(tmp_path / "1", "c#a#1"), Query()
    replica.write(30)
    query.batch(replica)
    shutil.rmtree(tmp_path / "1" / "consumequeue")
    replica.writer.queue_entries.clear()
    replica.write(5, dispatched=False, confirm_offset=500)
    assert query.batch(replica) == []
    replica.writer.write(confirm_offset=replica.writer.end, epochs=ONE_EPOCH, identity="c#a#1")
    assert query.batch(replica) == list(range(30, 35))
    shutil.rmtree(tmp_path / "1")
    replica = Replica(tmp_path / "1", "c#a#1")
    end = replica.write(20)
    with pytest.raises(StoreError, match=rf"ends at {end}, and \d+ had been read, of epoch 1: what was read beh"):
        query.batch(replica)


def test_a_store_without_an_identity_is_known_by_its_path(tmp_path: Path) -> None:
    plain, moved = Replica(tmp_path / "1", ""), Replica(tmp_path / "2", "")
    query = Query()
    plain.write(10)
    query.batch(plain)
    moved.write(20)
    with pytest.raises(UsageError, match=rf"the query has read {tmp_path / '1'} and is to read {tmp_path / '2'} now"):
        query.batch(moved)
    plain.identity = "c#a#1"
    plain.write(10)
    assert query.batch(plain) == list(range(10, 20)), "its broker has joined a group since"


def test_stores_may_be_added_and_left_out(tmp_path: Path) -> None:
    a, b = Replica(tmp_path / "a", "c#a#1"), Replica(tmp_path / "b", "c#b#1")
    query = Query()
    a.write(10)
    b.write(5)
    assert query.batch(a) == list(range(10))
    assert query.batch(a, b) == list(range(5))
    assert query.batch(b) == []
    a.writer.root = tmp_path / "a2"
    a.write(5)
    assert query.batch(b, a) == list(range(15)), "it was left out meanwhile: from its begin"


def test_a_query_by_starting_timestamp_begins_there(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, FILE_BYTES)
    at_ms = 1_700_000_000_000
    for number in range(1000):
        writer.append(Message(body=b"%d" % number, queue_offset=number, stored_at_ms=at_ms + number * 60_000))
    writer.write(confirm_offset=writer.end)
    query = Query(startingTimestamp=str(at_ms + 900 * 60_000), endingTimestamp=str(at_ms + 950 * 60_000))
    _, start, _ = query.plan(tmp_path)
    (place,) = start.values()
    assert writer.end * 0.85 < int(place["physicalOffset"] or 0) < writer.end * 0.95
    assert query.batch(tmp_path) == list(range(900, 950))


def test_a_query_over_several_replicas_goes_on_when_one_is_gone(tmp_path: Path) -> None:
    one, two = Replica(tmp_path / "1", "c#a#1"), Replica(tmp_path / "2", "c#a#2")
    one.write(5)
    two.write(3)
    query = Query()
    roots = [one.writer.root, two.writer.root]
    reader = query.reader(*roots)
    assert query.batch_of(reader) == [0, 1, 2, 3, 4]
    two.write(6)
    assert query.batch_of(reader) == [5, 6, 7, 8]
    shutil.rmtree(two.writer.root)
    assert query.batch_of(reader) == [], "the other one is behind: it is waited for"
    one.write(6)
    assert query.batch_of(reader) == [9, 10]
    shutil.rmtree(one.writer.root)
    with pytest.raises(UsageError, match="no such directory"):
        query.batch_of(reader)


def test_a_replica_of_another_history_is_not_read_from(tmp_path: Path) -> None:
    one, two = Replica(tmp_path / "1", "c#a#1"), Replica(tmp_path / "2", "c#a#2")
    one.write(5)
    cut = two.write(2)
    query = Query()
    reader = query.reader(one.writer.root, two.writer.root)
    assert query.batch_of(reader) == [0, 1, 2, 3, 4]
    two.write(20, epochs=f"2\n0\n1-0\n2-{cut}\n")
    one.write(1)
    assert query.batch_of(reader) == [5]


def test_a_batch_waits_for_enough_messages_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100]
    monkeypatch.setattr("rmqha.spark.stream.time.monotonic_ns", lambda: now_s[0] * 10**9)
    one = Replica(tmp_path, "c#a#1")
    one.write(0)
    query = Query(minOffsetsPerTrigger="4", maxTriggerDelay="30s")
    reader = query.reader(tmp_path)
    for count, found in ((3, []), (1, [0, 1, 2, 3]), (2, []), (0, [])):
        one.write(count)
        assert query.batch_of(reader) == found
    now_s[0] += 31
    assert query.batch_of(reader) == [4, 5]
    one.write(1)
    assert query.batch_of(reader) == []


def test_behind_tells_the_bytes_that_are_still_to_be_read() -> None:
    def source(end: object, latest: object) -> dict[str, object]:
        return {"endOffset": end, "latestOffset": latest}

    read_to = {"c#a": {"physicalOffset": 100}, "c#b": {"physicalOffset": 7}}
    now = {"c#a": {"physicalOffset": 400}, "c#b": {"physicalOffset": 7}, "c#new": {"physicalOffset": 50}}
    given = [source(json.dumps(read_to), json.dumps(now)), source(None, None), source("0", "9"), source(read_to, now)]
    assert behind({"sources": given[:3]}) == {"c#a": 300, "c#b": 0, "c#new": 50}
    assert behind({"sources": given}) == {"c#a": 600, "c#b": 0, "c#new": 100}, "two sources of one query add up"
    assert behind({}) == {}


def test_a_stream_has_the_messages_of_inner_batches(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.append(Message(body=b"0"))
    inner = b"".join(struct.pack(">iiiii", 23, 0, 0, number, 1) + b"%d\0\0" % number for number in (1, 2, 3))
    writer.append(Message(body=inner, queue_offset=1, sys_flag=0xC0, properties=b"INNER_NUM\x013\x02"))
    writer.write(confirm_offset=writer.end)
    assert Query().batch(tmp_path) == [0, 1, 2, 3]
