from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decisions.elect_master import (
    ElectionRequest,
    Electorate,
    LogEnd,
    Traits,
    choose,
    elected,
    electorate,
    parse_policy,
)
from controller.decisions.refusal import Refusal
from controller.state.event import Cause
from controller.state.replicas_info import BrokerGroup
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from tests.controller.values import ids, make_group

DEAD = ElectionRequest(Cause.MASTER_DEAD)


def who(
    group: BrokerGroup,
    fit: tuple[int, ...],
    election_request: ElectionRequest = DEAD,
    *,
    total: int | None = None,
    unclean: bool = False,
) -> Electorate | Refusal:
    total_replicas = group.total_replicas if total is None else total
    return electorate(group, ids(*fit), election_request, total_replicas=total_replicas, unclean_allowed=unclean)


def named(result: Electorate | Refusal) -> tuple[int, ...] | str:
    return result.ids if isinstance(result, Electorate) else result.remark


def test_members_that_are_fit() -> None:
    assert named(who(make_group(4, sync_state_set=(3, 1, 2)), (2, 3, 4))) == (3, 2)


def test_eligible_ones_count_as_members() -> None:
    assert named(who(make_group(4, sync_state_set=(1,), eligible=(3,)), (2, 3, 4))) == (3,)


def test_the_one_to_avoid_is_left_out() -> None:
    election_request = ElectionRequest(Cause.CONTROLLED_SHUTDOWN, avoid=BrokerId(1))
    assert named(who(make_group(), (1, 2, 3), election_request)) == (2, 3)


def test_a_hand_over_is_never_unclean() -> None:
    group = make_group(sync_state_set=(1,))
    election_request = ElectionRequest(Cause.CONTROLLED_SHUTDOWN, avoid=BrokerId(1))
    assert isinstance(who(group, (1, 2, 3), election_request, unclean=True), Refusal)


def test_unclean_candidates_need_the_key_and_an_ap_group() -> None:
    group = make_group(sync_state_set=(1,))
    assert isinstance(who(group, (2, 3)), Refusal)
    result = who(group, (2, 3), unclean=True)
    assert isinstance(result, Electorate) and (result.ids, result.cause) == ((2, 3), Cause.UNCLEAN_AUTOMATIC)
    assert isinstance(who(make_group(sync_state_set=(1,), ha_mode="cp"), (2, 3), unclean=True), Refusal)
    group.replicas[BrokerId(3)].ha_mode = "cp"
    assert isinstance(who(group, (2, 3), unclean=True), Refusal), "one replica that promises CP is enough"


def test_first_election_needs_every_replica() -> None:
    group = make_group(sync_state_set=(), master_id=None, set_known=False)
    assert "2 of 3 replicas have reported" in str(named(who(group, (1, 2))))
    result = who(group, (1, 2, 3))
    assert isinstance(result, Electorate)
    assert (result.needed_answers, result.cause) == (3, Cause.FIRST_ELECTION)


def test_first_election_of_apache_brokers_takes_the_asker() -> None:
    group = make_group(sync_state_set=(), master_id=None, set_known=False, total_replicas=0)
    assert isinstance(who(group, (1, 2)), Refusal)
    result = who(group, (1, 2), ElectionRequest(Cause.MEMBER_RETURNED, asker=BrokerId(2)))
    assert isinstance(result, Electorate) and (result.ids, result.ask) == ((2,), False)


def test_the_configured_number_overrides_what_brokers_declare() -> None:
    group = make_group(sync_state_set=(), master_id=None, set_known=False, total_replicas=0)
    result = who(group, (1, 2), ElectionRequest(Cause.MEMBER_RETURNED, asker=BrokerId(2)), total=2)
    assert isinstance(result, Electorate) and result.needed_answers == 2


def test_the_only_replica_needs_no_operator_after_an_unclean_boot() -> None:
    """Nobody else could know more; it is told that the election accepts the loss."""
    group = make_group(1, sync_state_set=())
    group.unclean_ids = ids(1)
    result = who(group, ())
    assert isinstance(result, Electorate)
    assert (result.ids, result.cause) == (ids(1), Cause.SOLE_REPLICA)
    group.unclean_ids, group.set_known = (), False
    assert named(who(group, ())) == (1,), "a new controller knows no set"


