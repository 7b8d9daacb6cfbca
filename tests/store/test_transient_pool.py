"""transientStorePoolEnable: appends wait in memory until `commit`; nobody knows of them before."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.store.model import LogModel, check_prefix, check_queues
from tests.store.support import SMALL, bodies, commit_all, log_bytes, message, open_store, sim_disk

POOLED = replace(SMALL, transient_store_pool_enable=True)
"""Its pool of 80 KiB is larger than a log file of 4 KiB: it is committed at the end of each file at the latest."""


def pooled(disk: SimDisk | None = None, config: StoreConfig = POOLED) -> Store:
    return open_store(disk or sim_disk(), config)


def test_what_waits_is_not_there_yet() -> None:
    store = pooled()
    first = store.append(message(0), 1)
    second = store.append(message(1), 1)
    assert (first.queue_offset, second.queue_offset, second.phy_offset) == (0, 1, first.end_offset)
    assert store.max_phy_offset == store.record_end_offset == 0
    assert store.uncommitted_bytes == second.end_offset
    assert store.record_at(first.phy_offset) is None
    assert len(store.view(PhyOffset(0), 1 << 20)) == 0
    assert store.sync() == 0
    commit_all(store)
    assert store.queue_range("T", 0) == (0, 0)
    assert not store.commit(everything=False)
    assert store.commit() and not store.commit()
    assert (store.max_phy_offset, store.uncommitted_bytes) == (second.end_offset, 0)
    commit_all(store)
    assert bodies(store) == [b"body-0", b"body-1"]


def test_pages_that_are_worth_a_call_are_written() -> None:
    store = pooled(config=replace(POOLED, mapped_file_size_commit_log=1 << 20, commit_commit_log_least_pages=1))
    while store.uncommitted_bytes < 4096:
        assert not store.commit(everything=False)
        store.append(message(1, body=b"x" * 500), 1)
    assert store.commit(everything=False)
    while store.append(message(1, body=b"x" * 500), 1) and store.uncommitted_bytes:
        assert store.uncommitted_bytes < 5 * 4096
    assert store.max_phy_offset > 5 * 4096


messages = st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 2)), min_size=1, max_size=5)
steps = st.lists(st.tuples(st.sampled_from(["append", "batch", "commit", "dispatch", "roll", "sync"]), messages))


@settings(max_examples=60)
@given(steps=steps)
def test_the_log_is_the_same_with_and_without(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    stores = pooled(), open_store(sim_disk())
    for number, (kind, items) in enumerate(steps):
        new = [message(number, queue_id=queue_id, body=b"z" * size) for size, queue_id in items]
        for store in stores:
            match kind:
                case "append":
                    for item in new:
                        store.append(item, number)
                case "batch":
                    store.append_encoded(store.encode_batch(new), number)
                case "commit":
                    store.commit()
                case "dispatch":
                    commit_all(store)
                case "roll":
                    store.append(new[0], number)
                    store.roll()
                case "sync":
                    store.sync()
        assert stores[0].max_phy_offset <= stores[1].max_phy_offset
        assert stores[0].max_phy_offset + stores[0].uncommitted_bytes == stores[1].max_phy_offset
    stores[0].commit()
    assert log_bytes(stores[0]) == log_bytes(stores[1])
    for store in stores:
        commit_all(store)
    assert stores[0].queues() == stores[1].queues()
    for queue_id in stores[0].queues().get("T", []):
        assert bodies(stores[0], "T", queue_id) == bodies(stores[1], "T", queue_id)


def with_committed(count: int = 3) -> tuple[Store, int]:
    store = pooled()
    for number in range(count):
        store.append(message(number), 1)
    store.commit()
    end = store.max_phy_offset
    store.append(message(99), 1)
    return store, end


def test_a_masters_bytes_a_cut_and_a_new_start_drop_what_waits() -> None:
    other = open_store(sim_disk(2))
    for number in range(4):
        other.append(message(number), 1)
    store, end = with_committed()
    store.append_raw(PhyOffset(end), other.view(PhyOffset(end), 1 << 20))
    assert log_bytes(store) == log_bytes(other)
    assert store.append(message(4), 1).queue_offset == 4

    store, end = with_committed()
    store.truncate(PhyOffset(end))
    assert (store.uncommitted_bytes, store.max_phy_offset) == (0, end)
    assert store.append(message(4), 1).queue_offset == 3

    store, end = with_committed()
    store.restart_at(PhyOffset(8192))
    assert (store.uncommitted_bytes, store.max_phy_offset) == (0, 8192)

    store, end = with_committed()
    store.discard_uncommitted()
    assert store.append(message(5), 1).queue_offset == 3


def test_a_clean_stop_commits() -> None:
    disk = sim_disk()
    store = pooled(disk)
    end = store.append(message(0), 1).end_offset
    store.close()
    store = pooled(disk)
    assert store.max_phy_offset == end


def test_a_disk_that_fails_keeps_it_waiting() -> None:
    disk = sim_disk()
    store = pooled(disk, replace(POOLED, mapped_file_size_commit_log=1 << 20, transient_store_pool_size=1))
    store.append(message(0), 1)
    disk.failing = frozenset({"write"})
    with pytest.raises(StoreError, match="commitlog: cannot append: Input/output error"):
        store.commit()
    with pytest.raises(StoreError, match="cannot append"):
        for number in range(1, 100):
            store.append(message(number, body=b"x" * 1000), 1)
    assert store.max_phy_offset == 0
    disk.failing = frozenset()
    assert store.append(message(number), 1).queue_offset == number
    store.commit()
    commit_all(store)
    assert len(bodies(store)) == number + 1


def a_life(store: Store, model: LogModel, done: dict[str, int]) -> None:
    """Appends that wait, commits, syncs, rolls, a cut. `done` says what is committed and synced."""

    def commit() -> None:
        store.commit()
        done["committed"] = len(model.image)

    for number in range(40):
        new = message(number, queue_id=number % 2, body=b"%d" % number * (100 + number * 13 % 400))
        model.add(new, number * 300)
        store.append(new, number * 300)
        if number % 5 == 4:
            commit()
        if number % 7 == 6:
            done["synced"] = max(done["synced"], store.sync())
        if number % 6 == 5:
            store.set_confirm_offset(store.max_phy_offset)
            store.dispatch(1 << 20)
        if number == 21:
            commit()
            done["synced"] = min(done["synced"], model.ends[-3])
            done["committed"] = model.ends[-3]
            end = model.ends[-3]
            model.cut(end)
            store.truncate(PhyOffset(end))


def lived(disk: SimDisk) -> tuple[LogModel, dict[str, int]]:
    model, done = LogModel(), {"committed": 0, "synced": 0}
    with suppress(DiskStopped):
        a_life(pooled(disk), model, done)
    return model, done


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_every_operation_loses_only_what_waited(power_loss: bool) -> None:
    whole = sim_disk()
    lived(whole)
    in_the_cut = 0
    for stop in range(1, whole.operations + 1):
        disk = sim_disk(stop)
        disk.stop_after = stop
        model, done = lived(disk)
        disk.crash(power_loss=power_loss)
        store = pooled(disk)
        found = log_bytes(store)
        if not model.image.startswith(found):
            in_the_cut += 1  # test_crash.py looks at those
            continue
        check_prefix(store, model, done["synced"] if power_loss else done["committed"])
        model.cut(store.max_phy_offset)
        check_queues(store, model)
        new: NewMessage = message(1000, body=b"n" * 300)
        model.add(new, 10**6)
        store.append(new, 10**6)
        store.commit()
        assert log_bytes(store) == model.image
    assert in_the_cut < whole.operations // 4
