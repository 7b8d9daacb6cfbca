"""The four measurements: sends, reads, the way from producer to consumer, and replication to slaves."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendStatus
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.ops.asking import ask
from rmqha.ops.bench.figures import Figures, times
from rmqha.ops.bench.histogram import LatencyHistogram
from rmqha.ops.bench.pace import Pace, Run, run_paced
from rmqha.ops.bench.topic import HEADER, BenchTarget
from rmqha.ops.group_view import find_groups
from rmqha.wire.command import Command

GROUP = "rmqha-bench"
PROBE = -1
WARM_UP_S = 15.0
DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a benchmark. `timeout_ms`: time for which a message is tried, through failovers."""

    namesrv: str
    target: BenchTarget
    pace: Pace
    size_bytes: int
    timeout_ms: int


def paced(
    namesrv: str,
    target: BenchTarget,
    rate: float,
    limit_s: float,
    limit_count: int | None,
    window: int,
    timeout_s: float,
    size_bytes: int,
) -> Load:
    """The load of a command's options; messages are tried for `timeout_s`, and the last ones are waited for as long."""
    pace = Pace(rate, limit_s, limit_count, window, timeout_s)
    return Load(namesrv, target, pace, size_bytes, max(1, round(timeout_s * 1000)))


class _Sender:
    """Sends bodies and keeps the counts."""

    def __init__(self, load: Load, producer: Producer, figures: Figures, run: Run, run_id: bytes) -> None:
        self._load = load
        self._producer = producer
        self._figures = figures
        self._run = run
        self._run_id = run_id
        self._filling = os.urandom(max(0, load.size_bytes - HEADER.size))
        """Random bytes: with others a store that compresses would seem faster than it is."""
        self.stored: set[int] = set()
        self.records_latency = True

    def body(self, number: int) -> bytes:
        return HEADER.pack(self._run_id, number) + self._filling

    async def send(self, number: int, due_ns: int) -> None:
        counts, message = self._figures.counts, OutgoingMessage(self._load.target.topic, self.body(number))
        try:
            result = await self._producer.send_message(message, timeout_ms=self._load.timeout_ms)
        except RmqhaError as error:
            counts["failed"] += 1
            code = error.code if isinstance(error, RemoteError) else ""
            self._figures.add_failure(f"{type(error).__name__} {code}", str(error))
            return
        self.stored.add(number)
        counts["retried"] += result.tries > 1
        counts["duplicatesPossible"] += result.copies_possible
        if result.status is SendStatus.SEND_OK:
            counts["acknowledged"] += 1
        else:
            counts["weak"] += 1
            self._figures.add_failure(result.status.name, f"stored, but {result.status.name}")
        if self.records_latency:
            self._run.ended(due_ns)


def _counts(*names: str) -> dict[str, int]:
    return dict.fromkeys(("offered", "acknowledged", "weak", "failed", "unanswered", "retried", *names), 0)


def _closed(figures: Figures, run: Run) -> None:
    figures.counts["offered"], figures.counts["unanswered"] = run.offered, run.unanswered
    figures.elapsed_s, figures.interrupted, figures.late = run.elapsed_s, run.interrupted, run.late


async def produce(load: Load) -> Figures:
    """Latency of sends at a fixed rate, from the intended send to the acknowledgement."""
    run = Run()
    figures = Figures(
        "produce", "from the intended send to its answer", load.target.topic, load.size_bytes, load.pace.rate
    )
    figures.latency, figures.counts = run.latency, _counts("duplicatesPossible")
    async with Producer(load.namesrv, GROUP) as producer:
        await producer.route(load.target.topic)
        sender = _Sender(load, producer, figures, run, secrets.token_bytes(16))
        await run_paced(load.pace, run, sender.send)
    _closed(figures, run)
    figures.done = figures.counts["acknowledged"] + figures.counts["weak"]
    return figures


