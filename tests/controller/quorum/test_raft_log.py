"""The durable Raft log against a disk that loses, tears and rots."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.quorum.raft_log import DurableRaftLog
from rmqha.model.error import NoRoomError, StoreError
from rmqha.model.offset import Buffer, RaftIndex, Term
from rmqha.raft.log import StoredState
from rmqha.raft.node import Ready
from rmqha.sim.disk import DiskStopped, SimAppendFile, SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from rmqha.wire.raft_message import Entry, EntryKind, HardState, Snapshot
from tests.store.support import ForgetfulDisk


def open_log(disk: SimDisk, node_id: str = "n1", segment_bytes: int = 400) -> DurableRaftLog:
    return DurableRaftLog(disk, node_id, SimTracer(Scheduler()), SimPrng(7), segment_bytes=segment_bytes)


def entries(start: int, count: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(
        Entry(RaftIndex(index), Term(term), b"%d of %d" % (index, term)) for index in range(start, start + count)
    )


def snapshot(index: int, term: int = 1) -> Snapshot:
    return Snapshot(RaftIndex(index), Term(term), b"state %d" % index)


def ready(
    hard_state: HardState | None = None,
    truncate_from: int | None = None,
    new: tuple[Entry, ...] = (),
    installed: Snapshot | None = None,
    compaction: Snapshot | None = None,
) -> Ready:
    cut = None if truncate_from is None else RaftIndex(truncate_from)
    return Ready((), hard_state, cut, installed, new, compaction, (), (), ())


class Narrow(SimDisk):
    """A disk with room for so many bytes; an append takes what there is before it fails."""

    room_bytes = 1 << 20
    refused_cuts = 0
    """Number of next cuts of a file that have no room either, as where blocks are copied on write."""

    def step(self, kind: str, size_bytes: int = 0, *, grow: bool = False) -> int | None:
        if grow or kind == "create":
            if size_bytes > self.room_bytes:
                self.room_bytes = 0
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room_bytes -= size_bytes
        return super().step(kind, size_bytes, grow=grow)

    def open_append(self, path: str) -> SimAppendFile:
        found = super().open_append(path)
        found.__class__ = NarrowFile
        return found


class NarrowFile(SimAppendFile):
    def append(self, data: Buffer) -> None:
        assert isinstance(self._disk, Narrow)
        room_bytes = self._disk.room_bytes
        if room_bytes < len(data):
            super().append(memoryview(data)[:room_bytes])
        super().append(data)

    def truncate(self, size_bytes: int) -> None:
        assert isinstance(self._disk, Narrow)
        if self._disk.refused_cuts:
            self._disk.refused_cuts -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().truncate(size_bytes)


@dataclass
class Model:
    """What must be read back."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def first_index(self) -> int:
        return self.snapshot.index + 1 if self.snapshot else 1

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def after(self, change: Ready) -> Model:
        kept = self.entries
        if change.truncate_from is not None:
            kept = tuple(entry for entry in kept if entry.index < change.truncate_from)
        if change.snapshot is not None:
            kept = ()
        kept += change.entries
        if change.compaction is not None:
            kept = tuple(entry for entry in kept if entry.index > change.compaction.index)
        taken = change.compaction or change.snapshot or self.snapshot
        return Model(change.hard_state or self.hard_state, taken, kept)

    def stored(self) -> StoredState:
        return StoredState(self.hard_state.term, self.hard_state.voted_for, self.snapshot, self.entries)


def draw_change(prng: SimPrng, model: Model) -> Ready:
    """A Ready as a node in the state of `model` could give it."""
    term = model.hard_state.term + prng.below(2)
    hard_state = HardState(Term(term), "n2") if prng.chance(1, 3) or term != model.hard_state.term else None
    match prng.below(5):
        case 0 if model.entries:
            start = model.first_index + prng.below(len(model.entries))
            return ready(hard_state, start, entries(start, prng.below(3) + 1, term))
        case 1 if model.entries:
            index = model.first_index + prng.below(len(model.entries))
            kept = next(entry for entry in model.entries if entry.index == index)
            return ready(compaction=snapshot(index, kept.term))
        case 2:
            # a leader sends a snapshot only to a log that contradicts it or ends before it
            index = model.last_index + 1 + prng.below(5)
            return ready(hard_state, installed=snapshot(index, term), new=entries(index + 1, prng.below(3), term))
        case _:
            return ready(
                hard_state or HardState(Term(term), ""), new=entries(model.last_index + 1, prng.below(4), term)
            )


