"""The store stopped at every operation of a life, by a kill and by a loss of power that loses, tears and reorders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.store import Store
from tests.store.model import FILE_BYTES, LogModel, check_index, check_prefix, check_queues, is_prefix
from tests.store.support import commit_all, log_bytes, message, open_store


@dataclass
class Life:
    """What is known to have happened. While a step runs, `before` and the present state are both possible."""

    disk: SimDisk
    model: LogModel = field(default_factory=LogModel)
    synced: int = 0
    epochs: EpochHistory = field(default_factory=EpochHistory)
    highest_epoch: int = 0
    store: Store | None = None
    clock_ms: int = 0
    number: int = 0
    before: tuple[LogModel, EpochHistory] = field(default_factory=lambda: (LogModel(), EpochHistory()))

    @property
    def live(self) -> Store:
        assert self.store is not None
        return self.store

    def step(self, work: Callable[[], None]) -> None:
        self.before = (self.model.copy(), self.epochs)
        work()
        self.before = (self.model, self.epochs)

    def append(self, size: int) -> None:
        self.clock_ms += 300
        self.number += 1
        new = message(self.number, queue_id=self.number % 2, body=bytes([self.number % 250 + 1]) * size)
        self.model.add(new, self.clock_ms)
        self.live.append(new, self.clock_ms)

    def append_many(self, count: int) -> None:
        """Small records, so that one queue's entries fill several sectors."""
        self.clock_ms += 300
        new = [message(self.number + index, queue_id=1, body=b"%d" % index) for index in range(count)]
        for item in new:
            self.model.add(item, self.clock_ms)
        self.live.append_encoded(self.live.encode_batch(new), self.clock_ms)

    def follow(self, size: int) -> None:
        self.clock_ms += 300
        self.number += 1
        new = message(self.number, queue_id=self.number % 2, body=bytes([self.number % 250 + 1]) * size)
        data = self.model.add(new, self.clock_ms)
        half = len(data) // 2
        self.live.append_raw(self.live.max_phy_offset, data[:half])
        self.live.append_raw(self.live.max_phy_offset, data[half:])

    def sync(self) -> None:
        self.synced = max(self.synced, self.live.sync())
        self.live.index.sync()

    def commit(self) -> None:
        commit_all(self.live)
        self.live.index.build(1500)

    def epoch(self) -> None:
        last = self.epochs.last
        entry = EpochEntry(Epoch(last.epoch + 1 if last else 1), PhyOffset(len(self.model.image)))
        self.epochs = self.epochs.appended(entry) or self.epochs
        self.live.append_epoch(entry.epoch, entry.start_offset)

    def accept(self) -> None:
        self.live.accept_epoch(Epoch(self.highest_epoch + 1))
        self.highest_epoch += 1

    def cut(self, record: int) -> None:
        end = self.model.ends[record]
        self.synced = min(self.synced, end)
        self.model.cut(end)
        self.epochs = self.epochs.truncated(PhyOffset(end))
        self.live.truncate(PhyOffset(end))

    def trim(self, file_count: int) -> None:
        """All but the newest `file_count` files go, and what a crash left of earlier ones."""
        self.sync()
        live = self.live
        starts = range(live.min_phy_offset, live.settled_offset + 1, FILE_BYTES)
        live.trim(PhyOffset(starts[max(0, len(starts) - file_count)]))
        while live.schedule_unlink(self.clock_ms, 0, 0):
            pass
        live.trim_derived()
        live.schedule_unlink(self.clock_ms, 0, 0)

    def roll(self) -> None:
        self.model.roll()
        self.live.roll()

    def close(self) -> None:
        self.live.close()
        self.synced = len(self.model.image)

    def open(self) -> None:
        self.store = open_store(self.disk)


def live_through(life: Life) -> None:
    """Appends, rolls, epochs, saves, a follower's bytes, two cuts, a clean stop and what comes after it."""
    steps: list[Callable[[], None]] = [life.open, life.epoch, life.accept]
    steps += [lambda: life.append(900)] * 3 + [life.commit, life.sync]
    steps += [lambda: life.append(1400)] * 3 + [life.epoch, life.sync, lambda: life.append(300), life.commit]
    steps += [lambda: life.append_many(70), life.commit, lambda: life.append(10), life.sync]
    steps += [lambda: life.cut(-15), lambda: life.append(20), life.sync, life.commit]
    steps += [lambda: life.follow(700), lambda: life.follow(1500), life.sync]
    steps += [lambda: life.cut(-4), life.epoch, lambda: life.append(200), life.commit, life.sync]
    steps += [lambda: life.append(500), lambda: life.cut(2), life.accept, lambda: life.append(50), life.epoch]
    steps += [life.sync, life.commit, life.close, life.open, lambda: life.append(400), life.commit, life.sync]
    steps += [lambda: life.append_many(150), life.commit, lambda: life.trim(2), lambda: life.append(900), life.epoch]
    steps += [lambda: life.append(1200), life.roll, life.commit, lambda: life.trim(1), lambda: life.append(30)]
    steps += [lambda: life.cut(-2), lambda: life.append(60), life.commit, life.close, life.open, life.sync]
    for work in steps:
        life.step(work)


def new_life(seed: int) -> Life:
    return Life(SimDisk(SimPrng(seed)))


def operation_count() -> int:
    life = new_life(1)
    live_through(life)
    return life.disk.operations


def stopped_life(seed: int, stop: int) -> Life:
    life = new_life(seed)
    life.disk.stop_after = stop
    with pytest.raises(DiskStopped):
        live_through(life)
    return life


