"""Reading a CommitLog: the vectorised decoder against a struct loop, and the Spark source against a row-wise one.

Makes a store of a given size in a temporary directory, measures all variants in the same run and prints a table; with
--json FILE also the numbers. Decoding is rated by CPU seconds of its one core, Spark by wall seconds. Compare ratios:
the same query moves by half between runs of a busy machine.

    python -m benchmarks.bench_spark --mib 1024 --body 1024 --cores 2 --json out.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rmqha.host import kernel_choice
from rmqha.model.message import tags_code
from rmqha.scan.api import (
    Decoding,
    Interval,
    ReadCounts,
    RowFilter,
    StoreView,
    ViewCache,
    ViewOptions,
    open_store,
    plan_ranges,
    prune,
    read_range,
    read_store,
)
from rmqha.scan.native import columns as native_columns
from rmqha.scan.read import LogFile

MIB = 1024 * 1024
TOPICS, QUEUES = 8, 4
FIRST_MS = 1_780_000_000_000
"""storeTimestamp of the first record; each is stored a millisecond after the one before."""
NINE = ("topic", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "keys", "tags", "body")
TOPIC_AND_BODY = ("topic", "body")
HEADERS = ("queueId", "queueOffset", "physicalOffset", "storeTimestamp", "sysFlag")
HEAD_FORMAT = ">iiiiiqqiq8sq8siqi"
HEAD_BYTES = struct.calcsize(HEAD_FORMAT)
UNIQUE = "UNIQ_KEY=7F0000010001070DEA4E2A6761760000"
LAYOUTS = {
    "tags and a key, in the Java client's order": f"MSG_REGION=DefaultRegion {UNIQUE} CLUSTER=DefaultCluster TAGS=TagA "
    "KEYS=order-12345678 WAIT=true TRACE_ON=true ",
    "tags": f"MSG_REGION=DefaultRegion {UNIQUE} CLUSTER=DefaultCluster TAGS=TagB WAIT=true TRACE_ON=true ",
    "neither": f"MSG_REGION=DefaultRegion {UNIQUE} CLUSTER=DefaultCluster WAIT=true TRACE_ON=true ",
    "three keys before the tags, with the application's own": f"KEYS=order-12345678+user-4711+eu TAGS=TagC {UNIQUE} "
    "tenant=acme traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 CLUSTER=DefaultCluster ",
    "a retry": f"DELAY=3 MSG_REGION=DefaultRegion {UNIQUE} ORIGIN_MESSAGE_ID=7F00000100002A9F0000000000012345 "
    "RETRY_TOPIC=bench-0 REAL_TOPIC=%RETRY%group REAL_QID=0 CLUSTER=DefaultCluster TAGS=TagA KEYS=order-12345678 "
    "WAIT=false ",
    "without the last separator": f"KEYS=order-12345678 {UNIQUE} TAGS=TagD WAIT=true",
    "none": "",
}
"""Properties as clients store them; = stands for the separator 0x01, the space for 0x02, + for the space."""
RARE_TAG, TURNS_TO_RARE = "TagRare", 14
"""One record of so many turns of all layouts has it: one in 98."""


def with_rare(layouts: Sequence[str]) -> list[str]:
    """The layouts in turn, one of the last turn with the rare tag."""
    return [*(list(layouts) * TURNS_TO_RARE)[:-1], LAYOUTS["tags"].replace("TagB", RARE_TAG)]


SEPARATORS = str.maketrans("= +", "\x01\x02 ")


def record(body_bytes: int, layout: str) -> bytes:
    """A record with such properties; offsets and queues are filled in by `make_store`."""
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    properties = layout.translate(SEPARATORS).encode()
    topic = b"bench-0"
    size = HEAD_BYTES + len(body) + 1 + len(topic) + 2 + len(properties)
    host = b"\x7f\x00\x00\x01" + struct.pack(">i", 10911)
    crc, stamp = zlib.crc32(body) & 0x7FFFFFFF, FIRST_MS
    magic = 0xDAA320A7 - 2**32
    head = struct.pack(HEAD_FORMAT, size, magic, crc, 0, 0, 0, 0, 0, stamp, host, stamp, host, 0, 0, len(body))
    return head + body + bytes([len(topic)]) + topic + struct.pack(">H", len(properties)) + properties


def make_store(root: Path, total_bytes: int, body_bytes: int, file_bytes: int, layouts: Sequence[str]) -> int:
    """Write `total_bytes` of CommitLog in whole files, with these layouts in turn; gives the number of records."""
    turn = [np.frombuffer(record(body_bytes, layout), np.uint8) for layout in layouts]
    sizes = np.array([len(one) for one in turn])
    places = np.cumsum(sizes) - sizes
    turns = int((file_bytes - 8) // sizes.sum())
    (root / "commitlog").mkdir(parents=True)
    files = max(total_bytes // file_bytes, 1)
    entries = []
    for index in range(files):
        data = np.zeros(file_bytes, np.uint8)
        used = turns * int(sizes.sum())
        block = data[:used].reshape(turns, -1)
        offsets = index * file_bytes + np.arange(turns, dtype=np.int64)[:, None] * sizes.sum() + places
        for which, (one, place) in enumerate(zip(turn, places.tolist(), strict=True)):
            number = (np.arange(turns, dtype=np.int64) + index * turns) * len(turn) + which
            rows = block[:, place : place + len(one)]
            rows[:] = one
            _fill_in(rows, number, offsets[:, which], HEAD_BYTES + body_bytes + 1 + len("bench-"))
        entries.append(offsets.ravel())
        blank = struct.pack(">iI", file_bytes - used, 0xCBD43194)
        data[used : used + 8] = np.frombuffer(blank, np.uint8)
        (root / "commitlog" / f"{index * file_bytes:020}").write_bytes(data.tobytes())
    tags = [layout.partition("TAGS=")[2].split(" ")[0] for layout in layouts]
    codes = np.array([tags_code(tag) for tag in tags])
    _make_queues(root, np.concatenate(entries), np.tile(sizes, turns * files), np.tile(codes, turns * files))
    (root / "checkpoint").write_bytes(struct.pack(">qqqqq", 0, 0, 0, 0, files * file_bytes).ljust(4096, b"\0"))
    (root / "brokerIdentity").write_text("bench#broker-a#1")
    return files * turns * len(turn)


def _fill_in(rows: np.ndarray, number: np.ndarray, offsets: np.ndarray, digit_at: int) -> None:
    """Topic, queue, offsets and time of records, by their numbers in the log."""
    queue = number // TOPICS % QUEUES
    rows[:, 12:16] = queue.astype(">i4").view(np.uint8).reshape(-1, 4)
    rows[:, 20:28] = (number // (TOPICS * QUEUES)).astype(">i8").view(np.uint8).reshape(-1, 8)
    rows[:, 28:36] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    rows[:, digit_at] = ord("0") + number % TOPICS
    rows[:, 56:64] = (FIRST_MS + number).astype(">i8").view(np.uint8).reshape(-1, 8)


def _make_queues(root: Path, offsets: np.ndarray, sizes: np.ndarray, codes: np.ndarray) -> None:
    """A ConsumeQueue of one file for each topic and queue."""
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            mine = slice(topic + TOPICS * queue, None, TOPICS * QUEUES)
            units = np.zeros(len(offsets[mine]), [("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
            units["offset"], units["size"], units["code"] = offsets[mine], sizes[mine], codes[mine]
            directory = root / "consumequeue" / f"bench-{topic}" / str(queue)
            directory.mkdir(parents=True)
            (directory / f"{0:020}").write_bytes(units.tobytes())


def struct_rows(path: str) -> Iterator[tuple[Any, ...]]:
    """Rows as a user would read them: one struct call and one tuple per record, the same nine columns."""
    data = Path(path).read_bytes()
    at, end, unpack = 0, len(data), struct.Struct(HEAD_FORMAT).unpack_from
    while at + 91 <= end:
        size, magic, _, queue_id, _, queue_offset, offset, _, born, _, stored, _, _, _, body_size = unpack(data, at)
        if magic & 0xFFFFFFFF != 0xDAA320A7:
            return
        body = data[at + HEAD_BYTES : at + HEAD_BYTES + body_size]
        topic_at = at + HEAD_BYTES + body_size + 1
        topic_end = topic_at + data[topic_at - 1]
        properties = {}
        for piece in data[topic_end + 2 : at + size].split(b"\x02"):
            name, _, value = piece.partition(b"\x01")
            properties[name] = value.decode()
        yield (
            data[topic_at:topic_end].decode(),
            queue_id,
            queue_offset,
            offset,
            datetime.fromtimestamp(born / 1000, UTC),
            datetime.fromtimestamp(stored / 1000, UTC),
            properties.get(b"KEYS", "").split(" "),
            properties.get(b"TAGS"),
            body,
        )
        at += size


def timed(work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Wall and CPU seconds of the repeated work: the best of each, and the median of the wall."""
    wall, cpu = [], []
    for _ in range(rounds):
        start, busy = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    return {"best_s": min(wall), "median_s": statistics.median(wall), "cpu_s": min(cpu)}


