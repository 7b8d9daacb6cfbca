"""A replica that keeps nothing: it shakes hands under another's id, reads what the master sends and acknowledges it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire.ha_stream import MasterHandshake, MasterStreamParser, SlaveAck, SlaveHandshake
from tests.abuse.scene import Scene

READ_BYTES = 1 << 18
LOOK_S = 0.2
COMES_AGAIN_S = 0.02


class Forger:
    """A thread; it comes again whenever it is thrown out."""

    def __init__(self, scene: Scene, broker_id: int) -> None:
        self._scene = scene
        self._broker_id = BrokerId(broker_id)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.connected_count = 0
        self.forged_count = 0
        """Acknowledgements of bytes that a master has sent."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            with suppress(OSError, RemoteProtocolError), self._scene.connect("ha", tls=False) as connection:
                self.connected_count += 1
                self._copy_nothing(connection)
            self._done.wait(COMES_AGAIN_S)

    def _copy_nothing(self, connection: socket.socket) -> None:
        parser = MasterStreamParser()
        connection.settimeout(LOOK_S)
        connection.sendall(SlaveHandshake(self._broker_id).encode())
        while not self._done.is_set():
            try:
                data = connection.recv(READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                return
            for frame in parser.feed(data):
                if isinstance(frame, MasterHandshake):
                    end = frame.max_phy_offset
                else:
                    end = PhyOffset(frame.header.phy_offset + len(frame.data))
                    self.forged_count += bool(len(frame.data))
                connection.sendall(SlaveAck(end).encode())


@contextmanager
def forging(scene: Scene, broker_ids: Sequence[int]) -> Iterator[list[Forger]]:
    forgers = [Forger(scene, broker_id) for broker_id in broker_ids]
    for forger in forgers:
        forger.start()
    try:
        yield forgers
    finally:
        for forger in forgers:
            forger.stop()
