"""The elections in the nodes' events, each with its cause and its phases. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqha.model.identity import node_label
from rmqha.ops.local.phases import failover_phases
from rmqha.wire.state.history import HistoryEvent

PHASES = ("elect_ms", "role_ms", "writable_ms", "route_ms")
BEGINS = ("master_dead", "hand_over_begins")
SETTLED_MS = 60_000
"""Time (ms) around an election: earlier events did not lead to it, and later phases do not belong to it."""


@dataclass(frozen=True, slots=True)
class SetStep:
    """The SyncStateSet by its master's event, `after_ms` after the election."""

    after_ms: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectionTimeline:
    """One election. `began_ms`: when the old master was declared dead, or began to hand over (`is_switch`); `phases`:
    milliseconds from then on, () if neither is known. `cuts`: cut bytes by node."""

    group: str
    epoch: int
    at_ms: int
    leader: str
    cause: str
    began_ms: int | None = None
    is_switch: bool = False
    why: str = ""
    phases: tuple[tuple[str, int], ...] = ()
    sets: tuple[SetStep, ...] = ()
    cuts: tuple[tuple[str, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The election, JSON-ready."""
        return {
            "group": self.group,
            "epoch": self.epoch,
            "atMs": self.at_ms,
            "leader": self.leader,
            "cause": self.cause,
            "beganMs": self.began_ms,
            "isSwitch": self.is_switch,
            "why": self.why,
            "phases": dict(self.phases),
            "sets": [{"afterMs": item.after_ms, "members": list(item.members)} for item in self.sets],
            "cutBytes": dict(self.cuts),
        }


def election_timelines(events: Iterable[HistoryEvent], groups: Mapping[str, str]) -> list[ElectionTimeline]:
    """Elections, the oldest first. `groups`: the group of each broker by the name of its node. An event of a form that
    no node of ours writes is left out."""
    told = sorted((event for event in events if _is_sound(event)), key=lambda event: event.at_ms)
    elected: dict[tuple[str, int], HistoryEvent] = {}
    for event in told:
        if event.name == "master_elected":
            # several controllers may have told it, and a name server with one inside by two addresses
            elected.setdefault((str(event.get("group")), int(event.get("epoch"))), event)
    names = _names(told, elected, groups)
    found = []
    for (group, epoch), event in elected.items():
        later = [other.at_ms for (name, number), other in elected.items() if name == group and number > epoch]
        own = [item for item in told if _group_of(item, groups) in ("", group)]
        leader = names.get((group, event.get("broker_id"))) or node_label("", event.get("broker_id"))
        found.append(_timeline(group, epoch, event, own, min(later, default=None), groups, leader))
    return sorted(found, key=lambda timeline: (timeline.at_ms, timeline.group, timeline.epoch))


def _timeline(
    group: str,
    epoch: int,
    elected: HistoryEvent,
    own: Sequence[HistoryEvent],
    until_ms: int | None,
    groups: Mapping[str, str],
    leader: str,
) -> ElectionTimeline:
    at_ms = elected.at_ms
    end_ms = 1 << 62 if until_ms is None else until_ms
    during = [item for item in own if at_ms <= item.at_ms < end_ms]
    begin = _beginning(own, at_ms)
    began_ms = None if begin is None else begin.at_ms
    phases: tuple[tuple[str, int], ...] = ()
    if began_ms is not None:
        near = [item for item in own if began_ms <= item.at_ms < min(end_ms, at_ms + SETTLED_MS)]
        measured = failover_phases(near, began_ms, group)
        phases = tuple((name.removesuffix("_ms"), value) for name in PHASES if (value := measured[name]) is not None)
    return ElectionTimeline(
        group,
        epoch,
        at_ms,
        leader,
        str(elected.get("cause") or "").lower().replace("_", " "),
        began_ms,
        begin is not None and begin.name == "hand_over_begins",
        "" if begin is None else str(begin.get("why") or ""),
        phases,
        _sets(during, epoch, at_ms),
        tuple(_cuts(during, groups).items()),
    )


def _beginning(own: Sequence[HistoryEvent], at_ms: int) -> HistoryEvent | None:
    """The event that led to the election, and not to an earlier one; None without one."""
    found = None
    for item in own:
        if item.at_ms > at_ms:
            break
        if item.name in BEGINS and at_ms - item.at_ms <= SETTLED_MS:
            found = found or item
        elif item.name == "master_elected" and item.at_ms < at_ms:
            found = None
    return found


def _names(
    told: Iterable[HistoryEvent], elected: Mapping[tuple[str, int], HistoryEvent], groups: Mapping[str, str]
) -> dict[tuple[str, int], str]:
    """Names of nodes by group and broker id, of those that became master by an election."""
    found = {}
    for item in told:
        if item.name == "role_changed" and item.get("role") == "MASTER" and isinstance(item.get("epoch"), int):
            group = groups.get(item.node, "")
            event = elected.get((group, item.get("epoch")))
            if event is not None:
                found[group, event.get("broker_id")] = item.node
    return found


def _sets(during: Iterable[HistoryEvent], epoch: int, at_ms: int) -> tuple[SetStep, ...]:
    steps: list[SetStep] = []
    for item in during:
        members = item.get("members")
        if item.name == "set_changed" and item.get("epoch") == epoch and isinstance(members, list):
            numbers = tuple(sorted(member for member in members if isinstance(member, int)))
            if not steps or steps[-1].members != numbers:
                steps.append(SetStep(item.at_ms - at_ms, numbers))
    return tuple(steps)


def _cuts(during: Iterable[HistoryEvent], groups: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in during:
        count = item.get("cut_bytes")
        if item.name == "log_truncated" and item.node in groups and isinstance(count, int) and count:
            found[item.node] = found.get(item.node, 0) + count
    return found


def _group_of(event: HistoryEvent, groups: Mapping[str, str]) -> str:
    """The group that an event is about, "" if it is about none or is a name server's."""
    return str(event.get("group") or event.get("broker_name") or groups.get(event.node) or "")


def _is_sound(event: HistoryEvent) -> bool:
    needed = (("group", str), ("epoch", int), ("broker_id", int)) if event.name == "master_elected" else ()
    return bool(event.node) and all(isinstance(event.get(key), kind) for key, kind in needed)
