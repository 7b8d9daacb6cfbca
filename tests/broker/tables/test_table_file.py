"""Whatever order changes, snapshots and writes come in, the file is what the whole table would be written as."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.tables import config_table
from rmqha.broker.tables.table_file import ROWS, PendingTableWrite, TableFile
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng

NAMES = st.sampled_from(["a", "b", "B", "\u00e9", '"quoted"'])
ROW = st.none() | st.fixed_dictionaries({"perm": st.integers(0, 7)})
STEPS = st.lists(
    st.tuples(st.just("change"), st.dictionaries(NAMES, ROW, min_size=1))
    | st.tuples(st.just("replace"), st.dictionaries(NAMES, ROW.filter(bool)))
    | st.tuples(st.just("take"), st.booleans())
    | st.tuples(st.just("write"), st.integers(0, 3))
    | st.tuples(st.just("fail"), st.none())
)


def members(count: int) -> dict[str, Any]:
    return {"dataVersion": {"counter": count}, "table": ROWS, "more": {}, "last": ROWS}


def content(table: dict[str, Any], count: int) -> bytes:
    rows = {name: table[name] for name in sorted(table)}
    return config_table.encode({"dataVersion": {"counter": count}, "table": rows, "more": {}})


@given(st.dictionaries(NAMES, ROW.filter(bool)), STEPS)
def test_the_file_is_that_of_the_whole_table(start: dict[str, Any], steps: list[tuple[str, Any]]) -> None:
    disk = SimDisk(SimPrng(1))
    file = TableFile(disk, "t", ("table", "last"), optional=("last",))
    file.holds("table", start)
    table, count, taken = dict(start), 0, list[tuple[PendingTableWrite, bytes]]()
    newest, attempted = 0, (0, 0, b"")

    def take(*, in_flight: bool = False) -> None:
        data = file.unsaved(lambda: members(count), in_flight=in_flight)
        if data is not None:
            taken.append((data, content(table, count)))

    def write(data: PendingTableWrite, expected: bytes) -> None:
        nonlocal newest, attempted
        file.write(data)
        if data.order > newest:
            if data.order > attempted[0]:
                attempted = data.order, data.changed_count, expected
            newest = attempted[0]
            assert disk.read("config/t.json") == attempted[2]
            assert file.saved_count == attempted[1]

    for what, value in steps:
        match what:
            case "change":
                file.change("table", value)
                table = {name: row for name, row in (table | value).items() if row is not None}
                count += 1
            case "replace":
                file.replace("table", value)
                table, count = dict(value), count + 1
            case "take":
                take(in_flight=value)
            case "write" if taken:
                write(*taken.pop(value % len(taken)))
            case "fail":
                take()
                if taken:
                    disk.failing = frozenset(("create", "rename"))
                    data, expected = taken[-1]
                    if data.order > newest:
                        attempted = max(attempted, (data.order, data.changed_count, expected))
                        with pytest.raises(OSError):
                            file.write(data)
                        assert file.trouble
                    disk.failing = frozenset()
        assert file.changed_count == count
    take(in_flight=True)
    for item in reversed(taken):
        write(*item)
    assert file.is_saved
    if count:
        assert disk.read("config/t.json") == content(table, count)


def test_a_change_costs_its_own_rows_only() -> None:
    encoded: list[int] = []

    def encode(row: int) -> int:
        encoded.append(row)
        return row

    file = TableFile(SimDisk(SimPrng(1)), "t", ("table",), encode)
    file.holds("table", {str(number): number for number in range(100)})
    for number in (100, 101):
        file.change("table", {"x": number})
        data = file.unsaved(lambda: {"table": ROWS})
        assert data is not None
        file.write(data)
    assert encoded == [*range(100), 100, 101]
