"""`rmqha top` in a terminal of its own, and where there is none."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import trio

from rmqha.model.code import RequestCode as Code
from tests.cli.health.test_command import tell
from tests.client.test_admin import peers
from tests.support.command import rmqha
from tests.support.patience import HANG_S


class Terminal:
    """The program's end is its standard input and output."""

    def __init__(self) -> None:
        self._handle, self.program_end = pty.openpty()
        fcntl.ioctl(self.program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.program_end)
        self.shown = ""

    async def until(self, holds: Callable[[str], bool]) -> None:
        with trio.move_on_after(HANG_S):
            while not holds(self.shown):
                await trio.lowlevel.wait_readable(self._handle)
                self.shown += os.read(self._handle, 65536).decode(errors="replace")
        assert holds(self.shown), self.shown[-4000:]

    def press(self, keys: str) -> None:
        self.shown = ""
        os.write(self._handle, keys.encode())

    def close(self) -> None:
        os.close(self._handle)
        os.close(self.program_end)


async def test_it_is_live_asks_and_ends(tmp_path: Path) -> None:
    terminal = Terminal()
    async with peers(5) as found:
        # rows go by address, and the master's shall be the first
        found[2:] = sorted(found[2:], key=lambda peer: peer.address)
        bootstrap = tell(found)
        found[1].replies[Code.CONTROLLER_ELECT_MASTER] = (0, {"masterEpoch": "5"}, b"")
        command = [sys.executable, "-P", "-m", "rmqha", "top", "--interval", "0.2", "--namesrv"]
        end = terminal.program_end
        process = await trio.lowlevel.open_process(
            [*command, *bootstrap.name_servers],
            stdin=end,
            stdout=end,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
        )
        try:
            await terminal.until(lambda text: "HEALTHY" in text and "master" in text)
            terminal.press("jm")
            await terminal.until(lambda text: "into maintenance" in text and "? y or n" in text)
            terminal.press("n")
            await terminal.until(lambda text: "nothing done" in text)
            terminal.press("s")
            await terminal.until(lambda text: "the master of broker-a? y or n" in text)
            terminal.press("y")
            await terminal.until(lambda text: "is master of broker-a, epoch 5" in text)
            asked = [item for item in found[1].asked if item.code == Code.CONTROLLER_ELECT_MASTER]
            assert len(asked) == 1 and asked[0].ext["designateElect"] == "true"
            terminal.press("q")
            with trio.fail_after(HANG_S):
                assert await process.wait() == 0
        finally:
            process.kill()
            await process.wait()
    assert termios.tcgetattr(terminal.program_end) == terminal.before
    terminal.close()


async def test_without_a_terminal_it_is_one_look(tmp_path: Path) -> None:
    async with peers(5) as found:
        where = ("--interval", "0.2", "--namesrv", tell(found).name_servers[0])
        done = await rmqha("top", *where, directory=tmp_path)
        assert done.returncode == 0 and done.stdout.splitlines()[0].endswith("HEALTHY")
        told = json.loads((await rmqha("top", "broker-a", "-o", "json", *where, directory=tmp_path)).stdout)
        assert (told["health"], len(told["replicas"])) == ("HEALTHY", 3)
        done = await rmqha("top", "nobody", *where, directory=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
