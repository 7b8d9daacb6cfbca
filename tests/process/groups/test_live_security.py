"""Each promise of docs/operate/security.md about files that change, once by real processes and the rmqha command."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import trio

from rmqha.broker.services import live_config
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.producer import Producer
from rmqha.host.access.security import NO_SECURITY, Security, for_client
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_MS, HANG_S, until

BROKER = "broker-a-1"
OPERATOR = "- {accessKey: operator, secretKey: operator-secret, admin: true}\n"
READER = "- {accessKey: reader, secretKey: reader-secret}\n"
AUDIT_BYTES = 4096


class Guarded(LocalCluster):
    """One broker with accounts, its name server and controller."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch, mode="ap", replicas=1)
        self.accounts = self._kept("acl.yml", f"accounts:\n{OPERATOR}")
        self.tools = self._kept("tools.properties", "accessKey=operator\nsecretKey=operator-secret\n")
        credentials = self._kept("tools.yml", "accessKey: operator\nsecretKey: operator-secret\n")
        security = {"aclFile": self.accounts, "credentialsFile": credentials}
        lines = "".join(f'{key} = "{path}"\n' for key, path in security.items())
        audit = f"auditLogMaxBytes = {AUDIT_BYTES}\nauditLogFileCount = 2\n"
        self.path.write_text(f"{self.path.read_text()}{audit}[security]\naclEnable = true\n{lines}")

    def _kept(self, name: str, text: str) -> Path:
        path = self.scratch / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"RMQHA_SECURITY": str(self.tools)}

    @property
    def address(self) -> str:
        return str(self.node(BROKER)["address"])

    @property
    def pid(self) -> int:
        return int(self.node(BROKER)["pid"])

    def ask(self, address: str, security: Security) -> int:
        async def ask() -> int:
            async with RemotingClient(security=security) as client:
                return (await client.call(address, Command(RequestCode.GET_BROKER_CONFIG), HANG_MS)).code

        return trio.run(ask)

    def client(self, name: str) -> Security:
        return for_client(str(self._kept(f"{name}.properties", f"accessKey={name}\nsecretKey={name}-secret\n")))


def test_accounts_that_change_break_and_are_mended(tmp_path: Path) -> None:
    cluster = Guarded(tmp_path)
    try:
        up = cluster.up()
        assert up.returncode == 0, up.stderr
        address, reader, operator = cluster.address, cluster.client("reader"), cluster.client("operator")
        assert cluster.ask(address, reader) == ResponseCode.NO_PERMISSION
        assert cluster.ask(address, operator) == 0

        cluster.accounts.write_text(f"accounts:\n{OPERATOR}{READER}")
        os.kill(cluster.pid, signal.SIGHUP)
        until(lambda: cluster.ask(address, reader) == 0)

        cluster.accounts.write_text("accounts: [")
        until(lambda: "security_file_refused" in cluster.rmqha("history", "-o", "json").stdout)
        assert cluster.ask(address, reader) == 0, "the last good one is in force"
        health = cluster.rmqha("health")
        assert health.returncode == 1 and "acl.yml" in health.stdout, health.stdout
        doctor = cluster.rmqha("doctor")
        assert doctor.returncode == 1 and "acl.yml" in doctor.stdout, doctor.stdout

        cluster.accounts.write_text(f"accounts:\n{OPERATOR}{READER}")
        until(lambda: "security_file_mended" in cluster.rmqha("history", "-o", "json").stdout)
        until(lambda: cluster.rmqha("health").returncode == 0)  # the other server sees the file a moment later

        cluster.accounts.chmod(0o644)
        until(lambda: "others may open it" in cluster.rmqha("health").stdout)
        assert cluster.rmqha("stop", BROKER).returncode == 0
        assert cluster.rmqha("start", BROKER).returncode != 0
        assert "acl.yml" in cluster.rmqha("logs", BROKER).stdout and not cluster.node(BROKER).get("pid")
    finally:
        cluster.down()


def test_overrides_keep_no_restart_key_and_the_audit_log_rotates(tmp_path: Path) -> None:
    cluster = Guarded(tmp_path)
    try:
        up = cluster.up()
        assert up.returncode == 0, up.stderr
        address, audit = cluster.address, cluster.directory / BROKER / "log"

        for number in range(120):
            assert cluster.ask(address, NO_SECURITY) == ResponseCode.NO_PERMISSION
            if number % 20 == 0:
                time.sleep(0.25)  # what comes in 0.2 s is one line with a count
        refused = cluster.rmqha("config", "set", BROKER, "aclEnable=false")
        assert refused.returncode != 0 and "restart" in refused.stdout + refused.stderr
        kept = cluster.directory / BROKER / "store" / live_config.PATH
        assert not kept.exists()

        assert cluster.rmqha("stop", BROKER).returncode == 0
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("aclEnable=false\n")
        assert cluster.rmqha("start", BROKER).returncode == 0
        assert cluster.ask(address, NO_SECURITY) == ResponseCode.NO_PERMISSION
        assert "config_overrides_ignored" in cluster.rmqha("logs", BROKER).stdout
        files = sorted(audit.glob("audit.log*"))
        assert files and all(path.stat().st_size <= 2 * AUDIT_BYTES for path in files) and len(files) <= 3
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert any(not line["allowed"] and line["request"] == "GET_BROKER_CONFIG" for line in lines)
    finally:
        cluster.down()


def test_a_message_that_inflates_too_far_is_a_dead_letter_and_the_next_is_read(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, mode="ap", replicas=1)

    async def told() -> None:
        async with Producer(cluster.namesrv, compression="zlib") as producer:
            for body in (bytes(100_000), b"fine"):
                await producer.send("T", body, timeout_ms=HANG_MS, require_ok=True)
        async with Consumer(cluster.namesrv, "G", "T", max_body_bytes=10_000) as consumer:
            with trio.fail_after(HANG_S):
                assert (await consumer.receive()).body == b"fine"
                # another queue's message may come first
                while consumer.statistics()["too_large"] < 1:
                    with trio.move_on_after(0.1):
                        await consumer.receive()
        async with Consumer(cluster.namesrv, "H", "%DLQ%G") as consumer:
            with trio.fail_after(HANG_S):
                assert (await consumer.receive()).body == bytes(100_000)

    try:
        up = cluster.up()
        assert up.returncode == 0, up.stderr
        trio.run(told)
    finally:
        cluster.down()
