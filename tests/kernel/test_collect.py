"""What a pull collects: both kernels find the same records, and a reader with one gives what a reader without gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.kernel.batch_kernel import BatchKernel, Collected, PulledUnits
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.error import StoreError
from rmqha.model.message import tags_code
from rmqha.sim.disk import SimDisk
from rmqha.store.queue.consume_queue import PREFILL, UNIT
from rmqha.store.reader import NO_DISK_LIMITS, DiskLimits, PullResult
from rmqha.store.store import Store
from tests.fuzz.budget import fuzz
from tests.kernel.support import KERNELS, kernel_named
from tests.kernel.test_scan import V6
from tests.store.support import HOST, SMALL, commit_all, log_bytes, message, sim_disk
from tests.support.tracer import RecordingTracer

COUNT = 40
MANY = 1 << 40
CODES: tuple[frozenset[int] | None, ...] = (
    None,
    frozenset(),
    frozenset({tags_code("a")}),
    frozenset({tags_code("a"), tags_code("b"), 0}),
)


def filled(kernel: BatchKernel | None, file_bytes: int = 1 << 20, *, crc: bool = False) -> Store:
    """Forty messages of two queues, dispatched."""
    config = replace(SMALL, mapped_file_size_commit_log=file_bytes, enabled_append_prop_crc=crc)
    store = Store.open(sim_disk(), config, RecordingTracer(), kernel=kernel)
    for number in range(COUNT):
        tags = (b"", b"TAGS\x01a\x02", b"TAGS\x01b\x02TAGS\x01c")[number % 3]
        new = message(
            number,
            topic="T" if number % 4 else "L" * 130,
            properties=tags,
            body=bytes((number,)) * (number * 7 % 90),
            born_host=V6 if number % 5 == 0 else HOST,
        )
        store.append(new, 1_000 + number)
    commit_all(store)
    return store


class Both:
    """Both kernels, which keep what they keep from call to call."""

    def __init__(self) -> None:
        self._python, self._native = PythonKernel(), kernel_named("native")

    def collect(self, data: bytearray | bytes, start: int, pulled: PulledUnits) -> Collected:
        views = memoryview(data), pulled
        expected, found = (kernel.collect(views[0], start, pulled) for kernel in (self._python, self._native))
        assert found == expected, pulled
        return found


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


def units_of(store: Store, topic: str = "T") -> bytes:
    return b"".join(UNIT.pack(*unit) for unit in store._reader.units(topic, 0, 0, COUNT))


def pulled(units: bytes, topic: bytes = b"T") -> PulledUnits:
    return PulledUnits(memoryview(units), topic, 0, 0, COUNT, MANY, 0, 0, 0, None)


@fuzz
@given(
    max_count=st.integers(1, 50),
    max_bytes=st.integers(0, 4000),
    disk=st.tuples(st.integers(0, 6000), st.integers(0, 10), st.integers(0, 2000)),
    codes=st.sampled_from(CODES),
    size=st.integers(0, 8000),
    start=st.sampled_from([0, 0, 0, 1, -8]),
    gap=st.booleans(),
)
def test_both_collect_the_same(
    both: Both,
    max_count: int,
    max_bytes: int,
    disk: tuple[int, int, int],
    codes: frozenset[int] | None,
    size: int,
    start: int,
    gap: bool,
) -> None:
    store = filled(None)
    log, units = log_bytes(store)[:size], units_of(store)
    if gap:
        units = units[:60] + PREFILL + units[80:]
    for data in (log, bytearray(log)):
        both.collect(data, start, PulledUnits(memoryview(units), b"T", 0, 0, max_count, max_bytes, *disk, codes))


def test_damaged_records_and_entries(both: Both) -> None:
    store, random = filled(None), Random(1)
    log, units = log_bytes(store), units_of(store)
    assert both.collect(log, 0, pulled(units))[1:3] == (30, 30)
    assert len(both.collect(log, 0, pulled(units_of(store, "L" * 130), b"L" * 130)).runs) == 10
    for _ in range(4000):
        damaged_log, damaged_units = bytearray(log), bytearray(units)
        for _ in range(random.randint(1, 3)):
            damaged_log[random.randrange(len(log))] = random.choice((0, 1, 0x5F, 0x7F, 0x80, 0xFF))
        if random.randrange(4) == 0:
            damaged_units[random.randrange(len(units))] = random.randrange(256)
        both.collect(damaged_log, 0, pulled(bytes(damaged_units)))


@fuzz
@given(st.binary(max_size=300), st.binary(max_size=60), st.integers(-(1 << 62), 1 << 62))
def test_bytes_of_any_kind(both: Both, data: bytes, units: bytes, start: int) -> None:
    both.collect(data, start, pulled(units[: len(units) - len(units) % 20]))


# --- a reader -------------------------------------------------------------------------------------------------------
def given_by(
    store: Store, offset: int, bounds: tuple[int, int], codes: frozenset[int] | None, on_disk: DiskLimits
) -> PullResult | str:
    try:
        return store.pull("T", 0, offset, *bounds, codes, None, on_disk)
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=60, deadline=None)
@given(
    offset=st.integers(0, 31),
    max_count=st.integers(1, 40),
    max_bytes=st.integers(1, 5000),
    codes=st.sampled_from(CODES),
    disk=st.sampled_from([NO_DISK_LIMITS, DiskLimits(3000, 2, 400), DiskLimits(MANY, 0, 0)]),
    file_bytes=st.sampled_from([1024, 1 << 20]),
    crc=st.booleans(),
    damaged_at=st.none() | st.integers(0, 3000),
)
def test_a_pull_gives_the_same(
    kernel: str,
    offset: int,
    max_count: int,
    max_bytes: int,
    codes: frozenset[int] | None,
    disk: DiskLimits,
    file_bytes: int,
    crc: bool,
    damaged_at: int | None,
) -> None:
    stores = [filled(each, file_bytes, crc=crc) for each in (None, kernel_named(kernel))]
    if damaged_at is not None:
        for store in stores:
            assert isinstance(store._disk, SimDisk)
            store._disk.rot(f"commitlog/{store._log.file_start(damaged_at):020}", damaged_at % file_bytes, 0x41)
    expected, found = (given_by(store, offset, (max_count, max_bytes), codes, disk) for store in stores)
    assert found == expected
    if not isinstance(found, str):
        joined = stores[1].pull("T", 0, offset, max_count, max_bytes, codes, None, disk, joined=True)
        assert b"".join(joined.records) == b"".join(found.records)
        assert joined._replace(records=found.records) == found
        assert found.record_count == len(found.records)


def test_records_that_follow_each_other_are_one_view() -> None:
    store = Store.open(sim_disk(), SMALL, RecordingTracer(), kernel=PythonKernel())
    for number in range(24):
        store.append(message(number, topic="other" if number == 14 else "T"), 1_000)
    commit_all(store)
    found, joined = store.pull("T", 0, 0, 20, MANY, None), store.pull("T", 0, 0, 20, MANY, None, joined=True)
    assert (len(found.records), found.record_count) == (20, 20)
    assert (len(joined.records), joined.record_count) == (2, 20)
    assert b"".join(joined.records) == b"".join(found.records)
