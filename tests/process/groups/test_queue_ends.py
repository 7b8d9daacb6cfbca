"""A replica that lost its disk copies a log whose first files are gone, and as master gives no queue offset twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from rmqha.client.admin import Admin
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import GROUP, Cluster, quickstart, until
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.support.patience import HANG_MS, HANG_S

FILE_BYTES = 1024 * 1024
IDLE_COUNT = 5


async def fill(cluster: Cluster) -> None:
    """A few messages in one topic, then four files of another."""
    async with Producer(cluster.spec.namesrv_addresses) as producer:
        for number in range(IDLE_COUNT):
            result = await producer.send("Idle", b"%d" % number, timeout_ms=HANG_MS)
            assert result.queue_offset >= 0
        batch = [OutgoingMessage("Busy", bytes(4096)) for _ in range(64)]
        for _ in range(4 * FILE_BYTES // (64 * 4096)):
            await producer.send_batch(batch, timeout_ms=HANG_MS, require_ok=True)


async def let_old_files_go(cluster: Cluster, name: str) -> None:
    async with RemotingClient() as client:
        command = Command(RequestCode.DELETE_EXPIRED_COMMITLOG, {"startOffset": str(3 * FILE_BYTES)})
        reply = await client.call(cluster.state.node(name).address, command, HANG_MS)
    assert reply.code == 0

    async def begins_later() -> bool:
        return (await cluster.replica_states([name]))[name].min_phy_offset == 3 * FILE_BYTES

    await until(begins_later, f"{name} has removed its first files", HANG_S)


async def idle_ends(cluster: Cluster, name: str) -> list[int]:
    """Of each queue of the idle topic, as this broker tells its clients."""
    async with RemotingClient() as client:
        address = cluster.state.node(name).address
        found = []
        for queue_id in range(4):
            ext = {"topic": "Idle", "queueId": str(queue_id)}
            reply = await client.call(address, Command(RequestCode.GET_MAX_OFFSET, ext), HANG_MS)
            assert reply.code == 0, reply
            found.append(int(reply.ext["offset"]))
    return found


async def story(cluster: Cluster) -> None:
    await cluster.up()
    await fill(cluster)
    master = await cluster.master()
    ends = await idle_ends(cluster, master)
    assert sum(ends) == IDLE_COUNT
    await cluster.wait_level()
    await let_old_files_go(cluster, master)

    new = next(name for name in cluster.brokers if name != master)
    await cluster.kill(new)
    shutil.rmtree(cluster.store(new))
    cluster.launch(new)
    await cluster.wait_healthy()
    state = (await cluster.replica_states([new]))[new]
    assert state.min_phy_offset == 3 * FILE_BYTES
    assert await idle_ends(cluster, new) == ends
    assert state.broker_id is not None

    async with Admin(cluster.spec.namesrv_addresses) as admin:
        controller = cluster.state.controller_addresses[0]
        await admin.elect_master(controller, state.cluster_name, GROUP, state.broker_id)

    async def leads() -> bool:
        return await cluster.master() == new

    await until(leads, f"{new} is master", HANG_S)
    async with Producer(cluster.spec.namesrv_addresses) as producer:
        for _ in range(4):
            result = await producer.send("Idle", b"again", timeout_ms=HANG_MS)
            assert result.queue_offset == ends[result.queue_id]
            ends[result.queue_id] += 1


@pytest.mark.chaos
def test_a_replaced_replica_gives_no_queue_offset_again(tmp_path: Path) -> None:
    keys: dict[str, str | int | bool] = {"mappedFileSizeCommitLog": FILE_BYTES, "maxMessageSize": FILE_BYTES // 2}
    with Cluster.of(quickstart("cp", 3, keys), tmp_path) as cluster:

        async def limited() -> None:
            with trio.fail_after(HANG_S):
                await story(cluster)

        trio.run(limited)
