"""Stores that are not on this machine: the same rows by fsspec's addresses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import Decoding, Interval, RowFilter, open_store, prune, read_store
from rmqha.scan.storage import FsspecStorage, storage_of
from tests.scan.test_api import rows_of
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack


@pytest.fixture
def address() -> Iterator[str]:
    """An empty place in memory."""
    found = f"memory://{uuid.uuid4().hex}/broker-a"
    yield found
    fsspec.filesystem("memory").rm(found.rpartition("/")[0], recursive=True)


def upload(root: Path, address: str) -> str:
    fsspec.filesystem("memory").put(str(root), address, recursive=True)
    return address


def test_a_golden_store_reads_the_same(tmp_path: Path, address: str) -> None:
    root = unpack("n0-killed", tmp_path) / "n0-killed"
    assert rows_of(upload(root, address)) == rows_of(root)
    assert open_store(address).end_offset == open_store(str(root)).end_offset
    assert open_store(f"file://{root}").broker_name == "gold-a"


def test_filters_cut_there_too(tmp_path: Path, address: str) -> None:
    writer = LogWriter(tmp_path, 1024 * 1024)
    for index in range(3000):
        writer.append(Message(body=b"x" * 900, queue_offset=index, stored_at_ms=index * 1000))
    view = open_store(upload(writer.write(), address))
    rows = RowFilter().with_interval("storeTimestamp", Interval(1_000_000, 1_099_999))
    part = prune(view, rows, 0)
    assert part.end_offset - part.min_offset < 800_000
    batches = read_store(view, Decoding(("queueOffset",)), rows, timestamp_slack_ms=0)
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(1000, 1100))


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match=f"{address}: no such directory"):
        open_store(address)
    writer = LogWriter(tmp_path)
    writer.append(Message())
    upload(writer.write(), address)
    with pytest.raises(UsageError, match=f"is not a store, .* did you mean {address.rpartition('/')[0]}"):
        fsspec.filesystem("memory").mv(address, address.replace("broker-a", "store"), recursive=True)
        open_store(address.rpartition("/")[0])
    moved = address.replace("broker-a", "store")
    view = open_store(moved)
    fsspec.filesystem("memory").rm(view.files[0].path)
    with pytest.raises(StoreError, match="was removed while it was read"):
        list(read_store(view))
    with pytest.raises(UsageError, match="nosuch://bucket/a cannot be opened: "):
        storage_of("nosuch://bucket/a")


class ListsNames(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists names without sizes, as fsspec's HTTP does; `heads`: what is asked about one file tells its size."""

    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 - the base class keeps its files so
    heads = True

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(path, detail=True, **options)
        return [{**item, "size": None} for item in found] if detail else [item["name"] for item in found]

    def info(self, path: str, **options: Any) -> Any:
        found = super().info(path, **options)
        return found if self.heads else {**found, "size": None}


def test_sizes_that_a_listing_does_not_tell_are_asked_for() -> None:
    files = ListsNames()
    files.pipe({"/a/commitlog/0": b"x" * 4096, "/a/commitlog/1": b""})
    storage = FsspecStorage(files)
    assert sorted(storage.entries("/a/commitlog") or ()) == [("0", 4096), ("1", 0)]
    assert storage.entries("/a") == [("commitlog", None)]
    files.heads = False
    with pytest.raises(StoreError, match=r"^/a/commitlog/[01] cannot be read: its server does not tell its size$"):
        storage.entries("/a/commitlog")
