"""Checks before a cluster is written or started: directories, identities, ports. Control plane."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmqha.host.text_file import read_text
from rmqha.model.error import UsageError
from rmqha.model.identity import NO_IPV6, host_of
from rmqha.ops.local.cluster_file import SECRET_FILE, ClusterSpec, NodeSpec, properties_text
from rmqha.ops.local.cluster_state import CONFIG_FILE, FILE, LOCK, LOST_FOUND, ClusterState

IDENTITY_FILE = "brokerIdentity"
LOWEST_PORT, HIGHEST_PORT = 12000, 32000
PORT_BLOCK = 10
"""Ports that are claimed together."""
_claimed: dict[int, int] = {}
"""Descriptor that holds a block of ports which this process claimed, by the block's first port."""
REST_COUNT = 8
_given: deque[range] = deque(maxlen=REST_COUNT)
"""The last ports that `free_ports` gave: a server may be about to listen there."""


def check_cluster(spec: ClusterSpec, *, other_ports: str = "") -> ClusterState | None:
    """The record of what runs in the cluster's directory, None if it is new. Raises UsageError; writes nothing.
    `other_ports`: advice for a port that is taken; "" to advise another one in the cluster's file."""
    _check_directory(spec.directory)
    state = ClusterState.read(spec.directory)
    if state is not None:
        if state.name != spec.name:
            raise UsageError(
                f"{spec.directory} is the directory of cluster {state.name}, {spec.source} is cluster {spec.name}; "
                "name another --directory"
            )
        _check_unchanged(spec, state)
    elif spec.directory.exists() and not _is_as_begun(spec):
        raise UsageError(
            f"{spec.directory} is not empty and has no {FILE}, so it is not a cluster's; name another --directory"
        )
    alive = {name for name, node in state.nodes.items() if node.alive} if state else set()
    missing = [node for node in spec.nodes if node.name not in alive]
    for node in missing:
        _check_identity(spec, node)
    check_ports(missing, spec.source, other_ports)
    return state


def _is_as_begun(spec: ClusterSpec) -> bool:
    """True if the directory only has files that an interrupted `up` leaves before it writes the record."""
    nodes = {node.name for node in spec.nodes}
    for item in spec.directory.iterdir():
        if item.name in nodes and item.is_dir() and not item.is_symlink():
            if any(not inner.name.startswith(CONFIG_FILE) for inner in item.iterdir()):
                return False
        elif not item.name.startswith((LOCK, SECRET_FILE, FILE)) and item.name != LOST_FOUND:
            return False
    return True


def _check_directory(directory: Path) -> None:
    """Check that the directory, or the nearest existing one above it, is writable."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing} is not a directory; name another --directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{existing} cannot be written by this user; name another --directory")


def _check_unchanged(spec: ClusterSpec, state: ClusterState) -> None:
    """Check that the running nodes are those of the file, else a second `up` would leave a mixture."""
    wanted = {node.name: node for node in spec.nodes}
    for name, record in state.nodes.items():
        if not record.alive:
            continue
        if name not in wanted:
            raise UsageError(f"{name} runs but is not in {spec.source}; run `rmqha stop {name}` first")
        runs_with = read_text(state.config_path(name), "the configuration")
        text = properties_text(spec, wanted[name])
        if "haSecretFile=" not in runs_with:
            # started by a release that made no secret: it counts from the next start on
            text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("haSecretFile="))
        if settings(runs_with) != settings(text):
            raise UsageError(f"{name} runs with another configuration than {spec.source} says; run `rmqha down` first")


def settings(text: str) -> list[str]:
    """The lines of a properties file that set a key."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def _check_identity(spec: ClusterSpec, node: NodeSpec) -> None:
    """Raise UsageError for a store of another cluster or group: it must not be started as this broker."""
    store = node.properties.get("storePathRootDir")
    if store is None:
        return
    try:
        text = (Path(store) / IDENTITY_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {store}/{IDENTITY_FILE}: {error.strerror}") from None
    cluster, _, rest = text.partition("#")
    group = rest.partition("#")[0]
    if (cluster, group) != (spec.name, node.group):
        raise UsageError(
            f"{store} holds the data of a broker of {cluster}/{group}, not of {spec.name}/{node.group}; "
            "name another --directory"
        )


def check_ports(nodes: Iterable[NodeSpec], source: str, other_ports: str = "") -> None:
    """Raise UsageError for the first port that a node needs and another process has."""
    for node in nodes:
        host = host_of(node.address)
        for port in node.ports:
            reason = cannot_bind(host, port.number)
            if reason:
                raise UsageError(
                    f"port {port.number} on {host}, wanted by {node.name}, {reason}; "
                    f"free it or {other_ports or f'change {port.key} in {source}'}"
                )


def cannot_bind(host: str, port: int) -> str:
    """The reason why an address cannot be bound, or "". All addresses of a name are tried, with SO_REUSEADDR, as the
    servers do: a port in TIME_WAIT is free."""
    bound_count, lacking = 0, ""
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                _bind(family, place)
                bound_count += 1
            except OSError as error:
                if family != socket.AF_INET6 or error.errno not in NO_IPV6:
                    raise
                lacking = f"cannot be bound: {error.strerror}"
    except OSError as error:
        return "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror}"
    return "" if bound_count else lacking


def _bind(family: int, place: Any) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)


def free_ports(count: int) -> int:
    """The first of `count` neighbouring free ports on loopback: for tests, drills and the demo.

    They lie below the range that the system gives to clients, so that no connection takes one before the server. They
    are reserved for this process until it ends, so that no other is given the port of a server that is being restarted;
    this process itself gets them again when no server listens on any of them, the last REST_COUNT ones only if there
    are no others."""
    size = -(-count // PORT_BLOCK) * PORT_BLOCK
    low, high = LOWEST_PORT, HIGHEST_PORT - size
    first = os.getpid() * size  # two processes that begin at the same moment do not try the same ones
    bases = [low + (first + step) % (high - low) for step in range(0, high - low, size)]
    for base in sorted(bases, key=lambda base: any(base < last.stop and last.start < base + size for last in _given)):
        in_use = any(cannot_bind("127.0.0.1", port) for port in range(base, base + count))
        if not in_use and all(_claim_block(block) for block in range(base, base + size, PORT_BLOCK)):
            _given.append(range(base, base + size))
            return base
    raise UsageError(f"no {count} neighbouring ports are free on 127.0.0.1 between {low} and {HIGHEST_PORT}")


def _claim_block(port: int) -> bool:
    """Bind the UDP port of a block's first number, which nothing here uses, until this process ends."""
    if port not in _claimed:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(("127.0.0.1", port))
            except OSError:
                return False
            _claimed[port] = claim.detach()
    return True
