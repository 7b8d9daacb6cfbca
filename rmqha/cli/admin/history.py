"""`rmqha history`: what happened on all nodes, in order of wall time. Control plane."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from rmqha.cli.options import cluster_options, complete_node, echo_json, output_option
from rmqha.cli.times import local_time, moment
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import UsageError
from rmqha.model.printable import printable
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.election_timeline import ElectionTimeline, election_timelines
from rmqha.ops.local.node_history import collect
from rmqha.wire.state.history import HistoryEvent

FOLLOW_INTERVAL_S = 1.0


def line(event: HistoryEvent) -> str:
    """One event for people, its time with date and zone."""
    fields = " ".join(f"{key}={value}" for key, value in event.fields.items() if key != "node")
    told = printable(f"{event.name} {fields}", lines=False)
    return f"{local_time(event.at_ms)} {event.node:<12} {told}".rstrip()


def paragraph(timeline: ElectionTimeline) -> str:
    """One election for people, in lines."""
    why = f" ({timeline.why})" if timeline.why else ""
    lines = [
        f"{local_time(timeline.at_ms)} {timeline.group} epoch {timeline.epoch}",
        f"{timeline.leader} became master: {timeline.cause}{why}",
    ]
    if timeline.began_ms is not None:
        begin = "the hand-over began" if timeline.is_switch else "the old master was given up"
        phases = ", ".join(f"{name} {value}" for name, value in timeline.phases)
        lines.append(f"ms since {begin}: {phases}")
    for step in timeline.sets:
        lines.append(f"+{step.after_ms / 1000:.1f} s in the set: {', '.join(map(str, step.members)) or 'nobody'}")
    lines += [f"{node} cut {count:,} bytes" for node, count in timeline.cuts]
    return "\n  ".join(printable(item, lines=False) for item in lines)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filter of the events to show. An event needs one of `nodes`, and a name that matches one of `patterns`; () passes
    all."""

    since_ms: int | None = None
    nodes: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def of(self, events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
        return [event for event in events if self._takes(event)]

    def _takes(self, event: HistoryEvent) -> bool:
        named = not self.patterns or any(fnmatchcase(event.name, pattern) for pattern in self.patterns)
        return named and event.at_ms >= (self.since_ms or 0) and (not self.nodes or event.node in self.nodes)


def none_text(told: Sequence[HistoryEvent]) -> str:
    """The sentence on a choice that no event of those `told` passes."""
    if not told:
        return "no event is known"
    names = ", ".join(sorted({printable(event.name, lines=False) for event in told}))
    return f"no event matches; {len(told)} others are known, with the names {names}"


class EventFollower:
    """Filter of the events that were not shown yet. A node keeps its last ones only, so events that it no longer tells
    are forgotten."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def new_of(self, events: Sequence[HistoryEvent]) -> list[HistoryEvent]:
        before, keys = self._shown, [json.dumps(event.to_json(), sort_keys=True) for event in events]
        self._shown = set(keys)
        return [event for event, key in zip(events, keys, strict=True) if key not in before]


@click.command(epilog="Example: rmqha history --since 2026-11-21T14:00:00 --event 'master_*'")
@cluster_options
@output_option
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="N", help="Only the last N events.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--since", metavar="TIME", callback=moment, help="Only later ones: ISO 8601 or milliseconds.")
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", shell_complete=complete_node, help="Only of NODE; repeatable."
)
@click.option(
    "--event", "patterns", multiple=True, metavar="NAME", help="Only of this name, such as 'master_*'; repeatable."
)
@click.option("--elections", is_flag=True, help="One paragraph an election instead: why, how long, what came of it.")
def history(
    state: ClusterState,
    output: str,
    last: int | None,
    follow: bool,
    since: int | None,
    nodes: tuple[str, ...],
    patterns: tuple[str, ...],
    elections: bool,
) -> None:
    """Show what happened on all running nodes, in order of wall time: elections, roles, cuts, set changes.

    A node tells its last 1000 events, and of those before its last start the 300 that matter most. One that does not
    run tells nothing; its own log (`rmqha logs NODE`) still does. With -f and -o json each event is one line.

    Exit code: 0 all told theirs, 1 some did not, 2 none did.
    """
    for name in nodes:
        state.node(name)
    if elections:
        if follow or nodes or patterns:
            raise UsageError("--elections tells whole elections; leave -f, --node and --event out")
        _tell_elections(state, output, since, last)
        return
    choice, follower = EventFilter(since, nodes, patterns), EventFollower()
    events, silent = ask_by(collect, state)
    told_nothing = len(silent) == len(state.nodes)
    chosen = choice.of(follower.new_of(events))
    shown = chosen[-last:] if last else chosen
    if output == "json" and not follow and not told_nothing:
        echo_json({"events": [event.to_json() for event in shown], "silent": silent})
    else:
        _print(shown, output)
        if not shown and not follow and not told_nothing:
            click.echo(f"rmqha: {none_text(events)}", err=True)
    for name, reason in sorted(silent.items()):
        click.echo(f"{name}: {reason}", err=True)
    while follow and not told_nothing:
        time.sleep(FOLLOW_INTERVAL_S)
        events, silent = ask_by(collect, state)
        _print(choice.of(follower.new_of(events)), output)
    if silent:
        sys.exit(2 if told_nothing else 1)


def _tell_elections(state: ClusterState, output: str, since_ms: int | None, last: int | None) -> None:
    events, silent = ask_by(collect, state)
    groups = {node.name: node.group for node in state.brokers}
    timelines = [timeline for timeline in election_timelines(events, groups) if timeline.at_ms >= (since_ms or 0)]
    shown = timelines[-last:] if last else timelines
    told_nothing = len(silent) == len(state.nodes)
    if output == "json" and not told_nothing:
        echo_json({"elections": [timeline.as_dict() for timeline in shown], "silent": silent})
    else:
        click.echo("\n\n".join(map(paragraph, shown)) or "no election is known")
    for name, reason in sorted(silent.items()):
        click.echo(f"{name}: {reason}", err=True)
    if silent:
        sys.exit(2 if told_nothing else 1)


def _print(events: Iterable[HistoryEvent], output: str) -> None:
    for event in events:
        click.echo(json.dumps(event.to_json(), ensure_ascii=False) if output == "json" else line(event))
    sys.stdout.flush()
