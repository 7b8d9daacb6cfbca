"""A slave's log whose disk has no room for the next file: what fits is appended, and it goes on when there is room."""

from __future__ import annotations

import errno

import pytest

from rmqha.model.error import NoRoomError
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.sim.disk import SimDisk, SimRegion
from rmqha.sim.prng import SimPrng
from rmqha.store.log.mapped_file import MappedFile, MappedFiles
from rmqha.store.queue.consume_queue import MAX_GAP_COUNT
from rmqha.store.store import Store
from tests.store.model import FILE_BYTES
from tests.store.support import bodies, commit_all, filled, log_bytes, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer


def copied(master: Store, slave: Store, step: int) -> str:
    """Copy as far as there is room; the reason why it stopped."""
    while view := master.view(slave.max_phy_offset, step):
        try:
            assert slave.append_raw(slave.max_phy_offset, view) == ""
        except NoRoomError as error:
            return str(error)
    return ""


def full_slave(step: int = 700) -> tuple[Store, SimDisk, Store, RecordingTracer]:
    """A master with several files, and a slave with room for one."""
    master, disk, tracer = filled(sim_disk(), 24), sim_disk(), RecordingTracer()
    open_store(disk).close()  # makes the small files
    slave = open_store(disk, tracer=tracer)
    slave.append_raw(slave.max_phy_offset, master.view(slave.max_phy_offset, 10))
    disk.capacity_bytes = disk.used_bytes
    assert "No space left on device; free some space" in copied(master, slave, step)
    return master, disk, slave, tracer


@pytest.mark.parametrize("step", [13, 700, 1 << 20])
def test_what_fits_is_appended_and_the_rest_follows_when_there_is_room(step: int) -> None:
    master, disk, slave, tracer = full_slave(step)
    assert slave.max_phy_offset == FILE_BYTES
    assert slave.room_refusal() == slave.allocation.refusal(100) != ""
    assert log_bytes(slave) == log_bytes(master)[:FILE_BYTES]
    for _ in range(3):
        slave.allocation.allocate_ahead()
        assert copied(master, slave, step)
    assert tracer.names().count("no_file_ahead") == 1
    assert slave.sync() == FILE_BYTES, "the store is in use"
    disk.capacity_bytes = None
    slave.allocation.allocate_ahead()
    assert slave.room_refusal() == ""
    assert copied(master, slave, step) == ""
    assert log_bytes(slave) == log_bytes(master)
    commit_all(slave)
    commit_all(master)
    assert bodies(slave) == bodies(master)


@pytest.mark.parametrize("kind", ["stop", "kill", "power"])
def test_a_start_without_room_goes_on_and_waits(kind: str) -> None:
    master, disk, slave, _ = full_slave()
    slave.sync()
    disk.capacity_bytes = None
    if kind == "stop":
        slave.close()
    else:
        disk.crash(power_loss=kind == "power")
    disk.capacity_bytes = disk.used_bytes + FILE_BYTES - 1  # small files have room
    slave = open_store(disk)
    assert slave.max_phy_offset == FILE_BYTES
    assert slave.allocation.is_due
    slave.allocation.allocate_ahead()
    assert slave.room_refusal() and slave.allocation.refusal(100)
    assert copied(master, slave, 700)
    disk.capacity_bytes = None
    slave.allocation.allocate_ahead()
    assert copied(master, slave, 700) == "" and log_bytes(slave) == log_bytes(master)


def test_a_first_file_that_has_no_room_is_tried_again() -> None:
    master, disk = filled(sim_disk(), 3), sim_disk()
    slave = open_store(disk)
    assert [slave.allocation.is_due, slave.room_refusal()] == [False, ""], "an empty log needs no file yet"
    disk.capacity_bytes = disk.used_bytes
    assert copied(master, slave, 700)
    assert [slave.allocation.is_due, bool(slave.room_refusal())] == [True, True]
    slave.allocation.allocate_ahead()
    assert slave.room_refusal()
    disk.capacity_bytes = None
    slave.allocation.allocate_ahead()
    assert not slave.room_refusal()
    assert copied(master, slave, 700) == "" and log_bytes(slave) == log_bytes(master)


