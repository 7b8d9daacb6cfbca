"""Apache's clients, mqadmin and a broker of theirs sign and encrypt: servers of ours insist on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from rmqha.host.access.security import ambient, for_client
from tests.interop.lab.group import TIMEOUT_S, elect, is_master, logs_are_equal, whole_set
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged, consumed
from tests.interop.lab.processes import until

pytestmark = pytest.mark.interop

SOON = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "transactionCheckMax": "1000"}
PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
"""The one form of a key that Java reads."""
MESSAGES = 50
OPERATOR, OPERATOR_SECRET = "operator", "operator-key"
ORDERS, ORDERS_SECRET = "orders-service", "orders-key"
PAYMENTS, PAYMENTS_SECRET = "payments-service", "payments-key"
ACCOUNTS = f"""
accounts:
- accessKey: {OPERATOR}
  secretKey: {OPERATOR_SECRET}
  admin: true
- accessKey: {ORDERS}
  secretKey: {ORDERS_SECRET}
  topicPerms:
  - Orders=PUB|SUB
  groupPerms:
  - push=SUB
  - pull=SUB
- accessKey: {PAYMENTS}
  secretKey: {PAYMENTS_SECRET}
  topicPerms:
  - Payments=PUB|SUB
  groupPerms:
  - transactions=PUB
  - transactions-Payments=SUB
"""


def secret(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def secured(lab: Lab) -> Iterator[Lab]:
    """A laboratory whose servers of ours take signed requests over TLS only; our own tools ask as the operator."""
    directory = lab.scratch / "security"
    directory.mkdir()
    ca = trustme.CA()
    server = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
    secret(directory / "server.key", key.private_bytes(*PKCS8).decode())
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(str(directory / "server.pem"), append=number > 0)
    secret(directory / "accounts.yml", ACCOUNTS)
    keys = f"accessKey={OPERATOR}\nsecretKey={OPERATOR_SECRET}\n"
    lab.security = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(directory / "server.pem"),
        "tls.server.keyPath": str(directory / "server.key"),
        "tls.enable": "true",
        "tls.client.trustCertPath": str(directory / "ca.pem"),
        "aclEnable": "true",
        "aclFile": str(directory / "accounts.yml"),
        "credentialsFile": secret(directory / "keys", keys),
    }
    tools = f"{keys}tls.enable=true\ntls.client.trustCertPath={directory / 'ca.pem'}\n"
    token = ambient.set(for_client(secret(directory / "tools.properties", tools)))
    lab.start_our_name_server()
    yield lab
    ambient.reset(token)


def tls(lab: Lab) -> dict[str, str]:
    """System properties of a Java program that checks our certificates."""
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": lab.security["tls.client.trustCertPath"],
    }


def account(key: str, secret_key: str) -> dict[str, str]:
    return {"interop.accessKey": key, "interop.secretKey": secret_key}


def admin(lab: Lab, *arguments: str) -> str:
    home = lab.scratch / "tools"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {OPERATOR}\nsecretKey: {OPERATOR_SECRET}\n")
    settings = tls(lab) | {"rocketmq.home.dir": str(home)}
    code, text, errors = lab.mqadmin(*arguments, "-n", lab.name_server, settings=settings)
    assert code == 0 and "Exception" not in text + errors, text + errors
    return text


def make_topic(lab: Lab) -> None:
    admin(lab, "updateTopic", "-c", "interop", "-t", "Orders", "-w", "2", "-r", "2")
    until("the topic is routed", lambda: bool(lab.route("Orders")), TIMEOUT_S)


def produce(lab: Lab, settings: dict[str, str]) -> None:
    producer = lab.client("Produce", "Orders", "0", str(MESSAGES), "100", "0", **settings)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()


def test_java_clients_and_mqadmin_sign_and_encrypt(secured: Lab) -> None:
    lab = secured
    node = lab.run(lab.our_broker("broker", totalReplicas="1"))
    is_master(lab, node)
    make_topic(lab)
    settings = tls(lab) | account(ORDERS, ORDERS_SECRET)
    produce(lab, settings)
    consumers = [lab.client("Consume", "Orders", kind, kind, **settings) for kind in ("push", "pull")]
    everything = set(range(MESSAGES))
    until("both have all", lambda: all(consumed(item) == everything for item in consumers), TIMEOUT_S, *consumers)
    assert admin(lab, "queryMsgByKey", "-t", "Orders", "-k", "key7").count("@Order") == 1
    assert node.address in admin(lab, "clusterList")
    refused = lab.client("Produce", "Orders", "0", "1", "100", "0", **tls(lab), **account(ORDERS, "wrong-key"))
    until("it is refused", lambda: any("FAILED 0" in line for line in refused.lines()), TIMEOUT_S, refused)
    assert not acknowledged(refused)


def test_a_java_producer_of_transactions_is_asked_across_a_switch(secured: Lab) -> None:
    """It may send to the topic, and the group of producers is its account's. Ends are passed on to the new master."""
    lab = secured
    first, second = (
        lab.our_broker(name, haMode="cp", totalReplicas="2", brokerElectionPriority=priority, **SOON)
        for name, priority in (("first", "1"), ("second", "2"))
    )
    for node in (first, second):
        lab.run(node)
    is_master(lab, first)
    whole_set(lab, first, second)
    client = lab.client("Transactions", "Payments", "1", **tls(lab), **account(PAYMENTS, PAYMENTS_SECRET))
    until("a switch is wanted", lambda: "SWITCH" in client.lines(), TIMEOUT_S, client)
    elect(lab, second)
    assert client.wait(TIMEOUT_S) == 0 and client.lines()[-1] == "DONE", client.tail()
    assert any(line.startswith("CHECK ") for line in client.lines())


def test_a_java_broker_is_slave_of_ours(secured: Lab) -> None:
    lab = secured
    first = lab.run(lab.our_broker("ours", totalReplicas="1"))
    is_master(lab, first)
    second = lab.run(java_slave(lab))
    both = (first.running, second.running)
    until("both are in the set", lambda: len(lab.members()) == 2, TIMEOUT_S, *both)
    make_topic(lab)
    produce(lab, tls(lab) | account(ORDERS, ORDERS_SECRET))
    logs_are_equal(first, second, least_bytes=MESSAGES * 100)


def java_slave(lab: Lab) -> Node:
    credentials = f'{{"accessKey":"{OPERATOR}","secretKey":"{OPERATOR_SECRET}"}}'
    package = "org.apache.rocketmq.auth.authentication.provider"
    node = lab.java_broker(
        "java",
        innerClientAuthenticationCredentials=credentials,
        authenticationMetadataProvider=f"{package}.LocalAuthenticationMetadataProvider",
    )
    main = next(number for number, word in enumerate(node.command) if word.startswith("org.apache."))
    own = {key: lab.security[key] for key in ("tls.server.certPath", "tls.server.keyPath")}
    own["tls.server.mode"] = "permissive"
    flags = [f"-D{key}={value}" for key, value in (tls(lab) | own).items()]
    node.command[main - 2 : main - 2] = flags
    return node
