"""Three real brokers of Apache RocketMQ in controller mode under three controllers of ours, and our name server."""

from __future__ import annotations

import pytest

from tests.interop.lab.group import TIMEOUT_S, logs_are_equal, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged, consumed
from tests.interop.lab.processes import Process, log_bytes, until

pytestmark = pytest.mark.interop

TOPIC = "JavaGroupTopic"
BODY_BYTES = 1000
PART = 1000
PAUSE_MS = 3


def serves(lab: Lab, *nodes: Node) -> Node:
    """The one of `nodes` that is master, once the controllers and the name server say so."""
    by_address = {node.address: node for node in nodes}
    until(
        f"one of {sorted(by_address)} is master and clients are told so",
        lambda: lab.master() in by_address and lab.route("TBW102").get("0") == lab.master(),
        TIMEOUT_S,
        *(node.running for node in nodes),
    )
    return by_address[lab.master()]


def half_way(lab: Lab, first: int) -> Process:
    producer = lab.client("Produce", TOPIC, str(first), str(PART), str(BODY_BYTES), str(PAUSE_MS))
    until("the producer is at work", lambda: len(acknowledged(producer)) > PART // 4, TIMEOUT_S, producer)
    return producer


def killed(master: Node, slaves: list[Node], producer: Process) -> set[int]:
    """Kill the master. What it had acknowledged and its slaves may not have: Apache's default waits for no slave."""
    sure = set(acknowledged(producer))
    end = len(log_bytes(master.store).rstrip(b"\0"))
    for slave in slaves:
        until(
            f"{slave.name} has what was acknowledged",
            lambda store=slave.store: len(log_bytes(store).rstrip(b"\0")) >= end,  # type: ignore[misc]
            TIMEOUT_S,
            slave.running,
        )
    master.running.kill()
    return set(acknowledged(producer)) - sure


def test_start_kill_restart_switch_and_the_leaders_death(lab: Lab) -> None:
    lab.start_our_controllers(3)
    nodes = [lab.java_broker(f"java-{number}") for number in (1, 2, 3)]
    for node in nodes:
        lab.run(node)
    master = serves(lab, *nodes)
    whole_set(lab, *nodes)

    first = half_way(lab, 0)
    rest = [node for node in nodes if node is not master]
    spared = killed(master, rest, first)
    serves(lab, *rest)
    assert first.wait(TIMEOUT_S) == 0, first.tail()
    lab.run(master)
    whole_set(lab, *nodes)

    target = next(node for node in nodes if node.address != lab.master())
    ids = {address: number for number, address in lab.route("TBW102").items()}
    code, text, error = lab.mqadmin(
        "electMaster", "-a", lab.controller_leader(), "-b", ids[target.address], "-bn", "broker-a", "-c", "interop"
    )
    assert code == 0, text + error
    assert serves(lab, target) is target
    whole_set(lab, *nodes)

    second = half_way(lab, PART)
    leader = lab.controller_leader()
    lab.controllers[leader].kill()
    until("another controller leads", lambda: lab.controller_leader() not in ("", leader), TIMEOUT_S)
    rest = [node for node in nodes if node is not target]
    spared |= killed(target, rest, second)
    serves(lab, *rest)
    assert second.wait(TIMEOUT_S) == 0, second.tail()
    lab.run(target)
    whole_set(lab, *nodes)
    logs_are_equal(*nodes, least_bytes=2 * PART * BODY_BYTES)

    sent = set(acknowledged(first)) | set(acknowledged(second))
    assert len(sent) == 2 * PART
    consumer = lab.client("Consume", TOPIC, "pull", "reader")
    # the moment before a kill may be lost, nothing else
    until("all is consumed", lambda: sent - spared <= consumed(consumer), TIMEOUT_S, consumer)
