"""A wall clock that is set while a replica runs: requests to the controllers have the time of now."""

from __future__ import annotations

from rmqha.ha.action import CallController
from rmqha.ha.replica import Replica
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from tests.ha.memory_log import MemoryIdentity, MemoryLog
from tests.support.tracer import RecordingTracer

HOUR_MS = 3_600_000


def test_requests_have_the_wall_time_of_now() -> None:
    """Apache's controllers take every replica for dead that was not heard until that time: with the clock of the start,
    set back by hours since, all changes of the set and all elections were refused."""
    offset_ms = 10 * HOUR_MS
    config = BrokerConfig(total_replicas=1)
    replica = Replica(
        config, MemoryLog(), MemoryIdentity(1), RecordingTracer(), lambda _: True, lambda: 0, lambda: offset_ms
    )
    replica.start(1000)
    now_ms, heard = 1000, list[tuple[int, int]]()
    for offset_ms in (10 * HOUR_MS, 2 * HOUR_MS, 30 * HOUR_MS):
        for _ in range(100):
            now_ms += 100
            replica.timeout(now_ms)
            for action in replica.actions():
                if not isinstance(action, CallController):
                    continue
                if action.command.code == RequestCode.CONTROLLER_REGISTER_BROKER:
                    heard.append((int(action.command.ext["invokeTime"]) - offset_ms, now_ms))
                replica.controller_replied(now_ms, action.call_id, None)
    assert len(heard) >= 3
    assert all(stamp == at_ms for stamp, at_ms in heard[1:])
