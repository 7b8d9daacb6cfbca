"""config/timercheck: RocketMQ's bytes, and ours behind them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.tables.config_table import DataVersion
from rmqha.broker.timers.timer_check import TimerProgress, decode, encode, encode_file, is_ours

GOLDEN = struct.pack(">7q", 1795227286000, 780, 15, 15, 4, 1795227288994, 1363)
"""The first 56 bytes of the file in the golden store n0."""


def test_what_a_real_broker_wrote() -> None:
    assert decode(GOLDEN.ljust(4096, b"\0")) == TimerProgress(1795227286000, 0, 15, 0)


OFFSETS = st.integers(0, 2**40)


@given(st.integers(0, 2**62), OFFSETS, OFFSETS, OFFSETS, OFFSETS | st.none())
def test_round_trip(read_ms: int, next_offset: int, taken: int, first: int, logged: int | None) -> None:
    progress, version = TimerProgress(read_ms, next_offset, taken, min(first, taken)), DataVersion(7, 3, 1_000)
    data = encode_file(progress, version, logged)
    assert len(data) == 4096 and decode(data) == progress and is_ours(data)
    assert len(encode(progress, version)) == 56 and encode(progress, version)[32:] == data[32:56]
    assert struct.unpack(">3q", data[32:56]) == (3, 1_000, 7)


def test_what_rocketmq_is_told_to_look_for_in_the_queue() -> None:
    """All from the first entry that waits on, or what a timer log does not hold."""
    progress = TimerProgress(5000, 9, 20, 8)
    assert struct.unpack(">4q", encode_file(progress, DataVersion())[:32]) == (5000, 0, 8, 8)
    assert struct.unpack(">4q", encode_file(progress, DataVersion(), 31)[:32]) == (5000, 0, 31, 31)
    assert struct.unpack(">4q", encode(progress, DataVersion())[:32]) == (5000, 0, 20, 20)


def test_what_another_program_wrote_since_makes_our_numbers_void() -> None:
    data = encode_file(TimerProgress(5000, 9, 20, 8), DataVersion())
    theirs = struct.pack(">4q", 6000, 0, 20, 20) + data[32:]
    assert decode(theirs) == TimerProgress(6000, 0, 20, 0) and not is_ours(theirs)


def test_rocketmq_is_told_the_beginning_of_a_slot_of_its_wheel() -> None:
    """It goes on in steps of a slot: told 5738 it would say 9738 when slot 9000 is not delivered yet."""
    progress = TimerProgress(5738, 9, 20, 8)
    assert encode(progress, DataVersion())[:8] == encode_file(progress, DataVersion())[:8] == struct.pack(">q", 5000)
    assert decode(encode_file(progress, DataVersion())) == progress


def test_a_slot_in_which_rocketmqs_read_time_lies_is_not_delivered() -> None:
    """How wide its slots are is not known: 100 to 1000 ms."""
    theirs = struct.pack(">4q", 9738, 0, 20, 20).ljust(4096, b"\0")
    assert decode(theirs) == TimerProgress(9000, 0, 20, 0)


@given(st.integers(1, 2**30), st.integers(1, 2**30))
def test_no_pair_of_changes_hides_that_another_program_wrote(seconds: int, count: int) -> None:
    data = encode_file(TimerProgress(2**40 // 1000 * 1000, 9, 2**31, 2**31), DataVersion())
    read_ms, _, offset, _ = struct.unpack(">4q", data[:32])
    theirs = struct.pack(">4q", read_ms ^ seconds << 3, 0, offset ^ seconds << 3, 0) + data[32:]
    assert not is_ours(theirs)
    assert not is_ours(struct.pack(">4q", read_ms + seconds * 1000, 0, offset + count, 0) + data[32:])


@pytest.mark.parametrize("data", [b"", b"\0" * 55, struct.pack(">7q", -1, 0, 0, 0, 0, 0, 0)])
def test_what_is_no_such_file(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes|cannot be"):
        decode(data)


def test_what_lies_behind() -> None:
    here = TimerProgress(5000, 9, 20, 8)
    assert not here.is_behind(here) and not here.is_behind(TimerProgress(4000, 99, 20, 0))
    for ahead in (TimerProgress(5000, 10, 20), TimerProgress(6000, 0, 20), TimerProgress(5000, 9, 21)):
        assert here.is_behind(ahead)
