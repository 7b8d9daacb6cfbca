"""A connection's bytes looked at on their way: a forwarder between a slave and its master."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

READ_BYTES = 256 * 1024
DIAL_TIMEOUT_S = 5


class Tap:
    """Listens on `host` and `port`, forwards to `target_host` on the same port; `seen` gets what the target answers,
    for each connection a new one from `make`. Threads end with their connections, the last with `close`."""

    def __init__(self, host: str, port: int, target_host: str, make: Callable[[], Callable[[bytes], None]]) -> None:
        self._target = (target_host, port)
        self._make = make
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((host, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._target, DIAL_TIMEOUT_S)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open += [near, far]
            threading.Thread(target=_forward, args=(near, far, _nobody), daemon=True).start()
            threading.Thread(target=_forward, args=(far, near, self._make()), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for item in self._open:
            item.close()


def _nobody(data: bytes) -> None:
    assert data


def _forward(source: socket.socket, target: socket.socket, seen: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(READ_BYTES):
            seen(data)
            target.sendall(data)
    except OSError:
        pass  # one end is gone: so is the other
    for item in (source, target):
        try:
            item.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
