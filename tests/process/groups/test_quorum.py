"""Real controllers on real disks: one comes, one goes, one is killed, one loses its disk; elections go on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.ops.local.preflight import free_ports
from tests.support.command import rmqha_in
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos


class Controllers:
    """Processes n0, n1, …; every new one has those before it in its list."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = free_ports(8)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.base + number}"

    def store(self, number: int) -> Path:
        return self.directory / f"store-{number}"

    def start(self, number: int, count: int) -> None:
        peers = ";".join(f"n{other}-{self.address(other)}" for other in range(count))
        config = self.directory / f"n{number}.conf"
        config.write_text(
            f"controllerDLegerPeers={peers}\ncontrollerDLegerSelfId=n{number}\n"
            f"controllerStorePath={self.store(number)}\nlistenAddress=127.0.0.1\n"
            f"logFile={self.directory}/n{number}.log\n"
        )
        command = [sys.executable, "-P", "-m", "rmqha", "controller", "-c", str(config)]
        with (self.directory / f"n{number}.out").open("ab") as out:
            self.processes[number] = subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(HANG_S)

    def rmqha(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        asked = ";".join(self.address(number) for number in sorted(self.processes))
        return rmqha_in(self.directory, "quorum", *arguments, "--controller", asked)

    def quorum(self, *arguments: str) -> Any:
        done = self.rmqha(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def removed_once_heard(self, node: str) -> Any:
        """Remove `node` as soon as the leader has heard of one that has just started, and answers others already."""
        deadline = time.monotonic() + HANG_S
        while True:
            done = self.rmqha("remove", node, "-o", "json")
            if "does not answer; start it" not in done.stderr or time.monotonic() > deadline:
                assert done.returncode == 0, done.stderr
                return json.loads(done.stdout)

    def until_well(self, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
        """All of the group but `without` answer, and one of them leads; what `show` says."""
        deadline = time.monotonic() + HANG_S
        while True:
            done = self.rmqha("show", "-o", "json")
            if done.stdout:
                found: dict[str, Any] = json.loads(done.stdout)
                ill = {node["node"] for node in found["nodes"] if node["problem"]}
                if found["leader"] and not found["problem"] and ill <= set(without):
                    return found
            assert time.monotonic() < deadline, done.stdout + done.stderr

    def until_another_leads(self, than: str) -> str:
        while (leader := str(self.until_well(without=(than,))["leader"])) == than:
            continue
        return leader


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(tmp_path)
    try:
        yield made
    finally:
        made.end()


def kinds(found: dict[str, Any]) -> dict[str, str]:
    return {node["node"]: node["kind"] for node in found["nodes"]}


def test_a_fourth_comes_one_goes_and_elections_go_on(controllers: Controllers) -> None:
    for number in range(3):
        controllers.start(number, 3)
    assert kinds(controllers.until_well()) == {"n0": "VOTER", "n1": "VOTER", "n2": "VOTER"}

    controllers.start(3, 4)
    early = controllers.rmqha("add", "127.0.0.1:1")
    assert (early.returncode, early.stdout) == (2, "")
    assert early.stderr.startswith("rmqha: ") and early.stderr.count("\n") == 1
    while True:
        added = controllers.rmqha("add", controllers.address(3), "-o", "json")
        if added.returncode != 2:  # 2: it does not listen yet
            break
    assert added.returncode == 0, added.stderr
    assert json.loads(added.stdout)["kind"] == "VOTER"
    assert kinds(controllers.until_well()) == {"n0": "VOTER", "n1": "VOTER", "n2": "VOTER", "n3": "VOTER"}
    again = controllers.rmqha("add", controllers.address(3))
    assert (again.returncode, again.stderr) == (1, "rmqha: n3 is in the group already\n")

    assert controllers.quorum("transfer", "n3") == {"leader": "n3"}
    assert set(controllers.quorum("snapshot")) == {"n0", "n1", "n2", "n3"}
    assert [node["node"] for node in controllers.quorum("remove", "n0")["members"]] == ["n1", "n2", "n3"]
    controllers.kill(0)

    controllers.kill(3)
    second = controllers.until_another_leads("n3")
    assert second in ("n1", "n2")
    controllers.start(3, 4)
    controllers.until_well()
    removed = controllers.removed_once_heard(second)
    assert second not in [node["node"] for node in removed["members"]]
    assert controllers.until_well()["leader"] != second


def test_a_lost_disk_has_no_vote_until_it_is_added_again(controllers: Controllers) -> None:
    for number in range(3):
        controllers.start(number, 3)
    leader = controllers.until_well()["leader"]
    victim = next(number for number in range(3) if f"n{number}" != leader)
    controllers.kill(victim)
    shutil.rmtree(controllers.store(victim))
    controllers.start(victim, 3)
    lost = f"n{victim}"
    deadline = time.monotonic() + HANG_S
    while True:
        shown = controllers.rmqha("show")
        if "has lost its disk" in shown.stdout:
            break
        assert time.monotonic() < deadline, shown.stdout
    assert shown.returncode == 1
    refused = controllers.rmqha("add", controllers.address(victim))
    assert (refused.returncode, "knows " + lost + " with another disk" in refused.stderr) == (1, True)

    controllers.quorum("remove", lost)
    controllers.quorum("add", controllers.address(victim))
    controllers.kill(int(leader[1:]))
    assert controllers.until_another_leads(leader) != leader