def test_a_known_empty_set_waits_for_an_operator() -> None:
    group = make_group(sync_state_set=(), master_id=None)
    assert "operator must elect with unclean" in str(named(who(group, (1, 2, 3), unclean=False)))
    group.unclean_ids = ids(2)
    assert "lost power" in str(named(who(group, (1, 2, 3))))


@pytest.mark.parametrize(
    ("target", "fit", "unclean", "expected"),
    [
        (2, (1, 2, 3), False, (2,)),
        (2, (1, 3), False, "g-2 is not alive, or stopping"),
        (9, (1, 2, 3), True, "g has no replica 9"),
        (4, (1, 2, 3, 4), True, (4,)),
        (4, (), True, (4,)),
    ],
)
def test_designated(target: int, fit: tuple[int, ...], unclean: bool, expected: object) -> None:
    election_request = ElectionRequest(Cause.DESIGNATED, target=BrokerId(target), unclean=unclean)
    assert named(who(make_group(4), fit, election_request)) == expected


# (id, epoch, offset, priority), seniority → winner
RANKS = [
    ([(1, 3, 10, 0), (2, 4, 5, 9), (3, 3, 99, 0)], (1, 2, 3), 2),
    ([(1, 4, 10, 0), (2, 4, 11, 9)], (1, 2), 2),
    ([(1, 4, 10, 0), (2, 4, 10, 9)], (2, 1), 2),
    ([(1, 4, 10, 0), (2, 4, 10, 9)], (2,), 2),
    ([(1, 4, 10, 7), (2, 4, 10, 3)], (), 2),
    ([(2, 4, 10, 7), (1, 4, 10, 7)], (), 1),
]


@pytest.mark.parametrize(("rows", "seniority", "winner"), RANKS)
def test_ranking(rows: list[tuple[int, int, int, int]], seniority: tuple[int, ...], winner: int) -> None:
    answers = {BrokerId(row[0]): LogEnd(Epoch(row[1]), PhyOffset(row[2])) for row in rows}
    traits = {BrokerId(row[0]): Traits(row[3]) for row in rows}
    assert choose(answers, ids(*seniority), traits).winner == winner


@given(
    st.dictionaries(
        st.integers(1, 6).map(BrokerId),
        st.builds(LogEnd, st.integers(-1, 2).map(Epoch), st.integers(0, 2).map(PhyOffset)),
        min_size=1,
    ),
    st.permutations(list(ids(1, 2, 3, 4))),
    st.dictionaries(st.integers(1, 6).map(BrokerId), st.builds(Traits, st.integers(0, 1), st.sampled_from("ab"))),
    st.randoms(use_true_random=False),
)
def test_the_order_of_asking_does_not_matter(
    answers: dict[BrokerId, LogEnd], seniority: list[BrokerId], traits: dict[BrokerId, Traits], random: object
) -> None:
    shuffled = dict(sorted(answers.items(), key=lambda item: random.random()))  # type: ignore[attr-defined]
    policy = parse_policy("zone,priority", "b;a")
    choice = choose(answers, tuple(seniority), traits, policy)
    assert choice == choose(shuffled, tuple(seniority), traits, policy)
    winner = choice.winner
    assert answers[winner] == max(answers.values(), key=lambda end: (end.epoch, end.max_offset))


@pytest.mark.parametrize(
    ("ha_mode", "replicas", "members", "eligible", "alive", "cause", "expected"),
    [
        ("ap", 3, (1, 2, 3), (), (2, 3), Cause.MASTER_DEAD, ()),
        ("", 3, (1, 2, 3), (), (2, 3), Cause.MASTER_DEAD, ()),
        ("cp", 3, (1, 2, 3), (), (2, 3), Cause.MASTER_DEAD, (3,)),
        ("cp", 3, (1, 2, 3), (), (1, 2, 3), Cause.DESIGNATED, (1, 3)),
        ("cp", 5, (1,), (2, 4, 5), (2, 4), Cause.MASTER_DEAD, (4,)),
        ("cp", 2, (1, 2), (), (1, 2), Cause.DESIGNATED, ()),
        ("ap", 3, (1, 3), (), (2, 3), Cause.UNCLEAN_AUTOMATIC, ()),
        ("cp", 3, (1, 3), (), (2, 3), Cause.UNCLEAN_BY_OPERATOR, ()),
    ],
)
def test_who_stays_eligible_after_an_election_of_2(
    ha_mode: str,
    replicas: int,
    members: tuple[int, ...],
    eligible: tuple[int, ...],
    alive: tuple[int, ...],
    cause: Cause,
    expected: tuple[int, ...],
) -> None:
    group = make_group(replicas, sync_state_set=members, eligible=eligible, ha_mode=ha_mode)
    event = elected(group, BrokerId(2), cause, [Epoch(3)], ids(*alive))
    assert event.eligible == expected


