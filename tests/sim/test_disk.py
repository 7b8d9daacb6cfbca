"""The simulated disk forgets what a disk may forget, keeps what it must keep, and does both the same way each time."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.sim.disk import SECTOR_BYTES, DiskStopped, SimDisk
from rmqha.sim.prng import SimPrng


def disk(seed: int = 1) -> SimDisk:
    return SimDisk(SimPrng(seed))


def test_a_kill_keeps_the_page_cache() -> None:
    one = disk()
    boot = one.boot_id()
    one.map("m", 4096, create=True).write(100, b"unsynced")
    one.open_append("log").append(b"unsynced")
    one.crash(power_loss=False)
    assert one.read("m")[100:108] == b"unsynced"
    assert one.read("log") == b"unsynced"
    assert one.boot_id() == boot


def test_a_loss_of_power_keeps_what_was_synced_and_changes_the_boot_id() -> None:
    for seed in range(20):
        one = disk(seed)
        boot = one.boot_id()
        region = one.map("m", 4096, create=True)
        region.write(0, b"s" * 1024)
        region.sync()
        one.write_atomic("a", b"atomic")
        one.write_atomic("b", b"moved")
        one.rename("b", "c")
        one.crash(power_loss=True)
        assert one.read("m") == b"s" * 1024 + bytes(3072)
        assert (one.read("a"), one.read("c"), one.exists("b")) == (b"atomic", b"moved", False)
        assert one.boot_id() != boot


def test_unsynced_sectors_are_old_or_new_each_by_itself() -> None:
    outcomes = set()
    for seed in range(64):
        one = disk(seed)
        region = one.map("m", 2048, create=True)
        region.write(0, b"o" * 2048)
        region.sync()
        region.write(256, b"n" * 1024)  # touches sectors 0, 1 and 2
        one.crash(power_loss=True)
        content = one.read("m")
        assert content[:256] + content[1280:] == b"o" * 1024
        assert content[256:512] in (b"o" * 256, b"n" * 256)
        assert content[512:1024] in (b"o" * 512, b"n" * 512)
        assert content[1024:1280] in (b"o" * 256, b"n" * 256)
        outcomes.add((content[256], content[512], content[1024]))
    assert len(outcomes) == 8


def test_an_unsynced_tail_of_an_append_file_may_be_short_or_torn() -> None:
    sizes = set()
    for seed in range(40):
        one = disk(seed)
        file = one.open_append("log")
        file.append(b"a" * 100)
        file.sync()
        file.append(b"b" * 2000)
        one.crash(power_loss=True)
        content = one.read("log")
        assert content[:100] == b"a" * 100
        assert set(content[100:]) <= set(b"b\0")
        sizes.add(len(content))
    assert min(sizes) < 2100 and len(sizes) > 5


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=600))))
@settings(max_examples=50)
def test_the_same_seed_gives_the_same_loss(seed: int, writes: list[tuple[int, bytes]]) -> None:
    contents = []
    for _ in range(2):
        one = disk(seed)
        region = one.map("m", 4096, create=True)
        for position, data in writes:
            region.write(position, data)
        one.crash(power_loss=True)
        contents.append(one.read("m"))
    assert contents[0] == contents[1]


def test_locks_are_free_after_a_crash_and_old_releases_do_nothing() -> None:
    one = disk()
    release = one.lock("lock")
    assert release is not None
    one.crash(power_loss=False)
    assert one.lock("lock") is not None
    release()
    assert one.lock("lock") is None


def test_regions_of_before_a_crash_are_dead() -> None:
    one = disk()
    region = one.map("m", 512, create=True)
    view = region.view(0, 4)
    region.write(0, b"then")
    one.crash(power_loss=False)
    with pytest.raises(AssertionError):
        region.write(0, b"late")
    again = one.map("m", 512)
    again.write(0, b"now!")
    assert bytes(view) == b"then"
    with pytest.raises(TypeError):
        again.view(0, 4)[0] = 1


def test_a_full_disk_refuses_to_create_and_to_grow() -> None:
    one = disk()
    one.capacity_bytes = 5000
    one.map("m", 4096, create=True)
    for attempt in (
        lambda: one.map("n", 4096, create=True),
        lambda: one.write_atomic("a", bytes(1000)),
        lambda: one.open_append("log").append(bytes(1000)),
    ):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
    assert one.space() == (4096, 904)
    one.remove("m")
    one.write_atomic("a", bytes(1000))


def test_a_failing_disk_says_so_and_keeps_what_it_had() -> None:
    one = disk()
    region = one.map("m", 512, create=True)
    region.write(0, b"old")
    region.sync()
    one.make_dirs("d")
    one.failing = frozenset({"read", "write", "sync", "create", "rename", "remove"})
    for attempt in (
        lambda: region.write(0, b"new"),
        region.sync,
        lambda: one.read("m"),
        lambda: one.write_atomic("a", b""),
        lambda: one.rename("m", "n"),
        lambda: one.remove("m"),
        lambda: one.remove_tree("d"),
    ):
        with pytest.raises(OSError, match="Input/output"):
            attempt()
    one.failing = frozenset()
    assert one.read("m")[:3] == b"old"


def test_rot_survives_everything() -> None:
    one = disk()
    one.write_atomic("a", b"\x00\x01")
    one.rot("a", 1, 0x10)
    one.crash(power_loss=True)
    assert one.read("a") == b"\x00\x11"


def test_the_machine_stops_at_the_chosen_operation_with_a_torn_write() -> None:
    lengths = set()
    for seed in range(30):
        one = disk(seed)
        region = one.map("m", 512, create=True)
        one.stop_after = one.operations + 2
        region.write(0, b"a" * 100)
        with pytest.raises(DiskStopped):
            region.write(100, b"b" * 100)
        with pytest.raises(DiskStopped):
            region.sync()
        with pytest.raises(DiskStopped):
            one.write_atomic("late", b"")
        one.crash(power_loss=False)
        content = one.read("m").rstrip(b"\0")
        assert content == b"a" * 100 + b"b" * (len(content) - 100)
        assert not one.exists("late")
        lengths.add(len(content))
    assert len(lengths) > 10


def test_sectors_are_the_stores_sectors() -> None:
    from rmqha.store.log import record

    assert record.SECTOR_BYTES == SECTOR_BYTES


def test_a_file_that_need_not_be_durable_yet_is_there_whole_or_short_or_gone_until_it_is_synced() -> None:
    outcomes = set()
    for seed in range(40):
        one = disk(seed)
        one.map("m", 2048, create=True, durable=False).write(0, b"n" * 2048)
        one.map("s", 2048, create=True, durable=False).sync()
        one.crash(power_loss=True)
        assert one.size_bytes("s") == 2048
        outcomes.add("gone" if not one.exists("m") else "whole" if one.size_bytes("m") == 2048 else "short")
        if one.exists("m"):
            one.crash(power_loss=True)
            assert one.exists("m")
    assert outcomes >= {"gone", "short"}


def test_a_sync_that_fails_leaves_its_pages_clean() -> None:
    """As Linux does: the cache shows what was written, the next sync has nothing to write, and the power takes it."""
    one = disk()
    region = one.map("m", 4096, create=True)
    region.write(0, b"a" * 512)
    region.sync()
    region.write(0, b"b" * 512)
    one.forgetting_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        region.sync()
    region.write(1024, b"c" * 512)
    region.sync()
    assert one.read("m")[:512] == b"b" * 512
    one.crash(power_loss=False)
    assert one.read("m")[:512] == b"b" * 512
    one.drop_cache()
    assert one.read("m")[:2048] == b"a" * 512 + bytes(512) + b"c" * 512 + bytes(512)


def test_what_a_failed_sync_forgot_is_lost_with_the_power_unless_it_is_written_again() -> None:
    for again in (False, True):
        one = disk()
        file = one.open_append("log")
        file.append(b"a" * 600)
        file.sync()
        file.append(b"b" * 600)
        one.forgetting_syncs = 1
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        if again:
            file.truncate(600)
            file.append(b"b" * 600)
        file.sync()
        one.crash(power_loss=True)
        assert (one.read("log") == b"a" * 600 + b"b" * 600) == again


def test_a_sync_that_lies_loses_one_sector_or_puts_it_elsewhere() -> None:
    seen = set()
    for seed in range(40):
        one = disk(seed)
        region = one.map("m", 2048, create=True)
        region.write(0, b"".join(bytes([letter]) * 512 for letter in b"abcd"))
        region.sync()
        written = b"".join(bytes([letter]) * 512 for letter in b"ABcd")
        region.write(0, written[:1024])
        one.lying_syncs = 1
        region.sync()
        assert one.read("m") == written
        one.crash(power_loss=True)
        content = one.read("m")
        assert content != written
        seen.add(bytes(content[::512]))
    assert {b"aBcd", b"Abcd"} <= seen and len(seen) > 4


def test_a_rotten_sector_is_another_one_in_the_cache_and_on_the_medium() -> None:
    for seed in range(20):
        one = disk(seed)
        region = one.map("m", 2048, create=True)
        written = b"".join(bytes([letter]) * 512 for letter in b"abcd")
        region.write(0, written)
        region.sync()
        start = one.rot_sector("m", SimPrng(seed))
        found = one.read("m")
        assert found[:start] + found[start + 512 :] == written[:start] + written[start + 512 :]
        one.crash(power_loss=True)
        assert one.read("m") == found
