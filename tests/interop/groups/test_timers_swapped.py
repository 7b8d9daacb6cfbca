"""One store whose timer messages wait while ours and Apache's broker own it in turn: none is missing, none early.

After stops in order none comes twice by ours. Apache's 5.4.0 delivers some twice by itself: as it becomes master, the
thread that puts into its wheel sets the read time back to where it was before it wrote config/timercheck, while the
thread that delivers has gone on (`checkBrokerRole`); and a stop in the midst of a slot leaves the slot as not
delivered.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import TIMER_TOPIC, encode_properties
from tests.golden.reader import manifest
from tests.interop.groups.test_store import unpack_golden
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.log_rows import of_log
from tests.interop.lab.processes import call, until
from tests.store.support import unpack

pytestmark = pytest.mark.interop

TOPIC = "TimedTopic"
DELAYS_S = (3, 4, 5, 15, 16, 17)
"""Of what each owner is sent: due under itself, under the next one."""
LATE_DELAYS_S = (40, 41, 60)
"""Of what the first two owners are sent too, one of each kind: due under a later one."""
SOON_S = 5
"""What is due by then after it was sent is waited for before the next owner."""
GOLDEN_DELAYS_S = (2, 3, 12, 13)
LAST_DELAYS_MS = range(200, 4000, 100)
"""Of what each owner is sent as its last: due in each tenth of the seconds in which it ends."""


NOT_NOW = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
"""Answers of a new master that is not ready, and of Apache's broker to a send that has waited 200 ms: nothing is
stored."""


def is_taken(node: Node, ext: dict[str, str]) -> bool:
    reply = call(node.address, RequestCode.SEND_MESSAGE_V2, ext, b"timed")
    assert reply is not None and (reply.code == ResponseCode.SUCCESS or reply.code in NOT_NOW), reply
    return reply.code == ResponseCode.SUCCESS


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Ownership:
    """A time in which one broker had the store, from its start to its end, wall clock."""

    is_apaches: bool
    began_ms: int
    ended_ms: int = 0
    told: frozenset[int] = frozenset()
    """Messages that had come and that Apache's broker, at its end, told to wait still."""


