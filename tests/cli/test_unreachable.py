"""Every command that asks somebody, against addresses where nobody, somebody silent or another program listens: it ends
in time with exit code 2 and one sentence for each node that it could not ask, and has changed nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqha.cli.main import COMMANDS, main
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE
from rmqha.ops.local.supervisor import start_stamp
from tests.cli.hostile import hostile
from tests.support.patience import HANG_S

NODES = (("ns-1", "namesrv"), ("ctl-1", "controller"), ("broker-a-1", "broker"), ("broker-a-2", "broker"))
BY_ADDRESS = [
    "describe cluster --namesrv NS",
    "describe group broker-a --namesrv NS",
    "describe topic T --namesrv NS",
    "describe broker BROKER",
    "describe broker broker-a-1 --namesrv NS",
    "explain-wait --namesrv NS",
    "health --namesrv NS",
    "health --controller CTL -e --within 0",
    "top --namesrv NS",
    "topic ls --namesrv NS",
    "topic list --namesrv NS",
    "topic describe T --namesrv NS",
    "topic alter T --queues 4 --namesrv NS",
    "topic create T --namesrv NS",
    "topic delete T --yes --namesrv NS",
    "consumer ls --namesrv NS",
    "consumer describe G --namesrv NS",
    "consumer lag G --namesrv NS",
    "consumer lag G -w --namesrv NS",
    "consumer members G --namesrv NS",
    "consumer reset G --to first --yes --namesrv NS",
    "consumer skip G --yes --namesrv NS",
    "consumer create G --namesrv NS",
    "consumer alter G --pause --namesrv NS",
    "consumer delete G --yes --namesrv NS",
    "message get ID --namesrv NS",
    "message get ID --topic T --namesrv NS",
    "message find --topic T --key K --namesrv NS",
    "message find --topic T --grep x --namesrv NS",
    "message track ID --namesrv NS",
    "message resend ID --yes --namesrv NS",
    "dlq ls --namesrv NS",
    "dlq ls G --namesrv NS",
    "dlq resend G --yes --namesrv NS",
    "dlq export G - --namesrv NS",
    "send --topic T body --namesrv NS",
    "receive --topic T --namesrv NS",
    "bench produce --namesrv NS",
    "explain broker-a --controller CTL",
    "explain broker-a --namesrv NS",
    "quorum show --controller CTL",
    "quorum show --namesrv NS",
    "quorum add CTL --controller CTL",
    "quorum remove n1 --controller CTL",
    "quorum transfer --controller CTL",
    "quorum snapshot --controller CTL",
    "group resize broker-a 3 --controller CTL",
    "group resize broker-a 3 --namesrv NS",
    "config show CTL",
    "config get BROKER slaveReadEnable",
    "config set NS slaveReadEnable=false",
    "config diff BROKER CTL",
    "selftest net BROKER",
    "status --namesrv NS",
    "history --controller CTL",
    "logs broker-a-1 --namesrv NS",
    "elect broker-a --namesrv NS",
    "drain broker-a-1 --controller CTL",
    "remove broker-a-1 --namesrv NS",
    "join broker-a-3 --namesrv NS",
    "maintenance on broker-a-1 --namesrv NS",
    "acl user ls --namesrv NS",
    "acl policy ls --namesrv NS",
    "timers --namesrv NS",
    "transactions --namesrv NS",
    "upgrade check --namesrv NS",
    "fork ls --namesrv NS",
]
BY_DIRECTORY = [
    "status",
    "history",
    "health",
    "top broker-a",
    "elect broker-a",
    "elect broker-a --to broker-a-2",
    "elect broker-a --preferred",
    "drain broker-a-1",
    "drain broker-a-1 --undo",
    "join broker-a-1",
    "join broker-a-3",
    "remove broker-a-1",
    "maintenance on broker-a-1",
    "maintenance off broker-a-1",
    "maintenance show",
    "explain broker-a",
    "quorum show",
    "config show broker-a-1",
    "config set ctl-1 totalReplicas=3",
    "describe broker broker-a-1",
    "describe cluster",
    "explain-wait",
    "upgrade check",
    "fork ls",
    "fork show broker-a-1",
]
NOT_ASKING = {
    *("up", "down", "start", "stop", "restart", "kill", "purge"),  # processes
    *("broker", "drill", "proxy"),  # servers of their own
    *("log", "epochs", "fsck", "migrate", "spark", "generate", "use", "context"),  # files
    *("doctor", "debug"),  # what does not answer is what they are to tell: tests/cli/diagnosis
}
BEGINS = "asking "
"""Beginning of the line by which a command that works for long says at once what it does."""
EVERYBODY = ("status", "history", "health", "top")
"""They ask all nodes; the others need one to go on."""
PROCESSES = 16


def asks_everybody(command: str) -> bool:
    """Elsewhere `status` and `history` need one to find the others."""
    first, *rest = command.split()
    return first in EVERYBODY and not (first in ("status", "history") and rest)


@pytest.fixture
def addresses(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """One for each node, all of the kind that the test names."""
    with ExitStack() as stack:
        yield [stack.enter_context(hostile(request.param)) for _ in NODES]


def make_directory(directory: Path, addresses: list[str]) -> None:
    """A cluster that seems to run: each node's process is this one."""
    nodes = [
        {
            "name": name,
            "kind": kind,
            "address": address,
            "controller_address": address if kind == "controller" else "",
            "group": "broker-a" if kind == "broker" else "",
            "pid": os.getpid(),
            "process_start": start_stamp(os.getpid()),
        }
        for (name, kind), address in zip(NODES, addresses, strict=True)
    ]
    (directory / "c.toml").write_text('[cluster]\nname = "c"\n[[group]]\nname = "broker-a"\nreplicas = 2\n')
    document = {"version": 1, "name": "c", "haMode": "ap", "clusterFile": str(directory / "c.toml"), "nodes": nodes}
    (directory / "cluster.json").write_text(json.dumps(document))


