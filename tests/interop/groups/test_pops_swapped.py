"""One store whose popped messages are in flight while ours and Apache's broker own it in turn: what was acknowledged
does not come again, everything else does, after its invisible time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import REVIVE_TOPIC_PREFIX, TIMER_TOPIC, decode_properties, encode_properties
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import retry_topic
from tests.broker.pop.world import Popped, messages, named, pop_command
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import CLUSTER, Lab, Node
from tests.interop.lab.lab import GROUP as BROKER_NAME
from tests.interop.lab.log_rows import of_log
from tests.interop.lab.processes import call, until

pytestmark = pytest.mark.interop

TOPIC, GROUP = "PoppedTopic", "Poppers"
RETRY_TOPIC, REVIVE_TOPIC = retry_topic(TOPIC, GROUP), REVIVE_TOPIC_PREFIX + CLUSTER
COUNT = 8
"""Messages of each owner: the first half is acknowledged at once, the next quarter under the next owner."""
INVISIBLE_MS = 15_000
TELLING = ("n", "UNIQ_KEY", "TAGS", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "1ST_POP_TIME")
"""Properties that tell of a record."""


def asked(node: Node, command: Command) -> Command | None:
    return call(node.address, command.code, dict(command.ext), bytes(command.body or b""))


@dataclass
class Pops:
    store: Path
    invisible_ms: int = INVISIBLE_MS
    apaches_ms: tuple[int, int] = (0, 0)
    """Wall clock of the start and the end of the time in which Apache's broker has the store."""
    history: list[str] = field(default_factory=list)
    """Who answered what when, for a failing test."""
    given: dict[int, list[Popped]] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    """Acknowledged at last, perhaps so late that they come again."""
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
        command = pop_command(TOPIC, GROUP, invisibleTime=self.invisible_ms, pollTime=500, bornTime=now_ms())
        reply = asked(node, command)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return []
        found = messages(reply, TOPIC, GROUP, BROKER_NAME)
        for message in found:
            number, record, receipt = number_of(message), message.record, message.receipt
            self.history.append(
                f"{number} at {now_ms()} given by {node.name}: {receipt.kind}/{record.queue_id}/{record.queue_offset},"
                f" popped {receipt.pop_ms}, due {receipt.due_ms}"
            )
            if number in self.given and self._is_doubled_by_apaches(self.given[number]):
                self.sure.discard(number)
                self.due_ms.pop(number, None)
            if number in self.sure:
                raise AssertionError(f"{number} was acknowledged and comes again\n{self._of(number)}")
            if receipt.pop_ms < self.due_ms.get(number, 0):
                raise AssertionError(f"{number} comes before its time\n{self._of(number)}")
            self.given.setdefault(number, []).append(message)
            self.acked.discard(number)
            if number >= self.clean_from:
                self.due_ms[number] = message.receipt.due_ms
        return found

    def ack(self, node: Node, message: Popped) -> None:
        number = number_of(message)
        if message is not self.given[number][-1]:
            return

        def is_acked() -> bool:
            reply = asked(node, named(RequestCode.ACK_MESSAGE, message, GROUP))
            code = None if reply is None else reply.code
            self.history.append(f"{number} at {now_ms()} acknowledged, {node.name} answers {code}")
            return reply is not None and reply.code == ResponseCode.SUCCESS

        until("it takes acknowledgements", is_acked, TIMEOUT_S, node.running)
        self.acked.add(number)
        if number >= self.clean_from and now_ms() < message.receipt.due_ms - 2000:  # later it may be coming again
            self.sure.add(number)

    def in_doubt(self) -> None:
        """A kill takes what Apache's broker holds in memory for seconds: offsets, checkpoints, acknowledgements. And it
        goes by the file of offsets, where our broker looks into the log. What came before comes again, some twice."""
        self.clean_from = self.sent_count
        self.sure.clear()
        self.due_ms.clear()

    def _is_doubled_by_apaches(self, given: list[Popped]) -> bool:
        """True if the log shows that Apache's broker put a checkpoint of these into the revive topic a second time, as
        it does with timer messages (test_timers_swapped.py): its messages come again for each."""
        keys = {
            f"{item.topic}@{item.receipt.queue_id}@{item.receipt.start_offset}@{GROUP}@{item.receipt.pop_ms}"
            f"@{BROKER_NAME}@ck"
            for item in given
        }
        began_ms, ended_ms = self.apaches_ms
        stored: dict[str, list[int]] = {}
        for row in of_log(self.store, REVIVE_TOPIC).values():
            stored.setdefault(row["properties"].get("UNIQ_KEY", ""), []).append(row["storeTimestamp"])
        return any(
            len(stored.get(key, [])) > 1 and began_ms <= max(stored[key]) <= (ended_ms or now_ms()) for key in keys
        )

    def _of(self, number: int) -> str:
        return "\n".join(line for line in self.history if line.startswith(f"{number} "))

    def told(self, store: Path) -> str:
        """Tell what was answered, and what the store knows of it."""
        lines = ["", "--- answers", *self.history]
        for topic in (TOPIC, RETRY_TOPIC, REVIVE_TOPIC, TIMER_TOPIC):
            lines.append(f"--- {topic}")
            for (queue_id, offset), row in of_log(store, topic).items():
                properties = row["properties"]
                said = " ".join(f"{name}={properties[name]}" for name in TELLING if name in properties)
                lines.append(f"{row['physicalOffset']} {queue_id}/{offset} stored {row['storeTimestamp']} {said}")
        for path in sorted((store / "config").glob("consumerOffset.json*")):
            lines += [f"--- {path.name}", path.read_text()]
        return "\n".join(lines)


