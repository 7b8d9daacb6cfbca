"""Time without a byte on the connections that leadership hangs on, as the kernel tells it of each socket.

A heartbeat to a controller and an acknowledgement on the HA port each have a connection of their own, which an attack
does not touch; `INET_DIAG` tells how long ago data was last sent or received on it. So nothing is asked of the servers,
and the attack cannot slow down what it is measured with. A gap may be longer than it was seen by SAMPLE_S.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

SAMPLE_S = 0.02
_SOCK_DIAG_BY_FAMILY, _INET_DIAG_INFO, _ESTABLISHED = 20, 2, 1
_NLMSG_ERROR, _NLMSG_DONE, _REQUEST_DUMP = 2, 3, 0x301
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48s")
_PORTS = struct.Struct("!HH")
_PORTS_AT = 4
_INODE = struct.Struct("=I")
_INODE_AT = 68
_ATTRIBUTE = struct.Struct("=HH")
_TIMES: Final = struct.Struct("=IIII")
_TIMES_AT = 44
"""In tcp_info: ms since data was last sent, an acknowledgement was, data was received, an acknowledgement was."""
_ANSWER_BYTES = 72
BUFFER_BYTES = 1 << 18


class Link(NamedTuple):
    """A TCP connection of this machine, by one of its ends."""

    port: int
    peer_port: int


class Silence(NamedTuple):
    sent_ms: int
    """Since data was last sent."""
    received_ms: int
    inode: int
    """The socket's."""


def silences() -> dict[Link, Silence]:
    """Of both ends of each IPv4 connection. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4) as diag:
        asked = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED, b"")
        diag.send(_HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + asked)
        found: dict[Link, Silence] = {}
        while True:
            for kind, answer in _messages(diag.recv(BUFFER_BYTES)):
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel tells nothing of its sockets")
                port, peer_port = _PORTS.unpack_from(answer, _PORTS_AT)
                (inode,) = _INODE.unpack_from(answer, _INODE_AT)
                for name, value in _attributes(answer):
                    if name == _INET_DIAG_INFO:
                        sent_ms, _, received_ms, _ = _TIMES.unpack_from(value, _TIMES_AT)
                        found[Link(port, peer_port)] = Silence(sent_ms, received_ms, inode)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        size, kind, _, _, _ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : size]
        data = data[(size + 3) & ~3 :]


def _attributes(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = _ANSWER_BYTES
    while at + _ATTRIBUTE.size <= len(answer):
        size, name = _ATTRIBUTE.unpack_from(answer, at)
        yield name, answer[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3


def _inodes(pid: int) -> set[int]:
    """Of its sockets."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            kind, _, inode = entry.readlink().name.partition(":")
            if kind == "socket":
                found.add(int(inode.strip("[]")))
    return found


class Gaps:
    """The longest gaps from now on, looked for by a thread of its own. Only connections that are there now count: what
    the attacker opens later does not. One that ends is silent from then on."""

    def __init__(self, pids: Iterable[int], controller_port: int, ha_port: int) -> None:
        """`pids`: the brokers'."""
        inodes, there = set[int]().union(*map(_inodes, pids)), silences()
        ours = [link for link, silence in there.items() if silence.inode in inodes]
        self._beats = [link for link in ours if link.peer_port == controller_port]
        """The brokers' ends."""
        own = set(ours)
        self._acks = [link for link in ours if link.port == ha_port and Link(link.peer_port, link.port) in own]
        """The master's ends of those to other brokers: an attacker may have come already, and is soon thrown out."""
        assert self._beats and self._acks, "no broker is connected to the controller, or no slave to the master"
        self._last = dict.fromkeys((*self._beats, *self._acks), 0)
        self.beat_ms = self.ack_ms = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        now = silences()
        for link in self._beats:
            self.beat_ms = max(self.beat_ms, self._silence_ms(link, now[link].sent_ms if link in now else None))
        for link in self._acks:
            self.ack_ms = max(self.ack_ms, self._silence_ms(link, now[link].received_ms if link in now else None))

    def _silence_ms(self, link: Link, told_ms: int | None) -> int:
        self._last[link] = told_ms if told_ms is not None else self._last[link] + round(SAMPLE_S * 1000)
        return self._last[link]

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._look()
