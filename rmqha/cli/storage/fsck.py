"""`rmqha fsck`: the whole store checked, and mended on request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from rmqha.cli.options import output_option
from rmqha.cli.storage.log import directory_argument, progress_bar
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.finding import StoreFinding
from rmqha.inspect.fsck import Report, check
from rmqha.inspect.fsck_repair import RepairOptions, RepairOutcome, repair
from rmqha.model.error import UsageError


@click.command()
@directory_argument
@click.option("--repair", "do_repair", is_flag=True, help="Mend what needs no choice; the broker must be stopped.")
@click.option("--cut-at", type=click.IntRange(0), metavar="OFFSET", help="With --repair: drop the log from there on.")
@click.option(
    "--file-size", type=click.IntRange(1), metavar="BYTES",
    help="With --repair: mappedFileSizeCommitLog, if one damaged file is all there is.",
)  # fmt: skip
@click.option(
    "--queue-file-size", type=click.IntRange(20), metavar="BYTES",
    help="With --repair: mappedFileSizeConsumeQueue, if no sound queue file is left.",
)  # fmt: skip
@click.option(
    "--highest-epoch", type=click.IntRange(0), metavar="N",
    help="With --repair: the group's master epoch, if rmqha.highestEpoch is damaged.",
)  # fmt: skip
@output_option
def fsck(
    directory: Path,
    do_repair: bool,
    cut_at: int | None,
    file_size: int | None,
    queue_file_size: int | None,
    highest_epoch: int | None,
    output: str,
) -> None:
    """Check everything in the store DIR, ours or Apache RocketMQ's.

    That is: names and sizes, every record, queue entry and index entry, checkpoint, epochs, identity, tables.

    The store may be in use: then it is checked up to what is committed now. Nothing is written without --repair, and
    --repair saves every byte first that it changes, in DIR/rmqha.fsck-<n> with a manifest.

    Exit code: 0 sound (after a repair: sound now), 1 findings, 2 cannot read.

    Example: rmqha fsck data/broker-a-1; rmqha fsck data/broker-a-1 --repair
    """
    choices = RepairOptions(cut_at, file_size, queue_file_size, highest_epoch)
    if not do_repair and choices != RepairOptions():
        raise UsageError("--cut-at, --file-size, --queue-file-size and --highest-epoch belong to --repair")
    reader = HostReadDisk(directory)
    if do_repair:
        outcome = repair(HostDisk(directory), reader, choices)
        _show_outcome(directory, outcome, output)
        sys.exit(1 if outcome.after.faults else 0)
    with progress_bar("fsck") as progress:
        report = check(reader, progress=progress)
    if output == "json":
        click.echo(json.dumps(_report_json(report), indent=2))
    else:
        _show(directory, report)
    sys.exit(1 if report.faults else 0)


def _finding_json(finding: StoreFinding) -> dict[str, Any]:
    return {
        "severity": str(finding.severity), "kind": str(finding.kind), "file": finding.path, "byte": finding.at,
        "expected": finding.expected, "found": finding.found, "advice": finding.advice,
    }  # fmt: skip


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "sound": not report.faults, "inUse": report.store.live, "stoppedCleanly": report.store.stopped_cleanly,
        "records": report.record_count, "bytes": report.record_bytes, "endOffset": report.end_offset,
        "committedEnd": report.store.committed_end,
        "findings": [_finding_json(finding) for finding in report.findings],
    }  # fmt: skip


def _show(directory: Path, report: Report) -> None:
    for finding in report.findings:
        click.echo(f"{finding.severity}: {finding.sentence}")
    count = len(report.faults)
    words = "sound" if not count else "1 finding" if count == 1 else f"{count} findings"
    end = "checked" if report.store.live else "ends"
    at = f"{end} at {report.end_offset}"
    click.echo(f"{directory}: {report.record_count} records, {report.record_bytes} bytes, {at}: {words}")


def _show_outcome(directory: Path, outcome: RepairOutcome, output: str) -> None:
    if output == "json":
        value = {
            "before": _report_json(outcome.before), "actions": outcome.actions,
            "saved": outcome.directory or None, "after": _report_json(outcome.after),
        }  # fmt: skip
        click.echo(json.dumps(value, indent=2))
        return
    for finding in outcome.before.faults:
        click.echo(f"{finding.severity}: {finding.sentence}")
    for action in outcome.actions:
        click.echo(f"done: {action}")
    if outcome.directory:
        click.echo(f"every byte that changed is kept in {directory}/{outcome.directory}, see manifest.json there")
    click.echo("now:")
    _show(directory, outcome.after)
