"""What is wrong, as the page tells it."""

from __future__ import annotations

from nameserver.web.picture import MAX_FINDINGS, troubles
from rmqha.ops.health.agreement import groups_of
from rmqha.ops.health.findings import judge
from rmqha.ops.health.survey import NodeReport, ServerKind
from tests.cli.health.words import broker, cluster, silent, tell, tell_group


def told(words: list[NodeReport]) -> list[tuple[str, str]]:
    return [(item["where"], item["what"]) for item in troubles(words, groups_of(words), {})["findings"]]


def test_it_says_what_rmqha_health_says() -> None:
    words = cluster()
    words["broker-a-3"] = silent(words["broker-a-3"])
    words["ctl-2"].leads = False
    tell(words["broker-a-1"], writable=False, whyNotWritable="disk full")
    every = list(words.values())
    expected = judge(every, groups_of(every)).findings
    assert len(expected) >= 3
    assert sorted(told(every)) == sorted((item.subject, item.sentence) for item in expected)


def test_views_that_match_are_left_out_and_others_name_who_says_what() -> None:
    words = cluster()
    assert troubles(list(words.values()), ["broker-a"], {})["views"] == []
    tell_group(words["ctl-1"], masterBrokerId=2)
    (view,) = troubles(list(words.values()), ["broker-a"], {})["views"]
    assert (view["about"], view["agreement"]) == ("controllers", "DIVERGENT")
    assert len(view["says"]) == 3


def test_a_name_server_that_suspects_itself_says_so() -> None:
    found = troubles(list(cluster().values()), ["broker-a"], {"suspectsItself": True})
    assert (found["healthy"], found["wrong"], found["findings"][0]["where"]) == (False, 1, "this name server")


def test_an_odd_answer_spoils_its_own_group_only() -> None:
    apache = NodeReport(ServerKind.CONTROLLER, "10.0.0.1:1", is_ours=False, leads=True)
    apache.replicas = {"odd": {"inSyncReplicas": 5}}
    odd = broker(1, brokerName="odd")
    odd.address, odd.groups = "10.0.0.1:2", frozenset({"odd"})
    words = cluster()
    tell(words["broker-a-1"], writable=False, whyNotWritable="disk full")
    found = dict(told([*words.values(), apache, odd]))
    assert "is not known to this release" in found["odd"]
    assert "disk full" in found["broker-a-1"]


def test_findings_are_bounded_and_counted() -> None:
    count = MAX_FINDINGS + 30
    words = [NodeReport(ServerKind.BROKER, f"10.0.0.1:{20_000 + number}", error="no answer") for number in range(count)]
    found = troubles(words, [], {})
    assert (len(found["findings"]), found["wrong"], found["healthy"]) == (MAX_FINDINGS, count, False)
