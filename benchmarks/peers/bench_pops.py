"""Messages popped and acknowledged from ours and from the real RocketMQ 5.4.0, by one bare client, in turns.

    python -m benchmarks --only pops

One replica each (controller mode, ASYNC_FLUSH, files of 1 GiB), both running all the time. The client is a program of
ours that keeps some pops on their way and acknowledges each message (32 a pop: with one request), so that both sides
have the same. Then of ours alone: the memory of pops that wait and of groups with messages in flight.
"""

from __future__ import annotations

import base64
import itertools
import select
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show
from benchmarks.peers.bench_peer import KINDS, started
from benchmarks.starts.bench_catchup import cpu_seconds
from benchmarks.starts.bench_start import memory
from rmqha.broker.pop.checkpoint import offsets_to_bits
from rmqha.client.consumers.message import MessageBatch
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import parse_address
from rmqha.model.message import PROPERTY_UNIQUE_KEY, encode_properties
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.lenient_json import dumps
from rmqha.wire.state.receipt import NORMAL, Receipt
from tests.broker.pop.world import pop_command
from tests.interop.lab.java import Java
from tests.interop.lab.lab import GROUP as BROKER_NAME
from tests.interop.lab.lab import Lab, Node

SENT_AT_ONCE = 100
BODY = b"x" * 128
WORKERS = {1: 16, 32: 8}
"""Pops on their way, by messages of one."""
INVISIBLE_MS = 60_000
TIMEOUT_MS = 20_000
LATENCY_COUNT = 50
WAITING = 10_000
POLLS_OF_GROUP = 1000
GROUPS_IN_FLIGHT = 1000
GROUPS_AT_ONCE = 250
_KEYS = itertools.count()


async def _ask(client: RemotingClient, node: Node, command: Command) -> Command:
    return await client.call(node.address, command, TIMEOUT_MS)


def _send_command(topic: str, queue_id: int) -> Command:
    """A send as Apache's Java client writes it: with a unique key, the fields in this order."""
    properties = encode_properties({PROPERTY_UNIQUE_KEY: f"{next(_KEYS):032X}", "WAIT": "true"}).decode()
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1", "h": "0"}
    return Command(RequestCode.SEND_MESSAGE_V2, {**ext, "i": properties, "j": "0", "k": "false", "m": "false"}, BODY)


async def _send(client: RemotingClient, node: Node, topic: str, count: int) -> None:
    """Plain sends, SENT_AT_ONCE on their way."""

    async def one(number: int) -> None:
        while True:
            reply = await _ask(client, node, _send_command(topic, number % 8))
            if reply.code != ResponseCode.SYSTEM_BUSY:  # RocketMQ's, while its file is new
                break
            await trio.sleep(0.01)
        assert reply.code == ResponseCode.SUCCESS, reply

    for start in range(0, count, SENT_AT_ONCE):
        async with trio.open_nursery() as nursery:
            for number in range(start, min(start + SENT_AT_ONCE, count)):
                nursery.start_soon(one, number)


