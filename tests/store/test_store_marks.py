"""The store's epochs, marks, syncs and directory, one law each."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rmqha.host.disk import HostDisk
from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.meta.checkpoint import Checkpoint, CheckpointFile, ProgressFile
from rmqha.store.store import Store
from tests.store.support import SMALL, bodies, commit_all, filled, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer


def _checkpoint(disk: SimDisk) -> Checkpoint:
    file = CheckpointFile(disk)
    file.load()
    return file.value


# --- epochs and marks -------------------------------------------------------------------------------------------------
def test_epochs_and_the_highest_epoch_are_durable() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 1)
    assert store.append_epoch(Epoch(1), PhyOffset(0))
    assert not store.append_epoch(Epoch(1), PhyOffset(50))
    assert not store.append_epoch(Epoch(2), PhyOffset(0))
    store.accept_epoch(Epoch(7))
    store.accept_epoch(Epoch(5))
    store.sync()
    disk.crash(power_loss=True)
    store = open_store(disk)
    assert [entry.epoch for entry in store.epochs] == [1]
    assert store.highest_epoch == 7


def test_only_a_loss_of_power_is_unclean_and_it_stays_until_cleared() -> None:
    disk = sim_disk()
    open_store(disk).close()
    store = open_store(disk)
    assert not store.unclean
    disk.crash(power_loss=False)
    assert not open_store(disk).unclean
    disk.crash(power_loss=True)
    assert open_store(disk).unclean
    disk.crash(power_loss=False)
    store = open_store(disk)
    assert store.unclean
    store.close()
    store = open_store(disk)
    assert store.unclean
    store.mark_clean()
    disk.crash(power_loss=False)
    assert not open_store(disk).unclean


def test_a_log_that_is_given_up_leaves_no_progress() -> None:
    """What is copied next stands at offsets of the old log: nothing of it may pass for saved."""
    disk = sim_disk()
    store = filled(disk)
    commit_all(store)
    store.close()
    store = open_store(disk)
    store.restart_at(PhyOffset(0))
    disk.crash(power_loss=True)
    checkpoint, progress = CheckpointFile(disk), ProgressFile(disk)
    checkpoint.load()
    assert progress.load(checkpoint.value) == []
    assert progress.position == 0


def test_what_a_cut_took_is_in_no_save_behind_it() -> None:
    """A save records what was dispatched last, which a cut lowers even if nothing is dispatched after it."""
    disk = sim_disk()
    store = filled(disk)
    commit_all(store)
    end_offset = store.max_phy_offset
    kept = PhyOffset(int(store.append(message(99), 99).phy_offset))
    assert kept >= end_offset
    commit_all(store)
    store.truncate(kept)
    store.begin_write()
    store.end_write()  # it saves, and dispatches nothing
    checkpoint, progress = CheckpointFile(disk), ProgressFile(disk)
    checkpoint.load()
    assert progress.load(checkpoint.value) == []
    assert progress.position == kept


def test_a_log_that_lost_confirmed_bytes_is_unclean() -> None:
    disk = sim_disk()
    store = filled(disk)
    commit_all(store)
    end = store.max_phy_offset
    store.close()
    for name in disk.list("commitlog")[1:]:
        disk.remove(f"commitlog/{name}")
    store = open_store(disk)
    assert store.unclean
    assert f"The log ends at 4096, below what was confirmed or synced ({end}): this replica counts as unclean." in (
        store.recovery.lines
    )


def test_a_log_of_which_no_file_is_left_is_told_and_nothing_is_changed() -> None:
    """As where its disk was not mounted: with the log back all is as before."""
    disk = sim_disk()
    store = filled(disk)
    store.append_epoch(Epoch(2), PhyOffset(4096))
    commit_all(store)
    end, epochs = store.max_phy_offset, store.epochs
    store.close()
    log = {f"commitlog/{name}": disk.read(f"commitlog/{name}") for name in disk.list("commitlog")}
    for path in log:
        disk.remove(path)
    for _ in range(2):
        sentence = f"sim/commitlog holds no file, but the log was written up to {end}: mount its disk, or remove this"
        with pytest.raises(StoreError, match=sentence):
            open_store(disk)
    for path, content in log.items():
        disk.write_atomic(path, content)
    store = open_store(disk)
    assert (store.max_phy_offset, store.epochs, store.unclean) == (end, epochs, False)


def test_a_cut_that_takes_no_byte_leaves_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next start would read the last file to learn how late it is: a second for each GiB."""
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 5)
    store.append(message(2), 9_000)
    commit_all(store)
    store.close()
    before = _checkpoint(disk)
    store = open_store(disk)
    store.truncate(store.max_phy_offset)
    assert _checkpoint(disk) == before
    disk.crash(power_loss=False)
    monkeypatch.setattr("rmqha.store.integrity.tail.last_stored_ms", None)
    store = open_store(disk)
    assert store.append(message(3), 1).store_timestamp_ms == 9_000


