"""Probes look at copies: the run goes on as without them. What they look at is a disk of its own."""

from __future__ import annotations

from dataclasses import replace

from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from tests.simulation.run import Run
from tests.simulation.world import World


def test_a_run_is_the_same_with_and_without_probes() -> None:
    run = Run.parse("moments:2@4")
    assert run.options.crash_probes
    probed = World(run.seed, run.options)
    report = probed.run()
    assert probed.crash_probes is not None
    assert probed.crash_probes.count > 10
    plain = World(run.seed, replace(run.options, crash_probes=0)).run()
    assert (report.failure, report.trace_hash) == ("", plain.trace_hash)


def test_a_copy_of_a_disk_loses_its_power_alone() -> None:
    disk = SimDisk(SimPrng(1))
    file = disk.open_append("file")
    file.append(b"synced")
    file.sync()
    file.append(b" and not")
    copy = disk.copy(SimPrng(2))
    assert copy.read("file") == b"synced and not"
    copy.crash(power_loss=True)
    copy.write_atomic("other", b"1")
    assert copy.read("file").startswith(b"synced")
    assert (disk.read("file"), disk.exists("other"), disk.boot_id()) == (b"synced and not", False, "boot-1")
    assert copy.boot_id() == "boot-2"


def test_every_change_is_told_before_it_is_made() -> None:
    disk, seen = SimDisk(SimPrng(1)), list[int]()
    disk.watch = lambda: seen.append(len(disk.paths()))
    disk.write_atomic("one", b"1")
    disk.rename("one", "two")
    disk.remove("two")
    assert seen == [0, 1, 1]
