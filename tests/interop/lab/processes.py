"""Processes of both kinds: started on free loopback ports, logs in the scratch directory, ended by id."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from rmqha.host.net.remoting import RemotingClient
from rmqha.model.error import RmqhaError
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.support.patience import HANG_S

POLL_S = 0.1
CALL_TIMEOUT_MS = 60_000


class Process:
    """A running program. Standard output goes to `output`, standard error to `log`."""

    def __init__(self, name: str, command: list[str], directory: Path, *, takes_input: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.is_paused = False
        self.name = name
        self.output = directory / f"{name}.out"
        self.log = directory / f"{name}.log"
        with self.output.open("wb") as output, self.log.open("wb") as log:
            stdin = subprocess.PIPE if takes_input else subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=stdin, stdout=output, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def write(self, text: str) -> None:
        """To its standard input."""
        assert self._process.stdin is not None, f"{self.name} takes no input"
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def lines(self) -> list[str]:
        """Whole lines of standard output so far."""
        text = self.output.read_text(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()

    def tail(self) -> str:
        """The end of what it said, for a failing test."""
        return "\n".join(
            (self.output.read_text(errors="replace") + self.log.read_text(errors="replace")).splitlines()[-40:]
        )

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Fails when it does not end."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s:\n{self.tail()}") from None

    def kill(self) -> None:
        """kill -9, at once."""
        if self.alive:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(HANG_S)


def ours(command: str, config: Path) -> list[str]:
    """The command line of one of our servers: namesrv, controller or broker."""
    return [sys.executable, "-P", "-m", "rmqha", command, "-c", str(config)]


def write_properties(path: Path, properties: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def until(what: str, condition: Callable[[], bool], timeout_s: float, *processes: Process) -> None:
    """Poll until it holds; fails with `what`, and with what `processes` said, at the time-out or when one has ended."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        gone = [item for item in processes if not item.alive]
        if gone or time.monotonic() > deadline:
            said = "\n".join(f"--- {item.name}\n{item.tail()}" for item in gone or processes)
            why = f"{gone[0].name} has ended" if gone else f"not within {timeout_s:g} s"
            raise AssertionError(f"{what}: {why}\n{said}")
        time.sleep(POLL_S)


def accepts(address: str) -> bool:
    """Somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def call(address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command | None:
    """One request by our own client; None if nobody answers."""
    try:
        (reply,) = calls(address, Command(code, ext or {}, body))
    except RmqhaError:
        return None
    return reply


def calls(address: str, *commands: Command) -> list[Command]:
    """The answers to requests that are made one after the other on one connection. Raises RmqhaError."""

    async def ask() -> list[Command]:
        async with RemotingClient() as client:
            return [await client.call(address, command, CALL_TIMEOUT_MS) for command in commands]

    return trio.run(ask)


def ask_json(address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> dict[str, Any]:
    """The JSON body of the answer, {} if there is none."""
    reply = call(address, code, ext, body)
    found = lenient_json.loads(reply.body) if reply is not None and reply.body else {}
    return found if isinstance(found, dict) else {}


def log_bytes(store: Path) -> bytes:
    """All CommitLog files one after the other."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
