"""Coverage marks: rare paths of the production code that runs should take, told by the events that it traces.

A mark that no run hits is a hole in the faults, not in the code: `make sim` names those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer

Fields = dict[str, Any]


def _always(fields: Fields) -> bool:
    return True


def _elected(cause: str) -> tuple[str, Callable[[Fields], bool]]:
    return "master_elected", lambda fields: fields["cause"] == cause


def _found(start: str) -> tuple[str, Callable[[Fields], bool]]:
    return "recovery", lambda fields: str(fields["finding"]).startswith(start)


MARKS: dict[str, tuple[str, Callable[[Fields], bool]]] = {
    "a fork is cut": ("ha_aligned", lambda fields: fields["cut_bytes"] > 0),
    "a slave is ahead of its master (2-3)": ("ha_aligned", lambda fields: fields["case"] == "2-3"),
    "a slave starts anew (1-1)": ("ha_aligned", lambda fields: fields["case"] == "1-1"),
    "a slave copies all again, its master's log begins behind its end": ("ha_restarted", _always),
    "a slave refuses to cut (3-3)": ("ha_refused", _always),
    "an HA peer is dropped": ("ha_dropped", _always),
    "old files are removed": ("log_trimmed", _always),
    "a log is cut": ("log_truncated", _always),
    "a broker ends because its disk fails": ("disk_failed", _always),
    "a slave waits for room for its log": ("log_lacks_room", _always),
    "the index of keys stops for want of room": ("index_stopped", _always),
    "a replica boots unclean": ("booted", lambda fields: fields["unclean"]),
    "a replica is whole again": ("whole_again", _always),
    "an unclean replica is made master": ("unclean_accepted", _always),
    "bytes behind the end of the log are dropped": _found("The log was cut to"),
    "damage in the middle of the log is seen": _found("A whole record stands at"),
    "a first election": _elected("FIRST_ELECTION"),
    "an election because the master died": _elected("MASTER_DEAD"),
    "an operator's choice is elected": _elected("DESIGNATED"),
    "an election that accepts loss": ("master_elected", lambda fields: "UNCLEAN" in fields["cause"]),
    "an election finds nobody": ("election_failed", _always),
    "a group is left without a master": ("group_masterless", _always),
    "a member is taken out of the set by the controllers": ("member_removed", _always),
    "a suspected master answers": ("master_answers", _always),
    "a controller resigns": ("controller_resigned", _always),
    "a controller stood still": ("controller_paused", _always),
    "topics are made again from the log": ("topics_restored", _always),
    "a half message is given up": ("transaction_given_up", _always),
    "a master takes offsets back that a kill took": ("offsets_taken_back", _always),
}
"""What is rare, the event that tells it, and which of its fields do."""

_BY_EVENT: dict[str, list[tuple[str, Callable[[Fields], bool]]]] = {}
for _mark, (_event, _tells) in MARKS.items():
    _BY_EVENT.setdefault(_event, []).append((_mark, _tells))


class MarkingTracer(SimTracer):
    """Collects in `marks` what the run has hit."""

    def __init__(self, scheduler: Scheduler, keep_count: int = 200) -> None:
        super().__init__(scheduler, keep_count)
        self.marks: set[str] = set()
        self.serving_offsets: list[int] = []
        """End of a master's log each time that one began to serve, also in the epoch in which it did before."""
        self.watch: Callable[[str, Fields], None] = lambda name, fields: None
        """Sees every event too."""

    def event(self, name: str, **fields: Any) -> None:
        super().event(name, **fields)
        self.watch(name, fields)
        if name == "serving":
            self.serving_offsets.append(fields["max_phy_offset"])
        for mark, tells in _BY_EVENT.get(name, ()):
            if mark not in self.marks and tells(fields):
                self.marks.add(mark)


def not_hit(hit: Iterable[str]) -> list[str]:
    known = set(hit)
    return [mark for mark in MARKS if mark not in known]
