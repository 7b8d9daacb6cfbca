"""Cost of a plain send, or of a message of a batch, to a broker, by commands and by each kernel: calls, and CPU of one
process without sockets.

Frames of one read go through a session to a master that is alone in its group; the queues and the index of keys follow.
Calls are counted exactly (`sys.setprofile`), from the parser to the answer; the CPU is the median of ROUNDS.

    python -m benchmarks.kernels.bench_kernel
"""

from __future__ import annotations

import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, cast

import trio

from benchmarks.figures import show
from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.kernel_choice import LIBRARY, load_kernel
from rmqha.host.net.session import Session, SessionHost
from rmqha.host.net.statistics import Statistics
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.broker.support import MAX_FRAME_BYTES, Broker, send_command

READ_COUNTS, BATCH_COUNTS = (1, 8, 64), (32, 1000)
BODY_BYTES, QUEUE_COUNT, SENDS, ROUNDS = 128, 4, 6400, 5


def read_of(count: int) -> bytes:
    """Frames of `count` sends, as one read brings them."""
    frames = []
    for number in range(count):
        properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        command = send_command("T", number % QUEUE_COUNT, b"x" * BODY_BYTES, i=properties, n="broker-a")
        command.opaque = number
        frames.append(encode_frame(command))
    return b"".join(frames)


def batch_of(count: int) -> bytes:
    """One frame of a batch."""
    parts = []
    for number in range(count):
        properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode()
        head = struct.pack(">i8xii", 22 + BODY_BYTES + len(properties), 0, BODY_BYTES)
        parts.append(head + b"x" * BODY_BYTES + struct.pack(">H", len(properties)) + properties)
    fields = send_command("T", 0, i=f"UNIQ_KEY\x01{count:032X}\x02WAIT\x01true\x02", m="true", n="broker-a").ext
    return encode_frame(Command(RequestCode.SEND_BATCH_MESSAGE, fields, b"".join(parts)))


class Reading:
    """A broker and one session; without a kernel all goes by commands."""

    def __init__(self, directory: Path, kernel: BatchKernel | None) -> None:
        sizes = {
            "max_message_size": 1 << 20,
            "mapped_file_size_commit_log": 1 << 26,
            "mapped_file_size_consume_queue": 6_000_000,
        }
        self.broker = Broker(directory, **sizes, max_hash_slot_num=1_000_000, max_index_num=4_000_000).start()
        self.broker.core.topics.put(TopicConfig("T", QUEUE_COUNT, QUEUE_COUNT))
        processor = self.broker.core.processor
        if kernel is not None:
            self.broker.core.send._kernel = self.broker.store.index.files._kernel = kernel
        fast_path, stream = None if kernel is None else processor, cast(trio.abc.Stream, object())
        host = SessionHost(Statistics(), MAX_FRAME_BYTES, fast_path=fast_path)
        self._session = Session(1, stream, "127.0.0.1:5", host)
        self._session._received = processor.received

    def read(self, data: bytes) -> None:
        self._session._unread = data
        self._session._handle_requests()
        self._session._take_queue()

    def follow(self) -> None:
        """Dispatch, and enter keys."""
        self.broker.core.driver.dispatch()
        while self.broker.store.index.build(64 * 1024):
            pass

    def cpu_us(self, data: bytes, count: int) -> float:
        """CPU of one send."""
        rounds = SENDS // count
        started = time.process_time()
        for _ in range(rounds):
            self.read(data)
            self.follow()
        return (time.process_time() - started) * 1e6 / (rounds * count)

    def calls(self, data: bytes) -> Counter[str]:
        found: Counter[str] = Counter()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            found[event] += 1

        sys.setprofile(note)
        self.read(data)
        sys.setprofile(None)
        self.follow()
        return found


def main() -> None:
    rows = []
    kernels: dict[str, BatchKernel | None] = {"commands": None, "kernel in Python": PythonKernel()}
    if LIBRARY.exists():
        kernels["native kernel"] = load_kernel()
    with tempfile.TemporaryDirectory() as scratch:
        ways = {name: Reading(Path(scratch) / name, kernel) for name, kernel in kernels.items()}
        reads = {f"sends: {count}": (count, read_of(count)) for count in READ_COUNTS}
        reads |= {f"a batch of {count}": (count, batch_of(count)) for count in BATCH_COUNTS}
        for words, (count, data) in reads.items():
            for name, way in ways.items():
                way.cpu_us(data, count)
                calls = way.calls(data)
                cpu_us = statistics.median(way.cpu_us(data, count) for _ in range(ROUNDS))
                per_send = {"Python calls": calls["call"] / count, "C calls": calls["c_call"] / count}
                rows.append({"in a read": words, "way": name, **per_send, "CPU us": cpu_us})
        for way in ways.values():
            way.broker.close()
    show("one plain message", rows)


if __name__ == "__main__":
    main()