def _acknowledgement(topic: str, group: str, reply: Command) -> tuple[Command, int]:
    """A request for all of a pop's messages, which are of `topic` itself: nothing comes again here. And how many."""
    starts = {
        int(words[1]): int(words[2]) for item in reply.ext["startOffsetInfo"].split(";") if (words := item.split())
    }
    pop_ms, invisible_ms, revive_id = (int(reply.ext[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
    offsets: dict[int, list[int]] = {}
    for view in MessageBatch(BROKER_NAME, reply.body):
        offsets.setdefault(view.queue_id, []).append(int(view.queue_offset))
    count = sum(map(len, offsets.values()))
    if count == 1:
        ((queue_id, (offset,)),) = offsets.items()
        receipt = Receipt(
            starts[queue_id], pop_ms, invisible_ms, revive_id, NORMAL, BROKER_NAME, queue_id, offset
        ).encode()
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        command = Command(RequestCode.ACK_MESSAGE, {**ext, "extraInfo": receipt})
    else:
        acks = [
            {
                "c": group, "t": topic, "r": NORMAL, "so": starts[queue_id], "q": queue_id, "rq": revive_id,
                "pt": pop_ms, "it": invisible_ms,
                "b": base64.b64encode(offsets_to_bits(starts[queue_id], found)).decode(),
            }
            for queue_id, found in offsets.items()
        ]  # fmt: skip
        command = Command(RequestCode.BATCH_ACK_MESSAGE, {}, dumps({"brokerName": BROKER_NAME, "acks": acks}))
    return command, count


async def _acknowledge(client: RemotingClient, node: Node, topic: str, group: str, reply: Command) -> int:
    command, count = _acknowledgement(topic, group, reply)
    answer = await _ask(client, node, command)
    assert answer.code == ResponseCode.SUCCESS, answer
    return count


async def _rate(node: Node, topic: str, count: int, seconds: float) -> dict[str, float]:
    """Messages a second that are popped, `count` at once, and acknowledged; CPU (us) of the broker for each."""
    async with RemotingClient() as client:
        await _send(client, node, topic, int(seconds * (12_000 if count > 1 else 3_000)))
        done, cpu_before, began = 0, cpu_seconds(node), time.perf_counter()
        with trio.move_on_after(seconds):

            async def work() -> None:
                nonlocal done
                while True:
                    command = pop_command(topic, "G", maxMsgNums=count, invisibleTime=INVISIBLE_MS)
                    reply = await _ask(client, node, command)
                    if reply.code != ResponseCode.SUCCESS:
                        return
                    count_now = await _acknowledge(client, node, topic, "G", reply)
                    done += count_now  # not in one statement: others add meanwhile

            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS[count]):
                    nursery.start_soon(work)
        taken = time.perf_counter() - began
    return {"rate": done / taken, "cpu us": (cpu_seconds(node) - cpu_before) / max(done, 1) * 1e6}


class _Line:
    """A connection that is written and read in the thread that measures: a client with tasks takes a millisecond
    itself."""

    def __init__(self, node: Node) -> None:
        self._socket = socket.create_connection(parse_address(node.address), timeout=TIMEOUT_MS / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = FrameParser(1 << 24)

    def write(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    @property
    def is_answered(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def read(self) -> Command:
        while True:
            data = self._socket.recv(64 * 1024)
            assert data, "the broker has closed the connection"
            if found := self._parser.feed(data):
                return found[0]

    def ask(self, command: Command) -> Command:
        self.write(encode_frame(command))
        return self.read()

    def close(self) -> None:
        self._socket.close()


async def _delay(node: Node, topic: str) -> dict[str, float]:
    """Median time (us) from the start of a send until a pop that waits has its message."""
    async with RemotingClient() as client:
        await _send(client, node, topic, 1)
    return {"delay": statistics.median(_delays(node, topic))}


def _delays(node: Node, topic: str) -> list[float]:
    popper, sender, found = _Line(node), _Line(node), list[float]()
    pop = encode_frame(pop_command(topic, "L", maxMsgNums=1, invisibleTime=INVISIBLE_MS, pollTime=10_000))
    send = encode_frame(_send_command(topic, 0))
    while len(found) < LATENCY_COUNT:
        popper.write(pop)
        time.sleep(0.05)  # it waits by now, or has been given a message that was left
        began = time.perf_counter()
        is_left = popper.is_answered
        if not is_left:
            sender.write(send)
        reply = popper.read()
        ended = time.perf_counter()
        if not is_left:
            assert sender.read().code == ResponseCode.SUCCESS
        if reply.code == ResponseCode.SUCCESS:
            command, _ = _acknowledgement(topic, "L", reply)
            assert sender.ask(command).code == ResponseCode.SUCCESS
            if not is_left:
                found.append((ended - began) * 1e6)
    popper.close()
    sender.close()
    return found


async def _waiting(node: Node) -> dict[str, float]:
    async with RemotingClient() as client, trio.open_nursery() as nursery:
        await _send(client, node, "Waited", 1)
        groups = [f"W{number}" for number in range(WAITING // POLLS_OF_GROUP)]
        for group in groups:
            reply = await _ask(client, node, pop_command("Waited", group, invisibleTime=INVISIBLE_MS))
            await _acknowledge(client, node, "Waited", group, reply)
        before = memory(node.running.pid)["RssAnon MiB"]

        async def poll(group: str) -> None:
            command = pop_command("Waited", group, invisibleTime=INVISIBLE_MS, pollTime=TIMEOUT_MS)
            await client.call(node.address, command, 2 * TIMEOUT_MS)

        for group in groups:
            for _ in range(POLLS_OF_GROUP):
                nursery.start_soon(poll, group)
            await trio.sleep(0.2)
        counts = [
            int((await _ask(client, node, Command(RequestCode.POLLING_INFO, ext))).ext["pollingNum"])
            for group in groups
            for ext in ({"consumerGroup": group, "topic": "Waited", "queueId": "-1"},)
        ]
        after = memory(node.running.pid)["RssAnon MiB"]
        nursery.cancel_scope.cancel()
    return {"waiting": sum(counts), "RssAnon MiB": after - before}


async def _in_flight(node: Node) -> dict[str, float]:
    async with RemotingClient() as client:
        await _send(client, node, "Flown", 32 * 8)
        names = [f"F{number}" for number in range(GROUPS_IN_FLIGHT)]
        for start in range(0, GROUPS_IN_FLIGHT, GROUPS_AT_ONCE):
            made = [{"groupName": name} for name in names[start : start + GROUPS_AT_ONCE]]
            body = dumps({"groupConfigList": made})
            answer = await _ask(client, node, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body))
            assert answer.code == ResponseCode.SUCCESS, answer
        before = memory(node.running.pid)["RssAnon MiB"]
        count = 0
        for name in names:
            command = pop_command("Flown", name, maxMsgNums=32, invisibleTime=600_000)
            reply = await _ask(client, node, command)
            assert reply.code == ResponseCode.SUCCESS, reply
            count += len(MessageBatch(BROKER_NAME, reply.body))
        after = memory(node.running.pid)["RssAnon MiB"]
    return {"in flight": count, "RssAnon MiB": after - before}


Measure = tuple[str, str, str, Callable[[Node, str], Coroutine[Any, Any, dict[str, float]]]]


def measures(seconds: float) -> list[Measure]:
    """(what, key, goal, how)."""
    return [
        ("32 a pop, messages/s", "rate", "≥ 1", lambda node, topic: _rate(node, topic, 32, seconds)),
        ("one a pop, messages/s", "rate", "≥ 1", lambda node, topic: _rate(node, topic, 1, seconds)),
        ("send → waiting popper, µs", "delay", "≤ 0.5", lambda node, topic: _delay(node, topic)),
    ]


def pops(scratch: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Rows of medians and of ratios. Raises MissingError without Java and Maven."""
    home = scratch / "java"
    home.mkdir()
    java = Java(home)
    sides: dict[str, tuple[Lab, Node]] = {}
    each: list[dict[str, dict[str, float]]] = []
    try:
        for kind in KINDS:
            sides[kind] = started(java, kind, scratch / kind, timerWheelEnable="true")
        for number in range(rounds):
            for place, (what, key, _, how) in enumerate(measures(seconds)):
                row = {}
                for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                    row[kind] = trio.run(how, sides[kind][1], f"Pops{number}x{place}")
                each.append({**row, "": {"place": place}})
                print(f"  {what}: " + ", ".join(f"{kind} {row[kind][key]:,.0f}" for kind in KINDS), flush=True)
        waiting = trio.run(_waiting, sides["ours"][1])
        in_flight = trio.run(_in_flight, sides["ours"][1])
    finally:
        for kind, (lab, _) in sides.items():
            lab.close()
            shutil.rmtree(scratch / kind)
    rows = []
    for place, (what, key, goal, _) in enumerate(measures(seconds)):
        found = [row for row in each if row[""]["place"] == place]
        ratios = [row["ours"][key] / row["rocketmq"][key] for row in found]
        ours, theirs = (statistics.median(row[kind][key] for row in found) for kind in KINDS)
        cpu = {f"cpu us, {kind}": statistics.median(row[kind].get("cpu us", 0.0) for row in found) for kind in KINDS}
        values = {"ours": ours, "theirs": theirs, "×": statistics.median(ratios), "goal": goal, **cpu}
        rows.append({"what": what, **values, "× from": min(ratios), "to": max(ratios)})
    show(f"A bare client pops and acknowledges: ours and RocketMQ 5.4.0, medians of {rounds} rounds", rows)
    show("Ours alone: memory", [{"what": "pops that wait", **waiting}, {"what": "groups in flight", **in_flight}])
    return {"seconds": seconds, "rows": rows, "waiting": waiting, "in flight": in_flight}
