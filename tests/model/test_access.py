"""Accounts and their permissions: the decision, the address patterns, the file."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.model.access import AccessList, Account, Needs, Permission, address_matches, parse_access_list
from rmqha.model.error import ConfigError
from rmqha.model.identity import Credentials

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY


def account(**values: Any) -> Account:
    return Account(credentials=Credentials(access_key="orders", secret_key="12345678"), **values)


@pytest.mark.parametrize(
    ("who", "needs", "refusal"),
    [
        (account(), Needs(), ""),
        (account(), Needs(admin=True), "account orders is not an admin"),
        (account(admin=True), Needs(admin=True), ""),
        (account(), Needs(topics=(("T", PUB),)), "account orders has no PUB permission on topic T"),
        (account(default_topic=PUB), Needs(topics=(("T", PUB),)), ""),
        (account(default_topic=PUB), Needs(topics=(("T", SUB),)), "account orders has no SUB permission on topic T"),
        (account(default_topic=PUB), Needs(topics=(("T", PUB | SUB),)), ""),
        (account(default_topic=PUB | SUB, topics={"T": DENY}), Needs(topics=(("U", PUB), ("T", PUB))), "on topic T"),
        (account(topics={"T": PUB}), Needs(topics=(("T", PUB),), groups=(("G", SUB),)), "SUB permission on group G"),
        (account(topics={"T": SUB}, groups={"G": SUB}), Needs(topics=(("T", SUB),), groups=(("G", SUB),)), ""),
        (account(admin=True), Needs(topics=(("T", PUB),), groups=(("G", SUB),)), ""),
        (account(admin=True, topics={"T": DENY}), Needs(topics=(("T", PUB),)), "no PUB permission on topic T"),
        (account(groups={"G": SUB}), Needs(topics=(("%RETRY%G", PUB), ("%DLQ%G", SUB))), ""),
        (account(default_topic=PUB | SUB), Needs(topics=(("%RETRY%G", PUB),)), "no SUB permission on group G"),
        (account(default_topic=PUB | SUB), Needs(topics=(("%DLQ%G", SUB),)), "no SUB permission on group G"),
        (account(topics={"%DLQ%G": SUB}), Needs(topics=(("%DLQ%G", SUB),)), ""),
        (account(topics={"%DLQ%G": PUB}, groups={"G": SUB}), Needs(topics=(("%DLQ%G", PUB),)), "on topic %DLQ%G"),
        (account(groups={"G": SUB}), Needs(topics=(("%retry%G", SUB),)), "no SUB permission on topic %retry%G"),
        (account(topics={"T": SUB}), Needs(topics=(("ns%T", SUB),)), "no SUB permission on topic ns%T"),
        (account(default_topic=SUB), Needs(topics=(("SCHEDULE_TOPIC_XXXX", SUB),)), "on topic SCHEDULE_TOPIC_XXXX"),
        (account(default_topic=SUB), Needs(topics=(("RMQ_SYS_TRANS_HALF_TOPIC", PUB | SUB),)), "TRANS_HALF_TOPIC"),
        (account(topics={"TRANS_CHECK_MAX_TIME_TOPIC": SUB}), Needs(topics=(("TRANS_CHECK_MAX_TIME_TOPIC", SUB),)), ""),
        (account(admin=True), Needs(topics=(("SCHEDULE_TOPIC_XXXX", SUB),)), ""),
        (account(default_group=SUB), Needs(groups=(("CID_RMQ_SYS_TRANS", SUB),)), "on group CID_RMQ_SYS_TRANS"),
    ],
)
def test_what_an_account_may(who: Account, needs: Needs, refusal: str) -> None:
    said = who.refusal(needs)
    assert said.endswith(refusal) and bool(said) == bool(refusal)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["10.1.2.3", "::1", "nonsense"], []),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.33", "::1", "nonsense"]),
        ("10.1.2.*", ["10.1.2.3", "10.1.2.255"], ["10.1.3.3"]),
        ("10.1.*.*", ["10.1.2.3"], ["10.2.2.3"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.3-5", ["10.1.2.3", "10.1.2.4", "10.1.2.5"], ["10.1.2.6", "10.1.2.2"]),
        ("::1", ["::1"], ["::2", "127.0.0.1"]),
        ("fe80::1:*", ["fe80::1:7", "fe80::1:ffff"], ["fe80::2:7"]),
        ("10.1.2", [], ["10.1.2.0"]),
        ("10.1.2.x", [], ["10.1.2.0"]),
        ("", [], ["10.1.2.3"]),
    ],
)
def test_address_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [host for host in yes + no if address_matches(pattern, host)] == yes


def test_the_file_of_rocketmq() -> None:
    access = parse_access_list(
        {
            "globalWhiteRemoteAddresses": ["10.10.103.*", "192.168.0.*"],
            "accounts": [
                {
                    "accessKey": "RocketMQ",
                    "secretKey": 12345678,
                    "whiteRemoteAddress": None,
                    "admin": False,
                    "defaultTopicPerm": "DENY",
                    "defaultGroupPerm": "SUB",
                    "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB"],
                    "groupPerms": ["groupA=DENY", "groupB=PUB|SUB"],
                },
                {"accessKey": "rocketmq2", "secretKey": "12345678", "whiteRemoteAddress": "192.168.1.*", "admin": True},
            ],
        },
        "plain_acl.yml",
    )
    assert access.white_addresses == ("10.10.103.*", "192.168.0.*")
    first = access.accounts["RocketMQ"]
    assert first.credentials.secret_key == "12345678" and not first.admin
    assert first.topics == {"topicA": DENY, "topicB": PUB | SUB, "topicC": SUB}
    assert first.groups == {"groupA": DENY, "groupB": PUB | SUB}
    assert (first.default_topic, first.default_group) == (DENY, SUB)
    assert access.accounts["rocketmq2"].admin
    assert access.accounts["rocketmq2"].white_addresses == ("192.168.1.*",)
    assert "12345678" not in repr(access)


GOOD = {"accessKey": "orders", "secretKey": "12345678"}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "f: expected the keys globalWhiteRemoteAddresses and accounts"),
        ({"acounts": []}, "f: unknown key acounts; the nearest known key is accounts"),
        ({"accounts": ["x"]}, "f: account 1: expected the keys of an account, beginning with accessKey"),
        ({"accounts": [{"accessKey": "orders"}]}, "f: account 1: secretKey must have 6 characters or more"),
        ({"accounts": [GOOD, GOOD]}, "f: accessKey orders is given twice"),
        ({"accounts": [{**GOOD, "admin": "yes"}]}, "f: account 1: admin must be true or false"),
        ({"accounts": [{**GOOD, "topicPerm": []}]}, "unknown key topicPerm; the nearest known key is topicPerms"),
        ({"accounts": [{**GOOD, "defaultTopicPerm": "ALL"}]}, "defaultTopicPerm: ALL is none of DENY, PUB, SUB"),
        ({"accounts": [{**GOOD, "topicPerms": ["T"]}]}, "topicPerms: T is not of the form NAME=PERMISSION"),
        ({"accounts": [{**GOOD, "topicPerms": "T=PUB"}]}, "topicPerms: expected a list of NAME=PERMISSION"),
        ({"globalWhiteRemoteAddresses": [7]}, "f: an address pattern must be text, for example 10.1.2.*"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_sentence(document: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_access_list(document, "f")
    assert sentence in str(caught.value) and "12345678" not in str(caught.value)


def test_a_producer_group_belongs_to_the_accounts_that_it_is_given_to() -> None:
    def named(key: str, **values: Any) -> Account:
        return Account(credentials=Credentials(access_key=key, secret_key="12345678"), **values)

    accounts = [
        named("owner", groups={"P": PUB | SUB}),
        named("other"),
        named("reader", groups={"P": SUB, "Q": SUB}),
        named("barred", groups={"Q": DENY}),
        named("operator", admin=True),
    ]
    access = AccessList({item.credentials.access_key: item for item in accounts})

    def may(group: str) -> list[str]:
        return [key for key in access.accounts if not access.producer_group_refusal(key, group)]

    assert may("P") == ["owner", "operator"]
    assert may("Q") == ["owner", "other", "reader", "operator"]
    assert access.producer_group_refusal("other", "P") == "account other has no PUB permission on group P"
    assert access.producer_group_refusal("gone", "Q") == "there is no account 'gone'"
    assert access.refusal("gone", Needs()) == "there is no account 'gone'"
