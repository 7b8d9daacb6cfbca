"""Hosts on one machine: network namespaces that hang on one bridge, and can be cut off from it.

Cutting a host takes its cable out of the bridge: packets vanish, no connection is closed, nobody is told.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rmqha.drill.error import NotHereError
from rmqha.drill.hosts.bad_cable import BadCable, plug

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
HUB = "hub"


class Namespaces:
    """A host per name besides HUB, where the bridge is. Use as a context manager: leaving it removes them all.

    Raises NotHereError with the reason if namespaces cannot be made here."""

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
    def spoiled(self, name: str, *, loss_per_mille: int, delay_ms: int) -> Iterator[BadCable]:
        """The host's cable is a bad one for as long as the block lasts."""
        port, inner, outer = (f"{kind}{self._names.index(name)}" for kind in ("port", "inner", "outer"))
        self._in(HUB, "link", "add", inner, "type", "veth", "peer", "name", outer)
        try:
            for device in (port, inner):
                # nobody but the host itself may answer for its addresses
                self._in(HUB, "link", "set", device, "arp", "off")
            for device in (inner, outer):
                self._in(HUB, "link", "set", device, "up")
            near, far = self.run(HUB, lambda: (plug(port), plug(inner)))
            with BadCable(near, far, loss_per_mille=loss_per_mille, delay_ms=delay_ms) as cable:
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
            raise NotHereError(
                f"`ip {' '.join(arguments)}` failed, so the network cannot be cut here "
                f"(root and iproute2 are needed): {said}"
            ) from None

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """The calling thread, and those that it starts, live in the namespace for as long as the block lasts."""
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
