"""`rmqha timers`: the timer messages that wait, by the minute in which they come."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, topic_option
from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.times import local_time
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.ops.messaging.brokers import BrokerAnswers
    from rmqha.ops.messaging.timers import WaitingMessages

MAX_ROWS = 30
MAX_TOPICS = 20
MIN_BAR_COLUMNS = 10
TOPIC_COLUMNS = [("TOPIC", "left"), ("WAIT", "right")]
LATE_MS = 2000
"""Time (ms) by which delivery may be late without a note."""


@click.command(epilog="Example: rmqha timers --topic orders")
@topic_option(text="Only this topic.")
@namesrv_option
@output_option
def timers(topic: str | None, namesrv: str, output: str) -> None:
    """Show how many timer messages wait, by the minute in which they come, and of which topics.

    A message that is due in more than two days stands at the time at which it is stored again to wait on. One that is
    taken back counts until its time. Delay levels are not searched.

    Exit code: 0 every group told, 1 one did not, 2 there is no such topic or nobody to ask.
    """
    from rmqha.ops.messaging.timers import count_waiting

    told = ask_admin(namesrv, lambda admin: count_waiting(admin, topic))
    told.require_one()
    if output == "json":
        echo_json({"groups": {name: _json(found) for name, found in told.answers.items()}, "silent": told.silent})
    else:
        _show(told, shutil.get_terminal_size().columns)
    if told.silent:
        sys.exit(1)


def _json(found: WaitingMessages) -> dict[str, Any]:
    return {
        "waiting": found.waiting,
        "unread": found.unread,
        "overdueMs": found.overdue_ms,
        "topics": dict(found.topics),
        "minutes": [list(item) for item in sorted(found.minutes.items())],
    }


def _show(told: BrokerAnswers[WaitingMessages], columns: int) -> None:
    from rmqha.ops.messaging.timers import by_step

    minutes: Counter[int] = Counter()
    topics: Counter[str] = Counter()
    for found in told.answers.values():
        minutes.update(found.minutes)
        topics.update(found.topics)
    step, rows = by_step(minutes, MAX_ROWS)
    if rows:
        click.echo(f"what comes, by {'the minute' if step == 1 else f'{step} minutes'}:")
        for line in bars(rows, columns):
            click.echo(line)
        click.echo("")
        most = topics.most_common(MAX_TOPICS)
        echo_table(TOPIC_COLUMNS, [[printable(name, lines=False), f"{count:,}"] for name, count in most])
        if len(topics) > MAX_TOPICS:
            click.echo(f"and {len(topics) - MAX_TOPICS} other topics")
    else:
        click.echo("no timer message waits")
    for name, found in sorted(told.answers.items()):
        if found.unread:
            click.echo(f"{name}: {found.unread:,} entries have not been read yet and are not in this")
        if found.overdue_ms > LATE_MS:
            click.echo(f"{name}: the first is {found.overdue_ms / 1000:.0f} s late; see rmqha explain {name}")
    for name, why in sorted(told.silent.items()):
        click.echo(f"rmqha: {name} does not tell: {why}", err=True)


def bars(rows: list[tuple[int, int]], columns: int) -> list[str]:
    """A line for each (time in ms, count): the time, a bar as long as the count asks for, the count."""
    most = max(count for _, count in rows)
    times = [local_time(at_ms)[:16] for at_ms, _ in rows]
    left, right = max(map(len, times)), len(f"{most:,}")
    room = max(MIN_BAR_COLUMNS, columns - left - right - 4)
    return [
        f"{at:<{left}}  {'█' * -(-count * room // most):<{room}}  {count:>{right},}"
        for at, (_, count) in zip(times, rows, strict=True)
    ]