def check(command: str, code: object, told: str, addresses: list[str]) -> list[str]:
    """What is wrong with how the command ended. `told`: both its outputs."""
    lines = [line for line in told.splitlines() if line.strip() and not line.startswith(BEGINS)]
    found = [] if code == 2 else [f"exit code {code}"]
    if "Traceback" in told:
        found.append("a traceback")
    if not asks_everybody(command):
        if len(lines) != 1:
            found.append(f"{len(lines)} lines")
        if "rmqha: no " in told and "; " not in told:
            found.append("no word on what to do")
    else:
        given = {"--namesrv": f"name server {addresses[0]}", "--controller": f"controller {addresses[1]}"}
        asked = [title for option, title in given.items() if option in command] or [name for name, _ in NODES]
        for title in asked:
            count = sum(line.startswith(f"{title}: ") for line in lines)
            if count != 1:
                found.append(f"{count} sentences for {title}")
    return [f"{command}: {item}: {told.strip()[:300]}" for item in found]


def filled(command: str, addresses: list[str]) -> list[str]:
    names = dict(zip(("NS", "CTL", "BROKER"), addresses, strict=False))
    return [names.get(word, word) for word in command.split()]


def test_no_command_is_forgotten() -> None:
    asking = {line.split()[0] for line in BY_ADDRESS + BY_DIRECTORY}
    assert asking | NOT_ASKING == set(COMMANDS) and not asking & NOT_ASKING


@pytest.mark.parametrize("addresses", ["dead", "http", "ssh"], indirect=True)
def test_nobody_or_a_stranger(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_directory(tmp_path, addresses)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    problems = []
    for command in BY_ADDRESS + BY_DIRECTORY:
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path) if command in BY_DIRECTORY else str(tmp_path / "none"))
        began = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            main(filled(command, addresses))
        out, err = capsys.readouterr()
        problems += check(command, ended.value.code, out + err, addresses)
        if time.monotonic() - began > HANG_S:
            problems.append(f"{command}: took {time.monotonic() - began:.0f} s")
    assert not problems, "\n".join(problems)
    assert {path.name for path in tmp_path.iterdir()} - {path.name for path in before} <= {"cluster.lock"}


@pytest.mark.parametrize("addresses", ["says nothing", "says something else"], indirect=True)
def test_somebody_who_says_something_else(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server of the same protocol, and of another kind or release: every request succeeds, with a body that tells
    nothing. Whatever can be said (the name server knows no broker) is exit code 1."""
    make_directory(tmp_path, addresses)
    monkeypatch.chdir(tmp_path)
    problems = []
    for command in BY_ADDRESS + BY_DIRECTORY:
        if command.startswith("selftest"):
            continue  # it asks for no more than an answer
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path) if command in BY_DIRECTORY else str(tmp_path / "none"))
        try:
            main(filled(command, addresses))
        except SystemExit as ended:
            code: object = ended.code
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            code = repr(error)
        out, err = capsys.readouterr()
        lines = (out + err).strip().splitlines()
        if code not in (1, 2) or not lines or (len(lines) > 1 and not asks_everybody(command)):
            problems.append(f"{command}: {code}: {lines}")
    assert not problems, "\n".join(problems)


def run_alone(command: str, directory: Path, addresses: list[str], limit_s: float) -> tuple[int, str] | None:
    """Exit code and output of a process of its own; None if it has not ended in time."""
    own = {DIRECTORY_VARIABLE: str(directory if command in BY_DIRECTORY else directory / "none")}
    words = [sys.executable, "-m", "rmqha", *filled(command, addresses)]
    try:
        done = subprocess.run(
            words, cwd=directory, env=os.environ | own, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout + done.stderr


@pytest.mark.chaos
@pytest.mark.parametrize("addresses", ["half-dead"], indirect=True)
def test_nobody_who_answers(addresses: list[str], tmp_path: Path) -> None:
    """Side by side, since each waits for its time-out; but the lock of the directory is one command's at a time."""
    make_directory(tmp_path, addresses)
    problems = []
    locking = [command for command in BY_DIRECTORY if command.split()[0] in ("join", "remove")]
    others = [command for command in BY_ADDRESS + BY_DIRECTORY if command not in locking]
    for commands, process_count in ((others, PROCESSES), (locking, 1)):
        with ThreadPoolExecutor(process_count) as pool:
            ended = list(pool.map(lambda command: run_alone(command, tmp_path, addresses, HANG_S), commands))
        for command, told in zip(commands, ended, strict=True):
            if told is None:
                problems.append(f"{command}: has not ended after {HANG_S} s")
            else:
                problems += check(command, *told, addresses)
    assert not problems, "\n".join(problems)