async def consume(
    namesrv: str, target: BenchTarget, *, limit_s: float, limit_count: int | None, idle_s: float
) -> Figures:
    """Throughput of reads from the beginning of the topic, and how long the reader waited for each batch."""
    figures = Figures("consume", "wait for the next batch", target.topic, 0)
    size_bytes, last = 0, time.monotonic()
    started = last
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(
            Consumer(namesrv, GROUP, target.topic, start="first", standalone=True)
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(_interrupt, nursery.cancel_scope, figures)
        while figures.done < (limit_count or 1 << 62):
            asked_ns = time.monotonic_ns()
            left_s = started + limit_s - time.monotonic()
            with trio.move_on_after(max(0.0, min(idle_s, left_s))) as scope:
                batch = await consumer.receive_batch()
            if scope.cancelled_caught:
                break
            figures.latency.record((time.monotonic_ns() - asked_ns) // 1000)
            figures.done += len(batch)
            size_bytes += sum(len(message.body) for message in batch)
            last = time.monotonic()
        nursery.cancel_scope.cancel()
    figures.elapsed_s = last - started
    figures.size_bytes = round(size_bytes / figures.done) if figures.done else 0
    figures.counts = {"batches": figures.latency.count}
    return figures


async def _interrupt(scope: trio.CancelScope, figures: Figures) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            figures.interrupted = True
            scope.cancel()


# --- the whole way ----------------------------------------------------------------------------------------------------
class _Reader:
    """Receives what one run sends."""

    def __init__(self, run_id: bytes, run: Run) -> None:
        self._run_id = run_id
        self._run = run
        self.due_ns: dict[int, int] = {}
        self.received: set[int] = set()
        self.duplicates = 0
        self._news = trio.Event()
        self.open: set[tuple[str, int]] = set()
        """Queues (group, number) from which a message came."""

    async def has_all(self, stored: set[int]) -> None:
        """Wait until everything in `stored`, which grows no more, has come."""
        while True:
            news = self._news
            if stored <= self.received:
                return
            await news.wait()

    async def read(self, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            for message in batch:
                body = message.body
                if len(body) < HEADER.size:
                    continue
                run_id, number = HEADER.unpack_from(body)
                if run_id != self._run_id:
                    continue
                if number == PROBE:
                    self.open.add((message.broker_name, message.queue_id))
                elif number in self.received:
                    self.duplicates += 1
                else:
                    self.received.add(number)
                    self._run.ended(self.due_ns[number])
            self._news.set()
            self._news = trio.Event()


async def e2e(load: Load) -> Figures:
    """Latency of the whole way, from the intended send to the receipt, and that nothing stored is missing."""
    run, run_id = Run(), secrets.token_bytes(16)
    figures = Figures(
        "e2e", "from the intended send to the receipt", load.target.topic, load.size_bytes, load.pace.rate
    )
    figures.latency, figures.counts = run.latency, _counts("duplicatesPossible", "received", "duplicates", "lost")
    reader = _Reader(run_id, run)
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(load.namesrv, GROUP))
        consumer = Consumer(load.namesrv, GROUP, load.target.topic, start="last", standalone=True)
        await stack.enter_async_context(consumer)
        sender = _Sender(load, producer, figures, run, run_id)
        sender.records_latency = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read, consumer)
            await _open_way(load, producer, sender, reader)
            await run_paced(load.pace, run, sender.send, reader.due_ns.__setitem__)
            with trio.move_on_after(0 if run.interrupted else DRAIN_S):
                await reader.has_all(sender.stored)
            nursery.cancel_scope.cancel()
    _closed(figures, run)
    figures.done = figures.counts["received"] = len(reader.received)
    figures.counts["duplicates"] = reader.duplicates
    lost = sender.stored - reader.received
    figures.counts["lost"] = 0 if run.interrupted else len(lost)
    for number in sorted(lost):
        run.ended(reader.due_ns[number])
    return figures


async def _open_way(load: Load, producer: Producer, sender: _Sender, reader: _Reader) -> None:
    """Send until a message came from every queue: messages sent before the consumer has begun there are never seen."""
    queues = {(queue.broker_name, queue.queue_id) for queue in (await producer.route(load.target.topic)).write_queues()}
    with trio.move_on_after(WARM_UP_S):
        while queues - reader.open:
            for _ in queues:
                await producer.send(load.target.topic, sender.body(PROBE), timeout_ms=load.timeout_ms)
            await trio.sleep(0.05)
    silent = queues - reader.open
    if silent:
        names = ", ".join(f"{group}:{number}" for group, number in sorted(silent))
        raise UnreachableError(f"nothing came from the queues {names} of {load.target.topic} within {WARM_UP_S:g} s")


# --- replication ------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Follower:
    """Lag of one slave, or of the confirm offset, behind the master."""

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    lag_bytes: LatencyHistogram = field(default_factory=LatencyHistogram)
    bytes_per_second: int = 0
    last_offset: int | None = None
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Samples that wait: (offset to reach, time in ns at which it was not reached)."""
    asked_ns: int = 0

    def seen(self, now_ns: int, end_offset: int, reached: int) -> None:
        """Note a sample: the master's log ends at `end_offset`, this one at `reached`. Bytes appended between two
        samples count from the first of them, so that latencies are too high rather than too low."""
        self.lag_bytes.record(end_offset - reached)
        if self.last_offset is None:
            # it may have come long ago: only a slave that is behind tells something
            self.waiting += [(end_offset, now_ns)] if reached < end_offset else []
        elif end_offset > self.last_offset:
            self.waiting.append((end_offset, self.asked_ns))
        elif end_offset < self.last_offset:
            self.waiting.clear()  # another master, whose log ends before
        self.last_offset, self.asked_ns = end_offset, now_ns
        while self.waiting and self.waiting[0][0] <= reached:
            self.latency.record((now_ns - self.waiting.popleft()[1]) // 1000)

    def ended(self, now_ns: int) -> None:
        for _, since_ns in self.waiting:
            self.latency.record((now_ns - since_ns) // 1000)

    def as_dict(self) -> dict[str, Any]:
        return {
            "microseconds": times(self.latency),
            "lagBytes": {
                "p50": self.lag_bytes.percentile(50),
                "p99": self.lag_bytes.percentile(99),
                "max": self.lag_bytes.max,
            },
            "unreached": len(self.waiting),
        }


class MasterSampler:
    """Samples of a group's master: how long after its log each slave, and the confirm offset, had a byte."""

    def __init__(self) -> None:
        self.slaves: dict[int, _Follower] = {}
        self.confirm = _Follower()
        self.masters: list[str] = []
        self.sample_count = 0
        self.failures = 0
        self.first_offset: int | None = None
        self.last_offset = 0

    def seen(self, now_ns: int, address: str, state: Mapping[str, Any]) -> None:
        """Note a sample: `state` is a master's answer to request 52000."""
        if address not in self.masters[-1:]:
            self.masters.append(address)
        end_offset = int(state["maxPhyOffset"])
        self.sample_count += 1
        self.first_offset = end_offset if self.first_offset is None else self.first_offset
        self.last_offset = end_offset
        self.confirm.seen(now_ns, end_offset, int(state["confirmOffset"]))
        for slave in state.get("slaves", []):
            if slave["ackOffset"] is not None and slave["brokerId"] is not None:
                follower = self.slaves.setdefault(int(slave["brokerId"]), _Follower())
                follower.seen(now_ns, end_offset, int(slave["ackOffset"]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples": self.sample_count,
            "unansweredSamples": self.failures,
            "masters": self.masters,
            "bytes": self.last_offset - (self.first_offset or 0),
            "confirm": self.confirm.as_dict(),
            "slaves": {str(broker_id): slave.as_dict() for broker_id, slave in sorted(self.slaves.items())},
        }


async def replicate(load: Load, group: str, interval_s: float) -> Figures:
    """Measure how fast the slaves of a group acknowledge, from what its master tells of them each `interval_s`, under
    the load of `produce`; at rate 0 only watched."""
    run, watch = Run(), MasterSampler()
    measured = f"until the confirm offset had it, at most (asked each {interval_s * 1000:g} ms)"
    figures = Figures("replicate", measured, load.target.topic, load.size_bytes, load.pace.rate or None)
    figures.latency, figures.counts = watch.confirm.latency, _counts("duplicatesPossible")
    async with RemotingClient() as client, Producer(load.namesrv, GROUP) as producer:
        first = await _master(client, load.namesrv, group)
        await _require_ours(client, first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, client, load.namesrv, group, first, interval_s, watch)
            if load.pace.rate:
                sender = _Sender(load, producer, figures, run, secrets.token_bytes(16))
                await run_paced(load.pace, run, sender.send)
                _closed(figures, run)
            else:
                await _only_watch(load.pace.limit_s, figures)
            # the last acknowledgements
            await trio.sleep(0 if figures.interrupted else 2 * interval_s)
            nursery.cancel_scope.cancel()
    for follower in (watch.confirm, *watch.slaves.values()):
        follower.ended(time.monotonic_ns())
    figures.done = figures.counts["acknowledged"] + figures.counts["weak"]
    figures.extra = {"group": group, **watch.as_dict()}
    return figures


async def _require_ours(client: RemotingClient, address: str) -> None:
    try:
        await ask(client, address, Command(RequestCode.RMQHA_GET_REPLICA_STATE))
    except RemoteError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise UsageError(f"the master {address} is Apache RocketMQ's and tells nothing of its slaves") from None
        raise


async def _only_watch(limit_s: float, figures: Figures) -> None:
    started = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limit_s
        nursery.start_soon(_interrupt, nursery.cancel_scope, figures)
    figures.elapsed_s = time.monotonic() - started


async def _watch(
    client: RemotingClient, namesrv: str, group: str, address: str, interval_s: float, watch: MasterSampler
) -> None:
    while True:
        try:
            state = json.loads(bytes((await ask(client, address, Command(RequestCode.RMQHA_GET_REPLICA_STATE))).body))
            if state.get("role") == "MASTER":
                watch.seen(time.monotonic_ns(), address, state)
            else:
                address = await _master(client, namesrv, group)
        except (RmqhaError, ValueError, KeyError, TypeError):
            watch.failures += 1
            await trio.sleep(interval_s)
            try:
                address = await _master(client, namesrv, group)
            except RmqhaError:
                watch.failures += 1
        await trio.sleep(interval_s)


async def _master(client: RemotingClient, namesrv: str, group: str) -> str:
    groups = await find_groups(client, namesrv)
    if group not in groups:
        raise UsageError(f"the name servers {namesrv} know no group {group}; there are {_list(groups)}")
    found = next((view.address for view in groups[group].brokers if view.routed_id == 0), "")
    if not found:
        raise UnreachableError(f"group {group} has no master; see rmqha explain {group}")
    return found


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