def prefixes(change: Ready) -> list[Ready]:
    """What may have become durable of `change`: its steps in order, entries and truncation together."""
    return [
        ready(),
        ready(change.hard_state),
        ready(change.hard_state, installed=change.snapshot),
        ready(change.hard_state, change.truncate_from, change.entries, change.snapshot),
        change,
    ]


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_every_crash_leaves_the_state_before_or_after_a_ready(seed: int) -> None:
    """Whatever operation the machine stops at, with and without loss of power; segments roll and are dropped."""
    prng = SimPrng(seed)
    disk = SimDisk(prng.child("disk"))
    model = Model()
    for _ in range(6):
        log = open_log(disk)
        assert log.stored == model.stored()
        disk.stop_after = disk.operations + 1 + prng.below(20)
        outcomes = [model]
        try:
            for _ in range(8):
                change = draw_change(prng, model)
                # a write that was cut short leaves its first steps
                outcomes = [model.after(part) for part in prefixes(change)]
                if change.compaction is not None and prng.chance(1, 2):
                    log.write_snapshot(change.compaction)
                log.persist(change)
                model = model.after(change)
                outcomes = [model]
        except DiskStopped:
            pass  # the crash that this test is of
        disk.crash(power_loss=prng.chance(1, 2))
        stored = open_log(disk).stored
        assert stored in [outcome.stored() for outcome in outcomes]
        model = next(outcome for outcome in outcomes if outcome.stored() == stored)


@pytest.mark.parametrize("seed", range(12))
def test_what_has_no_room_changes_nothing_and_is_written_later(seed: int) -> None:
    """Small segments: a frame may need a new one, and a snapshot removes old ones."""
    prng, model = SimPrng(seed), Model()
    disk = Narrow(prng)
    log, refused_count = open_log(disk), 0
    for _ in range(40):
        change = draw_change(prng, model)
        for step in log.steps(change):
            disk.room_bytes = prng.below(60) if prng.chance(1, 2) else 1 << 20
            while True:
                try:
                    step()
                    break
                except NoRoomError as error:
                    assert "No space left on device; free some space on that disk" in str(error)
                    refused_count += 1
                    disk.room_bytes += prng.below(200)
        model = model.after(change)
        if prng.chance(1, 4):
            disk.room_bytes = 1 << 20
            disk.crash(power_loss=prng.chance(1, 2))
            log = open_log(disk)
            assert log.stored == model.stored()
    assert refused_count > 10


def test_a_part_of_a_snapshot_leaves_its_room_to_the_log() -> None:
    disk = Narrow(SimPrng(1))
    log = open_log(disk)
    disk.room_bytes = 1000
    with pytest.raises(NoRoomError, match="No space left on device"):
        log.write_snapshot(Snapshot(RaftIndex(1), Term(1), b"x" * 5000))
    assert not disk.exists("raft/snapshot.new")


@pytest.mark.parametrize("part_bytes", [0, 1, 30])
def test_a_part_of_a_frame_that_cannot_be_cut_ends_the_node(part_bytes: int) -> None:
    """A frame behind the part would make the next start refuse the log."""
    disk = Narrow(SimPrng(1))
    log = open_log(disk, segment_bytes=4000)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 2)))
    disk.room_bytes, disk.refused_cuts = part_bytes, 1
    with pytest.raises(StoreError, match="cannot cut a part of a frame") as found:
        log.persist(ready(new=entries(3, 2)))
    assert not isinstance(found.value, NoRoomError), "nobody writes again behind it"
    disk.room_bytes = 1 << 20
    disk.crash(power_loss=False)
    assert open_log(disk, segment_bytes=4000).stored.entries == entries(1, 2)


def test_what_was_only_in_the_page_cache_is_synced_when_it_is_read() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    disk.failing = frozenset({"sync"})
    with pytest.raises(OSError, match="Input/output"):
        log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 2)))
    disk.failing = frozenset()
    disk.crash(power_loss=False)
    seen = open_log(disk).stored
    assert len(seen.entries) == 2
    disk.crash(power_loss=True)
    assert open_log(disk).stored == seen


@pytest.mark.parametrize("seed", range(8))
def test_what_a_sync_failed_on_is_written_again(seed: int) -> None:
    """Linux calls the pages clean: synced once more, they would be gone with the next loss of power."""
    disk = ForgetfulDisk(SimPrng(seed))
    log = open_log(disk, segment_bytes=4000)
    disk.failing = frozenset({"sync"})
    with pytest.raises(OSError, match="Input/output"):
        log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 40)))
    disk.failing = frozenset()
    disk.crash(power_loss=False)
    seen = open_log(disk, segment_bytes=4000).stored
    assert (seen.voted_for, len(seen.entries)) == ("n1", 40)
    disk.crash(power_loss=True)
    assert open_log(disk).stored == seen


