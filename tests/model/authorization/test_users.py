"""Decisions about what a user may, remembered."""

from __future__ import annotations

import pytest

from rmqha.model.access import Needs, Permission
from rmqha.model.authorization import users
from rmqha.model.authorization.policy import (
    Access,
    Action,
    Policies,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourcePattern,
    ResourceType,
    decide,
)
from rmqha.model.authorization.users import MAX_REMEMBERED_CHARS, AuthorizationRules, UserAccount
from rmqha.model.identity import Credentials

ORDERS = Resource(ResourceType.TOPIC, ResourcePattern.LITERAL, "orders")
POLICY = Policy(PolicyType.CUSTOM, (PolicyEntry(ORDERS, (Action.PUB,), ("10.0.0.1",), True),))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(name, host) of each decision that was made."""
    found: list[tuple[str, str]] = []

    def counted(policies: Policies, access: Access, host: str) -> str:
        found.append((access.name, host))
        return decide(policies, access, host)

    monkeypatch.setattr(users, "decide", counted)
    return found


def account() -> UserAccount:
    rules = AuthorizationRules(is_on=True)
    return UserAccount(
        credentials=Credentials(access_key="ann", secret_key="secret-1"), policies=(POLICY,), rules=rules
    )


def refusal(found: UserAccount, topic: str, any_of: Permission = Permission.PUB, host: str = "10.0.0.1") -> str:
    return found.refusal(Needs(topics=((topic, any_of),)), host)


def test_the_same_use_from_the_same_host_is_decided_once(asked: list[tuple[str, str]]) -> None:
    ann = account()
    assert [refusal(ann, "orders") for _ in range(3)] == ["", "", ""]
    denied = {refusal(ann, "other") for _ in range(3)}
    assert denied == {"User:ann has no permission to access Topic:other from 10.0.0.1, no matched policies."}
    assert asked == [("orders", "10.0.0.1"), ("other", "10.0.0.1")]


def test_another_host_and_another_right_are_decided_anew(asked: list[tuple[str, str]]) -> None:
    ann = account()
    assert refusal(ann, "orders") == ""
    assert "no matched policies" in refusal(ann, "orders", host="10.0.0.2")
    assert "no matched policies" in refusal(ann, "orders", Permission.SUB)
    assert len(asked) == 3


def test_what_is_remembered_is_bounded(asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_REMEMBERED_DECISIONS", 4)
    ann = account()
    for number in range(9):
        assert "no matched policies" in refusal(ann, f"topic-{number}")
    assert len(ann._decisions) <= 4
    long = "x" * (MAX_REMEMBERED_CHARS + 1)
    assert refusal(ann, long) == refusal(ann, long)
    assert [name for name, _ in asked].count(long) == 2
