"""A cable that loses and delays: a thread takes every frame from one network device and gives it to another. netem
would do the same, where the kernel has it; packet sockets are everywhere.

Frames pass with the kernel's note of what is still to be done to them (checksum, segmentation): what one device leaves
to the hardware, the other one does.
"""

from __future__ import annotations

import heapq
import os
import select
import socket
import threading
import time
from random import Random
from types import TracebackType

from rmqha.drill.error import DrillError, NotHereError

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
"""Numbers of linux/if_packet.h."""
FRAME_BYTES = 10 + 14 + 4 + 64 * 1024
BUFFER_BYTES = 4 * 1024 * 1024


def plug(device: str) -> socket.socket:
    """Takes and gives the frames of a device of the calling thread's network namespace. Raises NotHereError."""
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setblocking(False)
        made.bind((device, ETH_P_ALL))
    except OSError as error:
        raise NotHereError(
            f"frames cannot be lost or delayed here (root and packet sockets are needed): {error}"
        ) from None
    return made


class BadCable:
    """Between two plugs, which it closes. Each frame is lost with `loss_per_mille`; the others take `delay_ms` on the
    average, from half of it to half as much again, and overtake each other. Use as a context manager."""

    def __init__(self, near: socket.socket, far: socket.socket, *, loss_per_mille: int, delay_ms: int) -> None:
        self._near, self._far = near, far
        self._loss_per_mille = loss_per_mille
        self._delay_s = delay_ms / 1000
        self._random = Random()
        self._under_way: list[tuple[float, int, socket.socket, bytes]] = []
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run, name="bad cable")
        self._error: OSError | None = None
        self.carried_count = self.lost_count = 0

    def __enter__(self) -> BadCable:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._near.close()
        self._far.close()
        if self._error is not None:
            raise DrillError(f"the bad cable broke: {self._error}") from self._error

    def _run(self) -> None:
        try:
            self._carry()
        except OSError as error:
            self._error = error

    def _carry(self) -> None:
        other = {self._near.fileno(): self._far, self._far.fileno(): self._near}
        source = {self._near.fileno(): self._near, self._far.fileno(): self._far}
        with select.epoll() as epoll:
            for handle in (*source, self._stop):
                epoll.register(handle, select.EPOLLIN)
            while True:
                ready = [handle for handle, _ in epoll.poll(self._wait_s())]
                if self._stop in ready:
                    return
                for handle in ready:
                    self._take(source[handle], other[handle])
                self._give()

    def _wait_s(self) -> float | None:
        return max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None

    def _take(self, source: socket.socket, target: socket.socket) -> None:
        while True:
            try:
                frame = source.recv(FRAME_BYTES)
            except BlockingIOError:
                return
            if self._random.randrange(1000) < self._loss_per_mille:
                self.lost_count += 1
                continue
            due = time.monotonic() + self._delay_s * self._random.uniform(0.5, 1.5)
            self.carried_count += 1
            heapq.heappush(self._under_way, (due, self.carried_count, target, frame))

    def _give(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            *_, target, frame = heapq.heappop(self._under_way)
            try:
                target.send(frame)
            except OSError:
                self.lost_count += 1  # a device that is down, or full: so do cables
