"""The nodes to examine: of a local cluster, of a cluster file that does not run yet, or of one server's own file."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from rmqha.cli import cluster_file
from rmqha.cli.cluster_file import NodeKind
from rmqha.cli.cluster_state import ClusterState
from rmqha.cli.diagnosis.listeners import Owner, listening
from rmqha.cli.supervisor import Process, start_stamp
from rmqha.host.text_file import read_text
from rmqha.model.config import BrokerConfig, ServerConfig, parse_properties
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.identity import parse_address

CONTROLLER_DEFAULT = "n0-127.0.0.1:9878"
_BROKER_KEYS = ("brokerName", "brokerClusterName", "storePathRootDir", "haListenPort", "haMode", "brokerRole")


@dataclass(frozen=True, slots=True)
class Port:
    """`key` is what moves it. `host` "": that of the node."""

    number: int
    key: str
    host: str = ""


@dataclass(slots=True)
class Patient:
    """A node as its configuration says it is. `problem` is why that cannot be read, then little else is known."""

    name: str
    kind: NodeKind
    source: str
    """Which file a user changes."""
    config_path: Path | None
    properties: Mapping[str, str]
    problem: str = ""
    broker: BrokerConfig | None = None
    host: str = ""
    ports: tuple[Port, ...] = ()
    address: str = ""
    """Where it is asked; "" if that is not known."""
    controller_address: str = ""
    data: Path | None = None
    process: Process | None = None
    in_cluster: bool = False
    """It can be named to `rmqha start` and the like."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def start_command(self) -> str:
        if self.in_cluster:
            return f"rmqha start {self.name}"
        if self.config_path is None:
            return f"rmqha up {self.source}"
        return f"rmqha {self.kind.value} -c {self.config_path}"


def of_cluster(state: ClusterState, name: str | None) -> list[Patient]:
    """The nodes of a local cluster, or one of them. Raises UsageError for a name that it does not have."""
    records = [state.node(name)] if name else list(state.nodes.values())
    found = []
    for record in records:
        path = state.config_path(record.name)
        patient = _of_properties(record.name, NodeKind(record.kind), path)
        patient.process, patient.in_cluster = record.process, True
        patient.source = state.cluster_file
        patient.address, patient.controller_address = record.address, record.controller_address
        found.append(patient)
    return found


def of_file(path: Path) -> list[Patient]:
    """What a cluster file or a server's properties file would start. Raises UsageError if it cannot be read."""
    if path.suffix == ".toml":
        spec = cluster_file.load(path)
        return [_of_spec(spec, node) for node in spec.nodes]
    return [_of_properties(path.stem, kind_of(_read(path)), path)]


def _of_spec(spec: cluster_file.ClusterSpec, node: cluster_file.NodeSpec) -> Patient:
    patient = Patient(node.name, node.kind, spec.source, None, node.properties)
    _fill(patient)
    return patient


def _read(path: Path) -> dict[str, str]:
    return parse_properties(read_text(path, "the configuration"), str(path))


def kind_of(properties: Mapping[str, str]) -> NodeKind:
    """Which server a properties file is for, by the keys that only that one has."""
    if any(key in properties for key in _BROKER_KEYS):
        return NodeKind.BROKER
    only_controller = "controllerDLegerPeers" in properties or "controllerStorePath" in properties
    if only_controller and properties.get("enableControllerInNamesrv") != "true":
        return NodeKind.CONTROLLER
    return NodeKind.NAMESRV


def _of_properties(name: str, kind: NodeKind, path: Path) -> Patient:
    patient = Patient(name, kind, str(path), path, {})
    try:
        patient.properties = _read(path)
        _check(patient, path)
    except RmqhaError as error:
        patient.problem = str(error)
    _fill(patient)
    return patient


def _check(patient: Patient, path: Path) -> None:
    """Let the server itself read the file; those above this package come by name only. Raises RmqhaError."""
    from rmqha.cli.main import cli

    command = cli.get_command(click.Context(cli), patient.kind.value)
    if command is None:
        raise UsageError(f"the command {patient.kind.value} is not installed; run pip install rmqha again")
    # the security of the server that is read must not become ours
    contextvars.copy_context().run(command.main, ["-c", str(path), "--check"], standalone_mode=False)


def _fill(patient: Patient) -> None:
    """Addresses, ports and directories by the keys; as far as they can be read."""
    given = patient.properties
    patient.host = given.get("listenAddress", "127.0.0.1")
    if patient.kind is NodeKind.BROKER:
        try:
            config = BrokerConfig.from_properties(given, patient.source)
        except RmqhaError as error:
            patient.problem = patient.problem or str(error)
            return
        patient.broker, patient.address = config, config.address
        numbers = ((config.listen_port, "listenPort"), (config.ha_port, "haListenPort"))
        patient.ports = tuple(Port(*item) for item in (*numbers, (config.listen_port - 2, "listenPort")))
        patient.data = Path(config.store_path_root_dir).absolute()
    else:
        _fill_server(patient)
    http_port = given.get("httpPort", "0")
    if http_port.isdigit() and int(http_port):
        patient.ports += (Port(int(http_port), "httpPort", given.get("httpHost", ServerConfig.http_host)),)
    if patient.config_path is not None:
        owners = listening([port.number for port in patient.ports])
        patient.process = next((_process(item) for item in _flat(owners) if item.runs(*_of(patient))), None)


def _fill_server(patient: Patient) -> None:
    given, ports = patient.properties, []
    if patient.kind is NodeKind.NAMESRV:
        number = given.get("listenPort", "9876")
        if number.isdigit():
            ports.append(Port(int(number), "listenPort"))
            patient.address = f"{_asked_host(patient.host)}:{number}"
    if patient.kind is NodeKind.CONTROLLER or given.get("enableControllerInNamesrv") == "true":
        own = given.get("controllerDLegerSelfId", "n0")
        for item in given.get("controllerDLegerPeers", CONTROLLER_DEFAULT).split(";"):
            node, _, address = item.strip().partition("-")
            with contextlib.suppress(ValueError):
                port = parse_address(address)[1]
                if node == own:
                    ports.append(Port(port, "controllerDLegerPeers"))
                    patient.controller_address = address
        patient.address = patient.address or patient.controller_address
        patient.data = Path(given.get("controllerStorePath", "controller-store")).absolute()
    patient.ports = tuple(ports)


def _asked_host(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


def _of(patient: Patient) -> tuple[str, Path | None]:
    return patient.kind.value, patient.config_path


def _flat(owners: Mapping[int, list[Owner]]) -> list[Owner]:
    return [owner for several in owners.values() for owner in several]


def _process(owner: Owner) -> Process | None:
    stamp = start_stamp(owner.pid)
    return None if stamp is None else Process(owner.pid, stamp)
