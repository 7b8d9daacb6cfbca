"""A disk that is full, and sectors that rot: at any moment, in any file."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import Buffer, Epoch, PhyOffset
from rmqha.sim.disk import SimDisk, SimRegion
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import decode
from rmqha.store.store import Store
from tests.store.damage.test_any_bytes import files, made
from tests.store.model import FILE_BYTES, LogModel, check_queues
from tests.store.support import commit_all, log_bytes, message, open_store
from tests.support.tracer import RecordingTracer


class FullAt(SimDisk):
    """ENOSPC at every operation that may need a block, from number `full_from` on until `full_from` is None."""

    full_from: int | None = None

    def need(self) -> None:
        if self.full_from is not None and self.operations >= self.full_from:
            raise OSError(errno.ENOSPC, "No space left on device")

    def step(self, kind: str, size_bytes: int = 0, *, grow: bool = False) -> int | None:
        if kind in ("create", "rename") or grow:
            self.need()
        return super().step(kind, size_bytes, grow=grow)

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> SimRegion:
        region = super().map(path, size_bytes, create=create, reserve=reserve, durable=durable)
        if not reserve:
            region.__class__ = Sparse
        return region


class Sparse(SimRegion):
    """Blocks are taken by writes."""

    __slots__ = ()

    def write(self, position: int, data: Buffer) -> None:
        assert isinstance(self._disk, FullAt)
        self._disk.need()
        super().write(position, data)

    def zero(self, position: int, size_bytes: int) -> None:
        super().write(position, bytes(size_bytes))


class Life:
    """A broker's life; each step may be refused by the disk, and then counts as not done."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.model = LogModel()
        self.synced = 0
        self.refusals: list[str] = []
        self.store: Store | None = None

    def run(self) -> None:
        try:
            self.store = store = open_store(self.disk, tracer=RecordingTracer())
            store.append_epoch(Epoch(1), PhyOffset(0))
            for number in range(24):
                self.append(store, number)
                if number % 4 == 3:
                    commit_all(store)
                    self.synced = store.sync()
                if number == 15:
                    store.trim(PhyOffset(store.settled_offset // FILE_BYTES * FILE_BYTES - FILE_BYTES))
                    while store.schedule_unlink(0, 0, 0):
                        pass
                    store.trim_derived()
                if number == 18:
                    end = self.model.ends[-3]
                    store.truncate(PhyOffset(end))
                    self.model.cut(end)
                    self.synced = min(self.synced, end)
            store.append_epoch(Epoch(2), store.max_phy_offset)
            store.close()
        except (StoreError, UsageError) as error:
            self.refusals.append(str(error))

    def append(self, store: Store, number: int) -> None:
        new = message(number, queue_id=number % 2, body=b"%d" % number * 500)
        done = store.append(new, number * 400)
        self.model.add(new, done.store_timestamp_ms)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_full_disk_at_any_operation_is_said_and_loses_nothing(power_loss: bool) -> None:
    whole = Life(FullAt(SimPrng(1)))
    whole.run()
    assert not whole.refusals
    for full_from in range(whole.disk.operations + 1):
        disk = FullAt(SimPrng(full_from))
        disk.full_from = full_from
        life = Life(disk)
        life.run()
        for said in life.refusals:
            assert "No space left on device; free some space on that disk" in said, said
        disk.full_from = None
        disk.crash(power_loss=power_loss)
        store = open_store(disk)
        start, end = store.min_phy_offset, store.max_phy_offset
        assert log_bytes(store) == life.model.image[start:end], full_from
        assert end >= (life.synced if power_loss else 0), full_from
        assert end in life.model.ends
        life.model.cut(end)
        for number in range(3):
            life.append(store, 100 + number)
        commit_all(store)
        check_queues(store, life.model)
        store.close()
        assert not open_store(disk).recovery.cut_bytes


def served(store: Store) -> dict[tuple[int, int], bytes]:
    """Every body that a consumer gets, by queue and entry; refused entries are left out."""
    found: dict[tuple[int, int], bytes] = {}
    for queue_id in (0, 1):
        low, high = store.queue_range("T", queue_id)
        for offset in range(low, high):
            try:
                result = store.pull("T", queue_id, offset, 1, 1 << 20)
            except StoreError:
                continue
            found.update({(queue_id, decode(view).queue_offset): bytes(decode(view).body) for view in result.records})
    return found


KINDS = ("commitlog", "consumequeue", "index", "checkpoint", "epochFileCheckpoint", "rmqha.", "brokerIdentity")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clean", [False, True])
def test_a_flipped_bit_is_found_or_harmless(kind: str, clean: bool) -> None:
    sound = served(opened(clean))
    assert len(sound) == 200
    prng = SimPrng(7)
    for _ in range(60):
        disk, epochs = prepared(clean)
        paths = [path for path in files(disk) if path.startswith(kind)]
        path = paths[prng.below(len(paths))]
        size = len(disk.read(path).rstrip(b"\0")) or 1
        disk.rot(path, prng.below(size), 1 << prng.below(8))
        try:
            store = open_store(disk)
        except (StoreError, UsageError) as error:
            assert path in str(error) or "in the log" in str(error)
            continue
        commit_all(store)
        found = served(store)
        assert found.items() <= sound.items(), f"{path}: a body that was never written"
        if not kind.startswith(("commitlog", "consumequeue")):
            assert found == sound
            assert list(store.epochs) == epochs[: len(store.epochs)]


def prepared(clean: bool) -> tuple[SimDisk, list[Any]]:
    disk, _, epochs = made()
    if clean:
        open_store(disk).close()
    return disk, list(epochs)


def opened(clean: bool) -> Store:
    return open_store(prepared(clean)[0])


@pytest.mark.parametrize("kept_count", [0, 5, 23])
def test_a_fork_is_cut_on_a_full_disk(kept_count: int) -> None:
    disk, model = FullAt(SimPrng(1)), LogModel()
    store = open_store(disk)
    ends = [store.max_phy_offset]
    for number in range(24):
        new = message(number, queue_id=number % 2, body=b"%d" % number * 500)
        done = store.append(new, number * 400)
        model.add(new, done.store_timestamp_ms)
        ends.append(store.max_phy_offset)
    commit_all(store)
    store.sync()
    disk.full_from = 0
    store.truncate(ends[kept_count])
    model.cut(ends[kept_count])
    check_queues(store, model)
    disk.full_from = None
    store.close()
