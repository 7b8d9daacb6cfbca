"""Replicas of one group: read once, compared where asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.model.error import StoreError
from rmqha.scan.api import StoreView, by_group, open_store, plan_ranges, read_range
from tests.store.log_writer import LogWriter, Message


def replica(root: Path, count: int, name: str = "a") -> tuple[LogWriter, list[int]]:
    writer = LogWriter(root, 4096)
    offsets = writer.append_all([Message(body=b"y" * 900, queue_offset=n) for n in range(count)])
    writer.write(identity=f"c#{name}#1")
    return writer, offsets


def read(first: StoreView, *peers: StoreView) -> int:
    ranges = plan_ranges(first, min_ranges=1, peers=peers)
    return sum(batch.num_rows for item in ranges for batch in read_range(item))


def test_the_replica_with_the_most_comes_first(tmp_path: Path) -> None:
    for name, count in (("one", 3), ("two", 5), ("three", 4)):
        replica(tmp_path / name, count)
    replica(tmp_path / "other", 1, "b")
    views = [open_store(str(tmp_path / name)) for name in ("one", "other", "two", "three")]
    named = [[Path(view.root).name for view in group] for group in by_group(views)]
    assert named == [["two", "three", "one"], ["other"]]


def test_equal_replicas_of_other_lengths(tmp_path: Path) -> None:
    (longer, offsets), (shorter, _) = replica(tmp_path / "long", 12), replica(tmp_path / "short", 5)
    (longer.root / "commitlog" / f"{0:020}").unlink()  # trimmed: the common part is compared
    left = sum(offset >= 4096 for offset in offsets)
    assert read(open_store(str(longer.root)), open_store(str(shorter.root))) == left
    # what stands behind a blank record's header means nothing
    blank = longer.root / "commitlog" / f"{4096:020}"
    blank.write_bytes(blank.read_bytes()[:-20] + b"\x11" * 20)
    other, _ = replica(tmp_path / "other", 12)
    assert read(open_store(str(longer.root)), open_store(str(other.root))) == left


def test_a_byte_that_differs_names_both_and_the_record(tmp_path: Path) -> None:
    (first, offsets), (second, _) = replica(tmp_path / "one", 8), replica(tmp_path / "two", 8)
    second.put(offsets[4] + 150, b"z")
    second.write(identity="c#a#2")
    with pytest.raises(StoreError) as raised:
        read(open_store(str(first.root)), open_store(str(second.root)))
    text = str(raised.value)
    assert f"{first.root}/commitlog/{4096:020} and {second.root} are replicas" in text
    assert f"differ in the record at physical offset {offsets[4]}" in text
