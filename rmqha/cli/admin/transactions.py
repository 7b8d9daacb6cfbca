"""`rmqha transactions`: transactions that wait for the word of their producers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, topic_option
from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.times import age_text
from rmqha.model.message import CHECK_MAX_TOPIC
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.ops.messaging.brokers import BrokerAnswers
    from rmqha.ops.messaging.transactions import OpenTransactions

MAX_ROWS = 100
COLUMNS = [
    ("BROKERS", "left"),
    ("PRODUCER GROUP", "left"),
    ("TOPIC", "left"),
    ("OPEN", "right"),
    ("OLDEST", "right"),
    ("CHECKS", "right"),
    ("PRODUCERS", "right"),
]


@click.command(epilog="Example: rmqha transactions --topic orders")
@topic_option(text="Only those whose messages are for this topic.")
@namesrv_option
@output_option
def transactions(topic: str | None, namesrv: str, output: str) -> None:
    """Show the transactions without an end: half messages that their producers have neither committed nor rolled back.

    CHECKS is how often the broker has asked for the outcome of one at the most, PRODUCERS how many producers of the
    group it can ask. Their messages reach no consumer until then.

    Exit code: 0 every broker group told, 1 one did not, 2 there is no such topic or nobody to ask.
    """
    from rmqha.ops.messaging.transactions import given_up_count, open_transactions

    async def question(admin: Admin) -> tuple[BrokerAnswers[OpenTransactions], int | None]:
        told = await open_transactions(admin, topic)
        told.require_one()
        return told, await given_up_count(admin) if topic is None else 0

    told, given_up = ask_admin(namesrv, question)
    if output == "json":
        groups = {name: _json(found) for name, found in sorted(told.answers.items())}
        echo_json({"groups": groups, "silent": told.silent} | ({} if topic is not None else {"givenUp": given_up}))
    else:
        _show(told, given_up, topic)
    if told.silent:
        sys.exit(1)


def _json(found: OpenTransactions) -> dict[str, Any]:
    return {
        "open": found.waiting,
        "notInRows": found.unread,
        "isUpperBound": found.is_upper_bound,
        "rows": [
            {
                "producerGroup": row.producer_group,
                "topic": row.topic,
                "open": row.count,
                "oldestBornAtMs": row.oldest_born_at_ms,
                "oldestAgeMs": max(0, found.now_ms - row.oldest_born_at_ms),
                "checks": row.check_count,
                "producers": row.member_count,
            }
            for row in found.rows
        ],
    }


def _show(told: BrokerAnswers[OpenTransactions], given_up: int | None, topic: str | None) -> None:
    rows = [(name, found.now_ms, row) for name, found in sorted(told.answers.items()) for row in found.rows]
    rows.sort(key=lambda item: item[2].oldest_born_at_ms)
    if rows:
        cells = [
            [
                name,
                row.producer_group,
                row.topic,
                row.count,
                age_text(max(0, now_ms - row.oldest_born_at_ms)),
                row.check_count,
                row.member_count,
            ]
            for name, now_ms, row in rows[:MAX_ROWS]
        ]
        echo_table(COLUMNS, cells)
        if len(rows) > MAX_ROWS:
            click.echo(f"and {len(rows) - MAX_ROWS} other lines: see -o json")
    elif not any(found.waiting for found in told.answers.values()):
        click.echo("no transaction is open" if topic is None else f"no transaction for topic {_plain(topic)} is open")
    for name, found in sorted(told.answers.items()):
        if found.is_upper_bound:
            click.echo(f"{name}: at most {found.waiting:,} are open; this broker does not tell of which producers")
        elif found.unread:
            click.echo(f"{name}: {found.unread:,} others, younger or damaged, are not in this")
    for group in sorted({row.producer_group for _, _, row in rows if not row.member_count}):
        click.echo(f"{_plain(group)}: no producer of this group is connected to its broker, so nobody is asked")
    if given_up:
        what = "1 transaction was" if given_up == 1 else f"{given_up:,} transactions were"
        click.echo(f"{what} given up: rmqha message find --topic {CHECK_MAX_TOPIC} shows them")
    if given_up is None:
        click.echo("rmqha: how many were given up is not known: not all brokers tell, or not this account", err=True)
    for name, why in sorted(told.silent.items()):
        click.echo(f"rmqha: {name} does not tell: {why}", err=True)


def _plain(text: str) -> str:
    return printable(text, lines=False)
