"""A broker of ours and one of Apache's in one group whose master changes while popped messages are in flight, by a kill
and by hand, each way: none is lost, and none comes twice or early but where Apache's broker forgets what it knew."""

from __future__ import annotations

import pytest

from tests.interop.groups.test_pops_swapped import Pops, explained, keeps_what_is_popped, now_ms
from tests.interop.groups.test_timers_mixed import KEYS, follows
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("end", ["kill", "switch"])
def test_pops_go_on_whoever_becomes_master(lab: Lab, end: str) -> None:
    """Apache's slave of ours becomes the master, then ours, which was its slave."""
    lab.start_our_name_server()
    ours = lab.our_broker("ours", haMode="cp", totalReplicas="2", brokerElectionPriority="1")
    apaches = lab.java_broker("apaches", **KEYS)
    for node in (ours, apaches):
        lab.run(node)
    is_master(lab, ours)
    whole_set(lab, ours, apaches)
    pops = Pops(ours.store)
    with explained(pops, ours):
        _is_used(ours, pops)
        for old, new in ((ours, apaches), (apaches, ours)):
            follows(old, new)
            _becomes_master(lab, old, new, end)
            # Apache's slave asks for offsets each ten seconds and looks into no log; its master forgets at a kill.
            if new is apaches or end == "kill":
                pops.in_doubt()
            pops.apaches_ms = (now_ms(), 0) if new is apaches else (pops.apaches_ms[0], now_ms())
            _is_used(new, pops)
            if end == "kill":
                lab.run(old)
            whole_set(lab, ours, apaches)
        _all_come(ours, pops)


def _becomes_master(lab: Lab, old: Node, new: Node, end: str) -> None:
    if end == "kill":
        old.running.kill()
    else:
        elect(lab, new)
    is_master(lab, new)


def _is_used(node: Node, pops: Pops) -> None:
    """It takes messages and acknowledgements of what the other one gave, gives all that is new, and hears of half."""
    pops.send(node)
    late, pops.late = pops.late, []
    for message in late:
        pops.ack(node, message)
    if node.name == "apaches":
        keeps_what_is_popped(node)
    fresh = []

    def has_new() -> bool:
        fresh.extend(pops.pop(node))
        return len(pops.given) == pops.sent_count

    until("all are given", has_new, TIMEOUT_S, node.running)
    for message in fresh[: len(fresh) // 2]:
        pops.ack(node, message)
    pops.late = fresh[len(fresh) // 2 : len(fresh) * 3 // 4]


def _all_come(node: Node, pops: Pops) -> None:
    def all_done() -> bool:
        for message in pops.pop(node):
            pops.ack(node, message)
        return len(pops.acked) == pops.sent_count

    until("what was not acknowledged has come again", all_done, TIMEOUT_S, node.running)
    assert sorted(pops.given) == list(range(pops.sent_count))
    counts = [len(times) for times in pops.given.values()]
    print("given", counts)
    assert max(counts) > 1
