"""Controllers: a killed leader, elections, heartbeats, and many replicas.

Three `rmqha controller` processes with all keys at their defaults. The leading one is killed (SIGKILL) and the others
are asked every few milliseconds until one answers as leader. Then the master of a group of three dies (its port and
connection close; the brokers are played here), and the leader's own trace tells how long it took from the decision to
elect to the durable election; these controllers write down their fdatasync calls. Heartbeats go to a sole controller,
so that the load of the machine elects no other leader meanwhile; `heartbeat_load` sends them. The same load registers
all its connections at once with three controllers, and the leader should stay. `controller_scale` is the part with many
replicas.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.command import Command
from tests.controller.harness import CLUSTER, GROUP, Broker, group_of

COUNT = 3
ASK_EVERY_S = 0.004
ASK_TIMEOUT_MS = 200
UP_S = 30.0
CONNECTIONS = PER_SECOND = 6000
SPARE_DESCRIPTORS = 200
DECISIONS = 60_000
SYNC_SLACK_MS = 20
"""The slowest of three disks may be later than the election, which waits for two."""
MAX_FRAME_BYTES = 1024 * 1024
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Quorum:
    """Controller processes in `scratch`."""

    def __init__(self, scratch: Path, count: int, counted: bool) -> None:
        self._counted = counted
        base = free_ports(count)
        self.addresses = [f"127.0.0.1:{base + number}" for number in range(count)]
        self._peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.addresses))
        self._scratch = scratch
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, address: str) -> None:
        number = self.addresses.index(address)
        path = self._scratch / f"n{number}.conf"
        path.write_text(
            f"controllerDLegerPeers={self._peers}\ncontrollerDLegerSelfId=n{number}\n"
            f"controllerStorePath={self._scratch / f'n{number}'}\nlogFile={self._scratch / f'n{number}.log'}\n"
        )
        program = ["-P", "-m", "rmqha.cli.main"]
        if self._counted:
            program = ["-m", "benchmarks.failovers.counted_server", str(self._scratch / f"n{number}.syncs")]
        self.processes[address] = subprocess.Popen([sys.executable, *program, "controller", "-c", str(path)])

    def kill(self, address: str) -> None:
        process = self.processes.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for address in list(self.processes):
            self.kill(address)


@contextmanager
def quorum_in(scratch: Path, count: int = COUNT, *, counted: bool = False) -> Iterator[Quorum]:
    scratch.mkdir()
    quorum = Quorum(scratch, count, counted)
    try:
        for address in quorum.addresses:
            quorum.start(address)
        yield quorum
    finally:
        quorum.close()


async def leads(client: RemotingClient, address: str) -> bool:
    """Whether it answers what only a leader does."""
    command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, b"[]")
    try:
        return (await client.call(address, command, ASK_TIMEOUT_MS)).code == ResponseCode.SUCCESS
    except UnreachableError:
        return False


async def leader_of(client: RemotingClient, addresses: list[str]) -> str:
    """The first of `addresses` that answers as leader."""
    found: list[str] = []

    async def ask(address: str) -> None:
        while not await leads(client, address):  # noqa: ASYNC110
            await trio.sleep(ASK_EVERY_S)
        found.append(address)
        nursery.cancel_scope.cancel()

    with trio.fail_after(UP_S):
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address)
    return found[0]


async def all_follow(client: RemotingClient, quorum: Quorum) -> str:
    """Until every controller names the same leader, and that one answers; its address."""
    with trio.fail_after(UP_S):
        while True:
            named = set()
            for address in quorum.addresses:
                try:
                    reply = await client.call(
                        address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), ASK_TIMEOUT_MS
                    )
                    named.add(reply.ext.get("controllerLeaderAddress", ""))
                except UnreachableError:
                    named.add("")
            if len(named) == 1 and (leader := named.pop()) and await leads(client, leader):
                return leader
            await trio.sleep(0.02)


async def leader_kills(quorum: Quorum, count: int) -> list[float]:
    taken = []
    async with RemotingClient() as client:
        for _ in range(count):
            leader = await all_follow(client, quorum)
            await trio.sleep(0.3)
            rest = [address for address in quorum.addresses if address != leader]
            began = time.monotonic()
            quorum.processes[leader].send_signal(signal.SIGKILL)
            await leader_of(client, rest)
            taken.append((time.monotonic() - began) * 1000)
            quorum.kill(leader)
            quorum.start(leader)
    return taken


class PlayedBroker:
    """One replica: listens, answers 1007 and 52012, and speaks to the controllers over a connection of its own."""

    def __init__(self, number: int) -> None:
        self.broker = Broker(number, epoch=0, total_replicas=3, ha_mode="ap", timeout_ms=10_000)
        self.scope = trio.CancelScope()
        self.client: RemotingClient
        self.port = 0

    def opened(self, session: Session) -> None:
        session.attachment = self

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if not command.is_oneway:
                session.send(command.reply(body=self.broker.epoch_cache().body))

    def closed(self, session: Session) -> None:
        session.attachment = None

    async def listen(self, task_status: trio.TaskStatus[int]) -> None:
        with self.scope:
            await serve(self, f"127.0.0.1:{self.port}", max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)

    async def join(self, nursery: trio.Nursery, leader: str) -> None:
        """Listen, register, send one heartbeat."""
        self.scope = trio.CancelScope()
        self.port = await nursery.start(self.listen)
        number, address = str(self.broker.broker_id), f"127.0.0.1:{self.port}"
        ids = {"clusterName": CLUSTER, "brokerName": GROUP}
        await self.ask(
            leader,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ids | {"appliedBrokerId": number, "registerCheckCode": number},
        )
        own = {"brokerId": number, "brokerAddress": address, "haAddress": address, "totalReplicas": "3", "haMode": "ap"}
        await self.ask(leader, RequestCode.CONTROLLER_REGISTER_BROKER, ids | own)
        await self.beat(leader)

    async def beat(self, leader: str) -> None:
        await self.ask(leader, RequestCode.BROKER_HEARTBEAT, self.broker.beat().ext)

    async def ask(self, leader: str, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Command:
        return await self.client.call(leader, Command(code, ext, body), 5000)

    def die(self, leader: str) -> None:
        self.scope.cancel()
        self.client.close(leader)


async def elections(quorum: Quorum, count: int) -> list[tuple[int, int]]:
    """Wall clock at master_dead and at master_elected, by the leader."""
    async with (
        RemotingClient() as watcher,
        RemotingClient() as first,
        RemotingClient() as second,
        RemotingClient() as third,
        trio.open_nursery() as nursery,
    ):
        leader = await all_follow(watcher, quorum)
        brokers = [PlayedBroker(number) for number in (1, 2, 3)]
        for broker, client in zip(brokers, (first, second, third), strict=True):
            broker.client = client
            await broker.join(nursery, leader)
        for _ in range(count):
            master = await elected(watcher, leader, 0)
            ext = {
                "brokerName": GROUP,
                "masterBrokerId": master.ext["masterBrokerId"],
                "masterEpoch": master.ext["masterEpoch"],
            }
            epoch = json.loads(bytes(master.body))["syncStateSetEpoch"]
            for broker in brokers:
                broker.broker.epoch = int(master.ext["masterEpoch"])
                await broker.beat(leader)
            body = json.dumps({"syncStateSet": [1, 2, 3], "syncStateSetEpoch": epoch}).encode()
            await brokers[0].ask(leader, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)
            dying = brokers[int(master.ext["masterBrokerId"]) - 1]
            dying.die(leader)
            await elected(watcher, leader, dying.broker.broker_id)
            await dying.join(nursery, leader)
        reply = await watcher.call(leader, Command(RequestCode.RMQHA_GET_HISTORY), 5000)
        nursery.cancel_scope.cancel()
    events = [
        item for item in json.loads(bytes(reply.body))["events"] if item["event"] in ("master_dead", "master_elected")
    ]
    pairs = pairwise(events)
    return [(a["at_ms"], b["at_ms"]) for a, b in pairs if (a["event"], b["event"]) == ("master_dead", "master_elected")]


def syncs_of(scratch: Path, spans: list[tuple[int, int]]) -> list[list[float]]:
    """For each election the milliseconds of every node's first sync in it, ascending."""
    nodes = []
    for path in scratch.glob("*.syncs"):
        lines = [line.split() for line in path.read_text().splitlines()]
        nodes.append([(int(ended), float(taken)) for ended, taken in lines])
    found = []
    for dead_ms, elected_ms in spans:
        firsts = (
            next((taken for ended, taken in node if dead_ms <= ended <= elected_ms + SYNC_SLACK_MS), None)
            for node in nodes
        )
        found.append(sorted(taken for taken in firsts if taken is not None))
    return found


