"""The quick look at a queue's units says what looking at each one says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.store.queue.queue_check import PREFILL_SIZE, UNIT, ordered_count

SECTOR = 512
LOG_END = 1 << 40
COUNT = 400


def units(count: int = COUNT, first: int = 1000) -> bytearray:
    """Entries of records of 300 bytes, then room for as many."""
    written = b"".join(UNIT.pack(first + number * 300, 300, -1 - number) for number in range(count))
    return bytearray(written + bytes(len(written)))


def count_of(data: bytearray, behind: int = 0, log_end: int = LOG_END) -> tuple[int, int]:
    return ordered_count(memoryview(data), behind, log_end)


def test_all_units_up_to_the_first_unwritten() -> None:
    assert count_of(units()) == (COUNT, 1000 + COUNT * 300)
    assert count_of(units()[: COUNT * 20]) == (COUNT, 1000 + COUNT * 300)
    assert count_of(bytearray(400), 77) == (0, 77)


@given(st.integers(0, COUNT * 20 // SECTOR))
def test_a_lost_sector_ends_what_is_whole(sector: int) -> None:
    data = units()
    data[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
    data = data[: 2 * COUNT * 20]
    whole = sector * SECTOR // 20
    # of the unit that the sector cuts, offset and size may have survived in the sector before
    survives = sector * SECTOR - whole * 20 >= 11
    assert count_of(data)[0] == whole + survives


@given(st.integers(1, COUNT * 20 // SECTOR - 1))
def test_the_lost_beginning_of_a_unit_ends_what_is_whole(sector: int) -> None:
    """When the sector was last synced the unit that leaves it was not written, all in front of it was (plain
    1000840)."""
    data, end = units(), sector * SECTOR
    data[end - end % 20 : end] = bytes(end % 20)
    lost = end % 20 >= 8  # of the offset's first four bytes every one is zero
    assert count_of(data)[0] == (end // 20 if lost else COUNT)


@given(st.integers(1, COUNT * 20 // SECTOR - 1), st.integers(1, 1000))
def test_a_sector_of_older_content_ends_what_is_whole(sector: int, records_less: int) -> None:
    """An entry that a cut had dropped and a new one had replaced: its record stood elsewhere."""
    old = units(first=1000 + 300 * COUNT + records_less)
    data = units()
    data[sector * SECTOR : (sector + 1) * SECTOR] = old[sector * SECTOR : (sector + 1) * SECTOR]
    count, _ = count_of(data)
    assert count <= (sector + 1) * SECTOR // 20 + 1


@pytest.mark.parametrize("number", [0, 11, 12, 13, 200, COUNT - 1])
@pytest.mark.parametrize("bad", [(5, -1, 0), (5, 0, 0), (5, 0x01000000, 0), (-1, 300, 0), (LOG_END - 299, 300, 0)])
def test_a_unit_that_no_record_can_have(number: int, bad: tuple[int, int, int]) -> None:
    data = units()
    data[number * 20 : (number + 1) * 20] = UNIT.pack(*bad)
    seen = bad[1] != 300 or number % 12 == 0 or number == COUNT - 1
    expected = number + 1 if bad == (5, 0x01000000, 0) and not number else number
    assert count_of(data)[0] == (expected if seen else COUNT)


def test_prefilled_units_count_and_have_no_record() -> None:
    data = bytearray(UNIT.pack(0, PREFILL_SIZE, 0) * 30 + bytes(units(10)))
    assert count_of(data, 900) == (40, 4000)
    assert count_of(bytearray(UNIT.pack(0, PREFILL_SIZE, 0) * 30), 900) == (30, 900)
    data[:20] = UNIT.pack(8, PREFILL_SIZE, 0)
    assert count_of(data)[0] == 0


def test_files_follow_each_other() -> None:
    assert count_of(units(first=1000), 1000)[0] == COUNT
    assert count_of(units(first=1000), 1001)[0] == 0
    assert count_of(units(), log_end=1000 + 300 * 250)[0] == 250
