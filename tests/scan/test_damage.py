"""Damaged logs: each way to treat them, over many kinds of damage, in bounded time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.error import RmqhaError, StoreError, UsageError
from rmqha.scan.api import (
    CORRUPT,
    TYPES,
    Decoding,
    Interval,
    RowFilter,
    ViewOptions,
    open_store,
    plan_ranges,
    read_store,
)
from rmqha.scan.read import LogFile, RemovedFileError
from tests.store.damage.damaged import make_own
from tests.store.log_writer import LogWriter, Message, encode
from tests.support.machine_speed import reference_ms

PASSING = ViewOptions(pass_damage=True)
SKIP = Decoding(on_corrupt="skip")
ROW = Decoding((*TYPES, CORRUPT), on_corrupt="row")
LIMIT_MS = 20_000
"""CPU time on the reference machine."""


def rows_of(root: Path, decoding: Decoding, rows: RowFilter | None = None, options: ViewOptions = PASSING) -> Any:
    batches = read_store(open_store(str(root), options), decoding, rows or RowFilter())
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row.get("physicalOffset", 0))


@pytest.fixture
def log(tmp_path: Path) -> tuple[LogWriter, list[int]]:
    writer = LogWriter(tmp_path)
    return writer, writer.append_all([Message(queue_offset=n, body=b"body %d" % n) for n in range(6)])


HEADERS = pytest.mark.parametrize(
    ("at", "data", "told"),
    [
        (4, b"\x00\x00\x00\x01", "expected the record magic"),
        (0, b"\x00\x00\x00\x07", "found size 7"),
        (0, b"\x7f\xff\xff\xff", "found size 2147483647"),
        (0, bytes(8), "found unwritten bytes"),
        (28, b"\x00\x00\x00\x00\x00\x00\x00\x05", "found 5"),
        (84, b"\x7f\xff\xff\xff", "found a body of 2147483647 bytes"),
        (94, b"\xff", "lengths that do not add up"),
    ],
)


@HEADERS
def test_a_damaged_header_costs_one_record(log: tuple[LogWriter, list[int]], at: int, data: bytes, told: str) -> None:
    writer, offsets = log
    writer.put(offsets[3] + at, data)
    root = writer.write(confirm_offset=writer.end)
    sound = [0, 1, 2, 4, 5]
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == sound
    rows = rows_of(root, ROW)
    assert [row["queueOffset"] for row in rows if row[CORRUPT] is None] == sound
    (bad,) = [row for row in rows if row[CORRUPT] is not None]
    assert rows.index(bad) == 3 and told in bad[CORRUPT] and f"(up to {offsets[4]})" in bad[CORRUPT]
    assert (bad["physicalOffset"], bad["storeSize"]) == (offsets[3], offsets[4] - offsets[3])
    assert (bad["topic"], bad["body"], bad["brokerName"]) == (None, None, "group-a")


@pytest.mark.parametrize("more", [1, 40, 91, 150])
def test_a_size_that_claims_a_little_too_much_costs_one_record(log: tuple[LogWriter, list[int]], more: int) -> None:
    writer, offsets = log
    size = offsets[4] - offsets[3]
    writer.put(offsets[3], (size + more).to_bytes(4, "big"))
    root = writer.write(confirm_offset=writer.end)
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [0, 1, 2, 4, 5]
    (bad,) = [row for row in rows_of(root, ROW) if row[CORRUPT] is not None]
    assert (bad["physicalOffset"], bad["storeSize"]) == (offsets[3], size)


def test_a_size_that_claims_a_little_too_much_at_a_windows_end_costs_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path)
    offsets = writer.append_all([Message(queue_offset=n, body=b"z" * 300) for n in range(6)])
    size = offsets[4] - offsets[3]
    writer.put(offsets[3], (size + 30).to_bytes(4, "big"))
    root = writer.write(confirm_offset=writer.end)
    for window_bytes in range(offsets[4] + 20, offsets[4] + 150, 7):
        monkeypatch.setattr("rmqha.scan.damage.WINDOW_BYTES", window_bytes)
        assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [0, 1, 2, 4, 5], window_bytes


def test_a_first_record_of_zeros_is_told_if_its_queue_has_it(log: tuple[LogWriter, list[int]]) -> None:
    writer, offsets = log
    writer.put(0, bytes(offsets[1]))
    for confirm_offset in (0, writer.end):
        root = writer.write(confirm_offset=confirm_offset)
        with pytest.raises(StoreError, match="found unwritten bytes although the log is committed beyond"):
            rows_of(root, Decoding(), options=ViewOptions())
        assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [1, 2, 3, 4, 5]
        (bad,) = [row for row in rows_of(root, ROW) if row[CORRUPT] is not None]
        assert (bad["physicalOffset"], bad["storeSize"]) == (0, offsets[1])


def test_a_damaged_size_of_the_last_committed_record_is_told(log: tuple[LogWriter, list[int]]) -> None:
    writer, offsets = log
    writer.put(offsets[5], (writer.end - offsets[5] + 6).to_bytes(4, "big"))
    root = writer.write(confirm_offset=writer.end)
    with pytest.raises(StoreError, match="lengths that do not add up"):
        rows_of(root, Decoding(), options=ViewOptions())
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [0, 1, 2, 3, 4]


@HEADERS
@pytest.mark.parametrize("place", [3, 5])
def test_damage_behind_an_old_confirm_offset_is_told_too(
    log: tuple[LogWriter, list[int]], place: int, at: int, data: bytes, told: str
) -> None:
    """The queues name it, or a record behind it: it is not the log's end."""
    writer, offsets = log
    writer.put(offsets[place] + at, data)
    root = writer.write(confirm_offset=offsets[1])
    end = [*offsets, writer.end][place + 1]
    sound = [number for number in range(6) if number != place]
    if place == 5 and data == bytes(8):
        # an entry that names unwritten bytes: the log was copied before its queues
        assert [row["queueOffset"] for row in rows_of(root, Decoding(), options=ViewOptions())] == sound
        return
    with pytest.raises(StoreError, match=told):
        rows_of(root, Decoding(), options=ViewOptions())
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == sound
    (bad,) = [row for row in rows_of(root, ROW) if row[CORRUPT] is not None]
    assert told in bad[CORRUPT] and f"(up to {end})" in bad[CORRUPT] and bad["physicalOffset"] == offsets[place]


