"""Every command of the real mqadmin does against ours and Apache's servers what docs/use/requests.md says; the lists of
that page are those of Apache's jars."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmqha.model.code import ResponseCode
from tests.interop.lab import other_commands, same_commands
from tests.interop.lab.java import Java
from tests.interop.lab.other_commands import COMMANDS, ENDLESS, OtherAnswers, begun
from tests.interop.lab.processes import Process, call, ours
from tests.interop.lab.same_commands import WHOSE, both
from tests.support.patience import HANG_S
from tools.compatibility_doc import COMMANDS as OTHERWISE
from tools.compatibility_doc import NOBODY, Outcome, command_names, request_names, unserved

pytestmark = pytest.mark.interop

ELSEWHERE = {"brokerStatus", "getBrokerConfig", "getNamesrvConfig", "getControllerConfig"}
"""Compared by test_mqadmin_same.py."""
NOT_SUPPORTED = re.compile(r"CODE: 3 +DESC: +request type \d+ not supported")
SAME_HERE = {
    "rocksDBConfigToJson -p /nowhere -t topics": "mqadmin refuses it by itself",
    "switchTimerEngine -b AT -e F": "the engine that both have",
}
"""Line of a command that does otherwise → why this line prints the same."""
SAYS = {
    # Apache's looks for the topic that only it has made
    "remappingStaticTopic": (r"RemappingStaticTopicSubCommand command failed", r"mapping data is written"),
    # Apache's takes it when it was started with timerRocksDBEnable
    "switchTimerEngine": (r"CODE: 29 +DESC: timer messages wait in the log", r"CODE: 29 +DESC: timerUseRocksDB"),
}
"""What a command prints against ours and Apache's, where that is no refusal by code 3."""


@pytest.fixture(scope="module")
def laboratories(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OtherAnswers]]:
    """Ours, Apache's."""
    with both(java, tmp_path_factory.mktemp, lambda lab, whose: OtherAnswers(begun(lab, whose))) as found:
        yield found


def test_the_lists_are_those_of_apaches_jars(java: Java, tmp_path: Path) -> None:
    process = Process("names", java.command("Names"), tmp_path)
    assert process.wait(HANG_S) == 0, process.tail()
    words = [line.split() for line in process.lines()]
    assert {int(line[2]): line[1] for line in words if line[0] == "CODE"} == request_names()
    assert sorted(line[1] for line in words if line[0] == "COMMAND") == command_names()


def test_every_command_is_asked() -> None:
    lines = (*COMMANDS, *same_commands.COMMANDS, *same_commands.PREPARED, *(line[0] for line in ENDLESS))
    assert {line.split()[0] for line in lines} - {"call"} | ELSEWHERE == set(command_names())


def test_the_rest_prints_what_the_page_says(laboratories: list[OtherAnswers]) -> None:
    ours, apaches = (item.printed for item in laboratories)
    assert ours.keys() == apaches.keys()
    for line, text in ours.items():
        name = line.split()[0]
        item = OTHERWISE.get(name)
        if item is None or line in SAME_HERE:
            assert text == apaches[line], line
        elif name in SAYS:
            assert re.search(SAYS[name][0], text) and re.search(SAYS[name][1], apaches[line]), (
                line,
                text,
                apaches[line],
            )
        else:
            assert item.outcome is Outcome.REFUSED, line
            assert NOT_SUPPORTED.search(text) and not NOT_SUPPORTED.search(apaches[line]), (line, text, apaches[line])


