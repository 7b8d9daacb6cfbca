"""One store whose popped messages are in flight while ours and Apache's broker own it in turn: what was acknowledged
does not come again, everything else does, after its invisible time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.wire.command import Command
from tests.broker.pop.world import Popped, messages, named, pop_command
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import GROUP as BROKER_NAME
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

TOPIC, GROUP = "PoppedTopic", "Poppers"
COUNT = 8
"""Messages of each owner: the first half is acknowledged at once, the next quarter under the next owner."""
INVISIBLE_MS = 25_000


def asked(node: Node, command: Command) -> Command | None:
    return call(node.address, command.code, dict(command.ext), bytes(command.body or b""))


@dataclass
class Pops:
    given: dict[int, list[Popped]] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    sure: set[int] = field(default_factory=set)
    """Acknowledged, and must not come again."""
    clean_from: int = 0
    """Messages from this one on are held to that, and to their times."""
    due_ms: dict[int, int] = field(default_factory=dict)
    """Time before which one must not come again."""
    late: list[Popped] = field(default_factory=list)
    """To be acknowledged under the next owner."""
    sent_count: int = 0

    def send(self, node: Node) -> None:
        for _ in range(COUNT):
            number = self.sent_count
            ext = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
            ext |= {"i": encode_properties({"UNIQ_KEY": f"KEY{number}", "n": str(number)}).decode(), "k": "false"}

            def is_taken(ext: dict[str, str] = ext) -> bool:
                reply = call(node.address, RequestCode.SEND_MESSAGE_V2, {**ext, "m": "false"}, b"popped")
                return reply is not None and reply.code == ResponseCode.SUCCESS

            until("it takes messages", is_taken, TIMEOUT_S, node.running)
            self.sent_count += 1

    def pop(self, node: Node) -> list[Popped]:
        """Once. Nothing comes that was acknowledged, or before its time."""
        command = pop_command(TOPIC, GROUP, invisibleTime=INVISIBLE_MS, pollTime=500, bornTime=_now_ms())
        reply = asked(node, command)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return []
        found = messages(reply, TOPIC, GROUP, BROKER_NAME)
        for message in found:
            number = int(decode_properties(message.record.properties)["n"])
            assert number not in self.sure, f"{number} was acknowledged and comes again"
            assert message.receipt.pop_ms >= self.due_ms.get(number, 0), f"{number} comes before its time"
            self.given.setdefault(number, []).append(message)
            if number >= self.clean_from:
                self.due_ms[number] = message.receipt.due_ms
        return found

    def ack(self, node: Node, message: Popped) -> None:
        number = int(decode_properties(message.record.properties)["n"])
        if message is not self.given[number][-1]:
            return

        def is_acked() -> bool:
            reply = asked(node, named(RequestCode.ACK_MESSAGE, message, GROUP))
            return reply is not None and reply.code == ResponseCode.SUCCESS

        until("it takes acknowledgements", is_acked, TIMEOUT_S, node.running)
        if _now_ms() < message.receipt.due_ms - 2000:  # later it may be coming again
            self.acked.add(number)
            if number >= self.clean_from:
                self.sure.add(number)

    def in_doubt(self) -> None:
        """A kill takes what Apache's broker holds in memory for seconds: offsets, checkpoints, acknowledgements. And it
        goes by the file of offsets, where our broker looks into the log. What came before comes again, some twice."""
        self.clean_from = self.sent_count
        self.sure.clear()
        self.due_ms.clear()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_pops_go_on_when_the_store_changes_hands(lab: Lab, end: str) -> None:
    lab.start_our_name_server()
    ours = lab.our_broker("ours", totalReplicas="1")
    apaches = lab.java_broker(
        "apaches", storePathRootDir=str(ours.store), timerWheelEnable="true", timerEnableRetryUntilSuccess="true"
    )
    apaches.store = ours.store
    pops = Pops()
    for node in (ours, apaches, ours):
        if end == "kill":
            pops.in_doubt()
        lab.run(node)
        is_master(lab, node)
        pops.send(node)  # before: Apache's broker answers acknowledgements well that its store does not take yet
        late, pops.late = pops.late, []
        for message in late:
            pops.ack(node, message)
        fresh: list[Popped] = []

        def has_new(node: Node = node, fresh: list[Popped] = fresh) -> bool:
            fresh += pops.pop(node)
            return len(pops.given) == pops.sent_count

        until("all are given", has_new, TIMEOUT_S, node.running)
        for message in fresh[: len(fresh) // 2]:
            pops.ack(node, message)
        pops.late = fresh[len(fresh) // 2 : len(fresh) * 3 // 4]
        if end == "kill":
            node.running.kill()
        else:
            assert node.running.stop() in (0, 143)
    lab.run(ours)
    is_master(lab, ours)

    def all_done() -> bool:
        for message in pops.pop(ours):
            pops.ack(ours, message)
        return len(pops.acked) == pops.sent_count

    until("what was not acknowledged has come again", all_done, TIMEOUT_S, ours.running)
    assert sorted(pops.given) == list(range(pops.sent_count))
    counts = [len(times) for times in pops.given.values()]
    print(end, "given", counts)
    assert max(counts) > 1
