"""The cluster file: one TOML file that says what `rmqha up` starts, expanded to one properties file per node.

    [cluster]      name, directory, haMode (ap or cp), listenAddress, httpPort
    [namesrv]      count, listenPort, portStep, embedController, httpPort
    [controllers]  count, listenPort, portStep
    [[group]]      name, replicas, listenPort, portStep, static
    [broker]       any key of a broker's properties file, for every broker
    [node.NAME]    the same for one broker alone: its zone, priority, asyncLearner
    [security]     aclEnable, aclFile, credentialsFile and tls.*, for every server

An unknown key, a value of the wrong kind or two keys that contradict each other is a ConfigError naming file and key.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqha.host.text_file import expanded, read_text
from rmqha.model.config.servers import CLOSED, BrokerConfig, ServerConfig
from rmqha.model.error import ConfigError
from rmqha.model.identity import join_address, parse_address
from rmqha.ops.guarantee import PRESETS, effective_keys
from rmqha.ops.guarantee import promise as of_keys
from rmqha.ops.local.node_kind import NodeKind


@dataclass(frozen=True, slots=True)
class BoundPort:
    """A port that a node binds; `key` is what the user changes to move it."""

    number: int
    key: str


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One process: its name, its command and its properties file. `ports` are all the ports it binds."""

    name: str
    kind: NodeKind
    address: str
    ports: tuple[BoundPort, ...]
    properties: Mapping[str, str]
    group: str = ""
    embeds_controller: bool = False


@dataclass(frozen=True)
class GroupSection:
    """A [[group]]: the broker group `name`, replica n listening on listen_port + (n - 1) * port_step. `static`: without
    a controller, replica 1 is the master for good."""

    name: str = "broker-a"
    replicas: int = 1
    listen_port: int = field(default=10911, metadata={"key": "listenPort"})
    port_step: int = field(default=10, metadata={"key": "portStep"})
    static: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{n + 1}" for n in range(self.replicas))


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster file that has been read and checked. `source` names it in sentences."""

    source: str
    name: str
    directory: Path
    ha_mode: str
    nodes: tuple[NodeSpec, ...]
    groups: tuple[GroupSection, ...]
    namesrv_addresses: str
    controller_addresses: str

    def node(self, name: str) -> NodeSpec:
        return next(node for node in self.nodes if node.name == name)


SET_BY = {
    "brokerClusterName": "[cluster] name",
    "haMode": "[cluster] haMode",
    "listenAddress": "[cluster] listenAddress",
    "brokerName": "[[group]] name",
    "totalReplicas": "[[group]] replicas",
    "listenPort": "[[group]] listenPort",
    "haListenPort": "[[group]] listenPort",
    "brokerId": "the order in a [[group]]",
    "namesrvAddr": "[namesrv]",
    "controllerAddr": "[controllers]",
    "enableControllerMode": "[[group]] static",
    "haMasterAddress": "the name servers",
    "storePathRootDir": "[cluster] directory",
    "logFile": "[cluster] directory",
    "httpPort": "[cluster] httpPort",
}
"""Broker keys that are set for each node, or once in another table, with the place where."""

SELF_ID, PEERS = "controllerDLegerSelfId", "controllerDLegerPeers"
HTTP_BLOCK = 10
"""Ports for each kind of server and each group; none has more than 9 nodes."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class _Cluster:
    name: str = "DefaultCluster"
    directory: str = ""
    ha_mode: str = field(default="cp", metadata={"key": "haMode"})
    listen_address: str = field(default="127.0.0.1", metadata={"key": "listenAddress"})
    http_port: int = field(default=0, metadata={"key": "httpPort"})


@dataclass(frozen=True)
class _Namesrv:
    count: int = 1
    listen_port: int = field(default=9876, metadata={"key": "listenPort"})
    port_step: int = field(default=1, metadata={"key": "portStep"})
    embed_controller: bool = field(default=True, metadata={"key": "embedController"})
    http_port: int = field(default=0, metadata={"key": "httpPort"})
    """The page of the first name server; the others have the next ports."""


