"""Connections that say nothing are bounded, and keep nobody out."""

from __future__ import annotations

import trio
import trio.testing

from rmqha.broker.replication.ha_service import Handshakes


async def test_the_host_with_most_of_them_loses_its_oldest() -> None:
    room = Handshakes(max_count=6, max_count_of_host=5)
    gone: list[str] = []

    async def stand(host: str, name: str, task_status: trio.TaskStatus[None]) -> None:
        with room.enter(host, 60_000) as scope:
            task_status.started()
            await trio.sleep(3600)
        if scope.cancelled_caught:
            gone.append(name)

    async with trio.open_nursery() as nursery:

        async def come(host: str, name: str) -> None:
            await nursery.start(lambda task_status: stand(host, name, task_status))
            await trio.testing.wait_all_tasks_blocked()

        await come("10.0.0.2", "replica")
        for number in range(5):
            await come("10.9.9.9", f"idle-{number}")
        assert (len(room), gone) == (6, [])
        await come("10.9.9.9", "idle-5")
        assert gone == ["idle-0"], "a host has its own bound"
        await come("10.0.0.3", "another")
        assert gone == ["idle-0", "idle-1"], "whoever has most makes room"
        assert (len(room), room.evicted_count) == (6, 2)
        nursery.cancel_scope.cancel()
    assert len(room) == 0


async def test_the_time_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    room = Handshakes()
    with room.enter("10.0.0.2", 3000):
        await trio.sleep(10)
    assert trio.current_time() == 3.0
