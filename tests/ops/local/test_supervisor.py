"""Processes: started on their own, recognised by id and start, never mistaken for a stranger."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.model.error import RmqhaError
from rmqha.ops.local.supervisor import Process, require_gone, send_signal, spawn, start_stamp, stop_all, wait_gone
from tests.host.old_python import make_old
from tests.support.patience import HANG_S

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


class Spawner:
    """Starts Python programs and ends them after the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Process] = []

    def start(self, program: str) -> tuple[Process, Path]:
        """The process and its output file, once it has printed "up"."""
        output = self.directory / f"{len(self.processes)}.out"
        process = spawn([sys.executable, "-c", program], output)
        self.processes.append(process)
        while process.alive and "up\n" not in output.read_text():
            os.sched_yield()
        return process, output


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    found = Spawner(tmp_path)
    yield found
    for process in found.processes:
        send_signal(process, signal.SIGKILL)
        os.waitpid(process.pid, 0)


def test_a_process_runs_in_its_own_session_and_writes_to_its_file(spawner: Spawner) -> None:
    process, output = spawner.start(SLEEPER)
    assert process.alive
    assert os.getsid(process.pid) == process.pid
    assert output.read_text() == "up\n"


def test_a_process_keeps_no_file_of_its_starter(spawner: Spawner, tmp_path: Path) -> None:
    """A script's lock, or the end of its pipe, would be held for as long as a server runs."""
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        process, output = spawner.start(SLEEPER)
        held = {entry.readlink() for entry in Path(f"/proc/{process.pid}/fd").iterdir()}
    assert held == {Path("/dev/null"), output}


def test_output_is_appended(spawner: Spawner) -> None:
    process, output = spawner.start("print('up')")
    assert wait_gone([process], 10) == []
    again = spawn([sys.executable, "-c", "import sys; sys.stderr.write('more')"], output)
    spawner.processes.append(again)
    assert wait_gone([again], 10) == []
    assert output.read_text() == "up\nmore"


def test_an_ended_child_counts_as_gone_although_it_is_a_zombie(spawner: Spawner) -> None:
    process, _ = spawner.start("print('up')")
    assert wait_gone([process], 10) == []
    assert start_stamp(process.pid) is None
    assert not send_signal(process, signal.SIGTERM)


def test_a_stranger_with_the_same_id_is_neither_alive_nor_signalled(spawner: Spawner) -> None:
    process, _ = spawner.start(SLEEPER)
    earlier = Process(process.pid, "1")
    assert not earlier.alive
    assert not send_signal(earlier, signal.SIGKILL)
    assert stop_all([earlier], 0.1) == []
    assert process.alive


def test_stop_asks_first_and_kills_who_stays(spawner: Spawner) -> None:
    polite, _ = spawner.start(SLEEPER)
    stubborn, _ = spawner.start(STUBBORN)
    assert stop_all([polite, stubborn], 0.5) == [stubborn]
    assert not polite.alive
    assert not stubborn.alive


def test_a_process_that_outlives_sigkill_is_told(spawner: Spawner) -> None:
    """One that waits for a disk that hangs."""
    process, _ = spawner.start(SLEEPER)
    with pytest.raises(RmqhaError, match=rf"^pid {process.pid} is still there after SIGKILL: it waits in the kernel"):
        require_gone([process])
    stop_all([process], HANG_S)
    require_gone([process])


@pytest.mark.parametrize("lacking", ["python", "kernel", "filter"])
def test_a_system_without_handles_of_processes(spawner: Spawner, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """A Python that was built for old systems; a kernel before 5.3; a container whose filter does not know the call."""
    number = errno.ENOSYS if lacking == "kernel" else errno.EPERM

    def pidfd_open(_: int) -> int:
        raise OSError(number, os.strerror(number))

    if lacking == "python":
        make_old(monkeypatch.delattr, monkeypatch.setattr)
    else:
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    process, output = spawner.start(SLEEPER)
    assert os.getsid(process.pid) == process.pid
    assert output.read_text() == "up\n"
    assert not send_signal(Process(process.pid, "1"), signal.SIGKILL)
    assert process.alive
    assert stop_all([process], HANG_S) == []
    assert not send_signal(process, signal.SIGTERM)


def test_what_cannot_be_started_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RmqhaError, match="cannot start /nowhere/python: No such file"):
        spawn(["/nowhere/python"], tmp_path / "out")
