"""What tests of whole groups wait for."""

from __future__ import annotations

import time
from typing import Any

from rmqha.model.code import RequestCode
from tests.interop.lab.lab import CLUSTER, GROUP, Lab, Node
from tests.interop.lab.processes import call, log_bytes, until
from tests.support.patience import HANG_S

TIMEOUT_S = HANG_S


def whole_set(lab: Lab, *nodes: Node) -> None:
    """The SyncStateSet is these and no others."""
    until(
        f"{' and '.join(node.name for node in nodes)} are the SyncStateSet",
        lambda: lab.members() == {node.address for node in nodes},
        TIMEOUT_S,
        *(node.running for node in nodes),
    )


def shown_master(lab: Lab) -> str:
    """Address of the master as soon as the controllers show the group: a new leader of theirs takes a moment."""
    shown: dict[str, Any] = {}

    def is_shown() -> bool:
        shown.update(lab.group())
        return bool(shown)

    until("the controllers show the group", is_shown, TIMEOUT_S)
    return str(shown.get("masterAddress") or "")


def is_master(lab: Lab, node: Node) -> None:
    until(
        f"{node.name} is master and clients are told so",
        lambda: lab.master() == node.address and lab.route("TBW102").get("0") == node.address,
        TIMEOUT_S,
        node.running,
    )


def elect(lab: Lab, node: Node) -> None:
    """Request 1002 for this replica, by the id in its store, until it is done: a master whose slave does not reach its
    end within two seconds, on a busy host, refuses to hand over and goes on."""
    broker_id = (node.store / "brokerIdentity").read_text().strip().split("#")[2]
    answers: list[str] = []

    def is_elected() -> bool:
        ext = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerId": broker_id,
            "designateElect": "true",
            "invokeTime": str(time.time_ns() // 1_000_000),
        }
        reply = call(lab.controller_leader(), RequestCode.CONTROLLER_ELECT_MASTER, ext)
        answers.append("no answer" if reply is None else f"{reply.code} {reply.remark}")
        return (reply is not None and reply.code == 0) or lab.master() == node.address

    try:
        until(f"{node.name} is elected", is_elected, TIMEOUT_S, node.running)
    finally:
        if len(answers) > 1:
            print(f"{node.name} is asked to be elected:", *answers, sep="\n")


def logs_are_equal(*nodes: Node, least_bytes: int) -> None:
    """Byte for byte, up to the end that all have; files are filled up with zeros."""

    def logs() -> set[bytes]:
        return {log_bytes(node.store).rstrip(b"\0") for node in nodes}

    until("all have the same log", lambda: len(logs()) == 1, TIMEOUT_S, *(node.running for node in nodes))
    (log,) = logs()
    assert len(log) > least_bytes