def test_damage_in_several_places_of_several_files_behind_an_old_confirm_offset(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 8192)
    offsets = writer.append_all([Message(queue_offset=n, body=b"z" * 300) for n in range(60)])
    first_of_last = next(n for n, offset in enumerate(offsets) if offset == offsets[-1] // 8192 * 8192)
    bad = [10, 11, 30, first_of_last, 57]
    for number in bad:
        writer.put(offsets[number] + 4, b"\xee" * 30)
    for number in (writer.end, writer.end + 700):  # a torn tail, that no queue names
        writer.put(number, encode(Message(), number)[:40])
    root = writer.write(confirm_offset=offsets[5])
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [n for n in range(60) if n not in bad]
    with pytest.raises(StoreError, match=f"physical offset {offsets[first_of_last]}: .*committed up to {writer.end}"):
        open_store(str(root))


def test_records_that_come_while_a_log_is_looked_at_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path)
    writer.append_all([Message(queue_offset=n) for n in range(6)])
    root = writer.write(confirm_offset=100)
    end, find = writer.end, LogFile.find_record
    looks = []

    def find_later(file: LogFile, position: int, stop: int) -> int | None:
        looks.append(position)
        count = 6 + 4 * len(looks)
        writer.append_all([Message(queue_offset=n) for n in range(count - 4, count)])
        writer.write(confirm_offset=100)
        return find(file, position, stop)

    monkeypatch.setattr(LogFile, "find_record", find_later)
    assert open_store(str(root)).end_offset == end and len(looks) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_log_may_be_damage_from_its_first_byte_to_its_last(tmp_path: Path, count: int) -> None:
    writer = LogWriter(tmp_path)
    offsets = writer.append_all([Message(queue_offset=n, body=b"body %d" % n) for n in range(count)])
    for offset in offsets:
        writer.put(offset + 4, b"\xff" * 4)
    root = writer.write(confirm_offset=writer.end)
    assert rows_of(root, SKIP) == []
    (bad,) = rows_of(root, ROW)
    assert "expected the record magic" in bad[CORRUPT] and f"(up to {writer.end})" in bad[CORRUPT]


