"""Options are checked before Spark starts: one sentence each."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import rmtree

import pytest

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import TYPES, Interval, RowFilter
from rmqha.spark.options import COMMENTS, OPTIONS, ReadOptions
from rmqha.spark.queries import referenced_columns
from rmqha.spark.stream import CommitLogStreamReader
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack


def test_names_are_case_insensitive_and_values_are_read() -> None:
    options = ReadOptions.parse(
        {
            "PATH": "/a",
            "paths": '["/b", "/a", "file:///c"]',
            "subscribe": "x, y",
            "Columns": "TOPIC,body",
            "readuncommitted": "TRUE",
            "propertiesAs": "map",
            "verifyCrc": "false",
            "minPartitions": "7",
        }
    )
    assert options.paths == ("/a", "/b", "/c")
    assert options.rows == RowFilter(frozenset(["x", "y"]))
    assert options.columns == ("topic", "body")
    assert (options.uncommitted, options.properties_as, options.verify_crc) == (True, "map", False)
    assert (options.decompress, options.min_partitions) == (True, 7)
    assert options.ddl == "`topic` string COMMENT 'name of the topic', `body` binary COMMENT 'the body, decompressed'"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"readUncommited": "true"},
            "unknown option readUncommited of commitlog; the nearest known one is readUncommitted",
        ),
        ({"topics": "a"}, "unknown option topics of commitlog; the nearest known one is topic"),
        ({"columns": "topik"}, "commitlog has no column topik; the nearest one is topic"),
        ({"columns": " , "}, "option columns is empty: leave it out to read all"),
        ({"verifyCrc": "yes"}, "option verifyCrc = 'yes' must be true or false"),
        ({"propertiesAs": "xml"}, "option propertiesAs = 'xml' must be json or map"),
        ({"onCorrupt": "rows"}, "option onCorrupt = 'rows' must be fail or skip or row"),
        (
            {"pushFilters": "true"},
            "pushFilters = true gave wrong rows where a DataFrame was scanned twice, since Spark 4.3 mixes up the "
            "filters of its scans: let rmqha.spark.read(spark, paths, where=…) or rmqha.spark.sql(spark, …) prune",
        ),
        (
            {"where": "topic"},
            "option where = 'topic' must be a JSON array of conditions such as "
            '["topic", "in", ["a"]] and ["queueOffset", ">=", 7]',
        ),
        (
            {"where": '[["body", "in", ["a"]]]'},
            'option where has the condition ["body", "in", ["a"]]; it must be a JSON array of conditions such as '
            '["topic", "in", ["a"]] and ["queueOffset", ">=", 7]',
        ),
        ({"columns": "_corrupt"}, "commitlog has the column _corrupt only with the option onCorrupt = 'row'"),
        ({"queueId": "a"}, "option queueId = 'a' must be whole numbers parted by commas"),
        ({"minPartitions": "0"}, "option minPartitions = '0' must be a whole number from 1 to 100000"),
        (
            {"topic": "a", "subscribePattern": "b"},
            "the options topic and subscribePattern each say which topics to read: give one of them",
        ),
        (
            {"subscribePattern": "a("},
            "option subscribePattern = 'a(' is no regular expression: missing ): a(",
        ),
        (
            {"assign": '{"orders": 1}'},
            """option assign = '{"orders": 1}' must be topics with their queues, such as {"orders": [0, 1]}""",
        ),
        ({"assign": "orders"}, """option assign = 'orders' must be a JSON object, such as {"orders": …}"""),
        (
            {"startingOffsets": '{"t": {"0": -1}}'},
            """option startingOffsets = '{"t": {"0": -1}}' must be earliest, latest or JSON such as """
            """{"orders": {"0": 23, "1": -2}}, -2 being the queue's begin""",
        ),
        (
            {"endingOffsets": '{"t": 5}'},
            """option endingOffsets = '{"t": 5}' must be latest or JSON such as {"orders": {"0": 23, "1": -1}}, """
            "-1 being the queue's end",
        ),
        (
            {"endingOffsets": "earliest"},
            "option endingOffsets = 'earliest' would read nothing: leave it out to read to the end",
        ),
        ({"tags": " || "}, "option tags is empty: leave it out to read all"),
        (
            {"maxRecordsPerPartition": "0"},
            "option maxRecordsPerPartition = '0' must be a whole number from 1 to 9223372036854775807",
        ),
        (
            {"includeHeaders": "true", "includeProperties": "true"},
            "the options includeProperties and includeHeaders mean the same: give one of them",
        ),
        (
            {"maxBytesPerTrigger": "1 gigabyte"},
            "option maxBytesPerTrigger = '1 gigabyte' must be a size above 0, such as 64000000, 512k, 256m or 1g",
        ),
        (
            {"startingTimestamp": "yesterday"},
            "option startingTimestamp = 'yesterday' must be ms since 1970, or a time such as 2026-11-26T08:00:00Z",
        ),
        ({"maxTriggerDelay": "long"}, "option maxTriggerDelay = 'long' must be a time such as 30s, 5m or 1h"),
        ({"path": "/no/such/dir*/b"}, "/no/such/dir*/b: no directory matches"),
        ({"paths": "{}"}, "option paths = '{}' must be a JSON array of directories"),
    ],
)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        ReadOptions.parse({"path": "/a"} | given)
    assert str(raised.value) == sentence


