"""`rmqha debug bundle`: one archive for whoever is to help."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmqha import __version__
from rmqha.cli import contexts
from rmqha.cli.options import directory_option, echo_json, output_option, resolve_namesrv
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState

if TYPE_CHECKING:
    from rmqha.cli.diagnosis.bundle import Bundle


@click.group()
def debug() -> None:
    """Collect what is needed to find out what happened."""


@debug.command("bundle", epilog="Example: rmqha debug bundle --out /tmp/for-support.tar.gz")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Where; default: rmqha-bundle-TIME.tar.gz."
)
@directory_option
@click.option(
    "--namesrv", metavar="HOST:PORT",
    help="Also ask the nodes of these name servers; default: $RMQHA_NAMESRV, else the context in use.",
)  # fmt: skip
@click.option("--max-mb", type=click.IntRange(1, 1024), default=32, show_default=True, help="Size before compression.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 60), default=5.0, show_default=True, help="Seconds for an answer."
)
@output_option
@click.pass_context
def bundle(
    context: click.Context,
    out: Path | None,
    directory: Path | None,
    namesrv: str | None,
    max_mb: int,
    timeout: float,
    output: str,
) -> None:
    """Write what support needs of the cluster into one archive: of the local one, or the one behind --namesrv,
    $RMQHA_NAMESRV or the context in use.

    Configurations, versions, status, describe, explain, history, epochs, the ends of logs, identity, epoch and
    checkpoint files, the doctor's findings. No messages, no accounts: values of keys whose names look like those of
    secrets, and the contents of account files, are removed. Its manifest.json tells what is missing, and why.

    Exit code: 0 written, 1 cannot be written, 2 nothing to ask and nothing to take.
    """
    out = out or Path(f"rmqha-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if out.exists():
        raise UsageError(f"{out} is there already; name another --out")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out.absolute().parent} is no directory; name another --out")
    used = contexts.default_context() if directory is None and namesrv is None else None
    if used is not None:
        state, namesrv = None, resolve_namesrv(None)
    else:
        state = ClusterState.find(directory) if directory is None else ClusterState.require(directory)
    if state is None and namesrv is None:
        raise UsageError("no cluster is known here; name its --directory, or its --namesrv")
    click.echo(f"collecting what {namesrv if state is None else state.name} tells and keeps", err=True)
    configs = [state.config_path(name) for name in state.nodes] if state else []
    security = context.find_root().params.get("security_file") or (used.security if used is not None else "")
    if security:
        configs.append(Path(security))
    if state is not None:
        configs.append(Path(state.cluster_file))
    import trio

    from rmqha.cli.diagnosis.bundle import Bundle, known_secrets
    from rmqha.cli.diagnosis.collection import collect

    made = Bundle(max_mb * 1_000_000, known_secrets(configs))
    trio.run(collect, made, state, namesrv, timeout, ["--security", security] if security else [])
    about = {"rmqha": __version__, "createdAt": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "cluster": state and state.name}
    try:
        made.write(out, about)
    except OSError as error:
        raise RmqhaError(f"cannot write {out}: {error.strerror or error}; name another --out") from None
    _tell(out, made, output)


def _tell(out: Path, made: Bundle, output: str) -> None:
    found: dict[str, Any] = {"file": str(out), "bytes": out.stat().st_size, "files": len(made.files)}
    if output == "json":
        echo_json(found | {"missing": made.missing})
        return
    for item in made.missing[:10]:
        click.echo(f"not taken: {item['path']}: {item['reason']}", err=True)
    if len(made.missing) > 10:
        click.echo(f"not taken: {len(made.missing) - 10} more, see manifest.json", err=True)
    click.echo(f"{out}: {len(made.files)} files, {found['bytes'] / 1e6:.1f} MB; look into it before you send it")
