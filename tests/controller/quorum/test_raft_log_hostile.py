"""Any bytes as any file of the Raft directory: one sentence, or a state that the log once had; never anything else."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.quorum.raft_log import FRAME_VERSION, DurableRaftLog, _Frame
from rmqha.model.error import StoreError
from rmqha.model.offset import Term
from rmqha.raft.log import StoredState
from rmqha.raft.quorum import Configuration
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.wire.raft_message import Entry, EntryKind, HardState, Snapshot
from tests.controller.quorum.test_raft_log import entries, open_log, ready


def reopened(disk: SimDisk) -> DurableRaftLog:
    """A copy of the directory, opened: the log that writes it goes on."""
    copy = SimDisk(SimPrng(3))
    for name in disk.list("raft"):
        copy.write_atomic(f"raft/{name}", disk.read(f"raft/{name}"))
    return open_log(copy, segment_bytes=300)


@cache
def written() -> tuple[dict[str, bytes], tuple[StoredState, ...]]:
    """The files of a log that has seen all that a log can see, and every state that it had since its snapshot."""
    disk = SimDisk(SimPrng(3))
    log = open_log(disk, segment_bytes=300)
    members = Configuration(("n1#01", "n2#02"), addresses=(("n1#01", "10.0.0.1:9878"),)).encode()
    log.persist(ready(HardState(Term(1), "n1#01"), new=entries(1, 4)))
    log.persist(ready(new=(Entry(entries(5, 1)[0].index, Term(1), members, EntryKind.CONFIGURATION),)))
    log.persist(ready(compaction=Snapshot(entries(5, 1)[0].index, Term(1), b"state 5" * 9, members)))
    states = [reopened(disk).stored]
    for step in range(14):
        last = states[-1].entries[-1].index if states[-1].entries else 5
        hard_state = HardState(Term(step // 4 + 1), f"n{step % 2 + 1}#0{step % 2 + 1}")
        cut = last if step % 5 == 4 else None
        start = last if cut else last + 1
        log.persist(ready(hard_state, cut, entries(start, step % 3 + 1, step // 4 + 1)))
        states.append(reopened(disk).stored)
    return {name: disk.read(f"raft/{name}") for name in disk.list("raft")}, tuple(states)


NAMES = tuple(written()[0])


def opened(name: str, content: bytes) -> StoredState:
    """What a log finds with this content in one of its files. StoreError if it refuses."""
    disk = SimDisk(SimPrng(4))
    disk.make_dirs("raft")
    for other, data in written()[0].items():
        disk.write_atomic(f"raft/{other}", content if other == name else data)
    return open_log(disk, segment_bytes=300).stored


def check(name: str, content: bytes) -> None:
    try:
        stored = opened(name, content)
    except StoreError as error:
        assert "\n" not in str(error) and "sim/raft/" in str(error)
    else:
        assert stored in written()[1]


def test_the_files_tell_the_last_state() -> None:
    assert len(NAMES) >= 4 and "snapshot" in NAMES
    for name in NAMES:
        assert opened(name, written()[0][name]) == written()[1][-1]


@settings(max_examples=300)
@given(st.binary(max_size=1100))
def test_any_bytes_in_the_mark(content: bytes) -> None:
    assert opened("end", content) == written()[1][-1]


@settings(max_examples=300)
@given(st.sampled_from([name for name in NAMES if name != "end"]), st.binary(max_size=300))
def test_any_bytes(name: str, content: bytes) -> None:
    with pytest.raises(StoreError):
        opened(name, content)


@settings(max_examples=300)
@given(st.sampled_from(NAMES), st.binary(max_size=60), st.integers(0, 40))
def test_any_bytes_after_a_sound_beginning(name: str, tail: bytes, kept_bytes: int) -> None:
    check(name, written()[0][name][:kept_bytes] + tail)


@settings(max_examples=500)
@given(st.sampled_from(NAMES), st.integers(0, 2000), st.integers(1, 255))
def test_any_byte_changed(name: str, place: int, mask: int) -> None:
    content = bytearray(written()[0][name])
    place %= len(content)
    content[place] ^= mask
    check(name, bytes(content))


@settings(max_examples=500)
@given(st.sampled_from(NAMES), st.integers(0, 2000), st.integers(0, 200), st.binary(max_size=40))
def test_any_part_replaced(name: str, place: int, length: int, new: bytes) -> None:
    content = written()[0][name]
    place %= len(content) + 1
    check(name, content[:place] + new + content[place + length :])


def test_a_file_cut_short_at_any_byte() -> None:
    for name in NAMES:
        content = written()[0][name]
        for size in range(len(content)):
            check(name, content[:size])


@settings(max_examples=100)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_a_file_in_another_ones_place(name: str, other: str) -> None:
    check(name, written()[0][other])


@pytest.mark.parametrize("name", ["segment-²", "segment-1", "segment-0000000001.tmp", "notes"])
def test_other_files_are_left_alone(name: str) -> None:
    disk = SimDisk(SimPrng(4))
    before = open_log(disk).identity
    disk.write_atomic(f"raft/{name}", b"something")
    again: DurableRaftLog = open_log(disk)
    assert (again.identity, again.stored) == (before, StoredState())
    assert disk.read(f"raft/{name}") == b"something"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.binary(max_size=9)),
    st.dictionaries(st.integers(), st.none()),
)


@example([float("inf"), "", False, 0, [], 0])
@example([1, "", False, 0, [{}], 0])
@given(st.lists(VALUES, min_size=6, max_size=6))
def test_a_frame_of_any_values_under_a_right_checksum(values: list[object]) -> None:
    payload = cbor2.dumps([FRAME_VERSION, *values])
    with suppress(ValueError):
        assert _Frame.decode(payload).entries is not None