def test_a_size_that_covers_the_next_records_does_not_hide_them(log: tuple[LogWriter, list[int]]) -> None:
    writer, offsets = log
    writer.put(offsets[2], (offsets[5] - offsets[2]).to_bytes(4, "big"))
    root = writer.write(confirm_offset=writer.end)
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [0, 1, 3, 4, 5]


def test_a_damaged_body_keeps_its_header_in_a_row(log: tuple[LogWriter, list[int]]) -> None:
    writer, offsets = log
    writer.put(offsets[2] + 88, b"B")
    writer.append(Message(body=b"no zlib", sys_flag=1, queue_offset=6))
    root = writer.write()
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [0, 1, 3, 4, 5]
    rows = rows_of(root, ROW)
    assert [row["queueOffset"] for row in rows] == list(range(7))
    assert rows[2]["body"] is None and rows[2]["topic"] == "orders" and "expected body CRC" in rows[2][CORRUPT]
    assert rows[6]["body"] is None and "compressed by zlib" in rows[6][CORRUPT]
    assert all(row["body"] and row[CORRUPT] is None for row in rows[3:6])
    # who does not ask for bodies is not told about them
    assert len(rows_of(root, Decoding(("topic",), on_corrupt="skip"))) == 7


def test_a_row_of_damage_is_left_out_by_offsets_only(log: tuple[LogWriter, list[int]]) -> None:
    writer, offsets = log
    writer.put(offsets[3], bytes(20))
    root = writer.write(confirm_offset=writer.end)
    none = RowFilter(frozenset(["none"])).with_interval("storeTimestamp", Interval(low=2**60))
    assert [row["physicalOffset"] for row in rows_of(root, ROW, none)] == [offsets[3]]
    before = RowFilter().with_interval("physicalOffset", Interval(high=offsets[2]))
    assert [row[CORRUPT] for row in rows_of(root, ROW, before)] == [None] * 3


def test_missing_files_and_damaged_marks(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 4096)
    offsets = writer.append_all([Message(body=b"y" * 900, queue_offset=n) for n in range(12)])
    root = writer.write(confirm_offset=writer.end, epochs="nonsense")
    (root / "commitlog" / f"{4096:020}").unlink()
    with pytest.raises(StoreError, match="the log has a gap"):
        open_store(str(root), PASSING)
    passing = ViewOptions(pass_damage=True, pass_loss=True)
    left = [offset for offset in offsets if not 4096 <= offset < 8192]
    assert [row["physicalOffset"] for row in rows_of(root, SKIP, options=passing)] == left
    (root / "brokerIdentity").write_text("what")
    assert open_store(str(root), passing).broker_name is None
    view = open_store(str(root), passing)
    Path(view.files[0].path).unlink()
    with pytest.raises(RemovedFileError, match="was removed while it was read"):
        list(read_store(view))


def test_a_log_alone_does_not_say_what_is_committed(log: tuple[LogWriter, list[int]]) -> None:
    writer, _ = log
    writer.queue_entries.clear()
    root = writer.write()
    with pytest.raises(UsageError, match=r"neither a confirm offset nor consume queues: .* readUncommitted=true"):
        open_store(str(root))
    assert len(rows_of(root, SKIP, options=ViewOptions(uncommitted=True))) == 6


