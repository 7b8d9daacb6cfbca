"""A group of three with honest clients, that attacks are tried on, and what is seen meanwhile.

Name server with an embedded controller, three brokers in CP, a producer and a consumer, each attacker: processes of
their own on this machine's loopback. Each is ended by its own id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from rmqha.drill.cluster import GROUP, Cluster, quickstart, wall_ms
from rmqha.host.access.security import ambient
from tests.abuse.attack import Attack
from tests.abuse.forger import forging
from tests.abuse.gaps import Gaps
from tests.abuse.honest import TIMEOUT_MS
from tests.abuse.keys import Keys
from tests.abuse.outcome import Outcome, percentile_ms
from tests.abuse.scene import Scene
from tests.support.patience import HANG_S, until

MIB = 1 << 20
SAMPLE_S = 0.1
STARTED_S = 60.0
SETTLE_S = 30.0
SETTLED_BYTES = 64 * MIB
"""Private memory above what it was before the attack that counts as fallen back."""
AFTER_S = 1.0
"""Time for which honest sends are measured after an attack."""
PACE_MS = 300
"""A quarter of the sends due in this last time must have been answered: then they are well again."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One honest send."""

    due_ms: int
    taken_ms: float
    outcome: str
    body: str


class Lines:
    """A file that another process appends lines to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def more(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._at += whole
        return data[:whole].decode().splitlines()


@dataclass
class Memory:
    """RssAnon of processes, looked at by a thread of its own."""

    pids: Mapping[str, int]
    before: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = self.now()
        self.peak = dict(self.before)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> dict[str, int]:
        return {name: rss_anon_bytes(pid) for name, pid in self.pids.items()}

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            for name, size in self.now().items():
                self.peak[name] = max(self.peak[name], size)

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def grown(self, seen: Mapping[str, int]) -> dict[str, int]:
        return {name: seen[name] - self.before[name] for name in self.before}


def rss_anon_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


class Stage:
    """Use as a context manager. `setup`: "open", the quick start without any key of security; "protected", all of them;
    "opened", the quick start with its HA ports and controllers opened, as Apache's brokers need them. `quiet_s`: time
    for which each new cluster is left undisturbed, and measured. `keys` are more of the brokers'."""

    def __init__(
        self, scratch: Path, setup: str, quiet_s: float, keys: Mapping[str, str | int | bool] | None = None
    ) -> None:
        self.setup = setup
        self._broker_keys = dict(keys or {})
        self._quiet_s = quiet_s
        self._scratch = scratch
        self._keys = Keys(scratch / "keys") if setup == "protected" else None
        self._token: Any = None
        self._cluster: Cluster | None = None
        self.scene: Scene
        self._honest: subprocess.Popen[str] | None = None
        self._sent: dict[int, Sent] = {}
        self._round = 0
        self.quiet_p99_ms = 0.0
        """The p99 of honest sends that this cluster had before anybody attacked it."""

    def __enter__(self) -> Stage:
        if self._keys is not None:
            self._token = ambient.set(self._keys.servers())
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- the cluster --------------------------------------------------------------------------------------------------
    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def start(self) -> None:
        """A new cluster with its honest clients."""
        self._round += 1
        here = self._scratch / f"round-{self._round}"
        here.mkdir(parents=True)
        keys = {"enablePropertyFilter": True, **self._broker_keys}
        if self.setup == "opened":
            keys["haSecurity"] = "open"
        document = quickstart("cp", 3, keys, http=True)
        if self._keys is not None:
            self._keys.protect(document)
        self._cluster = Cluster.of(document, here, quiet=True)
        trio.run(self.cluster.up)
        self.scene = trio.run(self._look)
        self.scene.write(here / "scene.json")
        security = str(self._keys.client("honest")) if self._keys is not None else "-"
        self._files = here / "scene.json", here / "sent", here / "received"
        arguments = [sys.executable, "-m", "tests.abuse.honest", str(self._files[0]), security]
        self._honest = self._started([*arguments, str(self._files[1]), str(self._files[2])])
        self._lines = Lines(self._files[1])
        self._sent.clear()
        self.quiet_p99_ms = percentile_ms(self.be_quiet(self._quiet_s), 99)

    def stop_cluster(self) -> None:
        honest, self._honest = self._honest, None
        if honest is not None:
            honest.kill()
            honest.communicate()
        if self._cluster is not None:
            self._cluster.__exit__(None, None, None)
            self._cluster = None

    def stop(self) -> None:
        self.stop_cluster()
        if self._token is not None:
            ambient.reset(self._token)
            self._token = None

    def _started(self, arguments: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if line.strip() != "READY":
            process.kill()
            process.communicate()
            raise RuntimeError(f"{' '.join(arguments)} did not get ready; its error is above")
        return process

    async def _look(self) -> Scene:
        master = await self.cluster.master()
        state = (await self.cluster.replica_states())[master]
        assert state.broker_id is not None and state.epoch is not None, "a master has both"
        spec = self.cluster.spec
        slave = next(name for name in self.cluster.brokers if name != master)
        namesrv, node = self.cluster.state.node("ns-1"), spec.node(master)
        return Scene(
            addresses={
                "master": node.address,
                "slave": spec.node(slave).address,
                "namesrv": namesrv.address,
                "controller": namesrv.controller_address,
                "ha": f"127.0.0.1:{node.ports[1].number}",
                "page": f"127.0.0.1:{spec.node('ns-1').properties['httpPort']}",
                "health": f"127.0.0.1:{node.properties['httpPort']}",
            },
            cluster=state.cluster_name,
            broker_name=GROUP,
            master_id=state.broker_id,
            epoch=state.epoch,
            log_end=state.max_phy_offset,
            topic="honest",
            group="honest",
            own_topic="guest",
            accounts=self._keys.accounts if self._keys is not None else {},
            ca=str(self._keys.ca) if self._keys is not None else "",
        )

    async def _standing(self) -> dict[str, Any]:
        """Role and epoch of each broker, by its own word; who does not answer in SETTLE_S is left out."""

        states: dict[str, Any] = {}
        with trio.move_on_after(SETTLE_S):
            while len(states) < len(self.cluster.brokers):
                states = await self.cluster.replica_states()
        return {name: (state.role, state.epoch) for name, state in states.items()}

    @property
    def dead(self) -> dict[str, str]:
        """Nodes that have ended → their last words."""
        nodes = self.cluster.state.nodes.values()
        return {node.name: self.cluster.last_log_line(node.name) for node in nodes if not node.alive}

    # --- honest traffic -----------------------------------------------------------------------------------------------
    def _hear(self) -> None:
        for line in self._lines.more():
            due, taken, outcome, body = line.split(" ")
            self._sent[int(body)] = Sent(int(due), float(taken), outcome, body)

    def sends_between(self, from_ms: int, to_ms: int) -> list[Sent]:
        """Those due in the window; waits until all of them have ended."""
        until = time.monotonic() + TIMEOUT_MS / 1000 + 5
        while time.monotonic() < until:
            self._hear()
            later = [number for number, sent in self._sent.items() if sent.due_ms >= to_ms]
            if later and all(number in self._sent for number in range(min(later))):
                break
            time.sleep(0.05)
        return [sent for _, sent in sorted(self._sent.items()) if from_ms <= sent.due_ms < to_ms]

    def be_quiet(self, seconds: float) -> list[float]:
        """Milliseconds of the honest sends that fall due meanwhile."""
        began_ms = wall_ms()
        time.sleep(seconds)
        return [sent.taken_ms for sent in self.sends_between(began_ms, wall_ms())]

    def becomes_quiet(self, max_s: float) -> bool:
        """Wait until the p99 of a second's honest sends is at most twice the quiet one; False if that takes longer.
        Servers handle what a one-way flood has left in their sockets after its connections have ended."""
        until_s = time.monotonic() + max_s
        while percentile_ms(self.be_quiet(1.0), 99) > 2 * self.quiet_p99_ms:
            if time.monotonic() > until_s:
                return False
        return True

    def all_received(self) -> tuple[int, list[str]]:
        """End the honest clients: how many sends were acknowledged, and which of them were not received."""
        honest, self._honest = self._honest, None
        assert honest is not None
        honest.communicate("")
        self._hear()
        received = set(self._files[2].read_text().split())
        acknowledged = [sent.body for sent in self._sent.values() if sent.outcome == "ok"]
        return len(acknowledged), [body for body in acknowledged if body not in received]

    # --- attack -------------------------------------------------------------------------------------------------------
    def attacked(self, attack: Attack, connection_count: int, seconds: float, after_s: float = AFTER_S) -> Outcome:
        """Try it, wait until all is as it was, and say what was seen, also in the time `after_s` behind that."""
        connection_count = max(connection_count, attack.least_connections)
        before = trio.run(self._standing)
        memory = Memory({node.name: node.pid for node in self.cluster.state.nodes.values()})
        attacker = self._attacker(attack, connection_count, seconds)
        began_ms, gaps = wall_ms(), self._gaps()
        try:
            out, _ = attacker.communicate(timeout=seconds + STARTED_S)
        finally:
            gaps.close()
            attacker.kill()
        ended_ms = wall_ms()
        dead = self.dead
        settled, settled_s = self._settle(memory, dead)
        memory.close()
        sends = self.sends_between(began_ms, ended_ms)
        left = memory.now()
        after_ms = [] if dead else self.be_quiet(after_s)
        after = before if dead else trio.run(self._standing)
        did = json.loads(out)
        answers = sorted(int(name.split()[1]) for name in did if name.startswith("answer "))
        return Outcome(
            attack=attack.name,
            setup=self.setup,
            connections=connection_count,
            did=did,
            quiet_p99_ms=self.quiet_p99_ms,
            taken_ms=[sent.taken_ms for sent in sends],
            after_ms=after_ms,
            failures=[sent.outcome for sent in sends if sent.outcome != "ok"],
            dead=dead,
            changed={name: (before[name], after.get(name)) for name in before if before[name] != after.get(name)},
            grown_mib={name: round(size / MIB, 1) for name, size in memory.grown(memory.peak).items()},
            left_mib={name: round(size / MIB, 1) for name, size in memory.grown(left).items()},
            settled_s=settled_s,
            settled=settled,
            beat_gap_ms=gaps.beat_ms,
            ack_gap_ms=gaps.ack_ms,
            wrong_answers=[code for code in answers if attack.answers is not None and code not in attack.answers],
        )

    def _gaps(self) -> Gaps:
        nodes, addresses = self.cluster.state.nodes, self.scene.addresses
        ports = (int(addresses[name].rpartition(":")[2]) for name in ("controller", "ha"))
        return Gaps([nodes[name].pid for name in self.cluster.brokers if nodes[name].alive], *ports)

    def _attacker(self, attack: Attack, connection_count: int, seconds: float) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "tests.abuse.attacker", str(self._files[0]), attack.name]
        return self._started([*arguments, str(connection_count), str(seconds)])

    def attacked_without_slaves(
        self, attack: Attack, connection_count: int, seconds: float, *, until_one: bool = False
    ) -> tuple[int, list[Sent]]:
        """Try it, and come as each of the slaves, while all of them are dead; then start them again. How many sends
        fell due meanwhile, and those of them that were acknowledged before a slave was back. `until_one`: go on beyond
        `seconds` until there is one."""
        slaves = [name for name, (role, _) in trio.run(self._standing).items() if role != "MASTER"]
        assert len(slaves) == len(self.cluster.brokers) - 1
        attacker = self._attacker(attack, connection_count, seconds + (HANG_S if until_one else STARTED_S))
        ids = [number for number in range(1, len(self.cluster.brokers) + 1) if number != self.scene.master_id]
        try:
            trio.run(self.cluster.kill, *slaves)
            gone_ms = wall_ms()
            with forging(self.scene, ids) as forgers:
                time.sleep(seconds)
                if until_one:
                    until(lambda: self._acknowledged_since(gone_ms))
                back_ms = wall_ms()
        finally:
            attacker.kill()
            attacker.communicate()
        trio.run(self.cluster.start, *slaves)
        sends = self.sends_between(gone_ms, back_ms)
        early = [sent for sent in sends if sent.outcome == "ok" and sent.due_ms + sent.taken_ms < back_ms]
        assert all(forger.connected_count for forger in forgers)
        return len(sends), early

    def _acknowledged_since(self, from_ms: int) -> bool:
        self._hear()
        return any(sent.outcome == "ok" and sent.due_ms >= from_ms for sent in self._sent.values())

    def _settle(self, memory: Memory, dead: Mapping[str, str]) -> tuple[bool, float]:
        """Wait until the memory has fallen back and honest sends are answered promptly; whether they are, and the
        seconds until then, SETTLE_S at most."""
        began = time.monotonic()
        settled = False
        while not dead and not settled and time.monotonic() - began < SETTLE_S:
            time.sleep(SAMPLE_S)
            self._hear()
            recent = [sent.taken_ms for sent in self._sent.values() if sent.due_ms > wall_ms() - PACE_MS]
            settled = len(recent) > PACE_MS // 20 and max(memory.grown(memory.now()).values()) < SETTLED_BYTES
        return settled, round(time.monotonic() - began, 1)

    def renew(self) -> None:
        """A new cluster in the place of one that an attack has harmed."""
        self.stop_cluster()
        self.start()
