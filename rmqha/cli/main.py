"""The `rmqha` command: a table of names, loaded only when used, and the one place that turns errors into a sentence.

A server must start fast and stay small, so this module imports nothing but click: `rmqha broker` loads no rich, numpy
or pyspark. Commands of the packages above (namesrv, controller) arrive by the entry point group "rmqha.commands".
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rmqha import __version__
from rmqha.cli.safe_text import safe_streams
from rmqha.model.error import BrokenInvariantError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError

WITHOUT_ASSERTIONS = "Python runs without assertions (-O, PYTHONOPTIMIZE), which guard the log; start it without that"

OUTPUT = "the output"
NO_THREAD = "can't start new thread"
"""Text of Python's RuntimeError where a limit, or want of memory, allows no further thread."""

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("rmqha.cli.local.up:up", "Start a local cluster and wait until it is healthy."),
    "down": ("rmqha.cli.local.nodes:down", "Stop every node of the local cluster."),
    "status": ("rmqha.cli.local.status:status", "Show the nodes of a cluster; exit code 1 if one is not well."),
    "health": ("rmqha.cli.health.command:health", "Tell whether all is well, or each reason why not with its fix."),
    "top": ("rmqha.cli.top.command:top", "Show the replicas live; switch and maintenance by a key."),
    "start": ("rmqha.cli.local.nodes:start", "Start a node again."),
    "stop": ("rmqha.cli.local.nodes:stop", "Stop a node in order (SIGTERM)."),
    "restart": ("rmqha.cli.local.restart:restart", "Restart nodes one after the other, while the rest serves."),
    "kill": ("rmqha.cli.local.nodes:kill", "Kill a node (SIGKILL)."),
    "logs": ("rmqha.cli.local.nodes:logs", "Show the log of a node."),
    "purge": ("rmqha.cli.local.nodes:purge", "Delete the directory of a stopped local cluster."),
    "send": ("rmqha.cli.messaging.send:send", "Send the lines or JSON records of a file to a topic."),
    "receive": ("rmqha.cli.messaging.receive:receive", "Print the messages of a topic."),
    "consumer": (
        "rmqha.cli.messaging.consumer:consumer",
        "Consumer groups: list, describe, lag, members, reset, skip, create, alter, delete.",
    ),
    "message": ("rmqha.cli.messaging.message:message", "Messages: get one, find, track, resend."),
    "timers": ("rmqha.cli.messaging.timers:timers", "Show the timer messages that wait, by the minute."),
    "transactions": (
        "rmqha.cli.admin.transactions:transactions",
        "Show the transactions that their producers have not ended.",
    ),
    "dlq": ("rmqha.cli.messaging.dlq:dlq", "Dead letters: list, send to their group again, export."),
    "elect": ("rmqha.cli.local.elect:elect", "Hand the mastership of a group to another replica."),
    "join": ("rmqha.cli.local.join:join", "Add a replica to a running group, or take a drained one back."),
    "drain": ("rmqha.cli.local.drain:drain", "Take a replica out of the set, so that it may be stopped."),
    "maintenance": (
        "rmqha.cli.local.maintenance:maintenance",
        "Work on a replica: others lead, its absence is no alarm.",
    ),
    "remove": ("rmqha.cli.local.remove:remove", "Stop counting a replica: clean it and lower totalReplicas."),
    "explain": ("rmqha.cli.admin.explain:explain", "Tell why a group has the master it has, or none."),
    "explain-wait": (
        "rmqha.cli.admin.explain_wait:explain_wait",
        "Tell for whom sends wait right now, and how that ends.",
    ),
    "describe": ("rmqha.cli.admin.describe:describe", "Tell what a cluster, group, broker or topic is and promises."),
    "use": ("rmqha.cli.settings.context:use", "Choose the cluster that commands ask when none is named."),
    "context": ("rmqha.cli.settings.context:context", "Saved names of clusters elsewhere: ls, add, rm."),
    "config": ("rmqha.cli.settings.command:config", "Show, compare and change the keys of running nodes."),
    "topic": ("rmqha.cli.admin.topic:topic", "List, describe, make, change and delete topics."),
    "acl": ("rmqha.cli.admin.acl:acl", "Users and policies of brokers: list, make, change, take over."),
    "group": ("rmqha.cli.admin.group:group", "Change what the controllers keep about a broker group."),
    "quorum": ("rmqha.cli.admin.quorum:quorum", "The controllers' own group: show, add, remove, transfer, snapshot."),
    "upgrade": ("rmqha.cli.admin.upgrade:upgrade", "Which release runs where, and in which order to install another."),
    "fork": ("rmqha.cli.local.fork:fork", "Replicas that refuse to follow: ls, show, repair with a copy kept."),
    "doctor": ("rmqha.cli.diagnosis.doctor:doctor", "Examine nodes and their machine: findings, each with its fix."),
    "debug": ("rmqha.cli.diagnosis.debug:debug", "Collect what support needs: one archive without secrets."),
    "selftest": ("rmqha.cli.diagnosis.selftest:selftest", "Measure what a disk or the way to a node costs."),
    "history": ("rmqha.cli.admin.history:history", "Show what happened on all nodes, in order of time."),
    "bench": ("rmqha.cli.bench.command:bench", "Measure latency at a fixed rate, reads, and how slaves follow."),
    "drill": (
        "rmqha.cli.diagnosis.drill:drill",
        "Inject faults into a scratch cluster under load, and audit its logs.",
    ),
    "log": (
        "rmqha.cli.storage.log:log",
        "Inspect the files of a message store: ls, stat, cat, grep, export, verify, kept.",
    ),
    "epochs": ("rmqha.cli.storage.epochs:epochs", "Which master epoch wrote which part of a log; where two logs part."),
    "migrate": ("rmqha.cli.storage.migrate:migrate", "Prove that a group may become static or get a controller."),
    "fsck": ("rmqha.cli.storage.fsck:fsck", "Check a message store, and mend it with --repair."),
    "spark": ("rmqha.cli.storage.spark:spark", "The log as a table: query, archive, restore."),
    "generate": (
        "rmqha.cli.generate.command:generate",
        "Files for Prometheus, Grafana, systemd, Kubernetes, Spark, shells.",
    ),
    "broker": ("rmqha.cli.local.broker:broker", "Run a broker: one replica of a group."),
    "proxy": ("rmqha.cli.local.proxy:proxy", "Run Apache's proxy, for clients that speak gRPC."),
}
"""Own commands: where each lives, and the help line, so that `--help` need not load them."""

