"""State requests: the schema writes what is recorded, byte for byte, and reads it as the same value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqha.wire.lenient_json import dumps
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.explained_state import ExplainedGroup
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.replica_state import RefusedConnections, ReplicaState, StallState
from tests.broker.conftest import make_broker
from tests.broker.support import Broker
from tests.wire.node_state_scenarios import broker_answer, golden, scenarios

__all__ = ["make_broker"]

STALL: dict[str, Any] = {"ended_ms_ago": 1, "lasted_ms": 2, "longest_ms": 3, "count": 4, "ended_with": "OK"}
ODD: tuple[object, ...] = (None, "x", -1, [], {}, [{}], {"a": 1})


def schema_of(name: str) -> type[JsonRecord]:
    if name == "explained":
        return ExplainedGroup
    return ControllerState if name in ("leader", "follower", "after a failover") else ReplicaState


def test_servers_answer_byte_for_byte_as_recorded() -> None:
    wanted = golden()
    assert {name: body.decode() for name, body in scenarios().items()} == {
        name: body for name, body in wanted.items() if name != "broker"
    }


def test_a_broker_adds_its_own_part_byte_for_byte(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    found = broker_answer(make_broker).decode()
    assert re.sub(r'"dataDirectory":"[^"]*"', '"dataDirectory":"/store"', found) == golden()["broker"]


def test_a_record_compares_and_shows_itself_by_its_fields() -> None:
    one, other = StallState(**STALL), StallState(**STALL)
    assert one == other and repr(one) == repr(other)
    assert repr(one).startswith("StallState(ended_ms_ago=1, lasted_ms=2, ")
    other.count = 9
    assert one != other and one != STALL and one != RefusedConnections()


@pytest.mark.parametrize("name", sorted(golden()))
def test_what_is_read_is_what_was_written(name: str) -> None:
    body = golden()[name].encode()
    assert dumps(schema_of(name).from_json(json.loads(body)).to_json()) == body


@pytest.mark.parametrize("name", sorted(golden()))
def test_each_member_may_be_missing_unknown_or_odd(name: str) -> None:
    """An older peer lacks some, a newer one has more, a foreign one has others: a value or ValueError, nothing else."""
    cls, whole = schema_of(name), json.loads(golden()[name])
    assert cls.from_json({**whole, "invented": [1]}) == cls.from_json(whole)
    for member in whole:
        for odd in ODD:
            try:
                cls.from_json({**whole, member: odd})
            except ValueError as error:
                assert str(error).startswith(member)
        lacking: dict[str, Any] = {key: value for key, value in whole.items() if key != member}
        try:
            cls.from_json(lacking)
        except ValueError as error:
            assert str(error) == f"it lacks {member}"


@pytest.mark.parametrize("body", [None, [], "x", 1, {}, {"role": "MASTER"}])
def test_what_is_no_state_is_refused(body: object) -> None:
    for cls in (ReplicaState, ControllerState, ExplainedGroup):
        with pytest.raises(ValueError, match=r"^it (is no JSON object|lacks \w+)$"):
            cls.from_json(body)
