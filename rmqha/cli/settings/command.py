"""`rmqha config`: the keys of running nodes as they count: show, get, set, diff. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from rmqha.cli.options import (
    cluster_or_none,
    cluster_or_none_options,
    complete_node,
    complete_node_or_group,
    echo_json,
    output_option,
)
from rmqha.cli.render import Text, console, table
from rmqha.cli.target import optional_target_options
from rmqha.host.asking.shell import Caller, ask_by, open_client, within
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.description.server_keys import Key, Server, change, find_key, key_table, plan_changes, read_servers
from rmqha.ops.local.cluster_state import ClusterState

F = TypeVar("F", bound=Callable[..., Any])

OF_ONE_NODE = frozenset(
    {
        "aclFile",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "controllerDLegerSelfId",
        "controllerStorePath",
        "credentialsFile",
        "haListenPort",
        "haMasterAddress",
        "httpPort",
        "kvConfigPath",
        "listenAddress",
        "listenPort",
        "logFile",
        "storePathRootDir",
    }
)
"""Keys that differ between any two nodes."""

COMPLETION_LIMIT_S = 0.5

node_argument = click.argument("node", metavar="NODE|HOST:PORT", shell_complete=complete_node)


def timeout_option(command: F) -> F:
    """`--timeout S`: the command gets `timeout: float`."""
    return click.option(
        "--timeout", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Seconds for each answer."
    )(command)


@click.group("config")
def config() -> None:
    """The keys of running nodes: brokers, controllers and name servers, ours and Apache RocketMQ's."""


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the keys of the node that is named before them; for a change those that apply at once, with "=" behind.
    None is completed if the node does not answer soon."""
    try:
        state = cluster_or_none(*map(context.params.get, ("namesrv", "controller", "directory")))
        target = context.params.get("node") or context.params.get("target")
        names = [target]
        if state is not None and target in state.groups:
            names = [node.name for node in state.brokers if node.group == target and node.alive]
        servers = ask_by(_read_soon, names[:1], state)
    except RmqhaError:
        return []  # the command itself says why
    keys = [key for server in servers for key in key_table(server)]
    if parameter.name == "changes":
        found = [f"{key.key}=" for key in keys if key.is_live is not False]
    else:
        found = [key.key for key in keys]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


async def _read_soon(names: list[str], state: ClusterState | None) -> list[Server]:
    with within(COMPLETION_LIMIT_S):
        async with open_client() as client:
            told = [await read_servers(client, name, state, round(COMPLETION_LIMIT_S * 1000)) for name in names]
        return [server for servers in told for server in servers]
    return []


async def _read(names: list[str], state: ClusterState | None, timeout_s: float) -> list[list[Server]]:
    async with open_client() as client:
        return [await read_servers(client, name, state, round(timeout_s * 1000)) for name in names]


# --- read -------------------------------------------------------------------------------------------------------------
@config.command(epilog="Example: rmqha config show broker-a-1 --effective")
@node_argument
@click.option("--effective", is_flag=True, help="All keys; else those whose value is not the default.")
@cluster_or_none_options
@timeout_option
@output_option
def show(node: str, effective: bool, state: ClusterState | None, timeout: float, output: str) -> None:
    """Show the keys of NODE as they count: value, default, source, and whether a change needs a restart.

    The comment above each tells the source (default; file; preset haMode=…; config set: a change while it ran), the
    default where the value is another, and live or restart: how a change comes into force. The output is a
    properties file, so lines may be copied into one.
    """
    (servers,) = ask_by(_read, [node], state, timeout)
    told = [(server, [key for key in key_table(server) if effective or _is_set(key)]) for server in servers]
    if output == "json":
        echo_json(
            [
                {"node": server.name, "kind": server.kind.title, "address": server.address}
                | {"keys": [asdict(key) for key in keys]}
                for server, keys in told
            ]
        )
        return
    out = console()
    for server, keys in told:
        for line in properties_lines(server, keys):
            out.print(Text(line, "dim" if line.startswith("#") else ""))


def properties_lines(server: Server, keys: Sequence[Key]) -> list[str]:
    """Lines of a properties file with these keys; default, source and restart stand in comments."""
    kind = server.kind.title if server.is_ours else f"{server.kind.title} of Apache RocketMQ's"
    lines = [f"# {server.name}: {kind} at {server.address}"]
    for key in keys:
        lines += [f"# {_facts(key)}"] if server.is_ours else []
        lines.append(f"{key.key}={key.value}")
    return lines if keys else [*lines, "# every key has its default"]


def _is_set(key: Key) -> bool:
    return key.default is None or key.value != key.default or key.source != "default"


def _facts(key: Key) -> str:
    default = "" if key.value == key.default else f", default {key.default or '(empty)'}"
    return f"{key.source}{default}, {'live' if key.is_live else 'restart'}"


@config.command(epilog="Example: rmqha config get broker-a-1 slaveReadEnable")
@node_argument
@click.argument("keys", nargs=-1, required=True, metavar="KEY…", shell_complete=complete_key)
@cluster_or_none_options
@timeout_option
@output_option
def get(node: str, keys: tuple[str, ...], state: ClusterState | None, timeout: float, output: str) -> None:
    """Print the value of each KEY of NODE, one a line."""
    (servers,) = ask_by(_read, [node], state, timeout)
    values = {}
    for name in keys:
        server, _ = find_key(servers, name)
        values[name] = next(key.value for key in key_table(server) if key.key == name)
    if output == "json":
        echo_json(values)
    else:
        for value in values.values():
            click.echo(value)


@config.command(epilog="Example: rmqha config diff broker-a-1 broker-a-2")
@click.argument("left", metavar="A", shell_complete=complete_node)
@click.argument("right", metavar="B", shell_complete=complete_node)
@click.option("--all", "everything", is_flag=True, help="Also what differs between any two nodes: ports, paths, ids.")
@cluster_or_none_options
@timeout_option
@output_option
def diff(left: str, right: str, everything: bool, state: ClusterState | None, timeout: float, output: str) -> None:
    """Show the keys in which nodes A and B differ.

    Exit code: 0 in none, 1 in some, 2 could not ask.
    """
    one, other = (_flat(servers) for servers in ask_by(_read, [left, right], state, timeout))
    found = {
        key: (one.get(key), other.get(key))
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key) and (everything or key not in OF_ONE_NODE)
    }
    if output == "json":
        echo_json({key: {left: values[0], right: values[1]} for key, values in found.items()})
    elif found:
        rows = [[key, *("(none)" if value is None else value or "(empty)" for value in found[key])] for key in found]
        console().print(table([("KEY", "left"), (left, "left"), (right, "left")], rows))
    else:
        click.echo(f"{left} and {right} have the same keys")
    if found:
        sys.exit(1)


def _flat(servers: list[Server]) -> dict[str, str]:
    """Values by key; of two servers in one process the first's counts where both have the key."""
    return {key.key: key.value for server in reversed(servers) for key in key_table(server)}


