"""All checks of `rmqha doctor`, with their findings. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import trio

from rmqha.cli.diagnosis.checks.answers import ANNOUNCED, Answers, ask_all
from rmqha.cli.diagnosis.checks.files import StoreFacts, check_config, check_groups, read_store_facts
from rmqha.cli.diagnosis.checks.limits import check_limits
from rmqha.cli.diagnosis.checks.machine import (
    check_descriptors,
    check_disk,
    check_memory,
    check_ports,
    check_process,
    check_syncs,
)
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.cli.diagnosis.checks.remote import examine_remote_nodes
from rmqha.cli.diagnosis.checks.security import check_data, check_security
from rmqha.model.error import UsageError
from rmqha.ops.finding import Finding, ok, wrong


@dataclass(slots=True)
class Examination:
    """Result of an examination; findings are in the order of the checks."""

    nodes: list[NodeUnderTest]
    findings: list[Finding]
    answers: dict[str, Answers]


def examine(
    nodes: list[NodeUnderTest], timeout_s: float, *, write: bool = True, spark: bool = False, full: bool = True
) -> Examination:
    """Examine nodes of this machine. `write`: measure syncs, in a file that is removed. `full`: these are all nodes of
    a cluster, so that one that does not run while others do is a fault."""
    others_run = full and any(node_under_test.running for node_under_test in nodes)
    findings: list[Finding] = []
    store_facts: dict[str, StoreFacts] = {}
    for node_under_test in nodes:
        store_facts[node_under_test.name] = StoreFacts()
        for check, step in (
            ("process", partial(_process, node_under_test, others_run)),
            ("config", partial(check_config, node_under_test)),
            ("security", partial(check_security, node_under_test)),
            ("data", partial(check_data, node_under_test)),
            ("disk", partial(check_disk, node_under_test)),
            ("descriptors", partial(check_descriptors, node_under_test)),
            ("limits", partial(check_limits, node_under_test)),
            ("store", partial(_store_facts, node_under_test, store_facts)),
        ):
            findings += guarded(node_under_test.name, check, step)
    findings += guarded("machine", "ports", partial(check_ports, nodes))
    findings += check_groups(nodes, store_facts)
    if write:
        findings += guarded("machine", "sync", partial(check_syncs, nodes))
    file_bytes = max((item.broker.mapped_file_size_commit_log for item in nodes if item.broker), default=0)
    findings += check_memory([node_under_test for node_under_test in nodes if node_under_test.running], file_bytes)
    answers, told = trio.run(ask_all, nodes, store_facts, timeout_s)
    announced = {finding.subject for finding in told if finding.check == ANNOUNCED}
    findings = [it for it in findings if it.check != "process" or it.subject not in announced]
    findings += told
    if spark:
        findings += check_spark()
    return Examination(nodes, findings, answers)


def examine_remote(namesrv: str, controller: str, name: str | None, timeout_s: float, *, spark: bool) -> Examination:
    """The nodes of a cluster elsewhere, or the one called `name`. Raises UnreachableError, UsageError."""
    name_servers, controllers = (tuple(item for item in text.split(";") if item) for text in (namesrv, controller))
    nodes, findings = trio.run(examine_remote_nodes, name_servers, controllers, name, timeout_s)
    return Examination(nodes, [*findings, *(check_spark() if spark else ())], {})


def _process(node_under_test: NodeUnderTest, others_run: bool) -> list[Finding]:
    return [check_process(node_under_test, others_run)]


def _store_facts(node_under_test: NodeUnderTest, store_facts: dict[str, StoreFacts]) -> list[Finding]:
    store_facts[node_under_test.name] = read_store_facts(node_under_test)
    return store_facts[node_under_test.name].findings


def guarded(subject: str, check: str, step: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Findings of a check. A file that cannot be read is a finding; the other checks go on."""
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
