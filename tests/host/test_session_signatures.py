"""Which form of signatures a client and a server agree on, and that nobody is brought back to the weaker one."""

from __future__ import annotations

import ssl
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trustme

from rmqha.host.access.security import Security, ServerTls, from_config
from rmqha.host.access.tls_link import TlsLink, TlsStream
from rmqha.host.asking import blocking
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.model.identity import Credentials
from rmqha.wire.auth.session_signature import FORM
from rmqha.wire.auth.signature import SIGNATURE, sign
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
        self.accounts: set[str] = set()

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.codes.append(command.code)
            known = command.code != RequestCode.RMQHA_OPEN_SESSION
            if known:
                self.forms.append(command.ext.get(FORM, "apache" if SIGNATURE in command.ext else "none"))
                self.accounts.add(command.principal.access_key)
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


# --- over TLS ---------------------------------------------------------------------------------------------------------
class Certificates:
    """Server and client contexts of one authority; the clients' do not look at certificates, as where
    tls.client.authServer is false."""

    def __init__(self) -> None:
        issued = trustme.CA().issue_cert("127.0.0.1")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(self.server)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname = False
        self.client.verify_mode = ssl.CERT_NONE
        der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        self.tls = ServerTls(self.server, only=True, certificate_digest=sha256(der).digest())

    def guarded(self, tmp_path: Path) -> Security:
        return Security(server_tls=self.tls, accounts=guarded(tmp_path).accounts, acl_signature="own")


async def test_over_tls_a_client_proves_itself_once(tmp_path: Path) -> None:
    notes, certificates = Notes(), Certificates()
    security = Security(client_tls=certificates.client, credentials=BROKER)
    async with trio.open_nursery() as nursery, RemotingClient(security=security) as client:
        address = f"127.0.0.1:{await start(nursery, notes, certificates.guarded(tmp_path))}"
        assert [(await client.call(address, look(), HANG_MS)).code for _ in range(2)] == [0, 0]
        await client.oneway(address, look())
        client.close(address)
        assert (await client.call(address, look(), HANG_MS)).code == 0, "a new connection is proved anew"
        assert notes.forms == ["none"] * 4 and notes.accounts == {"broker"}
        nursery.cancel_scope.cancel()


async def test_a_client_with_a_wrong_key_is_refused_as_ever(tmp_path: Path) -> None:
    notes, certificates = Notes(), Certificates()
    wrong = Credentials(access_key="broker", secret_key="wrong-key")
    security = Security(client_tls=certificates.client, credentials=wrong)
    async with trio.open_nursery() as nursery, RemotingClient(security=security) as client:
        address = f"127.0.0.1:{await start(nursery, notes, certificates.guarded(tmp_path))}"
        answer = await client.call(address, look(), HANG_MS)
        assert answer.code == ResponseCode.NO_PERMISSION and "signature of account broker" in (answer.remark or "")
        assert notes.codes == []
        nursery.cancel_scope.cancel()


async def between(stream: trio.SocketStream, port: int, shown: Certificates) -> None:
    """Stand between a client and the server on that port, each of which has a TLS connection with us."""
    near, far = TlsLink(shown.server, server_side=True), TlsLink(shown.client, server_side=False)
    async with stream, await trio.open_tcp_stream("127.0.0.1", port) as onwards, trio.open_nursery() as nursery:
        await near.do_handshake(stream)
        await far.do_handshake(onwards)
        ends = TlsStream(stream, near), TlsStream(onwards, far)

        async def pass_on(source: TlsStream, target: TlsStream) -> None:
            while data := await source.receive_some():
                await target.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(pass_on, *ends)
        nursery.start_soon(pass_on, *ends[::-1])


async def test_who_stands_between_two_connections_gets_no_proof(tmp_path: Path) -> None:
    """He passes on what a client proves, who does not look at certificates; the server lets nothing in by that. Each
    request is signed then, which he cannot change."""
    notes, certificates = Notes(), Certificates()
    security = Security(client_tls=certificates.client, credentials=BROKER)
    async with trio.open_nursery() as nursery, RemotingClient(security=security) as client:
        port = await start(nursery, notes, certificates.guarded(tmp_path))
        handler = partial(between, port=port, shown=Certificates())
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        assert [(await client.call(address, look(), HANG_MS)).code for _ in range(2)] == [0, 0]
        assert notes.forms == ["2", "2"]
        nursery.cancel_scope.cancel()
