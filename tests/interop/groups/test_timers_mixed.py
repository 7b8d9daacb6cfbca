"""A broker of ours and one of Apache's in one group whose master changes while timer messages wait: none is missing,
none early, and doubles are counted."""

from __future__ import annotations

from collections import Counter

import pytest

from rmqha.model.code import RequestCode
from tests.interop.groups.test_timers_swapped import Timed
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

KEYS = {"timerWheelEnable": "true", "timerEnableRetryUntilSuccess": "true", "slaveReadEnable": "true"}
DELAYS_S = (3, 4, 5, 10, 11, 20, 21, 30)


def test_timers_go_on_whoever_becomes_master(lab: Lab) -> None:
    """Apache's slave of our master becomes the master as that one is killed, then ours, which was its slave, by hand.
    The other way round it takes as long again, and went as well."""
    lab.start_our_name_server()
    ours = lab.our_broker("ours", haMode="cp", totalReplicas="2", brokerElectionPriority="1")
    apaches = lab.java_broker("apaches", **KEYS)
    for node in (ours, apaches):
        lab.run(node)
    is_master(lab, ours)
    whole_set(lab, ours, apaches)
    timed = Timed(DELAYS_S)
    doubles: list[int] = []
    for old, new, end in ((ours, apaches, "kill"), (apaches, ours, "switch")):
        timed.send(old)
        timed.wait_for_soon(old)
        follows(old, new)
        doubles.append(sum(len(times) - 1 for times in timed.came(old).values()))
        if end == "kill":
            old.running.kill()
        else:
            elect(lab, new)
        is_master(lab, new)
        if end == "kill":
            lab.run(old)
        whole_set(lab, ours, apaches)
    timed.wait(ours, max(timed.due_ms.values()))
    came = timed.came(ours)
    early = {number: times for number, times in came.items() if min(times) < timed.due_ms[number]}
    assert not early
    assert sorted(came) == sorted(timed.due_ms)
    counts = Counter(map(len, came.values()))
    print("doubles before each switch", doubles, counts)
    assert max(counts) <= 1 + len(doubles), "a switch brings a message once more at most"


def follows(old: Node, new: Node) -> None:
    """The slave knows how far its master is."""
    until("the slave knows it", lambda: _read_ms(new) >= _read_ms(old) - 10_000, TIMEOUT_S, new.running)


def _read_ms(node: Node) -> int:
    """Time up to which a broker says, in its answer to request 60, that all is delivered."""
    reply = call(node.address, RequestCode.GET_TIMER_CHECK_POINT, {})
    assert reply is not None and reply.code == 0, reply
    return int.from_bytes(bytes(reply.body)[:8], "big")
