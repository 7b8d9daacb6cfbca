"""The nodes to examine: of a local cluster, of a cluster file that does not run yet, or of one server's own file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rmqha.cli.diagnosis.checks.listeners import SocketOwner, listening
from rmqha.host.text_file import read_text
from rmqha.model.config.servers import BrokerConfig, ServerConfig, parse_properties
from rmqha.model.error import RmqhaError
from rmqha.model.identity import parse_address
from rmqha.ops.local import cluster_file
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.supervisor import Process, start_stamp

CheckFile = Callable[[NodeKind, Path], None]
"""Lets the server's own parser read its file. Raises RmqhaError."""
CONTROLLER_DEFAULT = "n0-127.0.0.1:9878"
_BROKER_KEYS = ("brokerName", "brokerClusterName", "storePathRootDir", "haListenPort", "haMode", "brokerRole")


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A port on which a node listens. `key`: the configuration key that sets it; `host` "": that of the node."""

    number: int
    key: str
    host: str = ""


@dataclass(slots=True)
class NodeUnderTest:
    """A node by its configuration. `problem`: the reason why that cannot be read; little else is known then."""

    name: str
    kind: NodeKind
    source: str
    """The file that a user changes."""
    config_path: Path | None
    properties: Mapping[str, str]
    problem: str = ""
    broker: BrokerConfig | None = None
    host: str = ""
    ports: tuple[ListeningPort, ...] = ()
    address: str = ""
    """Address at which it is asked; "" if that is not known."""
    controller_address: str = ""
    data: Path | None = None
    process: Process | None = None
    in_cluster: bool = False
    """True if commands such as `rmqha start` can name the node."""
    is_remote: bool = False
    """True if machine and process of the node are not visible from here; it counts as running."""

    @property
    def running(self) -> bool:
        return self.is_remote or (self.process is not None and self.process.alive)

    @property
    def start_command(self) -> str:
        if self.in_cluster:
            return f"rmqha start {self.name}"
        if self.config_path is None:
            return f"rmqha up {self.source}"
        return f"rmqha {self.kind.value} -c {self.config_path}"


def of_cluster(state: ClusterState, name: str | None, check: CheckFile) -> list[NodeUnderTest]:
    """The nodes of a local cluster, or one of them. Raises UsageError for a name that it does not have."""
    records = [state.node(name)] if name else list(state.nodes.values())
    found = []
    for record in records:
        path = state.config_path(record.name)
        node_under_test = _of_properties(record.name, NodeKind(record.kind), path, check)
        node_under_test.process, node_under_test.in_cluster = record.process, True
        node_under_test.source = state.cluster_file
        node_under_test.address, node_under_test.controller_address = record.address, record.controller_address
        found.append(node_under_test)
    return found


def of_file(path: Path, check: CheckFile) -> list[NodeUnderTest]:
    """The nodes that a cluster file or a server's properties file would start. Raises UsageError if it cannot be
    read."""
    if path.suffix == ".toml":
        spec = cluster_file.load(path)
        return [_of_spec(spec, node) for node in spec.nodes]
    return [_of_properties(path.stem, kind_of(_read(path)), path, check)]


def _of_spec(spec: cluster_file.ClusterSpec, node: cluster_file.NodeSpec) -> NodeUnderTest:
    node_under_test = NodeUnderTest(node.name, node.kind, spec.source, None, node.properties)
    _fill(node_under_test)
    return node_under_test


def _read(path: Path) -> dict[str, str]:
    return parse_properties(read_text(path, "the configuration"), str(path))


def kind_of(properties: Mapping[str, str]) -> NodeKind:
    """The server that a properties file is for, by the keys that only that one has."""
    if any(key in properties for key in _BROKER_KEYS):
        return NodeKind.BROKER
    only_controller = "controllerDLegerPeers" in properties or "controllerStorePath" in properties
    if only_controller and properties.get("enableControllerInNamesrv") != "true":
        return NodeKind.CONTROLLER
    return NodeKind.NAMESRV


def _of_properties(name: str, kind: NodeKind, path: Path, check: CheckFile) -> NodeUnderTest:
    node_under_test = NodeUnderTest(name, kind, str(path), path, {})
    try:
        node_under_test.properties = _read(path)
        check(kind, path)
    except RmqhaError as error:
        node_under_test.problem = str(error)
    _fill(node_under_test)
    return node_under_test


def _fill(node_under_test: NodeUnderTest) -> None:
    """Set addresses, ports and directories by the keys, as far as these can be read."""
    given = node_under_test.properties
    node_under_test.host = given.get("listenAddress", "127.0.0.1")
    if node_under_test.kind is NodeKind.BROKER:
        try:
            config = BrokerConfig.from_properties(given, node_under_test.source)
        except RmqhaError as error:
            node_under_test.problem = node_under_test.problem or str(error)
            return
        node_under_test.broker, node_under_test.address = config, config.address
        numbers = ((config.listen_port, "listenPort"), (config.ha_port, "haListenPort"))
        node_under_test.ports = tuple(
            ListeningPort(*item) for item in (*numbers, (config.listen_port - 2, "listenPort"))
        )
        node_under_test.data = Path(config.store_path_root_dir).absolute()
    else:
        _fill_server(node_under_test)
    http_port = given.get("httpPort", "0")
    if http_port.isdigit() and int(http_port):
        node_under_test.ports += (
            ListeningPort(int(http_port), "httpPort", given.get("httpHost", ServerConfig.http_host)),
        )
    if node_under_test.config_path is not None:
        owners = listening([port.number for port in node_under_test.ports])
        node_under_test.process = next(
            (_process(item) for item in _flat(owners) if item.runs(*_of(node_under_test))), None
        )


def _fill_server(node_under_test: NodeUnderTest) -> None:
    given, ports = node_under_test.properties, []
    if node_under_test.kind is NodeKind.NAMESRV:
        number = given.get("listenPort", "9876")
        if number.isdigit():
            ports.append(ListeningPort(int(number), "listenPort"))
            node_under_test.address = f"{_asked_host(node_under_test.host)}:{number}"
    if node_under_test.kind is NodeKind.CONTROLLER or given.get("enableControllerInNamesrv") == "true":
        own = given.get("controllerDLegerSelfId", "n0")
        for item in given.get("controllerDLegerPeers", CONTROLLER_DEFAULT).split(";"):
            node, _, address = item.strip().partition("-")
            with contextlib.suppress(ValueError):
                port = parse_address(address)[1]
                if node == own:
                    ports.append(ListeningPort(port, "controllerDLegerPeers"))
                    node_under_test.controller_address = address
        node_under_test.address = node_under_test.address or node_under_test.controller_address
        node_under_test.data = Path(given.get("controllerStorePath", "controller-store")).absolute()
    node_under_test.ports = tuple(ports)


def _asked_host(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _of(node_under_test: NodeUnderTest) -> tuple[str, Path | None]:
    return node_under_test.kind.value, node_under_test.config_path


def _flat(owners: Mapping[int, list[SocketOwner]]) -> list[SocketOwner]:
    return [owner for several in owners.values() for owner in several]


def _process(owner: SocketOwner) -> Process | None:
    stamp = start_stamp(owner.pid)
    return None if stamp is None else Process(owner.pid, stamp)