@contextmanager
def explained(pops: Pops, node: Node) -> Iterator[None]:
    """A failure tells all of it."""
    try:
        yield
    except AssertionError as error:
        error.add_note(pops.told(node.store))
        raise


def keeps_what_is_popped(apaches: Node) -> None:
    """Apache's broker begins as a slave: one thread of it (PopBufferMergeService) then sleeps for five seconds and
    drops which offsets were popped meanwhile, whatever the broker has become. They are given once more. The same thread
    commits what is popped, so that all is well once it has done so."""

    def is_committed() -> bool:
        asked(
            apaches, pop_command(TOPIC, "Probe", maxMsgNums=1, invisibleTime=600_000, pollTime=500, bornTime=now_ms())
        )
        ext = {"consumerGroup": "Probe", "topic": TOPIC, "queueId": "0"}
        reply = call(apaches.address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return reply is not None and reply.code == ResponseCode.SUCCESS and int(reply.ext["offset"]) > 0

    until("it commits what is popped", is_committed, TIMEOUT_S, apaches.running)


def number_of(message: Popped) -> int:
    return int(decode_properties(message.record.properties)["n"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_pops_go_on_when_the_store_changes_hands(lab: Lab, end: str) -> None:
    lab.start_our_name_server()
    ours = lab.our_broker("ours", totalReplicas="1")
    apaches = lab.java_broker(
        "apaches", storePathRootDir=str(ours.store), timerWheelEnable="true", timerEnableRetryUntilSuccess="true"
    )
    apaches.store = ours.store
    pops = Pops(ours.store)
    with explained(pops, ours):
        go_on(lab, ours, apaches, pops, end)


def go_on(lab: Lab, ours: Node, apaches: Node, pops: Pops, end: str) -> None:
    for node in (ours, apaches, ours):
        if end == "kill":
            pops.in_doubt()
        if node is apaches:
            pops.apaches_ms = now_ms(), 0
        lab.run(node)
        is_master(lab, node)
        pops.send(node)  # before: Apache's broker answers acknowledgements well that its store does not take yet
        late, pops.late = pops.late, []
        for message in late:
            pops.ack(node, message)
        if node is apaches:
            keeps_what_is_popped(node)
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
        if node is apaches:
            pops.apaches_ms = pops.apaches_ms[0], now_ms()
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
