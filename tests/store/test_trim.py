"""The log's old end moves up: what readers see, what is on the disk, what a restart finds."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

import pytest

from rmqha.host.disk import HostDisk
from rmqha.model.code import ResponseCode
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import decode
from rmqha.store.store import Store
from rmqha.store.trimmer import DIRECTORY
from tests.store.support import SMALL, bodies, commit_all, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

FILE = SMALL.mapped_file_size_commit_log


def filled(disk: SimDisk | HostDisk, count: int = 30, trace: RecordingTracer | None = None) -> Store:
    """Thirty records, three or four to a file, stored a second apart, all settled."""
    store = open_store(disk, tracer=trace)
    for number in range(count):
        store.append(message(number, queue_id=number % 2, body=b"z" * 900), 1000 * (number + 1))
    commit_all(store)
    store.sync()
    return store


def schedule_unlink(store: Store, now_ms: int = 0, timeout_ms: int = 0) -> int:
    count = 1
    while store.schedule_unlink(now_ms, timeout_ms, 1000):
        count += 1
    return count


def names(disk: SimDisk | HostDisk) -> list[int]:
    return [int(name) for name in disk.list("commitlog")]


def test_a_trimmed_log_begins_later_and_everything_follows() -> None:
    disk = sim_disk()
    store = filled(disk)
    whole = log_bytes(store)
    store.trim(PhyOffset(3 * FILE))
    assert store.min_phy_offset == 3 * FILE
    assert log_bytes(store) == whole[3 * FILE :]
    low, high = store.queue_range("T", 0)
    assert high == 15
    first = store.pull("T", 0, low, 1, 1 << 20).records[0]
    assert decode(first).phy_offset >= 3 * FILE
    assert decode(first).queue_offset == low > 0
    moved = store.pull("T", 0, low - 1, 1, 1 << 20)
    assert (moved.status, moved.next_begin_offset, moved.min_offset) == (ResponseCode.PULL_OFFSET_MOVED, low, low)
    assert store.record_at(0) is None
    assert store.offset_by_time("T", 0, 0) == low
    assert names(disk)[0] == 0, "nothing is gone before it is unlinked"
    assert store.pending_deletion_bytes == 3 * FILE
    assert schedule_unlink(store) == 3
    assert names(disk)[0] == 3 * FILE
    assert disk.list(DIRECTORY) == []
    assert store.pending_deletion_bytes == 0


def test_queue_files_of_records_that_are_gone_go_too() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number in range(400):
        store.append(message(number), number)
    commit_all(store)
    store.sync()
    assert len(disk.list("consumequeue/T/0")) == 5
    store.trim(PhyOffset(store.max_phy_offset // FILE * FILE))
    schedule_unlink(store)
    low, high = store.queue_range("T", 0)
    left = [int(name) // 20 for name in disk.list("consumequeue/T/0")]
    assert left[0] == low // 80 * 80
    assert high == 400
    assert store.append(message(400), 500).queue_offset == 400


def test_a_restart_finds_the_shorter_log() -> None:
    disk = sim_disk()
    store = filled(disk)
    whole = log_bytes(store)
    store.trim(PhyOffset(4 * FILE))
    schedule_unlink(store)
    for stop in ("close", "kill", "power"):
        low = store.queue_range("T", 1)
        if stop == "close":
            store.close()
        else:
            disk.crash(power_loss=stop == "power")
        store = open_store(disk)
        assert log_bytes(store) == whole[4 * FILE :]
        assert store.queue_range("T", 1) == low
        assert store.recovery.checked_from >= 4 * FILE
        queue_lines = [line for line in store.recovery.lines if not line.startswith("index/")]
        assert not any("again" in line or "anew" in line for line in queue_lines)
        commit_all(store)


def test_what_a_crash_left_under_way_is_removed_at_the_next_start() -> None:
    disk = sim_disk()
    store = filled(disk)
    store.trim(PhyOffset(3 * FILE))
    assert store.schedule_unlink(0, 0, 0), "all renamed, one unlinked"
    assert len(disk.list(DIRECTORY)) == 2
    disk.crash(power_loss=False)
    store = open_store(disk)
    assert f"{DIRECTORY}: 2 old log files that were on their way out are removed now." in store.recovery.lines
    assert store.min_phy_offset == 3 * FILE
    assert schedule_unlink(store) == 2
    assert disk.list(DIRECTORY) == []


@pytest.mark.parametrize("kind", ["rename", "remove"])
def test_a_file_that_cannot_be_removed_is_told_and_tried_again(kind: str) -> None:
    disk, trace = sim_disk(), RecordingTracer()
    store = filled(disk, trace=trace)
    store.trim(PhyOffset(2 * FILE))
    disk.failing = frozenset((kind,))
    store.schedule_unlink(0, 0, 1000)
    assert "old_files_not_removed" in trace.names()
    disk.failing = frozenset()
    while store.schedule_unlink(1000, 0, 1000):
        pass
    assert names(disk)[0] == 2 * FILE
    assert disk.list(DIRECTORY) == []


def test_on_a_disk_without_room_for_a_name_files_go_at_once() -> None:
    """Renaming needs a directory, and perhaps a block for it."""

    class Full(SimDisk):
        def rename(self, old_path: str, new_path: str) -> None:
            raise OSError(28, "No space left on device")

    disk = Full(SimPrng(1))
    store = filled(disk)
    store.trim(PhyOffset(2 * FILE))
    schedule_unlink(store)
    assert names(disk)[0] == 2 * FILE


def test_a_log_on_a_disk_of_its_own_loses_files_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `commitlog` is a link to another disk no file can be renamed into the store's own directory."""
    disk = sim_disk()
    store = filled(disk)
    rename = disk.rename

    def to_another_disk(old_path: str, new_path: str) -> None:
        if old_path.startswith("commitlog/") and not new_path.startswith("commitlog/"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(old_path, new_path)

    monkeypatch.setattr(disk, "rename", to_another_disk)
    store.trim(PhyOffset(3 * FILE))
    schedule_unlink(store)
    assert names(disk)[0] == 3 * FILE
    assert store.pending_deletion_bytes == 0
    store.close()
    assert open_store(disk).min_phy_offset == 3 * FILE


def test_readers_keep_their_bytes(tmp_path: Path) -> None:
    disk = HostDisk(tmp_path)
    store = filled(disk)
    whole = log_bytes(store)
    held = store.view(PhyOffset(100), 500)
    pulled = store.pull("T", 0, 0, 2, 1 << 20).records
    store.trim(PhyOffset(2 * FILE))
    assert not store.schedule_unlink(0, 60_000, 1000), "the second file goes, the first is in use"
    assert disk.list(DIRECTORY) == [f"{0:020d}"]
    assert not store.schedule_unlink(59_999, 60_000, 1000)
    assert bytes(held) == whole[100:600]
    assert [decode(record).queue_offset for record in pulled] == [0, 1]
    del held, pulled
    store.schedule_unlink(59_999, 60_000, 1000)
    assert disk.list(DIRECTORY) == []
    store.close()


def test_a_reader_that_never_lets_go_does_not_keep_the_file(tmp_path: Path) -> None:
    disk = HostDisk(tmp_path)
    store = filled(disk)
    held = store.view(PhyOffset(100), 500)
    kept = bytes(held)
    store.trim(PhyOffset(FILE))
    store.schedule_unlink(0, 60_000, 1000)
    assert disk.list(DIRECTORY)
    store.schedule_unlink(60_000, 60_000, 1000)
    assert disk.list(DIRECTORY) == []
    assert bytes(held) == kept
    store.close()


def test_the_epoch_history_loses_what_only_spoke_of_removed_bytes() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number in range(12):
        if number % 3 == 0:
            store.append_epoch(Epoch(number + 1), store.max_phy_offset)
        store.append(message(number, body=b"z" * 1200), number)
    commit_all(store)
    store.sync()
    known = list(store.epochs)
    store.trim(PhyOffset(2 * FILE))
    store.trim_derived()
    assert list(store.epochs) == known, "the files still bear their names"
    schedule_unlink(store)
    store.trim_derived()
    left = [entry for entry, after in pairwise(known) if after.start_offset > 2 * FILE]
    assert list(store.epochs) == [*left, known[-1]]
    assert left[0].start_offset < 2 * FILE, "the first entry left may start below the log"
    store.close()
    store = open_store(disk)
    assert list(store.epochs) == [*left, known[-1]]


def test_a_file_that_could_not_be_ended_goes_on() -> None:
    """Else what is appended next stands before the file that would be active, or nowhere."""
    disk = sim_disk()
    store = filled(disk, 3)
    end = store.max_phy_offset
    disk.failing = frozenset(("write",))
    with pytest.raises(OSError):
        store.roll()
    disk.failing = frozenset()
    assert store.max_phy_offset == end
    assert store.append(message(4), 5000).phy_offset == end
    store.roll()
    assert store.max_phy_offset == (end // FILE + 1) * FILE
    store.close()


def test_an_expired_active_file_is_ended_and_goes() -> None:
    disk = sim_disk()
    store = filled(disk, 4)
    end = store.max_phy_offset
    active = store.oldest_files(10, 10**6)[1]
    assert active is not None
    assert (active.start_offset, active.newest_stored_at_ms) == (end // FILE * FILE, 4000)
    store.roll()
    rolled = (end // FILE + 1) * FILE
    assert store.max_phy_offset == rolled
    files, active = store.oldest_files(10, 10**6)
    assert active is None
    assert files[-1].end_offset == rolled
    assert files[-1].newest_stored_at_ms == 4000
    commit_all(store)
    store.sync()
    store.trim(PhyOffset(rolled))
    schedule_unlink(store)
    assert (store.min_phy_offset, store.max_phy_offset) == (rolled, rolled)
    assert store.queue_range("T", 0) == (2, 2)
    for _ in range(2):
        assert store.append(message(4), 5000).queue_offset >= 2
        commit_all(store)
        store.close()
        store = open_store(disk)
    assert bodies(store) == [b"body-4"] * 2


def test_ages_come_from_the_first_record_behind_a_file() -> None:
    disk = sim_disk()
    store = filled(disk)
    files, _ = store.oldest_files(3, 10**6)
    for file in files:
        found = store.record_at(file.end_offset)
        assert found is not None
        assert file.newest_stored_at_ms == decode(found).store_timestamp_ms


def test_a_cut_file_is_as_old_as_what_it_gets_then() -> None:
    """A fork that reached into the next file has told an age: what another master wrote in its place would go with it,
    minutes old."""
    store = filled(sim_disk())
    store.oldest_files(3, 10**6)
    first = store.record_at(2 * FILE)
    assert first is not None
    store.truncate(PhyOffset(2 * FILE + len(first)))
    for number in range(8):
        store.append(message(number, body=b"z" * 900), 900_000 + number)
    commit_all(store)
    files, _ = store.oldest_files(3, 10**6)
    behind = store.record_at(files[2].end_offset)
    assert behind is not None
    assert files[2].newest_stored_at_ms == decode(behind).store_timestamp_ms > 900_000


def test_a_time_that_has_not_come_yet_is_not_believed() -> None:
    """A clock that was wrong once must not keep a log for ever."""
    disk = sim_disk()
    store = filled(disk)
    files, active = store.oldest_files(3, 500)
    assert active is not None
    assert {file.newest_stored_at_ms for file in (*files, active)} == {disk.modified_at_ms("commitlog/" + "0" * 20)}


@pytest.mark.parametrize("by_java", [False, True])
def test_a_cut_to_the_start_of_a_trimmed_queue_keeps_its_offsets(by_java: bool) -> None:
    """We keep one entry in front; RocketMQ may remove it with its file."""
    disk = sim_disk()
    store = open_store(disk)
    for number in range(80):
        store.append(message(number), number)
    store.roll()
    kept = store.max_phy_offset
    store.append(message(80), 80)
    commit_all(store)
    store.sync()
    store.trim(kept)
    schedule_unlink(store)
    if by_java:
        store.close()
        disk.remove("consumequeue/T/0/" + "0" * 20)
        store = open_store(disk)
        assert disk.list("consumequeue/T/0") == ["00000000000000001600"]
    store.truncate(kept)
    assert store.queue_range("T", 0) == (80, 80)
    store.close()
    store = open_store(disk)
    assert store.append(message(80), 90).queue_offset == 80


def test_a_replaced_log_takes_its_leaving_files_along() -> None:
    disk = sim_disk()
    store = filled(disk)
    store.trim(PhyOffset(2 * FILE))
    store.restart_at(PhyOffset(0))
    store.append_raw(PhyOffset(0), b"\0" * 10)
    schedule_unlink(store)
    assert names(disk) == [0]
    assert disk.list("replaced-1/commitlog")[0] == f"{0:020d}"


def test_trimmed_histories() -> None:
    history = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(at)) for epoch, at in ((1, 0), (3, 100), (4, 250)))
    assert history.trimmed(PhyOffset(0)) == history
    assert history.trimmed(PhyOffset(99)) == history
    assert history.trimmed(PhyOffset(100)) == history, "its bytes end right where the log begins"
    assert [entry.epoch for entry in history.trimmed(PhyOffset(101))] == [3, 4]
    assert [entry.epoch for entry in history.trimmed(PhyOffset(249))] == [3, 4]
    assert [entry.epoch for entry in history.trimmed(PhyOffset(10**9))] == [4]
