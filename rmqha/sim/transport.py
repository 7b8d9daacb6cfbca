"""Connections between named hosts in virtual time: what TCP gives, and what faults leave of it. Implements no port of
its own; simulated shells use it where host shells use sockets.

Bytes arrive in order or not at all. While a direction is blocked they wait, as retransmissions would, and arrive after
the block ends. A killed process's peers are told (the kernel sends the FIN); after a power loss they are told only when
the host is up again and refuses, or when their own patience ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Protocol

from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler


class Endpoint(Protocol):
    """One process's side of its connections."""

    def accepted(self, conn: Connection, port: str) -> None: ...

    def received(self, conn: Connection, data: bytes) -> None: ...

    def closed(self, conn: Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of every link, in ms; a slow link is given its own."""

    min_ms: int = 0
    max_ms: int = 1


class Connection:
    """One side. `peer_host` names the other end's host."""

    __slots__ = (
        "_transport",
        "announced",
        "draws",
        "host",
        "is_open",
        "is_under_way",
        "link",
        "number",
        "other",
        "owner",
        "peer_host",
        "queue",
    )

    def __init__(self, transport: Transport, number: int, host: str, peer_host: str, owner: Endpoint) -> None:
        self._transport = transport
        self.number = number
        self.host = host
        self.peer_host = peer_host
        self.link = (host, peer_host)
        self.owner = owner
        self.other: Connection | None = None
        self.queue: list[bytes | None] = []
        """Bytes that have been sent and have not arrived; None is the end."""
        self.is_under_way = False
        """True if a segment is under way: one at a time, which keeps the order."""
        self.draws: SimPrng | None = None
        """Random numbers of its link, from the first segment on."""
        self.is_open = True
        self.announced = True
        """False while the dialing side has not been told yet that it is connected; nothing reaches it before."""

    def send(self, data: bytes) -> None:
        """Write into the socket's buffer: never fails, may never arrive."""
        if self.is_open:
            self._transport.deliver(self, data)

    def arrive(self) -> None:
        self._transport.arrive(self)

    def close(self) -> None:
        """Orderly: what was sent before still arrives first. No `closed` follows on this side."""
        if self.is_open:
            self.is_open = False
            self._transport.forget(self)
            self._transport.deliver(self, None)


class Transport:
    def __init__(self, scheduler: Scheduler, prng: SimPrng, delays: Delays | None = None) -> None:
        self._scheduler = scheduler
        self._prng = prng
        self._draws: dict[tuple[str, str], SimPrng] = {}
        self._delays = delays or Delays()
        self._slow: dict[tuple[str, str], Delays] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._held: dict[int, tuple[int, tuple[str, str]]] = {}
        """By connection: until when, and its link."""
        self._listeners: dict[str, tuple[str, Endpoint]] = {}
        self._connections: dict[int, Connection] = {}
        self._next_number = 1
        self.dial_listeners: list[Callable[[str, str], None]] = []
        """Called with source and target of every dial."""
        self.split_per_mille = 0
        """Chance that what arrives is cut at any byte, and its rest comes later."""

    # --- hosts ------------------------------------------------------------------------------------------------------
    def listen(self, host: str, address: str, owner: Endpoint) -> None:
        self._listeners[address] = (host, owner)

    def stop_process(self, host: str) -> None:
        """kill -9: listeners go, the kernel closes every connection."""
        self._drop_listeners(host)
        for conn in self._of(host):
            conn.close()

    def power_off(self, host: str) -> None:
        """The host is gone without a word: peers go on believing in their connections."""
        self._drop_listeners(host)
        for conn in self._of(host):
            conn.is_open = False
            self.forget(conn)

    def power_on(self, host: str) -> None:
        """Half-open connections to the host are reset as soon as a packet of theirs reaches it."""
        for conn in [item for item in self._connections.values() if item.peer_host == host]:
            other = conn.other
            if other is None or not (other.is_open or other.number in self._held):
                self._reset(conn)
            elif not other.is_open and None not in other.queue:
                # the host lost its power while this stood still: what it had sent may arrive, and the reset behind it;
                # a process that was killed has sent its end already
                self.deliver(other, None)

    def _drop_listeners(self, host: str) -> None:
        self._listeners = {address: item for address, item in self._listeners.items() if item[0] != host}

    def _of(self, host: str) -> list[Connection]:
        return [conn for conn in self._connections.values() if conn.host == host]

    def _reset(self, conn: Connection) -> None:
        def gone() -> None:
            if conn.is_open:
                conn.is_open = False
                self.forget(conn)
                if conn.announced:
                    conn.owner.closed(conn)

        self._scheduler.after(self._delay(conn.peer_host, conn.host), gone)

    # --- links ------------------------------------------------------------------------------------------------------
    def block(self, source: str, target: str) -> None:
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Unblock a link: what waited sets out again within 200 ms, as a retransmission does."""
        self._blocked.discard((source, target))

    def slow_down(self, source: str, target: str, delays: Delays) -> None:
        self._slow[source, target] = delays

    def open_connections(self) -> list[Connection]:
        """Sides that may still send, the oldest first."""
        return [conn for _, conn in sorted(self._connections.items()) if conn.is_open]

    def hold(self, conn: Connection, duration_ms: int) -> None:
        """Hold what `conn` sends for so long, its end too; other connections between the same hosts go on. So a request
        may arrive after its sender has died, started again and asked anew."""
        self._held[conn.number] = self._scheduler.now_ms + duration_ms, conn.link

    def _held_for_ms(self, conn: Connection) -> int:
        held = self._held.get(conn.number)
        return 0 if held is None else held[0] - self._scheduler.now_ms

    def give_up(self, conn: Connection) -> None:
        """Let `conn`'s own side take it for broken; what it sent may still arrive, even after what its next connection
        brings."""
        if conn.is_open and conn.announced:
            conn.close()
            conn.owner.closed(conn)

    def break_off(self, conn: Connection, draws: SimPrng) -> None:
        """Reset `conn`: its own side is told now; a chance part of what it had sent still arrives, then the end."""
        queue = conn.queue
        sent = b"".join(piece for piece in queue if piece is not None)
        arriving = sent[: draws.below(len(sent) + 1)]
        queue[:] = [arriving] if arriving else []
        self._held.pop(conn.number, None)
        self.give_up(conn)

    def heal(self) -> None:
        """No link is blocked or slow, no connection held; what waited sets out now."""
        self._blocked.clear()
        self._slow.clear()
        self._held.clear()
        for conn in self._connections.values():
            self._pump(conn)

    def is_disturbed(self, hosts: Container[str]) -> bool:
        """Some link between two of `hosts` is blocked or slow, or some connection held."""
        if not (self._blocked or self._slow or self._held):
            return False
        now_ms = self._scheduler.now_ms
        return (
            any(source in hosts and target in hosts for source, target in self._blocked)
            or any(source in hosts and target in hosts for source, target in self._slow)
            or any(
                link[0] in hosts and link[1] in hosts and now_ms < until_ms for until_ms, link in self._held.values()
            )
        )

    def under_way(self, hosts: Container[str]) -> Iterator[tuple[tuple[str, str], bytes]]:
        """Link and bytes of what has been sent to `hosts` and may still arrive, in whole frames: nothing where what
        arrives is cut."""
        for _, target in sorted(self._connections.items()) if not self.split_per_mille else ():
            source = target.other
            if target.host in hosts and target.is_open and source is not None and source.queue:
                yield source.link, b"".join(piece for piece in source.queue if piece is not None)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def _delay(self, source: str, target: str) -> int:
        return self._draw_delay((source, target), self._draws_of((source, target)))

    def _draws_of(self, link: tuple[str, str]) -> SimPrng:
        draws = self._draws.get(link)
        if draws is None:
            draws = self._draws[link] = self._prng.child(f"{link[0]}>{link[1]}")
        return draws

    def _draw_delay(self, link: tuple[str, str], draws: SimPrng) -> int:
        delays = self._slow.get(link, self._delays) if self._slow else self._delays
        return delays.min_ms + draws.below(delays.max_ms - delays.min_ms + 1)

    # --- connections ------------------------------------------------------------------------------------------------
    def connect(self, host: str, owner: Endpoint, address: str, opened: Callable[[Connection | None], None]) -> None:
        """Dial; `opened` gets the connection, or None when refused. A blocked dial gets no answer at all."""
        found = self._listeners.get(address)
        target = found[0] if found else _host_of(address)
        for listener in self.dial_listeners:
            listener(host, target)

        def announce(near: Connection) -> None:
            near.announced = True
            opened(near if near.is_open else None)

        def arrive() -> None:
            if self.is_blocked(host, target) or self.is_blocked(target, host):
                return
            listener = self._listeners.get(address)
            if listener is None:
                self._scheduler.after(self._delay(target, host), lambda: opened(None))
                return
            near, far = self._pair(host, owner, listener)
            near.announced = False
            far.owner.accepted(far, address)
            self._scheduler.after(self._delay(target, host), lambda: announce(near))

        self._scheduler.after(self._delay(host, target), arrive)

    def _pair(self, host: str, owner: Endpoint, listener: tuple[str, Endpoint]) -> tuple[Connection, Connection]:
        target, acceptor = listener
        near = Connection(self, self._next_number, host, target, owner)
        far = Connection(self, self._next_number + 1, target, host, acceptor)
        self._next_number += 2
        near.other, far.other = far, near
        for conn in (near, far):
            self._connections[conn.number] = conn
        return near, far

    def forget(self, conn: Connection) -> None:
        self._connections.pop(conn.number, None)

    def deliver(self, conn: Connection, data: bytes | None) -> None:
        """Queue bytes, or None for the end, towards the other side."""
        conn.queue.append(data)
        if not conn.is_under_way:
            self._pump(conn)

    def _pump(self, conn: Connection) -> None:
        if conn.is_under_way or not conn.queue:
            return
        conn.is_under_way = True
        draws = conn.draws
        if draws is None:
            draws = conn.draws = self._draws_of(conn.link)
        self._scheduler.after(self._draw_delay(conn.link, draws), conn.arrive)

    def arrive(self, source: Connection) -> None:
        """Let what `source` has sent reach the other side, unless something is in its way."""
        source.is_under_way = False
        queue, target = source.queue, source.other
        assert target is not None
        if not target.is_open:
            queue.clear()
        elif self._blocked and source.link in self._blocked:
            self._stalled(source, 200)
        elif self._held and (held_ms := self._held_for_ms(source)) > 0:
            self._stalled(source, held_ms)
        elif not target.announced:
            self._stalled(source, 1)
        elif self.split_per_mille and self._split(source, target):
            return
        elif len(queue) == 1 and (only := queue[0]) is not None:
            queue.clear()
            target.owner.received(target, only)
        else:
            pieces = [piece for piece in queue if piece is not None]
            ended = len(pieces) < len(queue)
            queue.clear()
            if pieces:
                target.owner.received(target, b"".join(pieces))
            if ended and target.is_open:
                target.is_open = False
                self.forget(target)
                target.owner.closed(target)

    def _split(self, source: Connection, target: Connection) -> bool:
        """Let a part arrive, by chance, and send the rest on its way. Whether that happened."""
        queue = source.queue
        first = queue[0]
        draws = self._prng.child(f"split-{source.number}-{self._scheduler.now_ms}")
        if first is None or len(first) < 2 or not draws.chance(self.split_per_mille, 1000):
            return False
        at = draws.between(1, len(first) - 1)
        queue[0] = first[at:]
        target.owner.received(target, first[:at])
        self._pump(source)
        return True

    def _stalled(self, source: Connection, delay_ms: int) -> None:
        """Retransmit after a while; `heal` does it at once for connections that are still open."""
        self._scheduler.after(delay_ms, lambda: self._pump(source))


def _host_of(address: str) -> str:
    """Addresses of the simulation are host:port."""
    return address.rpartition(":")[0]
