"""What a group promises about time: a stalled slave delays sends by a bound."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.config.servers import BrokerConfig
from tests.simulation.history import Send
from tests.simulation.options import WHOLE_SET, seed_options
from tests.simulation.quiet import quiet
from tests.simulation.world import World

STALL_AT_MS = 3000
SLACK_MS = 400
"""A look at the set each 100 ms, a request to the controllers, a step of the producer."""


def longest_wait_ms(*, cp: bool, seed: int) -> int:
    """Of any send, in ms, while one slave stands still."""
    options = quiet(seed_options(seed), cp=cp, ap_level=WHOLE_SET, chaos_ms=10_000, send_interval_ms=20)
    world = World(seed, options)
    slaves: list[str] = []

    def stall() -> None:
        slave = next(item for item in world.brokers if not item.replica.is_master)
        slaves.append(slave.host)
        slave.pause()
        world.scheduler.after(7000, slave.resume)

    world.scheduler.at(STALL_AT_MS, stall)
    report = world.run()
    assert not report.failure, report.failure
    assert slaves
    waits = [_wait_ms(send) for send in world.groups[0].history.acked]
    assert len(waits) > 100
    return max(waits)


def _wait_ms(send: Send) -> int:
    assert send.acked_at_ms is not None
    return send.acked_at_ms - send.begun_at_ms


@pytest.mark.parametrize("cp", [False, True])
def test_a_stalled_slave_delays_sends_by_the_stall_bound_at_most(cp: bool) -> None:
    bound_ms = BrokerConfig().ha_ack_stall_bound_ms
    waited_ms = longest_wait_ms(cp=cp, seed=1)
    assert bound_ms / 2 < waited_ms <= bound_ms + SLACK_MS


def test_a_stall_that_nobody_bounds_is_seen() -> None:
    """The check can fail: planted is a keeper for whom no slave ever lags."""
    with (
        patch.object(SyncStateSetManager, "_lags", lambda self, now_ms, member, item: False),
        pytest.raises(AssertionError, match="no send of sim has been acknowledged for"),
    ):
        longest_wait_ms(cp=False, seed=1)
