"""HA connections of the shell: their ends in every order."""

from __future__ import annotations

from typing import Any, cast

import trio

from rmqha.broker.ha_service import HaService
from rmqha.broker.replica_driver import ReplicaDriver


class Driver:
    """Takes down what a replica would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def ha_opened(self, conn_id: int) -> None:
        self.told.append(("opened", conn_id))

    def ha_closed(self, conn_id: int) -> None:
        self.told.append(("closed", conn_id))

    def ha_received(self, conn_id: int, data: bytes) -> None:
        self.told.append(("received", conn_id))


class Tracer:
    def event(self, name: str, **fields: Any) -> None:
        assert name


async def test_a_connection_closed_before_its_dial_began_is_only_forgotten() -> None:
    """A slave that was told of two masters in one step opens, closes and opens again before any task runs."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    driver = Driver()
    async with trio.open_nursery() as nursery:
        service = HaService(cast(ReplicaDriver, driver), Tracer(), nursery)
        service.open(-1, address)
        service.close(-1)
        service.open(-2, address)
        stream = await listeners[0].accept()
        other = await listeners[0].accept()
        with trio.fail_after(5):
            while not driver.told:
                await trio.lowlevel.checkpoint()
        assert driver.told == [("opened", -2)]
        nursery.cancel_scope.cancel()
    for item in (stream, other, *listeners):
        await item.aclose()
