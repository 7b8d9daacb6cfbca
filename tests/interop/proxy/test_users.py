"""Apache's proxy with authentication and authorization on, before brokers of ours that know users and policies."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqha.host.access.shared_secret import make_secret_file
from rmqha.ops.local.preflight import free_ports
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.java import Java
from tests.interop.lab.lab import CLUSTER, Lab
from tests.interop.lab.processes import Process, accepts, until
from tests.interop.proxy.grpc_clients import GrpcClients, sent, tries
from tests.support.command import rmqha_in

pytestmark = pytest.mark.interop

ROOT, INNER = "root", "inner"
SECRETS = {name: f"{name}-secret" for name in (ROOT, INNER, "orders", "sender", "stranger")}
TOPIC, GROUP = "Orders", "group-Orders"


class Guarded(NamedTuple):
    clients: GrpcClients
    proxy: Process


def secret(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def account(user: str, password: str | None = None) -> dict[str, str]:
    return {"interop.accessKey": user, "interop.secretKey": password or SECRETS[user]}


def provide(lab: Lab) -> None:
    """A topic, and users: `orders` may everything with it and its group, `sender` may send, `stranger` nothing."""
    security = secret(lab.scratch / "root.properties", f"accessKey={ROOT}\nsecretKey={SECRETS[ROOT]}\n")

    def rmqha(*arguments: str) -> None:
        words = ("--security", security, *arguments, "--namesrv", lab.name_server)
        done = rmqha_in(lab.scratch, *words)
        assert done.returncode == 0, done.stderr

    rmqha("topic", "create", TOPIC, "--queues", "2")
    for user in ("orders", "sender", "stranger"):
        rmqha("acl", "user", "create", user, "--password-file", secret(lab.scratch / user, SECRETS[user]))
    rmqha("acl", "policy", "set", "orders", f"Topic:{TOPIC}", "Pub", "Sub")
    rmqha("acl", "policy", "set", "orders", f"Group:{GROUP}", "Sub")
    rmqha("acl", "policy", "set", "sender", f"Topic:{TOPIC}", "Pub")


@pytest.fixture(scope="module")
def guarded(java: Java, tmp_path_factory: pytest.TempPathFactory, grpc: list[str]) -> Iterator[Guarded]:
    lab = Lab(java, tmp_path_factory.mktemp("users"))
    clients: GrpcClients | None = None
    try:
        make_secret_file(lab.scratch / "ha.secret")
        lab.security = {"haSecretFile": str(lab.scratch / "ha.secret")}
        lab.start_our_name_server()
        keys = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": f'{{"username": "{ROOT}", "password": "{SECRETS[ROOT]}"}}',
            "innerClientAuthenticationCredentials": f'{{"accessKey": "{INNER}", "secretKey": "{SECRETS[INNER]}"}}',
        }
        broker = lab.run(lab.our_broker("ours", totalReplicas="1", **keys))
        is_master(lab, broker)
        provide(lab)
        port = free_ports(2)
        security = secret(lab.scratch / "proxy.properties", f"accessKey={INNER}\nsecretKey={SECRETS[INNER]}\n")
        words = ["--security", security, "proxy", "--auth", "--cluster", CLUSTER, "--namesrv", lab.name_server]
        command = [sys.executable, "-m", "rmqha.cli.main", *words, "--heap", "256m"]
        proxy = lab.start("proxy", [*command, "--grpc-port", str(port), "--remoting-port", str(port + 1)])
        until("the proxy listens", lambda: accepts(f"127.0.0.1:{port}"), TIMEOUT_S, proxy)
        clients = GrpcClients(f"127.0.0.1:{port}", grpc, lab.scratch)
        yield Guarded(clients, proxy)
    finally:
        if clients is not None:
            clients.close()
        lab.close()


def test_a_user_sends_and_pops_what_its_policies_allow(guarded: Guarded) -> None:
    """The proxy asks the broker for user and policies (3004, 3009), by an account that is told passwords."""
    clients, proxy = guarded
    consumer = clients.client("push", TOPIC, GROUP, "1", settings=account("orders"))
    numbers = clients.send("normal", TOPIC, 10, account("orders"))

    def twice() -> bool:
        found = Counter(item.number for item in tries(consumer))
        return len(found) == len(numbers) and min(found.values()) >= 2

    until("each is tried twice", twice, TIMEOUT_S, consumer, proxy)
    assert not clients.refused()


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("orders", "wrong", "check signature failed"),
        ("nobody", "anything", "User:nobody is not found"),
        ("stranger", None, "User:stranger has no permission to access Topic:Orders"),
    ],
)
def test_a_wrong_account_sends_nothing(guarded: Guarded, user: str, password: str | None, reason: str) -> None:
    sender = guarded.clients.client("normal", TOPIC, "0", "1", "0", settings=account(user, password))
    assert sender.wait(TIMEOUT_S) != 0 and not sent(sender)
    assert reason in sender.log.read_text()


def test_who_may_only_send_pops_nothing(guarded: Guarded) -> None:
    clients, _ = guarded
    assert len(clients.send("normal", TOPIC, 2, account("sender"))) == 2
    consumer = clients.client("push", TOPIC, GROUP, "0", settings=account("sender"))
    assert consumer.wait(TIMEOUT_S) != 0 and not tries(consumer)
    assert f"User:sender has no permission to access Group:{GROUP}" in clients.log()
