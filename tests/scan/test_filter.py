"""Rows left out by a reader: the same as of the unfiltered read, filtered afterwards."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.scan import api as scan_prune
from rmqha.scan.api import (
    Interval,
    LogRange,
    RowFilter,
    StoreView,
    open_store,
    plan_ranges,
    prune,
    read_range,
    read_store,
)
from tests.scan.test_api import ms, rows_of
from tests.store.log_writer import LogWriter, Message

COUNT = 120
STEP_BACK_MS = 40
TAGS = ("red", "blue", "", "rot")


def stored_ms(index: int) -> int:
    """Rises, with steps back of less than STEP_BACK_MS."""
    return 1000 + index * 10 - (index * 7919) % STEP_BACK_MS


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = LogWriter(tmp_path_factory.mktemp("mixed"), 4096)
    for index in range(COUNT):
        tag, key = TAGS[index % 4], f"k{index % 9} k{index % 7}" if index % 5 else ""
        writer.append(
            Message(
                topic=b"t%d" % (index % 3),
                queue_id=index % 4,
                queue_offset=index // 12,
                stored_at_ms=stored_ms(index),
                properties=f"TAGS\x01{tag}\x02KEYS\x01{key}\x02".encode(),
            )
        )
    writer.write()
    writer.write_topics()
    return writer.root


@pytest.fixture(scope="module")
def everything(mixed: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows_of(mixed)
    return found


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


topics = st.frozensets(st.sampled_from(["t0", "t1", "t2", "none"]))
queues = st.tuples(st.sampled_from(["t0", "t1", "t2", "none"]), st.integers(0, 4))
intervals = st.builds(Interval, st.integers(0, 6), st.integers(3, 12))
filters = st.builds(
    RowFilter,
    topics=optional(topics),
    topic_pattern=optional(st.sampled_from(["t[01]", "t", ".*", "t0|t2"])),
    queues=optional(st.frozensets(queues, min_size=3)),
    queue_offsets=st.dictionaries(queues, intervals, max_size=4),
    tags=optional(st.frozensets(st.sampled_from([*TAGS, "none"]))),
    keys=optional(st.frozensets(st.sampled_from([f"k{n}" for n in range(10)]), min_size=1)),
    intervals=st.fixed_dictionaries(
        {},
        optional={
            "queueId": intervals,
            "physicalOffset": st.builds(Interval, st.integers(0, 14000), st.integers(3000, 20000)),
            "storeTimestamp": st.builds(Interval, st.integers(900, 2300), st.integers(1500, 2400)),
        },
    ),
    values=st.fixed_dictionaries({}, optional={"queueOffset": st.frozensets(st.integers(0, 12), min_size=4)}),
)


@given(filters)
@settings(max_examples=80)
def test_filters_keep_exactly_the_rows_that_match(
    mixed: Path, everything: list[dict[str, Any]], rows: RowFilter
) -> None:
    view = open_store(str(mixed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_prune, "NEAR_BYTES", 200)
        batches = list(read_store(view, rows=rows, timestamp_slack_ms=STEP_BACK_MS))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert found == [row for row in everything if matches(row, rows)]


def matches(row: dict[str, Any], rows: RowFilter) -> bool:
    queue = (row["topic"], row["queueId"])
    numbers = row | {"storeTimestamp": ms(row["storeTimestamp"])}
    offsets = rows.queue_offsets.get(queue, Interval())
    return (
        (rows.topics is None or row["topic"] in rows.topics)
        and (rows.topic_pattern is None or re.fullmatch(rows.topic_pattern, row["topic"]) is not None)
        and (rows.queues is None or queue in rows.queues)
        and offsets.low <= row["queueOffset"] <= offsets.high
        and (rows.tags is None or row["tags"] in rows.tags)
        and (rows.keys is None or bool(rows.keys & set(row["keys"])))
        and all(limit.low <= numbers[name] <= limit.high for name, limit in rows.intervals.items())
        and all(row[name] in values for name, values in rows.values.items())
    )


def test_filters_meet(mixed: Path) -> None:
    both = RowFilter(frozenset(["t0", "t1"])).with_topics(frozenset(["t1", "t2"]))
    assert both.topics == frozenset(["t1"])
    bounds = {("t0", 1): Interval(low=2)}
    met = RowFilter(queue_offsets=bounds).with_queue_offsets({("t0", 1): Interval(high=5), ("t0", 2): Interval(1, 1)})
    assert met.queue_offsets == {("t0", 1): Interval(2, 5), ("t0", 2): Interval(1, 1)}
    empty = RowFilter().with_values("physicalOffset", frozenset())
    assert rows_of(mixed, rows=empty) == []


class TestPrune:
    """A filter reads only what it must."""

    @pytest.fixture
    def long_log(self, tmp_path: Path) -> LogWriter:
        writer = LogWriter(tmp_path, 1024 * 1024)
        for index in range(5000):
            writer.append(Message(body=b"x" * 900, queue_offset=index, stored_at_ms=index * 1000))
        return writer

    def read_bytes(self, view: StoreView) -> int:
        return sum(item.size_bytes for item in plan_ranges(view, min_ranges=1))

    def test_times_and_offsets(self, long_log: LogWriter) -> None:
        view = open_store(str(long_log.write()))
        times = RowFilter().with_interval("storeTimestamp", Interval(2_000_000, 2_100_999))
        part = prune(view, times, 0)
        assert 101 * 1000 < self.read_bytes(part) < 101 * 1100 + 2 * scan_prune.NEAR_BYTES
        assert sum(batch.num_rows for batch in read_store(view, rows=times, timestamp_slack_ms=0)) == 101
        assert self.read_bytes(prune(view, times, 600_000)) > self.read_bytes(part) + 1000 * 1000
        offsets = RowFilter().with_interval("physicalOffset", Interval(2_500_000, 2_600_000))
        assert 100_000 < self.read_bytes(prune(view, offsets, 0)) < 110_000 + 2 * scan_prune.NEAR_BYTES
        late = RowFilter().with_interval("storeTimestamp", Interval(low=10**12))
        assert self.read_bytes(prune(view, late, 0)) < scan_prune.NEAR_BYTES + 2000
        assert self.read_bytes(prune(view, RowFilter(), 0)) == self.read_bytes(view)

    def test_without_queues_only_files_are_left_out(self, long_log: LogWriter) -> None:
        long_log.queue_entries.clear()
        view = open_store(str(long_log.write(confirm_offset=long_log.end)))
        times = RowFilter().with_interval("storeTimestamp", Interval(2_000_000, 2_100_999))
        part = prune(view, times, 0)
        assert {start % (1024 * 1024) for start in part.starts} == {0}
        assert 1 <= len(part.files) <= 2

    def test_a_forged_record_is_no_place_to_cut(self, tmp_path: Path) -> None:
        """Its body says that it was stored an hour before the records that follow."""
        from tests.store.log_writer import encode

        writer = LogWriter(tmp_path, 1024 * 1024)
        for index in range(200):
            forged, start = b"", writer.end + 88
            while len(forged) < 3500:
                forged += encode(Message(topic=b"forged", stored_at_ms=1), start + len(forged))
            writer.append(Message(body=forged, queue_offset=index, stored_at_ms=10**7 + index))
        rows = RowFilter().with_interval("storeTimestamp", Interval(low=10**7))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan_prune, "NEAR_BYTES", 1000)
            found = list(read_store(open_store(str(writer.write())), rows=rows, timestamp_slack_ms=0))
        assert sum(batch.num_rows for batch in found) == 200


def test_a_range_can_be_sent_to_another_process(mixed: Path) -> None:
    sent: LogRange = pickle.loads(pickle.dumps(plan_ranges(open_store(str(mixed)), min_ranges=1)[0]))
    assert sum(batch.num_rows for batch in read_range(sent)) > 0
