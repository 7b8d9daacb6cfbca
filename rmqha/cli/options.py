"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from rmqha.cli import contexts
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address

if TYPE_CHECKING:
    from rmqha.ops.local.cluster_state import ClusterState

F = TypeVar("F", bound=Callable[..., Any])
Callback = Callable[[click.Context, click.Parameter, Any], Any]

DEFAULT_NAMESRV = "127.0.0.1:9876"

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Ask the question on standard error unless `yes`. Raises UsageError, which begins with `refusal`, if the answer is
    no, and if standard input ends without one, as in a script."""
    if yes:
        return
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)
        raise UsageError(f"{refusal}: there was no answer on standard input; --yes asks nothing") from None
    raise UsageError(refusal)


def resolve_namesrv(given: str | None) -> str:
    """The name servers to ask, "host:port" joined by ";": as given, else those of the cluster directory, else the
    quick start's port. Raises UsageError for text that is no address list."""
    if given is None and (context := contexts.default_context()) is not None:
        return context.namesrv or find_cluster(None, None, None).namesrv_addresses or DEFAULT_NAMESRV
    if given is None:
        from rmqha.ops.local.cluster_state import ClusterState

        state = ClusterState.find(None)
        return (state.namesrv_addresses if state else "") or DEFAULT_NAMESRV
    for address in given.split(";"):
        try:
            parse_address(address)
        except ValueError as error:
            raise UsageError(f"--namesrv: {error}") from None
    return given


