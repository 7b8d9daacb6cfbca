"""The same mqadmin commands for a group of ours and one of Apache's, and what they print without what must differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rmqha.model.code import RequestCode
from tests.interop.lab.group import TIMEOUT_S, is_master, whole_set
from tests.interop.lab.java import Java
from tests.interop.lab.lab import START_TIMEOUT_S, Lab, Node
from tests.interop.lab.lines import tries
from tests.interop.lab.processes import Process, accepts, ask_json, until

T = TypeVar("T")
WHOSE = ("ours", "apaches")
TOPIC, GROUP, CLONE = "SameTopic", "same", "clone"
SENDS = 4
MASKS = (
    (r"@[0-9a-f]{5,8}$", "@HASH"),
    (r"\$\$Lambda\S+", "LAMBDA"),
    (r"(?<=spentTimeMills=)\d+", "MILLIS"),
    (r"\b20\d\d-\d\d-\d\d( \d\d:\d\d:\d\d([,.]\d+)?)?", "TIME"),
    (r"\b20\d{12}(\d{3})?\b", "TIME"),
    (r"\b1[789]\d{11}(?!\d)", "MILLIS"),
    (r"\d+(\.\d+){3}@\d+(#\d+)*", "ANOTHER-CLIENT"),
    (r"\b127\.0\.0\.1:\d+", "CLIENT-ADDRESS"),
    (r"\b[0-9A-F]{32}\b", "UNIQUE-ID"),
    (r"(?<=^#SyncStateSetEpoch\t)\d+", "COUNT"),  # one for all who joined at once, or one for each
    (r"[ \t]+", " "),
    (r" $", ""),
)
"""Times, and what a JVM, a connection or a client makes up; the rest is compared."""
COMMAND_MASKS = {
    "clusterList": ((r"\b\d+\.\d+\(\d+,", "RATE(0,"), (r"\d+ms", "MILLIS"), (r" \d+-\d+\(.*$", " TIMERS AND AGES")),
    "consumerProgress": ((r"(?<=^Consume TPS: )\d+\.\d+$", "RATE"),),
    "consumerStatus": ((r"\b\d+\.\d\d\b", "RATE"),),
    "producerConnection": ((r"^\d{4} (?=\S+ )", ""),),
    "haStatus": ((r"\b\d+\.\d\d\b", "RATE"),),
    "statsAll": ((r"\b\d+\.\d\d\b", "RATE"),),
    "sendMsgStatus": ((r"^rt=\d+", "rt=MILLIS"),),
    "checkMsgSendRT": ((r"(?<=true )\d+$", "MILLIS"), (r"(?<=^Avg RT: )\d+\.\d+$", "MILLIS")),
}
"""What depends on the moment, by command. clusterList: how far timers are, the oldest message's age, the disk."""
SORTED = {
    "statsAll",
    "topicList",
    "consumerProgress",
    "brokerConsumeStats",
    "producer",
    "producerConnection",
    "haStatus",
}
"""Lists in a hash table's order. Of producers there are also those of the commands before, for a moment."""
SORTED_PARTS = {"getBrokerEpoch"}
_AUTH = "org.apache.rocketmq.auth"
JAVA_KEYS = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "timerWheelEnable": "true",
    "timerFlushIntervalMs": "10000",
}
"""Keys without which Apache's broker refuses users and policies, and deleteTopic fails. Each time that it flushes, it
compares all of the timer wheel, 38 MB: by default each second, which takes a sixth of a core."""


@dataclass(frozen=True, slots=True)
class Laboratory:
    """`brokers` by id, the master first."""

    lab: Lab
    brokers: list[Node]

    @property
    def master(self) -> Node:
        return self.brokers[0]


def opened(java: Java, scratch: Path, whose: str, keys: Callable[[Lab], dict[str, str]] = lambda lab: {}) -> Lab:
    """A name server with controller; `keys` are more of theirs."""
    lab = Lab(java, scratch)
    lab.controller_keys = keys(lab)
    if whose == "ours":
        lab.start_our_name_server()
    else:
        lab.start_java_name_server()
    return lab


@contextmanager
def both(java: Java, made: Callable[[str], Path], fill: Callable[[Lab, str], T]) -> Iterator[list[T]]:
    """A laboratory of ours and one of Apache's, filled side by side, until they end. `made` makes their directories."""
    labs: list[Lab] = []
    try:
        for whose in WHOSE:
            labs.append(opened(java, made(whose), whose))
        with ThreadPoolExecutor(2) as pool:
            yield list(pool.map(fill, labs, WHOSE))
    finally:
        for lab in labs:
            lab.close()


