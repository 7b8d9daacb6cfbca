"""The servers that one name stands for, and their keys, by RocketMQ's own requests. Control plane.

A name server with a controller inside is two servers with one name: an unknown key of one may be a key of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rmqha.host.asking.shell import Caller
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.ops.asking import require_success
from rmqha.ops.guarantee import effective_keys
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.command import Command
from rmqha.wire.config_answer import ReportedKeys, parse_keys


class ConfigCodes(Enum):
    """The requests that read and change a server's keys, by its kind."""

    BROKER = (RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)
    CONTROLLER = (RequestCode.CONTROLLER_GET_CONFIG, RequestCode.CONTROLLER_UPDATE_CONFIG)
    NAME_SERVER = (RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)

    @property
    def title(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Server:
    """One server that answered."""

    name: str
    kind: ConfigCodes
    address: str
    keys: ReportedKeys

    @property
    def is_ours(self) -> bool:
        return self.keys.live is not None


@dataclass(frozen=True, slots=True)
class Key:
    """The effective value of a key. `default` and `is_live` are None if they are not known, as of Apache's."""

    key: str
    value: str
    default: str | None
    source: str
    is_live: bool | None


def addresses_of(name: str, state: ClusterState | None) -> list[str]:
    """Addresses at which the servers called `name` listen. UsageError if there is no such node."""
    try:
        parse_address(name)
    except ValueError:
        if state is None:
            raise UsageError(
                f"{name} is no HOST:PORT, and no cluster is known here that has such a node; name one by --directory "
                "or --namesrv"
            ) from None
        node = state.node(name)
        return list(dict.fromkeys(item for item in (node.address, node.controller_address) if item))
    return [name]


async def read_servers(client: Caller, name: str, state: ClusterState | None, timeout_ms: int) -> list[Server]:
    """All servers of that name. Raises UnreachableError if one does not answer."""
    return [await _read(client, name, address, timeout_ms) for address in addresses_of(name, state)]


async def _read(client: Caller, name: str, address: str, timeout_ms: int) -> Server:
    """Read the configuration of a node. Its kind is that of the request that it answers: it refuses the others."""
    for kind in ConfigCodes:
        try:
            reply = require_success(await client.call(address, Command(kind.value[0]), timeout_ms), address)
        except RemoteError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                continue
            raise
        keys = parse_keys(reply, f"the configuration of {address}")
        if not keys.values:
            raise UnreachableError(f"{address} answers without a configuration: another program listens there")
        return Server(name, kind, address, keys)
    raise RmqhaError(f"{address} answers and tells no configuration: it is neither broker, controller nor name server")


def key_table(server: Server) -> list[Key]:
    """Every key with its default and the source of its value, sorted. Keys that a preset of haMode overrules have the
    effective value."""
    told = server.keys
    presets = effective_keys(told.values) if server.kind is ConfigCodes.BROKER and server.is_ours else {}
    found = []
    for key, value in sorted(told.values.items()):
        if told.live is None or told.changed is None or told.overridden is None:
            found.append(Key(key, value, None, "", None))
            continue
        source = "config set" if key in told.overridden else "file" if key in told.changed else "default"
        preset = presets.get(key)
        if preset is not None and preset.source.startswith("preset"):
            value, source = preset.value, preset.source
        found.append(Key(key, value, told.changed.get(key, told.values[key]), source, key in told.live))
    return found


def find_key(servers: list[Server], key: str) -> tuple[Server, str]:
    """The server that has the key, and its value. UsageError names the nearest."""
    for server in servers:
        if key in server.keys.values:
            return server, server.keys.values[key]
    import difflib

    known = [name for server in servers for name in server.keys.values]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    raise UsageError(f"{servers[0].name} has no key {key}; the nearest is {near[0] if near else 'none'}")


def plan_changes(servers: list[Server], changes: Mapping[str, str]) -> list[tuple[Server, dict[str, str]]]:
    """The keys to change by server; those that have their value already are left out.

    UsageError for a key that no server has; RmqhaError for keys that need a restart: then nothing is changed."""
    plan: dict[str, tuple[Server, dict[str, str]]] = {}
    later = []
    for key, value in changes.items():
        server, before = find_key(servers, key)
        if before == value:
            continue
        if server.keys.live is not None and key not in server.keys.live:
            later.append(key)
        plan.setdefault(server.address, (server, {}))[1][key] = value
    if later:
        name = servers[0].name
        raise RmqhaError(
            f"{', '.join(later)} of {name} cannot be changed while it runs, so nothing was: write "
            f"{'; '.join(f'{key}={changes[key]}' for key in later)} to its file and restart it"
        )
    return list(plan.values())


async def change(client: Caller, server: Server, changes: Mapping[str, str], timeout_ms: int) -> bool:
    """Change keys of a server, all or none. Returns True if the change survives the process. RmqhaError with the
    server's reason."""
    body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
    reply = await client.call(server.address, Command(server.kind.value[1], {}, body), timeout_ms)
    if reply.code != ResponseCode.SUCCESS:
        raise RmqhaError(f"{server.name} refuses: {reply.remark or f'code {reply.code}'}")
    return reply.ext.get("kept") != "false"
