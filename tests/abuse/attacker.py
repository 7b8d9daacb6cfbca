"""The attacker's process: SCENE ATTACK CONNECTIONS SECONDS. It writes READY, attacks, and writes what it did as JSON.

One thread, plain sockets that do not block; each connection says what its stream yields, as fast as the server takes
it. Who is thrown out comes again a little later. It connects to this machine only and ends by itself.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rmqha.wire.frame import FrameParser
from tests.abuse.attack import MAX_CONNECTION_COUNT, Attack
from tests.abuse.catalogue import ATTACKS
from tests.abuse.scene import MAX_ANSWER_BYTES, NoAnswerError, Scene

READ_BYTES = 256 * 1024
LOOKED_AT_BYTES = 4 * 1024 * 1024
"""Of the answers of one connection, whose codes are counted."""
COMES_AGAIN_S = 0.05
MAX_SECONDS = 120.0


class Hostile:
    """One hostile connection: its socket and what it still has to say."""

    def __init__(self, attack: Attack, scene: Scene, number: int) -> None:
        self.attack = attack
        self.scene = scene
        self.number = number
        self.socket: socket.socket | None = None
        self.stream: Iterator[bytes] = iter(())
        self.left = memoryview(b"")
        self.due = 0.0
        """When to connect again."""
        self.parser: FrameParser | None = None
        """Of the connection whose answers are looked at."""
        self.parsed_bytes = 0

    def connect(self) -> socket.socket:
        """Raises OSError."""
        self.stream = self.attack.stream(self.scene, self.number)
        self.left = memoryview(b"")
        self.parser = FrameParser(MAX_ANSWER_BYTES) if self.attack.answers is not None and not self.number else None
        self.socket = self.scene.connect(self.attack.target, tls=self.attack.tls)
        self.socket.setblocking(False)
        return self.socket

    def next_piece(self) -> memoryview:
        """What to write now; empty: all has been said."""
        if not self.left:
            self.left = memoryview(next(self.stream, b""))
        return self.left


class Attacker:
    """All connections of one attack."""

    def __init__(self, attack: Attack, scene: Scene, connection_count: int) -> None:
        self._attack = attack
        self._selector = selectors.DefaultSelector()
        self._away = [Hostile(attack, scene, number) for number in range(min(connection_count, MAX_CONNECTION_COUNT))]
        self._events = selectors.EVENT_WRITE | (selectors.EVENT_READ if attack.reads else 0)
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        until = time.monotonic() + min(seconds, MAX_SECONDS)
        while (now := time.monotonic()) < until:
            self._come_again(now, until)
            for key, mask in self._selector.select(COMES_AGAIN_S):
                try:
                    self._serve(key.data, mask)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    continue
                except (OSError, NoAnswerError):
                    self.counts["thrown out"] += 1
                    self._leave(key.data)

    def _come_again(self, now: float, until: float) -> None:
        waiting = self._away
        self._away = []
        for hostile in waiting:
            if hostile.due > now or time.monotonic() >= until:
                self._away.append(hostile)
                continue
            try:
                connection = hostile.connect()
            except (OSError, NoAnswerError):
                self.counts["refused"] += 1
                if hostile.socket is not None:
                    hostile.socket.close()
                hostile.due = time.monotonic() + COMES_AGAIN_S
                self._away.append(hostile)
                continue
            self.counts["connected"] += 1
            self._selector.register(connection, self._events, hostile)

    def _serve(self, hostile: Hostile, mask: int) -> None:
        connection = hostile.socket
        assert connection is not None
        if mask & selectors.EVENT_READ:
            data = connection.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError
            self.counts["bytes read"] += len(data)
            if hostile.parser is not None and hostile.parsed_bytes < LOOKED_AT_BYTES:
                hostile.parsed_bytes += len(data)
                self.counts.update(f"answer {command.code}" for command in hostile.parser.feed(data))
        if mask & selectors.EVENT_WRITE:
            piece = hostile.next_piece()
            if piece:
                written = connection.send(piece)
                self.counts["bytes written"] += written
                hostile.left = piece[written:]
            elif self._attack.churns:
                self._leave(hostile, 0.0)
            elif self._attack.reads:
                self._selector.modify(connection, selectors.EVENT_READ, hostile)
            else:
                self._selector.unregister(connection)

    def _leave(self, hostile: Hostile, pause_s: float = COMES_AGAIN_S) -> None:
        connection = hostile.socket
        assert connection is not None
        self._selector.unregister(connection)
        connection.close()
        hostile.socket = None
        hostile.due = time.monotonic() + pause_s
        self._away.append(hostile)


def main(scene_path: str, name: str, connections: str, seconds: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack = ATTACKS[name]
    attacker = Attacker(attack, Scene.read(Path(scene_path)), int(connections))
    print("READY", flush=True)
    attacker.run(float(seconds))
    print(json.dumps(attacker.counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
