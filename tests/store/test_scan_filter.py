"""Rows left out by a reader: the same as of the unfiltered read, filtered afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.store.scan import Interval, LogRange, RowFilter, open_store, plan_ranges, read_range
from tests.store.log_writer import LogWriter, Message
from tests.store.test_scan import rows_of

filters = st.builds(
    lambda topics, queue, low, high, values: (
        (RowFilter(topics) if topics is not None else RowFilter())
        .with_interval("queueId", Interval(queue, queue + 1))
        .with_interval("physicalOffset", Interval(low, high))
        .with_values("queueOffset", values)
    ),
    st.one_of(st.none(), st.frozensets(st.sampled_from(["t0", "t1", "t2", "none"]))),
    st.integers(0, 3),
    st.integers(0, 9000),
    st.integers(2000, 12000),
    st.frozensets(st.integers(0, 60), min_size=20),
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = LogWriter(tmp_path_factory.mktemp("mixed"), 4096)
    for index in range(60):
        writer.append(
            Message(topic=b"t%d" % (index % 3), queue_id=index % 4, queue_offset=index, stored_at_ms=1000 + index)
        )
    return writer.write()


@given(filters)
@settings(max_examples=80, deadline=None)
def test_filters_keep_exactly_the_rows_that_match(mixed: Path, rows: RowFilter) -> None:
    everything = rows_of(mixed)
    found = rows_of(mixed, rows=rows)
    assert found == [row for row in everything if matches(row, rows)]


def matches(row: dict[str, Any], rows: RowFilter) -> bool:
    return (
        (rows.topics is None or row["topic"] in rows.topics)
        and all(limit.low <= row[name] <= limit.high for name, limit in rows.intervals.items())
        and all(row[name] in values for name, values in rows.values.items())
    )


def test_filters_meet(mixed: Path) -> None:
    both = RowFilter(frozenset(["t0", "t1"])).with_topics(frozenset(["t1", "t2"]))
    assert both.topics == frozenset(["t1"])
    empty = RowFilter().with_values("physicalOffset", frozenset())
    assert rows_of(mixed, rows=empty) == []
    assert plan_ranges(open_store(str(mixed)), min_ranges=1, low=10**9) == []
    late = RowFilter().with_interval("storeTimestamp", Interval(low=1050))
    assert len(rows_of(mixed, rows=late)) == 10


def test_a_range_can_be_sent_to_another_process(mixed: Path) -> None:
    import pickle

    sent: LogRange = pickle.loads(pickle.dumps(plan_ranges(open_store(str(mixed)), min_ranges=1)[0]))
    assert sum(batch.num_rows for batch in read_range(sent)) > 0
