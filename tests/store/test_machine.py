"""Any sequence of appends, syncs, cuts, stops, kills and losses of power against a string of bytes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.store.model import FILE_BYTES, LogModel, check_index, check_prefix, check_queues, epochs_agree
from tests.store.support import log_bytes, message, open_store

sizes = st.integers(1, 2500)
queue_ids = st.integers(0, 2)


class StoreMachine(RuleBasedStateMachine):
    """`received` counts the bytes of the model that the store has; more of it may be on its way from a master."""

    disk: SimDisk
    store: Store

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk(SimPrng(seed))
        self.store = open_store(self.disk)
        self.model = LogModel()
        self.received = 0
        self.synced = 0
        self.epochs = EpochHistory()
        self.number = 0

    def next_message(self, size: int, queue_id: int) -> NewMessage:
        self.number += 1
        return message(self.number, queue_id=queue_id, body=bytes([self.number % 255 + 1]) * size)

    @property
    def whole(self) -> bool:
        return self.received == len(self.model.image)

    @precondition(lambda self: self.whole)
    @rule(size=sizes, queue_id=queue_ids)
    def append(self, size: int, queue_id: int) -> None:
        new = self.next_message(size, queue_id)
        done = self.store.append(new, self.number * 400)
        self.model.add(new, done.store_timestamp_ms)
        self.received = len(self.model.image)
        assert done.end_offset == self.received
        assert done.queue_offset == len(self.model.queues["T", queue_id]) - 1

    @precondition(lambda self: self.whole)
    @rule(items=st.lists(st.tuples(sizes, queue_ids), min_size=1, max_size=6))
    def append_batch(self, items: list[tuple[int, int]]) -> None:
        new = [self.next_message(size, queue_id) for size, queue_id in items]
        done = self.store.append_encoded(self.store.encode_batch(new), self.number * 400)
        for item in new:
            self.model.add(item, done.store_timestamp_ms)
        self.received = len(self.model.image)
        assert done.end_offset == self.received

    @precondition(lambda self: self.whole)
    @rule(size=sizes, queue_id=queue_ids)
    def master_appends(self, size: int, queue_id: int) -> None:
        self.model.add(self.next_message(size, queue_id), self.number * 400)

    @precondition(lambda self: not self.whole)
    @rule(limit=st.integers(1, 5000))
    def follow(self, limit: int) -> None:
        data = self.model.image[self.received : self.received + limit]
        self.store.append_raw(PhyOffset(self.received), data)
        self.received += len(data)

    @rule()
    def sync(self) -> None:
        assert self.store.sync() == self.received
        self.synced = self.received

    @rule(share=st.integers(0, 100), step=st.integers(1, 5000))
    def commit(self, share: int, step: int) -> None:
        self.store.set_confirm_offset(PhyOffset(max(self.store.confirm_offset, self.received * share // 100)))
        while self.store.dispatch(step):
            check_queues(self.store, self.model)
        assert self.store.dispatched_offset == self.model.whole(self.store.confirm_offset)

    @rule(step=st.integers(1, 5000), whole=st.booleans())
    def index(self, step: int, whole: bool) -> None:
        self.store.index.build(step)
        self.store.index.sync()
        if whole:
            check_index(self.store, self.model, step)

    @rule()
    def begin_epoch(self) -> None:
        epoch = self.epochs[-1].epoch + 1 if len(self.epochs) else 1
        entry = EpochEntry(Epoch(epoch), PhyOffset(self.model.whole(self.received)))
        longer = self.epochs.appended(entry)
        assert self.store.append_epoch(entry.epoch, entry.start_offset) == (longer is not None)
        self.epochs = longer or self.epochs

    @rule(share=st.integers(0, 100))
    def truncate(self, share: int) -> None:
        low = self.store.min_phy_offset
        end = self.model.whole(low + (self.received - low) * share // 100)
        self.store.truncate(PhyOffset(end))
        self.model.cut(end)
        self.received = end
        self.synced = min(self.synced, end)
        self.epochs = self.epochs.truncated(PhyOffset(end))

    @precondition(lambda self: self.whole)
    @rule()
    def roll(self) -> None:
        self.store.roll()
        self.model.roll()
        self.received = len(self.model.image)

    @rule(share=st.integers(0, 100), done=st.booleans())
    def trim(self, share: int, done: bool) -> None:
        """`done` False: what was let go of is still on the disk when the next thing happens."""
        store = self.store
        starts = range(store.min_phy_offset, store.settled_offset + 1, FILE_BYTES)
        store.trim(PhyOffset(starts[(len(starts) - 1) * share // 100]))
        while done and store.schedule_unlink(0, 0, 0):
            pass
        store.trim_derived()
        assert epochs_agree(store.epochs, self.epochs, store.min_phy_offset)
        self.epochs = store.epochs

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.restart(self.received)
        assert not any("dropped" in line for line in self.store.recovery.lines if "epoch" in line)

    @rule()
    def kill(self) -> None:
        self.disk.crash(power_loss=False)
        self.restart(self.received)

    @rule(seconds=st.integers(0, 1))
    def power_loss(self, seconds: int) -> None:
        self.disk.crash(power_loss=True)
        self.restart(self.synced)
        assert self.store.unclean

    def restart(self, at_least: int) -> None:
        unclean = self.store.unclean
        self.store = open_store(self.disk)
        assert self.store.unclean or not unclean
        check_prefix(self.store, self.model, at_least)
        self.received = self.synced = self.store.max_phy_offset
        assert self.store.synced_offset == self.received
        self.model.cut(self.received)
        assert self.store.epochs == self.epochs.truncated(PhyOffset(self.received + 1))
        self.epochs = self.store.epochs

    @invariant()
    def the_store_is_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.max_phy_offset == self.received
        assert log_bytes(self.store) == self.model.image[self.store.min_phy_offset : self.received]
        assert self.store.record_end_offset == self.model.whole(self.received)
        assert self.store.epochs == self.epochs
        check_queues(self.store, self.model)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=30)
