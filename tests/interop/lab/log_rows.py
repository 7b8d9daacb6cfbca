"""The rows of a store's log, held against what a Java consumer got from the broker that serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqha.scan.api import Decoding, RowFilter, open_store, read_store
from tests.interop.lab.lines import Place, fields
from tests.interop.lab.processes import Process

NUMBERS = (
    "physicalOffset",
    "storeSize",
    "bornTimestamp",
    "storeTimestamp",
    "sysFlag",
    "flag",
    "bodyCRC",
    "reconsumeTimes",
    "preparedTransactionOffset",
)
ORDER = (
    "topic",
    "physicalOffset",
    "storeSize",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "sysFlag",
    "flag",
    "bodyCRC",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "msgId",
    "keys",
    "tags",
    "properties",
)
"""As Consume.java prints them."""
ADDED = {"MIN_OFFSET", "MAX_OFFSET"}
"""By the client that pulls."""
COMPRESSED = 1
"""Bit of sysFlag that the client clears once it has decompressed the body."""


def check_rows(consumer: Process, store: Path, topic: str) -> int:
    """Every message that the consumer got is the log's row, field by field, those of inner batches too, and there is no
    other row of the topic; how many there are."""
    rows = of_log(store, topic)
    found = {place: of_java(*told) for place, told in fields(consumer).items()}
    assert found.keys() == rows.keys()
    differ = {place: (found[place], row) for place, row in rows.items() if found[place] != row}
    assert not differ, f"{len(differ)} of {len(rows)} differ, such as {next(iter(differ.items()))}"
    return len(rows)


def of_log(store: Path, topic: str) -> dict[Place, dict[str, Any]]:
    batches = read_store(open_store(str(store)), Decoding(properties_as="map"), RowFilter(frozenset([topic])))
    rows: dict[Place, dict[str, Any]] = {}
    for batch in batches:
        for name in ("bornTimestamp", "storeTimestamp"):
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, name, batch.column(place).cast(pa.timestamp("ms")).cast(pa.int64()))
        for row in batch.to_pylist():
            place = row["queueId"], row["queueOffset"]
            assert place not in rows, f"two rows for {place}"
            body, properties = hashlib.sha256(row["body"]).hexdigest(), dict(row["properties"])
            known = {name: row[name] for name in ORDER} | {"body": body, "properties": properties}
            rows[place] = known | {"sysFlag": row["sysFlag"] & ~COMPRESSED}
    return rows


def of_java(body: str, text: str) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(ORDER, text.split("\0"), strict=True)) | {"body": body}
    row |= {name: int(row[name]) for name in NUMBERS}
    row["properties"] = _properties(row["properties"])
    row["keys"] = [] if row["keys"] == "null" else row["keys"].split()
    row["tags"] = None if row["tags"] == "null" else row["tags"]
    return row | {"sysFlag": row["sysFlag"] & ~COMPRESSED}


def _properties(text: str) -> Mapping[str, str]:
    pairs = (piece.partition("\x01") for piece in text.split("\x02") if piece)
    return {name: value for name, _, value in pairs if name not in ADDED}
