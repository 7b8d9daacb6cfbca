"""An empty slave of real processes copies a log at a limit, is killed half-way, and goes on where it stood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import Cluster, quickstart, until
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import CopyState
from tests.support.patience import HANG_MS, HANG_S

MIB = 1024 * 1024
LIMIT = 2 * MIB
"""A second: the copy is under way for so long that a busy machine sees it."""
LOG_BYTES = 40 * MIB


async def fill(cluster: Cluster) -> None:
    async with Producer(cluster.spec.namesrv_addresses) as producer:
        batch = [OutgoingMessage("T", bytes(4096)) for _ in range(200)]
        for _ in range(LOG_BYTES // (200 * 4096) + 1):
            await producer.send_batch(batch, timeout_ms=HANG_MS, require_ok=True)


async def copy_of(cluster: Cluster, slave: str, well: Callable[[CopyState], bool]) -> CopyState:
    """What the slave says of its copy, once that is under way and `well`."""

    async def moved() -> CopyState | None:
        state = (await cluster.replica_states([slave])).get(slave)
        copy = None if state is None else state.copy
        return copy if copy is not None and well(copy) else None

    found = await until(moved, f"{slave} copies", HANG_S)
    assert found is not None
    return found


async def story(cluster: Cluster) -> None:
    await cluster.up()
    master = await cluster.master()
    slave = next(name for name in cluster.brokers if name != master)
    await cluster.kill(slave)
    await fill(cluster)

    async def alone() -> bool:
        return len((await cluster.replica_states([master]))[master].sync_state_set or ()) == 1

    await until(alone, f"{slave} has left the set", HANG_S)
    cluster.launch(slave)
    began_at = trio.current_time()
    first = await copy_of(cluster, slave, lambda copy: copy.copied_bytes >= MIB)
    assert first.from_offset == 0
    later = await copy_of(
        cluster,
        slave,
        lambda copy: copy.left_bytes <= first.left_bytes - MIB and copy.bytes_per_second > 0 and bool(copy.eta_ms),
    )
    assert later.copied_bytes <= LIMIT * (trio.current_time() - began_at) + MIB
    await cluster.kill(slave)

    cluster.launch(slave)
    again = await copy_of(cluster, slave, lambda copy: True)
    assert again.from_offset >= later.to_offset - later.left_bytes - MIB
    async with RemotingClient() as client:
        address = cluster.state.node(master).address
        body = b"maxHaTransferByteInSecond=0\n"
        reply = await client.call(address, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, body), HANG_MS)
    assert reply.code == 0
    await cluster.wait_healthy()
    end = await cluster.wait_level()
    assert end > LOG_BYTES
    assert (await cluster.replica_states([slave]))[slave].copy is None
    logs = [
        b"".join(path.read_bytes() for path in sorted((cluster.store(name) / "commitlog").iterdir()))
        for name in cluster.brokers
    ]
    assert logs[0][:end] == logs[1][:end]
    assert not [path for path in cluster.store(slave).iterdir() if path.name.startswith("replaced")]


@pytest.mark.chaos
def test_a_copy_is_held_to_its_limit_and_goes_on_after_kill_9(tmp_path: Path) -> None:
    document = quickstart("ap", 2, {"haTransferBytesPerSecond": LIMIT})
    with Cluster.of(document, tmp_path) as cluster:
        trio.run(story, cluster)
