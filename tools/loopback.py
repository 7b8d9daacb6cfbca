"""Writes down what processes of this machine say to each other over IPv4 loopback. Linux, as root.

TCP is put together by sequence numbers; a byte that was missed is an error, never a gap.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from dataclasses import dataclass, field

_ALL_PROTOCOLS = 3
_PACKET_OUTGOING = 4
_SO_RCVBUFFORCE = 33
_RECEIVE_BYTES = 64 * 1024 * 1024
_TCP = 6
_SYN = 2
_POLL_S = 0.1


@dataclass(slots=True)
class Stream:
    """One direction of a connection: ports of who sends and who receives, and what was sent."""

    source: int
    target: int
    data: bytearray = field(default_factory=bytearray)
    first: int | None = None
    early: dict[int, bytes] = field(default_factory=dict)
    """Segments behind one that has not been seen yet, by their place."""

    def add(self, sequence: int, payload: bytes) -> None:
        if self.first is None:
            self.first = sequence
        self.early[(sequence - self.first) % 2**32] = payload
        while (place := next((at for at in self.early if at <= len(self.data)), None)) is not None:
            self.data += self.early.pop(place)[len(self.data) - place :]


class Loopback:
    """A context manager: listens while the block runs. `streams` in the order in which they began."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int, int], Stream] = {}
        self._generation: dict[tuple[int, int], int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Loopback:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.bind(("lo", _ALL_PROTOCOLS))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    @property
    def streams(self) -> list[Stream]:
        """Raises ValueError if a part of one was not seen."""
        found = list(self._streams.values())
        for stream in found:
            if stream.early:
                raise ValueError(f"bytes from port {stream.source} to {stream.target} were missed")
        return [stream for stream in found if stream.data]

    def _listen(self) -> None:
        while not self._ended.is_set():
            if select.select([self._socket], [], [], _POLL_S)[0]:
                packet, address = self._socket.recvfrom(128 * 1024)
                if address[2] == _PACKET_OUTGOING:  # each comes twice
                    self._take(packet)

    def _take(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return
        head = (packet[0] & 15) * 4
        source, target, sequence, _, offset, flags = struct.unpack_from(">HHIIBB", packet, head)
        pair = source, target
        if flags & _SYN:
            self._generation[pair] = self._generation.get(pair, 0) + 1
        key = *pair, self._generation.get(pair, 0)
        stream = self._streams.setdefault(key, Stream(*pair))
        if flags & _SYN:
            stream.first = (sequence + 1) % 2**32
        payload = packet[head + (offset >> 4) * 4 : struct.unpack_from(">H", packet, 2)[0] or len(packet)]
        if payload:
            stream.add(sequence, payload)
