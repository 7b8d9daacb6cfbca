"""A laboratory: one broker group whose name server, controllers and brokers are each ours or Apache RocketMQ's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqha.model.code import RequestCode
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.lenient_json import dumps
from tests.interop.lab.java import Java
from tests.interop.lab.mqadmin import MqAdmin
from tests.interop.lab.processes import Process, accepts, ask_json, call, ours, until, write_properties
from tests.support.patience import HANG_S

CLUSTER, GROUP = "interop", "broker-a"
FILE_BYTES = 4 * 1024 * 1024
"""Size of a CommitLog file, so that a test sees several of them."""
QUEUE_FILE_BYTES = 6000 * 20
START_TIMEOUT_S = HANG_S
PORTS_PER_LAB = 60

OUR_BROKER = {
    "totalReplicas": "2",
    "haMode": "ap",
    "controllerHeartBeatTimeoutMills": "10000",
    "listenAddress": "127.0.0.1",
    "slaveReadEnable": "true",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
    "fileReservedTime": "876000",
    "cleanFileForciblyEnable": "false",
}
JAVA_BROKER = {
    "brokerId": "-1",
    "brokerRole": "SLAVE",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "flushDiskType": "ASYNC_FLUSH",
    "timerWheelEnable": "false",
    "transactionCheckInterval": "3600000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
    "diskMaxUsedSpaceRatio": "98",
    "fileReservedTime": "876000",
    "cleanFileForciblyEnable": "false",
    "waitTimeMillsInSendQueue": "10000",
}
"""Small files that stay, however old a golden store is and however full the disk; else Apache's defaults, that of
heartbeats with ours too: a busy machine may hold a broker up for two seconds. So its sends may wait; 200 ms else."""
JAVA_BROKER_STARTS_FAST = {"transactionMetricFlushInterval": "500"}
"""Else 10,000 ms: until they are over first, a thread of each broker that starts looks at the clock again and again,
and keeps a core busy (TransactionMetricsFlushService of 5.4.0)."""

REBALANCES_SOON = {"rocketmq.client.rebalance.waitInterval": "1000"}
"""Else 20,000 ms: so long a consumer may not see a topic, a retry topic or another consumer. The programs of
clients/test_java_cases.py have Apache's default."""


@dataclass
class Node:
    """A server: where it listens, how to start it, and the process once it runs."""

    name: str
    address: str
    command: list[str]
    store: Path
    process: Process | None = None

    @property
    def running(self) -> Process:
        assert self.process is not None, f"{self.name} was never started"
        return self.process

    @property
    def ha_port(self) -> int:
        return int(self.address.rpartition(":")[2]) + 1


