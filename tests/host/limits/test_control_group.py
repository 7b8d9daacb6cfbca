"""Limits of a container or a unit, as control groups of both versions tell them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqha.host.limits import control_group
from rmqha.host.limits.control_group import ResourceLimits, memory_bytes, processor_count, resource_limits

MIB = 1 << 20


def world(tmp_path: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """(/sys/fs/cgroup, /proc) of a process in these groups."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7/cgroup").write_text(groups)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root, proc


V2 = {"cgroup.controllers": "cpu memory"}


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", V2, (None, None)),
        ("0::/\n", V2 | {"memory.max": str(256 * MIB), "cpu.max": "50000 100000"}, (256 * MIB, 0.5)),
        ("0::/\n", V2 | {"memory.max": "max", "cpu.max": "max 100000"}, (None, None)),
        (
            "0::/system.slice/rmqha.service\n",
            V2
            | {
                "system.slice/memory.max": str(300 * MIB),
                "system.slice/rmqha.service/memory.max": str(500 * MIB),
                "system.slice/rmqha.service/cpu.max": "250000 100000",
            },
            (300 * MIB, 2.5),
        ),
        ("0::/../../machine/x\n", V2 | {"memory.max": str(64 * MIB)}, (64 * MIB, None)),
        (
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            {
                "memory/memory.limit_in_bytes": str(512 * MIB),
                "cpu/docker/abc/cpu.cfs_quota_us": "150000",
                "cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            (512 * MIB, 1.5),
        ),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            (None, None),
        ),
        ("", {}, (None, None)),
        ("nonsense\n1:x\n", {"memory.max": "x"}, (None, None)),
    ],
)
def test_the_lowest_limit_of_all_groups_above_holds(
    tmp_path: Path, groups: str, files: dict[str, str], found: tuple[int | None, float | None]
) -> None:
    root, proc = world(tmp_path, groups, files)
    assert resource_limits(7, root, proc) == ResourceLimits(*found)


def test_a_process_that_is_hidden_has_no_limit_that_is_known(tmp_path: Path) -> None:
    assert resource_limits(8, tmp_path, tmp_path) == ResourceLimits(None, None)


def test_what_a_process_may_use_is_the_machine_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for limits, found in (
        (ResourceLimits(None, None), (physical, 8)),
        (ResourceLimits(64 * MIB, 0.2), (64 * MIB, 1)),
        (ResourceLimits(64 * MIB, 2.5), (64 * MIB, 3)),
        (ResourceLimits(None, 64.0), (physical, 8)),
    ):
        monkeypatch.setattr(control_group, "resource_limits", lambda limits=limits: limits)
        assert (memory_bytes(), processor_count()) == found
