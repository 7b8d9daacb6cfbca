"""How a log is cut into ranges: where, and what is read for it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from rmqha.scan import plan as scan_plan
from rmqha.scan.api import StoreView, ViewOptions, open_store, plan_ranges, read_range
from rmqha.scan.read import LogFileInfo
from tests.store.log_writer import LogWriter, Message, encode

FILE_BYTES = 1024 * 1024
MIN_BYTES = 16 * 1024


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_plan, "RANGE_MIN_BYTES", MIN_BYTES)


@pytest.fixture
def no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(*_: object) -> NoReturn:
        raise AssertionError("the log was walked")

    monkeypatch.setattr(scan_plan, "_record_starts", walked)


def write(writer: LogWriter, count: int, *, dispatched: bool = True) -> list[int]:
    """Records whose bodies hold what looks like records; their offsets."""
    offsets = []
    for number in range(count):
        hidden = encode(Message(body=b"hidden"), writer.end + 88 + 300)
        body = bytes(300) + hidden + bytes(700)
        message = Message(topic=b"t%d" % (number % 3), queue_offset=number // 3, body=body)
        offsets.append(writer.append(message, dispatched=dispatched))
    return offsets


def read_offsets(view: StoreView, **given: int) -> tuple[list[int], int]:
    """The physical offsets of the rows of all ranges, and how many ranges there are."""
    ranges = plan_ranges(view, min_ranges=given.get("min_ranges", 1), target_bytes=given.get("target_bytes"))
    found = [offset for item in ranges for batch in read_range(item) for offset in batch["physicalOffset"].to_pylist()]
    return found, len(ranges)


@pytest.mark.usefixtures("no_walk")
def test_queues_tell_where_files_are_cut(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, FILE_BYTES)
    offsets = write(writer, 2000)
    view = open_store(str(writer.write(confirm_offset=writer.end)))
    assert read_offsets(view) == (offsets, len(view.files)), "whole files are ranges of their own"
    for given in ({"min_ranges": 20}, {"target_bytes": view.size_bytes // 20}):
        found, count = read_offsets(view, **given)
        assert found == offsets and 18 <= count <= 24
    sizes = [item.size_bytes for item in plan_ranges(view, min_ranges=1, target_bytes=100_000)]
    assert max(sizes) < 150_000 and min(sizes[:-1]) > 60_000


def test_what_the_queues_do_not_tell_is_walked_where_it_must_be_cut(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, FILE_BYTES)
    offsets = write(writer, 300)
    offsets += write(writer, 300, dispatched=False)
    view = open_store(str(writer.write(confirm_offset=offsets[-1])))
    found, count = read_offsets(view, target_bytes=50_000)
    assert found == offsets[:-1] and 5 < count < 11, "the second half stays whole"
    found, count = read_offsets(view, min_ranges=16)
    assert found == offsets[:-1] and count >= 15


def test_without_queues_only_what_must_be_cut_is(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, FILE_BYTES)
    offsets = write(writer, 600, dispatched=False)
    writer.write(identity="")
    view = open_store(str(tmp_path), ViewOptions(uncommitted=True))
    assert read_offsets(view, target_bytes=50_000) == (offsets, len(view.files))
    found, count = read_offsets(view, target_bytes=50_000, min_ranges=6)
    assert found == offsets and count >= 6


@pytest.mark.usefixtures("no_walk")
def test_a_log_of_whole_files_is_planned_by_their_names(tmp_path: Path) -> None:
    """10 TB in files that are not even there."""
    size = 1 << 30
    files = tuple(LogFileInfo(f"{tmp_path}/commitlog/{at * size:020}", at * size, size) for at in range(9313))
    starts = tuple(name.base_offset for name in files)
    view = StoreView(str(tmp_path), None, None, None, files, starts, len(files) * size, len(files) * size, ())
    assert len(plan_ranges(view, min_ranges=1000, target_bytes=size)) == 9313