def election_rows(spans: list[tuple[int, int]], syncs: list[list[float]]) -> list[dict[str, Any]]:
    """An election is durable with the second of three syncs: what it took, of it that sync, and the rest."""
    taken = [float(elected_ms - dead_ms) for dead_ms, elected_ms in spans]
    waited = [found[COUNT // 2] if len(found) > COUNT // 2 else 0.0 for found in syncs]
    rest = [max(0.0, whole - sync) for whole, sync in zip(taken, waited, strict=True)]
    names = ("decision to elect until it is durable", "of it the second fdatasync of three", "the rest")
    return [
        {"ms": name, "n": len(values), **summary(values)}
        for name, values in zip(names, (taken, waited, rest), strict=True)
    ]


async def elected(client: RemotingClient, leader: str, but: int) -> Command:
    """The answer to 1004 once the group has a master other than `but`."""
    with trio.fail_after(UP_S):
        while True:
            reply = await client.call(
                leader, Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP}), 5000
            )
            if reply.ext.get("masterBrokerId") not in (None, str(but)):
                return reply
            await trio.sleep(ASK_EVERY_S)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def load_arguments(leader: str, seconds: float, *more: str) -> list[str]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = min(CONNECTIONS, (limit - SPARE_DESCRIPTORS) // 3 * 3)
    numbers = [str(connections), str(PER_SECOND), str(seconds)]
    return [sys.executable, "-m", "benchmarks.failovers.heartbeat_load", leader, *numbers, *more]


async def found_leader(quorum: Quorum) -> str:
    async with RemotingClient() as client:
        return await all_follow(client, quorum)


def resignations(scratch: Path) -> int:
    return sum(path.read_text().count(" controller_resigned ") for path in scratch.glob("n*.log"))


def herd(quorum: Quorum, scratch: Path) -> dict[str, Any]:
    """All connections register in the same milliseconds; how often a leader lost its place by it."""
    leader = trio.run(found_leader, quorum)
    before = resignations(scratch)
    with subprocess.Popen(
        load_arguments(leader, 1.0, str(CONNECTIONS)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        ready = load.stdout.readline().strip() == "READY"
        resigned = resignations(scratch) - before
        if not ready:
            missing = "not all; the load's error is above"
            return {
                "connections": CONNECTIONS,
                "registered_s": missing,
                "not_leader_count": "",
                "resignations": resigned,
            }
        load.stdin.write("go\n")
        load.stdin.flush()
        found = json.loads(load.stdout.readline())
    names = ("connections", "registered_s", "not_leader_count")
    return {**{name: found[name] for name in names}, "resignations": resigned}


class LoadError(Exception):
    """The other figures of the run still count."""


def heartbeats(quorum: Quorum, seconds: float) -> dict[str, Any]:
    leader = trio.run(found_leader, quorum)
    arguments = load_arguments(leader, seconds)
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        if load.stdout.readline().strip() != "READY":
            raise LoadError("the load could not be set up; its error is above")
        pid = quorum.processes[leader].pid
        before, began = cpu_seconds(pid), time.monotonic()
        load.stdin.write("go\n")
        load.stdin.flush()
        found: dict[str, Any] = json.loads(load.stdout.readline())
        elapsed, used = time.monotonic() - began, cpu_seconds(pid) - before
    per_beat_us = used / (found["answered_per_second"] * elapsed) * 1e6
    return {
        **found,
        "descriptor_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "core_percent": used / elapsed * 100,
        "cpu_us_per_heartbeat": per_beat_us,
        "core_percent_at_6000": per_beat_us * PER_SECOND / 1e4,
    }


def decision_us(count: int) -> float:
    """CPU microseconds of one heartbeat in the machine: request in, answer out, timer asked."""
    cluster, brokers = group_of(3, ha_mode="cp")
    machine, now_ms = cluster.leader.machine, cluster.now_ms
    commands = [broker.beat() for broker in brokers]
    began = time.thread_time()
    for turn in range(count):
        place = turn % 3
        machine.request(now_ms + turn // PER_SECOND, brokers[place].session_id, turn, commands[place])
        machine.actions()
        machine.ready(now_ms)
        machine.deadline_ms()
    return (time.thread_time() - began) / count * 1e6


def scale(replicas: int, rounds: int) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "benchmarks.failovers.controller_scale", str(replicas), str(rounds)]
    found: dict[str, Any] = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    return found


def controllers(scratch: Path, quick: bool, count: int) -> dict[str, Any]:
    with quorum_in(scratch / "kills") as quorum:
        kills = trio.run(leader_kills, quorum, count)
    with quorum_in(scratch / "elections", counted=True) as quorum:
        spans = trio.run(elections, quorum, count)
    syncs = syncs_of(scratch / "elections", spans)
    killed = {"ms": "leader killed, the next one answers", "n": len(kills), **summary(kills)}
    rows = [killed, *election_rows(spans, syncs)]
    show("three controllers", rows)
    print(f"{sum(map(len, syncs))} fdatasync calls in {len(spans)} elections")
    with quorum_in(scratch / "heartbeats", 1) as quorum:
        try:
            beats = heartbeats(quorum, 5.0 if quick else 20.0)
        except LoadError as error:
            beats = {"not measured": str(error)}
    alone_us = decision_us(DECISIONS)
    with quorum_in(scratch / "herd") as quorum:
        registered = herd(quorum, scratch / "herd")
    rates = ("connections", "sent_per_second", "answered_per_second")
    names = (*rates, "core_percent", "cpu_us_per_heartbeat", "load_core_percent", "not measured")
    show("heartbeats at the leader", [{name.replace("_", " "): beats[name] for name in names if name in beats}])
    print(f"answers {beats.get('answer_ms')} ms; the machine alone {alone_us:.1f} us per heartbeat")
    show("all register at once", [{name.replace("_", " "): value for name, value in registered.items()}])
    sizes = (1000, 100_000) if quick else (1000, 100_000, 1_000_000)
    found = [scale(replicas, 3 if quick else 6) for replicas in sizes]
    show("many replicas", [scale_row(item) for item in found])
    return {
        "times": rows,
        "kills_ms": kills,
        "election_syncs_ms": syncs,
        "heartbeats": beats,
        "decision_us": alone_us,
        "herd": registered,
        "scale": found,
    }


def scale_row(item: dict[str, Any]) -> dict[str, Any]:
    taken = summary(item["failover_ms"])
    return {
        "replicas": item["replicas"],
        "n": len(item["failover_ms"]),
        "serves after ms, median": taken["median"],
        "max": taken["max"],
        "longest slice ms, failover": max(item["failover_slices_ms"].values()),
        "snapshot": max(item["snapshot_slices_ms"].values()),
        "snapshot s": item["snapshot_s"],
        "bytes per replica": item["bytes_per_replica"],
    }