@pytest.mark.parametrize("mask", [1, 4, 128, 0xFF])
def test_rot_in_the_last_frame_is_no_torn_write(mask: int) -> None:
    """A vote that was forgotten so was given twice in one term. Every byte of the frame."""
    disk, name = SimDisk(SimPrng(1)), "raft/segment-0000000001"
    log = open_log(disk, segment_bytes=4000)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 2)))
    start = disk.size_bytes(name)
    log.persist(ready(HardState(Term(2), "n2"), new=entries(3, 1, 2)))
    disk.crash(power_loss=False)
    for position in range(start, disk.size_bytes(name)):
        disk.rot(name, position, mask)
        with pytest.raises(StoreError, match=f"at byte {start} holds a last frame that was written whole"):
            open_log(disk, segment_bytes=4000)
        unmarked = disk.copy(SimPrng(2))
        unmarked.remove("raft/end")  # an earlier release wrote it
        with pytest.raises(StoreError, match=f"at byte {start} holds a last frame with nothing missing"):
            open_log(unmarked, segment_bytes=4000)
        disk.rot(name, position, mask)
    assert open_log(disk, segment_bytes=4000).stored.voted_for == "n2"


@pytest.mark.parametrize("lost", ["a sector reads as zeros", "the file is short", "the frame is gone"])
def test_a_frame_of_which_others_have_heard_is_no_torn_write_however_it_looks(lost: str) -> None:
    """The mark is raised before a message leaves, and a kill leaves it whole."""
    disk, name = SimDisk(SimPrng(1)), "raft/segment-0000000001"
    log = open_log(disk, segment_bytes=4000)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 2)))
    start = disk.size_bytes(name)
    log.persist(ready(HardState(Term(2), "n2"), new=entries(3, 80, 2)))
    content = disk.read(name)
    sector = (start // 512 + 1) * 512
    assert sector + 512 < len(content)
    zeroed = content[:sector] + bytes(512) + content[sector + 512 :]
    left = {"a sector reads as zeros": zeroed, "the file is short": content[:-1], "the frame is gone": content[:start]}
    disk.write_atomic(name, left[lost])
    disk.crash(power_loss=False)
    with pytest.raises(StoreError, match=f"at byte {start} holds (a last frame that was|the log's end)"):
        open_log(disk, segment_bytes=4000)


def test_a_segment_goes_only_when_a_snapshot_covers_all_of_it() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    for index in range(1, 31):
        log.persist(ready(HardState(Term(1), "n1"), new=entries(index, 1)))
    before = len(disk.list("raft"))
    for index in range(1, 31):
        log.persist(ready(compaction=snapshot(index)))
        seen = open_log(disk.copy(SimPrng(2))).stored
        assert seen.snapshot is not None and seen.snapshot.index == index
        assert [entry.index for entry in seen.entries] == list(range(index + 1, 31))
    assert len(disk.list("raft")) < before


def test_the_last_segment_that_is_gone_is_missed() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    for index in range(1, 31):
        log.persist(ready(HardState(Term(1), "n1"), new=entries(index, 1)))
    for name in disk.list("raft")[::-1]:
        if name.startswith("segment-"):
            disk.remove(f"raft/{name}")
            with pytest.raises(StoreError, match="holds the log's end, and more was written"):
                open_log(disk)


def test_a_mark_that_rots_is_told_and_written_anew() -> None:
    disk = SimDisk(SimPrng(1))
    open_log(disk).persist(ready(HardState(Term(1), "n1"), new=entries(1, 3)))
    disk.rot("raft/end", 10)
    disk.rot("raft/end", 522)
    again = open_log(disk)
    assert len(again.stored.entries) == 3
    assert len(again.recovery_lines) == 2
    assert open_log(disk).recovery_lines == []


def test_a_frame_that_was_being_written_is_cut() -> None:
    """A kill stops an append at any byte."""
    disk, name = SimDisk(SimPrng(1)), "raft/segment-0000000001"
    log = open_log(disk, segment_bytes=4000)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 2)))
    start = disk.size_bytes(name)
    before = disk.copy(SimPrng(2))
    log.persist(ready(HardState(Term(2), "n2"), new=entries(3, 1, 2)))
    content, disk = disk.read(name), before
    for end in range(start + 1, len(content)):
        disk.write_atomic(name, content[:end])
        assert open_log(disk, segment_bytes=4000).stored == StoredState(Term(1), "n1", None, entries(1, 2))


