"""Positions in a log that a reader keeps: where it stopped, and whether the log has the same history there.

A position is a record's end with the epoch that wrote the byte before it. If the log was cut below it, or another epoch
wrote that byte since, what was read up to it is no longer the group's log (as an AP master's tail that was cut).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmqha.model.error import StoreError
from rmqha.scan.columns import Records, Source
from rmqha.scan.damage import pieces
from rmqha.scan.files import StoreView, read_epochs
from rmqha.scan.read import LogFile, LogFileInfo

_START_ANEW = "; start a new query (another checkpointLocation)"


@dataclass(frozen=True, slots=True)
class Position:
    """A record's end, and the epoch that wrote the byte before it. `epoch` and `epoch_start` are −1 where nothing was
    written before, or by no known epoch."""

    physical_offset: int
    epoch: int = -1
    epoch_start: int = -1


def position_at(view: StoreView, physical_offset: int) -> Position:
    """The position at a record's end (or the log's first record)."""
    if physical_offset <= view.min_offset:
        return Position(physical_offset)
    return _position(view.epochs, physical_offset)


def _position(epochs: Sequence[tuple[int, int]], physical_offset: int) -> Position:
    found = bisect_right([start for _, start in epochs], physical_offset - 1) - 1
    return Position(physical_offset, *epochs[found]) if found >= 0 else Position(physical_offset)


def may_have_changed(root: str, position: Position) -> bool:
    """True if the epoch file has another history below the position. Cheaper than a read of the log."""
    epochs = read_epochs(root) if position.epoch >= 0 else ()
    return bool(epochs) and _position(epochs, position.physical_offset) != position


def has_reached(view: StoreView, position: Position, *, same_replica: bool = True) -> bool:
    """True if the log reaches the position; False if it is only behind: its marks are, or it is another replica's.

    StoreError, one sentence, if the log was cut below the position or has another history there. Only the replica where
    the position was taken (`same_replica`) must have been cut if it ends before it.
    """
    at = position.physical_offset
    now = position_at(view, at)
    had = f"{at} had been read" + (f", of epoch {position.epoch}" if position.epoch >= 0 else "")
    if position.epoch >= 0 and now.epoch >= 0 and now != position:
        if now.epoch >= position.epoch:
            later = [start for epoch, start in view.epochs if epoch > position.epoch and start < at]
            cut = min([*later, now.epoch_start])
            raise StoreError(
                f"{view.root}: {had} from {position.epoch_start}, and now epoch {now.epoch} from {now.epoch_start} "
                f"wrote those bytes: the log was cut at {cut} and written anew{_START_ANEW}"
            )
        if at <= view.end_offset:
            raise StoreError(
                f"{view.root}: {had} from {position.epoch_start}, and this replica has bytes of epoch {now.epoch} "
                "there, which the group's log does not have: give the path of a replica that follows the group's master"
            )
    if at > view.written_end and same_replica:
        raise StoreError(
            f"{view.root} ends at {view.written_end}, and {had}: what was read behind {view.written_end} was cut and "
            f"is not in the group's log{_START_ANEW}"
        )
    return at <= view.end_offset


def end_within(view: StoreView, start: int, max_bytes: int, *, pass_damage: bool = False) -> int:
    """The last record end at most `max_bytes` behind `start`, or the end of the record at `start` if that is longer.

    StoreError where damage stands in the way, unless it is passed.
    """
    goal = start + max_bytes
    if goal >= view.end_offset:
        return view.end_offset
    for name, first in zip(view.files, view.starts, strict=True):
        if name.end_offset > goal:
            return _last_end(name, max(first, start), goal, start, min(name.end_offset, view.end_offset), pass_damage)
    return view.end_offset


def _last_end(name: LogFileInfo, begin: int, goal: int, start: int, stop: int, pass_damage: bool) -> int:
    base, last = name.base_offset, begin
    with LogFile(name) as file:
        for piece in pieces(file, begin - base, stop - base, Source(), pass_damage=pass_damage):
            begins = piece.number("physicalOffset").tolist() if isinstance(piece, Records) else [piece.start]
            place = bisect_right(begins, goal)
            if place:
                last = begins[place - 1]
            if place < len(begins):
                return int(last if last > start else begins[place])
    return last if last > start and stop > goal else stop


def record_count(view: StoreView, limit: int, *, pass_damage: bool = False) -> int:
    """Number of records of the view, or `limit` if there are more; no further is walked. StoreError where damage stands
    in the way, unless it is passed."""
    found = 0
    for name, first in zip(view.files, view.starts, strict=True):
        span = first - name.base_offset, min(name.end_offset, view.end_offset) - name.base_offset
        with LogFile(name) as file:
            for piece in pieces(file, *span, Source(), pass_damage=pass_damage):
                found += len(piece) if isinstance(piece, Records) else 0
                if found >= limit:
                    return limit
    return found


def between(view: StoreView, start: int, end: int) -> StoreView:
    """The records of [start, end), both of them record starts or ends."""
    kept = [
        (name, max(first, start))
        for name, first in zip(view.files, view.starts, strict=True)
        if name.end_offset > start and name.base_offset < end
    ]
    return replace(
        view, files=tuple(name for name, _ in kept), starts=tuple(first for _, first in kept), end_offset=end
    )
