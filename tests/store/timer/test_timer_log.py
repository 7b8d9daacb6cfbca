"""timerlog and timerwheel: RocketMQ's bytes, ours read back, and any others refused with their place."""

from __future__ import annotations

import tarfile
from functools import cache
from io import BytesIO

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqha.store.timer.timer_log import (
    DELETES,
    NO_POSITION,
    ROLLED,
    UNIT_BYTES,
    BadTimerLogError,
    TimerUnit,
    files,
    unit_count,
    units,
)
from rmqha.store.timer.timer_wheel import SLOT_BYTES, SLOT_COUNT, WHEEL_BYTES, WheelSlot, is_wheel, slots
from tests.golden.reader import GOLDEN


@cache
def golden(archive: str, name: str) -> bytes:
    packed = zstandard.ZstdDecompressor().decompressobj().decompress((GOLDEN / "store" / archive).read_bytes())
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        found = tar.extractfile(name)
        assert found is not None
        return found.read()


def timer_log() -> bytes:
    return golden("n0.tar.zst", "n0/timerlog/00000000000000000000")


# --- RocketMQ's -------------------------------------------------------------------------------------------------------
def test_a_log_of_rocketmqs() -> None:
    found = list(units(timer_log()))
    assert [position for position, _ in found] == [number * UNIT_BYTES for number in range(15)]
    assert found[2][1] == TimerUnit(NO_POSITION, 0, 1795225641000, 7_200_000, 771487, 368, 693150947)
    written = b"".join(unit.encode() for _, unit in found)
    assert timer_log() == written.ljust(len(timer_log()), b"\0")


def test_a_wheel_of_rocketmqs_names_the_units_of_its_log() -> None:
    wheel = golden("n0-timerwheel.tar.zst", "n0/timerwheel")
    log = dict(units(timer_log()))
    found = list(slots(wheel))
    assert len(found) == 15
    for slot in found:
        unit = log[slot.last_position]
        assert slot.first_position == slot.last_position and slot.message_count == 1
        assert unit.slot_ms == slot.time * 1000
        at = slot.time % SLOT_COUNT * SLOT_BYTES
        assert wheel[at : at + SLOT_BYTES] == slot.encode()


def test_names_of_wheels() -> None:
    assert all(map(is_wheel, ("timerwheel", "timerwheel.0", "timerwheel.5200")))
    assert not any(map(is_wheel, ("timerwheels", "timerwheel.tmp", "timerwheel.5.tmp", "timerlog")))


# --- ours -------------------------------------------------------------------------------------------------------------
ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 2**40), st.sampled_from((0, ROLLED, DELETES)), st.integers(0, 2**62), st.integers(1, 2**31 - 1)
    ),
    max_size=60,
)


@given(ENTRIES, st.integers(UNIT_BYTES + 16, 10 * UNIT_BYTES), st.sampled_from((1, 100, 1000)))
def test_each_chain_names_all_of_its_slot_the_newest_first(
    entries: list[tuple[int, int, int, int]], file_size: int, precision_ms: int
) -> None:
    written_ms = 2**40
    entries = [(written_ms - 2**30 + entry[0] % 2**31, *entry[1:]) for entry in entries]
    log: dict[int, TimerUnit] = {}
    last: dict[int, int] = {}
    for number, content in enumerate(files(entries, written_ms, precision_ms, file_size)):
        for position, unit in units(content.ljust(file_size, b"\0"), number * file_size):
            log[position] = unit
            last[unit.slot_ms // precision_ms] = position
    assert [(unit.slot_ms, unit.flags, unit.phy_offset, unit.size_bytes) for unit in log.values()] == entries
    for slot, position in last.items():
        chain = []
        while position != NO_POSITION:
            chain.append(log[position])
            position = log[position].previous_position
        assert chain[::-1] == [unit for unit in log.values() if unit.slot_ms // precision_ms == slot]


def test_a_full_file_ends_with_a_blank() -> None:
    entry = (1000, 0, 0, 1)
    size = 3 * UNIT_BYTES + 16
    assert unit_count(size) == 3 and unit_count(size - 1) == 2
    first, second = files([entry] * 4, 0, 1000, size)
    assert len(first) == size and first[-16:].hex() == "00000010" + "00" * 8 + "cbd43194"
    assert len(second) == UNIT_BYTES and len(list(units(first))) == 3


# --- others -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("at", "value"), [(3, 51), (4, 0), (12, 1), (15, 16), (16, 0x80), (28, 0x80), (36, 0x80), (11, 60)]
)
def test_a_unit_that_cannot_be_is_told_with_its_place(at: int, value: int) -> None:
    data = bytearray(timer_log())
    data[2 * UNIT_BYTES + at] = value
    with pytest.raises(BadTimerLogError) as caught:
        list(units(data))
    assert 2 * UNIT_BYTES <= caught.value.at < 3 * UNIT_BYTES and f"byte {caught.value.at}: " in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_in_a_log_are_units_or_an_error(data: bytes, at: int) -> None:
    whole = bytearray(timer_log()[:400])
    whole[at : at + len(data)] = data
    count = 0
    try:
        for position, unit in units(whole):
            count += 1
            assert unit.slot_ms >= 0 and unit.size_bytes > 0 and unit.previous_position < position
    except BadTimerLogError as error:
        assert 0 <= error.at < len(whole) and error.expected and error.found
    assert count <= len(whole) // UNIT_BYTES


@given(st.binary(min_size=1, max_size=64), st.integers(0, WHEEL_BYTES - 64))
def test_any_bytes_in_a_wheel_are_slots_or_an_error(data: bytes, at: int) -> None:
    wheel = bytearray(WHEEL_BYTES)
    wheel[at : at + len(data)] = data
    try:
        for slot in slots(wheel):
            assert slot.first_position <= slot.last_position and slot.time >= 0
    except BadTimerLogError as error:
        assert at - SLOT_BYTES <= error.at <= at + len(data)


def test_a_wheel_of_another_size_is_refused() -> None:
    with pytest.raises(BadTimerLogError, match=f"expected {WHEEL_BYTES} bytes, found 32"):
        list(slots(bytes(32)))
    slot = WheelSlot(SLOT_COUNT + 5, 0, 52, 2)
    assert list(slots(slot.encode().rjust(6 * SLOT_BYTES, b"\0").ljust(WHEEL_BYTES, b"\0"))) == [slot]
