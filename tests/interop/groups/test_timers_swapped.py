"""One store whose timer messages wait while ours and Apache's broker own it in turn: none is missing, none early."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.log_rows import of_log
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

TOPIC = "TimedTopic"
DELAYS_S = (3, 4, 5, 25, 26, 27, 60, 61, 90)
"""Of what each owner is sent, three times each: due under itself, under the next one, later."""


def is_taken(node: Node, ext: dict[str, str]) -> bool:
    """False while a new master is not ready; nothing is stored then."""
    reply = call(node.address, RequestCode.SEND_MESSAGE_V2, ext, b"timed")
    assert reply is not None and reply.code in (ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE), reply
    return reply.code == ResponseCode.SUCCESS


class Timed:
    """What was sent, and what is in the log of it."""

    def __init__(self) -> None:
        self.due_ms: dict[int, int] = {}

    def send(self, node: Node) -> None:
        for delay_s in DELAYS_S * 3:
            number, at_ms = len(self.due_ms), time.time_ns() // 1_000_000 + delay_s * 1000
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

    def wait(self, node: Node, until_ms: int) -> None:
        """All that is due by then has come."""
        numbers = {number for number, at_ms in self.due_ms.items() if at_ms <= until_ms}
        until(f"{len(numbers)} have come", lambda: numbers <= set(self.came(node)), TIMEOUT_S, node.running)


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
    for node in (ours, apaches, ours, apaches, ours):
        lab.run(node)
        is_master(lab, node)
        timed.send(node)
        timed.wait(node, max(timed.due_ms.values()) - 85_000)
        doubles.append(sum(len(times) - 1 for times in timed.came(node).values()))
        if end == "kill":
            node.running.kill()
        else:
            assert node.running.stop() in (0, 143)
    lab.run(ours)
    timed.wait(ours, max(timed.due_ms.values()))
    came = timed.came(ours)
    early = {number: times for number, times in came.items() if min(times) < timed.due_ms[number]}
    assert not early
    assert sorted(came) == sorted(timed.due_ms)
    print(end, "doubles after each owner", doubles, Counter(map(len, came.values())))
    if end == "stop":
        assert doubles[-1] == 0 and set(map(len, came.values())) == {1}
