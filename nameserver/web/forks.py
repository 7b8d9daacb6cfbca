"""Logs of a group side by side for the group page: epochs, forks, cuts. Pure.

A drawing has one lane for each replica. Offsets become positions between 0 and 1. The width of an interval grows with
the logarithm of its bytes, so that a fork of some hundred bytes is visible beside an epoch of many gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from typing import Any

from rmqha.ha.stream.alignment import consistent_point
from rmqha.model.epoch import EpochHistory
from rmqha.model.offset import OPEN_END, PhyOffset
from rmqha.wire.state.history import HistoryEvent

MAX_INTERVALS = 24
"""Newest intervals between neighbouring boundaries that are drawn; older ones are counted."""
MAX_CUTS = 5
"""Newest cuts of one replica that are drawn."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Bytes that a replica removed from its end, to follow another history."""

    at_ms: int
    start_offset: int
    end_offset: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForkedLog:
    """Log of one replica. `is_master`: it is a master by its own report, so its last epoch is open."""

    name: str
    history: EpochHistory
    min_offset: int
    end_offset: int
    is_master: bool = False
    cuts: tuple[LogCut, ...] = ()

    @property
    def election_key(self) -> tuple[int, int]:
        return (self.history.last.epoch if self.history.last else -1, self.end_offset)


def reference(logs: Sequence[ForkedLog]) -> ForkedLog | None:
    """Log that the others are compared with: the newest master's, else the one that an election would choose."""
    masters = [log for log in logs if log.is_master]
    return max(masters or logs, key=lambda log: log.election_key, default=None)


def fork_offset(log: ForkedLog, other: ForkedLog) -> int | None:
    """Offset up to which `log` agrees with `other`, by their epochs; None if they share nothing."""
    if log.end_offset == log.min_offset:
        return log.end_offset
    point = consistent_point(log.history, PhyOffset(log.end_offset), other.history)
    return None if point is None else min(point, log.end_offset)


def draw_logs(logs: Sequence[ForkedLog]) -> dict[str, Any]:
    """JSON-ready: `marks` (offset and position), `lanes` in the order of `logs`, `omittedEpochs`."""
    against = reference(logs)
    lanes = [_lane(log, against) for log in logs]
    boundaries = sorted({offset for lane in lanes for part in lane["parts"] for offset in (part["start"], part["end"])})
    shown = boundaries[-MAX_INTERVALS - 1 :]
    places = _places(shown)
    first = shown[0] if shown else 0
    omitted = {part["epoch"] for lane in lanes for part in lane["parts"] if _is_before(part, first)}
    for lane in lanes:
        lane["parts"] = [_placed(part, places, first) for part in lane["parts"] if not _is_before(part, first)]
    kept = {part["epoch"] for lane in lanes for part in lane["parts"]}
    return {
        "reference": against.name if against is not None else None,
        "marks": [{"offset": offset, "x": places[offset]} for offset in shown],
        "lanes": lanes,
        "omittedEpochs": len(omitted - kept - {None}),
    }


# --- lanes ------------------------------------------------------------------------------------------------------------
def _lane(log: ForkedLog, against: ForkedLog | None) -> dict[str, Any]:
    point = None if against is None or against is log else fork_offset(log, against)
    is_apart = against is not None and against is not log and point is None and log.end_offset > log.min_offset
    limit = log.min_offset if is_apart else log.end_offset if point is None else point
    parts = [*_epoch_parts(log, limit), *_cut_parts(log)]
    return {
        "name": log.name,
        "leads": log.is_master,
        "end": log.end_offset,
        "forkBytes": max(0, log.end_offset - limit),
        "partsAt": limit if log.end_offset > limit else None,
        "words": _summary(log, against, point, is_apart),
        "parts": parts,
    }


def _epoch_parts(log: ForkedLog, limit: int) -> list[dict[str, Any]]:
    """Parts of each epoch: one, or two if the logs fork within it."""
    parts = []
    for place, entry in enumerate(log.history):
        end = log.history.end_offset(place, PhyOffset(log.end_offset))
        start = max(entry.start_offset, log.min_offset)
        if end < start:
            continue
        if start < limit or start == end:
            parts.append(_part(entry.epoch, "log", start, min(end, max(limit, start))))
        if end > max(limit, start):
            parts.append(_part(entry.epoch, "fork", max(limit, start), end))
    return parts


def _cut_parts(log: ForkedLog) -> list[dict[str, Any]]:
    newest = sorted(log.cuts, key=lambda cut: cut.at_ms)[-MAX_CUTS:]
    return [
        _part(None, "cut", cut.start_offset, cut.end_offset) | {"atMs": cut.at_ms, "reason": cut.reason}
        for cut in newest
        if cut.end_offset > cut.start_offset
    ]


def _part(epoch: int | None, kind: str, start: int, end: int) -> dict[str, Any]:
    return {"epoch": epoch, "kind": kind, "start": start, "end": end, "bytes": end - start}


def _summary(log: ForkedLog, against: ForkedLog | None, point: int | None, is_apart: bool) -> str:
    if not len(log.history):
        return "no epoch entry yet" if log.end_offset == log.min_offset else "bytes of no known epoch"
    if against is None or against is log:
        last = log.history.last
        assert last is not None
        leads = "leads" if log.is_master else "would be elected first"
        return f"{leads}; its log ends at {log.end_offset} in epoch {last.epoch}"
    if is_apart:
        return f"shares nothing with {against.name}: no epoch of both has the same start"
    assert point is not None
    if log.end_offset > point:
        return f"parts from {against.name} at {point}: its last {log.end_offset - point} bytes are not in that log"
    behind = against.end_offset - log.end_offset
    return f"the same as {against.name} up to its end" + (f", {behind} bytes behind" if behind > 0 else "")


# --- positions --------------------------------------------------------------------------------------------------------
def _places(offsets: Sequence[int]) -> dict[int, float]:
    """Position of each offset between 0 and 1, rounded so that equal drawings are equal texts."""
    widths = [max(1.0, log10(right - left)) for left, right in pairwise(offsets)]
    whole = sum(widths)
    places, at = {offsets[0]: 0.0} if offsets else {}, 0.0
    for offset, width in zip(offsets[1:], widths, strict=True):
        at += width
        places[offset] = round(at / whole, 4)
    return places


def _is_before(part: dict[str, Any], first: int) -> bool:
    """True if the part is not drawn. An empty epoch at the begin of the drawing is drawn."""
    return bool(part["end"] < first or (part["end"] == first and part["start"] < first))


def _placed(part: dict[str, Any], places: dict[int, float], first: int) -> dict[str, Any]:
    return part | {"x1": places[max(part["start"], first)], "x2": places[part["end"]]}


def cuts_of(events: Sequence[HistoryEvent]) -> tuple[LogCut, ...]:
    """Cuts of a replica's log in its events (request 52001): `log_truncated`, with the reason in the following
    `ha_aligned`. Malformed fields are ignored: they come from another process."""
    found: list[LogCut] = []
    for event in events:
        name, end, size = event.name, event.get("end_offset"), event.get("cut_bytes")
        if not (isinstance(end, int) and isinstance(size, int)):
            continue
        if name == "log_truncated" and 0 < size <= OPEN_END - max(end, 0):
            found.append(LogCut(event.at_ms, end, end + size))
        elif name == "ha_aligned" and found and (found[-1].start_offset, found[-1].end_offset) == (end, end + size):
            last = found[-1]
            found[-1] = LogCut(last.at_ms, last.start_offset, last.end_offset, str(event.get("reason") or ""))
    return tuple(found)
