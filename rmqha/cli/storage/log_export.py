"""`rmqha log export`: records into a file that appears only when it is complete. Parquet needs pyarrow. Control
plane."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any

from rmqha.cli.storage.log_record import body_of, json_line, to_json
from rmqha.model.error import UsageError
from rmqha.store.log.record import Record

ROWS_AT_ONCE = 5000


@contextmanager
def whole_file(target: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete and durable. UsageError if it exists and `force` is not
    given, if what exists is no file, or if it cannot be made."""
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is a directory, a device or a pipe, which no file may replace: name another file")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; say --force to replace it")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        out = temporary.open("xb")
    except OSError as error:
        raise UsageError(f"cannot write {temporary}: {error.strerror or error}") from None
    try:
        with out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def export_lines(records: Iterator[Record], target: Path, body_as: str, *, force: bool) -> int:
    """Write records as JSON lines. Returns their number."""
    count = 0
    with whole_file(target, force=force) as out:
        for record in records:
            out.write(json_line(record, body_as).encode() + b"\n")
            count += 1
    return count


def export_parquet(records: Iterator[Record], target: Path, body_as: str, *, force: bool) -> int:
    """Write records as Parquet rows, `body` as bytes. Returns their number."""
    if find_spec("pyarrow") is None:
        raise UsageError(
            f"Parquet needs pyarrow: run `{sys.executable} -m pip install 'rmqha[scan]'`, or use --format jsonl"
        )
    import pyarrow
    from pyarrow import parquet

    schema = _schema(pyarrow, with_body=body_as != "none")
    count = 0
    with whole_file(target, force=force) as out, parquet.ParquetWriter(out, schema) as writer:
        while rows := [_row(record, body_as) for record in islice(records, ROWS_AT_ONCE)]:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _row(record: Record, body_as: str) -> dict[str, Any]:
    value = to_json(record, "none")
    value["properties"] = list(value["properties"].items())
    if body_as != "none":
        value["body"] = body_of(record)[0]
    return value


def _schema(pyarrow: Any, *, with_body: bool) -> Any:
    text, long, integer = pyarrow.string(), pyarrow.int64(), pyarrow.int32()
    moment = pyarrow.timestamp("ms", tz="UTC")
    fields = [
        ("topic", text), ("queueId", integer), ("queueOffset", long), ("physicalOffset", long),
        ("storeSize", integer), ("storeTimestamp", moment), ("bornTimestamp", moment), ("msgId", text),
        ("offsetMsgId", text), ("keys", pyarrow.list_(text)), ("tags", text), ("bornHost", text),
        ("storeHost", text), ("flag", integer), ("sysFlag", integer), ("bodyCRC", long),
        ("reconsumeTimes", integer), ("preparedTransactionOffset", long),
        ("properties", pyarrow.map_(text, text)),
    ]  # fmt: skip
    return pyarrow.schema(fields + ([("body", pyarrow.binary())] if with_body else []))