class Lab:
    """`name_server` is an address, `controller` one or several with ";" between; brokers are made by our_broker and
    java_broker, then started."""

    def __init__(self, java: Java | None, scratch: Path) -> None:
        """Without `java` only servers of ours can be made."""
        self._java = java
        self.scratch = scratch
        base = free_ports(PORTS_PER_LAB)
        self.name_server = f"127.0.0.1:{base}"
        self.controller = f"127.0.0.1:{base + 1}"
        self.spare_port = base + 5
        """For one more listener of the name server. A port that was asked for by itself may be one of this block's: the
        process gets its own again as long as nobody listens."""
        self._next_port = base + 10  # a broker also takes its port - 2 and + 1
        self.controllers: dict[str, Process] = {}
        """Controllers that are no part of the name server, by address."""
        self._controller_commands: dict[str, tuple[str, list[str]]] = {}
        """Name and command line of each."""
        self.security: dict[str, str] = {}
        """Keys that all servers of ours get."""
        self.controller_keys: dict[str, str] = {}
        """Keys that a name server with its controller gets, whoever's it is."""
        self._processes: list[Process] = []
        self._clients: list[Process] = []
        self._client_count = 0
        self._mqadmin: MqAdmin | None = None

    @property
    def java(self) -> Java:
        assert self._java is not None, "this laboratory was made without Java"
        return self._java

    # --- servers --------------------------------------------------------------------------------------------------
    def _controller_properties(self) -> dict[str, str]:
        return {
            "listenPort": self.name_server.rpartition(":")[2],
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.scratch / "controller"),
            **self.controller_keys,
        }

    def our_name_server(self) -> list[str]:
        """The command line of one with the controller embedded."""
        properties = {"listenAddress": "127.0.0.1", **self._controller_properties(), **self.security}
        return ours("namesrv", write_properties(self.scratch / "namesrv.conf", properties))

    def java_name_server(self) -> list[str]:
        """The command line of one with the controller embedded: DLedger with one member."""
        properties = {"bindAddress": "127.0.0.1", **self._controller_properties()}
        config = write_properties(self.scratch / "namesrv.conf", properties)
        return self.java.command("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config))

    def start_our_name_server(self) -> None:
        self._start_name_server(self.our_name_server())

    def start_java_name_server(self) -> None:
        self._start_name_server(self.java_name_server())

    def start_our_controllers(self, count: int) -> None:
        """A name server without a controller, and so many controllers (up to three) of their own."""
        self._start_controllers(count, lambda config: ours("controller", config))

    def start_java_controllers(self, count: int) -> None:
        """The same with Apache's controllers; the name server is ours."""
        main = "org.apache.rocketmq.controller.ControllerStartup"
        self._start_controllers(count, lambda config: self.java.command(main, "-c", str(config), heap="192m"))

    def _start_controllers(self, count: int, command: Callable[[Path], list[str]]) -> None:
        base = int(self.name_server.rpartition(":")[2])
        addresses = [f"127.0.0.1:{base + number}" for number in range(1, count + 1)]
        peers = ";".join(f"c{number}-{address}" for number, address in enumerate(addresses))
        for number, address in enumerate(addresses):
            properties = {
                "controllerDLegerGroup": "group1",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"c{number}",
                "controllerStorePath": str(self.scratch / f"controller-{number}"),
            }
            config = write_properties(self.scratch / f"controller-{number}.conf", properties)
            self._controller_commands[address] = f"controller-{number}", command(config)
            self.controllers[address] = self.start(*self._controller_commands[address])
        self.controller = ";".join(addresses)
        config = write_properties(
            self.scratch / "namesrv.conf",
            {"listenAddress": "127.0.0.1", "listenPort": str(base), "controllerAddr": self.controller},
        )
        process = self.start("namesrv", ours("namesrv", config))
        until("the name server listens", lambda: accepts(self.name_server), START_TIMEOUT_S, process)
        until("a controller leads", lambda: bool(self.controller_leader()), START_TIMEOUT_S)

    def restart_controller(self, address: str, *, emptied: bool = False) -> None:
        """Kill a controller, and start it again with its data or without."""
        name, command = self._controller_commands[address]
        self.controllers[address].kill()
        if emptied:
            shutil.rmtree(self.scratch / name)
        self.controllers[address] = self.start(name, command)
        until(f"{name} listens", lambda: accepts(address), START_TIMEOUT_S, self.controllers[address])

    def controller_leader(self) -> str:
        """Address of the controller that says that it leads, "" if none does. One that stands still is not asked."""
        for address in self.controller.split(";"):
            if address in self.controllers and self.controllers[address].is_paused:
                continue
            reply = call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            if reply is not None and reply.ext.get("controllerLeaderAddress") == address:
                return address
        return ""

    def _start_name_server(self, command: list[str]) -> None:
        process = self.start("namesrv", command)
        until(
            "the name server listens and its controller leads",
            lambda: accepts(self.name_server) and bool(self.controller_leader()),
            START_TIMEOUT_S,
            process,
        )

    def _node(
        self, name: str, kind: dict[str, str], keys: dict[str, str], command: Callable[[Path], list[str]]
    ) -> Node:
        port = self._next_port
        self._next_port += 10
        store = self.scratch / name / "store"
        properties = {
            "brokerClusterName": CLUSTER,
            "brokerName": GROUP,
            "namesrvAddr": self.name_server,
            "controllerAddr": self.controller,
            "enableControllerMode": "true",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(store),
            "mappedFileSizeCommitLog": str(FILE_BYTES),
            "maxMessageSize": str(FILE_BYTES // 4),
            "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
            **kind,
            **keys,
        }
        config = write_properties(self.scratch / f"{name}.conf", properties)
        return Node(name, f"127.0.0.1:{port}", command(config), store)

    def our_broker(self, name: str, **keys: str) -> Node:
        return self._node(name, OUR_BROKER | self.security, keys, lambda config: ours("broker", config))

    def java_broker(self, name: str, **keys: str) -> Node:
        main = "org.apache.rocketmq.broker.BrokerStartup"
        kind = JAVA_BROKER | (JAVA_BROKER_STARTS_FAST if self.java.starts_fast else {})
        return self._node(name, kind, keys, lambda config: self.java.command(main, "-c", str(config), heap="512m"))

    def run(self, node: Node) -> Node:
        """Start it and wait until it listens."""
        node.process = self.start(node.name, node.command)
        until(f"{node.name} listens", lambda: accepts(node.address), START_TIMEOUT_S, node.process)
        return node

    # --- clients --------------------------------------------------------------------------------------------------
    def start(self, name: str, command: list[str]) -> Process:
        process = Process(name, command, self.scratch / "log")
        self._processes.append(process)
        return process

    def client(self, main: str, *arguments: str, codec: str = "JSON", **settings: str) -> Process:
        """A program of tests/interop/java; `codec` is the header codec of its requests."""
        self._client_count += 1
        properties = {"rocketmq.serialize.type": codec, "interop.level": "WARN", **REBALANCES_SOON, **settings}
        command = self.java.command(main, self.name_server, *arguments, heap="128m", properties=properties)
        self._clients.append(self.start(f"{main.lower()}-{self._client_count}", command))
        return self._clients[-1]

    def end_clients(self) -> None:
        """End the programs of tests/interop/java: servers and mqadmin go on for the next test."""
        while self._clients:
            self._clients.pop().kill()

    def mqadmin(
        self, *arguments: str, timeout_s: float = HANG_S, settings: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """(exit code, standard output, standard error) of Apache's own command; with `settings` in a JVM of its own."""
        if not settings:
            if self._mqadmin is None:
                self._mqadmin = MqAdmin(self.java, self.scratch / "log")
                self._processes.append(self._mqadmin.process)
            return 0, *self._mqadmin.run(*arguments, timeout_s=timeout_s)
        self._client_count += 1
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        process = self.start(
            f"mqadmin-{self._client_count}-{arguments[0]}",
            self.java.command(main, *arguments, heap="128m", properties={"interop.level": "ERROR"} | settings),
        )
        code = process.wait(timeout_s)
        return code, process.output.read_text(), process.log.read_text()

    # --- look -----------------------------------------------------------------------------------------------------
    def group(self) -> dict[str, Any]:
        """What the controller shows of the group (request 1006), {} if nothing."""
        leader = self.controller_leader()
        body = dumps([GROUP])
        found = ask_json(leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body) if leader else {}
        table: dict[str, Any] = found.get("replicasInfoTable", {}).get(GROUP, {})
        return table

    def members(self) -> set[str]:
        """Addresses of the SyncStateSet."""
        return {item["brokerAddress"] for item in self.group().get("inSyncReplicas", [])}

    def master(self) -> str:
        return str(self.group().get("masterAddress") or "")

    def route(self, topic: str) -> dict[str, str]:
        """Broker id → address of the group, as clients are told; {} if the topic has no route."""
        body = ask_json(self.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        datas = body.get("brokerDatas") or []
        return {str(key): value for key, value in datas[0]["brokerAddrs"].items()} if datas else {}

    def permission(self, topic: str) -> int:
        """Permission of the topic on the group, as clients are told; -1 if it has no route."""
        datas = ask_json(self.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).get("queueDatas")
        return int(datas[0]["perm"]) if datas else -1

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
