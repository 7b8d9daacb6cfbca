"""The same mqadmin commands for a group of ours and one of Apache's, and what they print without what must differ."""

from __future__ import annotations

import re
from pathlib import Path

from tests.interop.group import TIMEOUT_S, is_master
from tests.interop.java import Java
from tests.interop.lab import Lab, Node
from tests.interop.lines import tries
from tests.interop.processes import until

TOPIC, GROUP, CLONE = "SameTopic", "same", "clone"
SENDS = 4
MASKS = (
    (r"^(\tat |\t\.\.\. |See https:|For more information).*\n?", ""),
    (r"^namesrvAddr .*|.*(@[0-9a-f]{6,8}|\$\$Lambda.*)$", "OBJECT"),
    (r"(?<=spentTimeMills=)\d+", "COUNT"),
    (r"(?<=instanceName )[ :\d#]+", "CLIENT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+", "TIME"),
    (r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?", "TIME"),
    (r"(?<= OK, )\d+$", "COUNT"),
    (r"CODE: 2011 +DESC: .*$", "CODE: 2011"),
    (r"^\d{4} +(?=\S+@)", ""),
    (r"\d+(\.\d+)+@\d+(#\d+)*", "CLIENT"),
    (r"\b\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\b\d{9,}\b", "NUMBER"),
    (r"\b\d+\.\d+\b", "RATE"),
    (r"[ \t]+", " "),
    (r" $", ""),
)


def made(java: Java, scratch: Path, whose: str) -> tuple[Lab, Node]:
    """A name server with controller and one broker, with a topic, messages, and a consumer that has read them."""
    lab = Lab(java, scratch)
    keys = {"enablePropertyFilter": "true"}
    if whose == "ours":
        lab.start_our_name_server()
        broker = lab.our_broker("broker", totalReplicas="1", **keys)
    else:
        lab.start_java_name_server()
        # deleteTopic fails without its timers
        broker = lab.java_broker("broker", timerWheelEnable="true", **keys)
    lab.run(broker)
    is_master(lab, broker)
    return lab, broker


SYSTEM_TOPIC = re.compile(
    r"^(interop )?(BenchmarkTest|OFFSET_MOVED_EVENT|rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_XXXX|interop_REPLY_TOPIC)$"
)
"""Topics of Apache's own features; some of them are made when they are needed."""


def masked(command: str, text: str) -> str:
    """Without what differs from run to run; of lists in a hash table's order, sorted."""
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text, flags=re.M)
    if command in ("topicList", "consumerProgress", "producerConnection"):
        # of producers there are also those of the commands before, for a moment
        lines = {line.strip() for line in text.splitlines()}
        text = "\n".join(sorted(line for line in lines if not SYSTEM_TOPIC.match(line)))
    return text


class Asker:
    def __init__(self, lab: Lab, broker: Node) -> None:
        self.lab = lab
        self.broker = broker
        self.answers: dict[str, str] = {}

    def send(self, number: int) -> None:
        """Again, if the broker was too busy for it."""
        message = ("-p", f"{number} body", "-k", f"key{number}", "-c", "TagA", "-b", "broker-a", "-i", str(number % 2))
        until(
            f"message {number} is stored",
            lambda: "SEND_OK" in self.raw("sendMessage", "-t", TOPIC, *message),
            TIMEOUT_S,
        )

    def raw(self, *arguments: str) -> str:
        if arguments[0] in CONTROLLERS:
            arguments = (*arguments, "-a", self.lab.controller)
        _, text, errors = self.lab.mqadmin(*arguments, "-n", self.lab.name_server)
        return text + errors

    def ask(self, *arguments: str) -> str:
        text = self.raw(*arguments)
        name = " ".join(arguments)
        while name in self.answers:
            name += " again"
        self.answers[masked("", name)] = masked(arguments[0], text)
        return text


CONTROLLERS = {"getSyncStateSet", "getControllerMetaData", "electMaster"}
"""Commands that take the controller's address."""


