"""Apache's proxy in front of our brokers, started by `rmqha proxy`, and clients that speak gRPC: all their kinds."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqha.ops.local.preflight import free_ports
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import consumed
from tests.interop.lab.processes import Process, accepts, until
from tests.interop.proxy.grpc_clients import GrpcClients, sent, tries
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

CLUSTER = "proxied"


class Front(NamedTuple):
    """A cluster of ours and a proxy, for all tests; each has topics and groups of its own."""

    lab: Lab
    cluster: LocalCluster
    proxy: Process
    endpoints: str
    command: list[str]


class Proxied(GrpcClients):
    """The clients of one test."""

    def __init__(self, front: Front, directory: Path) -> None:
        super().__init__(front.endpoints, front.command, directory)
        self.lab, self.cluster, self.proxy = front.lab, front.cluster, front.proxy

    def topic(self, topic: str, kind: str = "NORMAL", *, ordered: bool = False, retries: int = 16) -> None:
        where = ("-n", self.lab.name_server, "-c", CLUSTER)
        for command, *arguments in (
            ("updateTopic", "-t", topic, "-r", "4", "-w", "4", "-a", f"+message.type={kind}"),
            ("updateSubGroup", "-g", f"group-{topic}", "-o", str(ordered).lower(), "-r", str(retries)),
        ):
            code, _, errors = self.lab.mqadmin(command, *where, *arguments)
            assert code == 0, (command, errors)


@pytest.fixture(scope="module")
def front(java: Java, tmp_path_factory: pytest.TempPathFactory, grpc: list[str]) -> Iterator[Front]:
    scratch: Path = tmp_path_factory.mktemp("front")
    cluster, lab = LocalCluster(scratch, name=CLUSTER), Lab(java, scratch)
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        lab.name_server = cluster.namesrv
        port = free_ports(2)
        command = [sys.executable, "-m", "rmqha", "proxy", "--namesrv", cluster.namesrv, "--heap", "256m"]
        proxy = lab.start("proxy", [*command, "--grpc-port", str(port), "--remoting-port", str(port + 1)])
        endpoints = f"127.0.0.1:{port}"
        until("the proxy listens", lambda: accepts(endpoints), TIMEOUT_S, proxy)
        yield Front(lab, cluster, proxy, endpoints, grpc)
    finally:
        lab.close()
        cluster.down()


@pytest.fixture
def proxied(front: Front, tmp_path: Path) -> Iterator[Proxied]:
    found = Proxied(front, tmp_path)
    yield found
    found.close()
    front.lab.end_clients()


def test_push_consumers_get_each_message_and_again_what_failed(proxied: Proxied) -> None:
    proxied.topic("Pushed")
    consumer = proxied.client("push", "Pushed", "group-Pushed", "1")
    numbers = proxied.send("normal", "Pushed", 20)

    def twice() -> bool:
        found = Counter(item.number for item in tries(consumer))
        return len(found) == len(numbers) and min(found.values()) >= 2

    until("each is tried twice", twice, TIMEOUT_S, consumer, proxied.proxy)
    assert {item.attempt for item in tries(consumer)} >= {1, 2} and not proxied.refused()


def test_simple_consumers_acknowledge_and_give_back(proxied: Proxied) -> None:
    proxied.topic("Simple")
    numbers = proxied.send("normal", "Simple", 30)
    consumer = proxied.client("simple", "Simple", "group-Simple", "1")

    def twice() -> bool:
        found = Counter(item.number for item in tries(consumer))
        return len(found) == len(numbers) and min(found.values()) >= 2

    until("each is tried twice", twice, TIMEOUT_S, consumer, proxied.proxy)
    assert not proxied.refused()


def test_messages_of_one_group_keep_their_order(proxied: Proxied) -> None:
    proxied.topic("Fifo", "FIFO", ordered=True)
    consumer = proxied.client("push", "Fifo", "group-Fifo", "0")
    numbers = proxied.send("fifo", "Fifo", 60)
    until("all are consumed", lambda: {item.number for item in tries(consumer)} == set(numbers), TIMEOUT_S, consumer)
    groups: dict[int, list[int]] = defaultdict(list)
    for item in tries(consumer):
        groups[item.number % 3].append(item.number)
    assert all(found == sorted(found) for found in groups.values())


@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_what_never_succeeds_is_found_among_the_dead_letters(proxied: Proxied, kind: str) -> None:
    """In order the client gives it up itself, else the proxy does, which finds that it has come too often."""
    topic = f"Dead-{kind}"
    proxied.topic(topic, kind.upper(), ordered=kind == "fifo", retries=1)
    consumer = proxied.client("push", topic, f"group-{topic}", "99")
    numbers = proxied.send(kind, topic, 6)
    dead = proxied.lab.client("Consume", f"%DLQ%group-{topic}", "pull", "undertaker")
    until("all are dead", lambda: consumed(dead) == set(numbers), TIMEOUT_S, consumer, proxied.proxy, dead)
    attempts = Counter(item.number for item in tries(consumer))
    assert attempts == dict.fromkeys(numbers, 2) and not proxied.refused()


def test_delayed_messages_come_at_their_time(proxied: Proxied) -> None:
    proxied.topic("Delayed", "DELAY")
    consumer = proxied.client("push", "Delayed", "group-Delayed", "0")
    numbers = proxied.send("delay", "Delayed", 5)
    until("all are consumed", lambda: {item.number for item in tries(consumer)} == set(numbers), TIMEOUT_S, consumer)
    assert min(item.late_ms for item in tries(consumer)) >= 0


def test_transactions_are_committed_and_rolled_back(proxied: Proxied) -> None:
    proxied.topic("Transacted", "TRANSACTION")
    consumer = proxied.client("push", "Transacted", "group-Transacted", "0")
    numbers = proxied.send("transaction", "Transacted", 10)
    committed = {number for number in numbers if number % 2 == 0}
    until(
        "what is committed is consumed",
        lambda: {item.number for item in tries(consumer)} == committed,
        TIMEOUT_S,
        consumer,
    )


def test_nothing_is_missing_when_the_master_dies(proxied: Proxied) -> None:
    """Last: two replicas are left."""
    proxied.topic("Dying")
    consumer = proxied.client("push", "Dying", "group-Dying", "0")
    sender = proxied.client("normal", "Dying", "0", "1000", "10")
    until("the consumer works", lambda: len(tries(consumer)) > 200, TIMEOUT_S, consumer, sender)
    os.kill(proxied.cluster.node(proxied.cluster.master())["pid"], signal.SIGKILL)
    assert sender.wait(TIMEOUT_S) == 0, sender.tail()
    numbers = set(sent(sender))
    until("all are consumed", lambda: {item.number for item in tries(consumer)} >= numbers, TIMEOUT_S, consumer)
    assert len(numbers) == 1000