def test_options_that_leave_rows_out() -> None:
    options = {"queueId": "0, 2", "startingPhysicalOffset": "5", "endingPhysicalOffset": "9", "endingTimestamp": "77"}
    rows = ReadOptions.parse({"path": "/a"} | options).rows
    assert rows.values == {"queueId": frozenset([0, 2])}
    assert rows.intervals == {"physicalOffset": Interval(5, 8), "storeTimestamp": Interval(high=76)}


def test_options_that_name_queues_tags_and_keys() -> None:
    def rows(**options: str) -> RowFilter:
        return ReadOptions.parse({"path": "/a", **options}).rows

    assert rows(subscribePattern="a.*") == RowFilter(topic_pattern="a.*")
    assert rows(assign='{"a": [0, 2], "b": [1]}') == RowFilter(queues=frozenset([("a", 0), ("a", 2), ("b", 1)]))
    assert rows(tags="TagA || TagB,TagC") == RowFilter(tags=frozenset(["TagA", "TagB", "TagC"]))
    assert rows(tags="*") == rows(startingOffsets="earliest") == rows(endingOffsets="latest") == RowFilter()
    assert rows(keys="k1, k2") == RowFilter(keys=frozenset(["k1", "k2"]))
    both = rows(startingOffsets='{"a": {"0": 3, "1": -2}}', endingOffsets='{"a": {"0": 9, "1": -1}, "b": {"0": 0}}')
    assert both.queue_offsets == {("a", 0): Interval(3, 8), ("b", 0): Interval(high=-1)}
    assert ReadOptions.parse({"path": "/a", "startingOffsets": "latest"}).from_latest


def test_columns_that_depend_on_options() -> None:
    without = ReadOptions.parse({"path": "/a", "includeHeaders": "false"})
    assert set(TYPES) - set(without.columns) == {"properties"}
    marked = ReadOptions.parse({"path": "/a", "onCorrupt": "row"})
    assert marked.columns == (*TYPES, "_corrupt") and "`_corrupt` string COMMENT" in marked.ddl
    assert set(TYPES) < COMMENTS.keys() and not any("'" in text for text in COMMENTS.values())


def test_sizes_and_patterns_of_paths(tmp_path: Path) -> None:
    for text, size in (("64000000", 64_000_000), ("1k", 1024), ("256M", 2**28), ("1g", 2**30), ("2 GiB", 2**31)):
        assert ReadOptions.parse({"path": "/a", "maxBytesPerTrigger": text}).max_bytes_per_trigger == size
    for name in ("broker-b", "broker-a", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "broker-c").write_text("a file")
    found = ReadOptions.parse({"path": f"{tmp_path}/broker-*"}).paths
    assert found == (f"{tmp_path}/broker-a", f"{tmp_path}/broker-b")
    (tmp_path / "a[1]").mkdir()
    assert ReadOptions.parse({"path": f"{tmp_path}/a[1]"}).paths == (f"{tmp_path}/a[1]",)


def test_no_path() -> None:
    with pytest.raises(UsageError, match="commitlog needs a path"):
        ReadOptions.parse({})


def test_every_option_is_explained() -> None:
    assert all(OPTIONS.values()) and len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def store(root: Path, identity: str) -> str:
    writer = LogWriter(root)
    writer.append(Message())
    return str(writer.write(identity=identity))


def test_stores_that_do_not_belong_together(tmp_path: Path) -> None:
    a1, other = store(tmp_path / "a1", "c#a#1"), store(tmp_path / "o", "d#a#1")
    b1 = store(tmp_path / "b1", "c#b#1")
    assert [view.broker_name for view in ReadOptions((a1, b1)).open()] == ["a", "b"]
    with pytest.raises(UsageError, match=r"is of the cluster d and .* of c: read them apart"):
        ReadOptions((a1, other)).open()


def test_two_copies_of_one_plain_store_are_refused(tmp_path: Path) -> None:
    def plain(name: str, count: int, stored_at_ms: int = 5) -> str:
        writer = LogWriter(tmp_path / name, 1024)
        for number in range(count):
            writer.append(Message(queue_offset=number, stored_at_ms=stored_at_ms, body=bytes(300)))
        return str(writer.write(identity=""))

    one, two, other = plain("one", 9), plain("two", 5), plain("other", 9, stored_at_ms=6)
    assert len(ReadOptions((one, other)).open()) == 2
    with pytest.raises(UsageError, match=f"{one} and {two} are copies of one log"):
        ReadOptions((one, two)).open()
    (Path(two) / "commitlog" / f"{0:020}").unlink()
    with pytest.raises(UsageError, match="each row would come twice, give one of them"):
        ReadOptions((one, two)).open()


