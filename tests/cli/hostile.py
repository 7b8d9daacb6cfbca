"""Ports that are no server of ours: nobody there, somebody who never answers, other programs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("dead", "half-dead", "http", "ssh")
_ANSWERS = {"http": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "ssh": b"SSH-2.0-OpenSSH_9.6\r\n"}


@contextmanager
def hostile(kind: str) -> Iterator[str]:
    """ "host:port" of one of KINDS. half-dead: the kernel takes connections and requests, no process answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    if kind == "dead":
        listener.close()
        yield address
        return
    thread = threading.Thread(target=_serve, args=(listener, kind)) if kind in _ANSWERS else None
    if thread is not None:
        thread.start()
    try:
        yield address
    finally:
        # wakes the accept of the thread
        listener.shutdown(socket.SHUT_RDWR)
        if thread is not None:
            thread.join()
        listener.close()


def _serve(listener: socket.socket, kind: str) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            if kind == "http":
                peer.recv(64)
            peer.sendall(_ANSWERS[kind])
            peer.shutdown(socket.SHUT_WR)
