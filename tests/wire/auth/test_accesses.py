"""What each request uses, and what a user may."""

from __future__ import annotations

import json

import pytest

from rmqha.model.access import Account, Needs, Permission
from rmqha.model.authorization.policy import Access, Action, ResourceType, from_json
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode
from rmqha.model.identity import PEER, Credentials
from rmqha.wire.auth.accesses import accesses, request_refusal
from rmqha.wire.auth.acl_needs import ANY_ACCOUNT
from rmqha.wire.command import Command


def _topic(name: str, *actions: str) -> Access:
    return Access(ResourceType.TOPIC, name, frozenset(map(Action, actions)))


def _group(name: str, *actions: str) -> Access:
    return Access(ResourceType.GROUP, name, frozenset(map(Action, actions)))


def _cluster(*actions: str) -> Access:
    return Access(ResourceType.CLUSTER, "C", frozenset(map(Action, actions)))


HEARTBEAT = {
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]}],
}
LOCKS = {"consumerGroup": "G", "mqSet": [{"topic": "T"}, {"topic": "%RETRY%G"}, {"topic": "T"}]}


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected"),
    [
        (10, {"topic": "T", "b": "U"}, None, (_topic("T", "Pub"),)),
        (310, {"b": "T", "topic": "U"}, None, (_topic("T", "Pub"),)),
        (320, {"b": "%RETRY%G"}, None, (_group("G", "Sub"),)),
        # the producer's group is a claim: the retry topic says whose it is
        (310, {"b": "%RETRY%G", "a": "H"}, None, (_group("G", "Sub"),)),
        (10, {"topic": "%RETRY%G", "group": "H", "producerGroup": "H"}, None, (_group("G", "Sub"),)),
        (310, {}, None, None),
        (11, {"topic": "T", "consumerGroup": "G"}, None, (_topic("T", "Sub"), _group("G", "Sub"))),
        (361, {"topic": "T", "consumerGroup": "G"}, None, (_topic("T", "Sub"), _group("G", "Sub"))),
        (11, {"topic": "%RETRY%G", "consumerGroup": "G"}, None, (_group("G", "Sub"),)),
        (11, {"topic": "T"}, None, None),
        (12, {"topic": "T"}, None, (_topic("T", "Sub", "Get"),)),
        (14, {"topic": "T", "consumerGroup": "G"}, None, (_topic("T", "Sub", "Get"), _group("G", "Sub", "Get"))),
        (15, {"topic": "%RETRY%G", "consumerGroup": "G"}, None, (_group("G", "Sub", "Update"),)),
        (17, {"topic": "T"}, None, (_topic("T", "Create"),)),
        (21, {}, None, (_topic("*", "Get", "List"),)),
        (25, {}, None, (_cluster("Update"),)),
        (30, {"topic": "T"}, None, (_topic("T", "Get"),)),
        (30, {"topic": "%RETRY%G"}, None, (_group("G", "Get"),)),
        (33, {"topic": "T"}, None, (_topic("T", "Get"),)),
        (33, {}, None, None),
        (34, {}, HEARTBEAT, (_group("G", "Sub"), _topic("T", "Sub"))),
        (34, {}, {"consumerDataSet": 3}, None),
        (35, {"producerGroup": "P"}, None, ()),
        (35, {"consumerGroup": "G"}, None, (_group("G", "Sub"),)),
        (36, {"group": "G", "originTopic": "T"}, None, (_group("G", "Sub"),)),
        (37, {}, None, ()),
        (37, {"topic": "T"}, None, (_topic("T", "Pub"),)),
        (41, {}, LOCKS, (_group("G", "Sub"), _topic("T", "Sub"))),
        (200, {}, {"groupName": "G"}, (_group("G", "Create", "Update"),)),
        (200, {}, [], None),
        (207, {"groupName": "G"}, None, (_group("G", "Delete"),)),
        (
            208,
            {"consumerGroup": "G", "topic": "", "topicList": "T;;U"},
            None,
            (_group("G", "Get"), _topic("T", "Get"), _topic("U", "Get")),
        ),
        (215, {"topic": "T"}, None, (_topic("T", "Delete"),)),
        (222, {"topic": "T", "group": "G"}, None, (_topic("T", "Update"), _group("G", "Update"))),
        (309, {"consumerGroup": "G", "topic": "T"}, None, (_topic("T", "Sub"), _group("G", "Sub"))),
        (
            314,
            {"srcGroup": "G", "destGroup": "H", "topic": "T"},
            None,
            (_group("G", "Get", "Update"), _group("H", "Update"), _topic("T", "Update")),
        ),
        (
            18,
            {},
            {"topicConfigList": [{"topicName": "T"}, {"topicName": "U"}, {"topicName": "T"}]},
            (_topic("T", "Create"), _topic("U", "Create")),
        ),
        (18, {}, {"topicConfigList": [{}]}, None),
        (225, {}, {"groupConfigList": [{"groupName": "G"}]}, (_group("G", "Create", "Update"),)),
        (225, {}, {"groupConfigList": {}}, ()),
        (223, {"topic": "T", "group": "G"}, None, (_topic("T", "Get"), _group("G", "Get"))),
        (
            308,
            {"topic": "T", "compareGroup": "G", "filterGroups": "H,G,"},
            None,
            (_topic("T", "Get"), _group("G", "Get"), _group("H", "Get")),
        ),
        (308, {"topic": "T"}, None, None),
        (321, {"topic": "T", "consumerGroup": "G"}, None, (_topic("T", "Get"), _group("G", "Get"))),
        (321, {"topic": "T"}, None, (_topic("T", "Get"),)),
        (345, {"topic": "T", "group": "G"}, None, (_topic("T", "Get"), _group("G", "Get"))),
        (345, {"group": "G"}, None, (_group("G", "Get"),)),
        (3001, {}, None, (_cluster("Update"),)),
        (3010, {}, None, (_cluster("Get"),)),
        (26, {}, None, ()),
        (52030, {}, None, None),
        (99999, {}, None, None),
    ],
)
def test_what_a_request_uses(code: int, ext: dict[str, str], body: object, expected: tuple[Access, ...] | None) -> None:
    command = Command(code, ext, b"" if body is None else json.dumps(body).encode())
    assert accesses(command, "C") == expected


