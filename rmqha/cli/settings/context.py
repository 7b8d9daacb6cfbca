"""`rmqha use`, `rmqha context`: which cluster the commands ask when none is named."""

from __future__ import annotations

from dataclasses import asdict

import click

from rmqha.cli import contexts
from rmqha.cli.options import echo_json, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.host.text_file import expanded
from rmqha.model.error import UsageError

COLUMNS = [("", "left"), ("CONTEXT", "left"), ("NAMESRV", "left"), ("CONTROLLER", "left"), ("SECURITY", "left")]


def complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of saved contexts."""
    try:
        return [name for name in contexts.read().saved if name.startswith(incomplete)]
    except UsageError:
        return []  # the command itself says why


@click.command(epilog="Example: rmqha use prod")
@click.argument("name", metavar="[CONTEXT]", required=False, shell_complete=complete_context)
@click.option("--none", "ended", is_flag=True, help="Use none: the cluster directory's cluster is asked again.")
def use(name: str | None, ended: bool) -> None:
    """Let commands ask the cluster of CONTEXT; without it, say which one they ask.

    An option of a command (--namesrv, --controller, --directory) and $RMQHA_NAMESRV win over it.
    """
    known = contexts.read()
    if ended and name is not None:
        raise UsageError("--none stands alone")
    if name is not None or ended:
        if name is not None:
            known.require(name)
        known.current = name or ""
        contexts.write(known)
    used = known.in_use
    if used is None:
        click.echo("no context is in use: commands ask the cluster of the cluster directory")
    else:
        click.echo(f"{known.current}: {used.namesrv or used.controller}")


@click.group()
def context() -> None:
    """Saved contexts: names for clusters elsewhere."""


@context.command("ls", epilog="Example: rmqha context ls")
@output_option
def ls_command(output: str) -> None:
    """List the contexts; * is the one in use."""
    known = contexts.read()
    if output == "json":
        saved = {name: asdict(item) for name, item in known.saved.items()}
        echo_json({"current": known.current or None, "contexts": saved})
        return
    rows = [
        ["*" if name == known.current else "", name, item.namesrv, item.controller, item.security]
        for name, item in sorted(known.saved.items())
    ]
    if rows:
        echo_table(COLUMNS, rows)


@context.command("add", epilog="Example: rmqha context add prod --namesrv 10.0.0.1:9876 --security ~/prod.conf")
@click.argument("name", metavar="CONTEXT")
@click.option("--namesrv", default="", metavar="HOST:PORT", help="Name servers, joined by ';'.")
@click.option("--controller", default="", metavar="HOST:PORT", help="Controllers, joined by ';'.")
@click.option("--security", default="", metavar="FILE", help="How to ask them, as for `rmqha --security`.")
def add_command(name: str, namesrv: str, controller: str, security: str) -> None:
    """Save CONTEXT, in the place of one of that name."""
    if not name or name.startswith("-"):
        raise UsageError(f"{name!r} is no name for a context")
    made = contexts.Context(namesrv, controller, _absolute(security))
    made.check()
    known = contexts.read()
    known.saved[name] = made
    contexts.write(known)
    click.echo(f"saved {name}; rmqha use {name} lets commands ask it")


def _absolute(file: str) -> str:
    """The absolute path of a file. UsageError if it cannot be read."""
    if not file:
        return ""
    found = expanded(file).absolute()
    if not found.is_file():
        raise UsageError(f"--security: there is no file {found}")
    return str(found)


@context.command("rm", epilog="Example: rmqha context rm prod")
@click.argument("name", metavar="CONTEXT", shell_complete=complete_context)
def rm_command(name: str) -> None:
    """Forget CONTEXT."""
    known = contexts.read()
    known.require(name)
    del known.saved[name]
    if known.current == name:
        known.current = ""
    contexts.write(known)
    click.echo(f"forgot {name}")
