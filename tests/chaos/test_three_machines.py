"""The page "three machines, step by step", typed on three hosts with a network between them."""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.drill.hosts.namespaces import Namespaces
from rmqha.ops.local.supervisor import Process, send_signal, start_stamp
from tests.support.patience import HANG_S
from tests.support.script import Step, is_look, is_same, masked, only_wrong, steps

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "three-machines.md"
MACHINES = ("m1", "m2", "m3")
LOOK_AGAIN_S = 0.3
SETTLED_S = 4.0
MORE_MASKS = (
    (r"(?<!set )\bepoch \d+", "epoch N"),
    (r"\b(leader|follower) \d+", "controller N"),
    (r"(?<=routes by the elections of )\S+", "WHO"),
    (r"^(broker-a-\d (master|slave) \d) \d+", r"\1 N"),
    (r"^kernel: .*", "kernel: K"),
)
PRELUDE = """\
scp() { cp -p "$2" "../${3%:}/"; }
[ ! -e .exports ] || . ./.exports
"""
"""In place of a login on another machine: their homes lie side by side."""


def parts(text: str) -> Iterator[Step]:
    """The page's commands, and what happens to its machines as steps at "network"."""
    for block, act in re.findall(r"^```console\n(.*?)^```|^<!-- test: ([a-z0-9 ]+) -->$", text, re.M | re.S):
        if act:
            yield Step(act, (), "network")
        else:
            yield from steps(block)


def own_masked(line: str) -> str:
    """Masked, and without what elections here leave to chance."""
    text = masked(line)
    for pattern, word in MORE_MASKS:
        text = re.sub(pattern, word, text)
    return text


def expected_of(step: Step) -> tuple[str, ...]:
    """What the page says, as `Machines.typed` gives it."""
    lines = tuple(own_masked(line) for line in step.output)
    return tuple(sorted(lines)) if " receive " in step.command else lines


class Machines:
    """Each has a home of its own, named by its address, and a network of its own on one bridge."""

    def __init__(self, hosts: Namespaces, scratch: Path) -> None:
        self._hosts = hosts
        self._scratch = scratch
        self._addresses = {f"10.0.0.{number}": hosts.address(name) for number, name in enumerate(MACHINES, 1)}
        self._started: list[Process] = []
        for name in MACHINES:
            self._home(name).mkdir()

    def _home(self, name: str) -> Path:
        return self._scratch / self._hosts.address(name)

    def typed(self, step: Step) -> tuple[str, ...]:
        """What it prints on each machine on which it is typed."""
        if step.where == "network":
            act, name = step.command.split()
            (self._hosts.cut if act == "cut" else self._hosts.join)(name)
            return ()
        names = MACHINES if step.where == "all" else (step.where,)
        return tuple(line for name in names for line in self._on(name, step.command))

    def _on(self, name: str, command: str) -> list[str]:
        home = self._home(name)
        for page, own in self._addresses.items():
            command = re.sub(rf"{re.escape(page)}\b", own, command)
        if command.startswith("export "):
            (home / ".exports").write_text(f"{command}\n")
        done = self._hosts.run(name, lambda: self._shell(home, command))
        self._remember(home)
        lines = [line.rstrip() for line in done.stdout.splitlines()]
        if command.startswith("rmqha doctor"):
            lines = only_wrong(lines)
        if " receive " in command:
            lines.sort()  # messages that one command sends come in any order
        code = [f"(exit code {done.returncode})"] if done.returncode else []
        return [self._masked(line, home) for line in [*code, *lines] if line]

    def _shell(self, home: Path, command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RMQHA_")}
        environment |= {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            ["bash", "-c", PRELUDE + command],
            cwd=home,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * HANG_S,
            check=False,
        )

    def _remember(self, home: Path) -> None:
        for file in home.glob("*.pid"):
            pid = int(file.read_text())
            if (stamp := start_stamp(pid)) and Process(pid, stamp) not in self._started:
                self._started.append(Process(pid, stamp))

    def _masked(self, line: str, home: Path) -> str:
        text = line.replace(str(home), "/home/you")
        for page, own in self._addresses.items():
            text = re.sub(rf"{re.escape(own)}\b", page, text)
        return own_masked(text)

    def played(self, step: Step) -> tuple[str, ...]:
        """What the command has printed; a look is repeated until that is what the page says."""
        expected = expected_of(step)
        seen, deadline = self.typed(step), time.monotonic() + HANG_S
        while is_look(step.command) and not is_same(expected, seen) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)
            seen = self.typed(step)
        return seen

    def recorded(self, step: Step) -> tuple[str, ...]:
        """What the command prints once that has stayed the same for SETTLED_S."""
        seen, since, end = self.typed(step), time.monotonic(), time.monotonic() + HANG_S
        while is_look(step.command) and time.monotonic() - since < SETTLED_S and time.monotonic() < end:
            time.sleep(LOOK_AGAIN_S)
            if (again := self.typed(step)) != seen:
                seen, since = again, time.monotonic()
        return seen

    def end(self) -> None:
        for process in self._started:
            send_signal(process, signal.SIGKILL)


@pytest.mark.chaos
def test_every_command_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    """With RMQHA_RECORD=FILE what is printed goes there, and is compared with nothing."""
    record = os.environ.get("RMQHA_RECORD")
    told: list[str] = []
    with Namespaces(MACHINES) as hosts:
        machines = Machines(hosts, tmp_path)
        try:
            for step in parts(PAGE.read_text()):
                seen = machines.recorded(step) if record else machines.played(step)
                told.append("\n".join([f"{step.where}$ {step.command}", *seen]))
                expected = expected_of(step)
                difference = difflib.unified_diff(expected, seen, "page", "printed", lineterm="")
                assert record or is_same(expected, seen), "\n".join(
                    [step.command, *difference, "before:", *told[-4:-1]]
                )
        finally:
            machines.end()
            if record:
                Path(record).write_text("\n".join(told) + "\n")


def test_the_page_begins_with_nothing_and_ends_well() -> None:
    typed = list(parts(PAGE.read_text()))
    assert len(typed) > 30
    assert {step.where for step in typed} == {"m1", "m2", "m3", "all", "network"}
    assert [step.command for step in typed if step.where == "network"] == ["cut m1", "join m1"]
    assert typed[-1].output[0].startswith("HEALTHY")
