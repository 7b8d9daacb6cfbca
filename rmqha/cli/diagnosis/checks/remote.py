"""Checks of a cluster elsewhere, as far as requests can tell: its nodes' answers, their keys, their addresses as
reached from here."""

from __future__ import annotations

from rmqha.cli.diagnosis.checks.answers import ask_all
from rmqha.cli.diagnosis.checks.files import StoreFacts, check_groups
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.finding import Finding, warn
from rmqha.ops.remote_cluster import FIND_S, KINDS, cluster_of
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind
from rmqha.ops.survey import BootstrapAddresses, Survey

NOT_FROM_HERE = "files, disks, syncs, descriptors and memory are seen on the machine itself"


async def examine_remote_nodes(
    name_servers: tuple[str, ...], controllers: tuple[str, ...], name: str | None, timeout_s: float
) -> tuple[list[NodeUnderTest], list[Finding]]:
    """The nodes that these servers name, or the one called `name`, and the findings. Raises UnreachableError if none
    answers, UsageError for an unknown name."""
    async with RemotingClient() as client:
        snapshot = await Survey(client, BootstrapAddresses(name_servers, controllers), FIND_S).run()
    nodes = nodes_of(snapshot)
    if name is not None:
        nodes = [node for node in nodes if node.name == name]
        if not nodes:
            known = ", ".join(node.title for node in snapshot.nodes)
            raise UsageError(f"there is no node {name}; that cluster has {known}")
    store_facts = {node.name: StoreFacts() for node in nodes}
    findings = [warn(node.name, "config", node.problem, "") for node in nodes if node.problem]
    findings += check_groups(nodes, store_facts)
    findings += (await ask_all(nodes, store_facts, timeout_s))[1]
    findings.append(warn("machine", "examined", NOT_FROM_HERE, "rmqha doctor -c FILE on each machine"))
    return nodes, findings


def nodes_of(snapshot: ClusterSnapshot) -> list[NodeUnderTest]:
    """Nodes of ours, and those that do not answer. Raises UnreachableError if none answers."""
    cluster_of(snapshot)
    return [_node(report) for report in snapshot.nodes if report.is_ours and not _is_apaches_name_server(report)]


def _is_apaches_name_server(report: NodeReport) -> bool:
    return report.kind is ServerKind.NAME_SERVER and report.answers and report.name_server is None


def _node(report: NodeReport) -> NodeUnderTest:
    found = NodeUnderTest(report.title, KINDS[report.kind], f"the file of {report.title}", None, report.keys)
    found.address, found.is_remote = report.address, True
    if report.kind is ServerKind.CONTROLLER:
        found.controller_address = report.address
    if report.kind is ServerKind.BROKER and report.keys:
        try:
            # what a newer release has besides is none of a doctor's business
            known = {key: value for key, value in report.keys.items() if key in BrokerConfig.keys()}  # noqa: SIM118
            found.broker = BrokerConfig.from_properties(known, found.source)
        except RmqhaError as error:
            found.problem = f"what it runs with cannot be judged: {error}"
    return found
