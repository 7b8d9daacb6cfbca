"""Plain sends over bare sockets, many on their way: load whose rate the client's own work does not bound."""

from __future__ import annotations

import os
import selectors
import socket
import time

from benchmarks.starts.bench_catchup import cpu_seconds
from rmqha.model.code import RequestCode
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.interop.lab.lab import Node

CONNECTIONS = 8
UNDER_WAY = 8
"""For each connection."""
WARM_UP_S = 10.0
TOPIC = "Acks"
QUEUE_COUNT = 4
READ_BYTES = 1 << 16


def send_frame(body: bytes, queue_id: int) -> bytes:
    """One message to TOPIC, which is made by it if it has to."""
    fields = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": str(QUEUE_COUNT), "e": str(queue_id), "f": "0", "g": "1"}
    more = {"h": "0", "i": f"UNIQ_KEY\x01{'0' * 32}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false"}
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, {**fields, **more}, body))


class Connection:
    """Keeps UNDER_WAY requests of the same frame on their way."""

    def __init__(self, address: str, body: bytes, queue_id: int) -> None:
        self._frame = send_frame(body, queue_id)
        self.socket = socket.create_connection(parse_address(address), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting = bytearray()
        self.count = self.busy_count = 0

    def start(self) -> None:
        self.socket.sendall(self._frame * UNDER_WAY)

    def readable(self) -> None:
        """Count the answers that are whole, and send as many again."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the broker closed the connection")
        self._waiting += data
        at = whole = 0
        while len(self._waiting) - at >= 8:
            end = at + 4 + int.from_bytes(self._waiting[at : at + 4], "big")
            if end > len(self._waiting):
                break
            if self._waiting.find(b'"code":2,', at, end) >= 0:
                self.busy_count += 1
            elif self._waiting.find(b'"code":0,', at, end) >= 0:
                self.count += 1
            else:
                raise RuntimeError(f"refused: {bytes(self._waiting[at:end])!r}")
            at = end
            whole += 1
        del self._waiting[:at]
        if whole:
            self.socket.sendall(self._frame * whole)


def rate(
    master: Node, brokers: list[Node], size_bytes: int, seconds: float, warm_up_s: float = WARM_UP_S
) -> dict[str, float]:
    """Acknowledged a second, and microseconds of CPU for each by the brokers together."""
    body = os.urandom(size_bytes)
    connections = [Connection(master.address, body, number % QUEUE_COUNT) for number in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.start()
    counted, cpu_before = 0, 0.0
    began_at, until_at = time.perf_counter(), time.perf_counter() + warm_up_s + seconds
    measured_at = 0.0
    while (now := time.perf_counter()) < until_at:
        if not measured_at and now >= began_at + warm_up_s:
            measured_at = now
            counted = sum(item.count for item in connections)
            cpu_before = sum(map(cpu_seconds, brokers))
        for key, _ in selector.select(1):
            key.data.readable()
    done = sum(item.count for item in connections) - counted
    cpu = sum(map(cpu_seconds, brokers)) - cpu_before
    for connection in connections:
        connection.socket.close()
    busy = sum(item.busy_count for item in connections)
    return {"per second": done / (now - measured_at), "cpu us": cpu / done * 1e6, "busy": busy}
