"""Limits of memory and CPU that control groups set to a process, in versions 2 and 1. Shell.

A container, and a unit with MemoryMax= or CPUQuota=, has less than its machine. A group is bound by those above it too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """None: no limit but the machine's."""

    memory_bytes: int | None
    cpu_count: float | None
    """Processors that may be busy at a time, on average over a tenth of a second."""


def resource_limits(pid: int | None = None, root: Path = ROOT, proc: Path = PROC) -> ResourceLimits:
    """Limits of a process, of this one without `pid`."""
    memory, cpus = list[int](), list[float]()
    for directory in _directories("", pid, root, proc):
        memory += _numbers(directory / "memory.max")[:1]
        quota = _numbers(directory / "cpu.max")
        cpus += [quota[0] / quota[1]] if len(quota) == 2 else []
    for directory in _directories("memory", pid, root, proc):
        memory += _numbers(directory / "memory.limit_in_bytes")[:1]
    for directory in _directories("cpu", pid, root, proc):
        quota = _numbers(directory / "cpu.cfs_quota_us") + _numbers(directory / "cpu.cfs_period_us")
        cpus += [quota[0] / quota[1]] if len(quota) == 2 else []
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = [limit for limit in memory if limit < machine_bytes]  # version 1 says "none" by a number
    return ResourceLimits(min(memory, default=None), min(cpus, default=None))


def memory_bytes() -> int:
    """Memory that this process may use, page cache included."""
    limit = resource_limits().memory_bytes
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if limit is None else limit


def processor_count() -> int:
    """Processors that this process may use, as Java counts them."""
    limit = resource_limits().cpu_count
    allowed = len(os.sched_getaffinity(0))
    return allowed if limit is None else max(1, min(allowed, math.ceil(limit)))


def _directories(controller: str, pid: int | None, root: Path, proc: Path) -> Iterator[Path]:
    """The process's group of a controller ("": version 2) and those above it, up to what can be seen from here."""
    try:
        lines = (proc / ("self" if pid is None else str(pid)) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3 or controller not in fields[1].split(","):
            continue
        mount = root / controller
        if not controller and not (root / "cgroup.controllers").exists():
            mount = root / "unified"
        inside = [part for part in PurePosixPath(fields[2]).parts if part not in ("/", "..")]
        # in a container that sees no more than its own group, the path may be one of the machine's
        for depth in range(len(inside), -1, -1):
            yield mount.joinpath(*inside[:depth])


def _numbers(path: Path) -> list[int]:
    """Positive numbers at the beginning of a file; none if it is not there, or says "max" or −1."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    found = list[int]()
    for word in words:
        if not word.isdigit() or not int(word):
            break
        found.append(int(word))
    return found
