"""Start nodes of a cluster and wait until they are well, showing each step. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType

import click

from rmqha.host.asking.shell import open_client, sleep, within
from rmqha.host.disk import make_directories
from rmqha.model.error import RmqhaError
from rmqha.ops.cluster_view import ClusterView, ask_cluster, problems_of
from rmqha.ops.local.cluster_state import ClusterState, last_line
from rmqha.ops.local.fresh_store import finish_putting_aside
from rmqha.ops.local.supervisor import Process, server_arguments, spawn, stop_all

POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 5.0
LEAST_ROOM_BYTES = 64 * 1024
"""Room for a node's first lines and its lock."""


def launch(state: ClusterState, name: str) -> Process:
    """Start the node's server and record its process. Raises RmqhaError if that cannot be done."""
    output = state.output_path(name)
    make_directories(output.parent)
    check_room(output.parent)
    record = state.node(name)
    if record.is_broker and finish_putting_aside(state.data_path(record)):
        click.echo(
            f"{name}: a killed `rmqha fork repair` had put its store aside; it starts empty, as that meant", err=True
        )
    if output.exists() and output.stat().st_size:
        # what an earlier run printed stays to be read, and is not taken for this one's
        output.replace(output.with_suffix(".out.1"))
    process = spawn(server_arguments(record.kind, state.config_path(name)), output)
    try:
        state.record_process(name, process)
    except BaseException:
        stop_all([process], STOP_TIMEOUT_S)  # nobody would know it
        raise
    return process


def check_room(directory: Path) -> None:
    """Raise RmqhaError if the disk has no room: a node could not even log why it ends."""
    try:
        with TemporaryFile(dir=directory) as file:
            file.write(bytes(LEAST_ROOM_BYTES))
    except OSError as error:
        raise RmqhaError(
            f"nothing can be written in {directory}: {error.strerror}; free some space or mend that disk, then start "
            "the node again"
        ) from None


def last_words(state: ClusterState, name: str) -> str:
    """The last line that a node logged or printed, for the sentence about its failure."""
    return last_line(state.output_path(name)) or last_line(state.log_path(name)) or "it said nothing"


class LaunchProgress:
    """Progress of starting nodes on standard error: a live table on a terminal, else a line per change; nothing if
    `quiet`."""

    def __init__(self, names: Collection[str], *, quiet: bool = False) -> None:
        self._steps = dict.fromkeys(names, "")
        self._live = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            from rich.live import Live

            from rmqha.cli.rich_console import rich_console

            self._live = Live(console=rich_console(sys.stderr), transient=True, auto_refresh=False)

    def __enter__(self) -> LaunchProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, steps: dict[str, str]) -> None:
        if self._quiet:
            return
        changed = {name: step for name, step in steps.items() if self._steps.get(name) != step}
        self._steps |= changed
        if self._live is not None:
            from rmqha.cli.render import table
            from rmqha.cli.rich_console import drawn

            self._live.update(
                drawn(table([("NODE", "left"), ("STEP", "left")], list(self._steps.items()))), refresh=True
            )
        else:
            for name, step in changed.items():
                click.echo(f"{name}: {step}", err=True)


def _step(view: ClusterView, name: str, trouble: str) -> str:
    """The step of a node in words. A process that does not answer yet is starting, which is no problem before the
    time-out."""
    node = view.nodes.get(name)
    return "starting" if node is not None and node.alive and not node.answers else trouble


async def wait_well(
    state: ClusterState, names: Collection[str], timeout_s: float, *, quiet: bool = False
) -> ClusterView:
    """Wait until nothing is wrong with the nodes and groups in `names`, showing each step unless `quiet`.

    Raises RmqhaError when a node ends, or at the time-out with what is still wrong."""
    view: ClusterView | None = None
    async with open_client() as client:
        with LaunchProgress(names, quiet=quiet) as progress, within(timeout_s):
            while True:
                view = await ask_cluster(client, state)
                wrong = problems_of(view, names)
                progress.show({name: _step(view, name, wrong.get(name, "well")) for name in names})
                for name, node in view.nodes.items():
                    if name in names and not node.alive:
                        raise RmqhaError(f"{name} ended while starting: {last_words(state, name)}")
                if not wrong:
                    return view
                await sleep(POLL_INTERVAL_S)
    wrong = problems_of(view, names) if view else {}
    name, trouble = next(iter(wrong.items()), ("the cluster", "it did not answer"))
    said = f"; its log ends: {last_words(state, name)}" if name in state.nodes else ""
    raise RmqhaError(f"{name} is not well after {timeout_s:g} s: {trouble}{said}")
