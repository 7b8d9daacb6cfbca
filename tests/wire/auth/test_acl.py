"""Signatures. tests/interop proves the signature with Apache's client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode
from rmqha.model.identity import Credentials
from rmqha.wire.auth.acl import ON_BEHALF_OF, authenticate, refusal
from rmqha.wire.auth.signature import ACCESS_KEY, SIGNATURE, sign, signature
from rmqha.wire.command import Command

PUB, SUB = Permission.PUB, Permission.SUB
OWNER = Credentials(access_key="orders", secret_key="12345678")


def access(*white: str, own_white: tuple[str, ...] = (), **values: object) -> AccessList:
    account = Account(credentials=OWNER, white_addresses=own_white, default_topic=PUB, **values)  # type: ignore[arg-type]
    return AccessList({"orders": account}, white)


def send(topic: str = "T", body: bytes = b"hello") -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, {"b": topic, "a": "G", "é": "x", "Z": "1"}, body)


def test_a_signature_covers_the_values_in_the_order_of_their_names_and_the_body() -> None:
    command = Command(RequestCode.SEND_MESSAGE, {"topic": "T", "AccessKey": "orders", "b": "2"}, b"body")
    # echo -n 'orders2Tbody' | openssl dgst -sha1 -hmac 12345678 -binary | base64
    assert signature(command, "12345678") == "u35miGv9SxGvC29EAgn3ZRszIOU="


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=5), st.binary(max_size=20))
def test_what_was_signed_is_taken_as_often_as_it_is_signed(ext: dict[str, str], body: bytes) -> None:
    command = Command(RequestCode.GET_BROKER_CONFIG, ext, body)
    sign(command, OWNER)
    first = command.ext[SIGNATURE]
    assert refusal(access(), command, "10.0.0.1") == ""
    sign(command, OWNER)
    assert command.ext[SIGNATURE] == first


def test_any_change_breaks_it() -> None:
    for change in ("body", "value", "field", "key"):
        command = send()
        sign(command, OWNER)
        if change == "body":
            command.body = b"hallo"
        elif change == "value":
            command.ext["b"] = "U"
        elif change == "field":
            command.ext["new"] = "1"
        else:
            sign(command, Credentials(access_key="orders", secret_key="87654321"))
        assert refusal(access(), command, "10.0.0.1").startswith("the signature of account orders is wrong")


def test_who_is_let_in() -> None:
    command = send()
    assert "is not signed" in refusal(access(), command, "10.0.0.1")
    assert refusal(access("10.0.0.*"), command, "10.0.0.1") == ""
    command.ext[ACCESS_KEY] = "nobody"
    assert refusal(access(), command, "10.0.0.1") == "there is no account 'nobody'"
    command.ext[ACCESS_KEY] = "orders"
    assert "signature" in refusal(access(), command, "10.0.0.1")
    assert refusal(access(own_white=("10.0.0.1",)), command, "10.0.0.1") == ""
    admin = Command(RequestCode.UPDATE_BROKER_CONFIG)
    sign(admin, OWNER)
    assert refusal(access(), admin, "10.0.0.1") == "account orders is not an admin"


def test_an_old_client_flags_a_query_after_it_has_signed_it() -> None:
    for version, refused in ((399, False), (493, True)):
        command = Command(RequestCode.QUERY_MESSAGE, {"topic": "T"}, version=version)
        sign(command, OWNER)
        command.ext["_UNIQUE_KEY_QUERY"] = "true"
        assert bool(refusal(access(default_group=SUB, topics={"T": SUB}), command, "10.0.0.1")) is refused


def test_a_broker_of_ours_that_passes_a_request_on_may_no_more_than_who_has_sent_it() -> None:
    admin = Credentials(access_key="broker", secret_key="12345678")
    accounts = {"orders": Account(credentials=OWNER), "broker": Account(credentials=admin, admin=True)}
    for white in ((), ("10.0.0.1",)):
        command = send()
        command.ext[ON_BEHALF_OF] = "orders"
        sign(command, admin)
        account, reason = authenticate(AccessList(accounts, white), command, "10.0.0.1")
        assert (account, reason) == (accounts["orders"], "")
        command.ext[ON_BEHALF_OF] = "gone"
        sign(command, admin)
        _, reason = authenticate(AccessList(accounts, white), command, "10.0.0.1")
        assert reason == "there is no account 'gone'"
    command = send()
    command.ext[ON_BEHALF_OF] = "broker"
    sign(command, OWNER)
    assert authenticate(AccessList(accounts), command, "10.0.0.1") == (accounts["orders"], "")
