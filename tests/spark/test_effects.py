"""What each option of a read does to the rows of one log; no session is needed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import CORRUPT, TYPES
from rmqha.spark.options import OPTIONS, ReadOptions
from rmqha.spark.source import CommitLogReader
from tests.store.log_writer import LogWriter, Message

AT_MS = 1_700_000_000_000
ELSEWHERE = {
    "path": "every case",
    "paths": "every case",
    "maxBytesPerTrigger": "test_stream.py",
    "minOffsetsPerTrigger": "test_stream_reader.py",
    "maxTriggerDelay": "test_stream_reader.py",
    "storageOptions": "lake/test_s3.py",
    "storePathCommitLog": "test_a_log_elsewhere",
    "replicas": "test_source.py",
    "pushFilters": "refused, test_source.py",
    "columns": "test_columns_and_forms",
    "includeProperties": "test_columns_and_forms",
    "includeHeaders": "test_columns_and_forms",
    "propertiesAs": "test_columns_and_forms",
    "decompress": "test_columns_and_forms",
    "innerBatches": "test_inner_batches",
    "minPartitions": "test_tasks",
    "maxRecordsPerPartition": "test_tasks",
    "onCorrupt": "test_damage_and_loss",
    "verifyCrc": "test_damage_and_loss",
    "failOnDataLoss": "test_damage_and_loss",
    "useQueues": "test_partition.py",
    "trustIndex": "tests/scan/access/test_access.py",
    "readReport": "test_partition.py",
    "timestampSlackMs": "test_a_clock_that_stepped_back",
}
"""Options that take another log than the one of `CASES`."""
CASES: list[tuple[dict[str, str], list[int]]] = [
    ({}, list(range(20))),
    ({"topic": "orders, returns"}, list(range(20))),
    ({"topic": "returns"}, [5, 15]),
    ({"subscribe": "returns"}, [5, 15]),
    ({"subscribePattern": "ret.*"}, [5, 15]),
    ({"assign": '{"orders": [1], "returns": [0]}'}, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
    ({"queueId": "0"}, [0, 2, 4, 5, 6, 8, 10, 12, 14, 15, 16, 18]),
    ({"tags": "red || none"}, [0, 3, 6, 9, 12, 15, 18]),
    ({"keys": "k4,k5"}, [4, 5]),
    ({"topic": "orders", "startingOffsets": '{"orders": {"0": 8, "1": -2}}'}, [1, 3, 7, 9, 11, 13, 16, 17, 18, 19]),
    ({"topic": "orders", "endingOffsets": '{"orders": {"0": 2, "1": 1}}'}, [0, 1, 2]),
    ({"where": '[["topic", "in", ["orders"]], ["tags", "in", ["red"]], ["queueOffset", ">=", 7]]'}, [18]),
    ({"where": '[["keys", "in", ["k4", "k5"]], ["queueId", "in", [0]]]'}, [4, 5]),
    ({"where": '[["physicalOffset", "<=", 99999999]]'}, list(range(20))),
    ({"startingPhysicalOffset": "OFFSET 17"}, [17, 18, 19]),
    ({"endingPhysicalOffset": "OFFSET 2"}, [0, 1]),
    ({"startingTimestamp": str(AT_MS + 18_000)}, [18, 19]),
    ({"endingTimestamp": str(AT_MS + 2_000)}, [0, 1]),
    ({"startingTimestamp": "2023-11-14T22:13:38Z"}, [18, 19]),
    ({"startingTimestamp": "2023-11-14 22:13:38", "endingTimestamp": "2023-11-14T23:13:39+01:00"}, [18]),
    # 20 and 21 are of the epoch that has committed records, 22 is of one that has not
    ({"readUncommitted": "true"}, list(range(22))),
    ({"readUncommitted": "true", "epochPolicy": "committed"}, list(range(22))),
    ({"readUncommitted": "true", "epochPolicy": "all"}, list(range(23))),
    ({"epochPolicy": "all"}, list(range(20))),
]


def rows_of(*paths: Path, **options: str) -> list[list[dict[str, Any]]]:
    """The rows of each task."""
    parsed = ReadOptions.parse({"paths": json.dumps([str(path) for path in paths]), **options})
    reader = CommitLogReader(parsed, list(parsed.columns), parsed.properties_as)
    found = [[row for batch in reader.read(part) for row in batch.to_pylist()] for part in reader.partitions()]
    return [sorted(rows, key=lambda row: row.get("physicalOffset", 0)) for rows in found]


def sent(number: int, **fields: Any) -> Message:
    """Of orders, but for each tenth, which goes to returns; two queues, and each topic's offsets without holes."""
    topic = b"returns" if number % 10 == 5 else b"orders"
    before = [n for n in range(number) if n % 2 == number % 2 and (n % 10 == 5) == (number % 10 == 5)]
    properties = b"KEYS\x01k%d\x02TAGS\x01%s\x02n\x01%d\x02" % (number, b"red" if number % 3 == 0 else b"blue", number)
    queue_id = number % 2 if topic == b"orders" else 0
    values = {"queue_id": queue_id, "queue_offset": len(before), "stored_at_ms": AT_MS + number * 1000}
    return Message(**{"topic": topic, "properties": properties, "body": b"%d" % number, **values, **fields})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """20 committed messages and three that are not; the offsets of all."""
    writer = LogWriter(tmp_path_factory.mktemp("log"))
    offsets = writer.append_all([sent(number) for number in range(20)])
    confirmed = writer.end
    offsets += writer.append_all([sent(number) for number in range(20, 23)], dispatched=False)
    writer.queue_entries = {
        queue: [e for e in all_ if e[1] < confirmed] for queue, all_ in writer.queue_entries.items()
    }
    return writer.write(confirm_offset=confirmed, epochs=f"2\n0\n1-0\n2-{offsets[22]}\n"), offsets


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_which_rows_an_option_leaves(log: tuple[Path, list[int]], options: dict[str, str], expected: list[int]) -> None:
    root, offsets = log
    given = {
        name: str(offsets[int(value.removeprefix("OFFSET "))]) if value.startswith("OFFSET ") else value
        for name, value in options.items()
    }
    assert sorted(int(row["body"]) for task in rows_of(root, **given) for row in task) == expected


