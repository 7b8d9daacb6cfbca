"""Stops in the midst of a handler, faults at their moment, and machines that are suspended: each is drawn, and the same
again from the same seed."""

from __future__ import annotations

import pytest

from rmqha.sim.clock import SimClock
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Transport
from tests.simulation.processes.disk_process import DiskProcess
from tests.simulation.run import Run


class OneProcess(DiskProcess):
    """Two files that one handler changes."""

    def __init__(self) -> None:
        scheduler = Scheduler()
        super().__init__("x", scheduler, Transport(scheduler, SimPrng(1)), SimClock(scheduler))
        self.disk = SimDisk(SimPrng(2))
        self.begin_life()

    def kill(self) -> None:
        self.end_life(power_loss=False)
        self.disk.crash(power_loss=False)

    def change(self) -> None:
        self.disk.write_atomic("first", b"new")
        self.disk.write_atomic("second", b"new")


@pytest.mark.parametrize(("change_count", "there"), ((1, []), (2, ["first"]), (3, ["first", "second"])))
def test_a_process_stops_between_two_changes_of_one_handler(change_count: int, there: list[str]) -> None:
    one = OneProcess()
    one.stop_within(change_count, one.kill)
    one.post(one.life, one.change)
    assert one.alive == (change_count > 2)
    assert [path for path in ("first", "second") if one.disk.exists(path)] == there


def test_a_stop_that_is_called_off_does_not_happen() -> None:
    one = OneProcess()
    one.stop_within(1, one.kill)
    one.stop_no_more()
    one.post(one.life, one.change)
    assert one.alive and one.disk.exists("second")


def test_a_stop_that_nobody_asked_for_is_a_finding() -> None:
    one = OneProcess()
    one.disk.stop_after = 1
    with pytest.raises(AssertionError, match="nobody asked"):
        one.post(one.life, one.change)
    with pytest.raises(DiskStopped):
        one.change()


@pytest.mark.parametrize(
    ("run", "kinds"),
    (
        ("stops:1", {"stop"}),
        pytest.param("moments:1", {"at-"}, marks=pytest.mark.sim),
        pytest.param("splits:1", {"isolate"}, marks=pytest.mark.sim),
        pytest.param("suspended:1", {"suspend", "clock-step-controller"}, marks=pytest.mark.sim),
    ),
)
def test_a_theme_draws_its_faults_and_the_same_ones_again(run: str, kinds: set[str]) -> None:
    worlds = [Run.parse(run).world() for _ in range(2)]
    reports = [world.run() for world in worlds]
    assert not reports[0].failure, reports[0].failure
    assert reports[0].trace_hash == reports[1].trace_hash
    assert worlds[0].faults.keys == worlds[1].faults.keys
    for kind in kinds:
        assert any(key.startswith(kind) for key in worlds[0].faults.keys)
