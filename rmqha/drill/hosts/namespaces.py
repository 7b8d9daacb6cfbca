"""Hosts on one machine: network namespaces that hang on one bridge, and can be cut off from it.

Cutting a host takes its cable out of the bridge: packets vanish, no connection is closed, no process is told.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TypeVar

from rmqha.drill.error import DrillError, FaultUnavailableError

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
HUB = "hub"


class Namespaces:
    """Network namespaces: a host per name besides HUB, where the bridge is. Use as a context manager: leaving it
    removes them all.

    Raises FaultUnavailableError with the reason if namespaces cannot be made here."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = (HUB, *names)
        self._prefix = f"rmqha{os.getpid()}-"

    def address(self, name: str) -> str:
        return f"10.77.0.{self._names.index(name) + 1}"

    def __enter__(self) -> Namespaces:
        try:
            for name in self._names:
                self._ip("netns", "add", self._prefix + name)
                self._in(name, "link", "set", "lo", "up")
            self._in(HUB, "link", "add", "bridge", "type", "bridge")
            self._in(HUB, "addr", "add", f"{self.address(HUB)}/24", "dev", "bridge")
            self._in(HUB, "link", "set", "bridge", "up")
            for name in self._names[1:]:
                self._cable(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _cable(self, name: str) -> None:
        port = self._port(name)
        peer = ["peer", "name", "eth0", "netns", self._prefix + name]
        self._in(HUB, "link", "add", port, "type", "veth", *peer)
        self._in(name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self._in(name, "link", "set", "eth0", "up")
        self._in(HUB, "link", "set", port, "up")
        self.join(name)

    def _port(self, name: str) -> str:
        return f"port{self._names.index(name)}"

    def cut(self, name: str) -> None:
        self._in(HUB, "link", "set", self._port(name), "nomaster")

    def join(self, name: str) -> None:
        self._in(HUB, "link", "set", self._port(name), "master", "bridge")

    @contextmanager
    def spoiled(self, name: str, *, loss_per_mille: int, delay_ms: int) -> Iterator[LossyCable]:
        """Replace the host's cable by a bad one for as long as the block lasts."""
        port, inner, outer = (f"{kind}{self._names.index(name)}" for kind in ("port", "inner", "outer"))
        self._in(HUB, "link", "add", inner, "type", "veth", "peer", "name", outer)
        try:
            for device in (port, inner):
                # nobody but the host itself may answer for its addresses
                self._in(HUB, "link", "set", device, "arp", "off")
            for device in (inner, outer):
                self._in(HUB, "link", "set", device, "up")
            near, far = self.run(HUB, lambda: (plug(port), plug(inner)))
            with LossyCable(near, far, loss_per_mille=loss_per_mille, delay_ms=delay_ms) as cable:
                self.cut(name)
                self._in(HUB, "link", "set", outer, "master", "bridge")
                yield cable
        finally:
            self._in(HUB, "link", "del", inner)
            self._in(HUB, "link", "set", port, "arp", "on")
            self.join(name)

    def _remove(self) -> None:
        for made in Path("/run/netns").glob(f"{self._prefix}*"):
            self._ip("netns", "del", made.name)

    def _in(self, name: str, *arguments: str) -> None:
        self._ip("-n", self._prefix + name, *arguments)

    def _ip(self, *arguments: str) -> None:
        try:
            subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise FaultUnavailableError(
                f"`ip {' '.join(arguments)}` failed, so the network cannot be cut here "
                f"(root and iproute2 are needed): {said}"
            ) from None

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Move the calling thread, and those that it starts, into the namespace for as long as the block lasts."""
        handle = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter(self._prefix + name)
            try:
                yield
            finally:
                _enter(Path(f"/proc/self/fd/{handle}"))
        finally:
            os.close(handle)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread of its own that lives in the namespace; what it starts lives there too."""
        results: list[T] = []
        errors: list[BaseException] = []

        def body() -> None:
            try:
                enter(self._prefix + name)
                results.append(work())
            except BaseException as error:  # noqa: BLE001 (raised again below)
                errors.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]


def enter(namespace: str) -> None:
    """Move the calling thread, and only it, into a named network namespace."""
    _enter(Path(f"/run/netns/{namespace}"))


def _enter(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(handle)


# --- A cable that loses and delays ------------------------------------------------------------------------------------
# Frames pass with the kernel's note of what is still to be done to them (checksum, segmentation): what one device
# leaves to the hardware, the other one does.

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
"""Numbers of linux/if_packet.h."""
FRAME_BYTES = 10 + 14 + 4 + 64 * 1024
BUFFER_BYTES = 4 * 1024 * 1024


def plug(device: str) -> socket.socket:
    """A raw socket on a device of the calling thread's network namespace. Raises FaultUnavailableError."""
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setblocking(False)
        made.bind((device, ETH_P_ALL))
    except OSError as error:
        raise FaultUnavailableError(
            f"frames cannot be lost or delayed here (root and packet sockets are needed): {error}"
        ) from None
    return made


class LossyCable:
    """A cable between two raw sockets, which it closes, that loses and delays frames. Each frame is lost with
    `loss_per_mille`; the others take `delay_ms` on average, from half of it to one and a half times as much, and may
    overtake each other. Use as a context manager."""

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

    def __enter__(self) -> LossyCable:
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