MARKS = ["checkpoint", "queues"]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("uncommitted", [False, True])
@pytest.mark.parametrize(
    ("at", "data", "told"),
    [
        (4, b"\0\0\0\1", "found 0x00000001"),
        (0, b"\0\0\0\7", "found size 7"),
        (0, bytes(8), "found unwritten bytes"),
        (0, bytes(60), "found unwritten bytes"),
    ],
)
def test_a_damaged_first_header_is_not_an_empty_log(
    log: tuple[LogWriter, list[int]], mark: str, uncommitted: bool, at: int, data: bytes, told: str
) -> None:
    writer, _ = log
    writer.put(at, data)
    if mark == "checkpoint":
        writer.queue_entries.clear()
    root = writer.write(confirm_offset=writer.end if mark == "checkpoint" else None)
    with pytest.raises(StoreError) as raised:
        open_store(str(root), ViewOptions(uncommitted))
    text = str(raised.value)
    assert f"{root}/commitlog/{0:020} at physical offset 0: expected" in text
    assert told in text and f"committed up to {writer.end}" in text
    assert [row["queueOffset"] for row in rows_of(root, SKIP)] == [1, 2, 3, 4, 5]
    rows = rows_of(root, ROW)
    assert [row[CORRUPT] is None for row in rows] == [False] + [True] * 5


def test_a_damaged_first_header_without_marks_is_not_an_empty_log(log: tuple[LogWriter, list[int]]) -> None:
    writer, _ = log
    writer.queue_entries.clear()
    writer.put(4, bytes(4))
    with pytest.raises(UsageError, match="neither a confirm offset nor consume queues"):
        open_store(str(writer.write()))


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("left", ["none", "no bytes", "zeros"])
def test_a_log_that_went_is_not_an_empty_one(log: tuple[LogWriter, list[int]], mark: str, left: str) -> None:
    writer, _ = log
    if mark == "checkpoint":
        writer.queue_entries.clear()
    root = writer.write(confirm_offset=writer.end if mark == "checkpoint" else None)
    file = root / "commitlog" / f"{0:020}"
    file.unlink()
    if left != "none":
        file.write_bytes(b"" if left == "no bytes" else bytes(65536))
    told = "found unwritten bytes" if left == "zeros" else "expected files up to the committed end {}, found none"
    with pytest.raises(StoreError, match=f"{root}/commitlog.*" + told.format(writer.end)):
        open_store(str(root))
    if left != "zeros":
        assert rows_of(root, SKIP, options=ViewOptions(pass_loss=True)) == []


@pytest.mark.parametrize("size", [None, 0, 4096])
def test_a_log_that_has_got_nothing_yet_is_empty(tmp_path: Path, size: int | None) -> None:
    base = 8192
    (tmp_path / "commitlog").mkdir()
    if size is not None:
        (tmp_path / "commitlog" / f"{base:020}").write_bytes(bytes(size))
    queue = tmp_path / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    # what Apache RocketMQ fills a queue up with that does not start at 0
    (queue / f"{0:020}").write_bytes((bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)) * 10 + bytes(200))
    root = LogWriter(tmp_path).write(confirm_offset=base if size is not None else 0)
    assert rows_of(root, SKIP, options=ViewOptions()) == []
    assert open_store(str(root)).end_offset == (0 if size is None else base)


def test_many_damaged_records_take_bounded_time(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 4 * 1024 * 1024)
    for index in range(9000):
        start = writer.append(Message(queue_offset=index, body=b"b" * 200))
        if index % 3 == 1:
            writer.put(start + 84, b"\x00\xff")
    root = writer.write(confirm_offset=writer.end)
    begun = time.process_time()
    assert len(rows_of(root, SKIP)) == 6000
    ranges = plan_ranges(open_store(str(root), PASSING), min_ranges=2, max_records=1000, pass_damage=True)
    assert len(ranges) >= 6 and ranges[-1].end == writer.end
    spent_ms = (time.process_time() - begun) * 1000
    assert reference_ms(lambda: spent_ms, LIMIT_MS, try_count=1) < LIMIT_MS


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("own")
    make_own(root)
    return root, rows_of(root, Decoding())