def test_offsets_that_are_gone_or_not_there_yet(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 4096, base=8192)
    writer.append(Message())
    root = str(writer.write())

    def check(**options: str) -> None:
        parsed = ReadOptions.parse({"path": root, **options})
        parsed.check_loss(parsed.open())

    check(startingPhysicalOffset="8192", endingPhysicalOffset=str(writer.end))
    with pytest.raises(StoreError, match="begins at 8192, later than startingPhysicalOffset = 100"):
        check(startingPhysicalOffset="100")
    with pytest.raises(StoreError, match=f"read up to {writer.end}, less than endingPhysicalOffset = {writer.end + 1}"):
        check(endingPhysicalOffset=str(writer.end + 1))
    check(startingPhysicalOffset="100", failOnDataLoss="false")


class TestQueueOffsetsThatAreNotThere:
    """Of a log whose first file was removed."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        writer = LogWriter(tmp_path / "1", 4096)
        offsets = writer.append_all([Message(queue_offset=n, body=bytes(300)) for n in range(20)])
        self.gone = sum(offset < 4096 for offset in offsets)
        writer.append_all([Message(queue_offset=n, queue_id=1) for n in range(3)])
        root = writer.write(confirm_offset=writer.end)
        (root / "commitlog" / f"{0:020}").unlink()
        return root

    def check(self, *roots: Path, **options: str) -> None:
        parsed = ReadOptions.parse({"paths": json.dumps([str(root) for root in roots]), **options})
        parsed.check_loss(parsed.open())

    def offsets(self, **queues: int) -> str:
        return json.dumps({"orders": {name.removeprefix("q"): offset for name, offset in queues.items()}})

    def test_before_a_queues_begin(self, store: Path) -> None:
        self.check(store, startingOffsets=self.offsets(q0=self.gone, q1=0), endingOffsets=self.offsets(q0=20, q1=3))
        self.check(store, startingOffsets=self.offsets(q0=-2), endingOffsets=self.offsets(q0=-1))
        told = f"queue 0 of orders begins at {self.gone}, later than startingOffsets = {self.gone - 1}: older messages"
        before = self.offsets(q0=self.gone - 1)
        with pytest.raises(StoreError, match=f"{told} were removed; failOnDataLoss=false reads what is there"):
            self.check(store, startingOffsets=before)
        self.check(store, startingOffsets=before, failOnDataLoss="false")
        reader = CommitLogStreamReader(ReadOptions.parse({"path": str(store), "startingOffsets": before}), [], "json")
        with pytest.raises(StoreError, match=told):
            reader.initialOffset()
        rmtree(store / "consumequeue")
        with pytest.raises(StoreError, match=told):
            self.check(store, startingOffsets=before)
        self.check(store, startingOffsets=self.offsets(q0=self.gone))

    def test_behind_a_queues_end(self, store: Path, tmp_path: Path) -> None:
        told = "queue 0 of orders can be read up to 20, less than"
        with pytest.raises(StoreError, match=f"{told} endingOffsets = 21"):
            self.check(store, endingOffsets=self.offsets(q0=21))
        with pytest.raises(StoreError, match=f"{told} startingOffsets = 30"):
            self.check(store, startingOffsets=self.offsets(q0=30))
        with pytest.raises(StoreError, match="queue 7 of orders can be read up to 0, less than startingOffsets = 1;"):
            self.check(store, startingOffsets=self.offsets(q7=1))
        later = ReadOptions.parse({"path": str(store), "startingOffsets": self.offsets(q0=30)})
        CommitLogStreamReader(later, [], "json").initialOffset()
        other = LogWriter(tmp_path / "2")
        other.append_all([Message(queue_offset=n) for n in range(30)])
        other.write(confirm_offset=other.end, identity="c#b#1")
        self.check(store, other.root, startingOffsets=self.offsets(q0=20), endingOffsets=self.offsets(q0=30))
        with pytest.raises(StoreError, match=f"^{store}: queue 0 of orders begins at"):
            self.check(other.root, store, startingOffsets=self.offsets(q0=1))


def test_offsets_of_a_batch_queue_that_are_not_there(tmp_path: Path) -> None:
    root = unpack("n0", tmp_path) / "n0"

    def check(end: int) -> None:
        parsed = ReadOptions.parse({"path": str(root), "endingOffsets": f'{{"GoldBatchCQ": {{"0": {end}}}}}'})
        parsed.check_loss(parsed.open())

    check(27)
    with pytest.raises(StoreError, match="queue 0 of GoldBatchCQ can be read up to 27, less than endingOffsets = 28"):
        check(28)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select topic, count(*) from log group by topic", ("topic",)),
        ("SELECT Count( * ) FROM log", ("queueId",)),
        ("with t as (select QUEUEID q, body from log) select * from t", None),
        ("with t as (select QUEUEID q, body from log) select q from t", ("body", "queueId")),
        ("select l.tags from log l where l.queueOffset > 3", ("queueOffset", "tags")),
        ("select * from log", None),
        ("table log", None),
        ("from log |> where topic = 'a'", None),
        ("select queueId from log pivot (count(1) for tags in ('a'))", None),
        ("describe log", None),
    ],
)
def test_columns_that_a_statement_can_mean(sql: str, columns: tuple[str, ...] | None) -> None:
    assert referenced_columns(sql) == columns
    assert columns is None or set(columns) <= set(TYPES)
