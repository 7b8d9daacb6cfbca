"""Rows of a DataFrame as messages: the columns that a writer takes, and what each becomes in a record."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from rmqha.model.error import UsageError
from rmqha.model.message import (
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_INNER_BATCH,
    encode_properties,
)
from rmqha.spark.options import SPARK_TYPES, plain_path, without_table_properties
from rmqha.store.config import StoreConfig

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "queueId": ("int", "bigint"),
    "keys": ("array<string>", "string"),
    "tags": ("string",),
    "uniqKey": ("string",),
    "properties": ("map<string,string>", "string"),
    "flag": ("int", "bigint"),
    "bornTimestamp": ("timestamp", "bigint"),
    "storeTimestamp": ("timestamp", "bigint"),
    "reconsumeTimes": ("int", "bigint"),
}
"""Types that each column may have; only topic and body must be there. Other columns that a read gives are made anew."""
MADE_ANEW = (
    "queueOffset",
    "physicalOffset",
    "storeSize",
    "sysFlag",
    "msgId",
    "offsetMsgId",
    "bornHost",
    "storeHost",
    "bodyCRC",
    "epoch",
    "brokerName",
    "preparedTransactionOffset",
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOOPBACK = (b"\x7f\x00\x00\x01", 0)


SIZES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
}
"""Options of a write, with RocketMQ's defaults: a broker opens a store only with the sizes that it was made with."""


def parse_write_options(given: Mapping[str, str]) -> tuple[str, StoreConfig]:
    """The directory and the sizes of its files. Raises UsageError naming the nearest option."""
    known = {name.lower(): name for name in ("path", *SIZES)}
    values: dict[str, str] = {}
    for name, value in without_table_properties(given).items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
            raise UsageError(f"unknown option {name} of a commitlog write; the nearest known one is {known[near]}")
        values[known[name.lower()]] = value
    if not values.get("path"):
        raise UsageError("commitlog needs a path to write to: save('/data/new-store')")
    path = plain_path(values["path"])
    if _SCHEME.match(path):
        raise UsageError(f"commitlog writes to a directory of this machine only, not to {path}: copy the store there")
    sizes: dict[str, Any] = {}
    for name, field in SIZES.items():
        if name in values:
            if not values[name].isdecimal() or not 0 < int(values[name]) < 2**40:
                raise UsageError(f"option {name} = {values[name]!r} must be a whole number above 0")
            sizes[field] = int(values[name])
    return path, replace(StoreConfig(), **sizes)


def written_as(kind: Any) -> str:
    """Spark's name of an Arrow type, as `check_schema` compares it."""
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_list(kind):
        return f"array<{written_as(kind.value_type)}>"  # however its elements are called, null or not
    return "map<string,string>" if pa.types.is_map(kind) else SPARK_TYPES.get(kind, str(kind))


class WriterTerms(NamedTuple):
    """Words of a writer's error sentences: `rocketmq` `send`s, a column is `sent`."""

    name: str
    verb: str
    participle: str


COMMITLOG = WriterTerms("commitlog", "write", "written")


def check_schema(
    columns: Mapping[str, str], words: WriterTerms = COMMITLOG, passed_over: Collection[str] = MADE_ANEW
) -> None:
    """Raise UsageError, one sentence, unless a DataFrame with these columns and types can be written. Columns that are
    `passed_over` may be there and are ignored."""
    name_of, verb, participle = words
    for name, kind in columns.items():
        if name in passed_over:
            continue
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.0)[0]
            raise UsageError(f"{name_of} cannot {verb} a column {name}; the nearest one is {near}")
        if kind not in COLUMNS[name]:
            kinds = " or ".join(COLUMNS[name])
            raise UsageError(f"{name_of}'s column {name} is {participle} from {kinds}, not from {kind}")
    for name in ("topic", "body"):
        if name not in columns:
            raise UsageError(f"{name_of} needs a column {name} to {verb}")


def properties_of(row: Mapping[str, Any]) -> bytes:
    """The properties of a row, encoded as in a record. UsageError for what cannot be properties."""
    given = row.get("properties") or {}
    try:
        found = dict(json.loads(given) if isinstance(given, str) else given)
        is_batch = "properties" not in row and int(row.get("sysFlag") or 0) & SYS_FLAG_INNER_BATCH
        if is_batch or PROPERTY_INNER_NUM in found:
            raise UsageError(
                f"commitlog cannot write an inner batch of topic {row['topic']}, one row that holds many messages: "
                "read it with innerBatches=explode (and the column properties)"
            )
        keys = row.get("keys")
        if keys:
            found[PROPERTY_KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        for name, column in ((PROPERTY_TAGS, "tags"), (PROPERTY_UNIQUE_KEY, "uniqKey")):
            if row.get(column):
                found[name] = row[column]
        data = encode_properties({str(name): str(value) for name, value in found.items() if value is not None})
    except (TypeError, ValueError) as error:
        raise UsageError(f"commitlog cannot write the properties of a row of topic {row['topic']}: {error}") from None
    return data
