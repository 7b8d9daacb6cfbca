"""A slave reads a block of its master's log once, for the queues: the index finds its keys with it, and only then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import pytest

from rmqha.kernel.batch_kernel import LogBlock, Scanned
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.error import StoreError
from rmqha.model.message import SYS_FLAG_TRANSACTION_PREPARED
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.queue import dispatch_cache
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.store import Store
from tests.store.support import MINI, bodies, commit_all, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer


class CountingKernel(PythonKernel):
    """Notes where it has scanned."""

    def __init__(self) -> None:
        super().__init__()
        self.scans: list[tuple[int, bool]] = []

    def scan(self, block: LogBlock) -> Scanned:
        self.scans.append((block.phy_offset, block.is_keyed))
        return super().scan(block)


@pytest.fixture
def kernel() -> CountingKernel:
    return CountingKernel()


@pytest.fixture
def slave(kernel: CountingKernel) -> Iterator[Store]:
    store = Store.open(sim_disk(2), MINI, RecordingTracer(), process_id=4711, kernel=kernel)
    yield store
    store.close()


def masters_log(numbers: Iterable[int]) -> bytes:
    master = open_store(sim_disk(), MINI)
    for number in numbers:
        master.append(message(number), number)
    return log_bytes(master)


def take(slave: Store, data: bytes) -> None:
    assert slave.append_raw(slave.max_phy_offset, data[slave.max_phy_offset :]) == ""


def build(slave: Store) -> None:
    while slave.index.build(1 << 20):
        pass


def found(slave: Store, count: int) -> list[int]:
    """The numbers below `count` that the index finds."""
    return [number for number in range(count) if slave.index.query("T", f"{number}").records]


def test_the_index_reads_nothing_that_the_queues_have_read(slave: Store, kernel: CountingKernel) -> None:
    for count in 5, 10, 15:
        take(slave, masters_log(range(count)))
        commit_all(slave)
        build(slave)
        assert found(slave, 15) == list(range(count))
        if count == 5:
            kernel.scans.clear()  # it did not know yet how far the index is
    assert len(kernel.scans) == 2 and all(is_keyed for _, is_keyed in kernel.scans)


def test_an_index_that_is_behind_reads_the_log_and_is_passed_no_keys(slave: Store, kernel: CountingKernel) -> None:
    take(slave, masters_log(range(5)))
    commit_all(slave)
    take(slave, masters_log(range(10)))
    commit_all(slave)
    assert not any(is_keyed for _, is_keyed in kernel.scans)
    build(slave)
    assert found(slave, 10) == list(range(10))


def test_a_record_that_is_no_plain_one_between(slave: Store) -> None:
    master = open_store(sim_disk(), MINI)
    for number in range(12):
        master.append(message(number, sys_flag=SYS_FLAG_TRANSACTION_PREPARED if number % 4 == 2 else 0), number)
        take(slave, log_bytes(master))
        commit_all(slave)
        if number % 3:
            build(slave)
    build(slave)
    assert found(slave, 12) == list(range(12))


def test_after_a_cut_the_index_has_the_keys_of_the_new_bytes(slave: Store) -> None:
    """The new records are as long as those in whose place they stand."""
    old, new = masters_log(range(10, 20)), masters_log([*range(10, 15), *range(75, 80)])
    cut_at = PhyOffset(len(masters_log(range(10, 15))))
    take(slave, old[:cut_at])
    commit_all(slave)
    build(slave)
    take(slave, old)
    commit_all(slave)
    slave.truncate(cut_at)
    take(slave, new)
    commit_all(slave)
    build(slave)
    assert found(slave, 90) == [*range(10, 15), *range(75, 80)]


def test_a_dispatch_that_fails_and_is_done_again_passes_its_blocks_once(
    slave: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(slave, masters_log(range(5)))
    commit_all(slave)
    build(slave)
    take(slave, masters_log(range(10)))
    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueues, "write", _no_disk)
        with pytest.raises(StoreError):
            commit_all(slave)
    assert not slave.index.behind_bytes
    commit_all(slave)
    build(slave)
    assert found(slave, 10) == list(range(10))
    assert slave.index.files.end_offset < slave.max_phy_offset
    assert _entry_count(slave) == 10


def _no_disk(_: ConsumeQueues) -> None:
    raise StoreError("no disk")


def _entry_count(slave: Store) -> int:
    return sum(file.header.index_count - 1 for file in slave.index.files._files)


@pytest.mark.parametrize("max_count", [0, 3, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_blocks_dispatches_builds_and_cuts(
    monkeypatch: pytest.MonkeyPatch, seed: int, max_count: int
) -> None:
    """The index has what one has that reads all of the log at its end."""
    monkeypatch.setattr(dispatch_cache, "MAX_COUNT", max_count)
    random = Random(seed)
    disk: SimDisk = sim_disk(seed)
    slave = Store.open(disk, MINI, RecordingTracer(), process_id=4711, kernel=PythonKernel())
    master = open_store(sim_disk(), MINI)
    kept = [PhyOffset(0)]
    for number in range(60):
        sys_flag = SYS_FLAG_TRANSACTION_PREPARED if random.random() < 0.1 else 0
        kept.append(master.append(message(number, queue_id=number % 2, sys_flag=sys_flag), number).end_offset)
        if random.random() < 0.5:
            take(slave, log_bytes(master))
        if random.random() < 0.4:
            slave.set_confirm_offset(slave.max_phy_offset)
            slave.dispatch(random.choice([1, 300, 1 << 20]))
        if random.random() < 0.3:
            slave.index.build(random.choice([1, 300, 1 << 20]))
        if random.random() < 0.1:
            end = random.choice([offset for offset in kept if offset <= slave.max_phy_offset])
            slave.truncate(end)
    take(slave, log_bytes(master))
    commit_all(slave)
    build(slave)
    whole = Store.open(sim_disk(seed + 100), MINI, RecordingTracer(), process_id=4711)
    take(whole, log_bytes(master))
    commit_all(whole)
    build(whole)
    assert [bodies(slave, queue_id=queue) for queue in (0, 1)] == [bodies(whole, queue_id=queue) for queue in (0, 1)]
    assert found(slave, 60) == found(whole, 60)
    assert _entry_count(slave) == _entry_count(whole)
