"""Apache's mqadmin, unmodified, against a group of three of ours: exit code and the fields that operators read.

mqadmin ends with 0 even when a command fails and prints the exception, so every answer is looked at for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

TOPIC = "AdminTopic"
SENDS = 4
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


class Admin:
    """mqadmin and the cluster that it asks."""

    def __init__(self, lab: Lab, cluster: LocalCluster) -> None:
        self.lab = lab
        self.cluster = cluster
        host, _, port = cluster.namesrv.rpartition(":")
        self.controller = f"{host}:{int(port) + 1}"

    def ask(self, *arguments: str) -> str:
        """What the command printed."""
        code, text, errors = self.lab.mqadmin(*arguments)
        assert code == 0, errors
        assert "Exception" not in text + errors, text + errors
        return text

    def at_name_server(self, *arguments: str) -> str:
        return self.ask(*arguments, "-n", self.cluster.namesrv)

    def at_controller(self, *arguments: str) -> str:
        # without -n it would ask the internet for a name server
        return self.ask(*arguments, "-a", self.controller, "-n", self.cluster.namesrv)

    def brokers(self) -> dict[int, str]:
        """Controller id → address of every replica, master included."""
        nodes = [self.cluster.node(f"broker-a-{number}") for number in (1, 2, 3)]
        return {node["state"]["brokerId"]: node["address"] for node in nodes}

    def master_address(self) -> str:
        return str(self.cluster.node(self.cluster.master())["address"])


@pytest.fixture(scope="module")
def admin(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A group of three that holds one topic with a few messages, all of it made by mqadmin."""
    scratch: Path = tmp_path_factory.mktemp("mqadmin")
    cluster = LocalCluster(scratch, name="admin")
    lab = Lab(java, scratch)
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        found = Admin(lab, cluster)
        made = found.at_name_server("updateTopic", "-c", "admin", "-t", TOPIC, "-r", "4", "-w", "4")
        assert "create topic to" in made and "success" in made
        for number in range(SENDS):
            arguments = ("-t", TOPIC, "-p", f"body {number}", "-k", f"key{number}", "-c", "TagA", "-b", "broker-a")
            sent = found.at_name_server("sendMessage", *arguments, "-i", str(number % 2))
            row = sent.splitlines()[-1].split()
            assert row[:3] == ["broker-a", str(number % 2), "SEND_OK"] and re.fullmatch("[0-9A-F]{32}", row[3])
        yield found
    finally:
        lab.close()
        cluster.down()


def table(text: str, first: str) -> list[list[str]]:
    """Rows of a printed table whose first column is `first`."""
    return [line.split() for line in text.splitlines() if line.startswith(first + " ")]


def test_cluster_list(admin: Admin) -> None:
    rows = table(admin.at_name_server("clusterList"), "admin")
    assert len(rows) == 3
    assert {row[1] for row in rows} == {"broker-a"}
    assert sorted(row[3] for row in rows) == sorted(admin.brokers().values())
    masters = [row for row in rows if row[2] == "0"]
    assert [row[3] for row in masters] == [admin.master_address()]
    assert {row[4] for row in rows} == {"V5_4_0"}


def test_topic_list_and_route(admin: Admin) -> None:
    topics = admin.at_name_server("topicList").split()
    assert {TOPIC, "TBW102"} <= set(topics)
    route = json.loads(re.sub(r"(\d+):\"", r'"\1":"', admin.at_name_server("topicRoute", "-t", TOPIC)))
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)
    (brokers,) = route["brokerDatas"]
    assert brokers["brokerName"] == "broker-a" and brokers["cluster"] == "admin"
    assert brokers["brokerAddrs"]["0"] == admin.master_address()
    assert sorted(brokers["brokerAddrs"].values()) == sorted(admin.brokers().values())


def test_topic_status(admin: Admin) -> None:
    rows = table(admin.at_name_server("topicStatus", "-t", TOPIC), "broker-a")
    assert {row[1]: (row[2], row[3]) for row in rows} == {
        "0": ("0", "2"),
        "1": ("0", "2"),
        "2": ("0", "0"),
        "3": ("0", "0"),
    }


