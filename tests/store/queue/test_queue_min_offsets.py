"""A log that was begun behind 0 learns where its idle queues end, and gives none of their offsets again."""

from __future__ import annotations

import pytest

from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.meta import sidecar
from rmqha.store.queue.queue_min_offsets import PATH
from rmqha.store.store import Store
from tests.store.support import bodies, commit_all, filled, message, open_store, sim_disk

START = PhyOffset(40960)


def begun_behind() -> tuple[SimDisk, Store]:
    disk = sim_disk()
    store = open_store(disk)
    store.restart_at(START)
    return disk, store


def test_only_a_log_that_was_begun_behind_0_lacks_them() -> None:
    disk, store = begun_behind()
    assert store.lacks_queue_ends
    store.close()
    store = open_store(disk)
    assert store.lacks_queue_ends, "it survives a restart"
    store.close()
    store = open_store(disk)
    store.restart_at(PhyOffset(0))
    assert store.queue_min_offsets.restart_count == 1
    store.close()
    assert not open_store(disk).lacks_queue_ends
    assert not filled(sim_disk()).lacks_queue_ends


def test_an_idle_queue_goes_on_where_it_ended() -> None:
    disk, store = begun_behind()
    assert store.queue_min_offsets.learn([("T", 0, 936), ("T", 3, 1)]) == 2
    assert not store.lacks_queue_ends
    assert store.queue_range("T", 0) == (936, 936)
    assert store.queues() == {"T": [0, 3]}
    store.close()
    store = open_store(disk)
    assert (store.lacks_queue_ends, store.queue_range("T", 0)) == (False, (936, 936))
    assert store.append(message(1, body=b"first"), 1).queue_offset == 936
    commit_all(store)
    assert (store.queue_range("T", 0), bodies(store)) == ((936, 937), [b"first"])
    store.close()
    store = open_store(disk)
    assert (store.queue_range("T", 0), bodies(store)) == ((936, 937), [b"first"])
    store.truncate(START)
    assert store.append(message(2), 1).queue_offset == 936


@pytest.mark.parametrize("end", [1, 79, 80, 81, 160])
def test_wherever_in_a_file_it_ended(end: int) -> None:
    """80 entries to a file."""
    disk, store = begun_behind()
    store.queue_min_offsets.learn([("T", 0, end)])
    for number in range(100):
        assert store.append(message(number), 1).queue_offset == end + number
    commit_all(store)
    assert store.queue_range("T", 0) == (end, end + 100)
    store.truncate(START)
    assert store.append(message(0), 1).queue_offset == end
    commit_all(store)
    store.close()
    assert open_store(disk).queue_range("T", 0) == (end, end + 1)


def test_a_queue_with_a_record_knows_better() -> None:
    _, store = begun_behind()
    store.queue_min_offsets.learn([("T", 0, 5)])
    store.append(message(1), 1)
    commit_all(store)
    assert store.queue_min_offsets.learn([("T", 0, 900), ("T", 1, 7)]) == 1
    assert (store.queue_range("T", 0), store.queue_range("T", 1)) == ((5, 6), (7, 7))


def test_a_batch_topic_too() -> None:
    disk, store = begun_behind()
    store.add_batch_topics({"B"})
    store.queue_min_offsets.learn([("B", 0, 44)])
    assert store.append(message(1, topic="B"), 1).queue_offset == 44
    commit_all(store)
    assert store.queue_range("B", 0) == (44, 45)
    store.truncate(START)
    assert store.append(message(1, topic="B"), 1).queue_offset == 44
    commit_all(store)
    assert store.queue_min_offsets.ends() == [("B", 0, 45)]
    store.close()
    assert open_store(disk).queue_range("B", 0)[1] == 45


def test_what_a_master_tells() -> None:
    store = filled(sim_disk())
    commit_all(store)
    assert store.queue_min_offsets.ends() == [("T", 0, 6), ("T", 1, 6)]


def test_a_damaged_file_says_that_nothing_is_known() -> None:
    disk, store = begun_behind()
    store.queue_min_offsets.learn([("T", 0, 5)])
    store.close()
    for bad in (b"", b"nonsense", sidecar.encode({"lacks": False, "starts": [["T", -1, 5]]}), sidecar.encode({})):
        disk.write_atomic(PATH, bad)
        store = open_store(disk)
        assert store.lacks_queue_ends
        assert any(line.startswith(PATH) for line in store.recovery.lines)
        store.close()


def test_a_newer_version_is_refused() -> None:
    disk, store = begun_behind()
    store.close()
    newer = bytearray(sidecar.encode({"lacks": False, "starts": []}))
    newer[1] = sidecar.VERSION + 1
    disk.write_atomic(PATH, bytes(newer))
    with pytest.raises(StoreError, match="reads up to"):
        open_store(disk)


def test_queues_that_are_made_anew_know_nothing_of_idle_ones() -> None:
    """An operator has removed `consumequeue`, as a sentence about damage advises."""
    disk = sim_disk()
    store = open_store(disk)
    store.restart_at(START)
    store.queue_min_offsets.learn([("T", 1, 9)])
    for number in range(20):
        store.append(message(number, body=b"x" * 500), number)
    commit_all(store)
    store.close()
    disk.remove_tree("consumequeue")
    store = open_store(disk)
    assert store.lacks_queue_ends
    assert any("where those without a message" in line for line in store.recovery.lines)
    assert store.queue_range("T", 0) == (0, 20)
    store.close()

    whole = filled(sim := sim_disk())
    commit_all(whole)
    whole.close()
    sim.remove_tree("consumequeue")
    assert not open_store(sim).lacks_queue_ends, "a log from 0 on tells all"