POLICIES = from_json(
    [
        {
            "entries": [
                {"resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]},
                {"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"},
            ]
        }
    ]
)


def _account(*, on: bool = True, free: frozenset[int] = frozenset(), **keys: bool) -> Account:
    rules = AuthorizationRules(on, "C", unauthorized_codes=free)
    return UserDirectory.of([User("u", "p", **keys)], {"u": POLICIES}, rules).accounts["u"]


def test_policies_decide_by_topic_action_and_address() -> None:
    send, pull = Command(310, {"b": "T"}), Command(11, {"topic": "T", "consumerGroup": "G"})
    assert request_refusal(_account(), send, "10.1.1.1") == request_refusal(_account(), pull, "10.1.1.1") == ""
    assert (
        request_refusal(_account(), send, "11.0.0.1")
        == "User:u has no permission to access Topic:T from 11.0.0.1, no matched policies."
    )
    assert "Topic:U" in request_refusal(_account(), Command(310, {"b": "U"}), "10.1.1.1")
    assert "Topic:T" in request_refusal(_account(), Command(17, {"topic": "T"}), "10.1.1.1")


def test_what_only_a_super_user_may() -> None:
    follow, unknown = Command(RequestCode.RMQHA_FOLLOW_TABLES), Command(99)
    for account in (_account(), _account(on=False)):
        assert request_refusal(account, follow, "10.1.1.1") == "User:u is not a super user"
        assert account.refusal(Needs(admin=True)) == "User:u is not a super user"
    assert request_refusal(_account(), unknown, "10.1.1.1") == "User:u is not a super user"
    assert request_refusal(_account(on=False), unknown, "10.1.1.1") == ""
    assert request_refusal(_account(is_super=True), follow, "") == ""


def test_a_code_of_the_white_list_is_every_users() -> None:
    send = Command(310, {"b": "U"})
    assert request_refusal(_account(free=frozenset({310})), send, "10.1.1.1") == ""
    assert request_refusal(_account(free=frozenset({10})), send, "10.1.1.1") != ""


def test_without_policies_a_user_may_what_shows_nothing() -> None:
    account = UserDirectory.of([User("u", "p")], {}, AuthorizationRules(True, "C")).accounts["u"]
    allowed = {code for code in RequestCode if not request_refusal(account, Command(code), "10.1.1.1")}
    assert allowed - ANY_ACCOUNT == {RequestCode.UNREGISTER_CLIENT, RequestCode.END_TRANSACTION}


@pytest.mark.parametrize(
    ("needs", "refused"),
    [
        (Needs(topics=(("T", Permission.PUB),)), ""),
        (Needs(topics=(("%RETRY%G", Permission.PUB),)), ""),
        (Needs(topics=(("%DLQ%G", Permission.SUB),)), "Topic:%DLQ%G"),
        (Needs(topics=(("U", Permission.PUB | Permission.SUB),)), "Topic:U"),
        (Needs(groups=(("G", Permission.SUB),)), ""),
        (Needs(groups=(("G", Permission.PUB),)), "Group:G"),
    ],
)
def test_what_a_processor_asks_about_a_record(needs: Needs, refused: str) -> None:
    reason = _account().refusal(needs, "10.1.1.1")
    assert refused in reason and bool(refused) is bool(reason)


def test_a_disabled_user_is_no_account() -> None:
    directory = UserDirectory.of([User("u", "p", is_enabled=False)], {}, AuthorizationRules())
    assert not directory.accounts
    assert directory.unknown("u") == "User:u is disabled." and directory.unknown("v") == "User:v is not found."
    assert directory.refusal("u", Needs()) == directory.producer_group_refusal("u", "P") == "User:u is disabled."


@pytest.mark.parametrize(("free", "on", "expected"), [((), True, False), ((310,), True, True), ((), False, True)])
def test_what_needs_no_user(free: tuple[int, ...], on: bool, expected: bool) -> None:
    """The name of an unproven user allows nothing: both lists must name a code where policies count."""
    rules = AuthorizationRules(on, "C", frozenset({310}), frozenset(free))
    assert UserDirectory({}, rules=rules).takes_unsigned(310) is expected
    assert not UserDirectory({}, rules=rules).takes_unsigned(11)


def test_servers_of_the_cluster_are_a_super_user() -> None:
    account = UserDirectory({}).with_peers("secret").accounts[PEER]
    assert account.admin and account.credentials == Credentials(access_key=PEER, secret_key="secret")


def test_no_text_shows_a_password() -> None:
    directory = UserDirectory.of([User("u", "hidden-one"), User("v", "hidden-two")], {}, AuthorizationRules())
    assert "hidden" not in repr(directory) + repr(User("u", "hidden-one"))