def filled(lab: Lab, whose: str, replicas: int) -> Laboratory:
    """With so many brokers, all in the SyncStateSet; the one with id 1 is master."""
    keys = {"enablePropertyFilter": "true"}
    names = [f"broker-{number}" for number in range(1, replicas + 1)]
    if whose == "ours":
        brokers = [lab.our_broker(name, totalReplicas=str(replicas), **JAVA_KEYS, **keys) for name in names]
    else:
        brokers = [lab.java_broker(name, **JAVA_KEYS, **keys) for name in names]
    for broker in brokers:
        broker.process = lab.start(broker.name, broker.command)
        # the first gets id 1, and is elected
        until(f"{broker.name} has an id", lambda: broker is not brokers[0] or has_id(broker), START_TIMEOUT_S)  # noqa: B023
    for broker in brokers:
        until(f"{broker.name} listens", lambda it=broker: accepts(it.address), START_TIMEOUT_S, broker.running)  # type: ignore[misc]
    is_master(lab, brokers[0])
    whole_set(lab, *brokers)
    return Laboratory(lab, sorted(brokers, key=broker_id))


def has_id(broker: Node) -> bool:
    return (broker.store / "brokerIdentity").exists()


def broker_id(broker: Node) -> int:
    return int((broker.store / "brokerIdentity").read_text().strip().split("#")[2])


class Asker:
    """Asks, and keeps what was printed in `answers`, masked, by the command. Names stand for addresses and ids."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.lab = laboratory.lab
        self.brokers = laboratory.brokers
        self.answers: dict[str, str] = {}
        self._consumer: Process | None = None
        self.names = {self.lab.name_server: "NAME-SERVER", self.lab.controller: "CONTROLLER"}
        for number, broker in enumerate(self.brokers, 1):
            self.names[broker.address] = f"BROKER-{number}"
            self.names[f"127.0.0.1:{broker.ha_port}"] = f"BROKER-{number}-HA"
            self.names[str(broker.store)] = f"STORE-{number}"

    def send(self, number: int, to_queue: int) -> None:
        """Again, if the broker was too busy for it."""
        message = ("-p", f"{number} body", "-k", f"key{number}", "-c", "TagA", "-b", "broker-a", "-i", str(to_queue))

        def is_stored() -> bool:
            found = re.search(r"SEND_OK +([0-9A-F]{32})", self.raw("sendMessage", "-t", TOPIC, *message))
            if found is not None:
                self.names[found[1]] = f"UNIQUE-ID-{number}"
            return found is not None

        until(f"message {number} is stored", is_stored, TIMEOUT_S)

    def consume(self, count: int) -> None:
        """By a consumer that begins now, until it has had so many messages."""
        consumer = self._consumer = self.lab.client("Work", TOPIC, "concurrently", GROUP, "0", "16", "tag:*")
        until("all are consumed", lambda: len(tries(consumer)) >= count, TIMEOUT_S, consumer)
        self.all_is_committed()

    def leave(self) -> None:
        """The consumer ends, everything being committed."""
        self.all_is_committed()
        assert self._consumer is not None
        self._consumer.kill()

    def all_is_committed(self) -> None:
        """Wait for it, and until the retry topic is read."""
        assert self._consumer is not None

        def is_committed() -> bool:
            text = self.raw("consumerProgress", "-g", GROUP)
            return "Consume Diff Total: 0" in text and f"%RETRY%{GROUP}" in text

        until("all is committed, and the retry topic is read", is_committed, TIMEOUT_S, self._consumer)

    def has_pulled(self, client_id: str) -> None:
        """Wait until the consumer's first pull of each queue is answered, after some seconds where nothing came."""
        told = ("consumerStatus", "-g", GROUP, "-i", client_id)
        until("the consumer has an offset of each queue", lambda: "commitOffset=-1" not in self.raw(*told), TIMEOUT_S)

    def raw(self, *arguments: str) -> str:
        if arguments[0] in CONTROLLERS:
            arguments = (*arguments, "-a", self.lab.controller)
        _, text, errors = self.lab.mqadmin(*arguments, "-n", self.lab.name_server)
        return text + errors

    def ask(self, line: str, words: dict[str, str]) -> None:
        arguments = [words.get(word, word) for word in line.split()]
        texts: list[str] = []

        def has_answered() -> bool:
            """Apache's broker refuses a send that has waited 200 ms, whatever held the process up."""
            texts.append(self.raw(*arguments))
            return "broker busy" not in texts[-1]

        until(f"{line} is answered", has_answered, TIMEOUT_S)
        text = texts[-1]
        while line in self.answers:
            line += " again"
        self.answers[line] = self._masked(arguments[0], text)

    def _masked(self, command: str, text: str) -> str:
        """Without what differs from run to run."""
        for name in sorted(self.names, key=len, reverse=True):
            text = re.sub(rf"(?<!\d){re.escape(name)}(?!\d)", self.names[name], text)
        text = re.sub(r"\b7F000001([0-9A-F]{8})([0-9A-F]{16})\b", self._place, text)
        for pattern, mask in (*MASKS, *COMMAND_MASKS.get(command, ())):
            text = re.sub(pattern, mask, text, flags=re.M)
        if command in SORTED:
            text = "\n".join(sorted({line.strip() for line in text.splitlines()}))
        if command == "call" and "\n" in text:
            text = "\n".join(sorted(set(text.splitlines())))
        if command in SORTED_PARTS:
            text = "\n\n".join(sorted(text.strip().split("\n\n")))
        return text

    def _place(self, found: re.Match[str]) -> str:
        """An offset id: who stored the message, and where."""
        address = f"127.0.0.1:{int(found[1], 16)}"
        return f"OFFSET-ID({self.names.get(address, address)}, {int(found[2], 16)})"


