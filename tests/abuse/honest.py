"""The honest clients' process: SCENE SECURITY SENT RECEIVED; ends when its input does.

A producer at RATE_PER_S, each send due at its own time whatever became of those before it, and a consumer of the same
topic. A line of SENT is `due in ms by the wall clock, ms until it was answered, ok or the error, body`; a line of
RECEIVED is a body. SECURITY: the client's file of keys, "-" for none.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TextIO

import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import wall_ms
from rmqha.host.access.security import Security, for_client
from rmqha.host.process import freeze_loaded_objects
from rmqha.model.error import RmqhaError
from tests.abuse.scene import Scene

RATE_PER_S = 200
TIMEOUT_MS = 10_000
FIRST_TIMEOUT_MS = 60_000
LAST_WAIT_S = 120.0
BODY = b"x" * 100


class Honest:
    def __init__(self, scene: Scene, security: Security | None, sent: TextIO, received: TextIO) -> None:
        self._scene = scene
        self._security = security
        self._sent = sent
        self._received = received
        self._waiting: set[str] = set()
        """Acknowledged, and not received yet."""
        self._early: set[str] = set()
        """Received before the acknowledgement came."""

    async def run(self) -> None:
        scene = self._scene
        async with Producer(scene.addresses["namesrv"], security=self._security) as producer:
            await producer.send(scene.topic, b"first", timeout_ms=FIRST_TIMEOUT_MS, require_ok=True)
            async with trio.open_nursery() as readers:
                await readers.start(self._read)
                freeze_loaded_objects()  # a full collection takes 22 ms of CPU here, and no server can help it
                print("READY", flush=True)
                async with trio.open_nursery() as senders:
                    scope = trio.CancelScope()
                    senders.start_soon(self._until_input_ends, scope)
                    with scope:
                        await self._send_on_time(producer, senders)
                with trio.move_on_after(LAST_WAIT_S):
                    while self._waiting:  # noqa: ASYNC110 (the reader says nothing of its progress)
                        await trio.sleep(0.05)
                readers.cancel_scope.cancel()

    async def _until_input_ends(self, scope: trio.CancelScope) -> None:
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        scope.cancel()

    async def _send_on_time(self, producer: Producer, senders: trio.Nursery) -> None:
        began, began_ms = trio.current_time(), wall_ms()
        number = 0
        while True:
            await trio.sleep_until(began + number / RATE_PER_S)
            due = began + number / RATE_PER_S
            senders.start_soon(self._send, producer, number, due, began_ms + number * 1000 // RATE_PER_S)
            number += 1

    async def _send(self, producer: Producer, number: int, due: float, due_ms: int) -> None:
        body, outcome = f"{number:08d}", "ok"
        try:
            await producer.send(self._scene.topic, body.encode() + BODY, timeout_ms=TIMEOUT_MS, require_ok=True)
        except RmqhaError as error:
            outcome = str(error).replace(" ", "_").replace("\n", "_")
        else:
            if body in self._early:
                self._early.discard(body)
            else:
                self._waiting.add(body)
        taken_ms = (trio.current_time() - due) * 1000
        self._sent.write(f"{due_ms} {taken_ms:.2f} {outcome} {body}\n")

    async def _read(self, *, task_status: trio.TaskStatus[None]) -> None:
        scene = self._scene
        async with Consumer(scene.addresses["namesrv"], scene.group, scene.topic, security=self._security) as consumer:
            task_status.started()
            async for message in consumer:
                body = bytes(message.body[:8]).decode()
                self._received.write(f"{body}\n")
                if body in self._waiting:
                    self._waiting.discard(body)
                else:
                    self._early.add(body)


def main(scene_path: str, security_path: str, sent_path: str, received_path: str) -> None:
    security = None if security_path == "-" else for_client(security_path)
    with contextlib.ExitStack() as files:
        sent = files.enter_context(Path(sent_path).open("w", buffering=1))
        received = files.enter_context(Path(received_path).open("w", buffering=1))
        trio.run(Honest(Scene.read(Path(scene_path)), security, sent, received).run)


if __name__ == "__main__":
    main(*sys.argv[1:])
