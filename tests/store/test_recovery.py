"""What opening finds: tails, holes, old and foreign marks. One sentence each."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest

from rmqha.model.error import StoreError
from rmqha.model.message import tags_code
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import encode, topic_field
from rmqha.store.meta import sidecar
from rmqha.store.meta.checkpoint import Checkpoint
from rmqha.store.store import Store
from tests.store.support import SMALL, bodies, commit_all, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

LOG_FILE = "commitlog/" + "0" * 20
QUEUE_FILE = "consumequeue/T/0/" + "0" * 20
ROOMY = replace(SMALL, mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=4000, max_message_size=3000)


def written(disk: SimDisk, count: int = 20, config: StoreConfig = ROOMY) -> Store:
    """A store with `count` messages, everything committed, synced and saved."""
    store = open_store(disk, config)
    for number in range(count):
        store.append(message(number, body=b"m%d" % number * 20), number * 1000)
    commit_all(store)
    store.append_epoch(Epoch(1), PhyOffset(0))
    store.sync()
    return store


def write_behind(disk: SimDisk, store: Store, data: bytes, at: int | None = None) -> None:
    region = disk.map(LOG_FILE, ROOMY.mapped_file_size_commit_log)
    region.write(store.max_phy_offset if at is None else at, data)
    region.sync()


def next_record(store: Store, queue_offset: int, phy_offset: int | None = None) -> bytes:
    topic, version = topic_field("T")
    at = store.max_phy_offset if phy_offset is None else phy_offset
    return encode(message(99), topic, version, queue_offset, at, 99_000)


# --- the log's tail ---------------------------------------------------------------------------------------------------
def test_a_clean_stop_and_a_kill_are_checked_from_the_last_save_on() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    late = store.append(message(50), 19_001)
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert store.recovery.checked_from == end
    assert f"After a killed process the log was checked from {end} to {late.end_offset}." in store.recovery.lines
    store.close()
    store = open_store(disk, ROOMY)
    assert (
        store.recovery.lines == [f"After a clean stop the log was checked from {late.end_offset} to {late.end_offset}."]
        or store.recovery.checked_from == end
    )


@pytest.mark.parametrize("size", [1, 3, 50, 90])
def test_a_torn_tail_is_cut(size: int) -> None:
    disk = sim_disk()
    store = written(disk)
    end, log = store.max_phy_offset, log_bytes(store)
    write_behind(disk, store, next_record(store, 20)[:size].rstrip(b"\0") or b"\0")
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert log_bytes(store) == log
    assert not any(disk.read(LOG_FILE)[end:])
    assert any("bytes behind it were dropped" in line for line in store.recovery.lines) == (size > 3)
    assert not store.unclean


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (b"\xff" * 3000, "expected magic 0xDAA320A7 or 0xDAA320AB, found 0xFFFFFFFF"),
        (b"\0" * 100 + b"later", ""),
        (b"\0\0\0\x64\xda\xa3\x20\xa7" + b"\0" * 300 + b"x", "expected physicalOffset"),
    ],
)
def test_a_garbage_tail_is_cut_and_named(garbage: bytes, said: str) -> None:
    disk = sim_disk()
    store = written(disk)
    end, log = store.max_phy_offset, log_bytes(store)
    write_behind(disk, store, garbage)
    disk.crash(power_loss=True)
    store = open_store(disk, ROOMY)
    assert log_bytes(store) == log
    assert not any(disk.read(LOG_FILE)[end:])
    assert any(f"{LOG_FILE} at byte {end}: {said}" in line for line in store.recovery.lines) == bool(said)
    assert f"The log was cut to {end}: {len(garbage)} bytes behind it were dropped." in store.recovery.lines


@pytest.mark.parametrize("behind", [b"", b"garbage"])
def test_all_that_was_there_at_the_start_may_have_to_be_read_from_the_disk(behind: bytes) -> None:
    """Nothing is in memory after a loss of power; what this process writes is."""
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    write_behind(disk, store, behind)
    disk.crash(power_loss=True)
    store = open_store(disk, ROOMY)
    disk.cold = Always()
    entry = store.pull("T", 0, 0, 32, 1 << 20, None, from_memory=True)
    assert entry.cold_range is not None
    assert store.log_loader(PhyOffset(end - 10), 10) is not None
    store.append(message(50), 19_001)
    assert store.log_loader(PhyOffset(end), store.max_phy_offset - end) is None


class Always(SimPrng):
    """All chances come true."""

    def __init__(self) -> None:
        super().__init__(1)

    def chance(self, numerator: int, denominator: int) -> bool:
        return True


def test_a_stale_record_of_another_place_is_no_record() -> None:
    """Whole, with a valid CRC, but physicalOffset is not its position."""
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    write_behind(disk, store, next_record(store, 20, end + 1000))
    disk.crash(power_loss=True)
    assert open_store(disk, ROOMY).max_phy_offset == end


def test_a_whole_record_behind_a_gap_does_not_come_back() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    write_behind(disk, store, next_record(store, 20, end + 500), end + 500)
    disk.crash(power_loss=True)
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == end
    assert not any(disk.read(LOG_FILE)[end:])


def test_a_whole_record_at_the_end_is_taken_in() -> None:
    disk = sim_disk()
    store = written(disk)
    end = store.max_phy_offset
    record = next_record(store, 20)
    write_behind(disk, store, record)
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert store.max_phy_offset == end + len(record)
    commit_all(store)
    assert store.queue_range("T", 0) == (0, 21)


def test_files_behind_the_end_are_removed() -> None:
    disk = sim_disk()
    store = written(disk, config=SMALL)
    end = store.max_phy_offset
    behind = -(-end // 4096) * 4096
    for start in (behind, behind + 4096):
        disk.map(f"commitlog/{start:020d}", 4096, create=True)
    disk.crash(power_loss=False)
    store = open_store(disk)
    assert store.max_phy_offset == end
    assert disk.list("commitlog") == [f"{at:020d}" for at in range(0, end, 4096)]


# --- marks ------------------------------------------------------------------------------------------------------------
def test_without_progress_the_checkpoints_times_choose_the_file() -> None:
    disk = sim_disk()
    store = written(disk, 200, SMALL)
    assert len(disk.list("commitlog")) > 6
    disk.crash(power_loss=False)
    disk.remove("rmqha.progress")
    first_stored = {at: 1000 * number for number, at in enumerate(range(0, store.max_phy_offset, 4096))}
    disk.write_atomic("checkpoint", Checkpoint(103_000, 110_000).encode().ljust(4096, b"\0"))
    reopened = open_store(disk)
    assert reopened.recovery.checked_from in first_stored
    parts = reopened.record_at(reopened.recovery.checked_from)
    assert parts is not None
    stored = int.from_bytes(parts[56:64], "big")
    assert 103_000 - 3000 - 40_000 < stored <= 103_000 - 3000
    assert log_bytes(reopened) == log_bytes(store)
    commit_all(reopened)
    assert reopened.queue_range("T", 0) == (0, 200)


def test_a_checkpoint_of_another_program_makes_progress_void() -> None:
    disk = sim_disk()
    store = written(disk)
    store.close()
    disk.write_atomic("checkpoint", Checkpoint(1, 2, 3, 4, 5).encode().ljust(4096, b"\0"))
    store = open_store(disk, ROOMY)
    assert store.recovery.checked_from == 0
    assert "checkpoint was written by another program since; its times are used." in store.recovery.lines
    assert store.queue_range("T", 0) == (0, 20)


def test_a_damaged_checkpoint_or_progress_costs_time_only() -> None:
    for path, content in (
        ("checkpoint", b"\xff" * 4096),
        ("checkpoint", b""),
        ("rmqha.progress", b"\xff" * 1024),
        ("rmqha.progress", b"x" * 5000),
        ("rmqha.progress", b""),
    ):
        disk = sim_disk()
        store = written(disk)
        log = log_bytes(store)
        store.close()
        disk.write_atomic(path, content)
        store = open_store(disk, ROOMY)
        assert log_bytes(store) == log
        assert store.recovery.checked_from == 0
        assert store.queue_range("T", 0) == (0, 20)
        assert not store.unclean
        commit_all(store)
        store.close()


def test_a_checkpoint_of_another_size_is_refused() -> None:
    disk = sim_disk()
    written(disk).close()
    disk.write_atomic("checkpoint", bytes(5000))
    with pytest.raises(StoreError, match="checkpoint at byte 4096: expected the end of the file, found 904 more"):
        open_store(disk, ROOMY)


@pytest.mark.parametrize("path", ["rmqha.boot", "rmqha.highestEpoch"])
def test_a_newer_sidecar_is_refused_in_one_sentence(path: str) -> None:
    disk = sim_disk()
    store = written(disk)
    store.accept_epoch(Epoch(3))
    store.close()
    payload = cbor2.dumps({"whatever": 1})
    disk.write_atomic(path, cbor2.dumps([sidecar.VERSION + 1, payload, 0]))
    with pytest.raises(StoreError, match=f"sim/{path} has version 2, this release reads up to 1; use the release"):
        open_store(disk, ROOMY)
    assert not disk.exists("abort"), "nothing was started"


def test_a_damaged_boot_sidecar_counts_as_a_loss_of_power() -> None:
    disk = sim_disk()
    written(disk).close()
    disk.rot("rmqha.boot", 6)
    store = open_store(disk, ROOMY)
    assert store.unclean
    assert any("rmqha.boot: expected" in line for line in store.recovery.lines)
    assert store.queue_range("T", 0) == (0, 20)


def test_a_damaged_highest_epoch_is_not_guessed() -> None:
    disk = sim_disk()
    store = written(disk)
    store.accept_epoch(Epoch(3))
    store.close()
    disk.rot("rmqha.highestEpoch", 6)
    with pytest.raises(StoreError, match=r"sim/rmqha.highestEpoch at byte 0: expected .* found .*; restore it"):
        open_store(disk, ROOMY)


def test_a_crash_during_the_check_after_a_loss_of_power_repeats_it() -> None:
    disk = sim_disk()
    written(disk)
    disk.crash(power_loss=True)
    disk.stop_after = disk.operations + 4
    with pytest.raises(DiskStopped):
        open_store(disk, ROOMY)
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert any(line.startswith("After a loss of power") for line in store.recovery.lines)
    disk.crash(power_loss=False)
    assert any(line.startswith("After a killed process") for line in open_store(disk, ROOMY).recovery.lines)


def test_findings_are_traced_too() -> None:
    disk, trace = sim_disk(), RecordingTracer()
    written(disk).close()
    store = open_store(disk, ROOMY, trace)
    assert [fields["finding"] for name, fields in trace.events if name == "recovery"] == store.recovery.lines


# --- queues -----------------------------------------------------------------------------------------------------------
def queue_image(disk: SimDisk) -> bytes:
    return disk.read(QUEUE_FILE)


@pytest.mark.parametrize("hole", [(0, 512), (512, 1024), (100, 140), (390, 400)])
def test_a_hole_in_a_queue_is_found_after_a_loss_of_power_and_filled_again(hole: tuple[int, int]) -> None:
    disk = sim_disk()
    written(disk, 60)
    image = queue_image(disk)
    disk.crash(power_loss=True)
    region = disk.map(QUEUE_FILE, len(image))
    region.write(hole[0], bytes(hole[1] - hole[0]))
    store = open_store(disk, ROOMY)
    assert queue_image(disk) == image
    assert store.queue_range("T", 0) == (0, 60)
    assert any("The queues are made anew from" in line for line in store.recovery.lines)


def test_the_code_of_an_entry_that_was_half_in_a_lost_sector_is_made_anew() -> None:
    disk = sim_disk()
    store = open_store(disk, ROOMY)
    for number in range(60):
        store.append(message(number, properties=b"TAGS\x01a\x02"), number * 1000)
    commit_all(store)
    store.sync()
    image = queue_image(disk)
    disk.crash(power_loss=True)
    disk.map(QUEUE_FILE, len(image)).write(512, bytes(512))
    store = open_store(disk, ROOMY)
    assert len(store.pull("T", 0, 0, 100, 1 << 20, frozenset([tags_code("a")])).records) == 60
    assert queue_image(disk) == image


@pytest.mark.parametrize("at", [1199, 1190, 1187])
def test_the_newest_entry_must_agree_with_its_record(at: int) -> None:
    """After a kill only the tail is looked at."""
    disk = sim_disk()
    written(disk, 60)
    image = queue_image(disk)
    disk.crash(power_loss=False)
    disk.rot(QUEUE_FILE, at, 0x40)
    store = open_store(disk, ROOMY)
    if at == 1199:
        assert queue_image(disk) != image, "a tagsCode is not in the log to compare with"
        return
    assert queue_image(disk) == image
    assert any("damaged entries from 59 on were dropped" in line for line in store.recovery.lines)


def test_entries_that_point_behind_the_log_are_dropped() -> None:
    disk = sim_disk()
    store = written(disk, 60)
    last = store.append(message(60), 60_000)
    commit_all(store)
    disk.crash(power_loss=False)
    region = disk.map(LOG_FILE, ROOMY.mapped_file_size_commit_log)
    region.write(last.phy_offset, bytes(last.end_offset - last.phy_offset))
    store = open_store(disk, ROOMY)
    assert store.queue_range("T", 0) == (0, 60)
    assert (
        f"consumequeue/T/0: entries from 60 on point behind the log's end {last.phy_offset} and were dropped."
        in store.recovery.lines
    )


def test_a_removed_queue_directory_is_made_anew() -> None:
    disk = sim_disk()
    store = written(disk, 60)
    store.close()
    image = queue_image(disk)
    disk.remove(QUEUE_FILE)
    store = open_store(disk, ROOMY)
    assert "The queues are made anew from 0 on." in store.recovery.lines
    assert queue_image(disk) == image
    assert store.append(message(60), 60_000).queue_offset == 60


def test_the_topics_file_may_be_unreadable() -> None:
    disk = sim_disk()
    written(disk).close()
    disk.write_atomic("config/topics.json", b"{{{")
    store = open_store(disk, ROOMY)
    assert any("sim/config/topics.json cannot be read" in line for line in store.recovery.lines)


@pytest.mark.parametrize("cut_count", [0, 2])
def test_store_times_do_not_fall_after_a_cut_and_a_kill(cut_count: int) -> None:
    """The cut lowers the times of the checkpoint, and leaves nothing to be checked; the wall clock was set back."""
    disk = sim_disk()
    store = open_store(disk)
    stored = [store.append(message(number), 1000 * number) for number in range(1, 6)]
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(1 << 20):
        pass
    store.sync()
    end = stored[-1 - cut_count].end_offset
    store.truncate(end)
    for _ in range(2):
        disk.crash(power_loss=False)
        store = open_store(disk)
    assert store.max_phy_offset == end
    assert store.append(message(6), 1).store_timestamp_ms == 1000 * (5 - cut_count)


@pytest.mark.parametrize("log_begins_behind", [False, True])
def test_a_queue_whose_first_files_went_with_the_power(log_begins_behind: bool) -> None:
    """Of the files behind them only the names are left: they do not say where the queue goes on (plain 3000134)."""
    disk = sim_disk()
    store = open_store(disk)
    if log_begins_behind:
        store.restart_at(PhyOffset(40960))
        store.queue_min_offsets.learn([])
    for number in range(200):
        store.append(message(number), number)
    commit_all(store)
    wanted = bodies(store)
    store.sync()
    disk.crash(power_loss=True)
    directory = "consumequeue/T/0"
    first, *others = sorted(disk.list(directory))
    disk.remove(f"{directory}/{first}")
    for name in others:
        disk.write_atomic(f"{directory}/{name}", bytes(SMALL.mapped_file_size_consume_queue))
    store = open_store(disk)
    assert any("are missing; all are made anew" in line for line in store.recovery.lines)
    assert store.lacks_queue_ends == log_begins_behind
    commit_all(store)
    assert bodies(store) == wanted
    assert store.append(message(200), 200).queue_offset == 200


def test_a_rotten_head_of_its_file_does_not_forbid_a_cut() -> None:
    """Where a slave is to cut a fork the file's first record may be rotten; its time only saves work after a kill."""
    disk = sim_disk()
    store = written(disk)
    end = store.append(message(99), 99_000).phy_offset
    disk.rot(LOG_FILE, 4, 0xFF)
    store.truncate(PhyOffset(end))
    assert store.max_phy_offset == end
    assert store._checkpoint.value.physic_msg_timestamp_ms == 0
    disk.crash(power_loss=False)
    assert open_store(disk, ROOMY).max_phy_offset == end