def check_after(life: Life, *, killed: bool) -> None:
    """The recovered store is what was, or what was about to be, cut to a prefix no shorter than what was synced."""
    store = open_store(life.disk)
    if killed:
        assert not store.unclean, store.recovery.lines
        assert not [name for name in life.disk.list("") if name.startswith("rmqha.cut-")]
    outcomes = [(life.model, life.epochs), life.before]
    found = log_bytes(store)
    fitting = [model for model, _ in outcomes if model.image[store.min_phy_offset :].startswith(found)]
    assert fitting, "the log holds bytes that were cut or never written"
    model = max(fitting, key=lambda fit: len(fit.image)).copy()
    # a step that was stopped may have cut to the shorter of both; a kill loses nothing that was appended before it
    sure = min(len(known.image) for known, _ in outcomes) if killed else life.synced
    check_prefix(store, model, min(sure, life.synced) if not killed else sure)
    assert store.min_phy_offset % FILE_BYTES == 0
    start = store.min_phy_offset
    shown = store.epochs.trimmed(start)
    assert any(is_prefix(shown, epochs.trimmed(start)) for _, epochs in outcomes)
    if store.max_phy_offset > start:  # a log without a byte has no epochs
        longest = max((epochs for _, epochs in outcomes), key=len).trimmed(start)
        assert len(shown) >= len(longest.truncated(PhyOffset(store.max_phy_offset))), (
            "the epoch history was cut before the log"
        )
        least = min((epochs for _, epochs in outcomes), key=len).trimmed(start)
        assert len(shown) >= len(least.truncated(PhyOffset(store.max_phy_offset + 1)))
    assert store.epochs.last is None or store.epochs.last.start_offset <= store.max_phy_offset
    assert store.highest_epoch >= life.highest_epoch
    model.cut(store.max_phy_offset)
    check_queues(store, model)
    check_index(store, model)
    go_on(store, model)


def go_on(store: Store, model: LogModel) -> None:
    """It takes appends, gives the right queue offsets, shows everything, and survives a clean stop."""
    for number in range(3):
        new = message(1000 + number, queue_id=number % 2, body=b"\xfe" * 1200)
        done = store.append(new, 10**6)
        model.add(new, done.store_timestamp_ms)
    commit_all(store)
    assert log_bytes(store) == model.image[store.min_phy_offset :]
    check_queues(store, model)
    check_index(store, model)
    assert store.dispatched_offset == len(model.image)
    store.close()


@pytest.mark.parametrize(
    ("power_loss", "first_seed"), [(False, 0), (True, 0), pytest.param(True, 1000, marks=pytest.mark.sim)]
)
def test_a_crash_at_every_operation(power_loss: bool, first_seed: int) -> None:
    for stop in range(1, operation_count() + 1):
        life = stopped_life(first_seed + stop, stop)
        life.disk.crash(power_loss=power_loss)
        check_after(life, killed=not power_loss)


def test_a_second_crash_during_recovery() -> None:
    total = operation_count()
    for stop in range(5, total + 1, 7):
        life = stopped_life(stop, stop)
        life.disk.crash(power_loss=True)
        life.disk.stop_after = life.disk.operations + 1 + stop % 9
        try:
            open_store(life.disk)
        except DiskStopped:
            life.disk.crash(power_loss=stop % 2 == 0)
        else:
            life.disk.crash(power_loss=False)
        check_after(life, killed=False)


def test_a_cut_never_comes_back_even_if_all_later_writes_are_lost() -> None:
    """apache/rocketmq 10666: the cut is durable before the epoch history says so."""
    for seed in range(60):
        life = new_life(seed)
        life.open()
        life.epoch()
        for size in (900, 900, 1500, 1500, 200):
            life.append(size)
            life.epoch()
        life.commit()
        life.sync()
        old = life.model.copy()
        life.step(lambda life=life: life.cut(3))  # type: ignore[misc]
        life.disk.crash(power_loss=True)
        store = open_store(life.disk)
        assert log_bytes(store) == life.model.image
        for path in life.disk.list("commitlog"):
            start = int(path)
            content = life.disk.read(f"commitlog/{path}")
            assert not any(content[max(0, len(life.model.image) - start) :])
        assert store.epochs == life.epochs
        assert len(old.image) > len(life.model.image)


def test_a_crash_at_every_operation_of_restart_at() -> None:
    """An old log is either still there whole, or set aside whole."""

    def prepared(seed: int) -> Life:
        life = new_life(seed)
        life.open()
        life.epoch()
        for size in (900, 1500, 1500, 1500):
            life.append(size)
        life.commit()
        life.sync()
        return life

    life = prepared(0)
    start = life.disk.operations
    life.live.restart_at(PhyOffset(40960))
    for stop in range(start + 1, life.disk.operations + 1):
        for power_loss in (False, True):
            life = prepared(stop)
            life.disk.stop_after = stop
            with pytest.raises(DiskStopped):
                life.live.restart_at(PhyOffset(40960))
            life.disk.crash(power_loss=power_loss)
            store = open_store(life.disk)
            if store.max_phy_offset in (0, 40960):
                aside = b"".join(
                    life.disk.read(f"replaced-1/commitlog/{name}") for name in life.disk.list("replaced-1/commitlog")
                )
                assert aside.startswith(life.model.image)
            else:
                assert log_bytes(store) == life.model.image
                check_queues(store, life.model)
            store.restart_at(PhyOffset(40960))
            assert (store.min_phy_offset, store.max_phy_offset) == (40960, 40960)
            assert store.queues() == {}
            store.close()