def prepared(asker: Asker) -> None:
    """Four messages, a group that has read them, and a group without members."""
    lab, at = asker.lab, asker.broker.address
    asker.ask("updateTopic", "-c", "interop", "-t", TOPIC, "-r", "4", "-w", "4", "-o", "false")
    asker.ask("updateSubGroup", "-b", at, "-g", CLONE, "-r", "3")
    for number in range(SENDS):
        asker.send(number)
    consumer = lab.client("Work", TOPIC, "concurrently", GROUP, "0", "16", "tag:*")
    until("all are consumed", lambda: len(tries(consumer)) == SENDS, TIMEOUT_S, consumer)

    def committed() -> bool:
        text = asker.raw("consumerProgress", "-g", GROUP)
        return "Consume Diff Total: 0" in text and f"%RETRY%{GROUP}" in text

    until("all is committed, and the retry topic is read", committed, TIMEOUT_S, consumer)


def answers(made_lab: tuple[Lab, Node]) -> dict[str, str]:
    """What each command printed, masked, by the command."""
    lab, broker = made_lab
    asker = Asker(lab, broker)
    prepared(asker)
    by_offset = asker.raw("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "1", "-o", "1")
    (offset_id,) = re.findall(r"^OffsetID: +([0-9A-F]{32})", by_offset, re.M)
    by_key = asker.raw("queryMsgByKey", "-t", TOPIC, "-k", "key3")
    (unique_key,) = re.findall(r"^([0-9A-F]{32}) ", by_key, re.M)
    (client_id,) = re.findall(r"^(\S+@\S+) ", asker.raw("consumerConnection", "-g", GROUP), re.M)
    words = {"AT": broker.address, "OFFSET_ID": offset_id, "UNIQUE_KEY": unique_key, "CLIENT_ID": client_id}
    for line in COMMANDS:
        asker.ask(*(words.get(word, word) for word in line.split()))
    return asker.answers


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
consumerProgress
consumerProgress -g {GROUP}
consumerProgress -g Nobody
consumerConnection -g {GROUP}
consumerConnection -g Nobody
producerConnection -g CLIENT_INNER_PRODUCER -t {TOPIC}
consumerStatus -g {GROUP} -i CLIENT_ID
consumerStatus -g {GROUP} -i nobody
queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 1
queryMsgById -t {TOPIC} -i OFFSET_ID
queryMsgById -t {TOPIC} -i OFFSET_ID -g {GROUP} -d CLIENT_ID
queryMsgByKey -t {TOPIC} -k key3
queryMsgByKey -t {TOPIC} -k none
queryMsgByUniqueKey -t {TOPIC} -i UNIQUE_KEY
consumeMessage -t {TOPIC} -c 100
sendMessage -t {TOPIC} -p 9 -b broker-a -i 3
printMsg -t {TOPIC}
getConsumerConfig -g {GROUP}
updateBrokerConfig -b AT -k enablePropertyFilter -v true
updateTopicPerm -t {TOPIC} -b AT -p 6
updateTopicPerm -t {TOPIC} -b AT -p 4
topicRoute -t {TOPIC}
updateTopicPerm -t {TOPIC} -b AT -p 6
wipeWritePerm -b broker-a
topicRoute -t {TOPIC}
addWritePerm -b broker-a
topicRoute -t {TOPIC}
wipeWritePerm -b nobody
updateOrderConf -t {TOPIC} -m put -v broker-a:4
updateOrderConf -t {TOPIC} -m get
updateOrderConf -t {TOPIC} -m delete
updateOrderConf -t {TOPIC} -m get
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
cloneGroupOffset -s {GROUP} -d {CLONE} -t {TOPIC} -o true
resetOffsetByTime -g {CLONE} -t {TOPIC} -s 0
skipAccumulatedMessage -g {CLONE} -t {TOPIC}
allocateMQ -t {TOPIC} -i one,two
cleanExpiredCQ -b AT
deleteExpiredCommitLog -b AT
haStatus -b AT
getSyncStateSet -b broker-a
getBrokerEpoch -b broker-a
getControllerMetaData
electMaster -b 1 -bn broker-a -c interop
deleteSubGroup -b AT -g {CLONE}
updateTopic -c interop -t Doomed -r 1 -w 1
deleteTopic -c interop -t Doomed""".splitlines()
"""All of docs/compatibility.md; words in capitals stand for what a laboratory has made."""
