"""A server's history as others read it."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.wire.state.history import HistoryEvent, parse_history

ELECTED: dict[str, Any] = {"at_ms": 5, "event": "master_elected", "group": "g", "node": "n1"}


def test_an_event_is_told_on_as_the_server_told_it() -> None:
    (event,) = parse_history({"events": [ELECTED], "wallMs": 9})
    assert event == HistoryEvent(5, "master_elected", {"group": "g", "node": "n1"})
    assert event.to_json() == ELECTED and list(event.to_json()) == list(ELECTED)


def test_the_reader_says_which_node_told_it() -> None:
    (event,) = parse_history({"events": [ELECTED]}, "ns-1")
    assert event == HistoryEvent(5, "master_elected", {"group": "g"}, "ns-1")
    assert event.to_json() == ELECTED | {"node": "ns-1"}


def test_what_is_no_event_is_left_out() -> None:
    odd: list[Any] = [None, 5, [], {}, {"at_ms": 1}, {"event": "writable"}, {"at_ms": "x", "event": "writable"}]
    assert parse_history({"events": [*odd, {"at_ms": 4, "event": 4}, ELECTED]}) == parse_history({"events": [ELECTED]})


@pytest.mark.parametrize("found", [None, [], {}, {"events": None}, {"events": {}}, "events"])
def test_what_is_no_history_is_refused(found: object) -> None:
    with pytest.raises(ValueError, match="it is no history"):
        parse_history(found)
