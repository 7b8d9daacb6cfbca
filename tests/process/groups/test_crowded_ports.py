"""Half-open connections up to a real server's limit and beyond: the oldest give way, newcomers and those that are known
are served."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from rmqha.host.http.server import MAX_CONNECTION_COUNT
from rmqha.host.process import RESERVED_FILES
from rmqha.model.code import RequestCode
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.patience import HANG_S, until

ROOM = 120
"""Sessions of a port."""
MORE = 30
HALF = {"frame": b"\0\0\0\x40", "request": b"GET /healthz HT"}


class Server:
    """A name server with a controller and httpPort, which may open few files."""

    def __init__(self, scratch: Path) -> None:
        self.port = free_ports(3)
        self.controller_port, self.http_port = self.port + 1, self.port + 2
        config = scratch / "namesrv.conf"
        config.write_text(
            f"listenPort={self.port}\nhttpPort={self.http_port}\nenableControllerInNamesrv=true\n"
            f"controllerDLegerSelfId=n0\ncontrollerDLegerPeers=n0-127.0.0.1:{self.controller_port}\n"
            f"controllerStorePath={scratch / 'controller'}\nfirstRequestTimeoutMillis=60000\n"
        )
        count = ROOM + RESERVED_FILES
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rmqha", "namesrv", "-c", str(config)],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (count, count)),
            stdout=subprocess.DEVNULL,
        )

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=HANG_S) as answer:
            text: str = answer.read().decode()
        return text

    def pushed_out(self) -> float:
        lines = self.page("/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("rmqha_remoting_pushed_out_total"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        until(lambda: is_open(made.port) and is_open(made.controller_port) and is_open(made.http_port))
        yield made
    finally:
        made.process.terminate()
        made.process.wait(HANG_S)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def ask(connection: socket.socket, code: int = RequestCode.RMQHA_GET_HISTORY) -> int:
    connection.settimeout(HANG_S)
    connection.sendall(encode_frame(Command(code)))
    parser = FrameParser(1 << 24)
    while data := connection.recv(1 << 16):
        if found := parser.feed(data):
            return found[0].code
    raise AssertionError("the server closed the connection")


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def crowd(stack: ExitStack, port: int, count: int, words: bytes) -> list[socket.socket]:
    found = []
    for _ in range(count):
        found.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), HANG_S)))
        found[-1].sendall(words)
    return found


@pytest.mark.parametrize("which", ["port", "controller_port"])
def test_the_oldest_half_open_connection_gives_way(server: Server, which: str) -> None:
    port = getattr(server, which)
    with ExitStack() as stack:
        known = stack.enter_context(socket.create_connection(("127.0.0.1", port), HANG_S))
        assert ask(known) == 0
        idle = crowd(stack, port, ROOM - 1 + MORE, HALF["frame"])
        until(lambda: server.pushed_out() == MORE)
        assert [is_closed(item) for item in idle] == [True] * MORE + [False] * (ROOM - 1)
        newcomer = stack.enter_context(socket.create_connection(("127.0.0.1", port), HANG_S))
        assert (ask(newcomer), ask(known)) == (0, 0)
        until(lambda: is_closed(idle[MORE]))
        assert not is_closed(idle[MORE + 1]), "one made room for one"
    assert server.process.poll() is None


def test_so_it_does_at_the_page(server: Server) -> None:
    with ExitStack() as stack:
        idle = crowd(stack, server.http_port, MAX_CONNECTION_COUNT + MORE, HALF["request"])
        until(lambda: all(is_closed(item) for item in idle[:MORE]))
        assert not any(is_closed(item) for item in idle[-MORE:])
        assert server.page("/healthz")
