"""The tutorial's commands, run in order, print what it says; times, ports, ids and the winner of an election apart."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmqha.ops.local.cluster_state import QUICKSTART
from rmqha.ops.local.preflight import free_ports
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S

PAGE = Path(__file__).parents[3] / "docs" / "start" / "tutorial.md"
README = Path(__file__).parents[3] / "README.md"
LOOKS = ("status", "explain", "health", "receive", "log", "epochs")
"""Commands that change nothing: asked again until the group has settled."""
ANY = "..."
"""A line that stands for any lines: progress that depends on the machine."""

MASKS = (
    (r"\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"(\d{4}-)?\d\d-\d\d TIME", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"ADDRESS \d+$", "ADDRESS PID"),
    (r"pid \d+", "pid PID"),
    (r"^(broker-a-)\d (master|slave) +\d", r"\1N \2 ID"),
    (r"^(broker-a-)\d \d (?=ADDRESS)", r"\1N ID "),
    (r"broker-a-\d", "broker-a-N"),
    (r"(replica|master|slaves|,) \d(?= (is|at|cannot)\b|:|, epoch)", r"\1 ID"),
    (r"^\d ADDRESS", "ID ADDRESS"),
    (r"(?<=[\[ ])\d(?=[\],])", "ID"),
    (r"is dead: [^;]+", "is dead: WHY"),
    (r"(?<=first election of the group \()(there was no|broker-a-N asked for a) master(?=;)", "WHY"),
    (r"set epoch \d+", "set epoch N"),
    (r"up to \d+$", "up to N"),
    (r":\d@\d", ":QUEUE@OFFSET"),
    (r"^\d+ Hello", "POSITION Hello"),
    (r"\d+ msg/s over [\d.]+ s", "RATE"),
    (r"^(retried|duplicates possible) \d+", r"\1 N"),
)


@dataclass(frozen=True)
class Step:
    command: str
    output: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    """Commands of the page's console blocks, each with the lines below it."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *output = part.splitlines()
            yield Step(command, tuple(output))


def masked(lines: tuple[str, ...], root: str) -> Counter[str]:
    """Lines without what differs from run to run. Rows are sorted by names that differ, so order is not compared."""
    found: Counter[str] = Counter()
    for line in lines:
        text = " ".join(line.replace(root, "/home/you").split())
        for pattern, word in MASKS:
            text = re.sub(pattern, word, text)
        found[text] += bool(text)
    return found


def same(expected: tuple[str, ...], seen: tuple[str, ...], root: str) -> bool:
    wanted = masked(tuple(line for line in expected if line != ANY), root)
    given = masked(seen, root)
    return wanted <= given if ANY in expected else wanted == given


class Reader:
    """Somebody who types the page's commands in an empty directory, with ports of their own."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        base = free_ports(80)
        text = QUICKSTART.read_text()
        for port, own in (("9876", base), ("9878", base + 1), ("10911", base + 10)):
            text = text.replace(f"listenPort = {port}", f"listenPort = {own}")
        text = text.replace("httpPort = 9888", f"httpPort = {base + 5}")
        (scratch / "own.toml").write_text(f"{text}diskMaxUsedSpaceRatio = 100\n")
        self.cluster = LocalCluster(scratch)
        self.cluster.directory = scratch / "rmqha-data" / "quickstart"
        self.killed = ""
        self.code = 0

    def words(self, command: str) -> list[str]:
        """What is typed: the page kills the master of its own run, the reader that of theirs."""
        program, *words = shlex.split(command)
        assert program == "rmqha"
        if words == ["up"]:
            return ["up", "own.toml"]
        if words[0] == "receive":
            return [*words, "-o", "table"]  # as on a terminal: a pipe gets the bodies alone
        if words[0] == "kill":
            self.killed = self.cluster.master()
        return [words[0], self.killed] if words[0] in ("kill", "start") else words

    def run(self, words: list[str]) -> tuple[str, ...]:
        """What it prints; `code` is its exit code then."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "rmqha", *words],
            cwd=self.scratch,
            env=os.environ | {"RMQHA_DIRECTORY": str(self.cluster.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        self.code = done.returncode
        return tuple(done.stdout.splitlines())

    def follow(self, step: Step) -> None:
        words = self.words(step.command)
        deadline = time.monotonic() + HANG_S
        seen = self.run(words)
        while not same(step.output, seen, str(self.scratch)):
            shown = "\n".join(seen)
            assert words[0] in LOOKS and time.monotonic() < deadline, f"{step.command} printed\n{shown}"
            time.sleep(0.2)
            seen = self.run(words)


@pytest.mark.chaos
@pytest.mark.spark
def test_each_command_of_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    page = list(steps(PAGE.read_text()))
    assert len(page) >= 14
    reader = Reader(tmp_path)
    try:
        for step in page:
            reader.follow(step)
    finally:
        reader.cluster.down()


def readme_lines() -> list[str]:
    """Commands of rmqha in the README's first block."""
    block = README.read_text().partition("## A group in five lines")[2].split("```")[1]
    return [line.partition("#")[0].strip() for line in block.splitlines() if line.startswith("rmqha ")]


@pytest.mark.chaos
def test_the_readmes_five_lines_do_what_they_say(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    lines = readme_lines()
    assert [line.split()[1] for line in lines] == ["up", "send", "kill", "receive"]
    try:
        told = {}
        for line in [*lines, "rmqha down", "rmqha purge --yes"]:
            words = reader.words(line)
            told[words[0]] = reader.run(words)
            assert reader.code == 0, (line, told[words[0]])
        assert any("haMode=cp" in line for line in told["up"]) and any(
            "page of ns-1: http" in line for line in told["up"]
        )
        assert any(line == "acknowledged         3" for line in told["send"])
        assert told["kill"][0].startswith(f"{reader.killed} killed, pid ")
        assert told["receive"][-1] == "3 messages", "another replica has taken over with all of them"
        assert not reader.cluster.directory.exists()
    finally:
        reader.cluster.down()


def test_a_page_that_lies_is_seen() -> None:
    """What is masked is only what differs from run to run."""
    row = "broker-a-2 master  3     2 839     839 in  127.0.0.1:10921 31287"
    other = "broker-a-3 master  2     2 839     839 in  127.0.0.1:4711 5"
    assert same((row,), (other,), "/x")
    explained = "broker-a-2  2 127.0.0.1:10921 master     2 839   0"
    assert same((explained,), (explained.replace("a-2  2", "a-3  3"),), "/x")
    first = "TIME epoch 1 broker-a-1: first election of the group ({}; lowest id among equals)"
    asked = "broker-a-2 asked for a master"  # a replica, where the controller is slow to see that there is none
    assert same((first.format("there was no master"),), (first.format(asked),), "/x")
    assert not same((first.format("there was no master"),), (first.format("the master died"),), "/x")
    for lie in (row.replace("839", "629", 1), row.replace("master", "slave"), row.replace(" in ", " out ")):
        assert not same((lie,), (other,), "/x")
    assert not same(("4 messages",), ("3 messages",), "/x")
    assert same((ANY, "b"), ("a", "b"), "/x") and not same((ANY, "b"), ("a",), "/x") and not same((), ("a",), "/x")


def test_the_readme_shows_output_of_the_tutorial() -> None:
    shown = README.read_text().partition("print, for example:\n")[2].split("```")[1]
    told = {line for step in steps(PAGE.read_text()) for line in step.output}
    assert len(shown.split("\n")) > 6
    assert [line for line in shown.splitlines() if line and line not in told] == []
