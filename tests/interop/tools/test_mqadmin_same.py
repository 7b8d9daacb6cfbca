"""mqadmin prints the same of a group of ours and of Apache's: docs/use/compatibility.md lists what differs, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from functools import partial

import pytest

from rmqha.model.code import RequestCode
from tests.interop.lab.java import Java
from tests.interop.lab.processes import ask_json
from tests.interop.lab.same_commands import WHOSE, Asker, Laboratory, answers, both, filled

pytestmark = pytest.mark.interop

REPLICAS = 3
DIFFERENT = {
    "electMaster -b 2 -bn broker-a -c interop": (
        "Apache's controller elects and answers with a body that its mqadmin cannot read: JSON with unquoted numbers",
        r"#ClusterName interop\n#BrokerName broker-a\n#BrokerMasterAddr BROKER-2\n#MasterEpoch 2\n"
        r"#SyncStateSetEpoch COUNT\s*\Z",
        r"not support unquoted name",
    ),
    "electMaster -b 9 -bn broker-a -c interop": (
        "ours says why",
        r"CODE: 2012 DESC: broker-a has no replica 9$",
        r"CODE: 2012 DESC: Failed to elect a new master$",
    ),
}
"""Command → why it differs, what ours prints, what Apache's prints."""
MOMENTARY = {
    "bootTimestamp",
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "commitLogDiskRatio_PATH",
    "consumeQueueDiskRatio",
    "earliestMessageTimeStamp",
    "getFoundTps",
    "getMessageEntireTimeMax",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "msgGetTotalTodayNow",
    "putMessageEntireTimeMax",
    "putLatency99",
    "putLatency999",
    "putMessageDistributeTime",
    "putTps",
    "remainHowManyDataToFlush",
    "runtime",
    "timerReadBehind",
}
"""Values of brokerStatus that depend on the moment, or on how often clients and slaves have asked."""
THREAD_POOLS = "ThreadPoolQueueCapacity"
"""How the names of those end that are 0 with ours: it has no thread pools."""
RETURNED = re.compile(r"^.*\b(Doomed|ListedC)\b.*(\n|\Z)", re.M)
"""Topics that the commands delete. A slave of Apache's that registers before it has asked for the tables brings such a
topic back to the name server, which then lists it for good."""
OTHER_SETTINGS = {
    "bindAddress": "the laboratory's",
    "brokerIP1": "Apache's fills it in",
    "brokerIP2": "Apache's fills it in",
    "brokerId": "Apache's changes its configuration with its role",
    "brokerRole": "Apache's changes its configuration with its role",
    "configStorePath": "ours writes no file of that name",
    "haTransferBatchSize": "ours is larger",
    "scanInactiveMasterInterval": "ours is shorter",
    "scanNotActiveBrokerInterval": "ours is shorter",
    "kvConfigPath": "ours is under the data directory",
    "diskMaxUsedSpaceRatio": "the laboratory's",
    "maxHaTransferByteInSecond": "ours has no bound",
    "rocketmqHome": "ours has no such directory",
    "slaveReadEnable": "the laboratory's",
    "totalReplicas": "the laboratory's",
    "updateNameServerAddrPeriod": "ours is shorter",
    "transactionCheckInterval": "the laboratory's",
    "transactionMetricFlushInterval": "the laboratory's",
    "waitTimeMillsInSendQueue": "ours waits longer",
}
"""Keys with other values."""


@pytest.fixture(scope="module")
def laboratories(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Laboratory]]:
    """Ours, Apache's."""
    with both(java, tmp_path_factory.mktemp, partial(filled, replicas=REPLICAS)) as found:
        yield found


def fields(text: str) -> dict[str, str]:
    """Of brokerStatus ("name : value") and get…Config ("name = value")."""
    found = re.findall(r"^(\w\S*?) *(?:=|: ) *(.*?) *$", text, re.M)
    return {re.sub(r"_(/|STORE-).*", "_PATH", name): value for name, value in found}


def masked_fields(laboratory: Laboratory, text: str) -> dict[str, str]:
    for name, word in Asker(laboratory).names.items():
        text = text.replace(name, word)
    return fields(text.replace(str(laboratory.lab.scratch), "SCRATCH"))


def status_is_the_same(laboratories: list[Laboratory], texts: Iterable[str]) -> None:
    ours, apaches = map(masked_fields, laboratories, texts)
    assert len(apaches) > 50
    assert ours.keys() == apaches.keys()
    compared = {name for name in apaches.keys() & ours.keys() - MOMENTARY if not name.endswith(THREAD_POOLS)}
    assert len(compared) > 30
    assert {name: (ours[name], apaches[name]) for name in compared if ours[name] != apaches[name]} == {}


@pytest.mark.parametrize("place", range(REPLICAS))
def test_an_empty_broker_shows_the_same_status(laboratories: list[Laboratory], place: int) -> None:
    status_is_the_same(
        laboratories, [Asker(item).raw("brokerStatus", "-b", item.brokers[place].address) for item in laboratories]
    )


def test_both_make_the_same_system_topics(laboratories: list[Laboratory]) -> None:
    """With their queues and permissions; none is deleted by a slave of the other kind."""
    ours, apaches = (
        ask_json(item.master.address, RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"] for item in laboratories
    )
    assert ours == apaches


def own_apart(value: str) -> str:
    """Without a port, and what Java makes of an object that has no text."""
    return re.sub(r"@[0-9a-f]+$", "@HASH", re.sub(r"\b\d{5}$", "PORT", value))


@pytest.mark.parametrize(
    ("command", "least"), [("getBrokerConfig", 450), ("getNamesrvConfig", 40), ("getControllerConfig", 45)]
)
def test_the_keys_are_the_same(laboratories: list[Laboratory], command: str, least: int) -> None:
    ours, apaches = (
        masked_fields(
            item, Asker(item).raw(command, *(("-b", item.master.address) if command == "getBrokerConfig" else ()))
        )
        for item in laboratories
    )
    assert ours.keys() == apaches.keys() and len(ours) >= least
    differ = {name: (ours[name], apaches[name]) for name in ours if own_apart(ours[name]) != own_apart(apaches[name])}
    assert {name: values for name, values in differ.items() if name not in OTHER_SETTINGS} == {}


def compared(ours: str, apaches: str) -> Iterator[str]:
    return unified_diff(ours.splitlines(), apaches.splitlines(), *WHOSE, lineterm="", n=1)


def test_every_command_prints_the_same(laboratories: list[Laboratory]) -> None:
    """Last: it changes the master."""
    with ThreadPoolExecutor(2) as pool:
        (ours, of_ours), (apaches, of_apaches) = pool.map(answers, laboratories)
    assert ours.keys() == apaches.keys()
    for command in apaches:
        if command.startswith("call "):
            apaches[command] = RETURNED.sub("", apaches[command])
    differ = [command for command in ours if ours[command] != apaches[command] and command not in DIFFERENT]
    assert differ == [], "\n".join(line for command in differ for line in compared(ours[command], apaches[command]))
    for command, (_, wanted, told) in DIFFERENT.items():
        assert re.search(wanted, ours[command], re.M), ours[command]
        assert re.search(told, apaches[command], re.M), apaches[command]
    status_is_the_same(laboratories, [of_ours, of_apaches])
