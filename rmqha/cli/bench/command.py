"""`rmqha bench`: latency at a fixed rate without coordinated omission, throughput of reads, how slaves follow."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import Text, console
from rmqha.cli.target import target_namesrv_option
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import UsageError
from rmqha.ops.bench.topic import HEADER, OWN, BenchTarget, check_own, prepare

if TYPE_CHECKING:
    from rmqha.ops.bench.figures import Figures

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED_EXIT_CODE = 130


def _shared(command: F) -> F:
    """Options of all four."""
    for option in (
        click.option(
            "--seconds", type=click.FloatRange(0.1, 86_400), default=10.0, show_default=True, help="Seconds to measure."
        ),
        click.option("-n", "--n", "count", type=click.IntRange(1), metavar="N", help="End after N messages."),
        click.option("--topic", default=OWN, show_default=True, help=f"{OWN} or {OWN}_…; made if it is not there."),
        click.option(
            "--queues", type=click.IntRange(1, 128), default=4, show_default=True, help="Queues of a new topic."
        ),
        target_namesrv_option(),
        output_option,
    ):
        command = option(command)
    return command


def _sending(default_rate: float, least_rate: float = 0.1) -> Callable[[F], F]:
    """Options of those that send."""

    def add(command: F) -> F:
        for option in (
            click.option(
                "--rate", type=click.FloatRange(least_rate, 1e6), default=default_rate, show_default=True,
                help="Messages per second, begun at even intervals whatever became of those before.",
            ),
            click.option(
                "--size", type=click.IntRange(HEADER.size, 4 * 1024 * 1024), default=1024, show_default=True,
                help="Bytes of a body.",
            ),
            click.option(
                "--window", type=click.IntRange(1, 10_000), default=256, show_default=True, help="Sends at once."
            ),
            click.option(
                "--timeout", type=click.FloatRange(0.1, 600), default=5.0, show_default=True,
                help="Seconds for which a message is tried, through failovers.",
            ),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


@click.group()
def bench() -> None:
    """Measure a running cluster with a topic of the benchmark's own.

    Messages begin at a fixed rate, and their latency counts from the intended moment, also for those that had to wait
    for a stall to end (no coordinated omission). The client is one Python process: "began late by" is its part.
    Ctrl-C shows what was measured until then.
    """


@bench.command("produce", epilog="Example: rmqha bench produce --rate 2000 --seconds 30 --size 512")
@_sending(1000)
@_shared
def produce(
    seconds: float, count: int | None, topic: str, queues: int, namesrv: str, output: str,
    rate: float, size: int, window: int, timeout: float,
) -> None:  # fmt: skip
    """Measure sends: from the intended moment to the acknowledgement.

    Exit code: 0 all acknowledged, 1 some not, 2 wrong usage or nobody to ask, 130 interrupted.
    """

    async def measure(target: BenchTarget) -> Figures:
        from rmqha.ops.bench import load

        return await load.produce(load.paced(namesrv, target, rate, seconds, count, window, timeout, size))

    _run(topic, queues, namesrv, output, measure)


@bench.command("consume", epilog="Example: rmqha bench consume -n 100000")
@_shared
@click.option(
    "--idle", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="End after S without a message."
)
def consume(seconds: float, count: int | None, topic: str, queues: int, namesrv: str, output: str, idle: float) -> None:
    """Measure reads of what lies in the topic, from its beginning, as fast as they come. Nothing is committed.

    Exit code: 0 something was read, 1 nothing was there, 2 wrong usage or nobody to ask, 130 interrupted.
    """

    async def measure(target: BenchTarget) -> Figures:
        from rmqha.ops.bench import load

        return await load.consume(namesrv, target, limit_s=seconds, limit_count=count, idle_s=idle)

    _run(topic, queues, namesrv, output, measure)


@bench.command("e2e", epilog="Example: rmqha bench e2e --rate 500 --seconds 60 -o json")
@_sending(500)
@_shared
def e2e(
    seconds: float, count: int | None, topic: str, queues: int, namesrv: str, output: str,
    rate: float, size: int, window: int, timeout: float,
) -> None:  # fmt: skip
    """Measure the whole way: from the intended send to the receipt by a consumer, and what was lost or came twice.

    Exit code: 0 all came, 1 some not, 2 wrong usage or nobody to ask, 130 interrupted.
    """

    async def measure(target: BenchTarget) -> Figures:
        from rmqha.ops.bench import load

        return await load.e2e(load.paced(namesrv, target, rate, seconds, count, window, timeout, size))

    _run(topic, queues, namesrv, output, measure)


@bench.command("replicate", epilog="Example: rmqha bench replicate broker-a --rate 1000")
@click.argument("group", required=False)
@_sending(200, least_rate=0)
@_shared
@click.option(
    "--interval", type=click.FloatRange(1, 10_000), default=10.0, show_default=True, help="ms between two rounds."
)
def replicate(
    group: str | None, seconds: float, count: int | None, topic: str, queues: int, namesrv: str, output: str,
    rate: float, size: int, window: int, timeout: float, interval: float,
) -> None:  # fmt: skip
    """Measure how long after the master each slave of GROUP has a byte, and when it is confirmed.

    From what the master tells each --interval: figures are upper bounds, at most so much too high. --rate 0 sends
    nothing: it watches the load that is there, or a slave that catches up.

    Exit code: 0 measured, 1 sends failed, 2 wrong usage or nobody to ask, 130 interrupted.
    """

    async def measure(target: BenchTarget) -> Figures:
        from rmqha.ops.bench import load

        chosen = group or target.groups[0]
        if group is None and len(target.groups) > 1:
            raise UsageError(f"there are several groups, say which: {', '.join(target.groups)}")
        given = load.paced(namesrv, target, rate, seconds, count, window, timeout, size)
        return await load.replicate(given, chosen, interval / 1000)

    _run(topic, queues, namesrv, output, measure)


def _run(
    topic: str, queues: int, namesrv: str, output: str, measure: Callable[[BenchTarget], Awaitable[Figures]]
) -> None:
    """Prepare the topic, say where, measure, show."""
    check_own(topic)
    target = ask_by(prepare, namesrv, topic, queues)
    click.echo(target.text, err=True)
    sys.stderr.flush()
    import trio

    async def measured() -> Figures:
        return await measure(target)

    figures = trio.run(measured)
    if output == "json":
        echo_json(figures.as_dict())
    else:
        from rmqha.cli.bench.figures import show

        show(figures, console())
        for name, slave in figures.extra.get("slaves", {}).items():
            _show_slave(name, slave)
    if figures.interrupted:
        sys.exit(INTERRUPTED_EXIT_CODE)
    if figures.failed or (figures.kind == "consume" and not figures.done):
        sys.exit(1)


def _show_slave(name: str, slave: dict[str, Any]) -> None:
    found, lag = slave["microseconds"], slave["lagBytes"]
    shown = "  ".join(f"{key} {found[key] / 1000:.2f}" for key in ("p50", "p90", "p99", "max"))
    behind = f"lag p50 {lag['p50']:,}, p99 {lag['p99']:,}, max {lag['max']:,} bytes"
    left = f"; {slave['unreached']} offsets not reached" if slave["unreached"] else ""
    console().print(Text(f"replica {name} acknowledged after at most, ms: {shown}; {behind}{left}"))
