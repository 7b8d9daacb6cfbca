"""`rmqha doctor`: nodes and their machine examined; each finding with its fix."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
import trio
from rich.text import Text

from rmqha.cli.contexts import Context
from rmqha.cli.diagnosis.checks.answers import ANNOUNCED, Answers, ask_all
from rmqha.cli.diagnosis.checks.elsewhere import examine_elsewhere
from rmqha.cli.diagnosis.checks.files import Papers, check_config, check_groups, read_papers
from rmqha.cli.diagnosis.checks.machine import (
    check_descriptors,
    check_disk,
    check_memory,
    check_ports,
    check_process,
    check_syncs,
)
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest, of_cluster, of_file
from rmqha.cli.diagnosis.checks.security import check_data, check_security
from rmqha.cli.options import directory_option, echo_json, elsewhere, output_option
from rmqha.cli.render import console
from rmqha.model.error import UsageError
from rmqha.ops.finding import Finding, Verdict, count_words, in_order, merged, ok, wrong
from rmqha.ops.local.cluster_state import ClusterState

STYLES = {Verdict.WRONG: "bold red", Verdict.WARN: "yellow", Verdict.OK: "green"}


@dataclass(slots=True)
class Examination:
    """Everything that was found, in no order of weight."""

    nodes: list[NodeUnderTest]
    findings: list[Finding]
    answers: dict[str, Answers]


def examine(
    nodes: list[NodeUnderTest], timeout_s: float, *, write: bool = True, spark: bool = False, full: bool = True
) -> Examination:
    """`write` measures syncs, in a file that is removed. `full`: these are all nodes of a cluster, so that one that
    does not run while others do is missing."""
    others_run = full and any(node_under_test.running for node_under_test in nodes)
    findings: list[Finding] = []
    papers: dict[str, Papers] = {}
    for node_under_test in nodes:
        papers[node_under_test.name] = Papers()
        for check, step in (
            ("process", partial(_process, node_under_test, others_run)),
            ("config", partial(check_config, node_under_test)),
            ("security", partial(check_security, node_under_test)),
            ("data", partial(check_data, node_under_test)),
            ("disk", partial(check_disk, node_under_test)),
            ("descriptors", partial(check_descriptors, node_under_test)),
            ("store", partial(_papers, node_under_test, papers)),
        ):
            findings += guarded(node_under_test.name, check, step)
    findings += guarded("machine", "ports", partial(check_ports, nodes))
    findings += check_groups(nodes, papers)
    if write:
        findings += guarded("machine", "sync", partial(check_syncs, nodes))
    file_bytes = max((item.broker.mapped_file_size_commit_log for item in nodes if item.broker), default=0)
    findings += check_memory([node_under_test for node_under_test in nodes if node_under_test.running], file_bytes)
    answers, told = trio.run(ask_all, nodes, papers, timeout_s)
    announced = {finding.subject for finding in told if finding.check == ANNOUNCED}
    findings = [it for it in findings if it.check != "process" or it.subject not in announced]
    findings += told
    if spark:
        findings += check_spark()
    return Examination(nodes, findings, answers)


def examine_remote(place: Context, name: str | None, timeout_s: float, *, spark: bool) -> Examination:
    """The nodes of a cluster elsewhere, or the one called `name`. Raises UnreachableError, UsageError."""
    name_servers, controllers = (
        tuple(item for item in text.split(";") if item) for text in (place.namesrv, place.controller)
    )
    nodes, findings = trio.run(examine_elsewhere, name_servers, controllers, name, timeout_s)
    return Examination(nodes, [*findings, *(check_spark() if spark else ())], {})


def _process(node_under_test: NodeUnderTest, others_run: bool) -> list[Finding]:
    return [check_process(node_under_test, others_run)]


def _papers(node_under_test: NodeUnderTest, papers: dict[str, Papers]) -> list[Finding]:
    papers[node_under_test.name] = read_papers(node_under_test)
    return papers[node_under_test.name].findings


def guarded(subject: str, check: str, step: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Findings of a check. A file that cannot be looked at is a finding and leaves the other checks to be made."""
    found: list[Finding] = []
    try:
        found.extend(step())
    except OSError as error:
        where = error.filename or "something"
        fix = "run rmqha doctor as the user that runs the node"
        found.append(wrong(subject, check, f"{where} cannot be looked at: {error.strerror or error}", fix))
    return found


def check_spark() -> Iterator[Finding]:
    """Check what `rmqha spark` needs: Java and pyspark."""
    from rmqha.spark.java import find_java, java_version

    install = f"{sys.executable} -m pip install 'rmqha[spark]'"
    try:
        java = find_java()
        yield ok("machine", "java", f"{java} is Java {java_version(java)}")
    except UsageError as error:
        yield wrong("machine", "java", str(error), install)
    if find_spec("pyspark") is None:
        yield wrong("machine", "pyspark", "the package pyspark is not installed", install)
    else:
        yield ok("machine", "pyspark", "pyspark is installed")


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
    place = None if config is not None else elsewhere(namesrv, controller, directory)
    if place is not None:
        found = examine_remote(place, node, timeout, spark=spark)
    else:
        nodes = of_file(config) if config is not None else of_cluster(ClusterState.require(directory), node)
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


def show(findings: Sequence[Finding], verbose: bool) -> None:
    """The worst first, each with its fix below it."""
    out = console()
    for finding in merged(in_order(findings)):
        if finding.verdict is Verdict.OK and not verbose:
            continue
        line = Text(f"{finding.verdict.name:<5} ", STYLES[finding.verdict])
        line.append(f"{finding.subject} · {finding.check}: {finding.sentence}", "default")
        out.print(line, soft_wrap=True)
        if finding.fix:
            out.print(Text(f"      fix: {finding.fix}"), soft_wrap=True)
    hidden = "" if verbose or not any(item.verdict is Verdict.OK for item in findings) else "; -v tells these too"
    out.print(f"{count_words(findings)}{hidden}", soft_wrap=True)