SERVERS = {
    "namesrv": "Run a name server, with or without an embedded controller.",
    "controller": "Run a controller.",
}
"""Help lines of the commands that come by entry point."""

OTHER_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {("migrate", "acl"): ("acl", "migrate")}
"""Commands by other words under which users may search them, unless the second word is a file's name here."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Local cluster": ("up", "down", "status", "start", "stop", "restart", "kill", "logs", "purge"),
    "Messages": ("send", "receive", "topic", "consumer", "message", "timers", "transactions", "dlq"),
    "Watch": ("health", "top", "history", "explain", "explain-wait", "describe"),
    "Change": (
        "elect",
        "maintenance",
        "join",
        "drain",
        "remove",
        "config",
        "group",
        "acl",
        "quorum",
        "upgrade",
        "fork",
    ),
    "Which cluster": ("use", "context"),
    "Files of a store": ("log", "spark", "epochs", "fsck", "migrate"),
    "Test and diagnose": ("doctor", "selftest", "bench", "drill", "debug"),
    "Servers and their surroundings": ("broker", "namesrv", "controller", "proxy", "generate"),
}
"""Headings of `--help`, and the commands below each: every command once."""


def help_lines() -> dict[str, str]:
    """Each command's line in `--help`, by name; no command is loaded for it."""
    return {name: text for name, (_, text) in COMMANDS.items()} | SERVERS