def test_compaction_drops_segments_and_keeps_the_vote() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    log.persist(ready(HardState(Term(1), "n1")))
    for index in range(1, 60):
        log.persist(ready(new=entries(index, 1)))
    before = len(disk.list("raft"))
    log.persist(ready(compaction=snapshot(58)))
    assert before > 5
    assert len(disk.list("raft")) <= 3
    assert open_log(disk).stored == StoredState(Term(1), "n1", snapshot(58), entries(59, 1))


def test_a_snapshot_written_beside_the_log_is_not_written_twice_and_an_older_one_not_at_all() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 9)))
    log.write_snapshot(snapshot(6))
    assert open_log(disk).stored == StoredState(Term(1), "n1", snapshot(6), entries(7, 3))
    disk.failing = frozenset({"rename"})
    log.persist(ready(compaction=snapshot(6)))
    log.write_snapshot(snapshot(4))
    assert open_log(disk).stored.snapshot == snapshot(6)


def test_kinds_of_entries_survive() -> None:
    disk = SimDisk(SimPrng(1))
    noop = Entry(RaftIndex(1), Term(3), b"", EntryKind.NOOP)
    open_log(disk).persist(ready(HardState(Term(3), "n1"), new=(noop,)))
    assert open_log(disk).stored.entries == (noop,)


def damaged(*, name: str, position: int) -> SimDisk:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    for index in range(1, 31):
        log.persist(ready(HardState(Term(1), "n1"), new=entries(index, 1)))
    log.persist(ready(compaction=snapshot(4)))
    disk.rot(f"raft/{name}", position)
    return disk


@pytest.mark.parametrize(
    ("name", "position", "sentence"),
    [
        ("segment-0000000001", 60, "segment-0000000001 at byte .* a damaged frame with sound ones after it"),
        ("segment-0000000002", 60, "segment-0000000002 at byte .* a damaged frame with sound ones after it"),
        ("segment-0000000001", 0, "at byte 0 holds .* where a Raft segment begins"),
        (
            "segment-0000000001",
            5,
            "at byte 4 holds version 253; this release reads 2; start .* with the release that wrote it",
        ),
        ("snapshot", 0, "snapshot at byte 0 holds .* where a Raft snapshot begins"),
        ("snapshot", 5, "at byte 4 holds version 253; this release reads 2; start .* with the release that wrote it"),
        ("snapshot", 40, "data that does not match its length and checksum"),
    ],
)
def test_damage_is_refused_with_its_place(name: str, position: int, sentence: str) -> None:
    disk = damaged(name=name, position=position)
    with pytest.raises(StoreError, match=sentence):
        open_log(disk)


def test_a_torn_tail_is_cut_and_reported() -> None:
    disk = SimDisk(SimPrng(1))
    log = open_log(disk)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 3)))
    whole = open_log(disk).stored
    disk.open_append("raft/segment-0000000001").append(b"RQRF\0\0\1\0torn")
    again = open_log(disk)
    assert again.stored == whole
    assert again.recovery_lines == ["raft/segment-0000000001: cut a torn frame of 12 bytes at byte 103"]
    assert open_log(disk).recovery_lines == []


def test_an_entry_that_looks_like_a_frame_does_not_hide_damage() -> None:
    """The frame's position is in its checksum."""
    disk = SimDisk(SimPrng(1))
    log = open_log(disk, segment_bytes=10_000)
    log.persist(ready(HardState(Term(1), "n1"), new=entries(1, 1)))
    content = disk.read("raft/segment-0000000001")
    frame = content[content.rindex(b"RQRF") :]
    log.persist(ready(new=(Entry(RaftIndex(2), Term(1), frame),)))
    disk.write_atomic("raft/segment-0000000001", disk.read("raft/segment-0000000001")[:-1])
    disk.remove("raft/end")
    assert [entry.index for entry in open_log(disk, segment_bytes=10_000).stored.entries] == [1]


def test_another_nodes_directory_is_refused() -> None:
    disk = SimDisk(SimPrng(1))
    open_log(disk, "n1")
    with pytest.raises(StoreError, match="sim/raft belongs to controller node 'n1', this is 'n2'; give each node"):
        open_log(disk, "n2")


def test_a_missing_segment_is_refused() -> None:
    disk = damaged(name="snapshot", position=0)
    disk.remove("raft/snapshot")
    disk.remove("raft/segment-0000000002")
    with pytest.raises(StoreError, match="successor is missing: the next one is segment-0000000003"):
        open_log(disk)


def test_a_snapshot_without_segments_is_refused() -> None:
    disk = SimDisk(SimPrng(1))
    open_log(disk).persist(ready(new=entries(1, 3), compaction=snapshot(2)))
    disk.remove("raft/segment-0000000001")
    with pytest.raises(StoreError, match="without the segments that hold this node's vote"):
        open_log(disk)
