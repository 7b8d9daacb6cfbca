"""What comes through a guard, and whom it says that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.audit import AuditEntry, AuditLog
from rmqha.host.access.auth_filter import AuthFilter
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.access import Needs, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials
from rmqha.model.principal import UNRESTRICTED
from rmqha.wire.auth import accesses, acl_needs
from rmqha.wire.auth.session_signature import PROOF, SessionSigner, session_proof
from rmqha.wire.auth.signature import ACCESS_KEY, sign
from rmqha.wire.body_bound import BOUNDS
from rmqha.wire.command import Command
from tests.support.tracer import RecordingTracer

ORDERS = Credentials(access_key="orders", secret_key="12345678")
ACCOUNTS = """
globalWhiteRemoteAddresses: [10.0.0.1]
accounts:
- {accessKey: orders, secretKey: '12345678', topicPerms: [T=PUB]}
"""


class Taken:
    def __init__(self) -> None:
        self.commands: list[Command] = []

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, commands: list[Command]) -> None:
        self.commands += commands

    def closed(self, session: Session) -> None:
        pass


class FakeSession:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.binding = b""
        self.is_verified = self.is_urgent = False
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def mark_verified(self) -> None:
        self.is_verified = True

    def charge_to(self, owner: str) -> None:
        self.owner = owner


@pytest.mark.parametrize(
    ("code", "admin", "urgent"),
    [
        (RequestCode.BROKER_HEARTBEAT, True, True),
        (RequestCode.RMQHA_FOLLOW_TABLES, True, True),
        (RequestCode.GET_BROKER_CONFIG, True, False),
        (RequestCode.BROKER_HEARTBEAT, False, False),
        (RequestCode.GET_BROKER_CONFIG, False, False),
    ],
)
async def test_only_servers_do_not_stand_in_line(tmp_path: Path, code: int, admin: bool, urgent: bool) -> None:
    """An admin's tools do."""
    path = tmp_path / "accounts.yml"
    path.write_text(f"accounts: [{{accessKey: orders, secretKey: '12345678', admin: {str(admin).lower()}}}]")
    path.chmod(0o600)
    guard, session, command = (
        AuthFilter(Taken(), AccessFile(path), Statistics()),
        FakeSession("10.0.0.2:1"),
        Command(code),
    )
    sign(command, ORDERS)
    guard.received(cast(Session, session), [command])
    assert session.is_urgent is urgent


def signed_send(topic: str) -> Command:
    command = Command(RequestCode.SEND_MESSAGE_V2, {"b": topic})
    sign(command, ORDERS)
    return command


async def test_what_comes_through_says_whom_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    service, statistics = Taken(), Statistics()
    guard = AuthFilter(service, AccessFile(path), statistics)
    session = FakeSession("10.0.0.2:1")
    guard.received(cast(Session, session), [signed_send("T"), signed_send("U"), signed_send("T")])
    (refused,) = session.sent
    assert refused.code == ResponseCode.NO_PERMISSION and refused.remark is not None and "topic U" in refused.remark
    assert statistics.denied_count == 1
    first, second = (command.principal for command in service.commands)
    assert first is second and first.is_restricted and first.access_key == "orders"
    assert first.refusal(Needs(topics=(("T", Permission.PUB),))) == ""
    first.denied(service.commands[0], "it was not yours after all")
    assert statistics.denied_count == 2
    service.commands.clear()
    guard.received(cast(Session, FakeSession("10.0.0.1:1")), [Command(RequestCode.UPDATE_BROKER_CONFIG)])
    assert [command.principal for command in service.commands] == [UNRESTRICTED]


async def test_only_what_is_allowed_makes_a_session_known(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    guard = AuthFilter(Taken(), AccessFile(path), Statistics())
    session = FakeSession("10.0.0.2:1")
    guard.received(cast(Session, session), [signed_send("U"), Command(RequestCode.HEART_BEAT)])
    assert not session.is_verified
    guard.received(cast(Session, session), [signed_send("T")])
    assert session.is_verified


async def test_the_header_of_a_long_first_frame_names_an_account(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    guard = AuthFilter(Taken(), AccessFile(path), Statistics())
    assert guard.is_plausible("10.0.0.2:1", signed_send("T"))
    assert not guard.is_plausible("10.0.0.2:1", Command(RequestCode.HEART_BEAT, {"AccessKey": "other"}))
    assert not guard.is_plausible("10.0.0.2:1", Command(RequestCode.HEART_BEAT))
    assert guard.is_plausible("10.0.0.1:1", Command(RequestCode.HEART_BEAT))


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, b'{"consumerDataSet":[' + b'{"groupName":"G"},' * 100_000 + b'{"groupName":"G"}]}'),
        (RequestCode.LOCK_BATCH_MQ, b'{"consumerGroup":"G","mqSet":[],"more":[' + b"[]," * 50_000 + b"[]]}"),
        (RequestCode.UNLOCK_BATCH_MQ, b"{" + b"1:1," * 50_000 + b'"consumerGroup":"G"}'),
    ],
)
async def test_a_body_beyond_its_bound_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, body: bytes
) -> None:
    """Parsed for the rights that it takes, it would hold up the whole server for seconds."""

    def read(data: object) -> object:
        raise AssertionError("the body is parsed")

    for room in (accesses, acl_needs):
        monkeypatch.setattr(room, "loads", read)
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS + "- {accessKey: operator, secretKey: '12345678', admin: true}\n")
    path.chmod(0o600)
    service, statistics, session = Taken(), Statistics(), FakeSession("10.0.0.2:1")
    guard = AuthFilter(service, AccessFile(path), statistics)
    command = Command(code, {}, body)
    sign(command, ORDERS)
    guard.received(cast(Session, session), [command])
    (refused,) = session.sent
    assert refused.code == ResponseCode.NO_PERMISSION and statistics.denied_count == 1 and not service.commands
    assert refused.remark is not None and refused.remark.startswith(f"the body of request {code} has ")
    assert str(BOUNDS[code].value_count) in refused.remark or str(BOUNDS[code].size_bytes) in refused.remark
    # whoever may everything is answered by the service, which reads no such body either
    sign(command, Credentials(access_key="operator", secret_key="12345678"))
    guard.received(cast(Session, session), [command])
    assert service.commands == [command]


