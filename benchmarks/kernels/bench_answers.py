"""What it costs to write a pull's 32 records from the mapped log to a socket: joined, or gathered as they lie.

CPU of the writing process for each record, over a socket pair. "In a row" is the best case for gathering: all records
are neighbours in the log, one view holds them. A pull itself, from frame to frame, costs some 2.5 µs a record.

    python benchmarks/kernels/bench_answers.py
"""

from __future__ import annotations

import mmap
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

COUNT, PULLS, ROUNDS = 32, 1500, 5
LOG_BYTES, BUFFER_BYTES = 64 << 20, 4 << 20
HEAD = bytes(300)


def ways(fd: int) -> dict[str, Callable[[Sequence[memoryview]], object]]:
    return {
        "joined twice (body, then frame: what is done)": lambda views: os.write(fd, b"".join((HEAD, b"".join(views)))),
        "joined once": lambda views: os.write(fd, b"".join((HEAD, *views))),
        "gathered (writev), apart in the log": lambda views: os.writev(fd, (HEAD, *views)),
        "gathered (writev), in a row": lambda views: os.writev(fd, (HEAD, *views)),
    }


def drain(end: socket.socket, left: int) -> None:
    while left > 0:
        left -= len(end.recv(1 << 20))


def measure(size: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(LOG_BYTES)
        log = memoryview(mmap.mmap(file.fileno(), LOG_BYTES))
        log[:] = os.urandom(1 << 20) * 64
        writer, reader = socket.socketpair()
        with writer, reader:
            for end in (writer, reader):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            found: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name, write in ways(writer.fileno()).items():
                    used_ns = 0
                    for pull in range(PULLS):
                        first = pull * COUNT * (size + 200) % (LOG_BYTES // 2)
                        views = [log[first + place * (size + 200) :][:size] for place in range(COUNT)]
                        if name.endswith("row"):
                            views = [log[first : first + COUNT * size]]
                        began_ns = time.process_time_ns()
                        write(views)
                        used_ns += time.process_time_ns() - began_ns
                        drain(reader, len(HEAD) + size * COUNT)
                    found.setdefault(name, []).append(used_ns / PULLS / COUNT)
            for name, each in found.items():
                print(f"{size:6} B  {name:48} {statistics.median(each):5.0f} ns ({min(each):.0f}-{max(each):.0f})")


if __name__ == "__main__":
    for size in (128, 1024, 4096):
        measure(size)
