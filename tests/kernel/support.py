"""Two brokers that get the same bytes: one answers plain sends by its kernel, the other all by commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.kernel_choice import LIBRARY, load_kernel
from rmqha.host.net.session import Session, SessionHost
from rmqha.host.net.statistics import Statistics
from rmqha.kernel.batch_kernel import BatchKernel, SendPart, SendRead
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from tests.broker.support import MAX_FRAME_BYTES, Broker, send_command

TOPICS = (
    TopicConfig("T", 4, 4),
    TopicConfig("Narrow", 1, 2),
    TopicConfig("%Odd|name_-", 3, 3),
    TopicConfig("L" * 200, 2, 2),
    TopicConfig("ReadOnly", 2, 2, perm=4),
    TopicConfig("Batches", 2, 2, attributes={"queue.type": "BatchCQ"}),
)
KERNELS = ("python", "native")
CRATE = Path(__file__).parents[2] / "native"
_OUT_OF_REACH = ("no matching package named", "failed to download", "failed to get `")
"""What cargo says of a crate that is neither here nor to be fetched; it says other words of a lock file that is old."""
DERIVED = ("commitlog", "consumequeue", "batchconsumequeue", "index")


def kernel_named(name: str) -> BatchKernel:
    """A new one. Where there is none and cargo cannot make it, what needs the native one is left out."""
    if name == "python":
        return PythonKernel()
    lack = "" if LIBRARY.exists() else lack_of_cargo()
    if lack:
        pytest.skip(f"no native kernel, and {lack}: that both kernels do the same is left out")
    return load_kernel()


@cache
def kernels() -> tuple[BatchKernel, ...]:
    """One in Python, and the native one where it is there or can be made: what compares a reference with each."""
    is_there = LIBRARY.exists() or not lack_of_cargo()
    return (PythonKernel(), load_kernel()) if is_there else (PythonKernel(),)


@cache
def lack_of_cargo(home: Path | None = None) -> str:
    """Why the crate cannot be built on this machine, in words: no cargo, or no way to the crates that it needs. "" if
    it can, and for every fault of the crate's own. `home` is another place of what cargo has downloaded, and nothing is
    downloaded then."""
    if shutil.which("cargo") is None:
        return "there is no cargo"
    away = {} if home is None else {"CARGO_HOME": str(home), "CARGO_NET_OFFLINE": "true"}
    found = subprocess.run(
        ["cargo", "fetch", "--locked"],
        cwd=CRATE,
        env={**os.environ, **away},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode and any(word in found.stderr for word in _OUT_OF_REACH):
        return "cargo has not the crates that it needs, and cannot fetch them"
    return ""


def one_read(data: bytes, at: int, max_count: int, born_address: bytes, born_port: int) -> SendRead:
    """What one connection has sent, from index `at` on."""
    return SendRead(data, [SendPart(at, len(data), max_count, born_address, born_port)])


class Fed:
    """A broker behind the session of one connection."""

    def __init__(self, broker: Broker, *, lean: bool, peer: str = "127.0.0.1:50000") -> None:
        self.broker = broker
        self.statistics = Statistics()
        self.taken_count = 0
        fast_path = self if lean else None
        stream = cast(trio.abc.Stream, object())
        self._session = Session(1, stream, peer, SessionHost(self.statistics, MAX_FRAME_BYTES, fast_path=fast_path))
        self._session._received = broker.core.processor.received

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        found = self.broker.core.processor.take(reads, max_count)
        self.taken_count += sum(count for _, count in found)
        return found

    def read(self, data: bytes) -> bytes:
        """Handle what one read has brought; the answers so far."""
        session = self._session
        session._unread = data
        session._handle_requests()
        while session._has_backlog:
            session._handle_requests()
        return session._take_queue()[0]

    def settle(self) -> bytes:
        """Do the work that is due; the answers of it."""
        self.broker.run()
        while self.broker.store.index.build(1 << 20):
            pass
        return self._session._take_queue()[0]


@contextmanager
def broker_on(directory: Path, **keys: Any) -> Iterator[Broker]:
    directory.mkdir(parents=True)
    broker = Broker(directory, **{"max_hash_slot_num": 64, "max_index_num": 4096, **keys}).start()
    try:
        for topic in TOPICS:
            broker.core.topics.put(topic)
        broker.ask(send_command())  # the log's first file is made by the usual way
        yield broker
    finally:
        if broker.open:
            broker.close()


def answers(data: bytes) -> list[bytes]:
    """The frames, in order of their request numbers: answers may come in any order."""
    frames: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        (command,) = FrameParser(MAX_FRAME_BYTES).feed(data[at:end])
        frames.append((command.opaque, data[at:end]))
        at = end
    return [frame for _, frame in sorted(frames)]


def decoded(data: bytes) -> list[Command]:
    return FrameParser(MAX_FRAME_BYTES).feed(data)


def files(root: Path, folders: Iterable[str] = DERIVED) -> dict[str, bytes]:
    """Content of the store's files, by their paths."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }
