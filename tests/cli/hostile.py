"""Ports that are no server of ours: nobody there, somebody who never answers, other programs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rmqha.wire.frame import FrameParser, encode_frame

KINDS = ("dead", "half-dead", "http", "ssh")
"""half-dead: the kernel takes connections and requests, no process answers."""
_GREETINGS = {"http": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "ssh": b"SSH-2.0-OpenSSH_9.6\r\n"}
_BODIES = {"says nothing": b"", "says something else": b'{"a": [1, 2]}'}
"""Of the answers, all successes, of a server of the same protocol that is none of ours."""


@contextmanager
def hostile(kind: str) -> Iterator[str]:
    """ "host:port" of a kind above."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    if kind == "dead":
        listener.close()
        yield address
        return
    thread = None if kind == "half-dead" else threading.Thread(target=_serve, args=(listener, kind))
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
    talks = []
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            break
        talks.append(threading.Thread(target=_talk, args=(peer, kind)))
        talks[-1].start()
    for talk in talks:
        talk.join()


def _talk(peer: socket.socket, kind: str) -> None:
    with peer:
        if kind in _GREETINGS:
            if kind == "http":
                peer.recv(64)
            peer.sendall(_GREETINGS[kind])
            peer.shutdown(socket.SHUT_WR)
            return
        parser = FrameParser(1 << 20)
        while data := peer.recv(65536):
            for request in parser.feed(data):
                peer.sendall(encode_frame(request.reply(body=_BODIES[kind])))
