"""`rmqha acl` on a real group: users, policies, and those of a plain_acl.yml, held by slaves too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cluster import LocalCluster
from tests.process.remote import Remote
from tests.support.patience import until

PLAIN = """\
globalWhiteRemoteAddresses: [10.0.0.7]
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: orders
  secretKey: orders-secret
  whiteRemoteAddress: 10.0.0.*
  defaultTopicPerm: SUB
  topicPerms: [Orders=PUB|SUB, Secret=DENY]
  groupPerms: [Billing=SUB, Makers=PUB]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("acl"), replicas=2)
    try:
        assert cluster.up().returncode == 0
        cluster.master()
        yield cluster
    finally:
        cluster.down()


def secret(cluster: LocalCluster, text: str) -> str:
    path = cluster.scratch / "password"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_users_are_made_changed_and_deleted(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Unused", queues=1)
    password = secret(cluster, "ann-secret\n")
    words = ("acl", "user", "create", "ann", "--password-file", password)
    assert remote.json(*words)["groups"] == ["broker-a"]
    assert "The user is existed" in remote.refused(*words, code=1)
    ann = {"username": "ann", "is_super": False, "is_enabled": True, "groups": ["broker-a"]}
    assert remote.json("acl", "user", "ls") == [ann]
    assert remote.json("acl", "user", "ls", "--filter", "bob") == []
    remote.json("acl", "user", "alter", "ann", "--disable", "--super")
    assert remote.json("acl", "user", "ls") == [ann | {"is_super": True, "is_enabled": False}]
    assert "nothing to change" in remote.refused("acl", "user", "alter", "ann")
    assert remote.json("acl", "user", "rm", "ann") == {"user": "ann", "groups": ["broker-a"]}
    assert "no group knows a user ann" in remote.refused("acl", "user", "rm", "ann")
    assert "is empty" in remote.refused("acl", "user", "create", "eve", "--password-file", secret(cluster, "\n"))
    elsewhere = (*words[:3], "eve", "--password-file", secret(cluster, "eve-secret"), "--group", "nowhere")
    assert "there is no group nowhere; known are broker-a" in remote.refused(*elsewhere)


def test_policies_are_set_and_deleted(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Unused", queues=1)
    remote.json("acl", "user", "create", "bob", "--password-file", secret(cluster, "bob-secret"))
    words = ("acl", "policy", "set", "bob", "Topic:orders-*", "Pub", "sub", "--from", "10.0.0.0/8")
    assert remote.json(*words)["groups"] == ["broker-a"]
    remote.json("acl", "policy", "set", "bob", "Group:pay", "All", "--deny", "--policy", "Default")
    found = {row["resource"]: row for row in remote.json("acl", "policy", "ls", "--user", "bob")}
    assert found["Topic:orders-*"] == {
        "username": "bob",
        "policy_type": "Custom",
        "resource": "Topic:orders-*",
        "actions": ["Pub", "Sub"],
        "sources": ["10.0.0.0/8"],
        "decision": "Allow",
        "groups": ["broker-a"],
    }
    assert (found["Group:pay"]["decision"], found["Group:pay"]["policy_type"]) == ("Deny", "Default")
    assert [row["resource"] for row in remote.json("acl", "policy", "ls", "--resource", "pay")] == ["Group:pay"]
    table = remote.run("acl", "policy", "ls").stdout.splitlines()
    assert table[0].split() == ["USER", "RESOURCE", "ACTIONS", "FROM", "POLICY", "GROUPS"] and len(table) == 3
    assert "The subject of User:eve is not exist." in remote.refused(*words[:3], "eve", "Topic:T", "Pub", code=1)
    for wrong, sentence in (
        (("set", "bob", "Nothing", "Pub"), "The resource is null."),
        (("set", "bob", "Topic:T", "Eat"), "there is no action 'Eat'"),
        (("set", "bob", "Topic:T", "Pub", "--from", "nowhere"), "The source ip is invalid."),
    ):
        assert sentence in remote.refused("acl", "policy", *wrong)
    remote.json("acl", "policy", "rm", "bob", "Topic:orders-*")
    assert [row["resource"] for row in remote.json("acl", "policy", "ls")] == ["Group:pay"]
    remote.json("acl", "policy", "rm", "bob")
    assert remote.json("acl", "policy", "ls") == []
    remote.json("acl", "user", "rm", "bob")


def test_accounts_of_a_file_become_users_and_slaves_hold_them(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Unused", queues=1)
    path = cluster.scratch / "plain_acl.yml"
    path.write_text(PLAIN)
    path.chmod(0o600)
    told = remote.json("acl", "migrate", str(path), "--dry-run")
    assert [item["user"] for item in told["users"]] == ["operator", "orders"] and told["groups"] == []
    assert len(told["lost"]) == 3 and "10.0.0.7" in told["lost"][0] and "Makers" in told["lost"][2]
    assert "secret" not in json.dumps(told), "passwords are not shown"
    assert remote.json("acl", "user", "ls") == []
    for _ in range(2):  # again: what is there is changed
        assert remote.json("acl", "migrate", str(path))["groups"] == ["broker-a"]
        assert [row["is_super"] for row in remote.json("acl", "user", "ls")] == [True, False]
        found = {row["resource"]: (row["decision"], row["actions"]) for row in remote.json("acl", "policy", "ls")}
        assert found == {
            "Topic:Orders": ("Allow", ["Pub", "Sub", "Get"]),
            "Topic:Secret": ("Deny", ["All"]),
            "Topic:*": ("Allow", ["Sub", "Get"]),
            "Group:Billing": ("Allow", ["Sub", "Get"]),
            "Group:Makers": ("Deny", ["All"]),
        }
    until(lambda: len(list(Path(cluster.directory).rglob("config/auth.json"))) == 2)
    until(lambda: all("orders-secret" in path.read_text() for path in Path(cluster.directory).rglob("auth.json")))
