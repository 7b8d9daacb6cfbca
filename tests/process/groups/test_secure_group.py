"""Accounts, TLS and haSecurity on every port: a group with controllers of its own elects, replicates, fails over."""

from __future__ import annotations

from pathlib import Path

import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.access.security import ambient
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.replication.test_ha_authenticator import secured
from tests.host.access.test_security import client_security
from tests.host.access.test_security import files as files
from tests.support.patience import HANG_MS, HANG_S


async def test_a_group_that_asks_everybody_for_an_account(files: Path, tmp_path: Path) -> None:
    ambient.set(secured(files, tmp_path))
    document = quickstart("cp", 3, {"haSecurity": "enforcing"}, controllers=3)
    document["security"] = {
        "aclEnable": True,
        "aclFile": str(tmp_path / "acl.yml"),
        "credentialsFile": str(tmp_path / "broker.yml"),
        "tls": {
            "enable": True,
            "server": {
                "certPath": str(files / "server.pem"),
                "keyPath": str(files / "server.key"),
                "mode": "enforcing",
            },
            "client.trustCertPath": str(files / "ca.pem"),
        },
    }
    with trio.fail_after(HANG_S), Cluster.of(document, tmp_path, quiet=True) as cluster:
        await cluster.up()
        namesrv = cluster.spec.namesrv_addresses
        async with Producer(namesrv) as producer:
            await producer.send("T", b"before", timeout_ms=HANG_MS, require_ok=True)
            killed = await cluster.master()
            await cluster.kill(killed)
            await producer.send("T", b"after", timeout_ms=HANG_MS, require_ok=True)
        async with Consumer(namesrv, "G", "T") as consumer:
            assert sorted([(await consumer.receive()).body for _ in range(2)]) == [b"after", b"before"]
        async with RemotingClient(security=client_security(files)) as stranger:
            for node in cluster.state.nodes.values():
                if node.name != killed:
                    answer = await stranger.call(node.address, Command(RequestCode.RMQHA_GET_HISTORY), HANG_MS)
                    assert (answer.code, "not signed" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
