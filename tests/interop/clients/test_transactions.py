"""Apache's TransactionMQProducer, unmodified: with our brokers through a master's death, and with a group of one broker
of ours and one of Apache's, where each goes on with what waits at the other. And ours, with a broker of Apache's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from rmqha.client import Consumer, Message, Outcome, OutgoingMessage, TransactionProducer
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, whole_set
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import Process, until
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S

pytestmark = pytest.mark.interop

SOON = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "transactionCheckMax": "1000"}

CAREFUL = {
    "brokerRole": "SYNC_MASTER",
    "allAckInSyncStateSet": "true",
    "inSyncReplicas": "2",
    "minInSyncReplicas": "2",
    "totalReplicas": "2",
}
"""Apache's way to lose nothing with a master."""


CLIENT_TIMEOUT_S = 3 * HANG_S
"""The client has its own patience for each step, and ends with what was missing."""


def wants_switch(client: Process, number: int) -> None:
    until("a switch is wanted", lambda: client.lines().count("SWITCH") == number, CLIENT_TIMEOUT_S, client)


def done(client: Process) -> None:
    assert client.wait(CLIENT_TIMEOUT_S) == 0, client.tail()
    assert client.lines()[-1] == "DONE", client.tail()


def test_through_the_masters_death(lab: Lab, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, name="transactions")
    text = cluster.path.read_text() + "".join(f"{key} = {value}\n" for key, value in SOON.items())
    cluster.path.write_text(text)
    try:
        up = cluster.up()
        assert up.returncode == 0, up.stderr
        lab.name_server = cluster.namesrv
        client = lab.client("Transactions", "TransactionTopic", "1")
        wants_switch(client, 1)
        os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)
        done(client)
    finally:
        cluster.down()


def test_apaches_broker_goes_on_with_ours_and_ours_with_apaches(lab: Lab) -> None:
    """Ours hands over, Apache's is killed: deposed alive it may not step down for a minute while transactions wait."""
    lab.start_our_name_server()
    ours = lab.our_broker("ours", haMode="cp", brokerElectionPriority="1", **SOON)
    apaches = lab.java_broker("apaches", **CAREFUL, **SOON)
    for node in (ours, apaches):
        lab.run(node)
    is_master(lab, ours)
    whole_set(lab, ours, apaches)
    client = lab.client("Transactions", "TransactionTopic", "2")
    wants_switch(client, 1)
    whole_set(lab, ours, apaches)
    elect(lab, apaches)
    wants_switch(client, 2)
    whole_set(lab, ours, apaches)  # who has left the set meanwhile would not be elected
    apaches.running.kill()
    done(client)


def test_the_python_producer_with_apaches_broker(lab: Lab) -> None:
    lab.start_our_name_server()
    alone = {"enableControllerMode": "false", "brokerId": "0", "brokerRole": "ASYNC_MASTER"}
    apaches = lab.run(lab.java_broker("alone", **alone, **SOON))
    until("it serves", lambda: lab.route("TBW102").get("0") == apaches.address, TIMEOUT_S, apaches.running)
    trio.run(_transactions, lab.name_server)


async def _transactions(namesrv: str) -> None:
    asked: list[str] = []

    async def check(message: Message) -> Outcome:
        await trio.lowlevel.checkpoint()
        asked.append(message.keys)
        return Outcome.ROLLBACK if message.keys == "rolled-back" else Outcome.COMMIT

    async with TransactionProducer(namesrv, "ours", check) as producer:
        for keys in ("rolled back", "open", "committed"):
            message = OutgoingMessage("Ours", keys.encode(), keys=keys.replace(" ", "-"))
            async with producer.transaction(message, timeout_ms=30_000) as transaction:
                if keys == "rolled back":
                    transaction.rollback()
                elif keys == "open":
                    transaction.leave_open()
            assert transaction.confirmed == (keys != "open"), producer.last_error
        async with Consumer(namesrv, "ours", "Ours", standalone=True) as consumer:
            seen: set[str] = set()
            with trio.fail_after(TIMEOUT_S):
                while seen < {"open", "committed"}:
                    seen.add((await consumer.receive()).keys)
            # Apache's broker also asks about what was just ended, since it gathers its marks: some may come twice
            with trio.move_on_after(2):
                while True:
                    seen.add((await consumer.receive()).keys)
        assert seen == {"open", "committed"} and "open" in asked
