"""The secret of the cluster before a service without accounts."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rmqha.host.access.peer_filter import PeerFilter, PeerRules
from rmqha.host.access.security import NO_SECURITY, PEER, Security, from_config
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.identity import Credentials
from rmqha.model.principal import PEER_SERVER, UNPROVEN, UNRESTRICTED
from rmqha.wire.auth.session_signature import SessionSigner
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from tests.host.access.test_auth_filter import FakeSession, Taken
from tests.host.access.test_security import secret_file

SECRET, OTHER = "s" * 32, "t" * 32
ALTER, NOTICE, SEND = (
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    RequestCode.SEND_MESSAGE_V2,
)


def sharing(tmp_path: Path, text: str = SECRET) -> Security:
    return from_config(ServerConfig(ha_secret_file=secret_file(tmp_path / text[:1], text)))


class Door:
    """A filter, what went through it, and whom it refused."""

    def __init__(self, tmp_path: Path) -> None:
        self.service, self.statistics = Taken(), Statistics()
        self.told: list[tuple[str, int, str]] = []
        secret = sharing(tmp_path).secret
        assert secret is not None
        rules = PeerRules(
            refuses=lambda command: command.code == ALTER,
            marks_unproven=lambda command: command.code == NOTICE,
            refused=lambda peer, command, reason: self.told.append((peer, command.code, reason)),
        )
        self.filter = PeerFilter(self.service, secret, rules, self.statistics)

    def say(self, session: FakeSession, *commands: Command) -> list[Command]:
        """The answers."""
        session.sent.clear()
        self.service.commands.clear()
        self.filter.received(cast(Session, session), list(commands))
        return session.sent

    def nonce(self, session: FakeSession) -> str:
        (answer,) = self.say(session, Command(RequestCode.RMQHA_OPEN_SESSION))
        return answer.ext["nonce"]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def signed(signer: SessionSigner, code: int, secret: str = SECRET, name: str = PEER) -> Command:
    command = Command(code, {"brokerName": "g"})
    signer.sign(command, Credentials(access_key=name, secret_key=secret))
    return command


def test_a_server_that_proves_itself_does_not_stand_in_line(door: Door) -> None:
    for code, urgent in ((NOTICE, True), (RequestCode.RMQHA_FOLLOW_TABLES, True), (SEND, False)):
        session = FakeSession("10.0.0.2:1")
        signer = SessionSigner(door.nonce(session))
        door.say(session, signed(signer, code, OTHER))
        assert not session.is_urgent
        door.say(session, Command(code))
        assert not session.is_urgent
        door.say(session, signed(signer, code))
        assert session.is_urgent is urgent


def test_without_the_proof_it_is_refused_doubted_or_nobodys_business(door: Door) -> None:
    session = FakeSession("10.0.0.2:1")
    (refused,) = door.say(session, Command(SEND), Command(ALTER), Command(NOTICE))
    assert refused.code == ResponseCode.NO_PERMISSION and "haSecretFile" in (refused.remark or "")
    assert [(item.code, item.principal) for item in door.service.commands] == [(SEND, UNRESTRICTED), (NOTICE, UNPROVEN)]
    assert door.statistics.denied_count == 1
    assert door.told == [("10.0.0.2:1", ALTER, refused.remark)]


def test_with_it_all_comes_from_a_server_of_the_cluster(door: Door) -> None:
    session = FakeSession("10.0.0.2:1")
    signer = SessionSigner(door.nonce(session))
    assert door.say(session, *(signed(signer, code) for code in (ALTER, NOTICE, SEND))) == []
    assert [item.principal for item in door.service.commands] == [PEER_SERVER] * 3


def test_it_counts_once_on_its_own_connection_and_by_the_right_secret(door: Door) -> None:
    session, another = FakeSession("10.0.0.2:1"), FakeSession("10.0.0.2:2")
    nonce = door.nonce(session)
    assert door.nonce(session) == nonce != door.nonce(another)
    request = signed(SessionSigner(nonce), ALTER)
    assert door.say(session, request) == []
    forged = signed(SessionSigner(nonce), ALTER, OTHER)
    as_another = signed(SessionSigner(nonce), ALTER, name="somebody")
    plain = Command(ALTER, {"brokerName": "g"})
    sign(plain, Credentials(access_key=PEER, secret_key=SECRET))
    changed = signed(SessionSigner(nonce), ALTER)
    changed.ext["brokerName"] = "h"
    for case in (request, forged, as_another, plain, changed):
        assert [item.code for item in door.say(session, case)] == [ResponseCode.NO_PERMISSION], case
    assert door.say(another, signed(SessionSigner(nonce), ALTER)), "another connection has another number"
    door.filter.closed(cast(Session, session))
    assert door.say(session, signed(SessionSigner(nonce), ALTER)), "it ends with its connection"


def test_a_oneway_request_is_refused_in_silence(door: Door) -> None:
    session = FakeSession("10.0.0.2:1")
    command = Command(ALTER)
    command.flag |= 2
    assert door.say(session, command) == [] and door.statistics.denied_count == 1


def test_who_signs_with_the_secret_has_it_and_no_accounts(tmp_path: Path) -> None:
    assert NO_SECURITY.signing_with_secret() is None
    secured = sharing(tmp_path)
    asking = secured.signing_with_secret()
    assert asking is not None and asking.own_form_only
    assert asking.credentials == Credentials(access_key=PEER, secret_key=SECRET)
    secret_file(tmp_path / "acl.yml", "accounts:\n- accessKey: operator\n  secretKey: abcdefgh\n  admin: true\n")
    keys = {"acl_enable": True, "acl_file": str(tmp_path / "acl.yml"), "ha_secret_file": str(tmp_path / "s")}
    assert from_config(ServerConfig(**keys)).signing_with_secret() is None  # type: ignore[arg-type]
