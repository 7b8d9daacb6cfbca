"""What the store's tests share: golden directories, messages, a tracer that remembers, a small store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqha.port import Disk
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import Host, NewMessage, decode
from rmqha.store.store import Store
from tests.golden import reader
from tests.support.tracer import RecordingTracer

HOST: Host = (b"\x7f\x00\x00\x01", 10911)
SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=1600,
    mapper_file_size_batch_consume_queue=46 * 20,
    max_message_size=3000,
    max_hash_slot_num=8,
    max_index_num=24,
)
GOLD = StoreConfig(
    mapped_file_size_commit_log=1024 * 1024,
    mapped_file_size_consume_queue=1000,
    mapper_file_size_batch_consume_queue=4600,
    max_hash_slot_num=500,
    max_index_num=200,
)
MINI = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=200, max_hash_slot_num=50, max_index_num=40
)


def unpack(archive: str, target: Path) -> Path:
    """Extract tests/golden/store/<archive>.tar.zst; returns `target`."""
    return reader.unpack(f"store/{archive}", target)


def message(number: int = 0, *, topic: str = "T", queue_id: int = 0, body: bytes = b"", **fields: Any) -> NewMessage:
    """A message that says its number."""
    values: dict[str, Any] = {
        "properties": b"KEYS\x01%d\x02" % number,
        "born_at_ms": number,
        "born_host": HOST,
        "store_host": HOST,
    }
    return NewMessage(topic=topic, queue_id=queue_id, body=body or b"body-%d" % number, **(values | fields))


def sim_disk(seed: int = 1) -> SimDisk:
    return SimDisk(SimPrng(seed))


def open_store(disk: Disk, config: StoreConfig = SMALL, tracer: RecordingTracer | None = None) -> Store:
    return Store.open(disk, config, tracer or RecordingTracer(), process_id=4711)


def commit_all(store: Store) -> None:
    """As a sole member of its set would: confirm the end, dispatch everything."""
    store.set_confirm_offset(store.max_phy_offset)
    while store.dispatch(1 << 20):
        pass


def log_bytes(store: Store) -> bytes:
    """Everything in the log."""
    parts, at = [], store.min_phy_offset
    while view := store.view(at, 1 << 30):
        parts.append(bytes(view))
        at = type(at)(at + len(view))
    return b"".join(parts)


def bodies(store: Store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    low, high = store.queue_range(topic, queue_id)
    found: list[bytes] = []
    while low < high:
        result = store.pull(topic, queue_id, low, 1000, 1 << 20)
        found += [bytes(decode(view).body) for view in result.records]
        low = result.next_begin_offset
    return found


def filled(disk: SimDisk, count: int = 12) -> Store:
    store = open_store(disk)
    for number in range(count):
        store.append(message(number, queue_id=number % 2, body=b"z" * 500 + b"%d" % number), number)
    return store


class ForgetfulDisk(SimDisk):
    """A failed sync is an error once, and the system calls the pages clean: what they hold is in its cache only, until
    it is written again (Linux)."""

    def step(self, kind: str, size_bytes: int = 0, *, grow: bool = False) -> int | None:
        try:
            return super().step(kind, size_bytes, grow=grow)
        except OSError:
            if kind == "sync":
                for file in self._files.values():
                    file.dirty.clear()
            raise