def test_every_option_has_a_case_and_a_line_in_the_docs() -> None:
    shown = {name for options, _ in CASES for name in options}
    assert shown | ELSEWHERE.keys() == OPTIONS.keys()
    docs = (Path(__file__).parents[2] / "docs" / "use" / "spark.md").read_text()
    assert [name for name in OPTIONS if name not in ("path", "paths") and f"`{name}`" not in docs] == []


def test_columns_and_forms(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    packed = zlib.compress(b"plain")
    writer.append(sent(0, body=packed, sys_flag=1))
    writer.write()

    def row(**options: str) -> dict[str, Any]:
        ((found,),) = rows_of(tmp_path, **options)
        return found

    assert list(row()) == list(TYPES)
    assert list(row(columns="tags,body")) == ["tags", "body"]
    for name in ("includeProperties", "includeHeaders"):
        assert set(TYPES) - set(row(**{name: "false"})) == {"properties"}
    assert row()["properties"] == '{"KEYS":"k0","TAGS":"red","n":"0"}'
    assert dict(row(propertiesAs="map")["properties"]) == {"KEYS": "k0", "TAGS": "red", "n": "0"}
    assert row()["body"] == b"plain" and row(decompress="false")["body"] == packed


def test_inner_batches(tmp_path: Path) -> None:
    inner = b"".join(struct.pack(">iiiii", 24, 0, 0, n, 2) + b"m%d" % n + b"\0\0" for n in range(3))
    writer = LogWriter(tmp_path)
    writer.append_all([sent(0), sent(2, body=inner, sys_flag=0xC0, properties=b"INNER_NUM\x013\x02")])
    writer.write()

    def bodies(**options: str) -> list[bytes]:
        return [row["body"] for task in rows_of(tmp_path, **options) for row in task]

    assert bodies() == [b"0", b"m0", b"m1", b"m2"]
    assert bodies(innerBatches="raw") == [b"0", inner]


def test_tasks(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 16 * 1024 * 1024)
    writer.append_all([Message(queue_offset=n, body=bytes(300_000)) for n in range(40)])
    writer.write()
    assert len(rows_of(tmp_path, columns="queueOffset", minPartitions="1")) == 1
    assert len(rows_of(tmp_path, columns="queueOffset", minPartitions="3")) == 3
    tasks = rows_of(tmp_path, columns="queueOffset", maxRecordsPerPartition="7")
    assert max(map(len, tasks)) <= 7 and sum(map(len, tasks)) == 40


def test_damage_and_loss(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 4096)
    offsets = writer.append_all([sent(number, body=b"%d" % number + bytes(300)) for number in range(40)])
    writer.put(offsets[30] + 90, b"J")
    root = writer.write(confirm_offset=writer.end)

    def numbers(**options: str) -> list[int]:
        read = [row for task in rows_of(root, columns="properties,body", **options) for row in task]
        return sorted(int(json.loads(row["properties"])["n"]) for row in read)

    with pytest.raises(StoreError, match="expected body CRC"):
        numbers()
    assert numbers(verifyCrc="false") == list(range(40))
    assert numbers(onCorrupt="skip") == [n for n in range(40) if n != 30]
    bad = [row for task in rows_of(root, onCorrupt="row") for row in task if row[CORRUPT]]
    assert len(bad) == 1 and bad[0]["body"] is None and "expected body CRC" in bad[0][CORRUPT]
    (root / "commitlog" / f"{4096:020}").unlink()
    with pytest.raises(StoreError, match="the log has a gap"):
        numbers(verifyCrc="false")
    kept = [n for n, offset in enumerate(offsets) if not 4096 <= offset < 8192]
    assert numbers(verifyCrc="false", failOnDataLoss="false") == kept


def test_a_condition_may_name_bytes_that_the_log_does_not_have(tmp_path: Path) -> None:
    """An option that does is refused, and so was `where physicalOffset >= 8` once the first file had expired."""
    writer = LogWriter(tmp_path, 4096)
    writer.append_all([sent(number, body=bytes(300)) for number in range(20)])
    root = writer.write(confirm_offset=writer.end)
    (root / "commitlog" / f"{0:020}").unlink()
    left = rows_of(root, columns="physicalOffset", where='[["physicalOffset", ">=", 8]]')
    assert left == rows_of(root, columns="physicalOffset") and left[0]
    with pytest.raises(StoreError, match="later than startingPhysicalOffset = 8"):
        rows_of(root, columns="physicalOffset", startingPhysicalOffset="8")


def test_a_clock_that_stepped_back(tmp_path: Path) -> None:
    """By 700 s, which is more than is looked behind by default."""
    writer = LogWriter(tmp_path, 4096)
    times = [AT_MS + (number if number < 34 else number - 700) * 1000 for number in range(40)]
    writer.append_all([sent(n, body=b"%d" % n + bytes(300), stored_at_ms=times[n]) for n in range(40)])
    root = writer.write(confirm_offset=writer.end)

    def count(**options: str) -> int:
        return sum(map(len, rows_of(root, columns="queueId", endingTimestamp=str(AT_MS - 660_000), **options)))

    assert count(timestampSlackMs="800000") == 6
    assert count() == 0


def test_a_log_elsewhere(tmp_path: Path) -> None:
    """By storePathCommitLog, as Apache RocketMQ's broker may have it."""
    writer = LogWriter(tmp_path / "s")
    writer.append_all([sent(number) for number in range(6)])
    writer.write()
    whole = rows_of(tmp_path / "s", topic="orders")
    (tmp_path / "s/commitlog").rename(tmp_path / "elsewhere")
    given = {"storePathCommitLog": str(tmp_path / "elsewhere")}
    for filtered in ({"topic": "orders"}, {"topic": "orders", "useQueues": "false"}, {"topic": "orders", "tags": "*"}):
        assert rows_of(tmp_path / "s", **given, **filtered) == whole
    with pytest.raises(UsageError, match="no such directory; give the storePathCommitLog of"):
        rows_of(tmp_path / "s", storePathCommitLog=str(tmp_path / "x"))
    with pytest.raises(UsageError, match="option storePathCommitLog is for one path"):
        rows_of(tmp_path / "s", tmp_path / "t", **given)


def test_several_plain_brokers_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 2)):
        writer = LogWriter(tmp_path / name)
        writer.append_all([sent(number + count) for number in range(count)])
        writer.write()
        (tmp_path / name / "brokerIdentity").unlink()
    found = rows_of(tmp_path / "a", tmp_path / "b", columns="storePath,brokerName,physicalOffset")
    paths = [row["storePath"] for task in found for row in task]
    assert sorted(paths) == [str(tmp_path / name) for name in "aaabb"]
    assert {row["brokerName"] for task in found for row in task} == {None}
