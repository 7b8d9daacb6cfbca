"""What each request needs of the account that has signed it."""

from __future__ import annotations

import json

import pytest

from rmqha.model.access import Needs, Permission
from rmqha.model.code import RequestCode
from rmqha.wire.auth.acl_needs import needs
from rmqha.wire.command import Command

PUB, SUB = Permission.PUB, Permission.SUB

HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]},
    ],
}


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected"),
    [
        (10, {"topic": "T", "b": "U"}, None, Needs(topics=(("T", PUB),))),
        (310, {"b": "%RETRY%G", "topic": "T"}, None, Needs(topics=(("%RETRY%G", PUB),))),
        (320, {"b": "T"}, None, Needs(topics=(("T", PUB),))),
        (310, {}, None, Needs(admin=True)),
        (11, {"topic": "T", "consumerGroup": "G"}, None, Needs(topics=(("T", SUB),), groups=(("G", SUB),))),
        (361, {"topic": "T", "consumerGroup": "G"}, None, Needs(topics=(("T", SUB),), groups=(("G", SUB),))),
        (36, {"group": "G", "originTopic": "T"}, None, Needs(topics=(("T", SUB),), groups=(("G", SUB),))),
        (36, {"group": "G"}, None, Needs(groups=(("G", SUB),))),
        (33, {"offset": "1"}, None, Needs(admin=True)),
        (33, {"offset": "1", "topic": "T"}, None, Needs(topics=(("T", SUB),))),
        (30, {"topic": "T"}, None, Needs(topics=(("T", PUB | SUB),))),
        (34, {}, HEARTBEAT, Needs(topics=(("T", SUB), ("%RETRY%G", SUB)), groups=(("G", SUB),))),
        (34, {}, {"producerDataSet": []}, Needs()),
        (34, {}, {"consumerDataSet": {"groupName": "G"}}, Needs(admin=True)),
        (34, {}, [], Needs(admin=True)),
        (35, {"producerGroup": "P"}, None, Needs()),
        (35, {"producerGroup": "P", "consumerGroup": "G"}, None, Needs(groups=(("G", SUB),))),
        (37, {"topic": "T"}, None, Needs(topics=(("T", PUB),))),
        (37, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, None, Needs()),
        (37, {}, None, Needs()),
        (41, {}, {"consumerGroup": "G", "mqSet": [{"topic": "T"}]}, Needs(topics=(("T", SUB),), groups=(("G", SUB),))),
        (41, {}, {"mqSet": []}, Needs(admin=True)),
        (101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}, None, Needs(topics=(("T", PUB | SUB),))),
        (101, {"namespace": "X", "key": "T"}, None, Needs(admin=True)),
        (105, {"topic": "T"}, None, Needs(topics=(("T", PUB | SUB),))),
        (105, {"topic": "TBW102"}, None, Needs()),
        (204, {"producerGroup": "P"}, None, Needs(groups=(("P", PUB | SUB),))),
        (208, {"consumerGroup": "G"}, None, Needs(groups=(("G", SUB),))),
        (
            208,
            {"consumerGroup": "G", "topic": "T", "topicList": "U;;V"},
            None,
            Needs(topics=(("T", SUB), ("U", SUB), ("V", SUB)), groups=(("G", SUB),)),
        ),
        (17, {"topic": "T"}, None, Needs(admin=True)),
        (103, {}, None, Needs(admin=True)),
        (52002, {}, None, Needs(admin=True)),
        (99_999, {}, None, Needs(admin=True)),
    ],
)
def test_what_a_request_needs(code: int, ext: dict[str, str], body: object, expected: Needs) -> None:
    assert needs(Command(code, ext, b"" if body is None else json.dumps(body).encode())) == expected


def test_every_code_that_changes_something_takes_an_admin_or_a_permission() -> None:
    free = {code for code in RequestCode if needs(Command(code)) == Needs()}
    assert {code.name for code in free if not code.name.startswith(("GET_", "QUERY_", "CHECK_"))} == {
        "CONTROLLER_GET_METADATA_INFO",
        "CONTROLLER_GET_SYNC_STATE_DATA",
        "RMQHA_EXPLAIN_GROUP",
        "RMQHA_GET_CONTROLLER_STATE",
        "RMQHA_GET_HISTORY",
        "RMQHA_GET_NAMESRV_STATE",
        "RMQHA_GET_QUORUM",
        "RMQHA_GET_REPLICA_STATE",
        "RMQHA_GET_SECURITY_STATE",
        "RMQHA_HOLDS_SENDS",
        "UNREGISTER_CLIENT",
        "END_TRANSACTION",
    }
