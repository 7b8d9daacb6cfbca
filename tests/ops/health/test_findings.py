"""What `rmqha health` makes of what nodes say: each trouble is one reason that names the node and the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmqha.ops.health.agreement import Agreement, views
from rmqha.ops.health.findings import Health, is_unsettled, judge
from rmqha.ops.snapshot import NodeReport, SecurityFile, ServerKind
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.name_server_state import NameServerState
from tests.cli.health.reports import broker, cluster, controller, name_server, replica_row, silent, snapshot_of

Proposal = Callable[[dict[str, NodeReport]], None]


def judged(*words: NodeReport) -> Health:
    """The well cluster with these in place of those at the same addresses."""
    found = {word.address: word for word in cluster().values()} | {word.address: word for word in words}
    return judge(snapshot_of(found.values()), ["broker-a"])


def reasons(*words: NodeReport) -> list[str]:
    return [item.line for item in judged(*words).reasons]


def test_all_is_well() -> None:
    found = judged()
    assert (found.healthy, found.findings, found.answered) == (True, [], 8)
    assert [(view.about, view.agreement) for view in found.views] == [
        ("controllers", Agreement.MATCHING),
        ("name servers", Agreement.MATCHING),
        ("replicas", Agreement.MATCHING),
    ]
    assert not is_unsettled(snapshot_of(cluster().values()))


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("problem", "expires_in_ms", "said"),
    [
        (
            "acl.yml: not YAML, line 1",
            None,
            "aclFile: acl.yml: not YAML, line 1; what it held before is in force; mend",
        ),
        ("", -1, "aclFile: a certificate in f has ended: TLS connections fail; put a new certificate there"),
    ],
)
def test_a_file_that_is_not_in_force_is_a_reason(problem: str, expires_in_ms: int | None, said: str) -> None:
    file = SecurityFile(key="aclFile", file="f", problem=problem, expires_in_ms=expires_in_ms)
    (line,) = reasons(replace(broker(2), security=(file,)))
    assert line.startswith(f"broker-a-2: {said}")


def test_a_certificate_that_ends_soon_is_told_and_is_no_reason() -> None:
    file = SecurityFile(key="tls.server.certPath", file="f", problem="")
    for days, notes in ((13, ["tls.server.certPath: a certificate in f ends in 12 days"]), (15, [])):
        found = judged(replace(broker(2), security=(replace(file, expires_in_ms=days * DAY_MS - 1),)))
        assert (found.healthy, [item.sentence for item in found.findings]) == (True, notes)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(("unsaved_ms", "is_told"), [(0, False), (900, False), (3_200, True)])
def test_a_controller_whose_disk_stands_still_is_a_reason(leads: bool, unsaved_ms: int, is_told: bool) -> None:
    word = controller(1, leads=leads)
    assert word.controller is not None
    word.controller.raft.unsaved_ms = unsaved_ms
    told = [line for line in reasons(word) if line.startswith("ctl-1: its disk has not saved for 3.2 s")]
    assert bool(told) == is_told


def test_nobody_answers() -> None:
    found = judged(*(silent(word) for word in cluster().values()))
    assert (found.healthy, found.answered) == (False, 0)
    assert {view.agreement for view in found.views} == {Agreement.UNAVAILABLE}
    assert len([item for item in found.reasons if "does not answer" in item.sentence]) == 8


def test_who_refuses_is_not_to_be_killed() -> None:
    error = "127.0.0.1:10911 answered 2: address 127.0.0.1 is over its quota of requests a second; try again later"
    found = reasons(replace(silent(broker(1)), error=error, refuses=True))
    (line,) = [line for line in found if line.startswith("broker-a-1: ")]
    assert line.startswith(
        f"broker-a-1: answers, but does not tell: {error}; try again in a moment, or with an account"
    )
    assert "kill" not in line


def test_a_node_that_is_two_servers_is_one_sentence() -> None:
    inside = replace(silent(controller(1)), name="ns-1")
    found = [line for line in reasons(silent(name_server(1)), inside) if line.startswith("ns-1: ")]
    assert len(found) == 1 and "its process lives" in found[0]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (silent(broker(3), runs=False), ["broker-a-3: does not run; rmqha start broker-a-3"]),
        (silent(broker(3)), ["broker-a-3: its process lives", "rmqha kill broker-a-3"]),
        (silent(controller(1), runs=None), ["ctl-1: does not answer", "start it"]),
        (broker(1, writable=False, whyNotWritable="the set is too small"), ["takes no messages: the set is too small"]),
        (broker(2, diskProblem="a write takes 7 s"), ["broker-a-2: disk: a write takes 7 s"]),
        (
            broker(
                2,
                damage={
                    "lackedCount": 2,
                    "refused": None,
                    "records": [{"phyOffset": 8, "reason": "expected a body", "lacked": "nobody has it"}],
                },
            ),
            ["broker-a-2: 2 records of its log are damaged, the one at 8 among them: expected a body (nobody has it)"],
        ),
        (
            broker(2, damage={"lackedCount": 0, "refused": {"phyOffset": 9, "reason": "it is rotten"}, "records": []}),
            ["broker-a-2: its log ends at 9: it is rotten; start a replica that has it"],
        ),
        (broker(2, addressProblem="brokerIP1: x"), ["broker-a-2: brokerIP1: x; set that key to its machine's address"]),
        (broker(2, refusal="nothing in common"), ["broker-a-2: follows nobody: nothing in common"]),
        (broker(2, unclean=True), ["broker-a-2: it lost power"]),
        (broker(2, role="STARTING", controllerRefusal="its id is another's"), ["starting: its id is another's"]),
        (broker(1, role="SLAVE", writable=False), ["elected master of epoch 4, its role is still SLAVE"]),
        (broker(1, waits={"count": 1, "oldestAgeMs": 700}), ["a send has waited for 700 ms", "rmqha explain-wait"]),
        (
            replace(name_server(2), address="10.0.0.1:9862"),
            ["ns-2: tells clients of broker-a 127.0.0.1:10912, which none elsewhere can reach; set brokerIP1"],
        ),
        (name_server(2, "127.0.0.1:10919"), ["ns-2: routes clients of broker-a to 127.0.0.1:10919"]),
    ],
)
def test_a_trouble_of_one_node(word: NodeReport, said: list[str]) -> None:
    found = reasons(word)
    assert all(any(words in line for line in found) for words in said), found
    assert all(line.count("; ") >= 1 for line in found), "each says what to do"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"masterBrokerId": None, "whyNoMaster": "waiting for one of: 2"}, "has no master: waiting for one of: 2"),
        ({"totalReplicas": 5}, "3 of 5 replicas have registered"),
        (
            {"replicas": [replica_row(1), replica_row(2), replica_row(3, inSyncStateSet=False)]},
            "broker-a-3: not in the SyncStateSet",
        ),
    ],
)
def test_a_trouble_that_the_controllers_tell(changes: dict[str, Any], said: str) -> None:
    words = [controller(number, leads=number == 2, **changes) for number in (1, 2, 3)]
    assert any(said in line for line in reasons(*words)), reasons(*words)


def test_a_replica_that_asks_where_idle_queues_end_says_so() -> None:
    rows = {"replicas": [replica_row(1), replica_row(2), replica_row(3, inSyncStateSet=False)]}
    words = [controller(number, leads=number == 2, **rows) for number in (1, 2, 3)]
    found = reasons(*words, broker(3, lacksQueueEnds=True))
    assert any(
        "broker-a-3: not in the SyncStateSet: asks its master where idle queues end" in line
        and "queue_ends_not_learned in rmqha logs broker-a-3" in line
        for line in found
    ), found


def test_no_controller_leads() -> None:
    found = reasons(controller(2), silent(controller(3), runs=False))
    assert any("controllers: none of them leads: 2 of 3 answer and 2 must" in line for line in found)


def test_two_leading_controllers_of_one_group_and_of_two() -> None:
    def leading(number: int, *peers: int) -> NodeReport:
        word = controller(number, leads=True)
        assert word.controller is not None
        rows = [{"node": f"n{peer}", "kind": "VOTER", "address": f"127.0.0.1:987{peer}"} for peer in peers]
        raft = {"term": 7, "voters": [f"n{peer}" for peer in peers], "members": rows}
        told = ControllerState.from_json(word.controller.to_json() | {"raft": raft})
        return replace(word, controller=told)

    found = reasons(leading(1, 1, 2, 3), leading(2, 1, 2, 3))
    assert any("ctl-1 and ctl-2 both lead term 7; report this bug" in line for line in found), found
    apart = judged(leading(1, 1), leading(2, 2))
    assert not any("report this bug" in item.line for item in apart.findings)
    (told,) = [item.sentence for item in apart.findings if item.subject == "controllers"]
    assert told == "ctl-1 and ctl-2 lead groups of controllers of their own"


def test_two_masters_and_an_epoch_behind() -> None:
    found = reasons(broker(2, role="MASTER", epoch=3, writable=False, masterId=2))
    assert any("broker-a-2: says that it is master of epoch 3, but broker-a-1 is" in line for line in found)
    assert any("replicas do not agree" in line for line in found)
    assert any("its epoch 3 is behind the group's 4" in line for line in reasons(broker(2, epoch=3)))


def test_two_static_masters_of_one_name() -> None:
    """A name server knows one of them at a time, and says who takes turns."""
    keys = {"enableControllerMode": "false", "brokerName": "broker-a"}
    masters = [replace(broker(number, haMode="static", role="MASTER"), keys=keys) for number in (1, 2)]
    contested = {"broker-a": ["127.0.0.1:10911", "127.0.0.1:10912"]}
    word = replace(name_server(1), name_server=NameServerState(contested=contested))
    found = judge(snapshot_of([word, masters[0]]), ["broker-a"])
    (line,) = [item.line for item in found.reasons]
    assert line.startswith("broker-a: 127.0.0.1:10911 and 127.0.0.1:10912 register as the same broker of it")
    assert "another brokerName" in line
    both = judge(snapshot_of([name_server(1), *masters]), ["broker-a"])
    assert any(
        "broker-a-2: is configured to be the master, and so is broker-a-1: a static group has one" in item.line
        for item in both.reasons
    ), both.reasons


def test_a_broker_that_name_servers_do_not_accept() -> None:
    why = "broker group broker-a is registered in cluster one, not two; a brokerName must be unique"
    state = NameServerState(refused={"10.0.0.9:10911": ["broker-a", why]})
    words = cluster() | {"ns-1": replace(name_server(1), name_server=state)}
    (line,) = [item.line for item in judge(snapshot_of(words.values()), ["broker-a"]).reasons]
    assert line.startswith(
        f"broker 10.0.0.9:10911: not accepted as a broker of broker-a by ns-1, so no client finds it: {why}"
    )
    assert "brokerClusterName" in line


def test_a_replica_whose_disk_is_full_is_not_sent_to_look_for_the_controllers() -> None:
    found = reasons(broker(2, epoch=3, diskProblem="No space left on device"))
    assert any("disk: No space left on device" in line for line in found)
    assert not any("is behind the group's" in line for line in found)


def test_a_confirm_offset_stands_still_only_if_two_looks_say_so() -> None:
    moving = broker(1, maxPhyOffset=2000, confirmOffset=1500)
    assert is_unsettled(snapshot_of((cluster() | {"broker-a-1": moving}).values()))
    assert judged(moving).healthy
    earlier = broker(1, maxPhyOffset=2000, confirmOffset=1400).replica
    assert judged(replace(moving, before=earlier)).healthy
    assert "stands still at 1500, 500 bytes behind" in reasons(replace(moving, before=moving.replica))[0]


def test_views_are_told_apart() -> None:
    old = controller(3, masterEpoch=3)
    divergent = views(snapshot_of([controller(1), old, silent(controller(2))]), "broker-a")[0]
    assert (divergent.agreement, divergent.silent) == (Agreement.DIVERGENT, ("ctl-2",))
    partial = views(snapshot_of([controller(1), silent(controller(2))]), "broker-a")[0]
    assert partial.agreement is Agreement.PARTIAL
    found = reasons(old)
    assert any("its controllers do not agree: ctl-1 says master broker-a-1, epoch 4" in line for line in found)


def test_who_is_drained_or_a_learner_is_no_trouble() -> None:
    rows = [replica_row(1), replica_row(2, drained=True, inSyncStateSet=False)]
    rows.append(replica_row(3, asyncLearner=True, inSyncStateSet=False))
    changed = {"replicas": rows, "totalReplicas": 2}
    found = judged(*(controller(number, leads=number == 2, **changed) for number in (1, 2, 3)))
    assert found.healthy, found.reasons
    assert [item.subject for item in found.findings] == ["broker-a-2", "broker-a-3"]


def test_who_is_drained_may_be_away() -> None:
    rows = [replica_row(1), replica_row(2), replica_row(3, drained=True, inSyncStateSet=False)]
    words = [controller(number, leads=number == 2, replicas=rows, totalReplicas=2) for number in (1, 2, 3)]
    stopped = judged(*words, silent(broker(3), runs=False))
    assert stopped.healthy, stopped.reasons
    assert [item.line for item in stopped.findings] == [
        "broker-a-3: drained: in no set, stopped; take it back with rmqha drain broker-a-3 --undo"
    ]
    lost = judged(*words, broker(3, followState="connecting"))
    assert lost.healthy and [item.sentence for item in lost.findings] == [
        "drained: in no set",
        "does not follow the master",
    ]


def test_what_stops_sends_stands_first_and_a_full_disk_without_what_follows_from_it() -> None:
    full = broker(2, epoch=1, diskProblem="full: 0 bytes left")
    refusing = broker(1, writable=False, whyNotWritable="2 of 3 must hold each message")
    found = reasons(silent(broker(3), runs=False), full, refusing)
    assert [line.partition(":")[0] for line in found[:2]] == ["broker-a-1", "broker-a-2"]
    assert "takes no messages: 2 of 3 must hold each message" in found[0]
    assert "disk: full: 0 bytes left" in found[1]
    assert next(at for at, line in enumerate(found) if line.startswith("broker-a-3: does not run")) > 1
    assert not any("its epoch 1 is behind" in line for line in found), "that follows from the disk"


def test_a_group_without_a_master_stands_before_all_else() -> None:
    words = [controller(number, leads=number == 2, masterBrokerId=None) for number in (1, 2, 3)]
    found = reasons(silent(name_server(1)), silent(broker(3), runs=False), *words)
    assert found[0].startswith("broker-a: has no master"), found


def test_who_is_in_maintenance_may_be_away() -> None:
    rows = [replica_row(1), replica_row(2), replica_row(3, inMaintenance=True, inSyncStateSet=False)]
    words = [controller(number, leads=number == 2, replicas=rows) for number in (1, 2, 3)]
    stopped = judged(*words, silent(broker(3), runs=False))
    assert stopped.healthy
    assert [item.line for item in stopped.findings] == [
        "broker-a-3: in maintenance, stopped; end it with rmqha maintenance off broker-a-3"
    ]
    frozen = judged(*words, silent(broker(3)))
    assert frozen.healthy and "in maintenance, does not answer (" in frozen.findings[0].sentence
    assert judged(*words).healthy
    assert not judged(*words, silent(broker(2), runs=False)).healthy


def test_an_unclean_election_is_remembered() -> None:
    election = {"cause": "UNCLEAN_BY_OPERATOR", "masterEpoch": 4}
    found = judged(*(controller(number, leads=number == 2, elections=[election]) for number in (1, 2, 3)))
    assert found.healthy
    assert "messages of earlier epochs may be lost" in found.findings[0].sentence


def test_a_group_that_nobody_knows() -> None:
    found = judge(snapshot_of(cluster().values()), ["broker-z"])
    assert "nobody knows a replica of it" in found.reasons[0].sentence


def test_a_cluster_without_a_broker_is_not_well() -> None:
    """All brokers dead and struck off: nobody fails to answer, and nothing is served."""
    empty = NodeReport(ServerKind.NAME_SERVER, "127.0.0.1:9861", "ns-1", runs=True)
    found = judge(snapshot_of([empty, controller(1, leads=True)]), [])
    assert not found.healthy
    assert [item.line for item in found.reasons] == [
        "ns-1: knows no broker; start the brokers, or check their namesrvAddr"
    ]


def test_replicas_that_name_no_master_have_no_view() -> None:
    """Those of a static group, and those that have just started: they answer."""
    routes = name_server(1)
    keys = {"enableControllerMode": "false", "brokerName": "broker-a"}
    static = replace(broker(1, haMode="static"), keys=keys)
    starting = broker(1, role="STARTING")
    for word in (static, starting):
        assert [view.about for view in views(snapshot_of([routes, word]), "broker-a")] == ["name servers"]
    assert [view.about for view in views(snapshot_of([routes, static, silent(broker(2))]), "broker-a")] == [
        "name servers"
    ]
