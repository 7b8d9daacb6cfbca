"""The order of an upgrade, and what speaks against it."""

from __future__ import annotations

from rmqha.ops.health.findings import judge
from rmqha.ops.health.upgrade import plan_of
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport
from tests.cli.health.reports import cluster, silent, snapshot_of


def running(release: str, word: NodeReport) -> NodeReport:
    """The same node, of that release."""
    for state in (word.replica, word.controller):
        if state is not None:
            state.release = release
    return word


def at(release: str, **others: str) -> ClusterSnapshot:
    return snapshot_of(running(others.get(name.replace("-", "_"), release), word) for name, word in cluster().items())


def test_controllers_come_first_and_whoever_leads_comes_last_of_its_kind() -> None:
    plan = plan_of(at("0.1.0"), "0.2.0")
    assert [step.node for step in plan.steps] == [
        "ctl-1", "ctl-3", "ctl-2", "ns-1", "ns-2", "broker-a-2", "broker-a-3", "broker-a-1",
    ]  # fmt: skip
    assert plan.blocks == ()


def test_who_runs_it_already_is_not_due() -> None:
    plan = plan_of(at("0.1.0", ctl_1="0.2.0", broker_a_2="0.2.0"), "0.2.0")
    assert [step.node for step in plan.steps if not step.is_due] == ["ctl-1", "broker-a-2"]


def test_a_fault_and_a_release_too_far_away_speak_against_it() -> None:
    words = cluster()
    words["broker-a-3"] = silent(words["broker-a-3"])
    plan = plan_of(snapshot_of(words.values()), "0.2.0")
    assert any("broker-a-3" in line for line in plan.blocks)
    assert plan_of(at("0.1.3"), "0.2.0").blocks == ()
    assert any("install the releases between" in line for line in plan_of(at("0.1.0"), "0.3.0").blocks)
    assert any("install the releases between" in line for line in plan_of(at("0.1.0"), "1.1.0").blocks)


def test_health_tells_of_an_upgrade_that_is_under_way() -> None:
    told = judge(at("0.1.0", broker_a_2="0.2.0"), ["broker-a"])
    (note,) = [finding for finding in told.findings if "different releases" in finding.line]
    assert note.is_note and "0.2.0 on broker-a-2" in note.line
    assert told.healthy
    assert not [finding for finding in judge(at("0.1.0"), ["broker-a"]).findings if "releases" in finding.line]