def test_statistics(admin: Admin) -> None:
    """One message in the last day; once it printed zeros for everything, with exit code 0."""
    topic = "Counted"
    admin.at_name_server("updateTopic", "-c", "admin", "-t", topic, "-r", "1", "-w", "1")
    admin.at_name_server("sendMessage", "-t", topic, "-p", "body", "-b", "broker-a", "-i", "0")

    def row() -> list[str]:
        (found,) = table(admin.at_name_server("statsAll", "-t", topic), topic)
        return found

    until("the sample of ten seconds is taken", lambda: row()[3] == "1", TIMEOUT_S)
    assert row()[1] == "0" and row()[4] == "NO_CONSUMER"


def test_consume_message(admin: Admin) -> None:
    text = admin.at_name_server("consumeMessage", "-t", TOPIC, "-c", "100")
    assert sorted(re.findall(r"BODY: (body \d)", text)) == [f"body {number}" for number in range(SENDS)]
    assert len(set(re.findall(r"MSGID: ([0-9A-F]{32})", text))) == SENDS


def test_query_message_by_offset(admin: Admin) -> None:
    text = admin.at_name_server("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "1")
    fields = dict(re.findall(r"^([A-Z][A-Za-z ]+): +(.*)$", text, re.M))
    assert (fields["Topic"], fields["Queue ID"], fields["Queue Offset"]) == (TOPIC, "1", "1")
    assert (fields["Tags"], fields["Keys"]) == ("[TagA]", "[key3]")
    assert fields["Store Host"] == admin.master_address()


def test_query_message_by_key_and_ids(admin: Admin) -> None:
    """A key leads to the unique key and the place; the unique key to the offset id; both ids to the message."""
    text = admin.at_name_server("queryMsgByKey", "-t", TOPIC, "-k", "key3")
    (row,) = [line.split() for line in text.splitlines() if re.match("[0-9A-F]{32} ", line)]
    unique, queue_id, queue_offset = row[:3]
    assert (queue_id, queue_offset) == ("1", "1")
    text = admin.at_name_server("queryMsgByUniqueKey", "-t", TOPIC, "-i", unique)
    fields = dict(re.findall(r"^([A-Z][A-Za-z ]+): +(.*)$", text, re.M))
    assert (fields["Topic"], fields["Keys"], fields["Queue Offset"]) == (TOPIC, "[key3]", "1")
    offset_id = admin.at_name_server("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "1")
    (offset_id,) = re.findall(r"^OffsetID: +([0-9A-F]{32})$", offset_id, re.M)
    for identity in (unique, offset_id):
        by_id = admin.at_name_server("queryMsgById", "-t", TOPIC, "-i", identity)
        assert f"UNIQ_KEY={unique}" in by_id and "[key3]" in by_id
    code, text, _ = admin.lab.mqadmin("queryMsgByKey", "-t", TOPIC, "-k", "none", "-n", admin.cluster.namesrv)
    assert code == 0 and not re.search("^[0-9A-F]{32} ", text, re.M)


def test_sync_state_set(admin: Admin) -> None:
    text = admin.at_controller("getSyncStateSet", "-b", "broker-a")
    fields = dict(re.findall(r"^#(\w+)\t(\S+)$", text, re.M))
    assert fields["brokerName"] == "broker-a"
    assert fields["MasterAddr"] == admin.master_address()
    assert fields["SyncStateSetNums"] == "3"
    inside = re.findall(r"InSyncReplica:\tReplicaIdentity\{.*brokerId=(\d), brokerAddress='(\S+)', alive=true\}", text)
    assert {int(number): address for number, address in inside} == admin.brokers()


def test_broker_epoch(admin: Admin) -> None:
    text = admin.at_name_server("getBrokerEpoch", "-b", "broker-a")
    assert sorted(re.findall(r"^#brokerAddr\t(\S+)$", text, re.M)) == sorted(admin.brokers().values())
    epochs = re.findall(r"^#Epoch: EpochEntry\{epoch=(\d+), startOffset=(\d+), endOffset=(\d+)\}$", text, re.M)
    assert len(epochs) == 3 and len(set(epochs)) == 1, "each replica shows the same history"
    assert int(epochs[0][2]) > 0


def test_controller_metadata(admin: Admin) -> None:
    text = admin.at_controller("getControllerMetaData")
    assert re.search(rf"^#ControllerLeaderAddress\t{re.escape(admin.controller)}$", text, re.M)
    assert re.search(rf"^#Peer:\t\w+:{re.escape(admin.controller)}$", text, re.M)


def test_controller_config(admin: Admin) -> None:
    """Live keys apply, ours too, which are not shown; others are refused with the reason, printed as an exception."""
    before = admin.at_controller("getControllerConfig")
    assert re.search(r"^enableElectUncleanMaster\s+=\s+false$", before, re.M), before
    for key, value in (("electionPolicy", "priority,seniority"), ("scanNotActiveBrokerInterval", "400")):
        changed = admin.at_controller("updateControllerConfig", "-k", key, "-v", value)
        assert "update controller config success" in changed, changed
    after = admin.at_controller("getControllerConfig")
    assert re.search(r"^scanNotActiveBrokerInterval\s+=\s+400$", after, re.M), after
    assert "electionPolicy" not in after
    arguments = ("updateControllerConfig", "-k", "controllerStorePath", "-v", "/x", "-a", admin.controller)
    _, text, errors = admin.lab.mqadmin(*arguments, "-n", admin.cluster.namesrv)
    assert "controllerStorePath: restart needed" in text + errors, text + errors
    again = admin.at_controller("getControllerConfig")
    assert not re.search(r"^controllerStorePath\s+=\s+/x$", again, re.M)


def test_broker_status(admin: Admin) -> None:
    text = admin.at_name_server("brokerStatus", "-b", admin.master_address())
    fields = dict(re.findall(r"^(\w+) *: (.*)$", text, re.M))
    assert fields["brokerVersionDesc"].startswith("V5_4_0")
    assert fields["brokerActive"] == "true"
    assert int(fields["commitLogMaxOffset"]) > 0 and fields["dispatchBehindBytes"] == "0"


def test_ha_status(admin: Admin) -> None:
    text = admin.at_name_server("haStatus", "-b", admin.master_address())
    fields = dict(re.findall(r"^#(\w+)\t(\S+)$", text, re.M))
    assert fields["MasterAddr"] == admin.master_address()
    assert (fields["SlaveNum"], fields["InSyncSlaveNum"]) == ("2", "2")
    rows = [line.split() for line in text.splitlines() if ADDRESS.match(line)]
    assert {row[1] for row in rows} == {fields["MasterCommitLogMaxOffset"]}, "both slaves hold everything"


def test_elect_master_moves_the_mastership(admin: Admin) -> None:
    """Last, since it changes what the others look at. With Apache's controller the command fails."""
    before, brokers = admin.master_address(), admin.brokers()
    target = next(number for number, address in sorted(brokers.items()) if address != before)
    text = admin.at_controller("electMaster", "-b", str(target), "-bn", "broker-a", "-c", "admin")
    assert re.search(rf"^#BrokerMasterAddr\t{re.escape(brokers[target])}$", text, re.M), text
    shown = admin.at_controller("getSyncStateSet", "-b", "broker-a")
    assert re.search(rf"^#MasterAddr\t{re.escape(brokers[target])}$", shown, re.M), shown
    after = ("sendMessage", "-t", TOPIC, "-p", "after", "-b", "broker-a", "-i", "0", "-n", admin.cluster.namesrv)
    until("the new master takes messages", lambda: "SEND_OK" in admin.lab.mqadmin(*after)[1], TIMEOUT_S)


def test_clean_broker_metadata(admin: Admin) -> None:
    """A living replica is refused; a stopped one is forgotten, and gets a new id when it comes back."""
    addresses = {node["address"]: node["node"] for node in admin.cluster.status()["nodes"]}
    brokers, master = admin.brokers(), admin.master_address()
    gone = next(number for number, address in sorted(brokers.items()) if address != master)
    clean = ("cleanBrokerMetadata", "-bn", "broker-a", "-c", "admin", "-b", str(gone), "-a", admin.controller)
    _, text, errors = admin.lab.mqadmin(*clean, "-n", admin.cluster.namesrv)
    assert f"broker-a-{gone} of broker-a are alive" in text + errors, text + errors
    node = addresses[brokers[gone]]
    assert admin.cluster.rmqha("kill", node).returncode == 0
    # the controller calls it dead when its connection closes and its port refuses
    said = []

    def is_taken_for_dead() -> bool:
        said.append(" ".join(admin.lab.mqadmin(*clean, "-n", admin.cluster.namesrv)[1:]))
        return "are alive" not in said[-1]

    until("the controller takes it for dead", is_taken_for_dead, TIMEOUT_S)
    assert "clear broker" in said[-1] and "success" in said[-1], said[-1]
    shown = admin.at_controller("getSyncStateSet", "-b", "broker-a")
    assert brokers[gone] not in shown
