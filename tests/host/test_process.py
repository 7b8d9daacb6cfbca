"""Signals and /proc, on processes of their own."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from rmqha.host.net.network import dial
from rmqha.host.process import (
    KILLED_EXIT_CODE,
    SWITCH_INTERVAL_S,
    raise_file_limit,
    run_server,
    started_at_ticks,
)
from rmqha.model.error import UnreachableError
from tests.support.patience import HANG_MS, HANG_S, until

SERVER = """
import sys, time, trio
from rmqha.host.process import run_server

async def serve(stopping):
    say("ready")
    await stopping.wait()
    say("stopping")
    {after}
    say("drained")

def say(word):
    print(word, flush=True)

ended = run_server(serve, on_hangup=lambda: say("reopened"), grace_ms={grace_ms})
say(f"ended {{ended}}")
"""


@contextmanager
def server(after: str, grace_ms: int = HANG_MS) -> Iterator[subprocess.Popen[str]]:
    """A process that serves; `after` is what it does between being asked to stop and having drained."""
    code = SERVER.format(after=after, grace_ms=grace_ms)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert hear(process) == "ready"
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(number: int) -> None:
    with server("await trio.sleep(0.01)") as process:
        process.send_signal(number)
        assert [hear(process) for _ in range(3)] == ["stopping", "drained", "ended True"]
        assert process.wait(HANG_S) == 0


def test_draining_has_a_bound() -> None:
    with server("await trio.sleep_forever()", grace_ms=300) as process:
        process.send_signal(signal.SIGTERM)
        assert [hear(process) for _ in range(2)] == ["stopping", "ended False"]
        assert process.wait(HANG_S) == 0


def test_a_second_signal_ends_at_once_whatever_blocks() -> None:
    with server("await trio.to_thread.run_sync(time.sleep, 60)") as process:
        process.send_signal(signal.SIGTERM)
        assert hear(process) == "stopping"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == KILLED_EXIT_CODE


def test_hangup_reopens() -> None:
    with server("pass") as process:
        process.send_signal(signal.SIGHUP)
        assert hear(process) == "reopened"
        process.send_signal(signal.SIGTERM)
        assert hear(process) == "stopping"


def test_a_server_that_fails_says_why() -> None:
    async def serve(_: object) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        run_server(serve)


def test_the_name_lookups_of_a_server_take_no_thread_from_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a machine is cut off from its name servers: dials are given up, the lookups go on."""
    answer = Event()

    def getaddrinfo(*arguments: Any) -> list[Any]:
        if not arguments[-1] & socket.AI_NUMERICHOST:
            answer.wait(HANG_S)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    taken: list[int] = []

    async def serve(_: object) -> None:
        for number in range(50):
            with pytest.raises(UnreachableError):
                await dial(f"controller-{number}.far:1", 1)
        taken.append(trio.to_thread.current_default_thread_limiter().borrowed_tokens)

    try:
        assert run_server(serve)
    finally:
        answer.set()
    assert taken == [0]


def test_file_limit() -> None:
    limit = raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, limit)


@pytest.mark.parametrize(("limit", "room"), [(1000, 744), (256, 64), (64, 16)])
def test_few_descriptors_leave_some_for_files_and_are_told(limit: int, room: int) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "from rmqha.host.process import run_server, max_session_count\n"
        "async def serve(stopping): print(max_session_count())\n"
        "class Tracer:\n    def event(self, name, **fields): print(name, fields['connections'])\n"
        "run_server(serve, tracer=Tracer())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"few_descriptors {room}\n{room}\n"


def test_connections_that_cannot_be_accepted_are_told_once_and_without_a_traceback() -> None:
    """trio tries again each 0.1 s, and tells it each time."""
    code = (
        "import os, resource, socket, sys, trio\n"
        "from rmqha.host.process import run_server\n"
        "async def serve(stopping):\n"
        "    async def handle(stream): await trio.sleep_forever()\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        listeners = await trio.open_tcp_listeners(0, host='127.0.0.1')\n"
        "        peer = socket.socket()\n"
        "        nursery.start_soon(trio.serve_listeners, handle, listeners)\n"
        "        await trio.sleep(0)\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1,) * 2)\n"
        "        peer.connect(listeners[0].socket.getsockname())\n"
        "        await trio.sleep(0.35)\n"
        "        nursery.cancel_scope.cancel()\n"
        "class Tracer:\n    def event(self, name, **fields): print(name, fields.get('reason'))\n"
        "run_server(serve, tracer=Tracer())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True)
    told = [line for line in done.stdout.splitlines() if not line.startswith("few_descriptors")]
    assert told == ["connections_not_accepted accept returned EMFILE (Too many open files); retrying in 0.1 seconds"]
    assert done.stderr == ""


def test_a_process_is_named_by_pid_and_start_time() -> None:
    before = started_at_ticks(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = started_at_ticks(child.pid)
        assert started is not None and before is not None
        assert started >= before
        assert started == started_at_ticks(child.pid)
        child.kill()
        # a zombie until its parent asks for it
        until(lambda: started_at_ticks(child.pid) is None)
        pid = child.pid
    assert started_at_ticks(pid) is None


def test_another_users_process_that_is_hidden_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hidepid=1: a process id that was recorded may have become somebody else's."""

    def read_bytes(_: Path) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(Path, "read_text", read_bytes)
    assert started_at_ticks(1) is None


@pytest.mark.parametrize("name", [") S 1 (", "\\xff) \\xfe"])
def test_no_name_of_a_process_confuses(name: str) -> None:
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started, before = started_at_ticks(child.pid), started_at_ticks(os.getpid())
        assert started is not None and before is not None and started >= before
        child.kill()


FREED = """
import sys
from pathlib import Path
from rmqha.host.process import pin_malloc_thresholds

def anon_mib():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("RssAnon"))

assert sys.argv[1] == "plain" or pin_malloc_thresholds()
for size in (4, 8, 16):
    bytearray(size << 20)
before, bodies, small = anon_mib(), [], []
for number in range(100):
    buffer = bytearray()
    for _ in range(16):
        buffer += bytes(65536)
    bodies.append(bytes(buffer))
    small.append(bytes(2000 + number))
del buffer
bodies.clear()
print(anon_mib() - before)
"""


def test_large_memory_that_is_free_goes_back_to_the_system() -> None:
    """A hundred bodies of a MiB with something small behind each: 180 MiB stayed after such sends."""
    kept_mib = {
        kind: int(
            subprocess.run([sys.executable, "-c", FREED, kind], capture_output=True, text=True, check=True).stdout
        )
        for kind in ("plain", "pinned")
    }
    assert kept_mib["pinned"] < 10, kept_mib


TURNS = """
import sys
from rmqha.host.process import run_server

async def serve(stopping):
    print(sys.getswitchinterval())

run_server(serve)
"""


def test_threads_of_a_server_take_turns_more_often_than_pythons_default() -> None:
    """Or each read and write of the event loop waits for 5 ms beside a thread that encodes a table."""
    found = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, check=True).stdout
    assert float(found) == pytest.approx(SWITCH_INTERVAL_S) and SWITCH_INTERVAL_S < 0.001