class Utf8Text(click.types.StringParamType):
    """Parameter type of text. A byte of the command line that is no UTF-8 arrives as a surrogate, and is refused."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8 text", param, ctx)
        return text


UTF8_TEXT = Utf8Text()


def take_only_text(command: click.Command) -> None:
    """Let each option and argument for text, here and in the commands below, refuse bytes that are no UTF-8. Names of
    files are bytes and stay so."""
    for parameter in command.params:
        if type(parameter.type) is click.types.StringParamType:
            parameter.type = UTF8_TEXT
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        take_only_text(below)


class LazyGroup(click.Group):
    """Group of all commands: it finds one in COMMANDS, else among the entry points, and imports only that one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *SERVERS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            command: object = getattr(importlib.import_module(module), name)
        else:
            # costs a broker's start 20 ms, which does not need it
            from importlib.metadata import entry_points

            found = entry_points(group="rmqha.commands", name=cmd_name)
            if not found:
                return None
            command = next(iter(found)).load()
        assert isinstance(command, click.Command)
        take_only_text(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = help_lines()
        width = max(map(len, lines))
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), lines[name]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and help lines from the tables: no command is loaded for it."""
        from click.shell_completion import CompletionItem

        lines = help_lines()
        names = [CompletionItem(name, help=lines[name]) for name in lines if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = tuple(args[:2])
        if words in OTHER_NAMES and not Path(args[1]).exists():
            args = [*OTHER_NAMES[words], *args[2:]]
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise UsageError(
                f"there is no command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}; see rmqha --help"
            )
        return super().resolve_command(ctx, args)


def nearest(given: str, known: Sequence[str]) -> str:
    """The end ", did you mean …?" of a sentence, "" if no known name is near."""
    import difflib

    near = difflib.get_close_matches(given, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rmqha")
@click.option(
    "--security",
    "security_file",
    envvar="RMQHA_SECURITY",
    type=UTF8_TEXT,
    metavar="FILE",
    help="How to ask secured servers: tls.enable, tls.client.*, accessKey, secretKey.",
)
def cli(security_file: str | None) -> None:
    """Broker groups with high availability that speak Apache RocketMQ 5's bytes."""
    click.get_current_context().with_resource(safe_streams())
    is_server = click.get_current_context().invoked_subcommand in ("broker", *SERVERS)
    if not is_server:
        ignore_stderr_errors()
    if security_file is None and not is_server:
        from rmqha.cli import contexts

        used = contexts.default_context()
        security_file = used.security if used is not None else ""
    if security_file:
        from rmqha.host.access.client_security import for_client
        from rmqha.host.access.process_security import ambient

        ambient.set(for_client(security_file))


class Output(FileIO):
    """Standard output. An error names it, or it would read as one of a node's disk; it is raised once."""

    has_failed = False

    def write(self, data: Any) -> int:
        if self.has_failed or not data:
            # nothing is written by click, which asks so whether a stream takes bytes
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.has_failed = True
            raise OSError(error.errno, error.strerror, OUTPUT) from None


class ErrorOutput(FileIO):
    """Standard error. A command does not fail because its messages cannot be written: else an `up` would be undone for
    want of a reader. A server's log there counts its losses, so its errors are raised."""

    may_be_lost = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            if not self.may_be_lost:
                raise
            return len(data)


def ignore_stderr_errors() -> None:
    """Drop, from now on, messages that cannot be written to standard error."""
    buffer = getattr(sys.stderr, "buffer", None)
    raw_stream = getattr(buffer, "raw", buffer)
    if isinstance(raw_stream, ErrorOutput):
        raw_stream.may_be_lost = True


