"""A broker of ours and one of Apache's in one group whose master changes while timer messages wait: none is missing,
none early, and none comes twice by ours but what ours could not know to be delivered."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from rmqha.model.code import RequestCode
from tests.interop.groups.test_timers_swapped import TOPIC, Timed, now_ms
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.log_rows import of_log
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

KEYS = {"timerWheelEnable": "true", "timerEnableRetryUntilSuccess": "true", "slaveReadEnable": "true"}
DELAYS_S = (3, 4, 5, 10, 11, 20, 21, 30)


class Copy(NamedTuple):
    """One of a message's copies: when it was stored to be consumed, wall clock, and by which broker of the group."""

    stored_ms: int
    is_ours: bool


class Take(NamedTuple):
    """A broker of ours became master; `told_ms` is the time up to which it knew then that all was delivered."""

    at_ms: int
    told_ms: int


def doubles_of_ours(copies: dict[int, list[Copy]], due_ms: dict[int, int], takes: list[Take]) -> dict[int, list[Copy]]:
    """Messages of which ours stored a copy though it had stored one since it became master, or knew that there is one.
    Whatever Apache's broker stores once more is its own: it goes by a read time that it has asked for, and by slots."""

    def is_ours(number: int, first: Copy, second: Copy) -> bool:
        if not second.is_ours:
            return False
        take = max(item for item in takes if item.at_ms <= second.stored_ms)
        return (first.is_ours and first.stored_ms >= take.at_ms) or due_ms[number] <= take.told_ms

    pairs = {number: pairwise(sorted(items)) for number, items in copies.items()}
    return {number: copies[number] for number, found in pairs.items() if any(is_ours(number, *pair) for pair in found)}


def test_doubles_are_told_apart() -> None:
    takes, due_ms = [Take(0, 0), Take(20, 8)], {0: 3, 1: 3, 2: 3, 3: 9, 4: 8, 5: 9, 6: 8, 7: 22}
    ours, theirs = partial(Copy, is_ours=True), partial(Copy, is_ours=False)
    copies = {
        0: [ours(3)],
        1: [ours(3), ours(4)],
        2: [ours(3), theirs(12)],
        3: [theirs(12), theirs(14)],
        4: [theirs(12), ours(21)],
        5: [theirs(12), ours(21)],
        6: [theirs(9), theirs(12), ours(21)],
        7: [ours(23), ours(24)],
    }
    assert sorted(doubles_of_ours(copies, due_ms, takes)) == [1, 4, 6, 7]


def test_timers_go_on_whoever_becomes_master(lab: Lab) -> None:
    """Apache's slave of our master becomes the master as that one is killed, then ours, which was its slave, by hand.
    The other way round it takes as long again, and went as well."""
    lab.start_our_name_server()
    ours = lab.our_broker("ours", haMode="cp", totalReplicas="2", brokerElectionPriority="1")
    apaches = lab.java_broker("apaches", **KEYS)
    for node in (ours, apaches):
        lab.run(node)
    takes = [Take(now_ms(), 0)]
    is_master(lab, ours)
    whole_set(lab, ours, apaches)
    timed = Timed(DELAYS_S)
    for old, new, end in ((ours, apaches, "kill"), (apaches, ours, "switch")):
        timed.send(old)
        timed.wait_for_soon(old)
        follows(old, new)
        if end == "kill":
            old.running.kill()
        else:
            takes.append(Take(now_ms(), _read_ms(new)))
            elect(lab, new)
        is_master(lab, new)
        if end == "kill":
            lab.run(old)
        whole_set(lab, ours, apaches)
    timed.wait(ours, max(timed.due_ms.values()))
    copies = copies_of(ours)
    early = {number: found for number, found in copies.items() if min(found).stored_ms < timed.due_ms[number]}
    assert not early
    assert sorted(copies) == sorted(timed.due_ms)
    late = {
        number: [
            f"{'ours' if copy.is_ours else 'apaches'} +{copy.stored_ms - timed.due_ms[number]} ms" for copy in found
        ]
        for number, found in sorted(copies.items())
        if len(found) > 1
    }
    print("takes", takes, "doubles", late)
    assert not doubles_of_ours(copies, timed.due_ms, takes), late


def copies_of(node: Node) -> dict[int, list[Copy]]:
    """All copies that its log has, by the number of the message."""
    found: dict[int, list[Copy]] = {}
    for row in of_log(node.store, TOPIC).values():
        copy = Copy(row["storeTimestamp"], row["storeHost"] == node.address)
        found.setdefault(int(row["properties"]["n"]), []).append(copy)
    return found


def follows(old: Node, new: Node) -> None:
    """The slave knows how far its master is."""
    until("the slave knows it", lambda: _read_ms(new) >= _read_ms(old) - 10_000, TIMEOUT_S, new.running)


def _read_ms(node: Node) -> int:
    """Time up to which a broker says, in its answer to request 60, that all is delivered."""
    reply = call(node.address, RequestCode.GET_TIMER_CHECK_POINT, {})
    assert reply is not None and reply.code == 0, reply
    return int.from_bytes(bytes(reply.body)[:8], "big")