# --- connections that have proved themselves --------------------------------------------------------------------------
BINDING = b"certificate"


class Connection:
    """A connection with TLS to a server whose accounts are in a file."""

    def __init__(self, tmp_path: Path, binding: bytes = BINDING) -> None:
        self.path = tmp_path / "accounts.yml"
        self.path.touch(0o600)
        self.path.write_text(ACCOUNTS)
        self.service, self.statistics = Taken(), Statistics()
        self.accounts = AccessFile(self.path)
        self.audit = AuditLog("broker", lambda line: None, RecordingTracer(), everything=True)
        self.guard = AuthFilter(self.service, self.accounts, self.statistics, self.audit, "own")
        self.session = FakeSession("10.0.0.2:1")
        self.session.binding = binding
        self.nonce = ""

    def ask(self, code: int, **ext: str) -> Command | None:
        """The answer, None if the service gets it."""
        self.session.sent.clear()
        self.guard.received(cast(Session, self.session), [Command(code, ext)])
        return self.session.sent[0] if self.session.sent else None

    def open(self) -> Command:
        answer = self.ask(RequestCode.RMQHA_OPEN_SESSION)
        assert answer is not None
        self.nonce = answer.ext["nonce"]
        return answer

    def prove(self, credentials: Credentials = ORDERS, binding: bytes = BINDING) -> int:
        proof = session_proof(credentials, self.nonce, binding)
        named = {ACCESS_KEY: credentials.access_key, PROOF: proof}
        answer = self.ask(RequestCode.RMQHA_OPEN_SESSION, **named)
        assert answer is not None
        return answer.code

    def send(self, topic: str = "T") -> int:
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, b=topic)
        return 0 if answer is None else answer.code

    def is_verified(self) -> bool:
        return self.session.is_verified

    def audited(self) -> list[AuditEntry]:
        return list(self.audit._queue)


async def test_who_has_proved_himself_need_not_sign(tmp_path: Path) -> None:
    here = Connection(tmp_path)
    assert here.send() == ResponseCode.NO_PERMISSION
    assert here.open().ext[PROOF] == "1"
    assert here.send() == ResponseCode.NO_PERMISSION and not here.is_verified()
    assert here.prove() == 0
    assert here.is_verified() and here.session.owner == "orders"
    assert here.send() == 0
    (command,) = here.service.commands
    assert command.principal.access_key == "orders"
    assert here.send("U") == ResponseCode.NO_PERMISSION, "the account's rights count"
    assert [(entry.account, entry.allowed) for entry in here.audited()[-2:]] == [("orders", True), ("orders", False)]
    here.guard.closed(cast(Session, here.session))
    assert here.send() == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("wrong", ["secret", "account", "certificate", "no TLS", "another connection", "not opened"])
async def test_a_wrong_proof_proves_nothing(tmp_path: Path, wrong: str) -> None:
    here = Connection(tmp_path, b"" if wrong == "no TLS" else BINDING)
    if wrong != "not opened":
        assert (PROOF in here.open().ext) == (wrong != "no TLS")
    if wrong == "another connection":
        here.nonce = "ab" * 32
    keys = {"secret": ("orders", "wrong"), "account": ("nobody", "12345678")}.get(wrong, ("orders", "12345678"))
    credentials = Credentials(access_key=keys[0], secret_key=keys[1])
    binding = {"certificate": b"another", "no TLS": b""}.get(wrong, BINDING)
    assert here.prove(credentials, binding) == ResponseCode.NO_PERMISSION
    assert here.statistics.denied_count == 1 and here.audited()[-1].account == keys[0]
    assert here.send() == ResponseCode.NO_PERMISSION and not here.is_verified()
    if wrong != "no TLS":
        here.open()
        assert here.prove() == 0 and here.send() == 0, "a wrong one does not keep the right one out"


@pytest.mark.parametrize("change", ["another secret", "gone"])
async def test_a_proof_counts_as_long_as_the_account_is_the_same(tmp_path: Path, change: str) -> None:
    here = Connection(tmp_path)
    here.open()
    assert (here.prove(), here.send()) == (0, 0)
    old, new_text = ("12345678", "87654321") if change == "another secret" else ("orders", "others")
    here.path.write_text(ACCOUNTS.replace(old, new_text))
    assert here.accounts.refresh()
    assert here.send() == ResponseCode.NO_PERMISSION
    if change == "another secret":
        new = Credentials(access_key="orders", secret_key="87654321")
        command = Command(RequestCode.SEND_MESSAGE_V2, {"b": "T"})
        SessionSigner(here.nonce).sign(command, new)
        assert here.ask(command.code, **command.ext) is None, "its requests may be signed"
        assert (here.prove(new), here.send()) == (0, 0)