def print_anything() -> None:
    """Let both outputs print escapes for characters that a terminal's encoding lacks, and for surrogates of file
    names."""
    for name, kind in (("stdout", Output), ("stderr", ErrorOutput)):
        stream = getattr(sys, name)
        if not isinstance(stream, TextIOWrapper):
            continue
        stream.reconfigure(errors="backslashreplace")
        is_direct = isinstance(stream.buffer, FileIO)  # PYTHONUNBUFFERED
        if is_direct or isinstance(stream.buffer, BufferedWriter):
            raw = kind(stream.fileno(), "w", closefd=False)
            buffer = raw if is_direct else BufferedWriter(raw)
            line_buffering = stream.line_buffering
            made = TextIOWrapper(
                buffer, stream.encoding, stream.errors, line_buffering=line_buffering, write_through=is_direct
            )
            setattr(sys, name, made)


def first_error(error: BaseException) -> BaseException:
    """The error to report: the first one of an exception group, in which a nursery wraps what its tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


NUMBERS = {"integer": " is not a whole number", "float": " is not a number"}
"""Ends of sentences for what click calls no valid integer range."""


def usage_sentence(error: click.ClickException) -> str:
    """The sentence for a usage error; click's own text has four lines."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = re.sub(r" is not a valid (integer|float)( range)?$", lambda found: NUMBERS[found[1]], message)
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "rmqha"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"


def exit_code(error: BaseException) -> int | None:
    """Exit code for an error: 1 something is wrong, 2 could not ask or wrong usage, 130 interrupted; None for a bug."""
    match error:
        case UsageError() | UnreachableError() | RemoteProtocolError():
            return 2
        case BrokenInvariantError():
            return None
        case RmqhaError() | OSError() | MemoryError():
            return 1
        case RuntimeError() if str(error) == NO_THREAD:
            return 1
        case KeyboardInterrupt():
            return 130
        case _:
            return None


def sentence(error: BaseException) -> str:
    """The error as a sentence."""
    match error:
        case OSError(filename=filename) if filename == OUTPUT:
            return f"cannot write {OUTPUT}: {error.strerror}"
        case OSError(strerror=str() as reason):
            from rmqha.store.meta.problem import advice, is_no_room

            place = "" if error.filename is None else f"{error.filename}: "
            return f"{place}{reason}{advice(error) if is_no_room(error) else ''}"
        case MemoryError():
            return "there is no memory left; raise the limits of memory (ulimit -v, MemoryMax of its unit, memory.max)"
        case RuntimeError() if str(error) == NO_THREAD:
            return (
                "cannot start a thread; raise the limits of processes (ulimit -u, TasksMax of its unit, pids.max) and"
                " of memory (ulimit -v)"
            )
        case _:
            return str(error) or "interrupted"


def main(args: Sequence[str] | None = None) -> NoReturn:
    print_anything()
    with safe_streams():
        try:
            _run(args)
        finally:
            flush_output()


def print_error(text: str) -> None:
    """Print an error to standard error. If that fails, as by a full disk or a reader that is gone, the exit code stays
    that of the error."""
    ignore_stderr_errors()
    click.echo(text, err=True)


def flush_output() -> None:
    """Flush the outputs now: at its end the interpreter would report an error by a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        print_error(f"rmqha: {sentence(error)}")
        sys.exit(1)


def _run(args: Sequence[str] | None) -> NoReturn:
    if not __debug__:
        print_error(f"rmqha: {WITHOUT_ASSERTIONS}")
        sys.exit(2)
    try:
        Path.cwd()
    except FileNotFoundError:  # modules of some commands could not even be imported
        print_error("rmqha: the current directory was removed; change to one that is there")
        sys.exit(1)
    try:
        cli.main(args=args, prog_name="rmqha", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            print_error("rmqha: interrupted")
        sys.exit(130)
    except click.ClickException as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
        else:
            print_error(f"rmqha: {usage_sentence(error)}")
        sys.exit(2)
    except BaseException as wrapped:
        cause = first_error(wrapped)
        code = exit_code(cause)
        if code is None:
            raise
        print_error(f"rmqha: {sentence(cause)}")
        sys.exit(code)
    sys.exit(0)


if __name__ == "__main__":
    main()
