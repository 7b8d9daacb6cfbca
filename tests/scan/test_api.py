"""Reading CommitLog files as Arrow batches: golden stores field by field, made logs against a slow reader."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.error import StoreError, UsageError
from rmqha.scan import walk as scan_walk
from rmqha.scan.api import (
    CORRUPT,
    Decoding,
    Interval,
    RowFilter,
    ViewOptions,
    group_ranges,
    open_store,
    plan_ranges,
    read_range,
    read_store,
)
from rmqha.scan.columns import BATCH_BODY_MAX_BYTES, TYPES
from rmqha.scan.properties import parse
from tests.store.log_writer import MAGIC_BLANK, LogWriter, Message, encode, slow_properties, slow_rows
from tests.store.support import unpack

GOLDEN = Path(__file__).parent.parent / "golden" / "store"
COMPRESSED, INNER_BATCH = 0x1, 0x80
UNCOMMITTED = ViewOptions(uncommitted=True)
COMPARED = [name for name in TYPES if name not in ("brokerName", "msgId", "epoch")]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("golden")
    for name in ("n0", "n0-killed", "n1", "mini-v6-v2-propcrc"):
        unpack(name, target)
    return target


def rows_of(root: Path | str, decoding: Decoding | None = None, rows: RowFilter | None = None, **how: Any) -> Any:
    view = open_store(str(root), ViewOptions(**how))
    return pa.Table.from_batches(
        list(read_store(view, decoding or Decoding(), rows or RowFilter())), (decoding or Decoding()).schema
    ).to_pylist()


def ms(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def java_host(text: str) -> str:
    """`/address:port` as Java prints it, in our form."""
    address, _, port = text.removeprefix("/").rpartition(":")
    if address.startswith("["):
        return f"[{ipaddress.ip_address(address[1:-1])}]:{port}"
    return f"{address}:{port}"


class TestGolden:
    """Stores that a real RocketMQ 5.4.0 wrote, against what its own client read from them."""

    @pytest.mark.parametrize("replica", ["n0", "n0-killed", "n1"])
    def test_every_message_of_the_manifest_field_by_field(self, golden: Path, replica: str) -> None:
        manifest = json.loads((GOLDEN / "manifest.json").read_text())
        rows = rows_of(golden / replica, Decoding(properties_as="map"))
        by_offset = {(row["physicalOffset"], row["queueOffset"]): row for row in rows}
        compared = 0
        for message in manifest["messages"]:
            row = by_offset[message["commitLogOffset"], message["queueOffset"]]
            compared += 1
            assert row["topic"] == message["topic"]
            assert row["storeSize"] == message["storeSize"]
            assert row["msgId"] == message["msgId"]
            assert row["uniqKey"] == message["properties"].get("UNIQ_KEY")
            assert (ms(row["storeTimestamp"]), ms(row["bornTimestamp"])) == (
                message["storeTimestamp"],
                message["bornTimestamp"],
            )
            assert row["storeHost"] == java_host(message["storeHost"])
            assert row["bornHost"] == java_host(message["bornHost"])
            same = (
                "queueId",
                "queueOffset",
                "flag",
                "bodyCRC",
                "reconsumeTimes",
                "preparedTransactionOffset",
            )
            for name in same:
                assert row[name] == message[name], name
            # the client clears the bit when it has decompressed the body
            assert row["sysFlag"] & ~COMPRESSED == message["sysFlag"] & ~COMPRESSED
            assert row["tags"] == message["tags"]
            assert row["keys"] == (message["keys"] or "").split()
            # the manifest leaves out leading zeros
            assert int(hashlib.sha256(row["body"]).hexdigest(), 16) == int(message["bodySha256"], 16)
            stored = {k: v for k, v in message["properties"].items() if k not in ("MIN_OFFSET", "MAX_OFFSET")}
            assert dict(row["properties"]) == stored
            assert row["brokerName"] == "gold-a"
            starts = [entry["startOffset"] for entry in manifest["epochs"]]
            assert row["epoch"] == sum(start <= row["physicalOffset"] for start in starts)
        assert compared == 706 + 40

    def test_an_inner_batch_left_whole_is_one_row_whose_body_holds_its_messages(self, golden: Path) -> None:
        manifest = json.loads((GOLDEN / "manifest.json").read_text())
        inner = [m for m in manifest["messages"] if m["offsetMsgId"] is None]
        raw = Decoding(explode_batches=False)
        rows = rows_of(golden / "n0", raw, RowFilter(frozenset(["GoldBatchCQ"])))
        batches = [row for row in rows if row["sysFlag"] & INNER_BATCH]
        assert {row["physicalOffset"] for row in batches} == {message["commitLogOffset"] for message in inner}
        for message in inner:
            row = next(row for row in batches if row["physicalOffset"] == message["commitLogOffset"])
            assert message["bodyUtf8"].encode() in row["body"]
        covered = sum(int(json.loads(row["properties"])["INNER_NUM"]) for row in batches) + len(rows) - len(batches)
        assert covered == 27 + 18

    def test_filters_find_the_messages_of_inner_batches(self, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rmqha.scan.index.QUEUE_COST_BYTES", 0)
        monkeypatch.setattr("rmqha.scan.index.WALKED_SPACING_BYTES", 0)
        manifest = json.loads((GOLDEN / "manifest.json").read_text())
        told = [m for m in manifest["messages"] if m["topic"] == "GoldBatchCQ"]
        topic = RowFilter(frozenset(["GoldBatchCQ"]))
        queue = {("GoldBatchCQ", 0): Interval(1, 4)}
        for rows, wanted in (
            (topic, lambda m: True),
            (RowFilter(topics=topic.topics, tags=frozenset(["Bcq"])), lambda m: m["tags"] == "Bcq"),
            (RowFilter(keys=frozenset(["bcq-0-3-1"])), lambda m: "bcq-0-3-1" in (m["keys"] or "").split()),
            (replace(topic, queue_offsets=queue), lambda m: m["queueId"] != 0 or 1 <= m["queueOffset"] <= 4),
            (topic.with_values("queueOffset", frozenset([2])), lambda m: m["queueOffset"] == 2),
        ):
            expected = sorted((m["queueId"], m["queueOffset"], m["bodyUtf8"].encode()) for m in told if wanted(m))
            found = [(row["queueId"], row["queueOffset"], row["body"]) for row in rows_of(golden / "n0", rows=rows)]
            assert sorted(found) == expected and expected, rows

    def test_a_damaged_inner_batch_is_told(self, golden: Path, tmp_path: Path) -> None:
        whole = Decoding(("physicalOffset", "sysFlag", "bodyCRC", "body"), explode_batches=False)
        stored = next(row for row in rows_of(golden / "n0", whole) if row["sysFlag"] & INNER_BATCH)
        body = bytearray(stored["body"])
        struct.pack_into(">i", body, 16, len(body))  # the first member's body leaves the batch
        writer = LogWriter(tmp_path)
        sound = Message(body=stored["body"], sys_flag=0xC0, queue_offset=3)
        writer.append_all([Message(), replace(sound, body=bytes(body)), sound, Message(queue_offset=9)])
        root = writer.write(confirm_offset=writer.end)
        count = 3
        with pytest.raises(StoreError, match="expected an inner batch that whole messages fill, found a member"):
            rows_of(root)
        kept = rows_of(root, Decoding(("queueOffset", "tags"), on_corrupt="skip"), pass_damage=True)
        assert [row["queueOffset"] for row in kept] == [0, *range(3, 3 + count), 9]
        told = rows_of(root, Decoding(("queueOffset", "body", CORRUPT), on_corrupt="row"), pass_damage=True)
        assert [row["queueOffset"] for row in told if row[CORRUPT] is None] == [0, *range(3, 3 + count), 9]
        (bad,) = [row for row in told if row[CORRUPT] is not None]
        assert bad["body"] is None and bad["queueOffset"] == 3

    def test_the_committed_end_is_the_end_of_the_log(self, golden: Path) -> None:
        for replica in ("n0", "n0-killed", "n1"):
            assert open_store(str(golden / replica)).end_offset == 3947871
            assert open_store(str(golden / replica), UNCOMMITTED).end_offset == 3947871

    @pytest.mark.parametrize("kind", ["plain", "propcrc"])
    def test_ipv6_long_topics_and_record_crcs(self, golden: Path, kind: str) -> None:
        lines = (golden / f"{kind}-manifest.jsonl").read_text().splitlines()
        rows = rows_of(golden / kind, Decoding(properties_as="map"))
        assert len(rows) == len(lines) == 64
        for row, line in zip(rows, lines, strict=True):
            message = json.loads(line)
            for name in ("topic", "queueId", "queueOffset", "physicalOffset", "sysFlag", "bodyCRC", "storeSize"):
                assert row[name] == message[name], name
            assert (row["bornHost"], row["storeHost"]) == (
                java_host(message["bornHost"]),
                java_host(message["storeHost"]),
            )
            assert row["body"] == message["body"].encode()
            properties = dict(row["properties"])
            assert len(properties.pop("__CRC32#", "0123456789")) == 10
            assert properties == {k: v for k, v in message["properties"].items() if k != "__CRC32#"}
            assert ms(row["storeTimestamp"]) == message["storeTimestamp"]
            assert row["brokerName"] is None and row["epoch"] is None

    def test_without_checkpoint_the_queues_prove_what_is_committed(self, golden: Path, tmp_path: Path) -> None:
        root = unpack("n0", tmp_path) / "n0"
        (root / "checkpoint").unlink()
        assert open_store(str(root)).end_offset == 3947871


texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=6)
pairs = st.tuples(st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "é", "KEY"]), texts), texts)
well_formed = st.lists(pairs, max_size=4).map(lambda found: "".join(f"{n}\x01{v}\x02" for n, v in found).encode())
malformed = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"KEYS", b"TAGS", b"x", b" ", b"\xff", b'"', b"\\"]), max_size=9
)
messages = st.builds(
    Message,
    topic=st.sampled_from([b"orders", b"a", b"%RETRY%g", "тема".encode()]),
    body=st.one_of(
        st.binary(max_size=40),
        st.builds(lambda piece, times: piece * times, st.binary(min_size=9, max_size=9), st.integers(300, 1000)),
    ),
    properties=st.one_of(well_formed, malformed.map(b"".join)),
    queue_id=st.integers(0, 3),
    queue_offset=st.integers(0, 2**40),
    flag=st.integers(-(2**31), 2**31 - 1),
    born_at_ms=st.integers(0, 2**41),
    stored_at_ms=st.integers(0, 2**41),
    born_v6=st.booleans(),
    store_v6=st.booleans(),
    v2=st.booleans(),
    reconsume_times=st.integers(0, 16),
    prepared=st.integers(0, 2**62),
)


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        for name in COMPARED:
            value = ms(row[name]) if name.endswith("Timestamp") else row[name]
            assert value == wanted[name], name


@given(st.lists(messages, min_size=1, max_size=40), st.integers(0, 2**40))
@settings(max_examples=60)
def test_any_log_reads_as_the_slow_reader_reads_it(
    tmp_path_factory: pytest.TempPathFactory, appended: list[Message], first: int
) -> None:
    writer = LogWriter(tmp_path_factory.mktemp("log"), 16 * 1024, base=first // 16384 * 16384)
    writer.append_all(appended, dispatched=False)
    root = writer.write(confirm_offset=writer.end)
    expected = slow_rows([(base, bytes(piece)) for base, piece in sorted(writer.pieces.items())], writer.end)
    assert len(expected) == len(appended)
    found = rows_of(root)
    same_rows(found, expected)
    as_maps = rows_of(root, Decoding(("properties",), properties_as="map"))
    assert [dict(row["properties"]) for row in as_maps] == [slow_properties(m.properties) for m in appended]
    for row, message in zip(found, appended, strict=True):
        assert row["msgId"] == (row["uniqKey"] or offset_id(row, message))


def offset_id(row: dict[str, Any], message: Message) -> str:
    host = ipaddress.ip_address(row["storeHost"].rpartition(":")[0].strip("[]")).packed
    return (host + struct.pack(">iq", 10911, row["physicalOffset"])).hex().upper()


@given(st.lists(st.one_of(well_formed, malformed.map(b"".join)), max_size=12))
@settings(max_examples=200)
def test_properties_read_as_java_reads_them(stored: list[bytes]) -> None:
    parsed = parse(pa.array(stored, pa.binary()))
    expected = [slow_properties(item) for item in stored]
    assert parsed.dictionaries() == expected
    assert [json.loads(item) for item in parsed.as_json().to_pylist()] == expected
    assert [dict(item) for item in parsed.as_map(pa.map_(pa.string(), pa.string())).to_pylist()] == expected
    for name in ("KEYS", "é", "KEY", "x", "UNIQ_KEY", "KEYSKEYSKEYS"):
        assert parsed.value(name.encode()).to_pylist() == [item.get(name) for item in expected]


class TestLaneWalk:
    """The fast walk gives the hop loop's answer or stands back."""

    @pytest.fixture
    def long_log(self, tmp_path: Path) -> LogWriter:
        writer = LogWriter(tmp_path, 4 * 1024 * 1024)
        sizes = [10 + (index * 7919) % 3000 for index in range(2200)]
        writer.append_all([Message(body=b"x" * size, queue_offset=index) for index, size in enumerate(sizes)])
        return writer

    def file(self, writer: LogWriter) -> scan_walk.Window:
        view = open_store(str(writer.write(confirm_offset=writer.end)))
        raw = bytearray(Path(view.files[0].path).read_bytes())
        return scan_walk.Window(view.files[0].path, 0, raw, np.frombuffer(raw, np.uint8))

    def test_lanes_and_hops_agree(self, long_log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        file = self.file(long_log)
        stop = min(long_log.end, file.size_bytes)
        advanced: list[scan_walk.Chain | None] = []
        real = scan_walk._advance_lanes

        def watched(file: scan_walk.Window, lanes: scan_walk.I64) -> scan_walk.Chain | None:
            advanced.append(real(file, lanes))
            return advanced[-1]

        monkeypatch.setattr("rmqha.scan.walk.native_columns.walked", lambda *_: None)
        monkeypatch.setattr(scan_walk, "_advance_lanes", watched)
        fast = scan_walk.walk(file, stop)
        assert advanced and advanced[0] is not None and len(advanced[0].starts) > 1000
        monkeypatch.setattr(scan_walk, "FEW_LANES", 10**9)
        slow = scan_walk.walk(file, stop)
        assert fast.starts.tolist() == slow.starts.tolist()
        assert (fast.end, fast.broken) == (slow.end, slow.broken) == (stop, False)

    def test_a_forged_record_inside_a_body_is_not_a_record(self, tmp_path: Path) -> None:
        """Somebody who can foresee its place may send a body that looks like records."""
        writer = LogWriter(tmp_path, 8 * 1024 * 1024)
        expected = []
        for index in range(60):
            start = writer.end + 88
            forged = b""
            while len(forged) < 70_000:
                forged += encode(Message(body=b"f" * 500, topic=b"forged"), start + len(forged))
            expected.append(writer.append(Message(body=forged, queue_offset=index)))
        root = writer.write()
        rows = rows_of(root, Decoding(("topic", "physicalOffset")))
        assert [row["physicalOffset"] for row in rows] == expected
        assert {row["topic"] for row in rows} == {"orders"}

    def test_ranges_cut_at_records_and_together_give_everything(
        self, long_log: LogWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rmqha.scan.plan.RANGE_MIN_BYTES", 64 * 1024)
        root = long_log.write(confirm_offset=long_log.end)
        view = open_store(str(root))
        ranges = plan_ranges(view, min_ranges=13)
        assert len(ranges) >= 13
        assert all(left.end == right.start for left, right in pairwise(ranges))
        parts = [batch for item in ranges for batch in read_range(item)]
        assert pa.Table.from_batches(parts).to_pylist() == rows_of(root)
        groups = group_ranges(ranges, 1024 * 1024)
        assert len(groups) < len(ranges) and [item for group in groups for item in group] == ranges


class TestCommittedEnd:
    def test_stops_at_the_confirm_offset_although_the_log_goes_on(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(queue_offset=n) for n in range(5)])
        committed = writer.end
        writer.append_all([Message(queue_offset=n) for n in range(5, 9)], dispatched=False)
        root = writer.write(confirm_offset=0)
        assert open_store(str(root)).end_offset == committed
        assert len(rows_of(root)) == 5
        assert len(rows_of(root, uncommitted=True)) == 9

    def test_a_confirm_offset_inside_a_record_is_put_back_to_its_start(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        offsets = writer.append_all([Message()] * 4, dispatched=False)
        assert open_store(str(writer.write(confirm_offset=offsets[3] + 17))).end_offset == offsets[3]

    def test_a_confirm_offset_in_an_earlier_file(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path, 4096)
        offsets = writer.append_all([Message(body=b"y" * 900)] * 12, dispatched=False)
        for confirm, count in ((offsets[1] + 1, 1), (offsets[5], 5), (4096, 3), (8192, 6), (4095, 3)):
            assert len(rows_of(writer.write(confirm_offset=confirm))) == count

    def test_a_queue_that_lags_or_lies_does_not_count(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(queue_offset=n) for n in range(3)])
        confirmed = writer.end
        writer.append(Message(queue_id=1, queue_offset=0), dispatched=False)
        # an entry left over from a log that was cut: it points where another record now begins inside
        writer.queue_entries[b"orders", 1] = [(0, confirmed + 5, 100)]
        assert open_store(str(writer.write())).end_offset == confirmed

    def test_live_growth_a_view_is_fixed_and_a_new_one_sees_more(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(queue_offset=n) for n in range(3)])
        root = writer.write()
        before = open_store(str(root))
        writer.append_all([Message(queue_offset=n) for n in range(3, 700)])
        writer.write()
        assert sum(batch.num_rows for batch in read_store(before)) == 3
        assert len(rows_of(root)) == 700

    def test_files_that_were_made_ahead_hold_nothing(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path, 4096)
        writer.append(Message())
        writer.put(4096, b"")
        root = writer.write()
        (root / "commitlog" / f"{8192:020}").touch()
        assert len(rows_of(root)) == 1

    def test_an_empty_log_and_a_log_that_starts_inside_its_first_file(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path / "a")
        (tmp_path / "a" / "commitlog").mkdir(parents=True)
        assert rows_of(writer.write()) == []
        late = LogWriter(tmp_path / "b", 64 * 1024, base=64 * 1024)
        late.end += 4096
        start = late.append(Message())
        view = open_store(str(late.write()))
        assert (view.min_offset, len(rows_of(tmp_path / "b"))) == (start, 1)


