"""What recovery is about to cut: judged, and saved unless a torn write explains it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.store import Store
from tests.store.support import SMALL, log_bytes, message, open_store, sim_disk
from tests.store.test_recovery import LOG_FILE, ROOMY, next_record, write_behind, written

CUT = "rmqha.cut-1"


def saved(disk: SimDisk, directory: str = CUT) -> dict[int, bytes]:
    return {int(name): disk.read(f"{directory}/{name}") for name in disk.list(directory)}


def said(store: Store, part: str) -> bool:
    return any(part in line for line in store.recovery.lines)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 40, 120])
def test_one_torn_record_is_not_saved(size: int, power_loss: bool) -> None:
    disk = sim_disk()
    store = written(disk)
    write_behind(disk, store, next_record(store, 20)[:size])
    disk.crash(power_loss=power_loss)
    store = open_store(disk, ROOMY)
    assert not disk.exists(CUT)
    assert store.unclean == power_loss


def test_a_record_with_lost_sectors_is_not_saved() -> None:
    disk = sim_disk()
    store = written(disk)
    record = bytearray(next_record(store, 20))
    record[60:90] = bytes(30)
    write_behind(disk, store, bytes(record))
    disk.crash(power_loss=True)
    open_store(disk, ROOMY)
    assert not disk.exists(CUT)


def test_a_garbage_tail_is_saved_from_its_first_byte_to_its_last() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    write_behind(disk, store, b"\xff" * 3000 + b"\0" * 100 + b"end" + b"\0" * 50)
    disk.crash(power_loss=True)
    store = open_store(disk, ROOMY)
    assert saved(disk) == {end: b"\xff" * 3000 + b"\0" * 100 + b"end"}
    assert f"3103 bytes behind the log's end {end} were saved in {CUT} before they were cut." in store.recovery.lines
    assert not any(disk.read(LOG_FILE)[end:])


def test_anything_behind_the_end_is_saved_after_a_clean_stop() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    record = next_record(store, 20)
    store.close()
    region = disk.map(LOG_FILE, ROOMY.mapped_file_size_commit_log)
    region.write(end, record[:50])
    region.sync()
    store = open_store(disk, ROOMY)
    assert saved(disk) == {end: record[:50].rstrip(b"\0")}
    assert not store.unclean


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_whole_record_behind_a_bad_one_is_damage_unless_power_was_lost(power_loss: bool) -> None:
    disk = sim_disk()
    store = open_store(disk, ROOMY)
    for number in range(5):
        store.append(message(number, body=b"m" * 300), number)
    third = store.record_at(store.max_phy_offset // 5 * 3)
    assert third is not None
    size = store.max_phy_offset // 5
    image = log_bytes(store)
    disk.map(LOG_FILE, ROOMY.mapped_file_size_commit_log).sync()
    disk.rot(LOG_FILE, 3 * size + 200)
    disk.crash(power_loss=power_loss)
    store = open_store(disk, ROOMY)
    assert log_bytes(store) == image[: 3 * size]
    assert said(store, f"A whole record stands at {4 * size}, behind the log's end {3 * size}") != power_loss
    assert store.unclean
    kept = saved(disk)[3 * size]
    assert kept[size:] == image[4 * size :]
    store.close()
    assert open_store(disk, ROOMY).unclean, "until it has followed a master"


def test_records_in_files_behind_a_hole_are_saved_by_file() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number in range(20):
        store.append(message(number, body=b"m" * 900), number)
    image = log_bytes(store)
    for name in disk.list("commitlog"):
        disk.map(f"commitlog/{name}", 4096).sync()
    disk.map("commitlog/" + f"{4096:020d}", 4096).write(0, bytes(4096))
    disk.map("commitlog/" + f"{4096:020d}", 4096).sync()
    disk.crash(power_loss=True)
    store = open_store(disk)
    assert store.max_phy_offset == 4096
    found = saved(disk)
    assert list(found) == list(range(8192, len(image), 4096))
    for start, data in found.items():
        assert image[start : start + 4096].rstrip(b"\0") == data
    assert disk.list("commitlog") == [f"{0:020d}"]


def test_without_room_nothing_is_cut_and_the_choices_are_named() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    write_behind(disk, store, b"\xff" * 3000)
    disk.crash(power_loss=True)
    image = disk.read(LOG_FILE)
    for more in (100, 2999):
        disk.capacity_bytes = disk.used_bytes + more
        with pytest.raises(StoreError, match=rf"commitlog: 3000 bytes from {end} on must be saved before they are cut"):
            open_store(disk, ROOMY)
        assert disk.read(LOG_FILE) == image
        assert not disk.exists(CUT)
    disk.capacity_bytes = None
    assert open_store(disk, ROOMY).max_phy_offset == end
    assert len(saved(disk)[end]) == 3000


def test_a_disk_that_fills_while_saving_leaves_no_half() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for number in range(20):
        store.append(message(number, body=b"m" * 900), number)
    for name in disk.list("commitlog"):
        disk.map(f"commitlog/{name}", 4096).sync()
    disk.map(LOG_FILE, 4096).write(0, bytes(100))
    disk.map(LOG_FILE, 4096).sync()
    disk.crash(power_loss=True)
    reported, disk.capacity_bytes = disk.space, disk.used_bytes + 9000
    disk.space = lambda path="": (0, 1 << 30)  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="must be saved before they are cut"):
        open_store(disk)
    assert not disk.exists(CUT)
    disk.space = reported  # type: ignore[method-assign]


def test_what_was_saved_before_is_named_and_kept() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    for number in (1, 2):
        write_behind(disk, store, b"\xff" * 3000)
        disk.crash(power_loss=True)
        store = open_store(disk, ROOMY)
        assert list(saved(disk, f"rmqha.cut-{number}")) == [end]
    store.close()
    disk.write_atomic("rmqha.cut-2/notes/why.txt", b"an operator's own")
    store = open_store(disk, ROOMY)
    assert (
        "rmqha.cut-1, rmqha.cut-2: 6000 bytes that were cut from the log at earlier starts; `rmqha log kept` removes"
        " them when nobody needs them." in store.recovery.lines
    )


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_cut_that_a_crash_stopped_is_finished_and_nothing_of_it_is_saved(power_loss: bool) -> None:
    """What stands behind its zeros was dropped on purpose."""
    for stop in range(1, 40):
        disk = sim_disk(stop)
        store = open_store(disk, SMALL)
        for number in range(20):
            store.append(message(number, body=b"m" * 900), number)
        store.sync()
        end = store.max_phy_offset
        disk.stop_after = disk.operations + stop
        with suppress(DiskStopped):
            store.truncate(PhyOffset(4096))
        disk.crash(power_loss=power_loss)
        store = open_store(disk, SMALL)
        assert 4096 <= store.max_phy_offset <= end
        assert not [name for name in disk.list("") if name.startswith("rmqha.cut-")], stop
        assert store.unclean == power_loss
