"""What is read from the answers of brokers."""

from __future__ import annotations

from typing import Any

import pytest

from controller.decisions.elect_master import LogEnd
from controller.elections.election import log_end
from controller.state.answers import InvalidRequestError, parse_log_end, text
from rmqha.model.code import RequestCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps

OWN_ID = BrokerId(2)
ANSWER: dict[str, Any] = {
    "brokerId": 2,
    "brokerName": "a",
    "clusterName": "c",
    "epochList": [{"epoch": 1, "startOffset": 0, "endOffset": 10}, {"epoch": 4, "startOffset": 10, "endOffset": 99}],
    "maxOffset": 50,
}


@pytest.mark.parametrize("told_id", [2, 0, -1])
def test_a_replica_names_itself_by_its_id_or_as_master_or_without_a_role(told_id: int) -> None:
    """An Apache broker that waits for its first role answers -1, the value in its file."""
    found = parse_log_end(dumps({**ANSWER, "brokerId": told_id}), "a", OWN_ID)
    assert found == LogEnd(Epoch(4), PhyOffset(50), is_master=told_id == 0)


@pytest.mark.parametrize(
    ("replica_id", "told_id", "is_it"), [(2, 0, True), (2, 2, True), (3, 0, False), (-1, -1, False)]
)
def test_another_replica_at_that_address_is_not_the_one_asked(replica_id: int, told_id: int, is_it: bool) -> None:
    """One that has lost its disk has no id yet, and in the body a master of any id is 0 (simulation, idle 6007237)."""
    body = dumps({**ANSWER, "brokerId": told_id})
    reply = Command(RequestCode.GET_BROKER_EPOCH_CACHE).reply(ext={"replicaId": str(replica_id)}, body=body)
    assert (log_end(reply, "a", OWN_ID) is not None) is is_it
    assert log_end(Command(RequestCode.GET_BROKER_EPOCH_CACHE).reply(body=body), "a", OWN_ID), "Apache's broker"


@pytest.mark.parametrize("wrong", [{"brokerId": 3}, {"brokerName": "b"}, {"maxOffset": -1}, {"epochList": [1]}])
def test_answers_of_others_and_nonsense_count_as_silence(wrong: dict[str, Any]) -> None:
    assert parse_log_end(dumps({**ANSWER, **wrong}), "a", OWN_ID) is None


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "\u202ea"])
def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="the field brokerName holds characters that cannot be printed"):
        text({"brokerName": name}, "brokerName")