@pytest.mark.parametrize(
    ("stored", "reported", "expected"), [(5, [3, -1], 6), (0, [-1], 1), (2, [9, 4], 10), (0, [], 1)]
)
def test_the_new_epoch_exceeds_all_that_anyone_has_seen(stored: int, reported: list[int], expected: int) -> None:
    group = make_group(master_epoch=stored)
    epochs = [Epoch(number) for number in reported]
    assert elected(group, BrokerId(2), Cause.MASTER_DEAD, epochs, ids(2)).master_epoch == expected


BIG = 2**31
# policy, zones, (id, offset, priority, zone) rows → winner and why
POLICIES = [
    ("seniority,priority,zone", "", [(1, 5, 9, ""), (2, 5, 1, "")], 2, "longest in the SyncStateSet"),
    ("priority,seniority", "", [(1, 5, 1, ""), (2, 5, 9, "")], 1, "priority 1 before 9"),
    ("priority", "", [(1, 5, -BIG, ""), (2, 5, BIG - 1, "")], 1, f"priority {-BIG} before {BIG - 1}"),
    ("zone,seniority", "b;a", [(1, 5, 0, "a"), (2, 5, 0, "b"), (3, 5, 0, "")], 2, "in the preferred zone b"),
    ("zone", "z", [(2, 5, 0, "a"), (1, 5, 0, "b")], 1, "lowest id among equals"),
    ("", "", [(1, 5, 9, ""), (2, 5, 1, "")], 1, "lowest id among equals"),
    ("priority", "", [(1, 0, 0, ""), (2, 2**63 - 1, 9, "")], 2, f"longest log, {2**63 - 1} bytes more than replica 1"),
    ("priority", "", [(7, 0, 9, "")], 7, "the only candidate"),
]


@pytest.mark.parametrize(("criteria", "zones", "rows", "winner", "reason"), POLICIES)
def test_policy(criteria: str, zones: str, rows: list[tuple[int, int, int, str]], winner: int, reason: str) -> None:
    """Seniority is 2, 3: replica 1 is the newest. No number overflows, as 2^31 bytes more would in RocketMQ."""
    answers = {BrokerId(row[0]): LogEnd(Epoch(3), PhyOffset(row[1])) for row in rows}
    traits = {BrokerId(row[0]): Traits(row[2], row[3]) for row in rows}
    choice = choose(answers, ids(2, 3), traits, parse_policy(criteria, zones))
    assert (choice.winner, choice.reason) == (winner, reason)


def test_who_leads_the_highest_epoch_comes_before_a_longer_log() -> None:
    """Controllers that have lost their disk ask a group whose master goes on acknowledging: it was asked a moment
    before its slave, and may have more by now than that had (simulation, plain 5001770)."""
    leads = LogEnd(Epoch(4), PhyOffset(5), is_master=True)
    choice = choose({BrokerId(1): LogEnd(Epoch(4), PhyOffset(9)), BrokerId(2): leads}, ids(1, 2), {})
    assert (choice.winner, choice.reason) == (2, "the master of epoch 4")
    assert choose({BrokerId(1): LogEnd(Epoch(5), PhyOffset(1)), BrokerId(2): leads}, (), {}).winner == 1
    older = LogEnd(Epoch(3), PhyOffset(99), is_master=True)
    assert choose({BrokerId(1): older, BrokerId(2): leads}, (), {}).winner == 2


def test_a_higher_epoch_is_told_as_such() -> None:
    answers = {BrokerId(1): LogEnd(Epoch(4), PhyOffset(1)), BrokerId(2): LogEnd(Epoch(3), PhyOffset(9))}
    assert choose(answers, (), {}).reason == "highest epoch, 4 before 3"


@pytest.mark.parametrize(("criteria", "expected"), [("zone,zone", "twice"), ("rack", "'rack' must be one of")])
def test_a_policy_that_cannot_be_read(criteria: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_policy(criteria, "")
