"""Replays what Apache RocketMQ 5.4.0's brokers and mqadmin asked their controller, and compares the answers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from controller.config import ControllerConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.controller.harness import Broker, Cluster, Node

WIRE = Path(__file__).parent.parent / "golden" / "wire"
CONTROLLER_CODES = {904, *range(1001, 1014)}


def frames(file: str, scenarios: set[str]) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (WIRE / file).read_text().splitlines()]
    return [
        row
        for row in rows
        if row["scenario"] in scenarios
        and row["conn"].endswith(":controller")
        and (row.get("req_code") or row["code"]) in CONTROLLER_CODES
    ]


def body_of(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["body_b64"])


class Replay:
    def __init__(self) -> None:
        self.cluster = Cluster()
        config = ControllerConfig(controller_dleger_group="group1", controller_dleger_peers="n0-127.0.0.1:20878")
        self.cluster.nodes = {"n0": Node(self.cluster, "n0", config)}
        self.compared: list[int] = []
        for broker_id, port in ((1, 20911), (2, 20921)):
            broker = Broker(broker_id, epoch=1, max_offset=9665, name="gold-a")
            self.cluster.brokers[f"127.0.0.1:{port}"] = broker

    def run(self, rows: list[dict[str, Any]]) -> None:
        """Requests are asked in order; each recorded response is compared with ours."""
        asked: dict[tuple[str, int], Command] = {}
        for row in rows:
            session_id, ext = int(row["conn"].partition(":")[0]), row["header"].get("extFields")
            key = (row["conn"], row["opaque"])
            if row["kind"] == "response":
                if key in asked:
                    self.compare(row, asked.pop(key))
            else:
                command = Command(row["code"], ext, body_of(row), flag=row["flag"])
                token = self.cluster.send(command, session_id)
                self.cluster.run(100)
                if not command.is_oneway:
                    asked[key] = self.cluster.replies[token]
                else:
                    assert token not in self.cluster.replies

    def compare(self, row: dict[str, Any], ours: Command) -> None:
        assert ours.code == row["code"], row
        assert ours.ext == (row["header"].get("extFields") or {}), row
        theirs = body_of(row)
        assert (lenient_json.loads(ours.body) if ours.body else None) == (
            lenient_json.loads(theirs) if theirs else None
        ), row
        self.compared.append(row["req_code"])


BOOT = {"boot-first-broker", "boot-second-broker"}


def test_two_apache_brokers_boot() -> None:
    replay = Replay()
    replay.run(frames("cluster.jsonl", BOOT))
    assert set(replay.compared) == {1001, 1002, 1003, 1004, 1005, 1012, 1013}
    assert len(replay.compared) == 16
    group = replay.cluster.group("gold-a")
    assert (group.master_id, group.sync_state_set) == (1, (1, 2))


def test_mqadmin_asks_and_elects() -> None:
    replay = Replay()
    replay.run(frames("cluster.jsonl", BOOT))
    asked = {"mqadmin-getSyncStateSet", "mqadmin-getControllerMetaData", "mqadmin-electMaster"}
    replay.compared.clear()
    replay.run(frames("mqadmin.jsonl", asked))
    assert replay.compared == [1005, 1006, 1005, 1005, 1002]
    notices = [broker.notices[-1] for broker in replay.cluster.brokers.values()]
    recorded = [
        json.loads(line)
        for line in (WIRE / "mqadmin.jsonl").read_text().splitlines()
        if json.loads(line)["code"] == RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    ]
    assert [item.ext for item in notices] == [row["header"]["extFields"] for row in recorded]
    assert [bytes(item.body) for item in notices] == [body_of(row) for row in recorded]


def test_the_demoted_master_is_refused_as_recorded() -> None:
    replay = Replay()
    replay.run(frames("cluster.jsonl", BOOT))
    replay.run(frames("mqadmin.jsonl", {"mqadmin-electMaster"}))
    replay.compared.clear()
    replay.run(frames("cluster.jsonl", {"mqadmin-electMaster"}))
    assert replay.compared == [1001]


def test_elect_answers_have_quoted_keys() -> None:
    """mqadmin of 5.4.0 prints the result only then; with the unquoted form it crashes after success."""
    replay = Replay()
    replay.run(frames("cluster.jsonl", BOOT))
    ext = {"clusterName": "GoldCluster", "brokerName": "gold-a", "brokerId": "2", "designateElect": "true"}
    answer = replay.cluster.call(RequestCode.CONTROLLER_ELECT_MASTER, ext)
    assert answer.code == ResponseCode.SUCCESS
    assert b'"brokerAddrs":{"1":' in bytes(answer.body)
