"""`rmqha selftest`: what a disk or the way to another node costs, before a node is given to a group."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address

seconds_option = click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=4.0, show_default=True, help="Stop after about this time."
)


@click.group()
def selftest() -> None:
    """Measure what a disk or the way to another node costs."""


@selftest.command("disk", epilog="Example: rmqha selftest disk /var/lib/rmqha")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@seconds_option
@click.option(
    "--mb", type=click.IntRange(0, 65536), default=256, show_default=True, help="Write at most so much at once."
)
@output_option
def disk(directory: Path, seconds: float, mb: int, output: str) -> None:
    """Measure small durable writes (fdatasync) and one long write in DIR, and say what SYNC_FLUSH costs there.

    The file that it writes is removed. Exit code: 0 measured, 1 the disk does not keep what it is given (memory, or a
    cache that answers for it), 2 cannot write.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory; name one on the disk to be measured")
    signal.signal(signal.SIGTERM, _end)
    click.echo(f"measuring {directory} for about {seconds:g} s", err=True)
    from rmqha.cli.diagnosis import disk_test

    figures = disk_test.measure(directory, limit_s=seconds, limit_bytes=mb * 1_000_000)
    found = figures.as_dict()
    if output == "json":
        echo_json(found)
    else:
        click.echo(f"{directory} on {found['mountPoint']} ({found['fileSystem']})")
        click.echo(f"fdatasync of 4 KiB   {_times(found['syncMicroseconds'])}   n={found['syncCount']}")
        if figures.written_bytes:
            written = figures.written_bytes / 1e6
            click.echo(
                f"long write           {figures.bytes_per_second / 1e6:,.0f} MB/s over {written:,.0f} MB, synced"
            )
        if found["hint"]:
            click.echo(f"not to be trusted: {found['hint']}")
        click.echo(found["verdict"])
    if figures.in_memory:
        sys.exit(1)


@selftest.command("net", epilog="Example: rmqha selftest net 10.0.0.7:10911")
@click.argument("address", required=False, metavar="HOST:PORT")
@click.option("--serve", "serve_at", metavar="HOST:PORT", help="Be the other end instead, for --seconds.")
@seconds_option
@click.option("--mb", type=click.IntRange(1, 65536), default=256, show_default=True, help="Send at most so much.")
@output_option
def net(address: str | None, serve_at: str | None, seconds: float, mb: int, output: str) -> None:
    """Measure round trips and throughput to a server at HOST:PORT by requests that change nothing.

    HOST:PORT is any broker, name server or controller, ours or Apache RocketMQ's; with `rmqha selftest net --serve` at
    the other end both directions are measured. Exit code: 0 measured, 2 no answer.
    """
    given = address or serve_at
    if given is None or (address and serve_at):
        raise UsageError("say whom to ask, HOST:PORT, or --serve HOST:PORT to be asked; one of both")
    try:
        parse_address(given)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if serve_at:
        _answer(serve_at, seconds)
        return
    click.echo(f"asking {given} for about {seconds:g} s", err=True)
    import trio

    from rmqha.cli.diagnosis import net_test

    figures = trio.run(partial(net_test.measure, given, limit_s=seconds, limit_bytes=mb * 1_000_000))
    found = figures.as_dict()
    if output == "json":
        echo_json(found)
        return
    click.echo(f"{given} ({'rmqha selftest' if figures.echoes else 'a server'} answers)")
    click.echo(f"round trip           {_times(found['tripMicroseconds'])}   n={found['tripCount']}")
    back = "" if not figures.echoes else f", {found['receivedBytesPerSecond'] / 1e6:,.0f} MB/s back"
    click.echo(f"throughput           {found['sentBytesPerSecond'] / 1e6:,.0f} MB/s there{back}")
    click.echo(found["verdict"])


def _end(number: int, frame: FrameType | None) -> None:
    """Leave as an error does, so that the file is removed."""
    sys.exit(128 + number)


def _answer(address: str, seconds: float) -> None:
    click.echo(f"opening {address}", err=True)
    import trio

    from rmqha.cli.diagnosis import net_test

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(net_test.echo, address, seconds)
            words = f"answering at {address} for {seconds:g} s: run `rmqha selftest net {address}` elsewhere"
            click.echo(words, err=True)

    trio.run(serve)


def _times(microseconds: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value / 1000:.2f}" for name, value in microseconds.items()) + " ms"
