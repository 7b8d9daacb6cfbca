"""Request 52013: role changes by long poll, from any index."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.quorum.role_long_polls import MAX_REMEMBERED_GROUPS, PAGE_GROUPS, RoleChangeLog, RoleChangeRequest
from controller.state.replicas_info import ReplicasInfo
from rmqha.model.access import AccessList, Account
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials
from rmqha.model.principal import Accounts, Principal
from rmqha.wire.command import Command
from tests.controller.harness import GROUP, Cluster, group_of
from tests.controller.values import EVENTS, make_group


def question(index: int = 0, wait_ms: int = 0, **fields: str) -> Command:
    return Command(
        RequestCode.RMQHA_FOLLOW_GROUPS, {"version": "1", "fromIndex": str(index), "waitMs": str(wait_ms), **fields}
    )


def ask(cluster: Cluster, index: int = 0, wait_ms: int = 0) -> tuple[int, list[Any]]:
    token = cluster.send(question(index, wait_ms))
    cluster.run(30_000, until=lambda: token in cluster.replies)
    return told(cluster.replies[token])


def told(answer: Command) -> tuple[int, list[Any]]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.ext["index"]), json.loads(bytes(answer.body))["groups"]


def test_an_election_answers_who_waits() -> None:
    cluster, brokers = group_of(3)
    index, rows = ask(cluster)
    assert rows == [[GROUP, 1, brokers[0].address, 1]]
    token = cluster.send(question(index, 20_000))
    cluster.run(1000)
    assert token not in cluster.replies
    before_ms = cluster.now_ms
    cluster.crash(brokers[0])
    cluster.run(1000, until=lambda: token in cluster.replies)
    assert told(cluster.replies[token])[1] == [[GROUP, 2, brokers[1].address, 2]]
    assert cluster.now_ms - before_ms <= 5


def test_a_change_of_the_set_is_no_news_and_the_wait_ends() -> None:
    cluster, _ = group_of(3)
    index, _ = ask(cluster)
    token = cluster.send(question(index, 900))
    assert cluster.alter([1, 2]).code == 0
    assert token not in cluster.replies
    cluster.run(1000)
    new_index, rows = told(cluster.replies[token])
    assert rows == [] and new_index > index


def test_an_index_of_another_log_gets_everything() -> None:
    cluster, brokers = group_of(3)
    token = cluster.send(question(10**6, 20_000))
    answer = cluster.replies[token]
    assert answer.ext["full"] == "true"
    assert told(answer)[1] == [[GROUP, 1, brokers[0].address, 1]]


def test_a_follower_redirects_and_a_resigning_leader_too() -> None:
    cluster, _ = group_of(3, node_count=3)
    index, _ = ask(cluster)
    old = cluster.leader
    token = cluster.send(question(index, 20_000))
    cluster.cut = {old.node_id}
    cluster.run(2000)
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER
    assert ask(cluster, index)[1] == [], "the new leader has the same log"


def test_nonsense_is_refused() -> None:
    cluster, _ = group_of(1)
    for fields in ({"version": "9"}, {"fromIndex": "x"}, {"waitMs": "9" * 40}):
        token = cluster.send(question(**fields))  # type: ignore[arg-type]
        assert cluster.replies[token].code == ResponseCode.CONTROLLER_INVALID_REQUEST


def test_all_groups_come_page_by_page() -> None:
    info = ReplicasInfo()
    for number in range(PAGE_GROUPS + 3):
        group = make_group()
        group.broker_name, group.place = f"g{number}", number
        info.groups[group.broker_name] = group
    role_changes = RoleChangeLog(info, 7)
    first = role_changes.answer(question(), RoleChangeRequest(0, 0))
    assert (len(told(first)[1]), first.ext["nextPlace"], first.ext["index"]) == (PAGE_GROUPS, str(PAGE_GROUPS), "7")
    last = role_changes.answer(question(), RoleChangeRequest(0, 0, PAGE_GROUPS))
    assert [row[0] for row in told(last)[1]] == [f"g{PAGE_GROUPS + number}" for number in range(3)]
    assert "nextPlace" not in last.ext
    beyond = role_changes.answer(question(), RoleChangeRequest(0, 0, 10**9))
    assert told(beyond)[1] == []


@given(st.lists(st.lists(EVENTS, max_size=3), max_size=20), st.integers(0, 20))
def test_who_asks_from_any_index_ends_with_the_masters_of_now(entries: list[Any], start: int) -> None:
    info = ReplicasInfo()
    role_changes = RoleChangeLog(info, 0)
    known: dict[str, list[Any]] = {}
    for index, events in enumerate(entries, 1):
        for event in events:
            info.apply(event)
        role_changes.applied(index, events)
        if index == start:
            known = {row[0]: row for row in told(role_changes.answer(question(), RoleChangeRequest(0, 0)))[1]}
    for row in told(role_changes.answer(question(), RoleChangeRequest(min(start, len(entries)), 0)))[1]:
        known[row[0]] = row
    now = {row[0]: row for row in told(role_changes.answer(question(), RoleChangeRequest(10**9, 0)))[1]}
    if start <= len(entries):
        assert known == now


def test_what_is_remembered_is_bounded() -> None:
    from controller.state.event import Cause, MasterVacated
    from rmqha.model.offset import Epoch

    role_changes = RoleChangeLog(ReplicasInfo(), 0)
    for index in range(1, MAX_REMEMBERED_GROUPS + 11):
        role_changes.applied(index, [MasterVacated(f"g{index}", Epoch(1), Cause.NO_LIVE_MEMBER)])
    assert role_changes.answer(question(), RoleChangeRequest(9, 0)).ext["full"] == "true"
    assert role_changes.answer(question(), RoleChangeRequest(10, 0)).ext["full"] == "false"


@pytest.mark.parametrize("ends_by_timeout", [True, False])
def test_a_poll_tells_nothing_when_its_account_is_gone(ends_by_timeout: bool) -> None:
    cluster, brokers = group_of(3)
    index, _ = ask(cluster)
    account = Account(credentials=Credentials(access_key="reader", secret_key="secret"))
    accounts = SimpleNamespace(access=AccessList({"reader": account}))
    command, denied = question(index, 900), list[str]()
    command.principal = Principal(cast(Accounts, accounts), "reader", lambda request, reason: denied.append(reason))
    token = cluster.send(command)
    assert token not in cluster.replies
    accounts.access = AccessList({})
    if not ends_by_timeout:
        cluster.crash(brokers[0])
    cluster.run(2000, until=lambda: token in cluster.replies)
    answer = cluster.replies[token]
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body and len(denied) == 1
