"""`rmqha restart`: nodes of a local cluster are started again, one after the other, while the rest serves. Control
plane."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from rmqha.cli.local.nodes import running, started_state
from rmqha.cli.options import complete_node, directory_option, echo_json, output_option
from rmqha.cli.target import target_cluster
from rmqha.host.asking.shell import Caller, ask_by, open_client
from rmqha.model.error import RmqhaError
from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.launch import StepLines, last_log_line, launch, notice
from rmqha.ops.local.supervisor import DRAIN_TIMEOUT_S, require_gone, stop_all
from rmqha.ops.membership.rolling_restart import Observation, RestartResult, RollingRestart, observe


class LocalNodes:
    """Nodes of a cluster directory, as a rolling restart needs them."""

    def __init__(self, client: Caller, directory: Path) -> None:
        self._client = client
        self._directory = directory

    def _state(self) -> ClusterState:
        """The record as it is now: others may have started nodes since."""
        state = ClusterState.read(self._directory)
        if state is None:
            raise RmqhaError(f"{self._directory} holds no cluster any more")
        return state

    def locked(self) -> AbstractContextManager[None]:
        return self._state().locked()

    async def observe(self) -> Observation:
        return await observe(self._client, self._state())

    def restart(self, name: str) -> bool:
        state = self._state()
        process = running(state, name)
        try:
            killed = stop_all([process], DRAIN_TIMEOUT_S)
            require_gone([process])
            launch(state, name)
        except KeyboardInterrupt:
            click.echo(f"{name} was being restarted: see rmqha status, and rmqha start {name}", err=True)
            raise
        return bool(killed)

    def last_log_line(self, name: str) -> str:
        return last_log_line(self._state(), name)


@click.command(epilog="Example: rmqha restart; rmqha restart broker-a-1")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True,
    help="Seconds until all is well again, for each node.",
)  # fmt: skip
@output_option
def restart(nodes: tuple[str, ...], directory: Path | None, timeout: float, output: str) -> None:
    """Restart NODE, or all nodes one after the other, each while all is well: sends go on.

    Use it after another release was installed. The order is that of `rmqha upgrade check`; a master hands over first. A
    node is stopped only while all others are well and its group takes messages without it. So it is refused for a
    replica that is needed because others are drained or in maintenance. A group of one replica, and a static group,
    take no messages while their master is restarted. While a sole name server is restarted, a client that begins finds
    no route. Nodes that do not run are not started.

    The run ends at the first node that is not well in time, that had to be killed, or if another one ends meanwhile;
    with -o json `left` has those that were not restarted.

    Exit code: 0 all were restarted and are well; 1 refused, not all were restarted, or one had to be killed; 2 an
    unknown NODE, or one that does not run.
    """
    state = target_cluster(directory)
    for name in nodes:
        running(state, name)
    states: list[dict[str, Any]] = []

    def tell(name: str, view: ClusterView) -> None:
        states.append(started_state(view, name))
        if output != "json":
            click.echo(states[-1]["sentence"])

    async def run() -> RestartResult:
        async with open_client() as client:
            local = LocalNodes(client, state.directory)
            return await RollingRestart(local, timeout, tell, StepLines().show).run(nodes)

    notice("asking all nodes whether they are well")
    result = ask_by(run)
    if output == "json":
        echo_json(result_json(states, result))
    require_done(result)


def result_json(states: list[dict[str, Any]], result: RestartResult) -> dict[str, Any]:
    """The result for scripts. `states`: of the nodes that are well again."""
    return {"restarted": states, "killed": result.killed, "failed": result.failed, "left": result.left}


def require_done(result: RestartResult) -> None:
    """Raise RmqhaError unless all nodes were restarted in order."""
    told = [f"{name} did not stop within {DRAIN_TIMEOUT_S:g} s and had to be killed" for name in result.killed]
    told += result.failed.values()
    if not told:
        return
    is_untouched = not result.restarted and all(name in result.left for name in result.failed)
    left = f"not restarted: {', '.join(result.left)}" if result.left else ""
    raise RmqhaError("; ".join(filter(None, [*told, "nothing was restarted" if is_untouched else left])))
