"""A sync that failed, and the starts after it (ruling 29): Linux calls the pages clean."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqha.host.disk import HostDisk, HostRegion
from rmqha.model.error import StoreError
from rmqha.model.offset import Buffer, Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.meta import end_mark, sidecar
from rmqha.store.store import Store
from tests.store.support import ForgetfulDisk, bodies, commit_all, log_bytes, message, open_store
from tests.store.test_recovery import LOG_FILE, ROOMY, written
from tests.support.tracer import RecordingTracer


def forgetful(seed: int = 1) -> ForgetfulDisk:
    return ForgetfulDisk(SimPrng(seed))


def fail_sync(disk: SimDisk, store: Store, *others: str) -> None:
    """The disk cannot write this once. `others` fail as well."""
    disk.failing = frozenset(("sync", *others))
    with pytest.raises(StoreError):
        store.sync()
    disk.failing = frozenset()


def after_a_failure(disk: SimDisk, *others: str) -> Store:
    """A store with 20 durable messages and 20 that a sync has failed on, as the process ends."""
    store = written(disk)
    for number in range(20, 40):
        store.append(message(number, body=b"m%d" % number * 20), number * 1000)
    commit_all(store)
    fail_sync(disk, store, *others)
    disk.crash(power_loss=False)
    return store


@pytest.mark.parametrize("others", [(), ("create",), ("create", "write")])
def test_what_a_sync_failed_on_is_written_again(others: tuple[str, ...]) -> None:
    """Seen whole in the cache, its progress passed over a hole that the next loss of power showed."""
    for seed in range(8):
        disk = forgetful(seed)
        wanted = log_bytes(after_a_failure(disk, *others))
        store = open_store(disk, ROOMY)
        assert log_bytes(store) == wanted
        commit_all(store)
        store.sync()
        disk.crash(power_loss=True)
        store = open_store(disk, ROOMY)
        assert log_bytes(store) == wanted
        commit_all(store)
        assert len(bodies(store)) == 40


@pytest.mark.parametrize("others", [(), ("create",)])
def test_it_is_remembered_until_the_replica_has_followed(others: tuple[str, ...]) -> None:
    disk = forgetful()
    after_a_failure(disk, *others)
    store = open_store(disk, ROOMY)
    assert store.unclean
    assert any("could not make everything durable" in line for line in store.recovery.lines)
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert store.unclean, "nobody has followed"
    assert not any("could not make everything durable" in line for line in store.recovery.lines), "written again"
    store.mark_clean()
    assert not store.unclean


def test_a_failure_that_cannot_be_written_down_is_told() -> None:
    disk, trace = forgetful(), RecordingTracer()
    store = open_store(disk, ROOMY, trace)
    store.append(message(1), 0)
    disk.failing = frozenset(("sync", "create", "write"))
    with pytest.raises(StoreError, match="nor can this be written down: before this replica is started again restart"):
        store.sync()
    assert trace.names()[-3:] == ["unclean_not_recorded", "unclean_not_recorded", "failure_not_recorded"]


def test_following_alone_does_not_make_it_clean() -> None:
    """The flusher failed in its thread while the replica followed to its master's end."""
    disk = forgetful()
    store = written(disk)
    store.append(message(20), 20_000)
    fail_sync(disk, store)
    with pytest.raises(StoreError):
        store.mark_clean()
    disk.crash(power_loss=False)
    assert open_store(disk, ROOMY).unclean


def test_a_second_failure_at_the_start_is_no_start() -> None:
    disk = forgetful()
    wanted = log_bytes(after_a_failure(disk))
    disk.failing = frozenset(("sync",))
    with pytest.raises(StoreError, match="cannot write to stable storage"):
        open_store(disk, ROOMY)
    disk.failing = frozenset()
    disk.crash(power_loss=False)
    store = open_store(disk, ROOMY)
    assert any("could not make everything durable" in line for line in store.recovery.lines)
    commit_all(store)
    store.sync()
    disk.crash(power_loss=True)
    assert log_bytes(open_store(disk, ROOMY)) == wanted


def test_a_cut_that_failed_does_not_come_back() -> None:
    """Its zeros were in the cache only; behind them stood records with valid checksums."""
    for seed in range(8):
        disk = forgetful(seed)
        store = written(disk)
        store.append_epoch(Epoch(2), store.max_phy_offset)
        end = store.max_phy_offset
        for number in range(20, 25):
            store.append(message(number), 21_000)
        store.sync()
        image = disk.read(LOG_FILE)
        assert any(image[end:])
        count = 0

        def step(kind: str, size_bytes: int = 0, *, grow: bool = False, of: ForgetfulDisk = disk) -> int | None:
            nonlocal count
            count += kind == "sync"
            if kind == "sync" and count == 3:  # two marks, then the log
                of.failing = frozenset(("sync",))
            return ForgetfulDisk.step(of, kind, size_bytes, grow=grow)

        disk.step = step  # type: ignore[method-assign]
        with pytest.raises(StoreError, match=r"commitlog.*cannot write to stable storage"):
            store.truncate(PhyOffset(end))
        del disk.step
        disk.failing = frozenset()
        disk.crash(power_loss=False)
        store = open_store(disk, ROOMY)
        assert store.max_phy_offset == end
        assert store.unclean
        disk.crash(power_loss=True)
        assert open_store(disk, ROOMY).max_phy_offset == end


def test_the_flag_of_the_page_cache_goes_once_all_is_written() -> None:
    disk = forgetful()
    after_a_failure(disk, "create")
    fields = sidecar.read(disk, "rmqha.boot")
    assert fields is not None and "failed" not in fields, "the boot file could not be written"
    slots = disk.read(end_mark.PATH)
    assert end_mark.decode(slots[: end_mark.SLOT_BYTES], "") == (end_mark.decode(slots[512:532], "") or (0, False))
    assert (end_mark.decode(slots[: end_mark.SLOT_BYTES], "") or (0, False))[1]
    open_store(disk, ROOMY)
    slots = disk.read(end_mark.PATH)
    assert not (end_mark.decode(slots[: end_mark.SLOT_BYTES], "") or (0, True))[1]


def test_on_a_real_disk_the_bytes_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, through the write that makes pages dirty, and an fdatasync behind them."""
    store = open_store(HostDisk(tmp_path), ROOMY)
    last = [store.append(message(number, body=b"x" * 500), number) for number in range(40)][-1]
    with monkeypatch.context() as patch:

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(StoreError, match="Input/output error"):
            store.sync()
    with pytest.raises(StoreError):
        store.close()
    wrote: list[tuple[int, int]] = []
    write = HostRegion.write

    def noted(region: HostRegion, position: int, data: Buffer) -> None:
        if region.size_bytes == ROOMY.mapped_file_size_commit_log:
            assert bytes(region.view(position, len(data))) == bytes(data), "as they were"
            wrote.append((position, len(data)))
        write(region, position, data)

    monkeypatch.setattr(HostRegion, "write", noted)
    store = open_store(HostDisk(tmp_path), ROOMY)
    assert store.unclean
    assert store.synced_offset == last.end_offset
    assert wrote[0] == (0, last.end_offset)
    store.close()


def test_a_file_whose_directory_could_not_be_synced_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left in its full size, the next call would take it for durable."""
    disk = HostDisk(tmp_path)
    with monkeypatch.context() as patch:

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            disk.map("file", 4096, create=True)
    assert not disk.exists("file")
    disk.map("file", 4096, create=True).close()
