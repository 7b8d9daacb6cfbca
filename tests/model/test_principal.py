"""Who asks, as processors see it."""

from __future__ import annotations

from rmqha.model.access import AccessList, Account, Needs, Permission
from rmqha.model.identity import Credentials
from rmqha.model.principal import UNRESTRICTED, Principal

SUB = Permission.SUB


class Kept:
    def __init__(self, access: AccessList) -> None:
        self.access = access


def account(**topics: Permission) -> AccessList:
    found = Account(credentials=Credentials(access_key="orders", secret_key="12345678"), topics=topics)
    return AccessList({"orders": found})


def test_a_changed_file_counts_for_who_is_there_already() -> None:
    kept = Kept(account(T=SUB))
    principal = Principal(kept, "orders")
    needs = Needs(topics=(("T", SUB),))
    assert principal.is_restricted and not principal.refusal(needs) and not principal.producer_group_refusal("P")
    kept.access = account()
    assert principal.refusal(needs) == "account orders has no SUB permission on topic T"
    kept.access = AccessList({})
    assert principal.refusal(needs) == principal.producer_group_refusal("P") == "there is no account 'orders'"


def test_where_nobody_asks_for_accounts_everything_is_allowed() -> None:
    assert not UNRESTRICTED.is_restricted
    assert UNRESTRICTED.refusal(Needs(admin=True)) == UNRESTRICTED.producer_group_refusal("P") == ""
