"""`rmqha drill`: a fault, N times, on a scratch cluster of real processes under load, audited from its logs."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.main import nearest
from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import console, table
from rmqha.drill.error import FaultUnavailableError
from rmqha.drill.scenarios import PER_SECOND, SCENARIOS, TARGETS
from rmqha.model.error import UsageError

if TYPE_CHECKING:
    from rmqha.drill.report import DrillReport


def _scenario(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value not in SCENARIOS:
        raise UsageError(
            f"there is no drill {value!r}{nearest(value, list(SCENARIOS))}; there are {', '.join(SCENARIOS)}"
        )
    return value


@click.command(
    epilog="Example: rmqha drill failover --n 3\n\nScenarios: "
    + "; ".join(f"{name}: {kind.summary}" for name, kind in SCENARIOS.items())
    + ".",
)
@click.argument("scenario", callback=_scenario, metavar="|".join(SCENARIOS))
@click.option("--mode", type=click.Choice(["ap", "cp"]), default="cp", show_default=True, help="haMode of the cluster.")
@click.option(
    "--hit",
    type=click.Choice(TARGETS),
    help="Master, a slave, master and a slave, all; default: what the drill is about.",
)
@click.option("--n", "count", type=click.IntRange(1, 1000), default=3, show_default=True, help="Faults, one by one.")
@click.option("--rate", type=click.IntRange(1, 5000), default=PER_SECOND, show_default=True, help="Messages a second.")
@click.option(
    "--scratch", type=click.Path(path_type=Path), metavar="DIR", help="Where; default: a temporary directory."
)
@click.option("--keep", is_flag=True, help="Leave the scratch directory with stores and logs.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML page with plots.")
@output_option
def drill(
    scenario: str,
    mode: str,
    hit: str | None,
    count: int,
    rate: int,
    scratch: Path | None,
    keep: bool,
    report: Path | None,
    output: str,
) -> None:
    """Start a scratch cluster, send at a steady rate, inject the fault N times, and audit every replica's log: is each
    acknowledged message there?

    Exit code 0: all that is promised held; 1: something did not, see "broken"; 2: it could not be run here.
    """
    # Ctrl-C and SIGTERM end it the same way: through every clean-up
    signal.signal(signal.SIGTERM, _as_interrupt)
    if hit is not None and hit not in SCENARIOS[scenario].targets:
        raise UsageError(f"drill {scenario} cannot hit {hit!r}; it can {', '.join(SCENARIOS[scenario].targets)}")
    if report is not None and not report.absolute().parent.is_dir():
        raise UsageError(f"--report {report}: {report.absolute().parent} is no directory; make it or name another one")
    place = _place(scratch)
    click.echo(
        f"drill {scenario}, {mode}: {count} fault{'' if count == 1 else 's'}, a scratch cluster in {place}", err=True
    )
    from rmqha.drill.fault import FAULTS
    from rmqha.drill.page import page
    from rmqha.drill.report import report_of
    from rmqha.drill.run import drill as run

    fault = FAULTS[scenario](mode, hit or "")
    try:
        with _Progress(scenario, count) as progress:
            result = run(fault, count, rate, place, progress.tell)
    except FaultUnavailableError as error:
        if output == "json":
            echo_json({"scenario": scenario, "mode": mode, "n": count, "skipped": str(error)})
        raise
    finally:
        if keep:
            click.echo(f"kept: {place}", err=True)
        else:
            shutil.rmtree(place, ignore_errors=True)
    found = report_of(result)
    if report is not None:
        report.write_text(page(result), encoding="utf-8")
    if output == "json":
        echo_json(asdict(found))
    else:
        show(found)
    sys.exit(0 if found.ok else 1)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _place(scratch: Path | None) -> Path:
    """An empty directory for the drill. Raises UsageError."""
    if scratch is None:
        return Path(tempfile.mkdtemp(prefix="rmqha-drill-"))
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="rmqha-drill-", dir=scratch)).absolute()
    except OSError as error:
        raise UsageError(f"--scratch {scratch}: {error.strerror}; name a directory that can be written") from None


class _Progress:
    """Progress on standard error: a bar on a terminal, else a line per round."""

    def __init__(self, scenario: str, count: int) -> None:
        self._count = count
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            from rmqha.cli.rich_console import rich_console

            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=rich_console(sys.stderr), transient=True)
            self._task = self._bar.add_task(scenario, total=count)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, done: int, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            self._bar.console.print(text, soft_wrap=True)
        else:
            click.echo(f"{done}/{self._count}: {text}", err=True)


def show(found: DrillReport) -> None:
    """The table for people."""
    from rmqha.drill.report import Percentiles

    out = console()
    figures = [(name.removesuffix("_ms").replace("_", " "), values) for name, values in found.phases.items()]
    if found.scenario == "kill-controller":
        figures.append(("another controller leads", Percentiles.of(item.failover_ms for item in found.rounds)))
    figures += [("no acknowledgement", found.unavailable_ms), ("heal to all well", found.recovery_ms)]
    rows = [(name, *map(str, (values.p50, values.p90, values.max, values.n))) for name, values in figures if values.n]
    headings = [("MILLISECONDS", "left"), ("P50", "right"), ("P90", "right"), ("MAX", "right"), ("N", "right")]
    out.print(f"drill {found.scenario}, {found.target}, {found.mode}, {len(found.rounds)} of {found.n} faults")
    out.print(table(headings, rows))
    out.print(
        f"{found.acked} acknowledged, {found.lost} lost, {found.duplicates} duplicates, "
        f"{found.given_up} given up; {found.seconds} s in all"
    )
    if found.lost and found.mode == "ap" and found.ok:
        out.print("AP allows that loss: only the master that was hit had those messages.")
    for sentence in found.broken:
        out.print(f"BROKEN: {sentence}", "bold red")
