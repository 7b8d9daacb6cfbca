"""A broker of ours and one of Apache's in one group whose master changes while timer messages wait: none is missing,
none early, and none comes twice by ours but what ours could not know to be delivered."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest

from rmqha.model.code import RequestCode
from rmqha.model.epoch import EpochEntry
from rmqha.store.meta.epoch_file import PATH, parse
from rmqha.wire import lenient_json
from tests.interop.groups.test_timers_swapped import TOPIC, Timed
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.log_rows import of_log
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

KEYS = {"timerWheelEnable": "true", "timerEnableRetryUntilSuccess": "true", "slaveReadEnable": "true"}
DELAYS_S = (3, 4, 5, 10, 11, 20, 21, 30)


class Copy(NamedTuple):
    """A copy of a message: when it was stored to be consumed, wall clock, and in which master epoch. Its storeHost
    is of no help: Apache's broker takes that of the message that waited."""

    stored_ms: int
    epoch: int


class Master(NamedTuple):
    """The master of an epoch. `told_ms`: of ours, the time up to which it knew before that all was delivered."""

    is_ours: bool
    told_ms: int = 0


def doubles_of_ours(
    copies: dict[int, list[Copy]], due_ms: dict[int, int], masters: dict[int, Master]
) -> dict[int, list[Copy]]:
    """Messages of which ours stored a copy though it had stored one in that epoch, or knew before that there is one.
    Whatever Apache's broker stores once more is its own: a slave of its kind asks how far its master is from time to
    time, and delivers whole slots."""

    def is_ours(number: int, first: Copy, second: Copy) -> bool:
        master = masters[max(epoch for epoch in masters if epoch <= second.epoch)]
        return master.is_ours and (first.epoch == second.epoch or due_ms[number] <= master.told_ms)

    pairs = {number: pairwise(sorted(items)) for number, items in copies.items()}
    return {number: copies[number] for number, found in pairs.items() if any(is_ours(number, *pair) for pair in found)}


def test_doubles_are_told_apart() -> None:
    masters, due_ms = (
        {1: Master(True), 2: Master(False), 4: Master(True, 8)},
        {0: 3, 1: 3, 2: 3, 3: 9, 4: 8, 5: 9, 6: 8},
    )
    copies = {
        0: [Copy(3, 1)],
        1: [Copy(3, 1), Copy(4, 1)],
        2: [Copy(3, 1), Copy(12, 2)],
        3: [Copy(12, 2), Copy(14, 3)],
        4: [Copy(12, 2), Copy(21, 4)],
        5: [Copy(12, 2), Copy(21, 4)],
        6: [Copy(12, 2), Copy(9, 2), Copy(21, 5)],
    }
    assert sorted(doubles_of_ours(copies, due_ms, masters)) == [1, 4, 6]


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
    masters = {last_epoch(ours): Master(True)}
    timed = Timed(DELAYS_S)
    for old, new, end in ((ours, apaches, "kill"), (apaches, ours, "switch")):
        timed.send(old)
        timed.wait_for_soon(old)
        follows(old, new)
        if old is apaches:
            tells_counts_of(old, new)
        master = Master(new is ours, _read_ms(new))
        if end == "kill":
            old.running.kill()
        else:
            elect(lab, new)
        is_master(lab, new)
        masters[last_epoch(new)] = master
        if end == "kill":
            lab.run(old)
        whole_set(lab, ours, apaches)
    timed.wait(ours, max(timed.due_ms.values()))
    copies = copies_of(ours)
    early = {number: found for number, found in copies.items() if min(found).stored_ms < timed.due_ms[number]}
    assert not early
    assert sorted(copies) == sorted(timed.due_ms)
    late = {
        number: [f"epoch {copy.epoch} +{copy.stored_ms - timed.due_ms[number]} ms" for copy in found]
        for number, found in sorted(copies.items())
        if len(found) > 1
    }
    print("masters", masters, "doubles", late)
    assert not doubles_of_ours(copies, timed.due_ms, masters), late


def epochs(node: Node) -> tuple[EpochEntry, ...]:
    return tuple(parse((node.store / PATH).read_bytes()))


def last_epoch(node: Node) -> int:
    return epochs(node)[-1].epoch


def copies_of(node: Node) -> dict[int, list[Copy]]:
    """All copies that its log has, by the number of the message."""
    begins = [(entry.start_offset, entry.epoch) for entry in epochs(node)]
    found: dict[int, list[Copy]] = {}
    for row in of_log(node.store, TOPIC).values():
        epoch = max(begin for begin in begins if begin[0] <= row["physicalOffset"])[1]
        found.setdefault(int(row["properties"]["n"]), []).append(Copy(row["storeTimestamp"], epoch))
    return found


def follows(old: Node, new: Node) -> None:
    """The slave knows how far its master is."""
    until("the slave knows it", lambda: _read_ms(new) >= _read_ms(old) - 10_000, TIMEOUT_S, new.running)


def tells_counts_of(master: Node, slave: Node) -> None:
    """The slave of ours answers with what its master has told it: the same count, of the same time."""
    seen = []

    def is_told() -> bool:
        seen.append(_counts(master))
        return TOPIC in seen[-1] and _counts(slave) in seen

    until("the slave tells its master's counts", is_told, TIMEOUT_S, slave.running)


def _counts(node: Node) -> dict[str, dict[str, int]]:
    """Number of messages that wait by topic, each with a time, in a broker's answer to request 61."""
    reply = call(node.address, RequestCode.GET_TIMER_METRICS, {})
    assert reply is not None and reply.code == 0, reply
    found: dict[str, dict[str, int]] = lenient_json.loads(reply.body)["timingCount"]
    return found


def _read_ms(node: Node) -> int:
    """Time up to which a broker says, in its answer to request 60, that all is delivered."""
    reply = call(node.address, RequestCode.GET_TIMER_CHECK_POINT, {})
    assert reply is not None and reply.code == 0, reply
    return int.from_bytes(bytes(reply.body)[:8], "big")
