"""Connections between named hosts in virtual time: TCP, and the faults of a network. It implements no port; simulated
shells use it where host shells use sockets.

Bytes arrive in order or not at all. While a direction is blocked they wait, like retransmissions, and arrive after the
block ends. When a process is killed, its peers see the end (the kernel sends the FIN). After a power loss they see it
only when the host is up again and resets the connection, or by their own time-outs.
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
    """Delays (ms) of a link: a random value between both for each segment."""

    min_ms: int = 0
    max_ms: int = 1


class Connection:
    """One side of a connection. `peer_host`: host of the other side."""

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
        """Bytes that were sent and have not arrived; None: the end."""
        self.is_under_way = False
        """True if a segment is under way: one at a time, which keeps the order."""
        self.draws: SimPrng | None = None
        """Random numbers of its link, from the first segment on."""
        self.is_open = True
        self.announced = True
        """False on the dialing side until it knows that it is connected; no bytes arrive before."""

    def send(self, data: bytes) -> None:
        """Send bytes. It never fails, but they may never arrive."""
        if self.is_open:
            self._transport.deliver(self, data)

    def arrive(self) -> None:
        self._transport.arrive(self)

    def close(self) -> None:
        """Close in order: bytes that were sent before still arrive. No `closed` follows on this side."""
        if self.is_open:
            self.is_open = False
            self._transport.forget(self)
            self._transport.deliver(self, None)


class Transport:
    """All connections of a simulation."""

    def __init__(self, scheduler: Scheduler, prng: SimPrng, delays: Delays | None = None) -> None:
        self._scheduler = scheduler
        self._prng = prng
        self._draws: dict[tuple[str, str], SimPrng] = {}
        self._delays = delays or Delays()
        self._slow: dict[tuple[str, str], Delays] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._held: dict[int, tuple[int, tuple[str, str]]] = {}
        """Held connections by number: time (ms) of the end of the hold, and link."""
        self._listeners: dict[str, tuple[str, Endpoint]] = {}
        self._connections: dict[int, Connection] = {}
        self._next_number = 1
        self.dial_listeners: list[Callable[[str, str], None]] = []
        """Functions called with source and target of every dial."""
        self.split_per_mille = 0
        """Chance (per mille) that arriving bytes are split at a random place, and the rest arrives later."""

    # --- hosts ------------------------------------------------------------------------------------------------------
    def listen(self, host: str, address: str, owner: Endpoint) -> None:
        self._listeners[address] = (host, owner)

    def stop_process(self, host: str) -> None:
        """Kill the process of `host` (kill -9): its listeners end, and the kernel closes its connections."""
        self._drop_listeners(host)
        for conn in self._of(host):
            conn.close()

    def power_off(self, host: str) -> None:
        """Cut the power of `host`: its peers do not notice, and keep their connections."""
        self._drop_listeners(host)
        for conn in self._of(host):
            conn.is_open = False
            self.forget(conn)

    def power_on(self, host: str) -> None:
        """Start `host` again: half-open connections to it are reset as soon as a packet of theirs reaches it."""
        for conn in [item for item in self._connections.values() if item.peer_host == host]:
            other = conn.other
            if other is None or not (other.is_open or other.number in self._held):
                self._reset(conn)
            elif not other.is_open and None not in other.queue:
                # the host lost its power while this connection was held: its bytes may still arrive, then the reset;
                # a killed process has sent its end already
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
        """Unblock a link: bytes that waited are sent again within 200 ms, like a retransmission."""
        self._blocked.discard((source, target))

    def slow_down(self, source: str, target: str, delays: Delays) -> None:
        self._slow[source, target] = delays

    def open_connections(self) -> list[Connection]:
        """Sides that may still send, the oldest first."""
        return [conn for _, conn in sorted(self._connections.items()) if conn.is_open]

    def hold(self, conn: Connection, duration_ms: int) -> None:
        """Hold the bytes that `conn` sends, and its end, for `duration_ms`; other connections between the same hosts
        are not affected. So a request may arrive after its sender has died, started again and sent it again."""
        self._held[conn.number] = self._scheduler.now_ms + duration_ms, conn.link

    def _held_for_ms(self, conn: Connection) -> int:
        held = self._held.get(conn.number)
        return 0 if held is None else held[0] - self._scheduler.now_ms

    def give_up(self, conn: Connection) -> None:
        """Break `conn` for its own side only: its bytes may still arrive, even after those of its next connection."""
        if conn.is_open and conn.announced:
            conn.close()
            conn.owner.closed(conn)

    def break_off(self, conn: Connection, draws: SimPrng) -> None:
        """Reset `conn`: its own side knows at once; a random part of its bytes still arrives, then the end."""
        queue = conn.queue
        sent = b"".join(piece for piece in queue if piece is not None)
        arriving = sent[: draws.below(len(sent) + 1)]
        queue[:] = [arriving] if arriving else []
        self._held.pop(conn.number, None)
        self.give_up(conn)

    def heal(self) -> None:
        """End all blocks, slow links and holds; bytes that waited are sent now."""
        self._blocked.clear()
        self._slow.clear()
        self._held.clear()
        for conn in self._connections.values():
            self._pump(conn)

    def is_disturbed(self, hosts: Container[str]) -> bool:
        """True if a link between two of `hosts` is blocked or slow, or a connection is held."""
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
        """Link and bytes of each connection to `hosts` that has bytes on the way, in whole frames; nothing if
        `split_per_mille` is set, since frames may be split then."""
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
        """Dial. `opened` is called with the connection, or None if it is refused; on a blocked link it is not
        called."""
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
        """Queue bytes, or None for the end, to the other side."""
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
        """Deliver the bytes of `source` to the other side, unless the link is blocked or the connection held."""
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
        """Deliver, by chance, a part of the first bytes now and the rest later; True if so."""
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
        """Send again after `delay_ms`; `heal` does it at once for open connections."""
        self._scheduler.after(delay_ms, lambda: self._pump(source))


def _host_of(address: str) -> str:
    """Host of an address, which has the form host:port in the simulation."""
    return address.rpartition(":")[0]
