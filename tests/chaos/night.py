"""A night on call: a group of three and three controllers are hit again and again, and an operator asks and acts by the
`rmqha` command alone.

The script and what each command must print stand in tests/golden/ops/night.txt. `python -m tests.chaos.night DIR` plays
it in DIR, in a mount namespace of its own, where one broker's disk can be filled; exit code 1 and a difference for the
first command that prints something else. With --record it writes the script anew with what was printed: read it before
you believe it.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from rmqha.drill.hosts.places import SMALL_FILES, drain, fill
from rmqha.drill.hosts.sandbox import enter_own, mount_tmpfs
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.preflight import free_ports
from rmqha.ops.local.supervisor import send_signal
from tests.support.command import rmqha_in
from tests.support.patience import HANG_S
from tests.support.script import Step, is_look, is_same, masked, only_wrong, steps

SCRIPT = Path(__file__).parents[1] / "golden" / "ops" / "night.txt"
DISK_BYTES = 64 * 1024 * 1024
FILLED = "broker-a-3"
"""The broker whose store lies on a small disk."""
LOOK_AGAIN_S = 0.3
INTERRUPTED = 130
NIGHT_S = 400.0
"""Hang limit of the whole: some 80 commands, each of which may wait for a process to start on a busy machine."""
RECORD_S = 30.0
SETTLED_S = 2.5
"""A record takes what has stayed the same for so long."""
CLUSTER = """\
[cluster]
name = "night"
haMode = "cp"
[namesrv]
listenPort = {base}
embedController = false
[controllers]
count = 3
listenPort = {controllers}
[[group]]
name = "broker-a"
replicas = 3
listenPort = {brokers}
[broker]
{keys}
"""
LEFT_OUT = re.compile(r"^\s*\+[\d.]+ s in the set: |^longest gap ")
"""Steps of the set, and gaps between acknowledgements: how many there are depends on the machine."""

FULL = re.compile(
    r"/\S+rmqha\.probe: No space left on device|the disk is full: N % are in use, diskSpaceWarningLevelRatio is 90; "
    r"free some space or keep the log shorter"
)
"""Words for a full disk: those of whichever look has found it first."""
REASON = re.compile(r"^(TIME epoch \d+ [^(]*|broker-a: \S+ is master of epoch \d+: [^(]*)\(.*\)$")
"""The part of an election's line that says what the moment brought: who was alive, and who was equal."""
SIZES = re.compile(r"(?<!\+)\b(\d{1,3}(,\d{3})+|\d{3,})\b")
"""Places in the log, and codes: a send that was tried again is there twice."""
ASKED_LAST = re.compile(r"(?<=cannot connect to )PORT\+\d+")
LAST_HEARD = re.compile(r"^(broker-a-\d \d PORT\+\d+ \w+)( \d+)*$")
"""A row of explain: of a replica that is away it holds what its last heartbeat said, whenever that was."""


