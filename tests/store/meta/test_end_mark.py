"""Torn or rotten (ruling 29): what a start makes of a log that ends below what was written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.meta import end_mark
from rmqha.store.meta.checkpoint import Checkpoint
from rmqha.store.meta.end_mark import EndMark
from rmqha.store.store import Store
from tests.store.support import log_bytes, message, open_store, sim_disk
from tests.store.test_recovery import LOG_FILE, ROOMY, next_record, write_behind, written

Rot = Callable[[SimDisk, int, int], None]


def flip(place: float) -> Rot:
    """One bit of the record [start, end), so far behind its beginning."""
    return lambda disk, start, end: disk.rot(LOG_FILE, start + int(place * (end - start)), 1)


def blank_out(part: float) -> Rot:
    """Zeros from that part of the record on."""

    def rot(disk: SimDisk, start: int, end: int) -> None:
        content = disk.read(LOG_FILE)
        for at in range(start + int(part * (end - start)), end):
            if content[at]:
                disk.rot(LOG_FILE, at, content[at])

    return rot


def grow(disk: SimDisk, start: int, _end: int) -> None:
    """One bit of totalSize: the record seems to go on."""
    disk.rot(LOG_FILE, start + 2, 4)


ROTS = {
    "magic": flip(0.05), "body": flip(0.6), "size": grow, "all of it": blank_out(0), "its last bytes": blank_out(0.9),
    "its second half": blank_out(0.5),
}  # fmt: skip


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("rot", ROTS.values(), ids=ROTS)
def test_rot_in_the_last_record_makes_the_replica_unclean(rot: Rot, clean: bool) -> None:
    """An acknowledged message less, and no word of it: as master such a replica waited for ever."""
    disk = sim_disk()
    store = written(disk)
    last = store.append(message(20, body=b"acknowledged" * 9), 20_000)
    store.sync()
    if clean:
        store.close()
    disk.crash(power_loss=False)
    rot(disk, last.phy_offset, last.end_offset)
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == last.phy_offset
    assert store.unclean
    assert any(f"The log was written up to {last.end_offset}" in line for line in store.recovery.lines)
    disk.crash(power_loss=False)
    assert open_store(disk, ROOMY).unclean, "until it has followed"


def test_what_has_rotted_is_saved_before_it_is_cut() -> None:
    disk = sim_disk()
    store = written(disk)
    last = store.append(message(20), 20_000)
    disk.crash(power_loss=False)
    disk.rot(LOG_FILE, last.phy_offset + 90, 1)
    tail = disk.read(LOG_FILE)[last.phy_offset : last.end_offset]
    open_store(disk, ROOMY)
    assert disk.read(f"rmqha.cut-1/{last.phy_offset:020d}") == tail


@given(st.integers(1, 400), st.booleans())
def test_a_slave_that_was_killed_inside_a_record_is_clean(size: int, appended: bool) -> None:
    """Its log ends where a transfer did; a kill in the middle of one leaves some bytes more."""
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    record = next_record(store, 20) + next_record(store, 21)
    half = record[: min(size, len(next_record(store, 20)) - 1)]
    if appended:
        store.append_raw(PhyOffset(end), half)
        disk.crash(power_loss=False)
    else:
        disk.crash(power_loss=False)
        write_behind(disk, store, half, end)
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == end
    assert not store.unclean, store.recovery.lines


def test_a_record_that_was_written_as_the_kill_came_is_torn() -> None:
    """The mark follows the record: what stands above it was told to nobody."""
    disk = sim_disk()
    store = written(disk)
    write_behind(disk, store, next_record(store, 20)[:-1] + b"\xff")
    disk.crash(power_loss=False)
    assert not open_store(disk, ROOMY).unclean


def damage_mark(disk: SimDisk, *turns: int) -> None:
    for turn in turns:
        disk.rot(end_mark.PATH, turn * end_mark.SECTOR_BYTES + 9)


@pytest.mark.parametrize("turns", [(0,), (1,), (0, 1)])
def test_a_damaged_mark_alone_costs_nothing(turns: tuple[int, ...]) -> None:
    disk = sim_disk()
    store = written(disk)
    log = log_bytes(store)
    disk.crash(power_loss=False)
    damage_mark(disk, *turns)
    store = open_store(disk, ROOMY)
    assert log_bytes(store) == log
    assert not store.unclean
    assert any("rmqha.end at byte" in line for line in store.recovery.lines)
    store.close()
    assert not any("rmqha.end" in line for line in open_store(disk, ROOMY).recovery.lines), "made anew"


def test_without_a_mark_nobody_can_tell() -> None:
    """A store of an older release: a torn write is as likely as rot, so the replica follows first."""
    disk = sim_disk()
    store = written(disk)
    write_behind(disk, store, next_record(store, 20)[:50])
    disk.crash(power_loss=False)
    disk.remove(end_mark.PATH)
    store = open_store(disk, ROOMY)
    assert store.unclean
    assert any("nothing tells how far it was written" in line for line in store.recovery.lines)


def test_a_store_of_an_older_release_with_nothing_behind_its_end_is_clean() -> None:
    disk = sim_disk()
    written(disk)
    disk.crash(power_loss=False)
    disk.remove(end_mark.PATH)
    store = open_store(disk, ROOMY)
    assert not store.unclean
    assert disk.exists(end_mark.PATH)


def test_the_mark_of_before_another_program_counts_for_nothing() -> None:
    """It may have cut the log since."""
    disk = sim_disk()
    store = written(disk)
    last = store.append(message(20), 20_000)
    store.close()
    disk.map(LOG_FILE, ROOMY.mapped_file_size_commit_log).write(
        last.phy_offset, bytes(last.end_offset - last.phy_offset)
    )
    disk.write_atomic("checkpoint", Checkpoint(1, 2, 3, 4, 5).encode().ljust(4096, b"\0"))
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == last.phy_offset
    assert not any("was written up to" in line for line in store.recovery.lines)


def test_a_cut_lowers_the_mark() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    store.append(message(20), 20_000)
    store.truncate(end)
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == end
    assert not store.unclean


def test_a_loss_of_power_makes_a_mark_of_what_is_left() -> None:
    disk = sim_disk()
    store = written(disk)
    for number in range(20, 40):
        store.append(message(number), number * 1000)
    disk.crash(power_loss=True)
    store = open_store(disk, ROOMY)
    store.mark_clean()
    disk.crash(power_loss=False)
    assert not open_store(disk, ROOMY).unclean


def test_a_mark_of_a_newer_release_is_refused() -> None:
    disk = sim_disk()
    written(disk).close()
    slot = bytearray(disk.read(end_mark.PATH))
    slot[5] = end_mark.VERSION + 1
    slot[16:20] = end_mark.checksum(bytes(slot[:16]))
    disk.write_atomic(end_mark.PATH, bytes(slot))
    with pytest.raises(StoreError, match=r"rmqha.end has version 2, this release reads up to 1; use the release"):
        open_store(disk, ROOMY)


def test_an_append_costs_the_mark_one_write_and_no_sync() -> None:
    disk = sim_disk()
    store: Store = written(disk)
    before = disk.operations
    store.append(message(20), 20_000)
    assert disk.operations == before + 2, "the record and the mark"


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=6))
def test_the_mark_is_the_newest_offset(offsets: list[int]) -> None:
    disk = sim_disk()
    mark = EndMark(disk)
    mark.lower(0)
    for offset in sorted(offsets):
        mark.raise_to(offset)
    mark.close()
    again = EndMark(disk)
    assert again.load() == []
    assert again.offset == max(offsets)
    again.lower(min(offsets))
    third = EndMark(disk)
    third.load()
    assert third.offset == min(offsets)
