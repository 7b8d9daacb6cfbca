"""What a question of an operator costs: CPU of commands on a small cluster, `rmqha status` of fifty nodes elsewhere.

The fifty nodes are scripted: one process answers at fifty addresses what the nodes of a real group have answered, under
other names.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from rmqha.drill.cluster import BROKERS, GROUP, Cluster, quickstart
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode as Code
from rmqha.ops.asking import ask
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.support.command_cost import arguments_of, first_output_ms, lines, small_cluster

GROUPS = 16
"""Of three replicas; with a name server and a controller that is fifty nodes."""
OF_BROKERS = (Code.GET_BROKER_CONFIG, Code.RMQHA_GET_REPLICA_STATE, Code.RMQHA_GET_SECURITY_STATE)
OF_CONTROLLERS = (Code.RMQHA_GET_CONTROLLER_STATE, Code.RMQHA_GET_QUORUM, Code.RMQHA_GET_SECURITY_STATE)
OF_NAME_SERVERS = (Code.GET_BROKER_CLUSTER_INFO, Code.RMQHA_GET_NAMESRV_STATE, Code.RMQHA_GET_SECURITY_STATE)
COMMANDS = ("--help", "status", "health", "topic ls", "consumer ls", "describe cluster", "history", "explain broker-a")
MAX_FRAME_BYTES = 16 * 1024 * 1024
Answers = dict[str, str]
"""Bodies by request code, as text."""


class ScriptedServer:
    """Answers each code with the body that it was given."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = {int(code): body.encode() for code, body in answers.items()}

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            body = self._answers.get(command.code)
            session.send(command.reply(3 if body is None else 0, body=body or b""))


async def serve_all(scripts: list[Answers], placed: list[str]) -> None:
    """Serve each script at the address of the same place, until cancelled."""
    async with trio.open_nursery() as nursery:
        for answers, address in zip(scripts, placed, strict=True):
            server = ScriptedServer(answers)
            await nursery.start(_serve, server, address)
        print("ready", flush=True)


async def _serve(server: ScriptedServer, address: str, task_status: trio.TaskStatus[int]) -> None:
    await serve(server, address, max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)


async def _answers(client: RemotingClient, address: str, codes: tuple[Code, ...]) -> Answers:
    found = {}
    for code in codes:
        fields = {"version": "1"} if code == Code.RMQHA_GET_QUORUM else {}
        found[str(int(code))] = bytes((await ask(client, address, Command(code, fields))).body).decode()
    return found


async def recorded(cluster: Cluster) -> dict[str, Answers]:
    """Answers of the nodes of a real group, by name; the controller's under "controller"."""
    nodes = cluster.state.nodes
    async with RemotingClient() as client:
        found = {name: await _answers(client, nodes[name].address, OF_BROKERS) for name in BROKERS}
        found["ns-1"] = await _answers(client, nodes["ns-1"].address, OF_NAME_SERVERS)
        found["controller"] = await _answers(client, nodes["ns-1"].controller_address, OF_CONTROLLERS)
    return found


def scripts_of(told: Mapping[str, Answers], cluster: Cluster, base: int) -> tuple[list[Answers], list[str]]:
    """The scripts of fifty nodes, and their addresses from port `base` on."""
    nodes = cluster.state.nodes
    servers = [f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}"]
    moved = {nodes["ns-1"].address: servers[0], nodes["ns-1"].controller_address: servers[1]}
    scripts, placed = [], [*servers]
    routes: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    route_code, state_code = str(int(Code.GET_BROKER_CLUSTER_INFO)), str(int(Code.RMQHA_GET_CONTROLLER_STATE))
    for number in range(GROUPS):
        ports = [base + 10 + 10 * number + replica for replica in range(len(BROKERS))]
        own = moved | {nodes[name].address: f"127.0.0.1:{port}" for name, port in zip(BROKERS, ports, strict=True)}
        name = f"group-{number:02}"
        for broker, port in zip(BROKERS, ports, strict=True):
            scripts.append({code: _renamed(body, own, name) for code, body in told[broker].items()})
            placed.append(f"127.0.0.1:{port}")
        routes |= _members(_renamed(told["ns-1"][route_code], own, name), "brokerAddrTable")
        groups |= _members(_renamed(told["controller"][state_code], own, name), "groups")
    name_server = {code: _renamed(body, moved, GROUP) for code, body in told["ns-1"].items()}
    controller = {code: _renamed(body, moved, GROUP) for code, body in told["controller"].items()}
    name_server[route_code] = json.dumps({"brokerAddrTable": routes, "clusterAddrTable": {"drill": list(routes)}})
    controller[state_code] = json.dumps(json.loads(controller[state_code]) | {"groups": groups})
    return [name_server, controller, *scripts], placed


