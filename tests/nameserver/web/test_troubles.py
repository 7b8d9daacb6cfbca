"""What is wrong, as the page tells it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nameserver.web.page_data import MAX_FINDINGS, health_findings
from rmqha.ops.health.findings import judge
from rmqha.ops.snapshot import NodeReport, ServerKind
from rmqha.wire.state.controller_state import GroupState
from tests.cli.health.reports import cluster, group_row, silent, snapshot_of, tell, tell_group


def registered(words: list[NodeReport]) -> list[tuple[str, str]]:
    snapshot = snapshot_of(words)
    return [(item["where"], item["what"]) for item in health_findings(snapshot, snapshot.groups)["findings"]]


def test_it_says_what_rmqha_health_says() -> None:
    words = cluster()
    words["broker-a-3"] = silent(words["broker-a-3"])
    words["ctl-2"] = replace(words["ctl-2"], leads=False)
    tell(words, "broker-a-1", writable=False, whyNotWritable="disk full")
    every = list(words.values())
    expected = judge(snapshot_of(every), ["broker-a"]).findings
    assert len(expected) >= 3
    assert sorted(registered(every)) == sorted((item.subject, item.sentence) for item in expected)


def test_views_that_match_are_left_out_and_others_name_who_says_what() -> None:
    words = cluster()
    assert health_findings(snapshot_of(words.values()), ["broker-a"])["views"] == []
    tell_group(words["ctl-1"], masterBrokerId=2)
    (view,) = health_findings(snapshot_of(words.values()), ["broker-a"])["views"]
    assert (view["about"], view["agreement"]) == ("controllers", "DIVERGENT")
    assert len(view["says"]) == 3


def test_a_name_server_that_suspects_itself_says_so() -> None:
    found = health_findings(snapshot_of(cluster().values()), ["broker-a"], suspects_itself=True)
    assert (found["healthy"], found["wrong"], found["findings"][0]["where"]) == (False, 1, "this name server")


VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(st.sampled_from(sorted(GroupState.from_json(group_row()).to_json())), VALUES)
def test_an_odd_field_of_a_controllers_group_is_a_silent_controller_or_survived(field: str, value: Any) -> None:
    """An answer is parsed once, where it comes in: what is judged has the types that it should."""
    words = cluster()
    with suppress(ValueError):
        tell_group(words["ctl-2"], **{field: value})
    registered(list(words.values()))


def test_findings_are_bounded_and_counted() -> None:
    count = MAX_FINDINGS + 30
    words = [NodeReport(ServerKind.BROKER, f"10.0.0.1:{20_000 + number}", error="no answer") for number in range(count)]
    found = health_findings(snapshot_of(words), [])
    assert (len(found["findings"]), found["wrong"], found["healthy"]) == (MAX_FINDINGS, count, False)
