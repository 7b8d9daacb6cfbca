"""The walk over the log finds every damaged record, once, and passes none that is sound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.message import encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.integrity.scrubber import Scrubber
from rmqha.store.store import Store
from tests.simulation.faults.covered import is_noticed
from tests.store.support import SMALL, commit_all, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

FILE_BYTES = SMALL.mapped_file_size_commit_log
COUNT = 60


def settled(disk: object = None) -> tuple[Store, list[int]]:
    store = open_store(disk or sim_disk(), tracer=RecordingTracer())  # type: ignore[arg-type]
    starts = [int(store.append(message(number, body=b"%d" % number * 60), 1).phy_offset) for number in range(COUNT)]
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(1 << 20):
        pass
    store.sync()
    return store, starts


def walk(scrubber: Scrubber, piece_bytes: int) -> None:
    """One pass."""
    while (piece := scrubber.next_piece(piece_bytes)) is not None:
        assert 0 < piece[1] - piece[0] <= piece_bytes
        scrubber.check(piece, scrubber.read(piece))


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, FILE_BYTES, 1 << 20])
def test_a_sound_log_is_passed_whole(piece_bytes: int) -> None:
    store, _ = settled()
    assert store.max_phy_offset > 3 * FILE_BYTES
    scrubber = Scrubber(store)
    for number in (1, 2):
        walk(scrubber, piece_bytes)
        assert scrubber.pass_count == number and scrubber.checked_bytes == number * store.max_phy_offset
    assert store.damage.found_count == 0


@settings(max_examples=60, deadline=None)
@given(
    which=st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=6),
    at=st.sampled_from([0, 2, 3, 4, 7, 8, 11, 15, 27, 28, 35, 84, 87, 88, 120]),
    bit=st.integers(0, 7),
    piece_bytes=st.integers(1, 5000),
)
def test_each_damaged_record_is_found(which: set[int], at: int, bit: int, piece_bytes: int) -> None:
    """Where heads of neighbours are damaged, one is found when the one before is mended."""
    disk = sim_disk()
    store, starts = settled(disk)
    for number in which:
        place = starts[number] + at
        disk.rot(f"commitlog/{place // FILE_BYTES * FILE_BYTES:020}", place % FILE_BYTES, 1 << bit)
    scrubber, found = Scrubber(store), set[int]()
    for _ in range(len(which) + 1):
        walk(scrubber, piece_bytes)
        for record in store.damage.records:
            found.add(record.phy_offset)
            place = record.phy_offset + at
            disk.rot(f"commitlog/{place // FILE_BYTES * FILE_BYTES:020}", place % FILE_BYTES, 1 << bit)
            store.damage.repaired(record.phy_offset, "the test")
    covered = {number for number in which if not 12 <= at < 28}  # queue id, flag and queue offset are in no CRC
    assert found == {starts[number] for number in covered}
    assert store.damage.found_count == len(covered)


SECTOR_BYTES = 512


def crc_settled(disk: SimDisk, *, has_crc: bool) -> tuple[Store, list[int]]:
    """Records whose properties are longer than a sector now and then."""
    store = open_store(disk, replace(SMALL, enabled_append_prop_crc=has_crc), RecordingTracer())
    starts = []
    for number in range(COUNT):
        properties = encode_properties({"key": "k" * (number * 37 % 700)})
        new = replace(message(number, body=b"%d" % number * (number % 7)), properties=properties)
        starts.append(int(store.append(new, 1).phy_offset))
    commit_all(store)
    store.sync()
    return store, starts


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.integers(0, 200), st.integers(-1, 200))
def test_a_sector_that_lands_elsewhere_is_noticed_where_the_guarantees_say(
    has_crc: bool, landed: int, source: int
) -> None:
    """Each record that it changes, one after the other as they are mended. `source` -1: the sector is zeros, as if its
    write had been lost."""
    disk = sim_disk()
    store, starts = crc_settled(disk, has_crc=has_crc)
    whole = log_bytes(store)
    count = len(whole) // SECTOR_BYTES - 1
    at, taken = landed % count * SECTOR_BYTES, source % count * SECTOR_BYTES
    new = bytes(SECTOR_BYTES) if source < 0 else whole[taken : taken + SECTOR_BYTES]
    if not is_noticed(store, FILE_BYTES, at, new, by_record=has_crc):
        return

    def put(start: int, data: bytes) -> None:
        path = f"commitlog/{start // FILE_BYTES * FILE_BYTES:020}"
        for place, byte in enumerate(data, start):
            if mask := byte ^ store.view(PhyOffset(place), 1)[0]:
                disk.rot(path, place % FILE_BYTES, mask)

    ends = [*starts[1:], len(whole)]
    struck = {
        start
        for start, end in zip(starts, ends, strict=True)
        if any(whole[place] != new[place - at] for place in range(max(start, at), min(end, at + SECTOR_BYTES)))
    }
    put(at, new)
    scrubber, found = Scrubber(store), set[int]()
    for _ in range(len(struck) + 1):
        walk(scrubber, 4096)
        for record in store.damage.records:
            found.add(record.phy_offset)
            put(record.phy_offset, whole[record.phy_offset : ends[starts.index(record.phy_offset)]])
            store.damage.repaired(record.phy_offset, "the test")
    assert found == struck and log_bytes(store) == whole


def test_a_sector_that_cannot_be_read_is_told_and_passed() -> None:
    disk = sim_disk()
    store, starts = settled(disk)
    disk.spoil(f"commitlog/{0:020}", 700)
    last = starts[-1] + 90
    disk.rot(f"commitlog/{last // FILE_BYTES * FILE_BYTES:020}", last % FILE_BYTES)
    scrubber = Scrubber(store)
    walk(scrubber, 512)
    assert "input/output error" in scrubber.unreadable
    assert [record.phy_offset for record in store.damage.records] == [starts[-1]], "the other files are looked at"
    walk(scrubber, 512)
    assert "input/output error" in scrubber.state().unreadable


def test_what_is_cut_under_way_is_left_alone() -> None:
    store, starts = settled()
    scrubber = Scrubber(store)
    piece = scrubber.next_piece(FILE_BYTES)
    assert piece is not None
    trouble = scrubber.read(piece)
    store.truncate(PhyOffset(starts[2]))
    scrubber.check(piece, trouble)
    assert scrubber.checked_bytes == 0
    walk(scrubber, 100)
    assert scrubber.checked_bytes == starts[2]
