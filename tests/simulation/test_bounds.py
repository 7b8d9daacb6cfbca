"""What a group promises about time: a stalled slave delays sends by a bound, and nobody is elected without a cause."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.set_keeper import SetKeeper
from rmqha.model.config import BrokerConfig

from .history import Send
from .options import Options, rough, seed_options
from .world import World

REAL_HEARTBEAT = ControllerClient.heartbeat
STALL_AT_MS = 3000
SLACK_MS = 400
"""A look at the set each 100 ms, a request to the controllers, a step of the producer."""


def quiet(options: Options, **changes: Any) -> Options:
    """Nothing fails."""
    faults: dict[str, Any] = {name: 0 for name in vars(options) if name.endswith("_per_mille")}
    return replace(rough(options), **faults, **changes)


class AllAckWorld(World):
    more_config: Mapping[str, Any] = {"all_ack_in_sync_state_set": True}


def longest_wait_ms(*, cp: bool, seed: int) -> int:
    """Of any send, in ms, while one slave stands still."""
    world = AllAckWorld(seed, quiet(seed_options(seed), cp=cp, chaos_ms=10_000, send_interval_ms=20))
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
    waits = [_wait_ms(send) for send in world.history.acked]
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


def quiet_run(seed: int, hours: float, **changes: Any) -> tuple[list[int], str]:
    """Epochs that had a master in a run without faults, and how it failed."""
    options = quiet(seed_options(seed), chaos_ms=int(hours * 3_600_000), **changes)
    world = World(seed, options)
    report = world.run()
    return sorted(world.roles.master_epochs), report.failure


@pytest.mark.parametrize("controller_count", [1, 3])
def test_nobody_is_elected_without_a_cause(controller_count: int) -> None:
    """A message every ten seconds, slow links, clocks that drift apart. RMQHA_SIM_HOURS=24 makes it a day."""
    hours = float(os.environ.get("RMQHA_SIM_HOURS", "0.1"))
    changes = {"client_count": 1, "send_interval_ms": 10_000, "clock_drift_ppm": 20_000, "max_delay_ms": 20}
    found = quiet_run(1, hours, controller_count=controller_count, heartbeat_ms=500, **changes)
    assert found == ([1], "")


def test_an_election_without_a_cause_is_seen() -> None:
    """The check can fail: planted are replicas that beat once in five seconds, which counts as dead after two."""

    def seldom(self: ControllerClient, now_ms: int) -> None:
        REAL_HEARTBEAT(self, now_ms)
        self._heartbeat_at_ms = now_ms + 5000

    with patch.object(ControllerClient, "heartbeat", seldom):
        epochs, failure = quiet_run(1, 0.01, client_count=1, controller_count=1)
    assert epochs != [1]
    assert "was called dead and another elected" in failure, failure


def test_a_stall_that_nobody_bounds_is_seen() -> None:
    """The check can fail: planted is a keeper for whom no slave ever lags."""
    with patch.object(SetKeeper, "_lags", lambda self, now_ms, member, item: False):
        assert longest_wait_ms(cp=False, seed=1) > BrokerConfig().ha_ack_stall_bound_ms + SLACK_MS
