"""Filters that are answered by the consume queues: the rows are those of the walk, whatever the queues are like."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rmqha.scan import api as scan_api
from rmqha.scan import index as scan_index
from rmqha.scan.api import Decoding, Interval, ReadCounts, RowFilter, StoreView, open_store, read_store
from tests.scan.test_api import golden
from tests.scan.test_filter import everything, filters, matches, mixed
from tests.store.log_writer import LogWriter, Message

__all__ = ["everything", "golden", "mixed"]

UNIT_BYTES = 20


@pytest.fixture
def small_steps() -> Iterator[None]:
    """Several stripes, packs and chunks in a log of some KiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_index, "QUEUE_COST_BYTES", 0)
        patch.setattr(scan_index, "WALKED_SPACING_BYTES", 0)
        patch.setattr(scan_index, "STRIPE_BYTES", 1500)
        patch.setattr(scan_index, "FIRST_CHUNK_UNITS", 2)
        patch.setattr(scan_index.packs, "__defaults__", (200,))
        patch.setattr(scan_api, "WINDOW_BYTES", 700)
        yield


def read(view: StoreView, rows: RowFilter, **how: Any) -> tuple[list[dict[str, Any]], ReadCounts]:
    counts = ReadCounts()
    batches = read_store(view, Decoding(), rows, timestamp_slack_ms=40, counts=counts, **how)
    return [row for batch in batches for row in batch.to_pylist()], counts


damages = st.tuples(
    st.sampled_from(["lose", "shorten", "lengthen", "zero", "move", "resize", "repeat", "swap", "garble"]),
    st.integers(0, 11),
    st.integers(0, 11),
    st.sampled_from([1, -1, 20, 152, 3000, 10**12]),
)


def harm(queues: list[Path], how: str, which: int, unit: int, by: int) -> None:
    """One kind of damage to a queue's file."""
    path, at = queues[which], unit * UNIT_BYTES
    if how == "lose":
        shutil.rmtree(path.parent, ignore_errors=True)
    if not path.exists():
        return
    data = bytearray(path.read_bytes())
    offset, size, code = struct.unpack_from(">qiq", data.ljust(at + UNIT_BYTES, b"\0"), at)
    match how:
        case "shorten":
            del data[at + by % 7 :]
        case "lengthen":
            data += data[: UNIT_BYTES * 3]
        case "zero":
            data[at : at + UNIT_BYTES] = bytes(UNIT_BYTES)
        case "move":
            data[at : at + UNIT_BYTES] = struct.pack(">qiq", offset + by, size, code)
        case "resize":
            data[at : at + UNIT_BYTES] = struct.pack(">qiq", offset, (size + by) % 2**31, code)
        case "repeat":
            data[at + UNIT_BYTES : at + 2 * UNIT_BYTES] = data[at : at + UNIT_BYTES]
        case "swap":
            other = queues[(which + 1) % len(queues)]
            if other.exists():
                data, theirs = bytearray(other.read_bytes()), bytes(data)
                other.write_bytes(theirs)
        case "garble":
            data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)