def test_a_log_that_begins_anew_is_told_beforehand_that_it_has_no_room() -> None:
    disk = sim_disk()
    store = open_store(disk)
    assert store.room_refusal(anew=True) == ""
    disk.capacity_bytes = disk.used_bytes + FILE_BYTES - 1
    assert store.room_refusal(anew=True).endswith("No space left on device; free some space on that disk")
    disk.capacity_bytes += 1
    assert store.room_refusal(anew=True) == ""


class Cramped(SimDisk):
    """A disk on which queues get no more blocks while `is_cramped`."""

    is_cramped = False

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> SimRegion:
        if self.is_cramped and path.startswith("consumequeue") and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().map(path, size_bytes, create=create, reserve=reserve, durable=durable)


@pytest.mark.parametrize("stops", [False, True])
def test_queues_without_room_get_their_entries_when_there_is_room(stops: bool) -> None:
    """Neither the dispatch nor a start ends the broker: the log is whole."""
    disk, tracer = Cramped(SimPrng(1)), RecordingTracer()
    store = open_store(disk, tracer=tracer)
    for number in range(20):
        store.append(message(number, queue_id=number % 2), number)
    store.set_confirm_offset(store.max_phy_offset)
    disk.is_cramped = True
    for _ in range(3):
        with pytest.raises(NoRoomError, match="No space left on device; free some space"):
            store.dispatch(1 << 20)
        assert "No space left" in store.queue_refusal
    assert tracer.names().count("queues_lack_room") == 1
    if stops:
        store.close()
    else:
        disk.crash(power_loss=False)
    store = open_store(disk)
    assert store.max_phy_offset > store.dispatched_offset
    store.set_confirm_offset(store.max_phy_offset)
    disk.is_cramped = False
    commit_all(store)
    assert store.queue_refusal == ""
    assert [bodies(store, queue_id=queue_id) for queue_id in (0, 1)] == [
        [b"body-%d" % number for number in range(20) if number % 2 == queue_id] for queue_id in (0, 1)
    ]


@pytest.mark.parametrize("end", [936, MAX_GAP_COUNT + 936])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_queue_that_goes_on_behind_0_is_filled_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, end: int, is_known: bool
) -> None:
    """Its first file is made without blocks, and has room for none."""
    master, store = open_store(sim_disk()), open_store(sim_disk())
    for replica in (master, store):
        replica.restart_at(PhyOffset(FILE_BYTES))
        replica.queue_min_offsets.learn([("T", 0, end)] if is_known or replica is master else [])
    master.append(message(1), 1)
    assert copied(master, store, 700) == ""
    store.set_confirm_offset(store.max_phy_offset)
    write, add = SimRegion.write, MappedFiles.add

    def cramped(self: SimRegion, position: int, data: Buffer) -> None:
        if self.size_bytes == store._queues.file_size_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, position, data)

    def only_one(self: MappedFiles, start_offset: int, *, durable: bool = True) -> MappedFile:
        assert not self.files, "the queue has its file"
        return add(self, start_offset, durable=durable)

    monkeypatch.setattr(MappedFiles, "add", only_one)
    with monkeypatch.context() as patch:
        patch.setattr(SimRegion, "write", cramped)
        for _ in range(2):
            with pytest.raises(NoRoomError):
                store.dispatch(1 << 20)
    commit_all(store)
    assert (store.queue_range("T", 0), bodies(store)) == ((end, end + 1), [b"body-1"])


def test_no_file_is_made_ahead_while_the_log_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes them may come between the end of the old log and the begin of the new one."""
    master, disk, slave, _ = full_slave()
    disk.capacity_bytes = None
    clear = slave._epochs.clear

    def cleared() -> None:
        clear()
        slave.allocation.allocate_ahead()

    monkeypatch.setattr(slave._epochs, "clear", cleared)
    slave.restart_at(PhyOffset(FILE_BYTES))
    assert disk.list("commitlog") == [f"{FILE_BYTES:020}"]
    assert copied(master, slave, 700) == ""
