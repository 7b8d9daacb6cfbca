"""`rmqha up`: start a local cluster from a cluster file and wait until it is healthy. Control plane."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import click

from rmqha.cli.local.launch_progress import wait_shown
from rmqha.cli.local.status import show
from rmqha.cli.options import output_option
from rmqha.host.asking.shell import ask_by
from rmqha.host.text_file import expanded
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.local.cluster_file import load, parse, promise
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, OWN_FILE, QUICKSTART, ClusterState, write_atomic
from rmqha.ops.local.launch import STOP_TIMEOUT_S, launch
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.preflight import check_cluster
from rmqha.ops.local.prepare import prepare
from rmqha.ops.local.supervisor import Process, stop_all

OWN_DIRECTORY = Path("rmqha-data/quickstart")
"""Directory of the quickstart cluster."""
OTHER_PORTS = "take other ports, such as `rmqha up --port-base 20000`"


@click.command(epilog="Example: rmqha up conf/quickstart.toml")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--mode", type=click.Choice(["ap", "cp"]), help="Overrules haMode of the file.")
@click.option("--ap", is_flag=True, help="The same as --mode ap.")
@click.option("--brokers", type=click.IntRange(1, 9), metavar="N", help="Without FILE: replicas of the group.")
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65_400),
    metavar="P",
    help="Without FILE: the name server's; others follow.",
)
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Overrules directory of the file.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to healthy.")
@output_option
def up(
    file: Path | None,
    mode: str | None,
    ap: bool,
    brokers: int | None,
    port_base: int | None,
    directory: Path | None,
    timeout: float,
    output: str,
) -> None:
    """Start the cluster that FILE describes and wait until it is healthy.

    Without FILE: a name server with its controller, and a group of three brokers in CP, on the ports of RocketMQ; with
    --brokers or --port-base others, which DIR/cluster.toml then says for the next `up`. DIR is that of --directory or
    $RMQHA_DIRECTORY. Everything is checked before
    anything is written. A second `up` starts only what does not run."""
    if ap and mode == "cp":
        raise UsageError("--ap and --mode cp contradict each other")
    if file is not None and (brokers is not None or port_base is not None):
        raise UsageError(f"--brokers and --port-base are for `rmqha up` without a file; {file} says those")
    mode = "ap" if ap else mode
    if file is None and directory is None and (named := os.environ.get(DIRECTORY_VARIABLE)):
        directory = Path(named)  # as for all other commands
    own = expanded(directory or OWN_DIRECTORY).absolute() / OWN_FILE
    text = quickstart_text(brokers, port_base, mode or "cp") if brokers is not None or port_base is not None else ""
    if text:
        spec = parse(str(own), tomllib.loads(text), ha_mode=mode, directory=own.parent)
    else:
        spec = load(file or (own if own.is_file() else QUICKSTART), ha_mode=mode, directory=directory)
    is_quickstart = bool(text) or spec.source == str(QUICKSTART)
    running = check_cluster(spec, other_ports=OTHER_PORTS if is_quickstart else "")
    click.echo(promise(spec), err=True)
    state = prepare(spec, running)
    if text:
        write_atomic(own, text)
    with state.locked():
        view = start_missing(state, timeout)
        note_as_last(state)
    show(view, output)
    for name, node in state.nodes.items():
        if node.kind == NodeKind.NAMESRV.value and (address := state.http_address(name)):
            click.echo(f"page of {name}: http://{address}/", err=True)


def note_as_last(state: ClusterState) -> None:
    """Let other commands find this cluster. It runs also where the current directory cannot be written."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named and expanded(named).absolute() != state.directory:
        advice = f"unset it, or give them --directory {state.directory}"
        click.echo(
            f"other commands ask the cluster of ${DIRECTORY_VARIABLE}, {named}, not this one: {advice}", err=True
        )
    try:
        state.remember_as_last()
    except (OSError, UsageError) as error:
        reason = f"cannot write {error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        click.echo(f"{reason}; other commands find it by --directory {state.directory}", err=True)


def quickstart_text(brokers: int | None, port_base: int | None, mode: str) -> str:
    """The cluster file of the quick start with another size or other ports, all less than 100 above the first."""
    text = QUICKSTART.read_text(encoding="utf-8")
    changes = {
        'haMode = "cp"': f'haMode = "{mode}"',
        "replicas = 3": f"replicas = {brokers or 3}",
        "# rmqha up conf/quickstart.toml\n": "",
    }
    if port_base is not None:
        ports = {9876: port_base, 9878: port_base + 2, 10911: port_base + 14}
        changes |= {f"listenPort = {old}": f"listenPort = {new}" for old, new in ports.items()}
        changes["httpPort = 9888"] = f"httpPort = {port_base + 4}"
        changes["# the next replicas: 10921 and 10931; +1"] = "# the next replicas: portStep further; +1"
    for old in changes:
        assert text.count(old) == 1, f"the quick start says {old} once"
    # all at once: a new port may be another's old one
    return re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], text)


def start_missing(state: ClusterState, timeout_s: float) -> ClusterView:
    """Start the nodes that do not run and wait for health; on any failure stop those that were started here, no
    others."""
    started: list[Process] = []
    try:
        for name, node in list(state.nodes.items()):
            if node.alive:
                click.echo(f"{name}: runs already, pid {node.pid}", err=True)
            else:
                started.append(launch(state, name))
        return ask_by(wait_shown, state, [*state.nodes, *state.groups], timeout_s)
    except BaseException as error:
        stop_all(started, STOP_TIMEOUT_S)
        if started and isinstance(error, RmqhaError):
            click.echo("what was started is stopped again; rmqha start NODE lets a node run that is not well", err=True)
        raise