def test_what_is_exported_is_the_same(laboratories: list[OtherAnswers]) -> None:
    ours, apaches = (item.files for item in laboratories)
    assert ours.keys() == apaches.keys() == {"configs.json", "metadata.json", "metrics.json"}
    topic = same_commands.TOPIC
    for table, name in (("topicConfigTable", topic), ("subscriptionGroupTable", same_commands.GROUP)):
        assert ours["metadata.json"][table][name] == apaches["metadata.json"][table][name], table
    shapes = [other_commands.shape(item["metrics.json"]) for item in (ours, apaches)]
    assert shapes[0] == shapes[1]
    environments = [item["metrics.json"]["evaluateReport"]["broker-a"]["runtimeEnv"] for item in (ours, apaches)]
    assert environments[0] == environments[1], "one machine's"
    scales = [item["configs.json"]["clusterScale"] for item in (ours, apaches)]
    assert scales[0] == scales[1]
    keys = [item["configs.json"]["brokerConfigs"]["broker-a"] for item in (ours, apaches)]
    assert keys[0].keys() == keys[1].keys()
    of_traces = {"msgTraceTopicName", "traceOn", "traceTopicEnable", "useTLS"}
    assert {name: keys[0][name] for name in of_traces} == {name: keys[1][name] for name in of_traces}


def test_files_that_apaches_servers_have_written_start_ours(laboratories: list[OtherAnswers]) -> None:
    """An operator changes a key live, and each writes all that it knows into its file."""
    laboratory = laboratories[1]
    lab, broker = laboratory.lab, laboratory.asker.brokers[0]
    # the name server's was changed by the commands
    laboratory.asker.raw("updateBrokerConfig", "-b", broker.address, "-k", "traceOn", "-v", "true")
    for server, name in (("broker", broker.name), ("namesrv", "namesrv")):
        written = (lab.scratch / f"{name}.conf").read_text()
        assert len(written.splitlines()) > 40
        path = lab.scratch / f"{name}-for-ours.conf"
        path.write_text(written + ("haSecurity=open\n" if server == "broker" else ""))
        checked = subprocess.run(
            [*ours(server, path), "--check"], capture_output=True, text=True, check=False, timeout=HANG_S
        )
        assert checked.returncode == 0, checked.stderr


def test_a_refusal_ends_with_exit_code_0(laboratories: list[OtherAnswers]) -> None:
    """In a process of its own: Apache's program tells nobody that a server has refused, whoever's server it is."""

    def ended(laboratory: OtherAnswers) -> tuple[int, bool]:
        lab, at = laboratory.lab, laboratory.asker.brokers[0].address
        words = ("getColdDataFlowCtrInfo", "-b", at, "-n", lab.name_server)
        code, said, complained = lab.mqadmin(*words, settings={"interop.level": "OFF"})
        return code, NOT_SUPPORTED.search(said + complained) is not None

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ended, laboratories)) == [(0, True), (0, False)]


def test_what_goes_on_for_ever_works(laboratories: list[OtherAnswers]) -> None:
    """clusterRT sends two messages, and none fails; startMonitoring tells how far behind each group is."""

    def written(laboratory: OtherAnswers) -> list[str]:
        round_trip, monitoring = ENDLESS
        laboratory.endless(round_trip, r"^interop +broker-a +\d+\.\d+ +2 +0 *$")
        text = laboratory.endless(monitoring, r"\[MONITOR\] =+endRound")
        of_group = rf"reportUndoneMsgs: .*consumerGroup={same_commands.GROUP}, .*(?=, undoneMsgsDelayTimeMills)"
        return sorted(re.findall(of_group, text))

    with ThreadPoolExecutor(2) as pool:
        ours, apaches = pool.map(written, laboratories)
    assert ours == apaches
    assert any(f"topic={same_commands.TOPIC}, undoneMsgsTotal=0" in line for line in ours)


def test_apaches_servers_do_not_take_what_nobody_takes(laboratories: list[OtherAnswers]) -> None:
    """And ours answer 3 to everything that stands in the page, whatever port it comes to."""
    for whose, laboratory in zip(WHOSE, laboratories, strict=True):
        lab, broker = laboratory.lab, laboratory.asker.brokers[0]
        for code in unserved() if whose == "ours" else NOBODY.codes:
            for address in (broker.address, lab.name_server, lab.controller):
                reply = call(address, code)
                assert reply is not None and reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, (code, address)
