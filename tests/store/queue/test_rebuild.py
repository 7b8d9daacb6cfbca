"""Queues made in bulk are the queues that dispatch makes, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.sim.disk import SimDisk
from rmqha.store import store as store_module
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import NewMessage, encode
from rmqha.store.queue import bulk
from rmqha.store.queue import rebuild as rebuild_module
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.queue.dispatch_cache import DispatchCache
from rmqha.store.queue.dispatch_service import DispatchService
from rmqha.store.queue.rebuild import rebuild
from tests.store.support import HOST, SMALL, commit_all, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

LOG_FILE_BYTES = 8192
QUEUE_FILE_BYTES = 400
V6 = (bytes(range(16)), 10911)


@dataclass
class Entry:
    """A message and how far its queue offset is from the one that its queue expects."""

    message: NewMessage
    skip: int


TAGS = st.one_of(
    st.sampled_from([b"", b"a", b"TagA", b"t" * 255, b"t" * 256, "\u00fc\U0001f600".encode(), b"T" * 9]),
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\1", b"").replace(b"\2", b"")),
)


def properties_with(tags: bytes, form: int) -> bytes:
    return (
        b"TAGS\1" + tags + b"\2KEYS\1k\2",
        b"UNIQ_KEY\1A0\2TAGS\1" + tags,
        b"TAGS\1first\2TAGS\1" + tags + b"\2",
        b"XTAGS\1no\2A\1TAGS\2",
        b"TAGS\2TAGS",
        b"",
        b"DELAY\0013\2TAGS\1" + tags + b"\2",
    )[form]


MESSAGES = st.builds(
    message,
    topic=st.sampled_from(["T", "Topic-8b", "%RETRY%group", "U" * 200, "T\0", "T\0\0", "../../up", "BATCH"]),
    queue_id=st.integers(0, 2),
    body=st.one_of(st.binary(max_size=60), st.just(b"TAGS\1x\2" * 30), st.just(b"z" * 2000)),
    properties=st.builds(properties_with, TAGS, st.integers(0, 6)),
    sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
    born_host=st.sampled_from([HOST, V6]),
    store_host=st.sampled_from([HOST, V6]),
)
ENTRIES = st.lists(st.builds(Entry, MESSAGES, st.sampled_from([0, 0, 0, 0, 3, -1])), min_size=1, max_size=40)


def field_of(topic: str) -> tuple[bytes, int]:
    """Also for topics that the store refuses."""
    name = topic.encode()
    return (bytes((len(name),)) + name, 1) if len(name) <= 127 else (len(name).to_bytes(2, "big") + name, 2)


def log_of(entries: list[Entry], first_offset: int = 0) -> CommitLog:
    log = CommitLog(sim_disk(), LOG_FILE_BYTES)
    log.start_at(0)
    following: dict[tuple[str, int], int] = {}
    for number, entry in enumerate(entries):
        field, version = field_of(entry.message.topic)
        key = (entry.message.topic, entry.message.queue_id)
        queue_offset = max(0, following.get(key, first_offset) + entry.skip)
        following[key] = queue_offset + 1
        size = len(encode(entry.message, field, version, 0, 0, 0))
        log.append(encode(entry.message, field, version, queue_offset, log.room_for(size), number // 3))
    return log


@dataclass
class Made:
    """Queues made from a log, by one way or the other."""

    disk: SimDisk
    service: DispatchService
    trace: RecordingTracer
    failed: str = ""

    def content(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for topic in self.disk.list("consumequeue"):
            for queue_id in self.disk.list(f"consumequeue/{topic}"):
                for name in self.disk.list(f"consumequeue/{topic}/{queue_id}"):
                    path = f"consumequeue/{topic}/{queue_id}/{name}"
                    found[path] = self.disk.read(path)
        return found


def made(log: CommitLog, end_offset: int, *, in_bulk: bool) -> Made:
    disk, trace = sim_disk(), RecordingTracer()
    queues = ConsumeQueues(disk, QUEUE_FILE_BYTES, trace)
    queues.batch_topics = frozenset(["BATCH"])
    result = Made(disk, DispatchService(log, [queues], DispatchCache(), trace), trace)
    try:
        if in_bulk:
            rebuild(log, queues, result.service, end_offset)
        while result.service.dispatch(end_offset, 1 << 20):
            continue
    except StoreError as error:
        result.failed = str(error)
    return result


def check_same(log: CommitLog, end_offset: int) -> None:
    one, other = (made(log, end_offset, in_bulk=in_bulk) for in_bulk in (False, True))
    assert other.content() == one.content()
    assert other.service.position == one.service.position
    assert other.service.last_store_timestamp_ms == one.service.last_store_timestamp_ms
    unqueued = [[fields for name, fields in way.trace.events if name == "topic_not_queued"] for way in (one, other)]
    assert unqueued[0] == unqueued[1]


@given(ENTRIES, st.sampled_from([1, 3, 1000]), st.integers(0, 50), st.sampled_from([0, 40, 512]))
def test_the_same_bytes(entries: list[Entry], piece_count: int, first_offset: int, gathered_bytes: int) -> None:
    log = log_of(entries, first_offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild_module, "PIECE_COUNT", piece_count)
        patch.setattr(rebuild_module, "MAX_GATHERED_BYTES", gathered_bytes)
        check_same(log, log.end_offset)


@given(ENTRIES, st.integers(0, 20_000))
def test_it_stops_before_a_record_that_is_not_whole(entries: list[Entry], end_offset: int) -> None:
    log = log_of(entries)
    check_same(log, min(end_offset, log.end_offset))


@given(ENTRIES, st.integers(0, 20_000), st.binary(min_size=1, max_size=8))
def test_bytes_that_are_no_record_are_left_to_dispatch(entries: list[Entry], position: int, junk: bytes) -> None:
    log = log_of(entries)
    position = min(position, log.end_offset - 1)
    file = log.files.find(position)
    assert file is not None
    at = position - file.start_offset
    file.region.write(at, junk[: LOG_FILE_BYTES - at])
    one, other = (made(log, log.end_offset, in_bulk=in_bulk) for in_bulk in (False, True))
    assert other.failed == one.failed
    if not one.failed:
        assert other.content() == one.content()


def test_ordinary_records_need_no_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of([Entry(message(number, queue_id=number % 3, properties=b"TAGS\1a\2"), 0) for number in range(200)])
    monkeypatch.setattr(DispatchService, "dispatch", lambda *given: pytest.fail("the plain way was taken"))
    queues = ConsumeQueues(sim_disk(), QUEUE_FILE_BYTES, RecordingTracer())
    service = DispatchService(log, [queues], DispatchCache(), RecordingTracer())
    rebuild(log, queues, service, log.end_offset)
    assert service.position == log.end_offset
    assert [queue.max_offset for queue in queues] == [67, 67, 66]


def test_a_store_without_queues_makes_them_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number in range(60):
        store.append(message(number, queue_id=number % 2, body=b"x" * 500), number)
    commit_all(store)
    store.close()
    paths = [f"consumequeue/T/{queue_id}/{0:020d}" for queue_id in (0, 1)]
    images = [disk.read(path) for path in paths]
    for path in paths:
        disk.remove(path)
    monkeypatch.setattr(store_module, "REBUILD_BYTES", SMALL.mapped_file_size_commit_log)
    taken: list[int] = []

    def counted(log: CommitLog, queues: ConsumeQueues, service: DispatchService, end_offset: int) -> None:
        taken.append(end_offset)
        rebuild(log, queues, service, end_offset)

    monkeypatch.setattr(rebuild_module, "rebuild", counted)
    store = open_store(disk)
    assert taken == [store.max_phy_offset]
    assert [disk.read(path) for path in paths] == images
    assert store.append(message(60), 60).queue_offset == 30


def test_a_slave_that_copies_dispatches_in_bulk_and_the_rest_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BULK_BYTES", 5000)
    log = log_of([Entry(message(number, queue_id=number % 3, properties=b"TAGS\1a\2"), 0) for number in range(300)])
    plain = made(log, log.end_offset, in_bulk=False)
    disk, positions = sim_disk(), [0]
    queues = ConsumeQueues(disk, QUEUE_FILE_BYTES, RecordingTracer())
    slow = DispatchService(log, [queues], DispatchCache(), RecordingTracer())
    one_by_one: list[int] = []
    plain_way = slow.dispatch

    def counted(end_offset: int, limit_bytes: int) -> bool:
        one_by_one.append(slow.position)
        return plain_way(end_offset, limit_bytes)

    monkeypatch.setattr(slow, "dispatch", counted)
    for end_offset, limit_bytes in ((log.end_offset - 4000, 20_000), (log.end_offset, 1000)):
        while bulk.dispatch(log, queues, slow, end_offset, limit_bytes):
            positions.append(slow.position)
    assert slow.position == log.end_offset
    assert Made(disk, slow, RecordingTracer()).content() == plain.content()
    in_bulk = [high - low for low, high in pairwise(positions) if low not in one_by_one]
    assert len(in_bulk) > 1
    assert max(in_bulk) <= 20_000
    assert len(one_by_one) > 3
    assert all(log.end_offset - at < 4000 + 5000 for at in one_by_one)


def test_slices_that_are_small_are_never_made_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy takes a while to be imported: a master that serves, with its small slices, is not to wait for that."""
    monkeypatch.setattr(rebuild_module, "rebuild", lambda *given: pytest.fail("in bulk"))
    log = log_of([Entry(message(number, body=b"x" * 2000), 0) for number in range(700)])
    assert log.end_offset > bulk.BULK_BYTES
    queues = ConsumeQueues(sim_disk(), QUEUE_FILE_BYTES, RecordingTracer())
    service = DispatchService(log, [queues], DispatchCache(), RecordingTracer())
    while bulk.dispatch(log, queues, service, log.end_offset, bulk.BULK_BYTES // 2):
        pass
    assert service.position == log.end_offset
