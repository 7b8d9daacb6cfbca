"""What a signature of our own form covers: everything, and once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from rmqha.model.code import RequestCode
from rmqha.model.identity import Credentials
from rmqha.wire.auth.session_signature import (
    COUNT,
    FORM,
    SessionSignatures,
    SessionSigner,
    is_session_proof,
    session_proof,
    session_signature,
)
from rmqha.wire.auth.signature import ACCESS_KEY, SIGNATURE, sign, signature
from rmqha.wire.command import FLAG_ONEWAY, Command

SECRET = "12345678"
CREDENTIALS = Credentials(access_key="broker", secret_key=SECRET)
NONCE = "a" * 64


def request() -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "1"}, b"body")


def signed() -> Command:
    command = request()
    SessionSigner(NONCE).sign(command, CREDENTIALS)
    return command


def _rename(command: Command) -> None:
    command.ext["topik"] = command.ext.pop("topic")


def _swap_values(command: Command) -> None:
    command.ext["topic"], command.ext["queueId"] = command.ext["queueId"], command.ext["topic"]


def _swap_code(command: Command) -> None:
    command.code = RequestCode.DELETE_TOPIC_IN_BROKER


def _move_border(command: Command) -> None:
    """The last value gives its last letters to the body, or the other way round."""
    command.ext["topic"], command.body = "T" + "b", b"ody"


def _join_values(command: Command) -> None:
    command.ext["queueId"], command.ext["topic"] = "", "1T"


def _oneway(command: Command) -> None:
    command.flag |= FLAG_ONEWAY


def _older(command: Command) -> None:
    command.version = 1


def _remark(command: Command) -> None:
    command.remark = "x"


def _more(command: Command) -> None:
    command.ext["onBehalfOf"] = "admin"


CHANGES = [_rename, _swap_values, _swap_code, _move_border, _join_values, _oneway, _older, _remark, _more]


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_a_signed_request_can_be_changed(change: Callable[[Command], None]) -> None:
    command = signed()
    assert SessionSignatures(NONCE).is_valid(command, SECRET)
    command = signed()
    change(command)
    assert not SessionSignatures(NONCE).is_valid(command, SECRET)


@pytest.mark.parametrize("change", [_rename, _swap_code, _oneway])
def test_apaches_form_does_not_cover_names_code_and_flag(change: Callable[[Command], None]) -> None:
    """Why it is for Apache's programs only (docs/operate/security.md)."""
    command = request()
    sign(command, CREDENTIALS)
    before = command.ext[SIGNATURE]
    change(command)
    assert signature(command, SECRET) == before


def test_no_request_counts_twice_nor_on_another_connection() -> None:
    signer, server = SessionSigner(NONCE), SessionSignatures(NONCE)
    first, second = request(), request()
    signer.sign(first, CREDENTIALS)
    signer.sign(second, CREDENTIALS)
    assert first.ext[SIGNATURE] != second.ext[SIGNATURE]
    assert server.is_valid(first, SECRET)
    assert not server.is_valid(first, SECRET)
    assert server.is_valid(second, SECRET)
    assert not server.is_valid(first, SECRET)
    assert not SessionSignatures("b" * 64).is_valid(second, SECRET)


def test_a_wrong_one_does_not_use_up_the_count() -> None:
    server, command = SessionSignatures(NONCE), signed()
    forged = signed()
    forged.ext[COUNT] = "999999"
    assert not server.is_valid(forged, SECRET)
    assert server.is_valid(command, SECRET)


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "\u0661", "9" * 5000])
def test_counts_that_are_none(count: str) -> None:
    command = signed()
    command.ext[COUNT] = count
    assert not SessionSignatures(NONCE).is_valid(command, SECRET)


def test_a_request_may_be_signed_anew_in_either_form() -> None:
    command = signed()
    sign(command, CREDENTIALS)
    assert FORM not in command.ext and COUNT not in command.ext
    assert command.ext[SIGNATURE] == signature(command, SECRET)
    SessionSigner(NONCE).sign(command, CREDENTIALS)
    assert SessionSignatures(NONCE).is_valid(command, SECRET)


def test_a_signer_says_what_the_form_is() -> None:
    """For requests of many kinds, more than it remembers, with names and values of all kinds."""
    draws, signer = Random(1), SessionSigner(NONCE)
    texts = ["", "a", "%", "%d", "100%s", "\u4f60\u597d", "\ud800", "1:a", "x" * 300, "Signature", "Z"]
    for number in range(400):
        ext = {draws.choice(texts) + str(draws.randrange(3)): draws.choice(texts) for _ in range(draws.randrange(9))}
        body: bytes | memoryview = draws.choice((b"", b"body", memoryview(b"body")))
        command = Command(
            draws.choice([310, -1]), ext, body, remark=draws.choice([None, "", "r%\u00fc"]), version=number
        )
        secret = draws.choice([SECRET, SECRET, "another"])
        signer.sign(command, Credentials(access_key=draws.choice(["me", "%"]), secret_key=secret))
        assert command.ext[SIGNATURE] == session_signature(command, NONCE, secret)
        assert (command.ext[COUNT], command.ext[FORM]) == (str(number + 1), "2")


# --- proofs -----------------------------------------------------------------------------------------------------------
BINDING = bytes(range(32))


def test_a_proof_is_of_one_account_connection_and_certificate() -> None:
    proof = session_proof(CREDENTIALS, NONCE, BINDING)
    assert is_session_proof(proof, CREDENTIALS, NONCE, BINDING)
    for credentials, nonce, binding in (
        (Credentials(access_key="broker2", secret_key=SECRET), NONCE, BINDING),
        (Credentials(access_key="broker", secret_key=SECRET + "9"), NONCE, BINDING),
        (CREDENTIALS, "b" * 64, BINDING),
        (CREDENTIALS, NONCE, BINDING[::-1]),
        (CREDENTIALS, NONCE, b""),
        (Credentials(access_key="broke", secret_key=SECRET), "r" + NONCE, BINDING),
    ):
        assert not is_session_proof(proof, credentials, nonce, binding)
    for wrong in ("", proof.upper(), proof[:-1], proof + "0", "\udc80"):
        assert not is_session_proof(wrong, CREDENTIALS, NONCE, BINDING)


def test_who_has_proved_himself_signs_nothing() -> None:
    """Nor does what was signed for another connection go with his requests."""
    signer, command = SessionSigner(NONCE), signed()
    signer.proven = Credentials(access_key="broker", secret_key=SECRET)
    signer.sign(command, CREDENTIALS)
    assert command == request()


def test_an_account_that_was_changed_signs_again() -> None:
    signer, command = SessionSigner(NONCE), request()
    signer.proven = CREDENTIALS
    signer.sign(command, Credentials(access_key="broker", secret_key="new"))
    assert command.ext[ACCESS_KEY] == "broker" and command.ext[COUNT] == "1"
    assert SessionSignatures(NONCE).is_valid(command, "new")
