"""Queries of a cluster by commands, and completion of names in a shell. Loads the client only when it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmqha.cli.options import resolve_namesrv
from rmqha.model.error import RmqhaError

if TYPE_CHECKING:
    from rmqha.client.admin import Admin

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_LIMIT_S = 0.5


def ask_admin(namesrv: str, question: Callable[[Admin], Awaitable[T]], *, sends: bool = False) -> T:
    """Result of `question` with an open Admin. Raises what the question raises. `sends`: True if it opens a producer,
    which needs an event loop."""
    from rmqha.client.admin import Admin
    from rmqha.host.asking.shell import ask_by

    async def run() -> T:
        async with Admin(namesrv) as admin:
            return await question(admin)

    if sends:
        import trio

        return trio.run(run)
    return ask_by(run)


def _names(context: click.Context, question: Callable[[Admin], Awaitable[list[str]]], incomplete: str) -> list[str]:
    """Names for completion; [] if the cluster does not answer within COMPLETION_LIMIT_S."""
    from rmqha.host.asking.shell import within

    async def bounded(admin: Admin) -> list[str]:
        with within(COMPLETION_LIMIT_S):
            return await question(admin)
        return []

    try:
        given = context.params.get("namesrv")
        found = ask_admin(given if isinstance(given, str) else resolve_namesrv(None), bounded)
    except RmqhaError:
        return []  # the command itself says why
    return [name for name in found if name.startswith(incomplete)]


def complete_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete topics that the name server knows, without the servers' own."""

    async def question(admin: Admin) -> list[str]:
        from rmqha.ops.messaging.topics import of_users

        return of_users(await admin.topics(), await admin.cluster_info())

    return _names(context, question, incomplete)


def complete_consumer_group(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete consumer groups that the brokers know."""

    async def question(admin: Admin) -> list[str]:
        from rmqha.ops.messaging.consumer_group import group_names

        told = await group_names(admin)
        return sorted({name for names in told.answers.values() for name in names})

    return _names(context, question, incomplete)


def topic_option(*, required: bool = False, text: str = "Topic.") -> Callable[[F], F]:
    """`--topic T`: the command gets `topic: str`, None if it is not required and not given."""
    return click.option("--topic", required=required, metavar="T", shell_complete=complete_topic, help=text)


def group_argument(command: F) -> F:
    """GROUP: the command gets `group: str`."""
    return click.argument("group", metavar="GROUP", shell_complete=complete_consumer_group)(command)