class Night:
    """The cluster in `scratch`, and whoever types."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._directory = scratch / "rmqha-data" / "night"
        self._base = free_ports(80)
        keys = "\n".join(f"{key} = {value}" for key, value in SMALL_FILES.items())
        text = CLUSTER.format(base=self._base, controllers=self._base + 1, brokers=self._base + 10, keys=keys)
        (scratch / "night.toml").write_text(text)
        self.store = self._directory / FILLED / "store"

    # --- what is typed ----------------------------------------------------------------------------------------------
    def run(self, command: str) -> tuple[str, ...]:
        """What it prints, without what differs from night to night."""
        if command.startswith("!"):
            self._act(*command[1:].split())
            return ()
        program, *words = shlex.split(command)
        assert program == "rmqha"
        done = rmqha_in(self._scratch, *words)
        if done.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        lines = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
        if words[0] == "doctor":
            lines = of_the_cluster(only_wrong(lines))
        if words[0] == "receive":
            # messages that one command sends come in any order; one that was tried again comes twice
            lines = sorted({line for line in lines if not line.endswith(" messages")})
        code = [f"(exit code {done.returncode})"] if done.returncode else []
        return tuple(self._masked(line) for line in [*code, *lines] if line and not LEFT_OUT.match(line))

    def _act(self, act: str, node: str) -> None:
        process = self._state().node(node).process
        match act:
            case "freeze" | "thaw":
                assert process is not None
                assert send_signal(process, signal.SIGSTOP if act == "freeze" else signal.SIGCONT)
            case "move":
                assert node == FILLED
                kept = self.store.rename(self.store.with_name("store.large"))
                mount_tmpfs(self.store, DISK_BYTES)
                shutil.copytree(kept, self.store, dirs_exist_ok=True)
                shutil.rmtree(kept)
            case "grow":
                file = self._scratch / "night.toml"
                file.write_text(file.read_text().replace("replicas = 3", "replicas = 4"))
            case "fill":
                assert node == FILLED
                fill(self.store)
            case "empty":
                assert node == FILLED
                drain(self.store)
            case _:
                raise AssertionError(f"there is no act {act!r}")

    def _state(self) -> ClusterState:
        return ClusterState.require(self._directory)

    def _masked(self, line: str) -> str:
        text = line.replace(str(self._scratch), "/home/you")
        text = masked(re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"PORT+{int(found[1]) - self._base}", text))
        text = SIZES.sub("N", ASKED_LAST.sub("PORT", LAST_HEARD.sub(r"\1", FULL.sub("FULL", text))))
        return REASON.sub(r"\1(WHY)", text)

    # --- until it is as it must be, or stays as it is ---------------------------------------------------------------
    def played(self, step: Step) -> tuple[str, ...]:
        """What the command has printed; a look is repeated until that is what it must be."""
        seen = self.run(step.command)
        deadline = time.monotonic() + HANG_S
        while is_look(step.command) and not is_same(step.output, seen) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)
            seen = self.run(step.command)
        return seen

    def recorded(self, step: Step) -> tuple[str, ...]:
        """What the command prints; a look is repeated until it prints the same for SETTLED_S."""
        seen, since, end = self.run(step.command), time.monotonic(), time.monotonic() + RECORD_S
        while is_look(step.command) and time.monotonic() - since < SETTLED_S and time.monotonic() < end:
            time.sleep(LOOK_AGAIN_S)
            again = self.run(step.command)
            if again != seen:
                seen, since = again, time.monotonic()
        return seen

    def end(self) -> None:
        """Nothing that it has started runs on."""
        state = ClusterState.find(self._directory)
        for node in state.nodes.values() if state is not None else ():
            if node.process is not None:
                send_signal(node.process, signal.SIGKILL)


def of_the_cluster(findings: list[str]) -> list[str]:
    """Findings of a doctor, each with its fix, without those on the disks that this machine happens to have."""
    found, is_kept = [], True
    for line in findings:
        if line.startswith("WRONG"):
            is_ours = f" {FILLED} · " in line and " lies on " not in line
            is_kept = not line.startswith("WRONG machine ") and (is_ours or " · disk: " not in line)
        found += [line] if is_kept else []
    return found


def main(arguments: list[str]) -> int:
    """Exit code 1 for the first command that prints something else."""
    recording, scratch = "--record" in arguments, Path(arguments[-1])
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ.update({"NO_COLOR": "1", "COLUMNS": "200", "RMQHA_DIRECTORY": str(scratch / "rmqha-data" / "night")})
    enter_own()
    night, told, dawn = Night(scratch), [], time.monotonic() + NIGHT_S
    try:
        for step in steps(SCRIPT.read_text()):
            if not step.command:
                told.append("\n".join(step.output))
                continue
            started = time.monotonic()
            assert started < dawn, f"the night has lasted for {NIGHT_S:g} s"
            seen = night.recorded(step) if recording else night.played(step)
            print(f"{time.monotonic() - started:5.1f} s  {step.command}", flush=True)
            if not recording and not is_same(step.output, seen):
                print(*difflib.unified_diff(step.output, seen, "expected", "printed", lineterm=""), sep="\n")
                return 1
            told.append("\n".join([f"$ {step.command}", *(step.output if is_same(step.output, seen) else seen)]))
    finally:
        night.end()
    if recording:
        SCRIPT.write_text("\n".join(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
