"""Which form of signatures a client and a server agree on, and that nobody is brought back to the weaker one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from rmqha.host.access.security import Security, from_config
from rmqha.host.asking import blocking
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.model.identity import Credentials
from rmqha.wire.auth.session_signature import FORM
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.host.access.test_security import secret_file
from tests.support.patience import HANG_MS, HANG_S

ACCOUNTS = """
accounts:
- accessKey: broker
  secretKey: '12345678'
  admin: true
- accessKey: reader
  secretKey: '87654321'
"""
BROKER = Credentials(access_key="broker", secret_key="12345678")
READER = Credentials(access_key="reader", secret_key="87654321")


class Notes:
    """A server's service: takes down the form of what reaches it."""

    def __init__(self) -> None:
        self.forms: list[str] = []
        self.codes: list[int] = []

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.codes.append(command.code)
            known = command.code != RequestCode.RMQHA_OPEN_SESSION
            if known:
                self.forms.append(command.ext.get(FORM, "apache"))
            if not command.is_oneway:
                session.send(command.reply(0 if known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED))


def guarded(tmp_path: Path, wanted: str = "any") -> Security:
    path = secret_file(tmp_path / "acl.yml", ACCOUNTS)
    return from_config(ServerConfig(acl_enable=True, acl_file=path, acl_signature=wanted))


async def start(nursery: trio.Nursery, notes: Notes, security: Security, port: int = 0) -> int:
    made: int = await nursery.start(
        partial(serve, notes, f"127.0.0.1:{port}", max_frame_bytes=65536, security=security)
    )
    return made


def look() -> Command:
    return Command(RequestCode.GET_BROKER_CLUSTER_INFO)


async def test_our_client_and_our_server_use_the_own_form(tmp_path: Path) -> None:
    notes = Notes()
    async with trio.open_nursery() as nursery, RemotingClient(security=Security(credentials=BROKER)) as client:
        address = f"127.0.0.1:{await start(nursery, notes, guarded(tmp_path, 'own'))}"
        answers = [await client.call(address, look(), HANG_MS) for _ in range(3)]
        await client.oneway(address, look(), look())
        assert client.oneway_at_once(address, look())
        answers.append(await client.call(address, look(), HANG_MS))
        assert [answer.code for answer in answers] == [0] * 4
        assert notes.forms == ["2"] * 7
        client.close(address)
        assert (await client.call(address, look(), HANG_MS)).code == 0, "a new connection has a number of its own"
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_know_it_gets_apaches_form() -> None:
    notes = Notes()
    async with trio.open_nursery() as nursery, RemotingClient(security=Security(credentials=BROKER)) as client:
        address = f"127.0.0.1:{await start(nursery, notes, Security())}"
        assert (await client.call(address, look(), HANG_MS)).code == 0
        assert (await client.call(address, look(), HANG_MS)).code == 0
        assert notes.forms == ["apache", "apache"]
        assert notes.codes.count(RequestCode.RMQHA_OPEN_SESSION) == 1, "asked once for a connection"
        nursery.cancel_scope.cancel()


async def test_a_client_never_goes_back_to_the_weaker_form(tmp_path: Path) -> None:
    first, second = Notes(), Notes()
    async with RemotingClient(security=Security(credentials=BROKER)) as client:
        async with trio.open_nursery() as nursery:
            port = await start(nursery, first, guarded(tmp_path))
            assert (await client.call(f"127.0.0.1:{port}", look(), HANG_MS)).code == 0
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            await start(nursery, second, Security(), port)
            client.close(f"127.0.0.1:{port}")
            with pytest.raises(UnreachableError, match="no longer takes rmqha's own signatures"):
                await client.call(f"127.0.0.1:{port}", look(), HANG_MS)
            assert second.forms == []
            nursery.cancel_scope.cancel()


async def by_blocking_sockets(client: blocking.BlockingClient, port: int) -> int:
    """The code of an answer, asked for as operators' commands do."""
    answer = await trio.to_thread.run_sync(blocking.run, client.call, f"127.0.0.1:{port}", look(), HANG_MS)
    return answer.code


async def test_over_blocking_sockets_it_is_the_same(tmp_path: Path) -> None:
    """The own form where the server takes it and never again Apache's there, which others get."""
    own, apaches, replaced = Notes(), Notes(), Notes()
    client = blocking.BlockingClient(Security(credentials=BROKER))
    async with trio.open_nursery() as nursery:
        port = await start(nursery, own, guarded(tmp_path, "own"))
        assert [await by_blocking_sockets(client, port) for _ in range(3)] == [0] * 3
        other = await start(nursery, apaches, Security())
        assert [await by_blocking_sockets(client, other) for _ in range(2)] == [0] * 2
        nursery.cancel_scope.cancel()
    assert (own.forms, apaches.forms) == (["2"] * 3, ["apache"] * 2)
    async with trio.open_nursery() as nursery:
        await start(nursery, replaced, Security(), port)
        with pytest.raises(NotSentError, match="no longer takes rmqha's own signatures"):
            await by_blocking_sockets(client, port)
        assert replaced.forms == []
        nursery.cancel_scope.cancel()
    await client.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("wanted", "credentials", "code"),
    [
        ("any", BROKER, ResponseCode.SUCCESS),
        ("admin", BROKER, ResponseCode.NO_PERMISSION),
        ("admin", READER, ResponseCode.SUCCESS),
        ("own", READER, ResponseCode.NO_PERMISSION),
    ],
)
async def test_apaches_form_counts_where_it_may(
    tmp_path: Path, wanted: str, credentials: Credentials, code: int
) -> None:
    command = look()
    sign(command, credentials)
    async with trio.open_nursery() as nursery:
        port = await start(nursery, Notes(), guarded(tmp_path, wanted))
        answer = await said(port, command)
        assert answer.code == code
        nursery.cancel_scope.cancel()


async def said(port: int, command: Command) -> Command:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(encode_frame(command))
        with trio.fail_after(HANG_S):
            (answer,) = FrameParser(65536).feed(bytes(await stream.receive_some(65536)))
    return answer


async def test_what_another_connection_has_said_is_refused(tmp_path: Path) -> None:
    """A recorded request, sent by somebody who has no key."""
    notes, recorded = Notes(), list[Command]()
    notes_received = notes.received

    def record(session: Session, commands: list[Command]) -> None:
        recorded.extend(commands)
        notes_received(session, commands)

    notes.received = record  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery, RemotingClient(security=Security(credentials=BROKER)) as client:
        port = await start(nursery, notes, guarded(tmp_path))
        await client.call(f"127.0.0.1:{port}", look(), HANG_MS)
        answer = await said(port, recorded[0])
        assert answer.code == ResponseCode.NO_PERMISSION and "another connection" in (answer.remark or "")
        nursery.cancel_scope.cancel()
