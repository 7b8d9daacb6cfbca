"""`rmqha migrate`: may this stopped group become static, or get a controller, without a loss? Offline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import Text, console, table
from rmqha.cli.storage.log import progress_bar
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.migration import Migration, MigrationTarget, StoreCopy, check, common_history, give_epochs
from rmqha.model.error import UsageError

COLUMNS = [
    ("STORE", "left"),
    ("FROM", "right"),
    ("TO", "right"),
    ("SAME TO", "right"),
    ("EPOCHS", "left"),
    ("", "left"),
]
PATH_WIDTH = 28


@click.command(epilog="Example: rmqha migrate --check data/broker-a-1/store data/broker-a-2/store")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", "only_check", is_flag=True, help="Check only; write nothing.")
@click.option(
    "--to",
    "target",
    type=click.Choice([item.value for item in MigrationTarget]),
    default=MigrationTarget.CONTROLLER.value,
    show_default=True,
    help="What the group shall become.",
)
@output_option
def migrate(directories: tuple[Path, ...], only_check: bool, target: str, output: str) -> None:
    """Prove that the stores of a stopped group, one DIR each, hold the same log, and say how to switch the group.

    Each DIR is a storePathRootDir, ours or Apache RocketMQ's; give all members. The longest log is checked record by
    record, the others are compared with it byte for byte.

    Without --check the stores of a group that gets a controller are given one epoch history where they have none in
    common, so that no slave copies the log again.

    Exit code: 0 the group may be switched without a loss, 1 something must be settled first, 2 cannot read.
    """
    if len({path.resolve() for path in directories}) < len(directories):
        raise UsageError("a directory is given twice; give each member of the group once")
    with progress_bar("comparing") as progress:
        found = check([HostReadDisk(path) for path in directories], MigrationTarget(target), progress)
    written = [] if only_check or not found.is_safe else _give_epochs(found, directories)
    if output == "json":
        echo_json(_json(found, written))
    else:
        _show(found, written)
    if not found.is_safe:
        sys.exit(1)


def _give_epochs(found: Migration, directories: tuple[Path, ...]) -> list[str]:
    """Write the epoch files. Returns the stores whose file was written."""
    if not found.needs_epochs:
        return []
    history = common_history(found)
    pairs = zip(directories, found.members, strict=True)
    return [member.label for path, member in pairs if give_epochs(HostDisk(path), member, history)]


# --- words ------------------------------------------------------------------------------------------------------------
def verdict(found: Migration) -> str:
    aim = "get a controller" if found.target is MigrationTarget.CONTROLLER else "become static"
    if not found.is_safe:
        return f"no: before the group may {aim}, settle what is said below"
    behind = [member for member in found.members if member.end_offset < found.reference.end_offset]
    if not behind:
        return f"yes: all logs are the same; the group may {aim} without a loss"
    names = ", ".join(member.label for member in behind)
    return (
        f"yes: the logs agree, {names} ends earlier; the group may {aim} without a loss if {found.reference.label},"
        " the longest, is its first master"
    )


def steps(found: Migration, written: list[str]) -> list[str]:
    """The steps to take now, in order."""
    if not found.is_safe:
        return [f"{member.label}: {item.words}; {item.to_do}" for member in found.members for item in member.problems]
    first, count = found.reference.label, len(found.members)
    if found.target is MigrationTarget.STATIC:
        return [
            f"{first}: enableControllerMode=false, brokerRole=SYNC_MASTER (or ASYNC_MASTER), brokerId=0",
            "the others: enableControllerMode=false, brokerRole=SLAVE, brokerId=1, 2, …",
            f"start the broker of {first} first, then the others",
        ]
    copies = [member.label for member in found.members if member.copies_again and member.label not in written]
    return [
        *([f"rmqha migrate without --check, else {', '.join(copies)} cuts its log or sets it aside"] if copies else []),
        "all: remove enableControllerMode, brokerRole and brokerId;"
        f" set controllerAddr=HOST:PORT;… and totalReplicas={count}",
        f"start all {count}: the first election waits for all of them and takes the longest log, {first}",
    ]


def older(found: Migration) -> str:
    """A sentence on older log files that the first master lacks and others still have; "" if there are none."""
    first = found.reference
    holders = [item for item in found.members if not item.is_empty and item.start_offset < first.start_offset]
    if not holders:
        return ""
    holder = min(holders, key=lambda item: item.start_offset)
    return (
        f"{first.label} begins at {first.start_offset}: consumers no longer get the older messages, which"
        f" {holder.label} holds from {holder.start_offset} on"
    )


def _show(found: Migration, written: list[str]) -> None:
    out = console()
    rows = [_row(member, found.reference) for member in found.members]
    out.print(table(COLUMNS, rows))
    out.print(Text(verdict(found), "bold green" if found.is_safe else "bold red"))
    if older(found):
        out.print(Text(older(found), "yellow"))
    for label in written:
        out.print(f"{label}: the epoch history {common_history(found)} was written")
    for number, step in enumerate(steps(found, written), 1):
        out.print(Text(f"{number}. {step}"))


def _row(member: StoreCopy, reference: StoreCopy) -> list[Any]:
    label = member.label if len(member.label) <= PATH_WIDTH else "…" + member.label[1 - PATH_WIDTH :]
    word = "in use" if member.epochs.live else "differs" if member.differs else "empty" if member.is_empty else ""
    if not word:
        word = "longest" if member is reference else "same" if member.end_offset == reference.end_offset else "shorter"
    last = member.epochs.history.last
    return [
        label,
        member.start_offset,
        member.end_offset,
        member.same_until,
        f"to {last.epoch}" if last else "none",
        word,
    ]


def _json(found: Migration, written: list[str]) -> dict[str, Any]:
    return {
        "to": found.target.value,
        "safe": found.is_safe,
        "words": verdict(found),
        "firstMaster": found.reference.label,
        "members": [
            {
                "path": member.label,
                "minOffset": member.start_offset,
                "endOffset": member.end_offset,
                "sameUntil": member.same_until,
                "differs": member.differs,
                "missingBytes": found.reference.end_offset - member.end_offset,
                "inUse": member.epochs.live,
                "stoppedInOrder": member.store.stopped_cleanly,
                "unclean": member.unclean,
                "epochs": [[entry.epoch, entry.start_offset] for entry in member.epochs.history],
                "copiesAgain": member.copies_again and member.label not in written,
                "epochsWritten": member.label in written,
                "problems": [{"words": item.words, "toDo": item.to_do} for item in member.problems],
            }
            for member in found.members
        ],
        "olderMessages": older(found),
        "steps": steps(found, written),
    }