def is_seen(queues: list[Path], everything: list[dict[str, Any]]) -> bool:
    """Do the queues lie in a way that the reader must see? Not where a file that is right for the rest has an entry
    for another one's record."""
    places = {
        (row["physicalOffset"], row["storeSize"]): (row["topic"], row["queueId"], row["queueOffset"])
        for row in everything
    }
    for path in filter(Path.exists, queues):
        data, queue = path.read_bytes(), (path.parent.parent.name, int(path.parent.name))
        units = struct.iter_unpack(">qiq", data[: len(data) // UNIT_BYTES * UNIT_BYTES])
        right = [
            places[offset, size] == (*queue, number)
            for number, (offset, size, _) in enumerate(units)
            if (offset, size) in places
        ]
        if any(right) and not all(right):
            return False
    return True


LOST = RowFilter(frozenset(["t0"]), values={"queueOffset": frozenset(range(1, 5))})
SWAPPED = RowFilter(queues=frozenset([("t0", 0), ("t0", 1), ("t1", 0)]), tags=frozenset(["blue", "red"]))


@given(filters, st.lists(damages, max_size=3))
@example(RowFilter(queue_offsets={("t0", 1): Interval(0, 3)}), [("swap", 0, 0, 1)])
@example(SWAPPED, [("swap", 1, 0, 1)])
@example(LOST, [("lose", 1, 0, 1)])
@settings(max_examples=40)
def test_the_rows_are_those_of_the_unfiltered_read_whatever_the_queues_hold(
    mixed: Path, everything: list[dict[str, Any]], rows: RowFilter, harms: list[tuple[str, int, int, int]]
) -> None:
    view = open_store(str(mixed))
    queues = sorted((mixed / "consumequeue").glob("*/*/0*"))
    kept = {path: path.read_bytes() for path in queues}
    small = small_steps.__wrapped__()  # type: ignore[attr-defined]
    next(small)
    try:
        for harmed in harms:
            harm(queues, *harmed)
        assume(is_seen(queues, everything))
        found, _ = read(view, rows)
    finally:
        small.close()
        for path, data in kept.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    found.sort(key=lambda row: int(row["physicalOffset"]))
    assert found == [row for row in everything if matches(row, rows)]


class TestBytes:
    """What is read, and what is told of it."""

    COUNT = 4000

    @pytest.fixture(autouse=True)
    def queues_for_close_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scan_index, "WALKED_SPACING_BYTES", 0)

    @pytest.fixture
    def log(self, tmp_path: Path) -> LogWriter:
        writer = LogWriter(tmp_path, 1024 * 1024)
        for index in range(self.COUNT):
            tag = "rare" if index % 100 == 50 else "usual"
            message = Message(
                topic=b"t%d" % (index % 8),
                queue_offset=index // 8,
                body=b"x" * 900,
                properties=f"TAGS\x01{tag}".encode(),
            )
            writer.append(message)
        return writer

    def test_a_tag_of_a_hundredth_reads_about_a_hundredth(self, log: LogWriter) -> None:
        view = open_store(str(log.write()))
        rows = RowFilter(tags=frozenset(["rare"]))
        found, counts = read(view, rows)
        assert len(found) == self.COUNT // 100
        needed = sum(row["storeSize"] for row in found)
        # one record of each queue is looked at, and the blank records at the files' ends, too
        assert needed < counts.log_bytes < needed + (2048 + 8 * 1024) * len(view.files)
        assert counts.queue_bytes < 3 * UNIT_BYTES * self.COUNT
        assert counts.walked == {}
        same, walked = read(view, rows, use_queues=False)
        assert same == found
        assert walked.log_bytes >= log.end - 2048 * len(view.files)
        assert walked.queue_bytes == 0

    def test_one_topic_of_eight_and_a_few_offsets(self, log: LogWriter) -> None:
        view = open_store(str(log.write()))
        found, counts = read(view, RowFilter(frozenset(["t3"])))
        assert len(found) == self.COUNT // 8
        assert counts.log_bytes < log.end / 8 * 1.1
        few, counts = read(view, RowFilter(queue_offsets={("t3", 0): Interval(10, 19)}, queues=frozenset([("t3", 0)])))
        assert few == found[10:20]
        # between the first and the last of them the log is walked: that is less than all entries of the queues
        assert counts.log_bytes < 2 * 10 * 8 * 1100 and counts.queue_bytes == 0

    def test_one_record_of_each_file_tells_queues_apart(self, log: LogWriter) -> None:
        view = open_store(str(log.write()))
        _, right = read(view, RowFilter(tags=frozenset(["rare"])))
        queues = sorted((view_root(view) / "consumequeue").glob("*/*/0*"))
        harm(queues, "swap", 0, 0, 0)
        found, counts = read(view, RowFilter(tags=frozenset(["rare"])))
        assert len(found) == self.COUNT // 100
        assert set(counts.walked) == {"queues contradict the log"} and counts.log_bytes > 50 * right.log_bytes

    def test_what_no_queue_knows_is_walked_and_told(self, log: LogWriter) -> None:
        view = open_store(str(log.write(confirm_offset=log.end)))
        last = max(path for path in (view_root(view) / "consumequeue" / "t5").rglob("0*"))
        entry = struct.unpack_from(">qi", last.read_bytes(), 100 * UNIT_BYTES)
        data = bytearray(last.read_bytes())
        data[100 * UNIT_BYTES : 101 * UNIT_BYTES] = bytes(UNIT_BYTES)
        last.write_bytes(data)
        found, counts = read(view, RowFilter(frozenset(["t5"])))
        assert len(found) == self.COUNT // 8
        # a hole ends what can be known of a queue in that range
        assert entry[0] in {row["physicalOffset"] for row in found}
        assert set(counts.walked) == {"queues have no entry"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan_index, "GAPS_MAX", 0)
            same, counts = read(view, RowFilter(frozenset(["t5"])))
        assert same == found
        assert set(counts.walked) == {"queues do not cover the range"}
        shutil.rmtree(view_root(view) / "consumequeue")
        found, counts = read(view, RowFilter(frozenset(["t5"])))
        assert len(found) == self.COUNT // 8
        assert set(counts.walked) == {"the store has no queues"}

    def test_a_queue_that_is_a_little_behind_costs_its_gap_only(self, log: LogWriter) -> None:
        for number in range(20):
            log.append(Message(topic=b"t5", queue_offset=500 + number, body=b"y" * 900), dispatched=False)
        view = open_store(str(log.write(confirm_offset=log.end)))
        found, counts = read(view, RowFilter(frozenset(["t5"])))
        assert len(found) == self.COUNT // 8 + 20
        assert counts.walked == {"queues have no entry": sum(row["storeSize"] for row in found[-20:])}
        assert counts.log_bytes < log.end / 8 * 1.1 + 20 * 1100

    def test_many_queues_are_not_looked_up_for_little_log(self, log: LogWriter) -> None:
        for number in range(40):
            log.append(Message(topic=b"small", queue_id=number))
        found, counts = read(open_store(str(log.write())), RowFilter(frozenset(["t5"])))
        assert len(found) == self.COUNT // 8
        assert set(counts.walked) == {"too many queues for so small a range"}


WAYS_COUNT = 800


def ways(directory: Path, body_bytes: int) -> StoreView:
    """Every second record is of `half`, every 16th of `few`, half of which stand in its queue 1."""
    writer = LogWriter(directory, 4 * 1024 * 1024)
    ends = {topic: [0, 0] for topic in (b"half", b"few", b"rest")}
    for index in range(WAYS_COUNT):
        topic = b"half" if index % 2 else b"rest" if index % 16 else b"few"
        queue_id = index // 16 % 2 if topic == b"few" else 0
        tag = b"TAGS\x01rare\x02" if index % 100 == 51 else b""
        offset = ends[topic][queue_id]
        ends[topic][queue_id] += 1
        writer.append(
            Message(topic=topic, queue_id=queue_id, queue_offset=offset, body=bytes(body_bytes), properties=tag)
        )
    return open_store(str(writer.write(confirm_offset=writer.end)))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> StoreView:
    """Records of 2.5 KB: one of `few` in 40."""
    return ways(tmp_path_factory.mktemp("large"), 2400)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> StoreView:
    """Records of 500 bytes: one of `few` in 8 KB."""
    return ways(tmp_path_factory.mktemp("small"), 400)


CLOSE = "a walk finds the wanted records sooner"
HALF, FEW = RowFilter(frozenset(["half"])), RowFilter(frozenset(["few"]))


class TestWhichWay:
    """A filter is answered by the way that is quicker, as the queues tell before their entries are read."""

    def check(self, view: StoreView, rows: RowFilter, *, walks: bool) -> None:
        """Both ways give the same rows, and this one is taken."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan_index, "QUEUE_COST_BYTES", 0)
            found, counts = read(view, rows)
            patch.setattr(scan_index, "WALKED_SPACING_BYTES", 0)
            by_queues, _ = read(view, rows)
        by_walk, _ = read(view, rows, use_queues=False)
        assert found == by_walk == by_queues
        assert set(counts.walked) == ({CLOSE} if walks else set())

    @pytest.mark.parametrize("rows", [HALF, RowFilter(frozenset(["half", "few"]))])
    def test_records_that_lie_close_are_walked(self, large: StoreView, rows: RowFilter) -> None:
        self.check(large, rows, walks=True)

    @pytest.mark.parametrize(
        "rows",
        [
            FEW,
            RowFilter(queues=frozenset([("few", 1)])),
            RowFilter().with_interval("queueId", Interval(1, 1)),
            HALF.with_interval("queueOffset", Interval(100, 110)),
            HALF.with_values("queueOffset", frozenset([3, 200, 399])),
            RowFilter(tags=frozenset(["rare"])),
            HALF.with_tags(frozenset(["rare"])),
            RowFilter(frozenset(["none"])),
        ],
    )
    def test_few_records_are_read_by_themselves(self, large: StoreView, rows: RowFilter) -> None:
        self.check(large, rows, walks=False)

    def test_nearly_all_records_are_read_with_what_is_between_them(self, large: StoreView) -> None:
        self.check(large, RowFilter().with_interval("queueId", Interval(0, 0)), walks=False)

    @pytest.mark.parametrize("rows", [HALF, FEW])
    def test_a_walk_of_many_small_records_is_dearer(self, small: StoreView, rows: RowFilter) -> None:
        self.check(small, rows, walks=False)

    def test_trusted_queues_are_always_asked(self, large: StoreView) -> None:
        found, counts = read(large, HALF, trust_index=True)
        assert len(found) == WAYS_COUNT // 2 and not counts.walked


def view_root(view: StoreView) -> Path:
    return Path(view.root)


@pytest.mark.parametrize("replica", ["n0", "n1"])
def test_a_store_of_rocketmq(golden: Path, replica: str) -> None:
    """Batch queues, delayed messages, transactions: the same rows for every topic and tag."""
    view = open_store(str(golden / replica))
    rows, _ = read(view, RowFilter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_index, "QUEUE_COST_BYTES", 0)
        patch.setattr(scan_index, "WALKED_SPACING_BYTES", 0)
        for name in ("topic", "tags"):
            for value in sorted({row[name] for row in rows if row[name] is not None}):
                wanted = frozenset([value])
                found, counts = read(view, RowFilter(wanted) if name == "topic" else RowFilter(tags=wanted))
                assert found == [row for row in rows if row[name] == value]
                assert not set(counts.walked) - {"queues have no entry"}
