"""The mqadmin commands that `same_commands` does not ask: files that they write, users, what either side refuses."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import START_TIMEOUT_S, Lab
from tests.interop.lab.processes import accepts, until
from tests.interop.lab.same_commands import GROUP, JAVA_KEYS, TOPIC, Asker, Laboratory, has_id, prepared

COMMANDS = f"""\
statsAll -t {TOPIC}
sendMsgStatus -b broker-a -s 10 -c 2
checkMsgSendRT -t {TOPIC} -a 2 -s 10
queryMsgTraceById -i UNIQUE_KEY
cleanUnusedTopic -b AT
cleanUnusedTopic -c interop
updateNamesrvConfig -k orderMessageEnable -v true
updateControllerConfig -k enableElectUncleanMaster -v false
setConsumeMode -c interop -t {TOPIC} -g {GROUP} -m PULL -q 1
addBroker -c AT -b /nowhere
removeBroker -c AT -b interop:broker-a:0
resetMasterFlushOffset -b AT -o 1
exportMetadata -c interop -f EXPORTED
exportConfigs -c interop -f EXPORTED
exportMetrics -c interop -f EXPORTED
updateStaticTopic -t Static -qn 2 -b broker-a
remappingStaticTopic -t Static -b broker-a
exportMetadataInRocksDB -p /nowhere -t topics
exportPopRecord -b AT -d true
cleanBrokerMetadata -b 7 -bn broker-a -c interop
dumpCompactionLog -f /nowhere
getColdDataFlowCtrInfo -b AT
updateColdDataFlowCtrGroupConfig -b AT -g {GROUP} -v 1
removeColdDataFlowCtrGroupConfig -b AT -g {GROUP}
setCommitLogReadAheadMode -b AT -m 0
rocksDBConfigToJson -p /nowhere -t topics
rocksDBConfigToJson -c interop -t topics
checkRocksdbCqWriteProgress -c interop -t {TOPIC}
switchTimerEngine -b AT -e F
switchTimerEngine -b AT -e R
createUser -b AT -u ann -p ann-secret -t Normal
updateUser -b AT -u ann -s disable
getUser -b AT -u ann
listUser -b AT
createAcl -b AT -s User:ann -r Topic:orders -a Pub -d Allow
updateAcl -b AT -s User:ann -r Topic:orders -a Sub -d Allow
getAcl -b AT -s User:ann
listAcl -b AT
copyUser -f AT -t AT -u ann
copyAcl -f AT -t AT -s User:ann
deleteAcl -b AT -s User:ann
deleteUser -b AT -u ann""".splitlines()
ENDLESS = (("clusterRT", "-a", "2", "-i", "1"), ("startMonitoring",))
"""Commands that go on until they are killed."""


def begun(lab: Lab, whose: str) -> Laboratory:
    """With one broker."""
    broker = (
        lab.our_broker("broker-1", totalReplicas="1") if whose == "ours" else lab.java_broker("broker-1", **JAVA_KEYS)
    )
    broker.process = lab.start(broker.name, broker.command)
    until("the broker has an id", lambda: has_id(broker), START_TIMEOUT_S, broker.running)
    until("the broker listens", lambda: accepts(broker.address), START_TIMEOUT_S, broker.running)
    is_master(lab, broker)
    return Laboratory(lab, [broker])


class OtherAnswers:
    """Answers of one laboratory: `printed` by the command line, `files` that exports wrote."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.asker = Asker(laboratory)
        self.lab: Lab = laboratory.lab
        exported = self.lab.scratch / "exported"
        self.asker.names[str(exported)] = "EXPORTED"
        words = prepared(self.asker) | {"EXPORTED": str(exported)}
        self.asker.answers.clear()
        for line in COMMANDS:
            self.asker.ask(line, words)
        self.printed = self.asker.answers
        self.files: dict[str, Any] = {
            path.name: json.loads(path.read_text()) for path in sorted(exported.rglob("*.json"))
        }

    def endless(self, arguments: tuple[str, ...], wanted: str) -> str:
        """What such a command has written, on both outputs, when `wanted` is among it."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command = self.lab.java.command(main, *arguments, "-n", self.lab.name_server, heap="128m")
        process = self.lab.start(f"endless-{arguments[0]}", command)

        def text() -> str:
            return process.output.read_text() + process.log.read_text()

        until(f"{arguments[0]} works", lambda: re.search(wanted, text(), re.M) is not None, TIMEOUT_S, process)
        process.kill()
        return text()


def shape(value: Any) -> Any:
    """Names of members, without what differs by moment or address."""
    if isinstance(value, dict):
        return {re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", name): shape(item) for name, item in value.items()}
    return type(value).__name__
