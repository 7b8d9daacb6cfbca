"""A static group (no controller) of one broker of ours and one of Apache's: the plain HA protocol, both ways round."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from rmqha.model.code import RequestCode
from tests.interop.lab.group import TIMEOUT_S, logs_are_equal
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged, consumed, places
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

TOPIC = "StaticTopic"
BODY_BYTES = 4000
PART = 1100
"""More than one CommitLog file of 4 MiB."""

STATIC = {"enableControllerMode": "false", "inSyncReplicas": "2"}
"""Two copies before SEND_OK: Apache's SYNC_MASTER waits for nobody with its default of 1."""
MASTER = STATIC | {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
SLAVE = STATIC | {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


@pytest.mark.parametrize("master_is", ["ours", "apaches"])
def test_each_follows_the_other_and_serves_while_the_master_is_away(lab: Lab, master_is: str) -> None:
    lab.start_our_name_server()
    if master_is == "ours":
        master, slave = lab.our_broker("ours", **MASTER), lab.java_broker("apaches", **SLAVE)
    else:
        master, slave = lab.java_broker("apaches", **MASTER), lab.our_broker("ours", **SLAVE)

    lab.run(master)
    lab.run(slave)
    both_are_routed(lab, master, slave)
    sent = produce(lab, 0)
    logs_are_equal(master, slave, least_bytes=PART * BODY_BYTES)

    until("the slave has the master's topics", lambda: knows_topic(slave), TIMEOUT_S, slave.running)
    master.running.kill()
    until("clients are sent to the slave", lambda: lab.route(TOPIC) == {"1": slave.address}, TIMEOUT_S, slave.running)
    consumer = lab.client("Consume", TOPIC, "pull", "reader")
    wanted = set(range(PART))
    until("all is consumed from the slave", lambda: wanted <= consumed(consumer), TIMEOUT_S, consumer)
    assert sent.items() <= places(consumer).items()
    consumer.kill()

    lab.run(master)
    both_are_routed(lab, master, slave)
    sent |= produce(lab, PART)
    logs_are_equal(master, slave, least_bytes=2 * PART * BODY_BYTES)
    files = sorted(path.name for path in (master.store / "commitlog").iterdir())
    assert len(files) > 2

    assert slave.running.stop() in (0, 143)  # 143: how a JVM ends by SIGTERM
    shutil.rmtree(slave.store)
    lab.run(slave)
    both_are_routed(lab, master, slave)
    sent |= produce(lab, 2 * PART)
    copied = sorted(path.name for path in (slave.store / "commitlog").iterdir())
    # to an empty slave ours sends all there is, Apache's only from the start of its last file on
    assert copied[0] == files[0] if master_is == "ours" else copied[0] >= files[-2]
    for name in copied:
        until(
            f"{name} is the same",
            partial(same_file, master, slave, name),
            TIMEOUT_S,
            master.running,
            slave.running,
        )


def log_file(node: Node, name: str) -> bytes:
    """Without the zeros behind its end; one that was made ahead of need is empty, or not there yet."""
    path = node.store / "commitlog" / name
    return path.read_bytes().rstrip(b"\0") if path.exists() else b""


def same_file(a: Node, b: Node, name: str) -> bool:
    return log_file(a, name) == log_file(b, name)


def both_are_routed(lab: Lab, master: Node, slave: Node) -> None:
    wanted = {"0": master.address, "1": slave.address}
    until("clients are told of both", lambda: lab.route("TBW102") == wanted, TIMEOUT_S, master.running, slave.running)


def knows_topic(node: Node) -> bool:
    reply = call(node.address, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
    return reply is not None and reply.code == 0


def produce(lab: Lab, first: int) -> dict[tuple[int, int], int]:
    """PART messages, each acknowledged with two copies; where they lie."""
    producer = lab.client("Produce", TOPIC, str(first), str(PART), str(BODY_BYTES), "0")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    assert acknowledged(producer) == list(range(first, first + PART))
    return places(producer)
