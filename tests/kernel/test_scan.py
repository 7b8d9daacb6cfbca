"""Blocks of a log: both kernels find the same records, and dispatch by blocks leaves what dispatch by records does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.kernel.batch_kernel import NEW_ENTRY, BatchKernel, LogBlock, Scanned
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.sim.disk import SimDisk
from rmqha.store.log.record import NewMessage, decode
from rmqha.store.queue.dispatch_service import MAX_MADE_COUNT
from rmqha.store.store import Store
from tests.fuzz.budget import fuzz
from tests.kernel.support import KERNELS, kernel_named
from tests.simulation.kernels import Counting
from tests.store.support import HOST, SMALL, commit_all, log_bytes, message, sim_disk
from tests.support.tracer import RecordingTracer

LARGE = replace(SMALL, mapped_file_size_commit_log=1 << 20)
V6 = (bytes(range(16)), 7)
PROPERTIES = [
    b"KEYS\x01a b\x02TAGS\x01x\x02",
    b"TAGS\x01first\x02TAGS\x01last",
    b"TAGS\x01\xc3\xbc\x02",
    b"TAGS\x01\x02",
    b"xTAGS\x01no\x02",
    b"any\xff\x01bytes\x02TAGS\x01y",
    b"",
]
messages = st.builds(
    lambda topic, queue_id, properties, flag, hosts, body: message(
        topic=topic,
        queue_id=queue_id,
        properties=properties,
        sys_flag=flag,
        body=body,
        born_host=V6 if hosts[0] else HOST,
        store_host=V6 if hosts[1] else HOST,
    ),
    st.sampled_from(["T", "T", "T", "U", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "L" * 130]),
    st.integers(0, 3),
    st.sampled_from(PROPERTIES),
    st.sampled_from([0, 0, 0, 0, 1, 0x103, 4, 8, 0xC]),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([b"b", b"x" * 300]),
)


def opened(kernel: BatchKernel | None = None) -> Store:
    return Store.open(sim_disk(), LARGE, RecordingTracer(), process_id=4711, kernel=kernel)


def log_of(items: Iterable[NewMessage]) -> bytes:
    store = opened()
    for number, item in enumerate(items):
        store.append(item, 1_000 + number // 3)
    return log_bytes(store)


@cache
def _log() -> bytes:
    return log_of(
        message(number, queue_id=number % 3, properties=PROPERTIES[number % 2], born_host=V6 if number % 5 else HOST)
        for number in range(40)
    )


def starts(log: bytes) -> list[int]:
    found = [0]
    while found[-1] < len(log):
        found.append(found[-1] + decode(memoryview(log), found[-1]).size_bytes)
    return found


class Both:
    """Both kernels, which keep what they keep from call to call."""

    def __init__(self) -> None:
        self._python, self._native = PythonKernel(), kernel_named("native")

    def scan(self, data: bytes, phy_offset: int, max_count: int = 1000, max_run_count: int = 16) -> Scanned:
        block = LogBlock(data, phy_offset, max_count, max_run_count)
        expected, found = (kernel.scan(block) for kernel in (self._python, self._native))
        assert found == expected, block
        block = block._replace(is_keyed=False)
        for kernel in (self._python, self._native):
            assert kernel.scan(block) == expected._replace(entries=b"")
        return found


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


@fuzz
@given(st.lists(messages, min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 4), st.integers(0, 4000))
def test_both_find_the_same(both: Both, items: list[NewMessage], max_count: int, max_run_count: int, size: int) -> None:
    log = log_of(items)
    for start in starts(log)[:-1]:
        both.scan(log[start:], start)
        both.scan(log[start : start + size], start, max_count, max_run_count)


def test_plain_records_are_found(both: Both) -> None:
    log = _log()
    found = both.scan(log, 0)
    assert found.bounds == starts(log)
    assert [(run.queue_id, run.first_offset, run.unit_count) for run in found.runs] == [
        (0, 0, 14),
        (1, 0, 13),
        (2, 0, 13),
    ]
    keys = [entry[1] for entry in NEW_ENTRY.iter_unpack(found.entries)]
    assert sorted(set(keys)) == starts(log)[:-1] and len(keys) == 20 * 3 + 20, "a, b and x of each second record"
    assert both.scan(log, 5).entries == b""


def test_damaged_records(both: Both) -> None:
    log, random = _log(), Random(1)
    places = starts(log)
    for first, second in pairwise(places[:3]):
        for at in range(first, second):
            for byte in (0, 1, 0x7F, 0x80, 0xFF, log[at] ^ 1):
                both.scan(log[first:at] + bytes((byte,)) + log[at + 1 : places[5]], first)
    for _ in range(3000):
        data, start = bytearray(log), random.choice(places[:-1])
        for _ in range(random.randint(1, 3)):
            data[random.randrange(start, len(data))] = random.randrange(256)
        both.scan(bytes(data[start:]), start)


@fuzz
@given(st.binary(max_size=400), st.integers(-(1 << 63), (1 << 63) - 1))
def test_bytes_of_any_kind(both: Both, data: bytes, phy_offset: int) -> None:
    both.scan(data, phy_offset)


# --- dispatch -------------------------------------------------------------------------------------------------------
def left_behind(log: bytes, ends: Sequence[int], kernel: BatchKernel | None, limit: int) -> dict[str, bytes]:
    """The files of queues and index of a slave that has got `log`, and committed up to each of `ends`."""
    store = opened(kernel)
    store.append_raw(store.max_phy_offset, log)
    return _left_by(store, [*ends, len(log)], limit)


def _left_by(store: Store, ends: Sequence[int], limit: int) -> dict[str, bytes]:
    for end in ends:
        store.set_confirm_offset(type(store.max_phy_offset)(end))
        while store.dispatch(limit):
            pass
    commit_all(store)
    while store.index.build(limit):
        pass
    store.close()
    disk = store._disk
    assert isinstance(disk, SimDisk)
    wanted = [path for path in disk.paths() if path.startswith(("consumequeue/", "index/"))]
    return {path: bytes(disk.read(path)) for path in wanted}


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=30, deadline=None)
@given(
    items=st.lists(messages, min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 10_000), max_size=3),
    limit=st.sampled_from([1, 700, 1 << 20]),
)
def test_dispatch_by_blocks_leaves_the_same(kernel: str, items: list[NewMessage], cuts: list[int], limit: int) -> None:
    log = log_of(items)
    ends = sorted(cut % (len(log) + 1) for cut in cuts)
    assert left_behind(log, ends, kernel_named(kernel), limit) == left_behind(log, ends, None, limit)


def _left_by_a_master(
    items: list[NewMessage], sizes: Sequence[int], ends: Sequence[int], kernel: BatchKernel | None, limit: int
) -> dict[str, bytes]:
    """As `left_behind`, of a master that has appended `items`, so many of them at once."""
    store, first = opened(kernel), 0
    for size in [*sizes, len(items)]:
        if part := items[first : first + size]:
            store.append_encoded(store.encode_batch(part), 1_000 + first)
        first += size
    end = store.max_phy_offset
    return _left_by(store, [*sorted(item % (end + 1) for item in ends), end], limit)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=30, deadline=None)
@given(
    items=st.lists(messages, min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 9), max_size=4),
    ends=st.lists(st.integers(0, 10_000), max_size=3),
    limit=st.sampled_from([1, 700, 1 << 20]),
)
def test_what_is_appended_together_is_dispatched_as_if_it_was_read(
    kernel: str, items: list[NewMessage], sizes: list[int], ends: list[int], limit: int
) -> None:
    found, expected = (_left_by_a_master(items, sizes, ends, kind, limit) for kind in (kernel_named(kernel), None))
    assert found == expected


def test_plain_records_that_are_appended_together_are_looked_at_once() -> None:
    asked = Counting(kernel_named("native"))
    plain = [message(number, queue_id=number % MAX_MADE_COUNT) for number in range(40)]
    assert _left_by_a_master(plain, [], [], asked, 1 << 20) == _left_by_a_master(plain, [], [], None, 1 << 20)
    assert asked.scanned_count == 40, "neither the queues nor the index look at them again"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_slave_s_records_are_dispatched_in_blocks(kernel: str) -> None:
    asked = Counting(kernel_named(kernel))
    log = log_of(message(number, queue_id=number % MAX_MADE_COUNT) for number in range(40))
    assert left_behind(log, [], asked, 1 << 20) == left_behind(log, [], None, 1 << 20)
    assert asked.scanned_count == 2 * 40, "by the queues and by the index"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_block_of_many_queues_that_are_there_is_found_at_once(kernel: str) -> None:
    """The bound on new queues says nothing of those that have their files."""
    log = log_of(message(number, queue_id=number % 20) for number in range(200))
    middle = starts(log)[100]
    asked = Counting(kernel_named(kernel))
    store = opened(asked)
    for first, end in ((0, middle), (middle, len(log))):
        asked.scan_count = 0
        store.append_raw(store.max_phy_offset, log[first:end])
        commit_all(store)
    assert store.queue_range("T", 19) == (0, 10)
    assert asked.scan_count <= 4
    store.close()