def paths(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


changes = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.integers(1, 3000).map(bytes),
            st.sampled_from([b"\xda\xa3\x20\xa7" * 40, b"\xff" * 900, b"\x00\x00\x00\x08\xcb\xd4\x31\x94"]),
        ),
    ),
    min_size=1,
    max_size=4,
)


@given(changes, st.integers(0, 12), st.booleans())
@settings(max_examples=60)
def test_any_damage_anywhere(
    own: tuple[Path, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, int, bytes]],
    shortened: int,
    uncommitted: bool,
) -> None:
    """fail says one sentence or gives the true rows; skip gives every record that was not touched, and no other; row
    gives the same and says where the damage is."""
    clean, expected = own
    root = tmp_path_factory.mktemp("damaged")
    touched: list[tuple[int, int]] = []
    marks_touched = False
    for path in paths(clean):
        target = root / path.relative_to(clean)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    files = paths(root)
    for which, where, data in damage:
        path = files[which % len(files)]
        content = bytearray(path.read_bytes())
        if not content:
            continue
        at = where % len(content)
        if shortened == 1:
            data = b""
            content = content[:at]
        piece = data[: len(content) - at]
        content[at : at + len(piece)] = piece
        path.write_bytes(content)
        if path.parent.name == "commitlog":
            touched.append((int(path.name) + at, 2**62 if shortened == 1 else int(path.name) + at + len(piece)))
        else:
            marks_touched = True

    begun = time.process_time()
    options = ViewOptions(uncommitted=uncommitted)
    passing = ViewOptions(uncommitted=uncommitted, pass_damage=True, pass_loss=True)
    try:
        plain = rows_of(root, Decoding(), options=options)
    except RmqhaError as error:
        assert isinstance(error, (StoreError, UsageError)) and "\n" not in str(error)
    else:
        known = {row["physicalOffset"] for row in expected}
        assert {row["physicalOffset"] for row in plain} <= known
    try:
        skipped = rows_of(root, SKIP, options=passing)
        rows = rows_of(root, ROW, options=passing)
    except UsageError:
        return  # no store any more
    spent_ms = (time.process_time() - begun) * 1000
    assert reference_ms(lambda: spent_ms, LIMIT_MS, try_count=1) < LIMIT_MS
    end = open_store(str(root), passing).end_offset
    found = {row["physicalOffset"]: row for row in skipped}
    for row in expected:
        start, stop = row["physicalOffset"], row["physicalOffset"] + row["storeSize"]
        if stop <= end and not any(low < stop and start < high for low, high in touched):
            names = [name for name in TYPES if not marks_touched or name not in ("brokerName", "epoch")]
            assert {name: found[start][name] for name in names} == {name: row[name] for name in names}
    assert set(found) <= {row["physicalOffset"] for row in expected}
    sound = [row for row in rows if row[CORRUPT] is None]
    assert [row["physicalOffset"] for row in sound] == [row["physicalOffset"] for row in skipped]


def test_a_forged_record_is_found_only_where_its_carrier_is_damaged(tmp_path: Path) -> None:
    """What skipping cannot tell apart: a body that foresaw its place, in a record whose own header is gone."""
    writer = LogWriter(tmp_path)
    start = writer.end
    forged = encode(Message(topic=b"forged"), start + 88)
    writer.append(Message(body=forged))
    writer.append(Message(queue_offset=1))
    root = writer.write(confirm_offset=writer.end)
    assert [row["topic"] for row in rows_of(root, SKIP)] == ["orders", "orders"]
    writer.put(start, bytes(8))
    assert [row["topic"] for row in rows_of(writer.write(confirm_offset=writer.end), SKIP)] == ["forged", "orders"]