def drain(batches: Iterator[Any]) -> int:
    return sum(batch.num_rows for batch in batches)


def by_numpy(work: Callable[[], object]) -> None:
    """Without the native decoder, as where there is none."""
    native_columns.use(None)
    work()
    native_columns.use(kernel_choice.native_columns())


def bench_decode(root: Path, log_bytes: int, record_count: int, rounds: int) -> list[dict[str, Any]]:
    """One core, no Spark. The struct loop reads one file only and is scaled by its own records."""
    view = open_store(str(root))
    native_columns.use(kernel_choice.native_columns())
    files = [LogFile(name) for name in view.files]
    walks: dict[str, Callable[[], object]] = {
        "finding records: lane walk": lambda: [file.walk(0, file.name.size_bytes) for file in files]
    }
    reads: dict[str, Callable[[], object]] = {
        "five header columns": lambda: drain(read_store(view, Decoding(HEADERS))),
        "topic + body": lambda: drain(read_store(view, Decoding(TOPIC_AND_BODY))),
        "nine columns": lambda: drain(read_store(view, Decoding(NINE))),
        "nine columns, by NumPy alone": lambda: by_numpy(lambda: drain(read_store(view, Decoding(NINE)))),
        "nine columns, CRC unchecked": lambda: drain(read_store(view, Decoding(NINE, verify_crc=False))),
        "all 22 columns, properties as JSON": lambda: drain(read_store(view)),
    }
    per_file = record_count // len(files)
    loop = timed(lambda: sum(1 for _ in struct_rows(view.files[0].path)), 1)
    slow = per_file / loop["cpu_s"]
    slow_mb = files[0].name.size_bytes / loop["cpu_s"] / 1e6
    results = [{"what": "struct loop, nine columns", **loop, "records_per_s": slow, "mb_per_s": slow_mb}]
    for what, work in (walks | reads).items():
        took = timed(work, rounds)
        rate = record_count / took["cpu_s"]
        rated = {"records_per_s": rate, "mb_per_s": log_bytes / took["cpu_s"] / 1e6, "against_struct_loop": rate / slow}
        results.append({"what": what, **took, **rated})
    return results


