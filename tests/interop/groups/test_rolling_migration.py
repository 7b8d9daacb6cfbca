"""A live group of Apache's brokers, controller and name server becomes one of ours, broker by broker on the same store
directories and ports, and goes back. A Java producer sends all the while; nothing that it was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.lab.group import TIMEOUT_S, elect, is_master, logs_are_equal, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged, consumed, places
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop

TOPIC = "RollingTopic"
BODY_BYTES = 1000
PAUSE_MS = 10
REPLICAS = 3
JAVA = {
    "brokerRole": "SYNC_MASTER",
    "allAckInSyncStateSet": "true",
    "inSyncReplicas": "2",
    "minInSyncReplicas": "2",
    "totalReplicas": str(REPLICAS),
    "registerNameServerPeriod": "10000",
}
"""Apache's way to lose nothing with a master: all of the set, two copies at least."""
OURS = {"haMode": "cp", "totalReplicas": str(REPLICAS)}
LONG = 100_000
"""Messages; more than there is time for."""


def test_to_ours_and_back_under_a_live_producer(lab: Lab) -> None:
    lab.start_java_name_server()
    group = [lab.java_broker(f"java-{number}", **JAVA) for number in range(1, REPLICAS + 1)]
    for node in group:
        lab.run(node)
    serving(lab, group)
    whole_set(lab, *group)
    producer = lab.client("Produce", TOPIC, "0", str(LONG), str(BODY_BYTES), str(PAUSE_MS))
    until("the producer is at work", lambda: len(acknowledged(producer)) > 100, TIMEOUT_S, producer)

    group = rolled(lab, group, lambda name, **keys: lab.our_broker(name, **OURS, **keys), "ours", kill_master=True)
    seen = len(acknowledged(producer))
    until("our group takes messages", lambda: len(acknowledged(producer)) > seen + 100, TIMEOUT_S, producer)
    group = rolled(lab, group, lambda name, **keys: lab.java_broker(name, **JAVA, **keys), "back")
    seen = len(acknowledged(producer))
    until("Apache's group takes messages", lambda: len(acknowledged(producer)) > seen + 100, TIMEOUT_S, producer)

    producer.kill()
    sent = acknowledged(producer)
    assert sent == list(range(len(sent)))
    logs_are_equal(*group, least_bytes=len(sent) * BODY_BYTES)
    consumer = lab.client("Consume", TOPIC, "pull", "reader")
    until("all is consumed", lambda: set(sent) <= consumed(consumer), TIMEOUT_S, consumer)
    assert places(producer).items() <= places(consumer).items()


def rolled(
    lab: Lab, group: list[Node], make: Callable[..., Node], name: str, *, kill_master: bool = False
) -> list[Node]:
    """Every broker replaced, the slaves first; the master's turn comes after one of the new ones has taken over.

    `kill_master`: an Apache master that is deposed alive acknowledges what waits once its slaves have turned away, so
    it is killed; who is elected then holds all that it had acknowledged."""
    found: list[Node] = []
    master = serving(lab, group)
    for old in [*(node for node in group if node is not master), master]:
        if old is master and kill_master:
            old.running.kill()
            serving(lab, found)
            whole_set(lab, *found)
        else:
            if old is master:
                elect(lab, found[0])
                is_master(lab, found[0])
                whole_set(lab, *found, old)
            assert old.running.stop() in (0, 143)  # 143: how a JVM ends by SIGTERM
        port = int(old.address.rpartition(":")[2])
        ports = {"listenPort": str(port), "haListenPort": str(port + 1)}
        new = make(f"{name}-{len(found) + 1}", storePathRootDir=str(old.store), **ports)
        new.address, new.store = old.address, old.store
        lab.run(new)
        found.append(new)
        left = [node for node in group if node.address not in {item.address for item in found}]
        whole_set(lab, *found, *left)
    return found


def serving(lab: Lab, group: list[Node]) -> Node:
    """The master, once the controller and the name server agree on it."""
    by_address = {node.address: node for node in group}
    until(
        "the group has a master and clients are told so",
        lambda: lab.master() in by_address and lab.route("TBW102").get("0") == lab.master(),
        TIMEOUT_S,
        *(node.running for node in group),
    )
    return by_address[lab.master()]
