"""What is read from the answers of brokers."""

from __future__ import annotations

from typing import Any

import pytest

from controller.answers import parse_log_end
from controller.decisions.elect_master import LogEnd
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
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


@pytest.mark.parametrize("wrong", [{"brokerId": 3}, {"brokerName": "b"}, {"maxOffset": -1}, {"epochList": [1]}])
def test_answers_of_others_and_nonsense_count_as_silence(wrong: dict[str, Any]) -> None:
    assert parse_log_end(dumps({**ANSWER, **wrong}), "a", OWN_ID) is None