def _members(body: str, member: str) -> dict[str, Any]:
    """An object within an answer; the keys of objects in it are text, as strict JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(loads(body.encode())[member]))
    return found


def _renamed(body: str, addresses: Mapping[str, str], group: str) -> str:
    for old, new in addresses.items():
        body = body.replace(old, new)
    return body.replace(GROUP, group)


def timed(words: list[str], count: int, directory: Path) -> dict[str, Any]:
    """Wall time and CPU (ms) of `count` runs of a command, from start to end, CPU to the first output, and their exit
    codes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"RMQHA_DIRECTORY": str(directory)}
    walls, cpus, firsts, codes = [], [], [], set()
    for _ in range(count):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "rmqha.cli.main", *words]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as done:
            assert done.stdout is not None
            done.stdout.read(1)
            # nanoseconds on a processor
            firsts.append(int(Path(f"/proc/{done.pid}/schedstat").read_text().split()[0]) / 1e6)
            done.stdout.read()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append((time.perf_counter() - started) * 1000)
        cpus.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
        codes.add(done.returncode)
    return {
        "ms": summary(walls),
        "CPU ms": summary(cpus),
        "least CPU ms": min(cpus),
        "first": min(firsts),
        "exit codes": sorted(codes),
    }


@contextmanager
def fifty_nodes(cluster: Cluster, scratch: Path, base: int) -> Any:
    """The address of the name server of fifty scripted nodes."""
    scripts, placed = scripts_of(trio.run(recorded, cluster), cluster, base)
    path = scratch / "scripts.json"
    path.write_text(json.dumps({"scripts": scripts, "placed": placed}))
    arguments = [sys.executable, "-m", "benchmarks.bench_status", str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as servers:
        try:
            assert servers.stdout is not None and servers.stdout.readline() == "ready\n"
            yield placed[0], len(placed)
        finally:
            servers.terminate()


def first_outputs(scratch: Path, count: int) -> dict[str, Any]:
    """Processor time of each command up to its first output, least of `count`."""
    rows = []
    with small_cluster(scratch) as (environment, places):
        for name in lines():
            words = arguments_of(name, places)
            spent = [first_output_ms(words, environment, scratch) for _ in range(count)]
            rows.append({"command": name, "least CPU ms to first output": round(min(spent), 1)})
    rows.sort(key=lambda row: -float(str(row["least CPU ms to first output"])))
    show(f"first output of each command (n = {count})", rows)
    return {"firstOutputs": rows}


def questions(scratch: Path, count: int) -> dict[str, Any]:
    """Each command `count` times on the quick start, then `status` and `health` of fifty nodes."""
    from rmqha.ops.local.preflight import free_ports

    rows = []
    with Cluster.of(quickstart("cp"), scratch, quiet=True) as cluster:
        trio.run(cluster.up)
        for command in COMMANDS:
            found = timed(command.split(), count, cluster.state.directory)
            rows.append({"command": command, **_row(found)})
        with fifty_nodes(cluster, scratch, free_ports(200)) as (namesrv, nodes):
            for command in ("status", "health"):
                found = timed([command, "--namesrv", namesrv], count, scratch)
                rows.append({"command": f"{command} --namesrv, {nodes} nodes", **_row(found)})
    show(f"questions of an operator (n = {count})", rows)
    return {"questions": rows}


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "median ms": found["ms"]["median"],
        "max ms": found["ms"]["max"],
        "CPU ms": found["CPU ms"]["median"],
        "least CPU ms": found["least CPU ms"],
        "least CPU ms to first output": found["first"],
        "exit codes": ",".join(map(str, found["exit codes"])),
    }


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    trio.run(serve_all, given["scripts"], given["placed"])
