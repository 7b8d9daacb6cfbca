"""`rmqha log sync`: a copy of a store elsewhere, made and brought up to date."""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import asdict
from importlib.util import find_spec

import click

from rmqha.cli.options import output_option, storage_options
from rmqha.model.error import StoreError, UsageError


@click.command("sync")
@click.argument("directory", metavar="DIR")
@click.option("--to", "target", required=True, metavar="DIR|URL", help="A directory, or an address such as s3://b/a.")
@click.option("--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="Of the target; fsspec's.")
@click.option("--keep", "keeps", is_flag=True, help="Keep files in the copy that the store has deleted.")
@click.option(
    "--every", metavar="SECONDS", type=click.FloatRange(0, 86400, min_open=True),
    help="Bring the copy up to date again and again, until Ctrl-C.",
)  # fmt: skip
@output_option
def sync(directory: str, target: str, storage: tuple[str, ...], keeps: bool, every: float | None, output: str) -> None:
    """Copy a store, live or not, to be read elsewhere, or bring such a copy up to what is committed now.

    Spark, `rmqha log` and `rmqha fsck` read it, also while it is renewed. Indexes of keys are not copied.

    Example: rmqha log sync data/broker-a-2/store --to s3://logs/broker-a --every 60
    """
    for name in ("fsspec", "pyarrow", "numpy"):
        if find_spec(name) is None:
            raise UsageError(f"{name} is not installed: run `{sys.executable} -m pip install 'rmqha[spark,fsspec]'`")
    if output != "json":
        click.echo(f"copying {directory} to {target}", err=True)
    from rmqha.spark.lake.store_copy import CopyTarget, sync_copy

    copy, stopped = CopyTarget(target, storage_options(storage)), threading.Event()
    if every is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
    while True:
        try:
            report = sync_copy(directory, copy, keeps=keeps)
            if output == "json":
                click.echo(json.dumps(asdict(report)))
            elif report.file_count or every is None:
                cut = "; the log had been cut below what was copied" if report.was_cut else ""
                click.echo(
                    f"{report.file_count} files, {report.copied_bytes:,} bytes copied, {report.removed_count} files "
                    f"removed: the copy ends at {report.end_offset}{cut}"
                )
        except (StoreError, OSError) as error:
            if every is None:
                raise
            click.echo(f"{error}; trying again in {every:g} s", err=True)
        if every is None or stopped.wait(every):
            return
