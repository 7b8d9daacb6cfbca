"""Start nodes of a cluster and wait until they are well. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryFile

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


class StepLines:
    """Steps of nodes that start, on standard error: a line per change."""

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}

    def show(self, steps: dict[str, str]) -> None:
        for name, step in steps.items():
            if self._steps.get(name) != step:
                notice(f"{name}: {step}")
        self._steps |= steps


def notice(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def launch(state: ClusterState, name: str) -> Process:
    """Start the node's server and record its process. Raises RmqhaError if that cannot be done."""
    output = state.output_path(name)
    make_directories(output.parent)
    check_room(output.parent)
    record = state.node(name)
    if record.is_broker and finish_putting_aside(state.data_path(record)):
        notice(f"{name}: a killed `rmqha fork repair` had put its store aside; it starts empty, as that meant")
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


def last_log_line(state: ClusterState, name: str) -> str:
    """The last line that a node logged or printed, for the sentence about its failure."""
    return last_line(state.output_path(name)) or last_line(state.log_path(name)) or "it said nothing"


def _step(view: ClusterView, name: str, trouble: str) -> str:
    """The step of a node in words. A process that does not answer yet is starting, which is no problem before the
    time-out."""
    node = view.nodes.get(name)
    return "starting" if node is not None and node.alive and not node.answers else trouble


async def wait_healthy(
    state: ClusterState,
    names: Collection[str],
    timeout_s: float,
    show: Callable[[dict[str, str]], None] = lambda steps: None,
) -> ClusterView:
    """Wait until nothing is wrong with the nodes and groups in `names`. `show` takes their steps each time they were
    asked.

    Raises RmqhaError when a node ends, or at the time-out with what is still wrong."""
    view: ClusterView | None = None
    async with open_client() as client:
        with within(timeout_s):
            while True:
                view = await ask_cluster(client, state)
                wrong = problems_of(view, names)
                show({name: _step(view, name, wrong.get(name, "well")) for name in names})
                for name, node in view.nodes.items():
                    if name in names and not node.alive:
                        raise RmqhaError(f"{name} ended while starting: {last_log_line(state, name)}")
                if not wrong:
                    return view
                await sleep(POLL_INTERVAL_S)
    wrong = problems_of(view, names) if view else {}
    name, trouble = next(iter(wrong.items()), ("the cluster", "it did not answer"))
    said = f"; its log ends: {last_log_line(state, name)}" if name in state.nodes else ""
    raise RmqhaError(f"{name} is not well after {timeout_s:g} s: {trouble}{said}")