def test_the_confirm_offset_survives_a_clean_stop() -> None:
    disk = sim_disk()
    store = open_store(disk)
    spots = [store.append(message(number), number) for number in range(4)]
    store.set_confirm_offset(PhyOffset(spots[1].end_offset))
    store.close()
    store = open_store(disk)
    assert (store.confirm_offset, store.dispatched_offset) == (spots[1].end_offset, spots[1].end_offset)
    assert store.max_phy_offset == spots[3].end_offset


# --- sync -------------------------------------------------------------------------------------------------------------
def test_sync_moves_the_synced_offset_and_saves_now_and_then() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 0)
    commit_all(store)
    assert store.synced_offset == 0
    assert store.sync() == store.synced_offset == store.max_phy_offset
    assert not disk.exists("checkpoint")
    operations = disk.operations
    assert store.sync() == store.max_phy_offset
    assert disk.operations == operations, "nothing new, nothing done"
    store.append(message(2), 5000)
    commit_all(store)
    store.sync()
    assert disk.read("checkpoint")[:8] == (5000).to_bytes(8, "big")
    assert int.from_bytes(disk.read("checkpoint")[32:40], "big") == store.max_phy_offset


def test_after_a_failed_sync_nothing_is_accepted() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1), 0)
    disk.failing = frozenset(["sync"])
    for _ in range(2):
        with pytest.raises(StoreError, match=r"commitlog/.*cannot write to stable storage: Input/output error; check"):
            store.sync()
        disk.failing = frozenset()
    with pytest.raises(StoreError):
        store.append(message(1), 0)
    with pytest.raises(StoreError):
        store.append_raw(store.max_phy_offset, b"x")
    with pytest.raises(StoreError):
        store.close()
    assert disk.exists("abort"), "no clean stop"
    assert open_store(disk).unclean, "the system may have dropped what it could not write"


def test_the_next_file_is_made_ahead() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.append(message(1, body=b"x" * 1500), 0)
    assert [store.allocation.is_due] == [False]
    store.append(message(1, body=b"x" * 1500), 0)
    assert [store.allocation.is_due] == [True]
    store.allocation.allocate_ahead()
    assert len(disk.list("commitlog")) == 2
    assert [store.allocation.is_due] == [False]
    store.append(message(1, body=b"x" * 1500), 0)
    assert len(disk.list("commitlog")) == 2
    commit_all(store)
    assert len(bodies(store)) == 3


def test_a_file_that_cannot_be_made_ahead_is_told_once_and_refused_when_the_last_is_nearly_full() -> None:
    disk, tracer = sim_disk(), RecordingTracer()
    store = open_store(disk, tracer=tracer)
    for number in range(2):
        store.append(message(number, body=b"x" * 1200), 0)
    disk.capacity_bytes = disk.used_bytes
    for _ in range(3):
        store.allocation.allocate_ahead()
    assert tracer.names().count("no_file_ahead") == 1
    assert [store.allocation.is_due, store.allocation.refusal(100)] == [True, ""], "there is room for some more"
    assert store.allocation.refusal(1000), "but not for two as large as one may be"
    store.append(message(2, body=b"x" * 1200), 0)
    assert "No space left on device" in store.allocation.refusal(100)
    disk.capacity_bytes = None
    store.allocation.allocate_ahead()
    assert [store.allocation.is_due, store.allocation.refusal(100)] == [False, ""]
    disk.capacity_bytes = disk.used_bytes
    for number in range(2):
        store.append(message(number, body=b"x" * 1200), 0)
    store.allocation.allocate_ahead()
    assert tracer.names().count("no_file_ahead") == 2


