"""An attack as data: whom it meets, what each of its connections says, and what is to come of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rmqha.wire.command import Command
from tests.abuse.scene import Scene

CHUNK_BYTES = 64 * 1024
MAX_CONNECTION_COUNT = 4000
"""Of one attack."""

Stream = Callable[[Scene, int], Iterator[bytes]]
"""What connection number n says, piece by piece; a piece is cut as the socket takes it."""


@dataclass(frozen=True)
class Attack:
    """`name` is the row's name in docs/operate/security.md too. `outcome`: what happens, as that row says it."""

    name: str
    target: str
    """Key of Scene.addresses."""
    stream: Stream
    what: str
    outcome: str
    reads: bool = True
    """False: answers pile up."""
    churns: bool = False
    """When all has been said, the connection is closed and made anew; else it stays and is silent."""
    tls: bool = True
    """False: plain bytes, also where the cluster insists on TLS."""
    setups: frozenset[str] = frozenset(("open", "protected"))
    """The clusters that it is tried on."""
    answers: frozenset[int] | None = None
    """Codes that it may be answered with; None: any."""
    in_short: bool = True
    """Part of `make abuse`; all attacks are part of the benchmark."""
    both: bool = False
    """Part of it on both clusters; else on the open one alone, if it is tried there at all."""
    least_connections: int = 0
    """So many at least, however few the run asks for."""
    missed_p99_ms: float = 0.0
    """Not 0: the goal (10 times the quiet p99) is missed, and this is what it must not exceed until it is met."""


def over_and_over(piece: bytes) -> Iterator[bytes]:
    """`piece` without an end, in larger chunks."""
    return itertools.repeat(piece * max(1, CHUNK_BYTES // max(1, len(piece))))


def requests(*commands: Command, account: str = "guest") -> Stream:
    """The same requests without an end."""

    def stream(scene: Scene, number: int) -> Iterator[bytes]:
        return over_and_over(scene.frames(commands, account))

    return stream


def made(make: Callable[[Scene, int], Iterable[Command]], *, account: str = "guest") -> Stream:
    """Each request that `make` yields."""

    def stream(scene: Scene, number: int) -> Iterator[bytes]:
        return (scene.frame(command, account) for command in make(scene, number))

    return stream


def once(piece: bytes) -> Stream:
    """`piece`, then silence."""

    def stream(scene: Scene, number: int) -> Iterator[bytes]:
        return iter((piece,))

    return stream
