"""Places in a log that outlive a look at it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.scan.api import Decoding, StoreView, open_store, read_store
from rmqha.scan.position import Position, between, end_within, has_reached, position_at
from tests.store.log_writer import LogWriter, Message

OFFSETS = Decoding(columns=("physicalOffset", "storeSize"))
EPOCHS = "2\n0\n1-0\n4-6000\n"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreView, list[int]]:
    """Three files with blanks between them; the offsets of all records."""
    writer = LogWriter(tmp_path_factory.mktemp("log"), file_bytes=8192)
    offsets = writer.append_all([Message(body=bytes(300), queue_offset=number) for number in range(40)])
    view = open_store(str(writer.write(confirm_offset=writer.end, epochs=EPOCHS)))
    assert len(view.files) == 3
    return view, offsets


def offsets_of(view: StoreView) -> list[int]:
    return [row["physicalOffset"] for batch in read_store(view, OFFSETS) for row in batch.to_pylist()]


@settings(max_examples=40)
@given(st.data())
def test_any_split_at_record_ends_gives_every_record_once(
    log: tuple[StoreView, list[int]], data: st.DataObject
) -> None:
    view, offsets = log
    at, found = view.min_offset, list[int]()
    while at < view.end_offset:
        end = end_within(view, at, data.draw(st.integers(1, 5000)))
        assert at < end <= view.end_offset
        found += offsets_of(between(view, at, end))
        at = end
    assert found == offsets


def test_a_limit_holds_unless_one_record_is_longer(log: tuple[StoreView, list[int]]) -> None:
    view, offsets = log
    for start, following in pairwise(offsets):
        assert end_within(view, start, 1) in (following, following - following % 8192)
        assert end_within(view, start, 900) <= start + 900


def test_a_position_names_the_epoch_of_the_byte_before(log: tuple[StoreView, list[int]]) -> None:
    view, _ = log
    assert position_at(view, 0) == Position(0)
    assert position_at(view, 6000) == Position(6000, 1, 0)
    assert position_at(view, 6001) == Position(6001, 4, 6000)


def test_a_log_that_was_cut_or_written_anew_is_told(log: tuple[StoreView, list[int]]) -> None:
    view, offsets = log
    for position in (Position(0), position_at(view, offsets[5]), position_at(view, view.end_offset), Position(9)):
        assert has_reached(view, position)
    end = offsets[9]
    cut = replace(between(view, 0, end), written_end=end)
    with pytest.raises(StoreError, match=rf"ends at {end}, and {end + 9} had been read, of epoch 1: what was read b"):
        has_reached(cut, Position(end + 9, 1, 0))
    for other, at in ((Position(7000, 3, 6000), 6000), (Position(7000, 4, 5000), 6000), (Position(6500, 1, 0), 6000)):
        with pytest.raises(StoreError, match=f"the log was cut at {at} and written anew; start a new query"):
            has_reached(view, other)
    later = replace(cut, epochs=((1, 0), (2, end), (3, end + 4)))
    with pytest.raises(StoreError, match=rf"{end + 9} had been read, of epoch 1 from 0, and now epoch 3 from"):
        has_reached(later, Position(end + 9, 1, 0), same_replica=False)


def test_a_log_that_is_only_behind_is_waited_for(log: tuple[StoreView, list[int]]) -> None:
    view, offsets = log
    end = offsets[9]
    behind = replace(between(view, 0, end), epochs=((1, 0),))
    assert behind.written_end == view.end_offset
    assert not has_reached(behind, Position(end + 9, 1, 0)), "its confirm offset is old"
    copied = replace(behind, written_end=end)
    assert not has_reached(copied, Position(end + 9, 1, 0), same_replica=False)
    assert not has_reached(copied, Position(end + 9, 2, end + 3), same_replica=False), "it lacks a whole epoch"
    with pytest.raises(StoreError, match=r"had been read, of epoch 2 from 8, and this replica has bytes of epoch 1 th"):
        has_reached(copied, Position(end, 2, 8), same_replica=False)