PREPARED = ("updateTopic", "updateSubGroup", "sendMessage", "electMaster")
"""Commands that `prepared` and `answers` ask beside COMMANDS."""
CONTROLLERS = {
    "cleanBrokerMetadata",
    "electMaster",
    "getControllerConfig",
    "getControllerMetaData",
    "getSyncStateSet",
    "updateControllerConfig",
}
"""Commands that take the controller's address."""


LISTS: dict[str, list[dict[str, object]]] = {
    "TOPICS": [
        {"topicName": "ListedA", "readQueueNums": 2, "writeQueueNums": 2},
        {"topicName": "ListedB", "readQueueNums": 3, "writeQueueNums": 1, "attributes": {"+message.type": "NORMAL"}},
    ],
    "BAD-TOPICS": [{"topicName": "a/b"}],
    "SOME-NEW": [
        {"topicName": "ListedA", "readQueueNums": 2, "writeQueueNums": 2},
        {"topicName": "ListedC", "readQueueNums": 1, "writeQueueNums": 1},
    ],
    "GROUPS": [{"groupName": "ListedG", "retryMaxTimes": 5}],
    "MORE-GROUPS": [{"groupName": "ListedG", "retryMaxTimes": 5}, {"groupName": "ListedH"}],
    "BAD-GROUPS": [{"groupName": "ListedI"}, {"groupName": "a/b"}],
}
"""Files that updateTopicList and updateSubGroupList read."""


def written(path: Path, members: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps(members))
    return path


