"""Steps of nodes that start, for the person who waits. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import TracebackType

from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.launch import StepLines, wait_healthy


class LaunchProgress:
    """Progress of starting nodes on standard error: a live table on a terminal, else a line per change."""

    def __init__(self, names: Collection[str]) -> None:
        self._steps = dict.fromkeys(names, "")
        self._lines = StepLines()
        self._live = None
        if sys.stderr.isatty():
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
        if self._live is None:
            self._lines.show(steps)
            return
        from rmqha.cli.render import table
        from rmqha.cli.rich_console import drawn

        self._steps |= steps
        self._live.update(drawn(table([("NODE", "left"), ("STEP", "left")], list(self._steps.items()))), refresh=True)


async def wait_shown(state: ClusterState, names: Collection[str], timeout_s: float) -> ClusterView:
    """Wait as `wait_healthy` does, with progress. Raises RmqhaError."""
    with LaunchProgress(names) as progress:
        return await wait_healthy(state, names, timeout_s, progress.show)
