"""Commands on the processes of a local cluster: down, start, stop, kill, logs, purge. Control plane."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from rmqha.cli.local.launch_progress import wait_shown
from rmqha.cli.options import (
    cluster_options,
    complete_node,
    confirm,
    directory_option,
    echo_json,
    output_option,
    yes_option,
)
from rmqha.cli.target import target_cluster
from rmqha.host.asking.shell import ask_by, open_client, sleep
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.local.cluster_state import FILE, LOCK, LOST_FOUND, OWN_FILE, ClusterState, NodeRecord
from rmqha.ops.local.followed_file import FollowedFile
from rmqha.ops.local.launch import launch
from rmqha.ops.local.supervisor import DRAIN_TIMEOUT_S, Process, require_gone, send_signal, stop_all, wait_gone
from rmqha.ops.node_log import NodeLog

KILL_TIMEOUT_S = 5.0
FOLLOW_INTERVAL_S = 0.2
REMOTE_INTERVAL_S = 1.0

node_argument = click.argument("node", shell_complete=complete_node)


def running(state: ClusterState, name: str) -> Process:
    """The process of a node. UsageError if the node does not run."""
    state.refuse_foreign()
    state.refuse_foreign_processes([name])
    record = state.node(name)
    if record.process is None or not record.alive:
        raise UsageError(f"{name} does not run")
    return record.process


@click.command(epilog="Example: rmqha down")
@directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=DRAIN_TIMEOUT_S, show_default=True,
    help="Seconds until a node that still runs is killed.",
)  # fmt: skip
def down(directory: Path | None, timeout: float) -> None:
    """Stop every node: brokers first, then controllers and name servers."""
    state = target_cluster(directory)
    with state.locked():
        alive = [node for node in state.nodes.values() if node.alive]
        if not alive:
            click.echo(f"nothing runs in {state.directory}")
            return
        state.refuse_foreign_processes(node.name for node in alive)
        brokers = [node for node in alive if node.is_broker]
        killed = _stop(brokers, timeout) + _stop([node for node in alive if not node.is_broker], timeout)
    require_gone([node.process for node in alive if node.process])
    click.echo(f"stopped {', '.join(node.name for node in alive)}")
    if killed:
        raise RmqhaError(f"{', '.join(killed)} did not stop within {timeout:g} s and had to be killed; see rmqha logs")


def _stop(nodes: list[NodeRecord], timeout_s: float) -> list[str]:
    """Stop all nodes. Returns the names of those that had to be killed."""
    processes = {node.process: node.name for node in nodes if node.process}
    return [processes[process] for process in stop_all(list(processes), timeout_s)]


@click.command(epilog="Example: rmqha start broker-a-1")
@node_argument
@directory_option
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to well.")
@output_option
def start(node: str, directory: Path | None, timeout: float, output: str) -> None:
    """Start a node again and wait until it is well: a broker back in the SyncStateSet of its group."""
    state = target_cluster(directory)
    with state.locked():
        record = state.node(node)
        if record.alive:
            click.echo(f"{node} runs already, pid {record.pid}", err=True)
        else:
            launch(state, node)
    # the processes stay: a node that is slow to be well may still get there, and `rmqha status` shows it
    view = ask_by(wait_shown, state, [node], timeout)
    found = started_state(view, node)
    if output == "json":
        echo_json(found)
    else:
        click.echo(found["sentence"])


def started_state(view: ClusterView, name: str) -> dict[str, Any]:
    """The state of a node that was started, as fields and as a sentence."""
    node = view.nodes[name]
    found: dict[str, Any] = {"node": name, "pid": node.node.pid, "state": node.state_json()}
    state = node.replica
    if state is None:
        return found | {"sentence": f"{name} runs, pid {node.node.pid}"}
    cut = state.truncated_bytes or 0
    fork = f"cut {cut:,} bytes of a fork, " if cut else "nothing to cut, "
    where = f"{state.max_phy_offset:,} bytes, epoch {state.epoch}"
    return found | {
        "truncatedBytes": cut,
        "sentence": f"{name} runs as {state.role.lower()}, pid {node.node.pid}: {fork}caught up at {where}, "
        "in the SyncStateSet",
    }


@click.command(epilog="Example: rmqha stop broker-a-1")
@node_argument
@directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=DRAIN_TIMEOUT_S, show_default=True,
    help="Seconds until a node that still runs is killed.",
)  # fmt: skip
def stop(node: str, directory: Path | None, timeout: float) -> None:
    """Stop a node in order (SIGTERM): a master hands over first."""
    state = target_cluster(directory)
    process = running(state, node)
    killed = stop_all([process], timeout)
    require_gone([process])
    if killed:
        raise RmqhaError(f"{node} did not stop within {timeout:g} s and had to be killed; see rmqha logs {node}")
    click.echo(f"{node} stopped")


@click.command(epilog="Example: rmqha kill broker-a-1")
@node_argument
@directory_option
@output_option
def kill(node: str, directory: Path | None, output: str) -> None:
    """Kill a node (SIGKILL), as a crash would."""
    state = target_cluster(directory)
    process = running(state, node)
    killed_at_ms = time.time_ns() // 1_000_000
    if not send_signal(process, signal.SIGKILL):
        raise UsageError(f"{node} does not run")
    wait_gone([process], KILL_TIMEOUT_S)
    require_gone([process])
    if output == "json":
        echo_json({"node": node, "pid": process.pid, "killedAtMs": killed_at_ms})
    else:
        click.echo(f"{node} killed, pid {process.pid}")


@click.command(epilog="Example: rmqha logs broker-a-1 -f")
@node_argument
@cluster_options
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True, help="Lines from the end.")
@click.option("--audit", is_flag=True, help="The audit log instead: who asked for what (docs/operate/security.md).")
def logs(state: ClusterState, node: str, follow: bool, lines: int, audit: bool) -> None:
    """Show the log of a node, and before it what the process printed.

    A node of a cluster elsewhere is asked for it, 64 KiB at once; what its process printed is not seen from here.
    """
    record = state.node(node)
    if state.is_remote:
        ask_by(_remote_logs, record.address, follow, lines, audit)
        return
    printed, log = state.output_path(node), state.log_path(node)
    if audit:
        from rmqha.host.tracer import AUDIT_FILE

        printed = log = log.with_name(AUDIT_FILE)
        if not log.exists():
            raise UsageError(f"{node} has no audit log in {log.parent}; it keeps one with aclEnable or auditLogLevel")
    if not printed.exists() and not log.exists():
        raise UsageError(f"{node} has no log in {log.parent} yet")
    if not audit:
        with FollowedFile(printed) as file:
            _echo_last(file.added(), lines)
    with FollowedFile(log) as file:
        _echo_last(file.added(), lines)
        while follow:
            sys.stdout.flush()
            time.sleep(FOLLOW_INTERVAL_S)
            click.echo(file.added(), nl=False)


def _echo_last(text: str, count: int) -> None:
    lines = text.splitlines()
    for line in lines[len(lines) - min(count, len(lines)) :]:
        click.echo(line)


async def _remote_logs(address: str, follow: bool, lines: int, audit: bool) -> None:
    async with open_client() as client:
        log = NodeLog(client, address, audit=audit)
        shown, last = await log.last_lines(lines)
        for line in shown:
            click.echo(line)
        while follow:
            sys.stdout.flush()
            if last.next_offset >= last.end:
                await sleep(REMOTE_INTERVAL_S)
            last = await log.added(last)
            click.echo(last.data.decode(errors="replace"), nl=False)


@click.command(epilog="Example: rmqha down && rmqha purge")
@directory_option
@yes_option
def purge(directory: Path | None, yes: bool) -> None:
    """Delete the directory of a stopped cluster with all its data.

    Links inside are removed, never followed."""
    from rmqha.ops.local.cluster_file import SECRET_FILE

    state = target_cluster(directory)
    with state.locked():
        alive = [node.name for node in state.nodes.values() if node.alive]
        if alive:
            raise UsageError(f"{', '.join(alive)} still run in {state.directory}; run `rmqha down` first")
        confirm(f"delete {state.directory} and all messages in it?", "nothing deleted", yes=yes)
        # only what `up` made: whatever else somebody keeps here stays, and what links lead to
        for name in state.nodes:
            if (made := state.node_directory(name)).is_dir():
                _remove(made)
        for file in (FILE, OWN_FILE, LOCK, SECRET_FILE):
            (state.directory / file).unlink(missing_ok=True)
    state.forget_as_last()
    left = sorted(path.name for path in state.directory.iterdir() if path.name != LOST_FOUND)
    if left:
        click.echo(f"deleted all but {', '.join(left)} in {state.directory}")
    elif state.directory.is_mount():
        click.echo(f"deleted all in {state.directory}, a disk of its own")
    else:
        state.directory.rmdir()
        click.echo(f"deleted {state.directory}")


def _remove(directory: Path) -> None:
    """Remove a node's directory; if it is a mounted disk, only its content."""
    if not directory.is_mount():
        shutil.rmtree(directory)
        return
    for item in directory.iterdir():
        if item.is_symlink() or not item.is_dir():
            item.unlink()
        elif item.name != LOST_FOUND:
            shutil.rmtree(item)
