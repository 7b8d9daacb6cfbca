"""`rmqha doctor`: nodes and their machine examined; each finding with its fix."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from rmqha.cli.options import directory_option, echo_json, output_option, remote_context
from rmqha.cli.render import Text, console
from rmqha.model.error import UsageError
from rmqha.ops.finding import Finding, Verdict, counts_sentence, in_order, merged
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind

STYLES = {Verdict.WRONG: "bold red", Verdict.WARN: "yellow", Verdict.OK: "green"}


@click.command(epilog="Example: rmqha doctor; rmqha doctor -c conf/broker.conf; rmqha doctor -o json | jq .findings")
@click.argument("node", required=False)
@click.option(
    "-c", "--config", "config", type=click.Path(path_type=Path), metavar="FILE",
    help="A server's properties file, or a cluster file, instead of a local cluster.",
)  # fmt: skip
@click.option(
    "--namesrv",
    metavar="HOST:PORT",
    help="Name servers of a cluster elsewhere; default: $RMQHA_NAMESRV, else the context in use.",
)
@click.option("--controller", metavar="HOST:PORT", help="Controllers of a cluster elsewhere, joined by ';'.")
@directory_option
@click.option("--spark", is_flag=True, help="Also examine Java and pyspark.")
@click.option("--write/--no-write", default=True, show_default=True, help="Measure what a sync costs (about a second).")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings too.")
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=5.0, show_default=True, help="Seconds for answers.")
@click.option("-v", "--verbose", is_flag=True, help="Also tell what is well.")
@output_option
def doctor(
    node: str | None,
    config: Path | None,
    namesrv: str | None,
    controller: str | None,
    directory: Path | None,
    spark: bool,
    write: bool,
    strict: bool,
    timeout: float,
    verbose: bool,
    output: str,
) -> None:
    """Examine the nodes of a cluster (or NODE), running or not, and this machine; tell each fault with its fix.

    Of a cluster elsewhere: what its nodes answer, their clocks, addresses and keys; the rest is seen on their machines.
    Ports, processes, answers, clocks, what a sync costs, descriptors, disks, memory, advertised addresses, keys,
    identity files against the controllers' record, epoch files against the log. Nothing is changed.

    Exit code: 0 nothing is wrong (warnings count only with --strict), 1 something is, 2 nothing to examine.
    """
    if config is not None and (node or directory or namesrv or controller):
        raise UsageError("-c FILE examines what the file says; leave NODE, --directory and addresses out")
    place = None if config is not None else remote_context(namesrv, controller, directory)
    if place is not None:
        click.echo(f"examining what {place.namesrv or place.controller} tells of", err=True)
        from rmqha.cli.diagnosis.examination import examine_remote

        found = examine_remote(place.namesrv, place.controller, node, timeout, spark=spark)
    else:
        state = ClusterState.require(directory) if config is None else None
        if state is not None:
            names = [state.node(node).name] if node is not None else state.nodes
            click.echo(f"examining {', '.join(names)}", err=True)
        from rmqha.cli.diagnosis.checks.node_under_test import of_cluster, of_file
        from rmqha.cli.diagnosis.examination import examine

        nodes = of_cluster(state, node, check_file) if state is not None else of_file(Path(str(config)), check_file)

        full = node is None and (config is None or len(nodes) > 1)
        found = examine(nodes, timeout, write=write, spark=spark, full=full)
    worst = Verdict.WARN if strict else Verdict.WRONG
    is_wrong = any(finding.verdict <= worst for finding in found.findings)
    if output == "json":
        echo_json(
            {
                "wrong": is_wrong,
                "nodes": [node_under_test.name for node_under_test in found.nodes],
                "findings": [finding.as_dict() for finding in in_order(found.findings)],
            }
        )
    else:
        show(found.findings, verbose)
        if directory is not None and is_wrong:
            click.echo(f"the rmqha commands above are meant with RMQHA_DIRECTORY={directory}")
    if is_wrong:
        sys.exit(1)


def check_file(kind: NodeKind, path: Path) -> None:
    """Let the server's own parser read the file; packages above this one are imported by name. Raises RmqhaError."""
    from rmqha.cli.main import cli

    command = cli.get_command(click.Context(cli), kind.value)
    if command is None:
        raise UsageError(f"the command {kind.value} is not installed; run pip install rmqha again")
    # the security of the server that is read must not become ours
    contextvars.copy_context().run(command.main, ["-c", str(path), "--check"], standalone_mode=False)


def show(findings: Sequence[Finding], verbose: bool) -> None:
    """Print the findings, the worst first, each with its fix below it."""
    out = console()
    for finding in merged(in_order(findings)):
        if finding.verdict is Verdict.OK and not verbose:
            continue
        line = Text(f"{finding.verdict.name:<5} ", STYLES[finding.verdict])
        line.append(f"{finding.subject} · {finding.check}: {finding.sentence}")
        out.print(line)
        if finding.fix:
            out.print(Text(f"      fix: {finding.fix}"))
    hidden = "" if verbose or not any(item.verdict is Verdict.OK for item in findings) else "; -v tells these too"
    out.print(f"{counts_sentence(findings)}{hidden}")