# --- change -----------------------------------------------------------------------------------------------------------
@config.command("set", epilog="Example: rmqha config set broker-a flushIntervalCommitLog=200")
@click.argument("target", metavar="NODE|GROUP|HOST:PORT", shell_complete=complete_node_or_group)
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE…", shell_complete=complete_key)
@optional_target_options(lambda given: ":" not in given["target"])
@timeout_option
@output_option
def set_(target: str, changes: tuple[str, ...], state: ClusterState | None, timeout: float, output: str) -> None:
    """Change keys of NODE, or of every broker of GROUP, while they run; kept over a restart.

    A key that needs a restart is refused, and so is a value that contradicts another. Nothing is changed then, and
    nothing if a broker of the GROUP does not answer.

    Exit code: 0 changed, 1 refused, 2 could not ask or no such key.
    """
    wanted = dict(map(_pair, changes))
    if len(wanted) < len(changes):
        raise UsageError("a key is given twice; nothing was changed")
    names = [target]
    if state is not None and target in state.groups:
        names = [node.name for node in state.brokers if node.group == target]
    told = ask_by(_set, names, wanted, state, timeout)
    if output == "json":
        echo_json([row for name in names for row in told[name]] if len(names) == 1 else told)
        return
    for name in names:
        for item in told[name]:
            if item["before"] == item["after"]:
                click.echo(f"{name}: {item['key']} is {item['after'] or '(empty)'} already")
                continue
            kept = (
                "in force and kept" if item["kept"] else "in force until it ends: it has no kvConfigPath to keep it in"
            )
            click.echo(f"{name}: {item['key']} {item['before'] or '(empty)'} → {item['after'] or '(empty)'}, {kept}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or "\n" in value:
        raise UsageError(f"{text!r} must be KEY=VALUE; nothing was changed")
    return key, value


async def _set(
    names: Sequence[str], wanted: dict[str, str], state: ClusterState | None, timeout_s: float
) -> dict[str, list[dict[str, Any]]]:
    """Change keys at nodes. Returns a row per key, by node: before, after, and True if it survives the process; values
    are read back. Every node is asked, and every change checked, before the first change."""
    timeout_ms = round(timeout_s * 1000)
    async with open_client() as client:
        servers = {name: await read_servers(client, name, state, timeout_ms) for name in names}
        plans = {name: plan_changes(servers[name], wanted) for name in names}
        told: dict[str, list[dict[str, Any]]] = {}
        for name in names:
            try:
                told[name] = await _set_at(client, name, servers[name], plans[name], wanted, state, timeout_ms)
            except RmqhaError as error:
                if not told:
                    raise
                raise RmqhaError(f"{error}; {', '.join(told)} had been changed before: run it once more") from error
    return told


async def _set_at(
    client: Caller,
    name: str,
    servers: list[Server],
    plan: list[tuple[Server, dict[str, str]]],
    wanted: dict[str, str],
    state: ClusterState | None,
    timeout_ms: int,
) -> list[dict[str, Any]]:
    before = {key: find_key(servers, key)[1] for key in wanted}
    kept = dict.fromkeys(wanted, True)
    for server, changes in plan:
        kept |= dict.fromkeys(changes, await change(client, server, changes, timeout_ms))
    changed = await read_servers(client, name, state, timeout_ms)
    rows = []
    for key, value in wanted.items():
        after = find_key(changed, key)[1]
        if after == before[key] and after.lower() != value.lower():
            raise RmqhaError(f"{name} took {key}={value} and still says {key}={after}")
        rows.append({"key": key, "before": before[key], "after": after, "kept": kept[key]})
    return rows
