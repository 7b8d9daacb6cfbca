"""Rows made records column by column: the bytes of the store's own encoder, numbered as its appends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.host.disk import HostDisk
from rmqha.host.kernel_choice import choose_kernel
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.model.error import UsageError
from rmqha.model.message import encode_properties
from rmqha.spark.sink import records
from rmqha.spark.sink.records import append, made
from rmqha.spark.write_rows import LOOPBACK
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.support.tracer import RecordingTracer

NOW_MS = 1_790_000_000_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=2000, max_hash_slot_num=500, max_index_num=2000
)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("queueId", pa.int32()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("uniqKey", pa.string()),
        ("properties", pa.string()),
        ("flag", pa.int32()),
        ("bornTimestamp", pa.timestamp("us", "UTC")),
        ("storeTimestamp", pa.int64()),
        ("reconsumeTimes", pa.int32()),
    ]
)
WORDS = st.text(st.characters(exclude_characters="\x00\x02 ", exclude_categories=["Cs"]), max_size=8)
ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "%RETRY%g", "t" * 200, "SCHEDULE_TOPIC_XXXX"]),
        "body": st.binary(max_size=300),
        "queueId": st.none() | st.integers(0, 3),
        "keys": st.none() | st.lists(WORDS.filter(bool), max_size=3),
        "tags": st.none() | WORDS,
        "uniqKey": st.none() | WORDS,
        "properties": st.none() | st.dictionaries(st.sampled_from(["a", "DELAY_", "é"]), WORDS).map(json.dumps),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "bornTimestamp": st.none() | st.integers(-(10**15), 2 * 10**15),
        "storeTimestamp": st.none() | st.integers(0, 2 * NOW_MS),
        "reconsumeTimes": st.none() | st.integers(0, 20),
    }
)


def opened(root: Path) -> Store:
    root.mkdir()
    return Store.open(HostDisk(root), CONFIG, RecordingTracer(), process_id=1)


def one_by_one(store: Store, rows: list[dict[str, Any]]) -> None:
    """The reference: each row as a message that the store encodes itself."""
    for row in rows:
        properties = json.loads(row.get("properties") or "{}")
        if row.get("keys"):
            properties["KEYS"] = " ".join(row["keys"])
        for name, column in (("TAGS", "tags"), ("UNIQ_KEY", "uniqKey")):
            if row.get(column):
                properties[name] = row[column]
        stored_ms = NOW_MS if row.get("storeTimestamp") is None else row["storeTimestamp"]
        born = row.get("bornTimestamp")
        message = NewMessage(
            topic=row["topic"],
            queue_id=row.get("queueId") or 0,
            body=row["body"],
            properties=encode_properties(properties),
            born_at_ms=stored_ms if born is None else (born + 500) // 1000,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
            flag=row.get("flag") or 0,
            reconsume_times=row.get("reconsumeTimes") or 0,
        )
        store.append(message, stored_ms)


def log_of(store: Store) -> bytes:
    end, found = store.max_phy_offset, b""
    while len(found) < end:
        found += bytes(store.view(type(end)(len(found)), end - len(found)))
    return found


def derived_of(root: Path) -> list[tuple[str, bytes]]:
    """Files of queues and index, these by their order, for they are named after times."""
    queues = sorted((root / "consumequeue").glob("*/*/0*"))
    found = [(str(path.relative_to(root)), path.read_bytes()) for path in queues]
    return found + [("index", path.read_bytes()) for path in sorted((root / "index").glob("*"))]


@settings(max_examples=60)
@given(
    rows=st.lists(ROWS, max_size=40),
    names=st.sets(st.sampled_from(SCHEMA.names[2:])),
    cut=st.integers(1, 20),
    before=st.booleans(),
    kernel=st.sampled_from([None, choose_kernel().kernel]),
    small_bytes=st.sampled_from([0, 480]),
)
def test_the_log_is_that_of_single_appends(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    names: set[str],
    cut: int,
    before: bool,
    kernel: BatchKernel | None,
    small_bytes: int,
) -> None:
    root = tmp_path_factory.mktemp("run")
    chosen = pa.schema([field for field in SCHEMA if field.name in {"topic", "body", *names}])
    rows = [{name: row[name] for name in chosen.names} for row in rows]
    stores = [opened(root / name) for name in ("made", "single")]
    try:
        if before:
            for store in stores:
                one_by_one(store, [{"topic": "orders", "body": b"first"}])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "PIECE_ROWS", cut)
            patch.setattr(records, "SMALL_BYTES", small_bytes)
            patch.setattr(records, "SCAN_BYTES", 100 * cut)
            counts: dict[str, int] = {}
            for piece in made(pa.RecordBatch.from_pylist(rows, chosen), NOW_MS, 1000):
                append(stores[0], piece, counts, kernel)
        one_by_one(stores[1], rows)
        assert log_of(stores[0]) == log_of(stores[1])
        key = lambda row: row["topic"]  # noqa: E731
        assert counts == {
            topic: 1 + max(row.get("queueId") or 0 for row in group)
            for topic, group in itertools.groupby(sorted(rows, key=key), key)
        }
        for store in stores:
            store.set_confirm_offset(store.max_phy_offset)
            store.close()
        assert derived_of(root / "made") == derived_of(root / "single")
        again = [Store.open(HostDisk(root / name), CONFIG, RecordingTracer()) for name in ("made", "single")]
        found = [{t: [store.queue_range(t, q) for q in qs] for t, qs in store.queues().items()} for store in again]
        assert found[0] == found[1]
        for store in again:
            store.close()
    except BaseException:
        for store in stores:
            store.abandon()
        raise


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"topic": "a/b"}, "cannot write the topic 'a/b': brokers take no such name"),
        ({"topic": "a b"}, "cannot write the topic 'a b': brokers take no such name"),
        ({"topic": ""}, "cannot write a row whose topic or body is null"),
        ({"body": None}, "cannot write a row whose topic or body is null"),
        ({"body": b"x" * 1001}, "message of 1001 bytes for topic T: it exceeds maxMessageSize = 1000"),
        ({"queueId": -1}, "cannot write queueId = -1: it must be from 0 to 2147483647"),
        ({"flag": 2**31}, "cannot write flag = 2147483648: it must be from -2147483648"),
        ({"tags": "a\x02b"}, "cannot write the properties of a row of topic T: a property's name is empty or holds"),
        ({"tags": "x" * 32767}, "the properties of a row of topic T: they take 32773 bytes, and 32767 fit"),
        ({"properties": "[1"}, "cannot write the properties of a row of topic T: "),
        ({"properties": json.dumps({"a": "\0" * 600})}, "must neither end with a zero byte nor hold 512 of them"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    rows = [{"topic": "T", "body": b"x"}, {"topic": "T", "body": b"x", **row}]
    names = dict.fromkeys(name for row in rows for name in row)
    types = {field.name: field.type for field in SCHEMA} | {"flag": pa.int64()}
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, types[name]) for name in names]))
    with pytest.raises(UsageError) as caught:
        list(made(batch, NOW_MS, 1000))
    assert sentence in str(caught.value)


def test_keys_whose_elements_cannot_be_null_are_joined_too() -> None:
    """Spark's array('a', 'b') has such elements."""
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    rows = pa.RecordBatch.from_pylist(
        [{"topic": "T", "body": b"x", "keys": keys} for keys in (["a", "b"], [], ["c"])],
        pa.schema([("topic", pa.string()), ("body", pa.binary()), ("keys", kind)]),
    )
    (found,) = made(rows, NOW_MS, 1000)
    ends = [record[-9:] for record in found["record"].to_pylist()]
    assert ends[0] == b"KEYS\x01a b\x02"[-9:] and ends[2] == b"\x00\x07KEYS\x01c\x02"[-9:]


@given(st.lists(st.integers(0, 99), max_size=50), st.sampled_from([100, records.MAX_COUNTED + 1]))
def test_the_queues_that_occur_are_in_order(values: list[int], limit: int) -> None:
    found, places = records._groups(np.array(values, np.int64), limit)
    assert found.tolist() == sorted(set(values))
    assert [int(found[place]) for place in places] == values