TABLES = (
    (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"),
)


def has_tables_of(slave: Node, master: Node) -> bool:
    """Apache's slaves ask for them every 10 s; one that is elected before has neither topics nor offsets since."""
    for code, member in TABLES:
        wanted, found = (ask_json(node.address, code)[member] for node in (master, slave))
        if not wanted.keys() <= found.keys():
            return False
        if member == "offsetTable" and any(found[name] != value for name, value in wanted.items()):
            return False
    return True


def knows_epoch(brokers: list[Node], epoch: int) -> bool:
    """Apache's slaves hear of an epoch with a heartbeat or the first message of it."""
    told = (ask_json(node.address, RequestCode.GET_BROKER_EPOCH_CACHE)["epochList"] for node in brokers)
    return all(entries[-1]["epoch"] == epoch for entries in told)


def prepared(asker: Asker) -> dict[str, str]:
    """Four messages, a group that has read them, and a group without members. The words in capitals of COMMANDS."""
    lab, at = asker.lab, asker.brokers[0].address
    words = {"AT": at, "SLAVE": asker.brokers[-1].address}
    asker.ask(f"updateTopic -c interop -t {TOPIC} -r 4 -w 4 -o false", words)
    asker.ask(f"updateSubGroup -b AT -g {CLONE} -r 3", words)
    for number in range(SENDS):
        asker.send(number, number % 2)
    asker.consume(SENDS)
    by_offset = asker.raw("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "1")
    (offset_id,) = re.findall(r"^OffsetID: +([0-9A-F]{32})", by_offset, re.M)
    by_key = asker.raw("queryMsgByKey", "-t", TOPIC, "-k", "key3")
    (unique_key,) = re.findall(r"^([0-9A-F]{32}) ", by_key, re.M)
    (client_id,) = re.findall(r"^(\S+@\S+) ", asker.raw("consumerConnection", "-g", GROUP), re.M)
    asker.has_pulled(client_id)
    asker.names |= {client_id: "CLIENT-ID", client_id.partition("@")[2]: "CLIENT-INSTANCE"}
    words |= {name: str(written(lab.scratch / f"{name}.json", members)) for name, members in LISTS.items()}
    return words | {"OFFSET_ID": offset_id, "UNIQUE_KEY": unique_key, "CLIENT_ID": client_id}


def tells_put_times(broker: Node) -> bool:
    """Apache's broker says "null" in its first minute, on which its exporter fails."""
    table = ask_json(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).get("table", {})
    return bool(table.get("putMessageDistributeTime", "null") != "null")


def answers(laboratory: Laboratory) -> tuple[dict[str, str], str]:
    """What each command printed, masked, by the command; brokerStatus of the first master."""
    asker = Asker(laboratory)
    words = prepared(asker)
    for line in COMMANDS:
        if line == "call exporter":
            until("all tell how long puts took", lambda: all(map(tells_put_times, asker.brokers)), TIMEOUT_S)
        asker.ask(line, words)
    status = asker.raw("brokerStatus", "-b", laboratory.master.address)
    lab, target = laboratory.lab, laboratory.brokers[1]
    # it might read at the old master as long as it does not know the new one, which counts only what it gives itself
    asker.leave()
    until("the next master has the tables", lambda: has_tables_of(target, laboratory.master), TIMEOUT_S)
    asker.ask("electMaster -b 2 -bn broker-a -c interop", words)
    is_master(lab, target)
    # whether Apache's old slaves are soon in the new master's set is a matter of luck
    until("all are in the route", lambda: len(lab.route("TBW102")) == len(laboratory.brokers), TIMEOUT_S)
    asker.send(SENDS, 0)
    asker.consume(1)
    for line in AFTER_THE_SWITCH:
        if line.startswith("getBrokerEpoch"):
            until("all know the new epoch", lambda: knows_epoch(laboratory.brokers, 2), TIMEOUT_S)
        asker.ask(line, words)
    return asker.answers, status


COMMANDS = f"""\
clusterList
clusterList -m
topicList
topicList -c
topicRoute -t {TOPIC}
topicRoute -t {TOPIC} -l
topicRoute -t Nothing
topicClusterList -t {TOPIC}
topicStatus -t {TOPIC}
topicStatus -t Nothing
consumerProgress
consumerProgress -g {GROUP}
consumerProgress -g {GROUP} -s true
consumerProgress -g Nobody
brokerConsumeStats -b AT
producer -b AT
consumerConnection -g {GROUP}
consumerConnection -g Nobody
producerConnection -g CLIENT_INNER_PRODUCER -t {TOPIC}
consumerStatus -g {GROUP}
consumerStatus -g {GROUP} -i CLIENT_ID
consumerStatus -g {GROUP} -i nobody
queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 1
queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 99
topicStatus -t OFFSET_MOVED_EVENT
queryMsgById -t {TOPIC} -i OFFSET_ID
queryMsgById -t {TOPIC} -i OFFSET_ID -g {GROUP} -d CLIENT_ID
queryMsgByKey -t {TOPIC} -k key3
queryMsgByKey -t {TOPIC} -k none
queryMsgByUniqueKey -t {TOPIC} -i UNIQUE_KEY
queryMsgByUniqueKey -t {TOPIC} -i UNIQUE_KEY -g {GROUP} -d CLIENT_ID
consumeMessage -t {TOPIC} -c 100
call dashboard {TOPIC} {GROUP}
sendMessage -t {TOPIC} -p 9 -b broker-a -i 3
sendMessage -t {TOPIC} -p 9 -b broker-a -i 77
call subscription {GROUP} {TOPIC}
call subscription {GROUP} Nothing
call subscription Nobody {TOPIC}
call status {TOPIC} {GROUP} -
call status {TOPIC} {GROUP} CLIENT_ID
call status {TOPIC} {GROUP} nobody
call forbidden AT {GROUP} {TOPIC} -
call forbidden AT {GROUP} {TOPIC} false
call forbidden AT {GROUP} {TOPIC} true
call correction AT {TOPIC} {GROUP}
call correction AT Nothing Nobody
queryCq -t {TOPIC} -q 0 -i 0 -c 1
queryCq -t {TOPIC} -q 0 -i 0 -b AT
queryCq -t {TOPIC} -q 0 -i 0 -g {GROUP}
queryCq -t {TOPIC} -q 0 -i 0 -g Nobody
queryCq -t {TOPIC} -q 77 -i 0
queryCq -t Nothing -q 0 -i 0
printMsg -t {TOPIC}
printMsgByQueue -t {TOPIC} -a broker-a -i 0 -p true -f true
getConsumerConfig -g {GROUP}
updateBrokerConfig -b AT -k enablePropertyFilter -v true
updateTopicPerm -t {TOPIC} -b AT -p 6
updateTopicPerm -t {TOPIC} -b AT -p 4
topicRoute -t {TOPIC}
updateTopicPerm -t {TOPIC} -b AT -p 6
updateTopicPerm -t {TOPIC} -c interop -p 6
wipeWritePerm -b broker-a
topicRoute -t {TOPIC}
addWritePerm -b broker-a
topicRoute -t {TOPIC}
wipeWritePerm -b nobody
updateOrderConf -t {TOPIC} -m put -v broker-a:4
updateOrderConf -t {TOPIC} -m get
updateOrderConf -t {TOPIC} -m delete
updateOrderConf -t {TOPIC} -m get
updateTopic -c interop -t Ordered -r 2 -w 2 -o true
updateOrderConf -t Ordered -m get
topicRoute -t Ordered
updateTopic -b AT -t Single -r 1 -w 1
updateTopicList -b AT -f TOPICS
topicRoute -t ListedB
updateTopicList -b AT -f BAD-TOPICS
updateTopicList -b AT -f TOPICS
updateTopicList -b AT -f SOME-NEW
deleteTopic -c interop -t ListedC
updateSubGroupList -b AT -f GROUPS
getConsumerConfig -g ListedG
updateSubGroupList -b AT -f MORE-GROUPS
getConsumerConfig -g ListedH
updateSubGroupList -b AT -f BAD-GROUPS
getConsumerConfig -g ListedI
updateTopic -c interop -t Bad/Name
updateTopic -c nowhere -t Single
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
cloneGroupOffset -s {GROUP} -d {CLONE} -t {TOPIC} -o true
cloneGroupOffset -s {GROUP} -d Nobody -t {TOPIC} -o true
resetOffsetByTime -g {CLONE} -t {TOPIC} -s 0
skipAccumulatedMessage -g {CLONE} -t {TOPIC}
allocateMQ -t {TOPIC} -i one,two
cleanExpiredCQ -b AT
deleteExpiredCommitLog -b AT
haStatus -b AT
haStatus -b SLAVE
haStatus -c interop
haStatus -b 127.0.0.1:1
getSyncStateSet -b broker-a
getSyncStateSet -c interop
getSyncStateSet -b nobody
getBrokerEpoch -b broker-a
getBrokerEpoch -c interop
getBrokerEpoch -b nobody
getControllerMetaData
electMaster -b 1 -bn broker-a -c interop
electMaster -b 9 -bn broker-a -c interop
electMaster -b 1 -bn nobody -c interop
updateSubGroup -c interop -g InCluster
deleteSubGroup -b AT -g {CLONE}
updateTopic -c interop -t Doomed -r 1 -w 1
deleteTopic -c interop -t Doomed
call exporter""".splitlines()
"""All of docs/use/compatibility.md that prints no configuration; words in capitals stand for what a laboratory made.
The exporter comes last: Apache's broker must have run for a minute (`tells_put_times`)."""
AFTER_THE_SWITCH = f"""\
topicRoute -t {TOPIC}
topicStatus -t {TOPIC}
call exporter
call dashboard {TOPIC} {GROUP}
printMsgByQueue -t {TOPIC} -a broker-a -i 0 -p true -f true
sendMessage -t {TOPIC} -p 9 -b broker-a -i 3
getControllerMetaData
getBrokerEpoch -b broker-a""".splitlines()