class TestTornTail:
    @pytest.mark.parametrize("kept", [3, 8, 36, 60, 100])
    def test_a_record_that_is_being_written_is_not_read(self, tmp_path: Path, kept: int) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(queue_offset=n) for n in range(3)])
        end = writer.end
        writer.put(end, encode(Message(queue_offset=3, body=b"z" * 300), end)[:kept])
        root = writer.write()
        assert len(rows_of(root)) == 3
        assert len(rows_of(root, uncommitted=True)) == 3

    def test_a_body_that_is_not_there_yet(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        start = writer.append(Message(body=b"b" * 400), dispatched=False)
        writer.put(start + 88, bytes(200))
        assert open_store(str(writer.write()), UNCOMMITTED).end_offset == 0

    def test_garbage_after_the_committed_end_is_not_seen(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append(Message())
        writer.put(writer.end, b"\xff\x17" * 200)
        assert len(rows_of(writer.write())) == 1

    def test_the_last_record_may_end_with_the_file(self, tmp_path: Path) -> None:
        record = encode(Message(), 0)
        writer = LogWriter(tmp_path, len(record))
        writer.put(0, record)
        root = writer.write(confirm_offset=len(record))
        assert len(rows_of(root)) == 1


class TestDamage:
    def log(self, tmp_path: Path) -> tuple[LogWriter, list[int]]:
        writer = LogWriter(tmp_path)
        return writer, writer.append_all([Message(queue_offset=n, body=b"body %d" % n) for n in range(6)])

    def test_a_flipped_body_names_file_offset_expected_and_found(self, tmp_path: Path) -> None:
        writer, offsets = self.log(tmp_path)
        writer.put(offsets[2] + 88, b"B")
        root = writer.write()
        right, wrong = zlib.crc32(b"body 2") & 0x7FFFFFFF, zlib.crc32(b"Body 2") & 0x7FFFFFFF
        where = f"{root}/commitlog/{0:020} at physical offset {offsets[2]}"
        with pytest.raises(StoreError) as raised:
            rows_of(root)
        assert str(raised.value) == f"{where}: expected body CRC {right}, found {wrong}"
        assert rows_of(root, Decoding(verify_crc=False))[2]["body"] == b"Body 2"
        assert len(rows_of(root, Decoding(("topic",)))) == 6

    @pytest.mark.parametrize(
        ("at", "data", "message"),
        [
            (4, b"\x00\x00\x00\x01", "expected the record magic 0xDAA320A7 or 0xDAA320AB, found 0x00000001"),
            (0, b"\x00\x00\x00\x07", "found size 7"),
            (0, b"\x7f\xff\xff\xff", "found size 2147483647"),
            (0, bytes(8), "found unwritten bytes"),
            (28, struct.pack(">q", 5), "found 5"),
            (84, b"\x7f\xff\xff\xff", "found a body of 2147483647 bytes"),
            (84, b"\x80\x00\x00\x00", "found a body of -2147483648 bytes"),
            (94, b"\xff", "lengths that do not add up"),
            (101, b"\xff\xff", "lengths that do not add up"),
        ],
    )
    def test_a_damaged_header_is_one_sentence(self, tmp_path: Path, at: int, data: bytes, message: str) -> None:
        writer, offsets = self.log(tmp_path)
        writer.put(offsets[3] + at, data)
        root = writer.write(confirm_offset=writer.end)
        with pytest.raises(StoreError) as raised:
            rows_of(root)
        text = str(raised.value)
        assert message in text and f"physical offset {offsets[3]}" in text and "\n" not in text

    def test_a_log_shorter_than_its_committed_end(self, tmp_path: Path) -> None:
        writer, offsets = self.log(tmp_path)
        writer.put(offsets[4], bytes(writer.end - offsets[4]))
        with pytest.raises(StoreError, match=rf"offset {offsets[4]}.*committed up to {writer.end}"):
            open_store(str(writer.write(confirm_offset=writer.end)))
        record = encode(Message(), 0)
        closed = LogWriter(tmp_path / "closed")
        closed.put(0, record + struct.pack(">iI", 65536 - len(record), MAGIC_BLANK))
        with pytest.raises(StoreError, match="expected files up to the committed end 999999, found them up to 65536"):
            open_store(str(closed.write(confirm_offset=999999)))

    def test_a_gap_between_files(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path, 4096)
        writer.append_all([Message(body=b"y" * 900)] * 12)
        root = writer.write()
        (root / "commitlog" / f"{4096:020}").unlink()
        with pytest.raises(StoreError, match="expected a file that starts at 4096, found 8192: the log has a gap"):
            open_store(str(root))

    def test_an_expired_file_says_so(self, tmp_path: Path) -> None:
        writer, _ = self.log(tmp_path)
        view = open_store(str(writer.write()))
        Path(view.files[0].path).unlink()
        with pytest.raises(StoreError, match="was removed while it was read"):
            list(read_store(view))

    def test_a_damaged_epoch_file_falls_back_to_its_copy(self, tmp_path: Path) -> None:
        writer, offsets = self.log(tmp_path)
        lines = f"3-0\n5-{offsets[4]}\n"
        good = f"2\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"
        root = writer.write(epochs=good)
        assert [row["epoch"] for row in rows_of(root)] == [3, 3, 3, 3, 5, 5]
        (root / "epochFileCheckpoint").write_text(good[:-2])
        with pytest.raises(StoreError, match="epochFileCheckpoint: expected a count"):
            open_store(str(root))
        (root / "epochFileCheckpoint.bak").write_text(good)
        assert [row["epoch"] for row in rows_of(root)] == [3, 3, 3, 3, 5, 5]


class TestNotAStore:
    def test_each_is_one_sentence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UsageError, match="no such directory"):
            open_store(str(tmp_path / "nowhere"))
        with pytest.raises(UsageError, match="is not a store, it has no commitlog directory"):
            open_store(str(tmp_path))
        root = LogWriter(tmp_path / "store").write()
        with pytest.raises(UsageError, match=f"did you mean {root}"):
            open_store(str(tmp_path))

        def refuse(path: str) -> Any:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(UsageError, match="commitlog cannot be read: permission denied"):
            open_store(str(root))


class TestColumns:
    def test_compressed_bodies(self, tmp_path: Path) -> None:
        plain = b"text " * 2000
        stored = {
            0x1: zlib.compress(plain),
            0x301: zlib.compress(plain),
            0x101: pa.compress(plain, "lz4", asbytes=True),
            0x201: zstandard.compress(plain),
            0x0: plain,
        }
        writer = LogWriter(tmp_path)
        writer.append_all([Message(body=body, sys_flag=flag) for flag, body in stored.items()], dispatched=False)
        root = writer.write(confirm_offset=writer.end)
        assert [row["body"] for row in rows_of(root)] == [plain] * 5
        assert [row["body"] for row in rows_of(root, Decoding(decompress=False))] == list(stored.values())

    def test_a_batch_of_decompressed_bodies_is_bounded(self, tmp_path: Path) -> None:
        """40 bodies of 4 MiB each, which take 4 KiB in the log: one window of it."""
        size = 4 * 1024 * 1024
        writer = LogWriter(tmp_path, 1024 * 1024)
        writer.append_all([Message(body=zlib.compress(bytes([number]) * size), sys_flag=0x1) for number in range(40)])
        view = open_store(str(writer.write(confirm_offset=writer.end)))
        first_bytes: list[int] = []
        for batch in read_store(view, Decoding(("queueOffset", "body"))):
            assert batch.column("body").nbytes <= BATCH_BODY_MAX_BYTES + 1024
            first_bytes += [body.as_buffer().to_pybytes()[0] for body in batch.column("body")]
        assert first_bytes == list(range(40))

    @pytest.mark.parametrize(
        ("flag", "body", "message"),
        [
            (0x1, b"no zlib", "compressed by zlib, found other bytes; set decompress=false"),
            (0x201, b"no zstd", "compressed by zstd, found other bytes; set decompress=false"),
            (0x401, b"?", "expected a compression known here, found another; set decompress=false"),
        ],
    )
    def test_a_body_that_does_not_decompress(self, tmp_path: Path, flag: int, body: bytes, message: str) -> None:
        self.is_refused(tmp_path, flag, body, message)

    def test_a_body_that_decompresses_without_end(self, tmp_path: Path) -> None:
        self.is_refused(tmp_path, 0x1, zlib.compress(bytes(70 * 1024 * 1024)), "a longer one; set decompress=false")

    def is_refused(self, tmp_path: Path, flag: int, body: bytes, message: str) -> None:
        writer = LogWriter(tmp_path, 1024 * 1024)
        writer.append(Message(body=body, sys_flag=flag))
        root = writer.write()
        with pytest.raises(StoreError, match=message):
            rows_of(root)
        assert rows_of(root, Decoding(decompress=False))[0]["body"] == body

    def test_a_codec_that_this_build_lacks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = LogWriter(tmp_path)
        writer.append(Message(body=b"..", sys_flag=0x101))
        monkeypatch.setattr("rmqha.scan.columns.codec_available", lambda name: False)
        with pytest.raises(StoreError, match="found lz4; set decompress=false"):
            rows_of(writer.write())

    def test_a_time_that_no_timestamp_can_hold_is_null(self, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([Message(born_at_ms=2**63 - 1), Message(born_at_ms=-5), Message(born_at_ms=-(2**63))])
        rows = rows_of(writer.write(confirm_offset=writer.end), Decoding(("bornTimestamp",)))
        assert [row["bornTimestamp"] and ms(row["bornTimestamp"]) for row in rows] == [None, -5, None]
        late = RowFilter().with_interval("bornTimestamp", Interval(low=0))
        assert rows_of(tmp_path, Decoding(("bornTimestamp",)), late) == []

    def test_schema_has_the_promised_columns(self) -> None:
        assert Decoding().schema.names == list(TYPES)
        assert [str(TYPES[name]) for name in ("topic", "body", "queueId", "queueOffset", "storeTimestamp", "keys")] == [
            "string",
            "binary",
            "int32",
            "int64",
            "timestamp[us, tz=UTC]",
            "list<element: string>",
        ]
