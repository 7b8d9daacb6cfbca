"""A loopback peer in a process of its own: sends back what it gets. `raw` moves bytes, `remoting` whole commands.

Prints its port, then serves until its standard input closes."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress

import trio

from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.model.code import ResponseCode
from rmqha.wire.command import Command

MAX_FRAME_BYTES = 4 * 1024 * 1024


class Echo:
    """Answers every command as a broker answers a send, without storing anything."""

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            ext = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
            session.send(command.reply(ResponseCode.SUCCESS, ext))

    def closed(self, session: Session) -> None: ...


def raw() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # the client leaves in the middle when its time is over
            with suppress(ConnectionError):
                while data := connection.recv(65536):
                    connection.sendall(data)


async def remoting() -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            lambda task_status: serve(Echo(), "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)
        )
        print(port, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "raw":
        # the accepting thread ends with the process, which ends with its standard input
        threading.Thread(target=raw, daemon=True).start()
        sys.stdin.read()
    else:
        trio.run(remoting)