def test_sync_beside_appends(tmp_path: Path) -> None:
    config = replace(SMALL, mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000)
    store = Store.open(HostDisk(tmp_path), config, RecordingTracer())
    done = threading.Event()
    synced: list[int] = []

    def flush() -> None:
        while not done.is_set():
            synced.append(store.sync())

    threads = [threading.Thread(target=flush) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1500):
        store.append(message(number, queue_id=number % 4, body=b"x" * 400), number * 10)
        if number % 50 == 0:
            commit_all(store)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(synced)[-1] <= store.max_phy_offset
    assert store.sync() == store.max_phy_offset
    commit_all(store)
    store.close()
    store = Store.open(HostDisk(tmp_path), config, RecordingTracer())
    assert [store.queue_range("T", queue_id) for queue_id in range(4)] == [(0, 375)] * 4
    store.close()


# --- the directory ----------------------------------------------------------------------------------------------------
def test_a_second_opener_is_told(tmp_path: Path) -> None:
    for disk in (sim_disk(), HostDisk(tmp_path)):
        store = open_store(disk)
        with pytest.raises(UsageError, match="is in use by another process"):
            open_store(disk)
        store.close()
        open_store(disk).close()


def test_a_foreign_directory_is_refused_and_left_alone() -> None:
    disk = sim_disk()
    disk.write_atomic("holiday.jpg", b"\xff")
    with pytest.raises(UsageError, match=r"sim is not empty and no message store \(it holds holiday.jpg\)"):
        open_store(disk)
    assert disk.list("") == ["holiday.jpg"]


def test_a_file_system_of_its_own_is_no_foreign_directory() -> None:
    disk = sim_disk()
    disk.write_atomic("lost+found/x", b"")
    open_store(disk).close()
    assert disk.exists("lost+found/x")


def test_strange_files_inside_a_store_are_left_alone() -> None:
    disk = sim_disk()
    open_store(disk).close()
    for path in ("notes.txt", "commitlog/readme", "consumequeue/T/x", "consumequeue/T/0/old"):
        disk.write_atomic(path, b"mine")
    store = open_store(disk)
    assert len([line for line in store.recovery.lines if "left alone" in line]) == 3
    store.append(message(1), 1)
    commit_all(store)
    store.close()
    for path in ("notes.txt", "commitlog/readme", "consumequeue/T/x", "consumequeue/T/0/old"):
        assert disk.read(path) == b"mine"


def test_a_directory_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(disk, "make_dirs", refuse)
    with pytest.raises(UsageError, match="cannot open the store: Permission denied; give this user the right"):
        open_store(disk)


def test_another_file_size_is_refused_with_the_key_to_set() -> None:
    disk = sim_disk()
    filled(disk).close()
    with pytest.raises(StoreError, match="has 4096 bytes, but mappedFileSizeCommitLog is 8192; set the key"):
        open_store(disk, replace(SMALL, mapped_file_size_commit_log=8192))
    store = open_store(disk)
    commit_all(store)
    store.close()
    with pytest.raises(StoreError, match="has 1600 bytes, but mappedFileSizeConsumeQueue is 400; set the key"):
        open_store(disk, replace(SMALL, mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=400))
    open_store(disk, SMALL).close()


def test_abort_names_the_process() -> None:
    disk = sim_disk()
    store = open_store(disk)
    assert disk.read("abort") == b"4711"
    store.close()
    assert not disk.exists("abort")