def _namesrv(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    return resolve_namesrv(value)


def namesrv_option(command: F) -> F:
    """`--namesrv HOST:PORT`: the command gets `namesrv: str`, resolved."""
    return cast(F, namesrv_parameter(command, _namesrv))


def namesrv_parameter(command: Any, callback: Callback | None = None) -> Any:
    """`--namesrv HOST:PORT`, with the given value, or with that of the callback."""
    return click.option(
        "--namesrv",
        metavar="HOST:PORT",
        callback=callback,
        help=f"Name server; default: $RMQHA_NAMESRV, the context in use, the cluster directory, {DEFAULT_NAMESRV}.",
    )(command)


def resolve_controllers(given: str | None, namesrv: str | None = None) -> list[str]:
    """The controllers to ask: as given, joined by ";", else those of the cluster that `namesrv` leads to, else those of
    the cluster directory. Raises UsageError if there are none, or for text that is no address list."""
    if given is None:
        context = remote_context(namesrv, None, None)
        if context is None or not context.controller:
            return find_cluster(namesrv, None, None).controller_addresses
        given = context.controller
    for address in given.split(";"):
        try:
            parse_address(address)
        except ValueError as error:
            raise UsageError(f"--controller: {error}") from None
    return given.split(";")


def controllers_option(command: F) -> F:
    """`--controller HOST:PORT`, `--namesrv HOST:PORT`: the command gets `controllers: list[str]`, resolved."""

    @wraps(command)
    def found(*args: Any, controllers: str | None, namesrv: str | None, **others: Any) -> Any:
        return command(*args, controllers=resolve_controllers(controllers, namesrv), **others)

    return cast(F, controllers_parameters(found))


def controllers_parameters(command: Any) -> Any:
    """`--controller HOST:PORT` and `--namesrv HOST:PORT` as they are given, in the parameters `controllers` and
    `namesrv`."""
    made = click.option(
        "--controller",
        "controllers",
        metavar="HOST:PORT",
        help="Controllers, joined by ';'; default: those of the context in use, else of the cluster directory.",
    )(command)
    text = "Name servers that lead to the controllers; default: $RMQHA_NAMESRV, else the context in use."
    return click.option("--namesrv", metavar="HOST:PORT", help=text)(made)


def refuse_static_group(group: str) -> None:
    """Raise UsageError for a static group of the cluster here, unless `--controller` or `--namesrv` names other
    servers."""
    from rmqha.ops.local.cluster_state import ClusterState

    source = click.get_current_context().get_parameter_source
    given = ParameterSource.COMMANDLINE in (source("controllers"), source("namesrv"))
    state = None if given else ClusterState.find(None)
    if state is not None:
        state.refuse_static(group)


def remote_context(namesrv: str | None, controller: str | None, directory: Path | None) -> contexts.Context | None:
    """The cluster elsewhere that the options name, else $RMQHA_NAMESRV, else the context in use; None for one of this
    machine. Raises UsageError for addresses that are none."""
    if directory is not None and (namesrv or controller):
        raise UsageError("--directory names a cluster of this machine, --namesrv and --controller one elsewhere")
    if namesrv or controller:
        given = contexts.Context(namesrv or "", controller or "")
        given.check()
        return given
    return contexts.default_context() if directory is None else None


def find_cluster(namesrv: str | None, controller: str | None, directory: Path | None) -> ClusterState:
    """The cluster to ask: as the options say, else $RMQHA_NAMESRV, else the context in use, else the cluster directory.

    Raises UsageError if there is none, UnreachableError if one elsewhere does not answer."""
    from rmqha.ops.local.cluster_state import ClusterState

    context = remote_context(namesrv, controller, directory)
    if context is None:
        return ClusterState.require(directory)
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.remote_cluster import find_remote

    name_servers, controllers = (tuple(filter(None, text.split(";"))) for text in (context.namesrv, context.controller))
    return ask_by(find_remote, name_servers, controllers)


def cluster_options(command: F) -> F:
    """`--namesrv`, `--controller`, `--directory`: the command gets `state: ClusterState`."""

    @wraps(command)
    def found(*args: Any, namesrv: str | None, controller: str | None, directory: Path | None, **others: Any) -> Any:
        return command(*args, state=find_cluster(namesrv, controller, directory), **others)

    return cast(F, place_options(found))


def cluster_or_none_options(command: F) -> F:
    """`--namesrv`, `--controller`, `--directory`: the command gets `state: ClusterState | None`, None where no cluster
    is known: it then takes addresses only."""

    @wraps(command)
    def found(*args: Any, namesrv: str | None, controller: str | None, directory: Path | None, **others: Any) -> Any:
        return command(*args, state=cluster_or_none(namesrv, controller, directory), **others)

    return cast(F, place_options(found))


def cluster_or_none(namesrv: str | None, controller: str | None, directory: Path | None) -> ClusterState | None:
    """The cluster to ask as of `find_cluster`, None where none is known."""
    from rmqha.ops.local.cluster_state import ClusterState

    is_remote = namesrv or controller or (directory is None and contexts.default_context() is not None)
    return find_cluster(namesrv, controller, directory) if is_remote else ClusterState.find(directory)


def place_options(command: Any) -> Any:
    """`--namesrv`, `--controller`, `--directory`, with the given values."""
    made: Any = directory_option(command)
    made = click.option("--controller", metavar="HOST:PORT", help="Controllers of a cluster elsewhere, joined by ';'.")(
        made
    )
    text = "Name servers of a cluster elsewhere; default: $RMQHA_NAMESRV, else the context in use."
    return click.option("--namesrv", metavar="HOST:PORT", help=text)(made)


def bootstrap_options(command: Any) -> Any:
    """`--namesrv`, `--controller`, `--directory`, with the given values: the servers at which a survey begins."""
    made: Any = directory_option(command)
    begin = "to begin with, joined by ';'"
    made = click.option("--controller", metavar="HOST:PORT", help=f"Controllers {begin}.")(made)
    text = f"Name servers {begin}; default: $RMQHA_NAMESRV, else the context in use."
    return click.option("--namesrv", metavar="HOST:PORT", help=text)(made)


def output_option(command: F) -> F:
    """`-o table|json`: the command gets `output: str`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format.",
    )(command)


def directory_option(command: F) -> F:
    """`--directory DIR`: the command gets `directory: Path | None`; see `ClusterState.find`."""
    return click.option(
        "--directory",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Cluster directory; default: $RMQHA_DIRECTORY, else that of the last `rmqha up` here.",
    )(command)


def complete_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of the cluster directory's nodes; none without a cluster."""
    return _complete(lambda state: list(state.nodes), context, incomplete)


def complete_group(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of the cluster's broker groups."""
    return _complete(lambda state: state.groups, context, incomplete)


def complete_node_or_group(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of brokers and other nodes, and of groups."""
    return _complete(lambda state: [*state.groups, *state.nodes], context, incomplete)


def _complete(names: Callable[[ClusterState], list[str]], context: click.Context, incomplete: str) -> list[str]:
    from rmqha.ops.local.cluster_state import ClusterState

    try:
        state = ClusterState.find(context.params.get("directory"))
    except UsageError:
        return []  # a directory that cannot be read: the command itself says so
    return [name for name in names(state) if name.startswith(incomplete)] if state is not None else []


def echo_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def named_values(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Values by name, of an option NAME=VALUE that may be repeated. Raises UsageError, with the example, for other
    texts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text!r} must be NAME=VALUE, for instance {example}")
        found[name] = value
    return found


def storage_options(texts: Iterable[str]) -> dict[str, str]:
    """Values of `--storage-option`, as fsspec takes them. Raises UsageError."""
    return named_values(texts, "--storage-option", "endpoint_url=http://minio:9000")