class Timed:
    """What was sent, and what is in the log of it. `delays_s`: of what `send` sends, three times each, `more_s` too."""

    def __init__(self, delays_s: tuple[int, ...] = DELAYS_S) -> None:
        self._delays_s = delays_s
        self._soon_ms = 0
        self.due_ms: dict[int, int] = {}

    def send(self, node: Node, more_s: tuple[int, ...] = ()) -> None:
        self._send(node, (delay_s * 1000 for delay_s in (self._delays_s + more_s) * 3))
        self._soon_ms = now_ms() + SOON_S * 1000

    def send_last(self, node: Node) -> None:
        self._send(node, LAST_DELAYS_MS)

    def _send(self, node: Node, delays_ms: Iterable[int]) -> None:
        for delay_ms in delays_ms:
            number, at_ms = len(self.due_ms), now_ms() + delay_ms
            ext = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
            properties = {"UNIQ_KEY": f"KEY{number}", "TIMER_DELIVER_MS": str(at_ms), "n": str(number)}
            ext |= {"i": encode_properties(properties).decode(), "k": "false", "m": "false"}
            until("it takes messages", lambda ext=ext: is_taken(node, ext), TIMEOUT_S, node.running)  # type: ignore[misc]
            self.due_ms[number] = at_ms

    def came(self, node: Node) -> dict[int, list[int]]:
        """Times at which each message was stored to be consumed."""
        found: dict[int, list[int]] = {}
        for row in of_log(node.store, TOPIC).values():
            stored_ms, properties = row["storeTimestamp"], dict(row["properties"])
            found.setdefault(int(properties["n"]), []).append(stored_ms)
        return found

    def wait_for_soon(self, node: Node) -> None:
        self.wait(node, self._soon_ms)

    def wait(self, node: Node, until_ms: int) -> None:
        """All that is due by then has come. Before the last is due nobody looks: each look reads the whole log."""
        numbers = {number for number, at_ms in self.due_ms.items() if at_ms <= until_ms}
        last_ms = max(self.due_ms[number] for number in numbers)

        def have_come() -> bool:
            return now_ms() >= last_ms and numbers <= set(self.came(node))

        try:
            until(f"{len(numbers)} have come", have_come, TIMEOUT_S, node.running)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._left_out(node, numbers)}") from None

    def _left_out(self, node: Node, numbers: set[int]) -> str:
        """Each that has not come: its time, and its place in the queue in which it waits."""
        rows = of_log(node.store, TIMER_TOPIC).items()
        places = {int(row["properties"]["n"]): (place[1], row["storeTimestamp"]) for place, row in rows}
        lines = [f"now {now_ms()}, config/timercheck {_check(node)}"]
        for number in sorted(numbers - self.came(node).keys()):
            lines.append(f"{number} was due at {self.due_ms[number]}, (offset, stored) {places.get(number)}")
        return "\n".join(lines)

    def told(self, node: Node) -> frozenset[int]:
        """Messages that have come and that wait by config/timercheck, which RocketMQ has written."""
        read_ms, _, offset, _ = _check(node)
        queue = {int(row["properties"]["n"]): place[1] for place, row in of_log(node.store, TIMER_TOPIC).items()}
        waited = self.came(node).keys() & queue.keys()  # some were due when they were taken
        return frozenset(n for n in waited if (self.due_ms[n] - 1) // 1000 * 1000 >= read_ms or queue[n] >= offset)


def _check(node: Node) -> tuple[int, ...]:
    """Read time, position in the timer log, queue offset and the master's, of config/timercheck."""
    return struct.unpack(">4q", (node.store / "config" / "timercheck").read_bytes()[:32])


def doubles_of_ours(came: dict[int, list[int]], owners: list[Ownership]) -> dict[int, list[int]]:
    """Messages that came twice, though Apache's broker neither stored both nor told that they wait still."""

    def owner(stored_ms: int) -> Ownership:
        (found,) = (item for item in owners if item.began_ms <= stored_ms <= item.ended_ms)
        return found

    def is_apaches(number: int, first: Ownership, second: Ownership) -> bool:
        return first.is_apaches and (first is second or number in first.told)

    pairs = {number: list(pairwise(map(owner, sorted(times)))) for number, times in came.items()}
    return {
        number: came[number] for number, found in pairs.items() if not all(is_apaches(number, *pair) for pair in found)
    }


def test_doubles_are_told_apart() -> None:
    first, second, third = Ownership(False, 0, 9), Ownership(True, 10, 19, frozenset([5])), Ownership(False, 20, 29)
    came = {0: [3], 1: [3, 4], 2: [3, 12], 3: [12, 14], 4: [12, 21], 5: [12, 21], 6: [5, 12, 13], 7: [11, 12, 25]}
    assert sorted(doubles_of_ours(came, [first, second, third])) == [1, 2, 4, 6, 7]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_timers_go_on_when_the_store_changes_hands(lab: Lab, end: str) -> None:
    lab.start_our_name_server()
    sizes = {"mappedFileSizeTimerLog": str(20 * 52 + 16)}  # several files
    # else it drops what is due before it takes messages as a new master, after three tries
    keys = {"timerWheelEnable": "true", "timerEnableRetryUntilSuccess": "true"}
    ours = lab.our_broker("ours", totalReplicas="1", **sizes)
    apaches = lab.java_broker("apaches", storePathRootDir=str(ours.store), **keys, **sizes)
    apaches.store = ours.store
    timed = Timed()
    doubles: list[int] = []
    owners: list[Ownership] = []
    for node in (ours, apaches, ours, apaches, ours):
        owners.append(Ownership(node is apaches, now_ms()))
        lab.run(node)
        is_master(lab, node)
        timed.send(node, LATE_DELAYS_S if len(owners) <= 2 else ())
        timed.wait_for_soon(node)
        doubles.append(sum(len(times) - 1 for times in timed.came(node).values()))
        timed.send_last(node)
        if end == "kill":
            node.running.kill()
        else:
            assert node.running.stop() in (0, 143)
        owners[-1].ended_ms = now_ms()
        if node is apaches:
            owners[-1].told = timed.told(node)
    owners.append(Ownership(False, now_ms()))
    lab.run(ours)
    timed.wait(ours, max(timed.due_ms.values()))
    owners[-1].ended_ms = now_ms()
    came = timed.came(ours)
    early = {number: times for number, times in came.items() if min(times) < timed.due_ms[number]}
    assert not early
    assert sorted(came) == sorted(timed.due_ms)
    print(end, "doubles before the end of each owner", doubles, Counter(map(len, came.values())))
    if end == "stop":
        assert not doubles_of_ours(came, owners), owners


def test_a_golden_store_with_its_wheel_goes_on_in_turn(lab: Lab) -> None:
    """n0, which Apache's broker left while five messages waited: ours delivers them, and Apache's and ours what was
    sent to each."""
    lab.start_our_name_server()
    facts = manifest()["config"]
    sizes = {name: str(value) for name, value in facts.items() if "Size" in name or name.startswith("max")}
    sizes |= {"maxMessageSize": "500000", "totalReplicas": "1"}
    keys = {"timerWheelEnable": "true", "timerEnableRetryUntilSuccess": "true"}
    ours = lab.our_broker("ours", **sizes)
    apaches = lab.java_broker("apaches", storePathRootDir=str(ours.store), **keys, **sizes)
    apaches.store = ours.store
    ours.store.parent.mkdir()
    unpack_golden("store/n0", "n0", ours.store)
    unpack("n0-timerwheel", ours.store.parent)
    (ours.store.parent / "n0" / "timerwheel").rename(ours.store / "timerwheel")
    rows = [row["properties"] for row in of_log(ours.store, TIMER_TOPIC).values()]
    topics = {row["UNIQ_KEY"]: row["REAL_TOPIC"] for row in rows}
    before = golden_copies(ours, topics)
    assert len(topics) == 15 and len(before) == 10 and set(before.values()) == {1}
    timed = Timed(GOLDEN_DELAYS_S)
    for turn, node in enumerate((ours, apaches, ours)):
        lab.run(node)
        is_master(lab, node)
        until("the old ones are there", lambda: len(golden_copies(ours, topics)) == 15, TIMEOUT_S, node.running)
        timed.send(node)
        timed.wait_for_soon(node)
        if turn == 2:
            timed.wait(node, max(timed.due_ms.values()))
        assert node.running.stop() in (0, 143)
    assert golden_copies(ours, topics) == dict.fromkeys(topics, 1)
    came = timed.came(ours)
    assert sorted(came) == sorted(timed.due_ms)
    assert not {number: times for number, times in came.items() if min(times) < timed.due_ms[number]}


def golden_copies(node: Node, topics: dict[str, str]) -> Counter[str]:
    """Number of delivered copies by unique key. `topics`: those for which they wait."""
    return Counter(
        row["properties"]["UNIQ_KEY"]
        for topic in set(topics.values())
        for row in of_log(node.store, topic).values()
        if row["properties"].get("UNIQ_KEY") in topics and "TIMER_OUT_MS" in row["properties"]
    )
