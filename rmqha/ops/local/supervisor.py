"""Start, recognise and signal the processes of a local cluster. Control plane; knows no RocketMQ.

A process is identified by its id and the moment when the kernel started it: an id alone may belong to another process
by now, and no foreign process may ever be signalled (ruling 24)."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmqha.host.disk import FILE_MODE
from rmqha.host.process import started_at_ticks
from rmqha.model.error import RmqhaError

POLL_S = 0.02
DRAIN_TIMEOUT_S = 15.0
"""Time (s) that a server gets to stop: a broker drains for 10 s at most (ruling 24)."""
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_NO_HANDLES = (errno.ENOSYS, errno.EPERM)
"""Errors of a kernel before 5.3, and of a container's filter of system calls that does not know pidfd_open."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `start` is the stamp of the moment when the kernel started `pid`: no other process with this id shares
    it."""

    pid: int
    start: str

    @property
    def alive(self) -> bool:
        return start_stamp(self.pid) == self.start


def start_stamp(pid: int) -> str | None:
    """The kernel's start stamp of a process that runs; None if there is none or it is a zombie.

    Ticks since boot, with the boot's id, since ticks begin again."""
    ticks = started_at_ticks(pid)
    return None if ticks is None else f"{ticks}@{BOOT_ID_FILE.read_text().strip()}"


def spawn(arguments: Sequence[str], output: Path) -> Process:
    """Start a process in a session of its own, so that it outlives the caller and its terminal. Both its outputs are
    appended to the file `output`. Raises RmqhaError if it cannot be started."""
    import subprocess

    try:
        with open(output, "ab", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as file:
            child = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise RmqhaError(f"cannot start {arguments[0]}: {error.strerror}") from None
    child.returncode = 0  # it outlives this process, and is waited for by its id
    # a child that has already ended is a zombie of ours: its id cannot be taken by another process yet
    return Process(child.pid, start_stamp(child.pid) or "ended")


def server_arguments(command: str, config: Path) -> list[str]:
    """The command line of a server. -P keeps Python from importing a directory `controller` of the user's."""
    return [sys.executable, "-P", "-m", "rmqha", command, "-c", str(config)]


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Signal the process if it is still the one that was started; False if it has gone."""
    handle = None
    try:
        # it names one process for ever, so the check cannot go stale before the signal
        handle = _handle_of(process.pid)
        if not process.alive:
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _handle_of(pid: int) -> int | None:
    """A pidfd of the process; None if the system, or a Python built for older ones, has no pidfds. Raises
    ProcessLookupError."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_HANDLES:
            raise
        return None


def wait_gone(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """Wait until all processes have ended. Returns those that have not when the time is up."""
    deadline = time.monotonic() + timeout_s
    while (left := [process for process in processes if process.alive]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def stop_all(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """Send SIGTERM to all, wait, then SIGKILL to those that stay. Returns those that had to be killed."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
    stubborn = wait_gone(processes, timeout_s)
    for process in stubborn:
        send_signal(process, signal.SIGKILL)
    wait_gone(stubborn, timeout_s)
    return stubborn


def require_gone(processes: Sequence[Process]) -> None:
    """Raise RmqhaError for processes that are still there after SIGKILL: they wait in the kernel."""
    left = [str(process.pid) for process in processes if process.alive]
    if left:
        raise RmqhaError(
            f"pid {', '.join(left)} is still there after SIGKILL: it waits in the kernel, mostly for a disk that "
            "hangs; see dmesg, and mend or detach that disk"
        )