@dataclass(frozen=True)
class _Controllers:
    count: int = 0
    listen_port: int = field(default=9878, metadata={"key": "listenPort"})
    port_step: int = field(default=1, metadata={"key": "portStep"})


SECTIONS = ("cluster", "namesrv", "controllers", "group", "broker", "node", "security")
SECURITY_KEYS = [
    key for key in list(ServerConfig.keys()) if key.startswith(("acl", "credentials", "haSecretFile", "tls."))
]
SECRET_FILE = "ha.secret"
"""In the directory of the cluster; `up` makes it."""
KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


class _Reader:
    """Reader of one TOML document's tables; its errors name file and key."""

    def __init__(self, source: str, document: dict[str, Any]) -> None:
        self.source = source
        self.document = document

    def wrong(self, sentence: str) -> ConfigError:
        return ConfigError(f"{self.source}: {sentence}")

    def known(self, given: str, known: Iterable[str], place: str) -> None:
        names = list(known)
        if given not in names:
            near = difflib.get_close_matches(given, names, n=1, cutoff=0.0)[0]
            raise self.wrong(f"unknown {place} {given}; the nearest known one is {near}")

    def table(self, name: str) -> dict[str, Any]:
        value = self.document.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(f"{name} must be a table, [{name}]")
        return value

    def fill(self, kind: Any, table: dict[str, Any], place: str) -> Any:
        """A dataclass `kind` made of `table`. Raises ConfigError for an unknown key or a value of another type."""
        keys = {item.metadata.get("key", item.name): item for item in dataclasses.fields(kind)}
        values = {}
        for key, value in table.items():
            self.known(key, keys, f"key in {place}:")
            item = keys[key]
            wanted = type(item.default)
            if type(value) is not wanted:
                raise self.wrong(f"{place} {key} = {value!r} must be {KINDS[wanted]}")
            values[item.name] = value
        return kind(**values)

    def within(self, place: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise self.wrong(f"{place} = {value} must lie between {low} and {high}")


def load(
    path: Path,
    *,
    ha_mode: str | None = None,
    directory: Path | None = None,
    replicas: Mapping[str, int] | None = None,
    node_keys: Mapping[str, Mapping[str, Any]] | None = None,
) -> ClusterSpec:
    """Read and check a cluster file; the arguments overrule what it says, `replicas` by group and `node_keys` by node.

    Raises UsageError if it cannot be read, ConfigError if something in it is wrong. Touches nothing.
    """
    text = read_text(path, "the cluster file")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is not TOML of a cluster: it is nested too deeply") from None
    except ValueError as error:
        # also numbers of thousands of digits, which are no TOMLDecodeError
        raise ConfigError(f"{path} is not TOML: {error}") from None
    groups = document.get("group")
    for table in groups if isinstance(groups, list) else ():
        if isinstance(table, dict) and table.get("name") in (replicas or {}):
            table["replicas"] = (replicas or {})[table["name"]]
    nodes = document.setdefault("node", {}) if node_keys else {}
    for name, keys in (node_keys or {}).items():
        if isinstance(nodes, dict):
            nodes[name] = {**nodes.get(name, {}), **keys}
    return parse(str(path), document, ha_mode=ha_mode, directory=directory)


def parse(
    source: str, document: dict[str, Any], *, ha_mode: str | None = None, directory: Path | None = None
) -> ClusterSpec:
    """A cluster from a TOML document that has been read."""
    reader = _Reader(source, document)
    for section in document:
        reader.known(section, SECTIONS, "section")
    cluster: _Cluster = reader.fill(_Cluster, reader.table("cluster"), "[cluster]")
    mode = ha_mode or cluster.ha_mode
    if mode not in PRESETS:
        raise reader.wrong(f"[cluster] haMode = {mode!r} must be ap or cp")
    if not NAME.fullmatch(cluster.name):
        raise reader.wrong(f"[cluster] name = {cluster.name!r} must be letters, digits, - and _")
    try:
        ip = parse_address(join_address(cluster.listen_address, 1))[0]
    except ValueError:
        raise reader.wrong(
            f"[cluster] listenAddress = {cluster.listen_address!r} must be a name or a number of this machine"
        ) from None
    root = directory or Path(cluster.directory or f"rmqha-data/{cluster.name}")
    root = expanded(root).absolute()
    if any(0xD800 <= ord(letter) < 0xE000 for letter in str(root)):
        raise reader.wrong(
            f"directory = {str(root)!r} is no UTF-8 text, as the servers' files must be; choose another name"
        )

    groups = _read_groups(reader)
    static = [group.name for group in groups if group.static]
    if static and mode == "cp":
        raise reader.wrong(
            f"[[group]] {static[0]}: static = true cannot promise haMode = cp, which needs a controller;"
            ' set haMode = "ap"'
        )
    namesrv, controllers = _check_servers(reader, elects=len(static) < len(groups))
    shared = {"brokerClusterName": cluster.name, "haMode": mode, **_broker_properties(reader, mode)}
    layout = _Layout(
        root=root,
        ip=ip,
        name_servers=[(f"ns-{n + 1}", namesrv.listen_port + n * namesrv.port_step) for n in range(namesrv.count)],
        controllers=_controller_nodes(namesrv, controllers),
        security=_security_properties(reader),
        ha_security=shared.get("haSecurity", ""),
    )
    own = _node_properties(reader, groups, mode)
    nodes = _server_nodes(layout) + [node for group in groups for node in _broker_nodes(layout, group, shared, own)]
    for node in nodes:
        if node.kind is NodeKind.BROKER:
            BrokerConfig.from_properties(node.properties, source)
    if cluster.http_port:
        nodes = _with_http(reader, nodes, groups, cluster.http_port)
    elif namesrv.http_port:
        nodes = _with_pages(reader, nodes, namesrv.http_port)
    _check_distinct(reader, nodes)
    return ClusterSpec(
        source,
        cluster.name,
        root,
        mode,
        tuple(nodes),
        groups,
        layout.addresses(layout.name_servers),
        layout.addresses(layout.controllers),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Places of the servers: (node, port) of name servers and controllers; an embedded controller has its host's
    name."""

    root: Path
    ip: str
    name_servers: list[tuple[str, int]]
    controllers: list[tuple[str, int]]
    security: Mapping[str, str]
    ha_security: str
    """Value of the brokers' haSecurity: brokers that need not prove the secret to each other need not prove it to the
    controllers."""

    def addresses(self, nodes: list[tuple[str, int]]) -> str:
        return ";".join(join_address(self.ip, port) for _, port in nodes)

    def common_properties(self, name: str) -> dict[str, str]:
        log_file = str(self.root / name / "log" / f"{name}.log")
        secret = {} if "haSecretFile" in self.security else {"haSecretFile": str(self.root / SECRET_FILE)}
        return {"listenAddress": self.ip, "logFile": log_file, **secret, **self.security}

    def controller_properties(self, name: str) -> dict[str, str]:
        ids = {peer: f"n{number}" for number, (peer, _) in enumerate(self.controllers, 1)}
        opened = {"haSecurity": self.ha_security} if self.ha_security not in ("", *CLOSED) else {}
        return {
            **opened,
            "controllerDLegerGroup": "group1",
            PEERS: ";".join(f"{ids[peer]}-{join_address(self.ip, port)}" for peer, port in self.controllers),
            SELF_ID: ids[name],
            "controllerStorePath": str(self.root / name / "controller"),
        }


def _server_nodes(layout: _Layout) -> list[NodeSpec]:
    """Name servers, each with the controller that it embeds, then the controllers that stand alone."""
    nodes = []
    remaining = dict(layout.controllers)
    for name, port in layout.name_servers:
        ports = [BoundPort(port, "[namesrv] listenPort")]
        properties = layout.common_properties(name) | {"listenPort": str(port)}
        properties["controllerAddr"] = layout.addresses(layout.controllers)
        properties["kvConfigPath"] = str(layout.root / name / "kvConfig.json")
        embedded = remaining.pop(name, None)
        if embedded is not None:
            ports.append(BoundPort(embedded, "[controllers] listenPort"))
            properties |= {"enableControllerInNamesrv": "true"} | layout.controller_properties(name)
        address = join_address(layout.ip, port)
        nodes.append(
            NodeSpec(name, NodeKind.NAMESRV, address, tuple(ports), properties, embeds_controller=embedded is not None)
        )
    for name, port in remaining.items():
        properties = layout.common_properties(name) | layout.controller_properties(name)
        ports = [BoundPort(port, "[controllers] listenPort")]
        nodes.append(NodeSpec(name, NodeKind.CONTROLLER, join_address(layout.ip, port), tuple(ports), properties))
    return nodes


def counted_from_zero(node: NodeSpec) -> NodeSpec:
    """The node with the ids that an earlier release gave to controllers: theirs stay once they have formed their
    group."""
    if SELF_ID not in node.properties:
        return node
    shifted = {
        key: re.sub(r"(?:^|(?<=;))n(\d+)", lambda found: f"n{int(found[1]) - 1}", node.properties[key])
        for key in (SELF_ID, PEERS)
    }
    return dataclasses.replace(node, properties={**node.properties, **shifted})


def _broker_nodes(
    layout: _Layout, group: GroupSection, shared: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> list[NodeSpec]:
    nodes = []
    learners = [name for name in group.nodes if own.get(name, {}).get("asyncLearner") == "true"]
    for n in range(group.replicas):
        name = f"{group.name}-{n + 1}"
        port = group.listen_port + n * group.port_step
        properties = {
            "brokerName": group.name,
            "totalReplicas": str(max(1, group.replicas - len(learners))),
            "namesrvAddr": layout.addresses(layout.name_servers),
            "listenPort": str(port),
            "storePathRootDir": str(layout.root / name / "store"),
            **layout.common_properties(name),
            **shared,
            **own.get(name, {}),
        }
        if group.static:
            properties |= {"enableControllerMode": "false", "brokerId": str(n)}
            properties |= {"brokerRole": "SLAVE"} if n else {}
        else:
            properties |= {"enableControllerMode": "true", "controllerAddr": layout.addresses(layout.controllers)}
            properties["brokerId"] = str(n + 1)
        ports = tuple(BoundPort(port + shift, "[[group]] listenPort") for shift in (0, 1, -2))
        address = join_address(layout.ip, port)
        nodes.append(NodeSpec(name, NodeKind.BROKER, address, ports, properties, group=group.name))
    return nodes


def _with_http(
    reader: _Reader, nodes: list[NodeSpec], groups: tuple[GroupSection, ...], first_port: int
) -> list[NodeSpec]:
    """Each node with a port of its own for health and metrics. It follows from the node's name, so that a replica that
    is added moves nobody: name servers have the first HTTP_BLOCK ports, controllers the next, then each group."""
    blocks = {"ns": 0, "ctl": 1} | {group.name: place for place, group in enumerate(groups, 2)}
    reader.within("[cluster] httpPort", first_port, 1, 65536 - HTTP_BLOCK * len(blocks))
    found = []
    for node in nodes:
        prefix, _, number = node.name.rpartition("-")
        port = first_port + HTTP_BLOCK * blocks[prefix] + int(number) - 1
        properties = {**node.properties, "httpPort": str(port)}
        ports = (*node.ports, BoundPort(port, "[cluster] httpPort"))
        found.append(dataclasses.replace(node, ports=ports, properties=properties))
    return found


def _with_pages(reader: _Reader, nodes: list[NodeSpec], first_port: int) -> list[NodeSpec]:
    """The name servers alone with a port for HTTP, one after the other."""
    reader.within("[namesrv] httpPort", first_port, 1, 65535 - 9)
    found = []
    for node in nodes:
        if node.kind is NodeKind.NAMESRV:
            port = first_port + int(node.name.rpartition("-")[2]) - 1
            ports = (*node.ports, BoundPort(port, "[namesrv] httpPort"))
            node = dataclasses.replace(node, ports=ports, properties={**node.properties, "httpPort": str(port)})
        found.append(node)
    return found


def _check_servers(reader: _Reader, *, elects: bool) -> tuple[_Namesrv, _Controllers]:
    """Read and check the tables of the servers. `elects`: True if some group needs controllers."""
    namesrv: _Namesrv = reader.fill(_Namesrv, reader.table("namesrv"), "[namesrv]")
    controllers: _Controllers = reader.fill(_Controllers, reader.table("controllers"), "[controllers]")
    reader.within("[namesrv] count", namesrv.count, 1, 9)
    for place, section in (("[namesrv]", namesrv), ("[controllers]", controllers)):
        reader.within(f"{place} listenPort", section.listen_port, 1, 65535)
        reader.within(f"{place} portStep", section.port_step, 1, 1000)
    if namesrv.embed_controller:
        if "count" in reader.table("controllers"):
            raise reader.wrong(
                "[controllers] count contradicts [namesrv] embedController, by which each name server holds one; "
                "remove count or set embedController = false"
            )
    elif "controllers" not in reader.document:
        if not elects:
            return namesrv, dataclasses.replace(controllers, count=0)
        raise reader.wrong(
            "[namesrv] embedController = false needs a section [controllers] with a count, since groups elect by them"
        )
    else:
        reader.within("[controllers] count", controllers.count, 1, 9)
    return namesrv, controllers


def _read_groups(reader: _Reader) -> tuple[GroupSection, ...]:
    tables = reader.document.get("group", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise reader.wrong("group must be given as [[group]], once for each broker group")
    if not tables:
        raise reader.wrong("there is no [[group]], so no broker to start; add one with a name")
    groups: list[GroupSection] = []
    for table in tables:
        if "name" not in table:
            raise reader.wrong('a [[group]] has no name; give it one, for example name = "broker-a"')
        group: GroupSection = reader.fill(GroupSection, table, "[[group]]")
        if not NAME.fullmatch(group.name):
            raise reader.wrong(f"[[group]] name = {group.name!r} must be letters, digits, - and _")
        if group.name in ("ns", "ctl"):
            raise reader.wrong(f"[[group]] name = {group.name!r} is how name servers or controllers are called")
        if any(other.name == group.name for other in groups):
            raise reader.wrong(f"[[group]] name = {group.name!r} is given twice")
        reader.within(f"[[group]] {group.name}: replicas", group.replicas, 1, 9)
        reader.within(f"[[group]] {group.name}: listenPort", group.listen_port, 3, 65534)
        reader.within(f"[[group]] {group.name}: portStep", group.port_step, 1, 1000)
        last_port = group.listen_port + (group.replicas - 1) * group.port_step
        reader.within(f"[[group]] {group.name}: the last replica's listenPort", last_port, 3, 65534)
        groups.append(group)
    return tuple(groups)


def _broker_properties(reader: _Reader, ha_mode: str) -> dict[str, str]:
    """The preset of haMode, then [broker]."""
    return PRESETS[ha_mode] | _checked_properties(reader, "[broker]", reader.table("broker"), ha_mode)


def _security_properties(reader: _Reader) -> dict[str, str]:
    """The keys of [security]; relative paths are made absolute, since servers may run in another directory."""
    found: dict[str, str] = {}

    def add(table: Mapping[str, Any], prefix: str) -> None:
        for name, value in table.items():
            key = prefix + name
            if isinstance(value, dict):
                add(value, f"{key}.")  # tls.enable = true is a table in a table to TOML
                continue
            reader.known(key, SECURITY_KEYS, "key in [security]:")
            if not isinstance(value, str | bool):
                raise reader.wrong(f"[security] {key} = {value!r} must be a text, or true or false")
            if isinstance(value, bool):
                found[key] = str(value).lower()
            else:
                found[key] = str(expanded(value).absolute()) if key.endswith(("File", "Path")) else value

    add(reader.table("security"), "")
    ServerConfig.from_properties(found, reader.source)
    return found


def _node_properties(reader: _Reader, groups: Iterable[GroupSection], ha_mode: str) -> dict[str, dict[str, str]]:
    """The keys of each [node.NAME], by name."""
    known = [name for group in groups for name in group.nodes]
    found = {}
    for name, table in reader.table("node").items():
        reader.known(name, known, "broker in [node.NAME]:")
        if not isinstance(table, dict):
            raise reader.wrong(f"node.{name} must be a table, [node.{name}]")
        found[name] = _checked_properties(reader, f"[node.{name}]", table, ha_mode)
    return found


def _checked_properties(reader: _Reader, place: str, table: Mapping[str, Any], ha_mode: str) -> dict[str, str]:
    """Keys of brokers as a properties file has them. Raises ConfigError for one that breaks the promise of CP."""
    preset = PRESETS[ha_mode]
    given = {}
    for key, value in table.items():
        if key in SET_BY:
            raise reader.wrong(f"{place} {key} is set by {SET_BY[key]}; remove it")
        reader.known(key, BrokerConfig.keys(), f"key in {place}:")
        if not isinstance(value, str | int | bool):
            raise reader.wrong(f"{place} {key} = {value!r} must be a text, a whole number, or true or false")
        given[key] = str(value).lower() if isinstance(value, bool) else str(value)
        if ha_mode == "cp" and preset.get(key, given[key]) != given[key]:
            raise reader.wrong(f"{place} {key} = {given[key]} contradicts haMode = cp, which sets {preset[key]}")
    return given


def _controller_nodes(namesrv: _Namesrv, controllers: _Controllers) -> list[tuple[str, int]]:
    """(node, port) of each controller; an embedded one has its name server's node name."""
    count, prefix = (namesrv.count, "ns") if namesrv.embed_controller else (controllers.count, "ctl")
    return [(f"{prefix}-{n + 1}", controllers.listen_port + n * controllers.port_step) for n in range(count)]


def _check_distinct(reader: _Reader, nodes: list[NodeSpec]) -> None:
    """Raise ConfigError if two nodes have one name or bind one port."""
    taken: dict[int, str] = {}
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise reader.wrong(f"two nodes would be called {node.name}; rename a [[group]]")
        names.add(node.name)
        for port in node.ports:
            other = taken.setdefault(port.number, node.name)
            if other != node.name:
                raise reader.wrong(f"{node.name} and {other} would both bind port {port.number}; change {port.key}")
        numbers = [port.number for port in node.ports]
        if len(set(numbers)) < len(numbers):
            raise reader.wrong(f"{node.name} would bind one of its ports {numbers} twice; change {node.ports[-1].key}")


def properties_text(spec: ClusterSpec, node: NodeSpec) -> str:
    """The properties file of a node."""
    head = f"# {node.name}, written by `rmqha up` from {spec.source}: change that file, not this one\n"
    return head + "".join(f"{key}={value}\n" for key, value in node.properties.items())


def promise(spec: ClusterSpec) -> str:
    """The promise of this cluster's groups by the keys of their brokers, in words."""
    parts: list[str] = []
    for group in spec.groups:
        if group.static:
            continue
        keys = effective_keys(next(node.properties for node in spec.nodes if node.group == group.name))
        plain = " ".join(f"{key}={keys[key].value}" for key in PRESETS[spec.ha_mode])
        found = of_keys(keys)
        text = "; ".join([f"haMode={spec.ha_mode}: {plain}", found.acknowledged, *found.losses])
        if text not in parts:
            parts.append(text)
    parts += [
        f"{group.name} is static: {group.name}-1 is its master for good; while that is away slaves serve what they hold"
        " and nothing can be sent"
        for group in spec.groups
        if group.static
    ]
    return "; ".join(parts)
