"""The epoch file: RocketMQ's text, its backup, our checksum; and the highest accepted epoch."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import StoreError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.meta import sidecar
from rmqha.store.meta.epoch_file import (
    BACKUP_PATH,
    CHECKSUM_PATH,
    COPY_PATH,
    PATH,
    BadEpochFileError,
    EpochFile,
    encode,
    parse,
)
from tests.store.support import sim_disk


def history(*pairs: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in pairs)


def written(disk: SimDisk, *pairs: tuple[int, int]) -> EpochFile:
    file = EpochFile(disk)
    for epoch, start in pairs:
        assert file.append(EpochEntry(Epoch(epoch), PhyOffset(start)))
    return file


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), max_size=20))
def test_round_trip(steps: list[tuple[int, int]]) -> None:
    epoch = start = 0
    pairs = []
    for more_epochs, more_bytes in steps:
        pairs.append((epoch := epoch + more_epochs, start := start + more_bytes))
    assert parse(encode(history(*pairs))) == history(*pairs)


def test_the_text_is_rocketmqs() -> None:
    assert encode(history((1, 0), (2, 1592610), (3, 2379663), (4, 3157115))) == (
        b"4\n153493350\n1-0\n2-1592610\n3-2379663\n4-3157115\n"
    )
    assert encode(history()) == b"0\n0\n"
    assert parse(b"2\n0\n1-0\n5-7\n") == history((1, 0), (5, 7))


@pytest.mark.parametrize(
    ("data", "at", "expected"),
    [
        (b"", 0, "a count, a checksum"),
        (b"1\n0\n1-0", 7, "each ended by a newline"),
        (b"x\n0\n", 0, "the number of entries, found 'x'"),
        (b"1\n-5\n1-0\n", 2, "a checksum, found '-5'"),
        (b"2\n0\n1-0\n", 0, "2 entries, found 1"),
        (b"1\n7\n1-0\n", 2, "entries with checksum 7"),
        (b"1\n0\n1:0\n", 4, "epoch-startOffset, found '1:0'"),
        (b"1\n0\n1-\xff\n", 6, "a start offset"),
        (b"1\n0\n99999999999999999999-0\n", 4, "an epoch"),
        (b"2\n0\n2-0\n2-5\n", 8, "more than 2-0, found '2-5'"),
        (b"2\n0\n1-5\n2-5\n", 8, "more than 1-5, found '2-5'"),
    ],
)
def test_what_is_no_epoch_file_is_named(data: bytes, at: int, expected: str) -> None:
    with pytest.raises(BadEpochFileError, match="expected .*" + expected) as caught:
        parse(data)
    assert caught.value.at == at


def test_the_backup_is_always_a_prefix() -> None:
    disk = sim_disk()
    file = written(disk, (1, 0), (3, 100), (4, 200))
    assert parse(disk.read(BACKUP_PATH)) == history((1, 0), (3, 100))
    assert file.truncate(PhyOffset(100)) == 2
    assert parse(disk.read(PATH)) == history((1, 0))
    assert not disk.exists(BACKUP_PATH)
    assert file.truncate(PhyOffset(100)) == 0
    assert file.drop_beyond(PhyOffset(0)) == 0
    assert file.clear() == 1
    assert parse(disk.read(PATH)) == history()


def test_a_new_entry_costs_three_operations_and_a_cut_three() -> None:
    disk = sim_disk()
    file = written(disk, (1, 0), (3, 100))
    before = disk.operations
    assert file.append(EpochEntry(Epoch(4), PhyOffset(200)))
    assert disk.operations == before + 3
    file.truncate(PhyOffset(150))
    assert disk.operations == before + 6


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize("with_copy", [False, True])
def test_an_append_that_a_crash_stopped_leaves_one_history_or_the_other(stop: int, with_copy: bool) -> None:
    """Without a copy: an older release was stopped."""
    disk = sim_disk()
    file = written(disk, (1, 0), (3, 100))
    disk.stop_after = disk.operations + stop
    with pytest.raises(DiskStopped):
        file.append(EpochEntry(Epoch(4), PhyOffset(200)))
    disk.crash(power_loss=True)
    if not with_copy:
        disk.remove(COPY_PATH)
    file = EpochFile(disk)
    lines = file.load(1000)
    assert file.history == history((1, 0), (3, 100), *[(4, 200)] * (stop == 3 and with_copy))
    assert [line.partition(":")[0] for line in lines] == ["epochFileCheckpoint at byte 0"] * (stop == 3)


DAMAGES = (b"", b"garbage", b"2\n1\n1-0\n3-100\n")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_taken_from_our_copy(damage: bytes) -> None:
    """Its `.bak` lacks the newest epoch: a handshake would have left what another master wrote in it."""
    disk = sim_disk()
    written(disk, (1, 0), (3, 100), (4, 200))
    disk.write_atomic(PATH, damage)
    file = EpochFile(disk)
    lines = file.load(1000)
    assert file.history == history((1, 0), (3, 100), (4, 200))
    assert len(lines) == 1 and lines[0].endswith("rmqha.epochs with 3 entries was taken.")
    again = EpochFile(disk)
    assert again.load(1000) == []
    assert again.history == file.history


def lose_copy(disk: SimDisk) -> None:
    disk.remove(COPY_PATH)


def rot_copy(disk: SimDisk) -> None:
    disk.rot(COPY_PATH, 9)


def let_java_append(disk: SimDisk) -> None:
    """As RocketMQ does: the old file becomes `.bak`."""
    disk.rename(PATH, BACKUP_PATH)
    disk.write_atomic(PATH, encode(history((1, 0), (3, 100), (4, 200), (7, 300))))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("spoil", [lose_copy, rot_copy, let_java_append])
def test_a_backup_never_stands_in_for_a_damaged_file(spoil: Callable[[SimDisk], None], damage: bytes) -> None:
    disk = sim_disk()
    written(disk, (1, 0), (3, 100), (4, 200))
    spoil(disk)
    disk.write_atomic(PATH, damage)
    with pytest.raises(
        StoreError,
        match=r"sim/epochFileCheckpoint at byte .*; epochFileCheckpoint.bak cannot stand in"
        r" \(expected the newest entry, found those before it\); restore it from a backup",
    ):
        EpochFile(disk).load(1000)


def test_a_copy_of_before_another_program_counts_for_nothing() -> None:
    disk = sim_disk()
    written(disk, (1, 0), (3, 100), (4, 200))
    disk.write_atomic(PATH, b"garbage")
    with pytest.raises(StoreError, match="cannot stand in"):
        EpochFile(disk).load(1000, is_foreign=True)


def test_a_file_of_an_older_release_gets_its_copy() -> None:
    disk = sim_disk()
    written(disk, (1, 0), (3, 100))
    disk.remove(COPY_PATH)
    assert EpochFile(disk).load(1000) == []
    disk.write_atomic(PATH, b"garbage")
    file = EpochFile(disk)
    file.load(1000)
    assert file.history == history((1, 0), (3, 100))


def test_a_backup_that_does_not_fit_the_log_is_no_help() -> None:
    disk = sim_disk()
    written(disk, (1, 0), (3, 100), (4, 200))
    disk.remove(COPY_PATH)
    disk.remove(PATH)
    with pytest.raises(
        StoreError,
        match=r"sim/epochFileCheckpoint at byte 0: expected a file, found none; epochFileCheckpoint.bak cannot stand in"
        r" \(expected epochs that start up to 99, found 100\); restore it from a backup",
    ):
        EpochFile(disk).load(99)
    disk.write_atomic(BACKUP_PATH, b"")
    with pytest.raises(StoreError, match="cannot stand in"):
        EpochFile(disk).load(1000)


def test_a_missing_file_is_an_empty_history_unless_there_is_a_backup() -> None:
    disk = sim_disk()
    file = EpochFile(disk)
    assert file.load(1000) == []
    assert file.history == history()
    written(disk, (1, 0), (3, 100))
    disk.remove(PATH)
    disk.remove(COPY_PATH)
    assert len(file.load(1000)) == 1
    assert file.history == history((1, 0))


def test_a_file_without_checksum_is_guarded_by_ours() -> None:
    disk = sim_disk()
    written(disk, (1, 0), (3, 100))
    sidecar.write(disk, CHECKSUM_PATH, {"crc32": crc32(b"2\n0\n1-0\n3-100\n")})
    disk.write_atomic(PATH, b"2\n0\n1-0\n3-900\n")
    file = EpochFile(disk)
    assert any("rmqha.epochChecksum" in line for line in file.load(1000))
    assert file.history == history((1, 0), (3, 100))
    assert not disk.exists(CHECKSUM_PATH), "what we wrote has a checksum of its own"
    disk.write_atomic(PATH, b"2\n0\n1-0\n3-900\n")
    assert file.load(1000) == []
    assert file.history == history((1, 0), (3, 900))


def test_a_file_that_java_wrote_is_taken_by_its_own_checksum() -> None:
    disk = sim_disk()
    written(disk, (1, 0))
    disk.write_atomic(PATH, encode(history((1, 0), (8, 50))))
    file = EpochFile(disk)
    assert file.load(1000) == []
    assert file.history == history((1, 0), (8, 50))
