"""Short ways to what a filter wants give the rows of a full read, and read little."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqha.scan.access.key_index import key_hash
from rmqha.scan.api import Decoding, Interval, ReadCounts, RowFilter, open_store, prune, read_store
from rmqha.store.index.index_key import key_hash as stored_hash
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("n0", tmp_path_factory.mktemp("golden")) / "n0"


def rows_of(root: Path, rows: RowFilter, **how: Any) -> tuple[list[dict[str, Any]], ReadCounts]:
    counts = ReadCounts()
    batches = read_store(open_store(str(root)), Decoding(), rows, counts=counts, **how)
    return [row for batch in batches for row in batch.to_pylist()], counts


class TestOffsetsOfQueues:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        writer = LogWriter(tmp_path, 64 * 1024)
        for number in range(3000):
            writer.append(Message(queue_id=number % 3, queue_offset=number // 3, body=bytes(200)))
        writer.append_all([Message(topic=b"other", queue_offset=n) for n in range(3)])
        writer.write(confirm_offset=writer.end)
        writer.write_topics()
        return writer.root

    @pytest.mark.parametrize(
        "rows",
        [
            RowFilter(frozenset(["orders"])).with_interval("queueOffset", Interval(500, 510)),
            RowFilter(frozenset(["orders"])).with_values("queueOffset", frozenset([500, 511])),
            RowFilter(
                queues=frozenset([("orders", 0), ("orders", 2)]),
                queue_offsets={("orders", 0): Interval(700, 720), ("orders", 2): Interval(690, 691)},
            ),
        ],
    )
    def test_bound_the_range_that_is_read(self, log: Path, rows: RowFilter) -> None:
        view = open_store(str(log))
        pruned = prune(view, rows, 0)
        assert pruned.size_bytes < view.size_bytes / 20
        found, _ = rows_of(log, rows, use_queues=False)
        every = [row for batch in read_store(view) for row in batch.to_pylist()]
        wanted = [row for row in every if _passes(rows, row)]
        assert found == wanted and len(found) > 1

    def test_of_a_queue_without_bounds_leave_all(self, log: Path) -> None:
        view = open_store(str(log))
        one = RowFilter(frozenset(["orders"]), queue_offsets={("orders", 0): Interval(700, 720)})
        assert prune(view, one, 0).size_bytes == view.size_bytes

    @pytest.mark.parametrize("lost", ["consumequeue/orders/2", "config/topics.json"])
    def test_leave_all_where_a_queue_may_be_missing(self, log: Path, lost: str) -> None:
        shutil.rmtree(log / lost) if (log / lost).is_dir() else (log / lost).unlink()
        view = open_store(str(log))
        rows = RowFilter(frozenset(["orders"])).with_interval("queueOffset", Interval(500, 510))
        assert prune(view, rows, 0).size_bytes == view.size_bytes
        assert len(rows_of(log, rows)[0]) == 3 * 11
        named = RowFilter(queues=frozenset([("orders", 1)])).with_interval("queueOffset", Interval(500, 510))
        assert prune(view, named, 0).size_bytes < view.size_bytes / 20
        both = RowFilter(queues=frozenset([("orders", 1), ("orders", 7)])).with_interval("queueOffset", Interval(5, 6))
        assert prune(view, both, 0).size_bytes == view.size_bytes

    def test_that_the_queue_tells_wrongly_leave_all(self, log: Path) -> None:
        queue = log / "consumequeue/orders/0" / f"{0:020}"
        data = bytearray(queue.read_bytes())
        data[20 * 500 : 20 * 501], data[20 * 900 : 20 * 901] = data[20 * 900 : 20 * 901], data[20 * 500 : 20 * 501]
        queue.write_bytes(data)
        rows = RowFilter(queues=frozenset([("orders", 0)])).with_interval("queueOffset", Interval(500, 900))
        view = open_store(str(log))
        assert prune(view, rows, 0).size_bytes == view.size_bytes


def _passes(rows: RowFilter, row: dict[str, Any]) -> bool:
    name, number = (row["topic"], row["queueId"]), row["queueOffset"]
    bounds = rows.queue_offsets.get(name, Interval()).meet(rows.intervals.get("queueOffset", Interval()))
    return (
        (rows.topics is None or row["topic"] in rows.topics)
        and (rows.queues is None or name in rows.queues)
        and bounds.low <= number <= bounds.high
        and number in rows.values.get("queueOffset", [number])
    )


class TestTrustedIndex:
    """Of a store that RocketMQ wrote."""

    def test_keys_are_looked_up(self, golden: Path) -> None:
        every, _ = rows_of(golden, RowFilter())
        names = sorted({key for row in every for key in row["keys"] if not row["sysFlag"] & 0x80})
        assert len(names) > 100
        for key in [*names[:20], *names[-20:], "no such key"]:
            rows = RowFilter(keys=frozenset([key]))
            found, counts = rows_of(golden, rows, trust_index=True)
            assert found == [row for row in every if key in row["keys"]] and not counts.walked
            assert counts.log_bytes < 100_000
        topic = every[0]["topic"]
        rows = RowFilter(topics=frozenset([topic]), keys=frozenset(names[:50]))
        found, _ = rows_of(golden, rows, trust_index=True)
        assert found == [row for row in every if row["topic"] == topic and set(row["keys"]) & set(names[:50])]

    def test_of_topics_and_tags_only_their_queues_are_read(self, golden: Path) -> None:
        for rows in (RowFilter(frozenset(["GoldOrder"])), RowFilter(tags=frozenset(["TagA"]))):
            found, counts = rows_of(golden, rows, trust_index=True)
            plain, _ = rows_of(golden, rows, use_queues=False)
            assert found == plain and found and not counts.walked
        assert rows_of(golden, RowFilter(frozenset(["no such topic"])), trust_index=True)[0] == []

    def test_without_an_index_the_log_is_walked(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(queue_offset=n) for n in range(3)])
        writer.write()
        found, counts = rows_of(tmp_path, RowFilter(keys=frozenset(["k1"])), trust_index=True)
        assert len(found) == 3 and set(counts.walked) == {"the store has no index of keys"}


def test_the_hash_of_a_key_is_the_stores() -> None:
    for key in ("k", "键", "x" * 300):
        assert key_hash("t", key) == stored_hash("t", key)
