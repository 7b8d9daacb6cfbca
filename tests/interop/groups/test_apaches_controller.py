"""Brokers of ours under Apache's name server and controllers (DLedger), clients Apache's too."""

from __future__ import annotations

import pytest

from rmqha.client import sync
from rmqha.host.access.shared_secret import make_secret_file
from tests.interop.lab.group import TIMEOUT_S, is_master, logs_are_equal, shown_master, whole_set
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import acknowledged, consumed, places
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop

TOPIC = "ForeignTopic"
MESSAGES = 1500
BODY_BYTES = 1000
PAUSE_MS = 4
PATIENT = {"controllerHeartBeatTimeoutMills": "120000"}
"""No broker of a busy machine is taken for dead; one that a controller has never heard is, at once."""


@pytest.mark.parametrize(("mode", "has_secret"), [("ap", False), ("cp", True)])
def test_our_brokers_register_are_elected_and_fail_over(lab: Lab, mode: str, has_secret: bool) -> None:
    """AP waits for every member's ack too, so that nothing acknowledged is lost when the master is killed. Apache's
    controllers sign no notice: to brokers with a secret it is a reason to ask them. Without the notice, which they
    send once and not to all, the brokers ask by themselves."""
    if not has_secret:
        lab.controller_keys["notifyBrokerRoleChanged"] = "false"
    else:
        make_secret_file(lab.scratch / "ha.secret")
        lab.security["haSecretFile"] = str(lab.scratch / "ha.secret")
    keys = {"haMode": mode, "brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true"}
    lab.start_java_name_server()
    first = lab.our_broker("first", compressedRegister="true", **keys)
    second = lab.our_broker("second", **keys)
    lab.run(first)
    is_master(lab, first)
    lab.run(second)
    whole_set(lab, first, second)

    producer = lab.client("Produce", TOPIC, "0", str(MESSAGES), str(BODY_BYTES), str(PAUSE_MS))
    until("the producer is at work", lambda: len(acknowledged(producer)) > MESSAGES // 3, TIMEOUT_S, producer)
    first.running.kill()
    assert len(acknowledged(producer)) < MESSAGES
    is_master(lab, second)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()

    lab.run(first)
    whole_set(lab, first, second)
    logs_are_equal(first, second, least_bytes=MESSAGES * BODY_BYTES)
    consumer = lab.client("Consume", TOPIC, "push", "reader")
    wanted = set(range(MESSAGES))
    until("all is consumed", lambda: wanted <= consumed(consumer), TIMEOUT_S, consumer)
    assert places(producer).items() <= places(consumer).items()


def test_the_death_of_the_leading_controller_deposes_nobody(lab: Lab) -> None:
    """Three of Apache's controllers, two brokers of ours, one of Apache's. Each controller keeps its own table of the
    living, so each must hear the heartbeats (ruling 33)."""
    lab.start_java_controllers(3)
    keys = {
        "brokerRole": "SYNC_MASTER",
        "allAckInSyncStateSet": "true",
        "haMode": "ap",
        "totalReplicas": "3",
        **PATIENT,
    }
    nodes = [lab.our_broker("first", **keys), lab.our_broker("second", **keys), lab.java_broker("third", **PATIENT)]
    lab.run(nodes[0])
    is_master(lab, nodes[0])
    for slave in nodes[1:]:
        lab.run(slave)
    whole_set(lab, *nodes)

    count = MESSAGES // 2
    producer = lab.client("Produce", TOPIC, "0", str(count), str(BODY_BYTES), str(PAUSE_MS * 5))
    until("the producer is at work", lambda: len(acknowledged(producer)) > count // 10, TIMEOUT_S, producer)
    gone = lab.controller_leader()
    lab.controllers[gone].kill()
    until("another controller leads", lambda: lab.controller_leader() not in ("", gone), TIMEOUT_S, producer)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    whole_set(lab, *nodes)
    assert shown_master(lab) == nodes[0].address


def test_controllers_that_stand_still_die_or_lose_their_disks_hold_up_no_group(lab: Lab) -> None:
    """Three of Apache's controllers. Their leader stands still and still takes connections; meanwhile the master dies.
    Later a follower comes back without its data, and the leader dies, and so does the new master."""
    lab.start_java_controllers(3)
    keys = {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "haMode": "ap", **PATIENT}
    first, second = lab.our_broker("first", **keys), lab.our_broker("second", **keys)
    lab.run(first)
    is_master(lab, first)
    lab.run(second)
    whole_set(lab, first, second)
    with sync.Producer(lab.name_server) as producer:

        def sends() -> None:
            for number in range(10):
                producer.send(TOPIC, b"%d" % number, timeout_ms=int(TIMEOUT_S * 1000), require_ok=True)

        sends()
        still = lab.controller_leader()
        lab.controllers[still].pause()
        sends()
        until("another controller leads", lambda: bool(lab.controller_leader()), TIMEOUT_S)
        first.running.kill()
        is_master(lab, second)
        sends()
        lab.controllers[still].resume()
        lab.run(first)
        whole_set(lab, first, second)
        assert shown_master(lab) == second.address, "who led before it stood still has deposed nobody"

        leader = lab.controller_leader()
        emptied = next(address for address in lab.controllers if address != leader)
        lab.restart_controller(emptied, emptied=True)
        whole_set(lab, first, second)
        gone = lab.controller_leader()
        lab.controllers[gone].kill()
        sends()
        until("another controller leads", lambda: bool(lab.controller_leader()), TIMEOUT_S)
        assert shown_master(lab) == second.address
        second.running.kill()
        is_master(lab, first)
        sends()
        lab.restart_controller(gone)
        lab.run(second)
        whole_set(lab, first, second)
        assert shown_master(lab) == first.address
    logs_are_equal(first, second, least_bytes=5_000)