def bench_pruning(root: Path, log_bytes: int, record_count: int) -> dict[str, Any]:
    """Bytes of log that a filter for a hundredth of the time reads, and what it must read."""
    view = open_store(str(root))
    middle, wanted = FIRST_MS + record_count // 2, record_count // 100
    rows = RowFilter().with_interval("storeTimestamp", Interval(middle, middle + wanted - 1))
    start = time.perf_counter()
    found = drain(read_store(view, Decoding(NINE), rows, timestamp_slack_ms=0))
    took = time.perf_counter() - start
    assert found == wanted
    read_bytes = sum(item.size_bytes for item in plan_ranges(prune(view, rows, 0), min_ranges=1))
    return {"read_bytes": read_bytes, "needed_bytes": log_bytes * wanted // record_count, "wall_s": took}


def bench_queues(root: Path, log_bytes: int) -> list[dict[str, Any]]:
    """Filters answered by the consume queues, and by the walk of the log."""
    view, results = open_store(str(root)), []
    one_queue = {"queueId": Interval(0, 0), "queueOffset": Interval(1000, 1999)}
    filters = {
        "one topic of eight": RowFilter(frozenset(["bench-3"])),
        "a rare tag": RowFilter(tags=frozenset([RARE_TAG])),
        "1,000 offsets of one queue": RowFilter(frozenset(["bench-3"]), intervals=one_queue),
    }
    for what, rows in filters.items():
        for use in (True, False):
            counts = ReadCounts()
            drain(read_store(view, Decoding(NINE), rows, use_queues=use, counts=counts))
            took = timed(partial(drain_filtered, view, rows, use), 3)
            read = {"log_read_bytes": counts.log_bytes, "queue_read_bytes": counts.queue_bytes}
            results.append(
                {"what": what, "use_queues": use, **took, **read, "mb_per_s": log_bytes / took["cpu_s"] / 1e6}
            )
    return results


def drain_filtered(view: StoreView, rows: RowFilter, use_queues: bool) -> int:
    return drain(read_store(view, Decoding(NINE), rows, use_queues=use_queues))


def peak_rss_mib(root: Path) -> float:
    """Peak memory (MiB) of a process of its own that reads everything (Linux; ru_maxrss counts this one too)."""
    script = f"""
from pathlib import Path
from rmqha.scan.api import open_store, read_store
for _ in read_store(open_store({str(root)!r})): pass
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


READY, READY_TOPIC = "ready_commitlog", "ready_topic"


def ready_source(source: str, rows_per_byte: float, cores: int) -> Any:
    """A data source that plans as ours, reads one batch a task, and gives that again and again, as many rows as the log
    has: no source in Python can be faster than what Spark makes of ready Arrow batches."""
    from rmqha.spark.partition import TaskSizing
    from rmqha.spark.source import CommitLogReader, CommitLogSource

    class ReadyReader(CommitLogReader):
        def read(self, partition: Any) -> Iterator[Any]:
            left = round(rows_per_byte * sum(item.size_bytes for item in partition.value))
            batch = next(super().read(partition), None)
            while batch is not None and left > 0:
                yield batch.slice(0, left)
                left -= batch.num_rows

    class Ready(CommitLogSource):
        sizing = TaskSizing(cores, may_grow=False)

        @classmethod
        def name(cls) -> str:
            return source

        def reader(self, schema: Any) -> ReadyReader:
            options, properties_as = self._checked(schema)
            return ReadyReader(options, schema.fieldNames(), properties_as, self.sizing)

    return Ready


def naive_source() -> Any:
    """A source of rows, as a user would write it first."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class NaiveReader(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(path)) for path in sorted((Path(self.path) / "commitlog").iterdir())]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return struct_rows(partition.value)

    class Naive(DataSource):
        @classmethod
        def name(cls) -> str:
            return "naive_commitlog"

        def schema(self) -> str:
            return (
                "topic string, queueId int, queueOffset bigint, physicalOffset bigint, bornTimestamp timestamp, "
                "storeTimestamp timestamp, keys array<string>, tags string, body binary"
            )

        def reader(self, schema: Any) -> NaiveReader:
            return NaiveReader(self.options["path"])

    return Naive


def bench_spark(
    root: Path,
    log_bytes: int,
    rounds: int,
    cores: str,
    written_rows: int,
    *,
    is_naive: bool,
    with_questions: bool,
) -> list[dict[str, Any]]:
    from rmqha.spark import read, session

    spark = session("bench", cores=cores)

    spark.dataSource.register(naive_source())

    def of(source: str, columns: tuple[str, ...], **options: str) -> Callable[[], object]:
        def run() -> None:
            given = {"columns": ",".join(columns), **options}
            frame = spark.read.format(source).options(**given).load(str(root))
            frame.write.format("noop").mode("overwrite").save()

        return run

    ours, ready = partial(of, "commitlog"), partial(of, READY)

    def natural(columns: tuple[str, ...], where: str | None = None) -> Callable[[], object]:
        """By `rmqha.spark.read`, which chooses between the data source and mapInArrow."""

        def run() -> None:
            frame = read(spark, root, columns=columns, where=where)
            frame.write.format("noop").mode("overwrite").save()

        return run

    def naive() -> None:
        spark.read.format("naive_commitlog").load(str(root)).write.format("noop").mode("overwrite").save()

    count = spark.read.format("commitlog").option("columns", "queueId").load(str(root)).count()
    for name, share in ((READY, 1), (READY_TOPIC, TOPICS)):
        made = ready_source(name, count / share / log_bytes, spark.sparkContext.defaultParallelism)
        spark.dataSource.register(made)
    ours(HEADERS)()  # the first query starts the Python workers
    queries: dict[str, tuple[Callable[[], object], int]] = {
        "naive source, nine columns": (naive, 1),
        "nine columns": (ours(NINE), rounds),
        "nine columns, by read": (natural(NINE), rounds),
        "nine columns, ready batches": (ready(NINE), rounds),
        "nine columns, CRC unchecked": (ours(NINE, verifyCrc="false"), rounds),
        "topic + body": (ours(TOPIC_AND_BODY), rounds),
        "topic + body, by read": (natural(TOPIC_AND_BODY), rounds),
        "topic + body, ready batches": (ready(TOPIC_AND_BODY), rounds),
        "header columns only": (ours(HEADERS), rounds),
        "header columns only, ready batches": (ready(HEADERS), rounds),
        "one topic of eight, nine columns": (ours(NINE, topic="bench-3"), rounds),
        "one topic of eight, nine columns, by read": (natural(NINE, "topic = 'bench-3'"), rounds),
    }
    if not is_naive:
        del queries["naive source, nine columns"]
    results: list[dict[str, Any]] = []
    for what, (work, count) in queries.items():
        took = timed(work, count)
        row = {"what": what, **took, "mb_per_s": log_bytes / took["best_s"] / 1e6}
        told(results, row | ({"against_naive": (results or [row])[0]["best_s"] / took["best_s"]} if is_naive else {}))
    if with_questions:
        bench_questions(results, spark, root, log_bytes, rounds)
    if written_rows:
        bench_writer(results, spark, root.parent, written_rows)
    spark.stop()
    return results


def beside_limit(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our rates, and those of ready batches of the same columns in the same run, which no Python source can pass."""
    rates = {row["what"]: row["mb_per_s"] for row in rows}
    pairs = {what: (rate, rates.get(f"{what}, ready batches")) for what, rate in rates.items()}
    return [
        {"what": what, "MB/s": rate, "ready batches, MB/s": limit, "ours ÷ ready": rate / limit}
        for what, (rate, limit) in pairs.items()
        if limit is not None
    ]


def told(results: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Keep a result and print it at once: of a run that is broken off what was measured is known."""
    results.append(row)
    print(f"{row['what']:<44} {row['best_s']:8.3f} s {row['mb_per_s']:8.0f} MB/s", flush=True)


QUESTIONS = {
    "count": ("select count(*) from log", {"columns": "queueId"}),
    "count by topic": ("select topic, count(*) from log group by topic", {"columns": "topic"}),
    "bytes of one topic": (
        "select sum(length(body)) from log where topic = 'bench-3'",
        {"columns": "topic,body", "topic": "bench-3"},
    ),
    "keys and tags of all": ("select count(distinct tags), max(size(keys)) from log", {"columns": "tags,keys"}),
}
"""SQL, and the options that one who knows the source would give by hand."""


def bench_questions(results: list[dict[str, Any]], spark: Any, root: Path, log_bytes: int, rounds: int) -> None:
    """Times of the same questions as natural code, with options by hand, and of the same rows as uncompressed Parquet,
    by Spark and (where it is installed) by DuckDB."""
    import rmqha.spark

    parquet = root.parent / "parquet"
    parquet.mkdir()
    write_parquet(root, parquet)

    def by_hand(text: str, options: dict[str, str], source: str = "commitlog") -> None:
        spark.read.format(source).options(**options).load(str(root)).createOrReplaceTempView("log")
        spark.sql(text).collect()

    def of_parquet(text: str) -> None:
        spark.read.parquet(str(parquet)).createOrReplaceTempView("log")
        spark.sql(text).collect()

    for what, (text, options) in QUESTIONS.items():
        ways: dict[str, Callable[[], object]] = {
            "natural": lambda text=text: rmqha.spark.sql(spark, text, root).collect(),  # type: ignore[misc]
            "options by hand": partial(by_hand, text, options),
            "ready batches": partial(by_hand, text, options, READY_TOPIC if "topic" in options else READY),
            "Spark on Parquet": partial(of_parquet, text),
        }
        if find_spec("duckdb") is not None:
            ways["DuckDB on Parquet"] = partial(ask_duckdb, text, parquet)
        for how, work in ways.items():
            work()
            took = timed(work, rounds)
            rate = log_bytes / took["best_s"] / 1e6
            told(results, {"what": f"{what}: {how}", **took, "mb_per_s": rate})


def bench_writer(results: list[dict[str, Any]], spark: Any, directory: Path, rows: int) -> None:
    """Rows a second of a write to a new store, and of the same rows to uncompressed Parquet: each twice, for the first
    finds a JVM that has not compiled what it needs."""
    for body_bytes, turn in ((128, "first"), (128, "again"), (1024, "first"), (1024, "again")):
        made = spark.range(0, rows, 1, 4).selectExpr(
            "concat('bench-', id % 8) topic",
            f"rpad(cast(id as string), {body_bytes}, 'x') body",
            "cast(id % 4 as int) queueId",
            "array(concat('order-', id)) keys",
            "'TagA' tags",
        )
        for what in ("store", "Parquet"):
            target = directory / f"written-{body_bytes}-{what}"
            start = time.perf_counter()
            if what == "store":
                made.write.format("commitlog").mode("append").save(str(target))
            else:
                made.write.option("compression", "none").parquet(str(target))
            took = time.perf_counter() - start
            size = sum(path.stat().st_blocks * 512 for path in target.rglob("*") if path.is_file())
            rate = {"rows_per_s": rows / took, "mb_per_s": size / took / 1e6}
            told(results, {"what": f"write {body_bytes} B, {turn}: {what}", "best_s": took, **rate})
            shutil.rmtree(target)


def ask_duckdb(text: str, parquet: Path) -> None:
    import duckdb  # type: ignore[import-not-found,unused-ignore]

    spelled = text.replace("size(keys)", "len(keys)").replace("length(body)", "octet_length(body)")
    duckdb.sql(spelled.replace("from log", f"from read_parquet('{parquet}/*.parquet')")).fetchall()


def write_parquet(root: Path, target: Path) -> None:
    """The nine columns of the store as uncompressed Parquet, a file for each of the log's."""
    import pyarrow.parquet as pq

    view = open_store(str(root))
    for number, item in enumerate(plan_ranges(view, min_ranges=1)):
        schema = Decoding(NINE).schema
        with pq.ParquetWriter(target / f"{number}.parquet", schema, compression="none") as writer:
            for batch in read_range(item, Decoding(NINE)):
                writer.write_batch(batch)


def bench_looks(root: Path) -> dict[str, float]:
    """Milliseconds of a first look at the store, and of a second one that finds it unchanged."""
    known = ViewCache()
    first = timed(lambda: open_store(str(root)), 3)
    open_store(str(root), ViewOptions(), known)
    again = timed(lambda: open_store(str(root), ViewOptions(), known), 50)
    return {"first_ms": first["median_s"] * 1000, "unchanged_ms": again["median_s"] * 1000}


PLANNED_FILES, PLANNED_FILE_BYTES = 10_000, 1024 * MIB


def bench_planning(root: Path) -> dict[str, float]:
    """Milliseconds of a plan of a log of 10,000 files of 1 GiB, of which only the first and the last hold a record."""
    (root / "commitlog").mkdir(parents=True)
    (root / "consumequeue/bench-0/0").mkdir(parents=True)
    one, entries = record(1024, LAYOUTS["tags"]), b""
    for index in range(PLANNED_FILES):
        base = index * PLANNED_FILE_BYTES
        with (root / "commitlog" / f"{base:020}").open("wb") as file:
            file.truncate(PLANNED_FILE_BYTES)
            if index in (0, PLANNED_FILES - 1):
                number = min(index, 1)
                file.write(one[:20] + struct.pack(">qq", number, base) + one[36:])
                entries += struct.pack(">qiq", base, len(one), tags_code("TagB"))
    (root / "consumequeue/bench-0/0" / f"{0:020}").write_bytes(entries)
    confirm = (PLANNED_FILES - 1) * PLANNED_FILE_BYTES + len(one)
    (root / "checkpoint").write_bytes(struct.pack(">qqqqq", 0, 0, 0, 0, confirm).ljust(4096, b"\0"))
    took = timed(lambda: plan_ranges(open_store(str(root)), min_ranges=4, target_bytes=PLANNED_FILE_BYTES), 5)
    return {"median_ms": took["median_s"] * 1000, "cpu_ms": took["cpu_s"] * 1000}


def show(title: str, rows: list[dict[str, Any]], ratio: str) -> None:
    print(f"\n{title:<38} {'Mrec/s':>8} {'MB/s':>8} {'ratio':>7}")
    for row in rows:
        records_per_s = row.get("records_per_s", row.get("rows_per_s"))
        rate = " " * 8 if records_per_s is None else f"{records_per_s / 1e6:8.2f}"
        print(f"{row['what']:<38} {rate} {row['mb_per_s']:8.0f} {row.get(ratio, 1):6.1f}×")


def bench_alone(results: dict[str, Any], root: Path, rounds: int) -> None:
    """All that needs no Spark, into `results`, and printed."""
    log_bytes, count = results["log_bytes"], results["record_count"]
    results["decode"] = bench_decode(root, log_bytes, count, rounds)
    show("decoding, one core", results["decode"], "against_struct_loop")
    pruned = results["pruning"] = bench_pruning(root, log_bytes, count)
    print(
        f"\na hundredth of the time: read {pruned['read_bytes'] / MIB:.1f} MiB of {log_bytes / MIB:.0f}, needed "
        f"{pruned['needed_bytes'] / MIB:.1f}, in {pruned['wall_s'] * 1000:.0f} ms"
    )
    looks = results["looks"] = bench_looks(root)
    print("a look: {first_ms:.1f} ms; at the unchanged store again: {unchanged_ms:.2f} ms".format(**looks))
    planned = results["planning"] = bench_planning(root.parent / "planned")
    print("a plan of 10,000 files: {median_ms:.0f} ms, {cpu_ms:.0f} of CPU".format(**planned))
    results["queues"] = bench_queues(root, log_bytes)
    for row in results["queues"]:
        how = "queues" if row["use_queues"] else "walk"
        shares = (100 * row[name] / log_bytes for name in ("log_read_bytes", "queue_read_bytes"))
        shown = "log read {:.2f} %, queues {:.2f} %".format(*shares)
        print(f"{row['what']:<28} by {how:<7} {row['mb_per_s']:8.0f} MB/s of CPU time; {shown}")
    results["peak_rss_mib"] = peak_rss_mib(root)
    print(f"peak memory of a process that reads all columns of it: {results['peak_rss_mib']:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of the log to make")
    parser.add_argument("--body", type=int, default=1024, help="bytes of each body")
    parser.add_argument("--file-mib", type=int, default=128, help="size of one CommitLog file")
    parser.add_argument("--one-layout", action="store_true", help="the same property layout in every record")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="*", help="cores for Spark")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--only-spark", action="store_true", help="leave out what needs no Spark")
    parser.add_argument("--written-rows", type=int, default=1_000_000, help="rows for the writer; 0: it is left out")
    parser.add_argument("--no-naive", action="store_true", help="leave out what a row-wise source does")
    parser.add_argument("--no-questions", action="store_true", help="leave out SQL, Parquet and DuckDB")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as directory:
        root = Path(directory) / "store"
        layouts = with_rare(list(LAYOUTS.values())[: 1 if given.one_layout else None])
        count = make_store(root, given.mib * MIB, given.body, min(given.file_mib, given.mib) * MIB, layouts)
        log_bytes = sum(item.size_bytes for item in plan_ranges(open_store(str(root)), min_ranges=1))
        print(f"{log_bytes / MIB:.0f} MiB, {count} records of {log_bytes // count} bytes on average")
        results: dict[str, Any] = {"log_bytes": log_bytes, "record_count": count, "body_bytes": given.body}
        if not given.only_spark:
            bench_alone(results, root, given.rounds)
        if not given.no_spark:
            results["spark"] = bench_spark(
                root,
                log_bytes,
                given.rounds,
                given.cores,
                given.written_rows,
                is_naive=not given.no_naive,
                with_questions=not given.no_questions,
            )
            show(f"Spark, local[{given.cores}]", results["spark"], "against_naive")
            results["limit"] = beside_limit(results["spark"])
            print("\nbeside what Spark makes of ready batches, MB/s")
            for row in results["limit"]:
                print("{what:<38} {MB/s:8.0f} {ready batches, MB/s:8.0f} {ours ÷ ready:6.2f}×".format(**row))
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
