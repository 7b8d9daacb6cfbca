"""`rmqha epochs`: who wrote which part of a log, and where two logs part. Offline, ours or Apache RocketMQ's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import Text, console, table
from rmqha.ha.stream.alignment import AlignmentVerdict
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.epoch_comparison import (
    Comparison,
    Following,
    ReplicaHistory,
    compare,
    read_history,
    read_history_file,
)
from rmqha.model.error import UsageError
from rmqha.model.offset import OPEN_END

CASES = {
    "empty": "its log is empty",
    "1-1": "its log ends before the other's begins",
    "1-2": "its log begins below the other's and ends inside it",
    "2-2": "its log lies inside the other's",
    "1-3": "its log begins below the other's and ends beyond it",
    "2-3": "its log ends beyond the other's",
    "3-3": "its log begins beyond the other's end",
}
"""Words for the place of a slave's log relative to its master's."""


@click.group()
def epochs() -> None:
    """Show which master epoch wrote which part of a log, and where two logs part.

    A PATH is a broker's storePathRootDir or an epochFileCheckpoint alone, ours or Apache RocketMQ's. The store may be
    in use; nothing is locked or written.
    """


@epochs.command("show", epilog="Example: rmqha epochs show data/broker-a-1")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--end", type=click.IntRange(0), metavar="OFFSET", help="Where the log of an epoch file ends.")
@output_option
def show(path: Path, end: int | None, output: str) -> None:
    """Show the epoch entries of PATH, where each ends, and what is committed.

    Exit code: 0 sound, 1 not as it should be, 2 cannot read.
    """
    side = _history(path, end, "--end")
    if output == "json":
        echo_json(_side_json(side))
    else:
        _show_side(side)
    if side.notes:
        sys.exit(1)


@epochs.command("diff", epilog="Example: rmqha epochs diff data/broker-a-1/store data/broker-a-2/store")
@click.argument("a_path", type=click.Path(path_type=Path), metavar="A")
@click.argument("b_path", type=click.Path(path_type=Path), metavar="B")
@click.option("--end-a", type=click.IntRange(0), metavar="OFFSET", help="Where the log of A ends, if A is a file.")
@click.option("--end-b", type=click.IntRange(0), metavar="OFFSET", help="The same of B.")
@output_option
def diff(a_path: Path, b_path: Path, end_a: int | None, end_b: int | None, output: str) -> None:
    """Compare the epoch entries of A and B: up to where they agree, and what either would cut to follow the other.

    Exit code: 0 the older one can follow the newer without a loss, 1 it cannot, 2 cannot read.
    """
    a, b = _history(a_path, end_a, "--end-a"), _history(b_path, end_b, "--end-b")
    found = compare(a, b)
    if output == "json":
        echo_json(_diff_json(a, b, found))
    else:
        _show_diff(a, b, found)
    if found.is_fork or a.notes or b.notes:
        sys.exit(1)


def _history(path: Path, end: int | None, option: str) -> ReplicaHistory:
    if path.is_dir():
        if end is not None:
            raise UsageError(f"{option} belongs to an epoch file; {path} is a directory, whose log shows where it ends")
        return read_history(HostReadDisk(path))
    return read_history_file(HostReadDisk(path.parent), path.name, end)


# --- for scripts ------------------------------------------------------------------------------------------------------
def _known(offset: int | None) -> int | None:
    return None if offset is None or offset == OPEN_END else offset


def _side_json(side: ReplicaHistory) -> dict[str, Any]:
    return {
        "path": side.label,
        "minOffset": side.min_offset,
        "endOffset": side.end_offset,
        "committedEnd": side.committed_end,
        "inUse": side.live,
        "epochs": [
            {
                "epoch": entry.epoch,
                "startOffset": entry.start_offset,
                "endOffset": _known(side.history.end_offset(place, side.max_offset)),
            }
            for place, entry in enumerate(side.history)
        ],
        "notes": list(side.notes),
    }


def _following_json(item: Following, slave: str, master: str) -> dict[str, Any]:
    return {
        "case": item.case,
        "verdict": item.ap.verdict.value,
        "verdictInCp": item.cp.verdict.value,
        "endOffset": _known(item.ap.end_offset),
        "cutBytes": item.cut_bytes,
        "reason": item.ap.reason if item.ap.verdict is not AlignmentVerdict.FOLLOW else item.cp.reason,
        "words": _sentence(item, slave, master),
    }


def _diff_json(a: ReplicaHistory, b: ReplicaHistory, found: Comparison) -> dict[str, Any]:
    return {
        "a": _side_json(a),
        "b": _side_json(b),
        "consistentPoint": _known(found.point),
        "nothingInCommon": found.point is None and not a.is_empty and not b.is_empty,
        "newer": {None: None, True: "a", False: "b"}[found.a_is_newer],
        "fork": found.is_fork,
        "bFollowsA": _following_json(found.b_follows_a, "B", "A"),
        "aFollowsB": _following_json(found.a_follows_b, "A", "B"),
        "advice": _advice(a, b, found),
    }


# --- for people -------------------------------------------------------------------------------------------------------
SHOW_COLUMNS = [("EPOCH", "right"), ("START", "right"), ("END", "right"), ("BYTES", "right")]
DIFF_COLUMNS = [
    ("EPOCH", "right"),
    ("A START", "right"),
    ("A END", "right"),
    ("B START", "right"),
    ("B END", "right"),
    ("", "left"),
]


def _header(side: ReplicaHistory, name: str = "") -> str:
    head = f"{name}: " if name else ""
    use = ", in use" if side.live else ""
    if side.end_offset is None:
        return f"{head}{side.label}: an epoch file, where its log ends is not known"
    committed = "" if side.committed_end is None else f", committed up to {side.committed_end}"
    return f"{head}{side.label}: log {side.min_offset} to {side.end_offset}{committed}{use}"


def _show_side(side: ReplicaHistory) -> None:
    rows = []
    for place, entry in enumerate(side.history):
        end = _known(side.history.end_offset(place, side.max_offset))
        held = None if end is None else max(0, end - max(entry.start_offset, side.min_offset))
        rows.append([entry.epoch, entry.start_offset, "open" if end is None else end, held])
    out = console()
    out.print(Text(_header(side)))
    out.print(table(SHOW_COLUMNS, rows) if rows else "no epoch entry")
    _show_notes(side)


def _show_notes(side: ReplicaHistory) -> None:
    for note in side.notes:
        console().print(Text(f"{side.label}: {note}", "red"))


def _show_diff(a: ReplicaHistory, b: ReplicaHistory, found: Comparison) -> None:
    out = console()
    out.print(Text(_header(a, "A")))
    out.print(Text(_header(b, "B")))
    rows = []
    for epoch in sorted({entry.epoch for side in (a, b) for entry in side.history}):
        (a_start, a_end), (b_start, b_end) = (_range(side, epoch) for side in (a, b))
        word = "only A" if b_start is None else "only B" if a_start is None else ""
        if not word:
            word = "other start" if a_start != b_start else "same" if a_end == b_end else "other end"
        rows.append([epoch, a_start, a_end, b_start, b_end, word])
    out.print(table(DIFF_COLUMNS, rows))
    out.print(Text(_agreement(a, b, found), "bold"))
    if found.a_is_newer is None:
        out.print("neither is newer than the other")
    else:
        first, second = ("A", "B") if found.a_is_newer else ("B", "A")
        out.print(f"an election among the two takes {first}, so {second} would follow")
    for item, slave, master in ((found.b_follows_a, "B", "A"), (found.a_follows_b, "A", "B")):
        style = "yellow" if item.loses else ""
        out.print(Text(f"{slave} follows {master}: {_sentence(item, slave, master)}", style))
    advice = _advice(a, b, found)
    if advice:
        out.print(Text(advice, "red"))
    _show_notes(a)
    _show_notes(b)


def _range(side: ReplicaHistory, epoch: int) -> tuple[int | None, int | str | None]:
    for place, entry in enumerate(side.history):
        if entry.epoch == epoch:
            end = side.history.end_offset(place, side.max_offset)
            return entry.start_offset, "open" if end == OPEN_END else end
    return None, None


def _agreement(a: ReplicaHistory, b: ReplicaHistory, found: Comparison) -> str:
    if found.point is None:
        if a.is_empty or b.is_empty:
            return "one log is empty: there is nothing to compare"
        return "nothing in common: no epoch entry of A and B has the same epoch and start"
    if found.point == OPEN_END:
        return "the entries agree; where the logs end is not known"
    return f"consistent point: {found.point}; by their epochs A and B agree up to there"


def _sentence(item: Following, slave: str, master: str) -> str:
    """A sentence on what happens to `slave`, which follows `master`."""
    case = f"case {item.case}" if item.case != "empty" else "empty"
    where = f"{case}, {CASES[item.case]}"
    match item.ap.verdict:
        case AlignmentVerdict.RESTART:
            return f"{where}; {slave} sets its own files aside, unharmed, and copies {master} ({item.ap.reason})"
        case AlignmentVerdict.REFUSE:
            return f"{where}; refused in AP and CP, nothing is cut ({item.ap.reason})"
    point = item.ap.end_offset
    if item.cut_bytes is None:
        done = "nothing is cut" if point == OPEN_END else f"{slave} cuts what it has from {point} on"
    elif item.cut_bytes == 0:
        done = f"{slave} cuts nothing and goes on from {point}"
    else:
        done = f"{slave} cuts its {item.cut_bytes} bytes from {point} on and follows from there"
    if item.cp.verdict is AlignmentVerdict.REFUSE:
        done += "; with haMode=cp this is refused, since some of them are committed"
    return f"{where}; {done}"


def _advice(a: ReplicaHistory, b: ReplicaHistory, found: Comparison) -> str:
    """Advice on what an operator must do where no replica may decide; "" if nothing."""
    verdicts = [item.cp.verdict for item in (found.b_follows_a, found.a_follows_b)]
    if AlignmentVerdict.REFUSE not in verdicts:
        return ""
    one_way = (
        ""
        if all(item is AlignmentVerdict.REFUSE for item in verdicts)
        else "; the other way round nobody needs to choose"
    )
    from_where = "" if found.point is None or found.point == OPEN_END else f" --from {found.point}"
    return (
        f"to do: stop both brokers; look at what each has alone (rmqha log cat DIR --uncommitted{from_where}); keep "
        f"one, save the other's messages (rmqha log export DIR FILE{from_where} --uncommitted), move its directory "
        f"away and start it empty: then it copies the one that you kept{one_way}"
    )
