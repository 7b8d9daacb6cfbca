"""`rmqha dlq`: dead letters of consumer groups listed, sent to their group again, exported."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, complete_consumer_group, group_argument
from rmqha.cli.messaging.message_lines import json_line, table_line
from rmqha.cli.options import confirm, echo_json, namesrv_option, output_option, yes_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.target import target_namesrv_option
from rmqha.cli.times import short_time
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.client.consumers.message import Message
    from rmqha.ops.messaging.resending import DeadLetterQueue

COLUMNS = [("GROUP", "left"), ("QUEUE", "left"), ("DEAD", "right"), ("NOT SENT AGAIN", "right"), ("NEWEST", "left")]


@click.group()
def dlq() -> None:
    """Dead letters, which a group could not work off: list them, send them to their group again, export them."""


@dlq.command("ls", epilog="Example: rmqha dlq ls billing")
@click.argument("group", required=False, metavar="[GROUP]", shell_complete=complete_consumer_group)
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Most to list of GROUP."
)
@namesrv_option
@output_option
def ls_command(group: str | None, limit: int, namesrv: str, output: str) -> None:
    """List the groups that have dead letters; with GROUP its dead letters, a line each, the oldest first.

    Exit code: 0 told, 2 GROUP has none or nobody to ask.
    """
    from rmqha.ops.messaging import resending

    if group is None:

        async def all_queues(admin: Admin) -> list[DeadLetterQueue]:
            names = await resending.groups_with_dead_letters(admin)
            return [queue for name in names for queue in await resending.queues_of(admin, name)]

        queues = ask_admin(namesrv, all_queues)
        if output == "json":
            echo_json([queue_json(queue) for queue in queues])
        else:
            echo_table(
                COLUMNS,
                [
                    [queue.group, queue.queue, queue.count, queue.waiting, short_time(queue.newest_at_ms)]
                    for queue in queues
                ],
            )
        return
    found: list[Message] = []
    ask_admin(namesrv, lambda admin: _each(admin, group, found.append, limit + 1))
    for message in found[:limit]:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(json_line(message) if output == "json" else table_line(message, width))
    if len(found) > limit:
        click.echo(f"rmqha: there are more than {limit}: raise --limit, or see rmqha dlq export", err=True)


def queue_json(queue: DeadLetterQueue) -> dict[str, Any]:
    """A dead letter queue for scripts."""
    return {
        "group": queue.group,
        "brokerName": queue.queue.broker_name,
        "queueId": queue.queue.queue_id,
        "dead": queue.count,
        "notSentAgain": queue.waiting,
        "newestAtMs": queue.newest_at_ms or None,
    }


async def _each(admin: Admin, group: str, take: Callable[[Message], object], limit: int | None = None) -> int:
    """Call `take` with the dead letters of all queues, the oldest first. Returns their number."""
    from rmqha.ops.messaging import resending

    count = 0
    async with aclosing(resending.in_order(admin, await resending.queues_of(admin, group))) as told:
        async for message in told:
            take(message)
            count += 1
            if count == limit:
                break
    return count


@dlq.command("resend", epilog="Example: rmqha dlq resend billing --dry-run")
@group_argument
@click.option("--all", "every", is_flag=True, help="Also those that were sent again before.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Send no more than N.")
@click.option("--dry-run", is_flag=True, help="Only tell how many there are.")
@yes_option
@target_namesrv_option()
@output_option
def resend_command(
    group: str, every: bool, limit: int | None, dry_run: bool, yes: bool, namesrv: str, output: str
) -> None:
    """Send the dead letters of GROUP to its retry topic: only GROUP gets them again, with all its tries.

    What was sent again is not sent by the next call; the dead letters themselves stay until the log forgets them.

    Exit code: 0 sent, 1 some were not, 2 GROUP has none, refused or nobody to ask.
    """
    from rmqha.ops.messaging import resending

    queues = ask_admin(namesrv, lambda admin: resending.queues_of(admin, group))
    count = sum(queue.count if every else queue.waiting for queue in queues)
    count = count if limit is None else min(count, limit)
    name = printable(group, lines=False)
    if count and not dry_run:
        confirm(f"send {count} dead letter{'' if count == 1 else 's'} to {name} again?", "nothing sent", yes=yes)
        # who sends takes a moment to load
        click.echo(f"sending {count} dead letter{'' if count == 1 else 's'} to {name}", err=True)

    async def order(admin: Admin) -> int:
        from rmqha.client.producers.producer import Producer

        async with Producer(namesrv, resending.RESEND_GROUP) as producer:
            return await resending.resend(admin, producer, group, queues, limit, every=every)

    sent = ask_admin(namesrv, order, sends=True) if count and not dry_run else 0
    if output == "json":
        echo_json({"group": group, "dryRun": dry_run, "dead": sum(queue.count for queue in queues), "chosen": count,
                   "sent": sent})  # fmt: skip
    elif dry_run:
        click.echo(f"{count} dead letters would go to {name}; dry run: nothing was sent")
    else:
        click.echo(f"{sent} of {count} dead letters sent to {name}")
    if not dry_run and sent < count:
        sys.exit(1)


@dlq.command("export", epilog="Example: rmqha dlq export billing dead.jsonl")
@group_argument
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--force", is_flag=True, help="Replace FILE.")
@namesrv_option
@output_option
def export_command(group: str, path: Path, force: bool, namesrv: str, output: str) -> None:
    """Write the dead letters of GROUP to FILE, a JSON object per line; FILE is whole or not there. - is the output.

    Exit code: 0 written, 2 GROUP has none, FILE cannot be written or nobody to ask.
    """
    if str(path) == "-":
        ask_admin(namesrv, lambda admin: _each(admin, group, lambda message: click.echo(json_line(message))))
        return
    from rmqha.cli.storage.log_export import whole_file

    with whole_file(path, force=force) as out:
        count = ask_admin(
            namesrv, lambda admin: _each(admin, group, lambda message: out.write(json_line(message).encode() + b"\n"))
        )
    if output == "json":
        echo_json({"group": group, "file": str(path), "count": count})
    else:
        click.echo(f"{count} dead letters of {printable(group, lines=False)} in {path}")
