"""TLS and accounts on real sockets: what is let in, what is refused, and with which sentence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.security import Security, for_client, from_config
from rmqha.host.asking import blocking
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.client import ClientConfig
from rmqha.model.config.servers import BrokerConfig, ServerConfig
from rmqha.model.error import ConfigError, UnreachableError, UsageError
from rmqha.wire.command import Command
from tests.support.patience import HANG_MS, HANG_S


class Echo:
    def opened(self, session: Session) -> None:
        pass

    def closed(self, session: Session) -> None:
        pass

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if not command.is_oneway:
                session.send(command.reply(body=bytes(command.body)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, other.pem (another issuer), server.pem with server.key, client.pem (certificate and key)."""
    directory = tmp_path_factory.mktemp("tls")
    ca, other = trustme.CA(), trustme.CA()
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("somebody@example.org")
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    other.cert_pem.write_to_path(str(directory / "other.pem"))
    server.private_key_pem.write_to_path(str(directory / "server.key"))
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(str(directory / "server.pem"), append=number > 0)
    client.private_key_and_cert_chain_pem.write_to_path(str(directory / "client.pem"))
    for name in ("server.key", "client.pem"):
        (directory / name).chmod(0o600)
    return directory


def server_security(files: Path, **values: str) -> Security:
    keys = {"tls.server.certPath": str(files / "server.pem"), "tls.server.keyPath": str(files / "server.key"), **values}
    return from_config(ServerConfig.from_properties(keys, "f"))


def client_security(files: Path, **values: str) -> Security:
    keys = {"tls.enable": "true", "tls.client.trustCertPath": str(files / "ca.pem"), **values}
    return from_config(ServerConfig.from_properties(keys, "f"))


@asynccontextmanager
async def running(secured: Security) -> AsyncIterator[tuple[str, Statistics]]:
    counts = Statistics()
    async with trio.open_nursery() as nursery:
        start = partial(serve, Echo(), "127.0.0.1:0", max_frame_bytes=1 << 20, statistics=counts, security=secured)
        port: int = await nursery.start(start)
        yield f"127.0.0.1:{port}", counts
        nursery.cancel_scope.cancel()


Ask = Callable[..., Awaitable[Command]]


async def by_trio(address: str, secured: Security | None, command: Command | None = None) -> Command:
    async with RemotingClient(security=secured) as client:
        return await client.call(address, command or Command(RequestCode.GET_BROKER_CONFIG, {}, b"x" * 70_000), HANG_MS)


async def by_blocking_sockets(address: str, secured: Security | None, command: Command | None = None) -> Command:
    """As operators' commands ask."""

    async def question() -> Command:
        asked = command or Command(RequestCode.GET_BROKER_CONFIG, {}, b"x" * 70_000)
        async with blocking.BlockingClient(secured) as client:
            return await client.call(address, asked, HANG_MS)

    return await trio.to_thread.run_sync(blocking.run, question)


@pytest.fixture(params=[by_trio, by_blocking_sockets])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


# --- TLS ----------------------------------------------------------------------------------------------------------
async def test_one_port_takes_plain_and_tls_connections(ask: Ask, files: Path) -> None:
    async with running(server_security(files)) as (address, _):
        for secured in (client_security(files), Security()):
            assert len((await ask(address, secured)).body) == 70_000


async def test_a_server_may_insist_on_tls(ask: Ask, files: Path) -> None:
    async with running(server_security(files, **{"tls.server.mode": "enforcing"})) as (address, counts):
        assert (await ask(address, client_security(files))).code == ResponseCode.SUCCESS
        with pytest.raises(UnreachableError, match="closed the connection"):
            await ask(address, Security())
        assert counts.refused_count == 1


async def test_a_certificate_of_another_issuer_is_not_trusted(ask: Ask, files: Path) -> None:
    async with running(server_security(files)) as (address, _):
        foreign = client_security(files, **{"tls.client.trustCertPath": str(files / "other.pem")})
        with pytest.raises(UnreachableError, match=r"certificate is not trusted .*; see tls.client.trustCertPath"):
            await ask(address, foreign)
        blind = client_security(files, **{"tls.client.authServer": "false", "tls.client.trustCertPath": ""})
        assert (await ask(address, blind)).code == ResponseCode.SUCCESS


async def test_clients_may_have_to_show_a_certificate(ask: Ask, files: Path) -> None:
    keys = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": str(files / "ca.pem")}
    async with running(server_security(files, **keys)) as (address, _):
        known = client_security(files, **{"tls.client.certPath": str(files / "client.pem")})
        assert (await ask(address, known)).code == ResponseCode.SUCCESS
        with pytest.raises(UnreachableError):
            await ask(address, client_security(files))


async def test_a_server_without_tls_is_named(ask: Ask, files: Path) -> None:
    async with running(Security()) as (address, _):
        with pytest.raises(UnreachableError, match=f"no TLS connection to {address}: "):
            await ask(address, client_security(files))


async def test_a_peer_that_begins_a_handshake_and_is_silent_is_dropped(files: Path) -> None:
    async with running(server_security(files)) as (address, counts):

        async def is_dropped(first: bytes) -> None:
            async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as stream:
                if first:
                    await stream.send_all(first)
                assert await stream.receive_some(10) == b""

        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(is_dropped, b"")
                nursery.start_soon(is_dropped, b"\x16")
        assert (counts.refused_count, counts.session_count) == (2, 0)
        assert (await by_trio(address, client_security(files))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tls.server.mode": "enforcing"}, "tls.server.certPath and tls.server.keyPath must both name a PEM file"),
        ({"tls.server.certPath": "/no"}, "tls.server.certPath and tls.server.keyPath must both name a PEM file"),
        ({"tls.server.certPath": "/no", "tls.server.keyPath": "/no"}, "tls.server.certPath: there is no file /no"),
        ({"tls.enable": "true", "tls.client.trustCertPath": "/no"}, "tls.client.trustCertPath: no certificates in /no"),
        ({"tls.enable": "true", "tls.client.certPath": "/no"}, "tls.client.certPath: there is no file /no"),
        ({"credentialsFile": "/no"}, "cannot read the keys /no: No such file or directory"),
        ({"aclEnable": "true", "aclFile": "/no"}, "cannot read the accounts /no: No such file or directory"),
    ],
)
def test_wrong_files_are_one_sentence(keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_config(ServerConfig.from_properties(keys, "f"))
    assert sentence in str(caught.value)


def test_a_clients_file_takes_the_servers_keys_of_tls_towards_others() -> None:
    server, known = ServerConfig.keys(), ClientConfig.keys()
    assert known.keys() == {key for key in server if key == "tls.enable" or key.startswith("tls.client.")}
    assert {key: item.default for key, item in known.items()} == {key: server[key].default for key in known}


def test_wrong_values_are_one_sentence(files: Path) -> None:
    for config in (ServerConfig, BrokerConfig):
        with pytest.raises(ConfigError, match=r"f: tls.server.mode = on is none of disabled, permissive, enforcing"):
            config.from_properties({"tls.server.mode": "on"}, "f")
    with pytest.raises(UsageError, match=r"tls.server.need.client.auth needs tls.server.trustCertPath"):
        server_security(files, **{"tls.server.need.client.auth": "require"})
    with pytest.raises(UsageError, match="no usable certificate and unencrypted key in PEM"):
        server_security(files, **{"tls.server.keyPath": str(files / "ca.pem")})


# --- accounts -----------------------------------------------------------------------------------------------------
ACCOUNTS = """
accounts:
- accessKey: orders
  secretKey: '12345678'
  defaultGroupPerm: SUB
  topicPerms:
  - T=PUB
- accessKey: operator
  secretKey: abcdefgh
  admin: true
"""


def secret_file(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def signing(tmp_path: Path, key: str, secret: str) -> Security:
    return for_client(secret_file(tmp_path / "client.properties", f"accessKey={key}\nsecretKey={secret}\n"))


async def test_only_signed_requests_of_accounts_that_may_are_served(ask: Ask, tmp_path: Path) -> None:
    secret_file(tmp_path / "acl.yml", ACCOUNTS)
    secured = from_config(ServerConfig(acl_enable=True, acl_file=str(tmp_path / "acl.yml")))
    orders, operator = signing(tmp_path, "orders", "12345678"), signing(tmp_path, "operator", "abcdefgh")
    send = partial(Command, RequestCode.SEND_MESSAGE_V2)
    async with running(secured) as (address, counts):
        for who, command, remark in (
            (orders, send({"b": "T"}, b"x"), None),
            (orders, send({"b": "U"}, b"x"), "account orders has no PUB permission on topic U"),
            (orders, Command(RequestCode.UPDATE_BROKER_CONFIG), "account orders is not an admin"),
            (operator, Command(RequestCode.UPDATE_BROKER_CONFIG), None),
            (Security(), send({"b": "T"}), "request 310 is not signed: set an access key and a secret key"),
            (
                signing(tmp_path, "orders", "87654321"),
                send({"b": "T"}),
                "the signature of account orders is wrong: check its secret key",
            ),
        ):
            answer = await ask(address, who, command)
            assert (answer.code, answer.remark) == ((16, remark) if remark else (0, None))
        assert counts.denied_count == 4


async def test_one_blocking_connection_over_tls_serves_call_after_call(files: Path, tmp_path: Path) -> None:
    """The tickets that a server sends behind a handshake are no answers, and each request has the next count."""
    secret_file(tmp_path / "acl.yml", ACCOUNTS)
    keys = {"aclEnable": "true", "aclFile": str(tmp_path / "acl.yml")}
    secured = Security(
        client_tls=client_security(files).client_tls, credentials=signing(tmp_path, "operator", "abcdefgh").credentials
    )

    async def question(address: str) -> list[bytes]:
        async with blocking.BlockingClient(secured) as client:
            asked = [Command(RequestCode.GET_BROKER_CONFIG, {}, b"%d" % number) for number in range(5)]
            return [bytes((await client.call(address, command, HANG_MS)).body) for command in asked]

    async with running(server_security(files, **keys)) as (address, counts):
        assert await trio.to_thread.run_sync(blocking.run, question, address) == [b"0", b"1", b"2", b"3", b"4"]
        assert (counts.opened_count, counts.denied_count) == (1, 0)


async def test_a_denied_oneway_request_is_counted_and_the_next_one_served(tmp_path: Path) -> None:
    secret_file(tmp_path / "acl.yml", ACCOUNTS)
    secured = from_config(ServerConfig(acl_enable=True, acl_file=str(tmp_path / "acl.yml")))
    async with running(secured) as (address, counts):
        async with RemotingClient(security=signing(tmp_path, "orders", "12345678")) as client:
            await client.oneway(address, Command(RequestCode.SEND_MESSAGE_V2, {"b": "U"}))
            answer = await client.call(address, Command(RequestCode.SEND_MESSAGE_V2, {"b": "T"}), HANG_MS)
        # and the request for the number that signatures begin with
        assert (answer.code, counts.denied_count, counts.received_count) == (0, 1, 3)


async def test_a_changed_file_counts_and_a_broken_one_leaves_the_last_accounts(tmp_path: Path) -> None:
    file = tmp_path / "acl.yml"
    secret_file(file, ACCOUNTS)
    secured = from_config(ServerConfig(acl_enable=True, acl_file=str(file)))
    accounts = secured.accounts
    assert isinstance(accounts, AccessFile) and not accounts.refresh()
    file.write_text("accounts: [")
    assert accounts.refresh() and accounts.problem == f"{file}: not YAML, line 1"
    assert set(accounts.access.accounts) == {"orders", "operator"}
    file.write_text(ACCOUNTS.replace("operator", "keeper"))
    assert accounts.refresh() and accounts.problem == ""
    assert set(accounts.access.accounts) == {"orders", "keeper"}


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "tools.yml", "accessKey: orders\nsecretKey: 12345678\n")
    config = ServerConfig(credentials_file=path)
    found = from_config(config).credentials
    assert found is not None and (found.access_key, found.secret_key) == ("orders", "12345678")
    Path(path).chmod(0o644)
    with pytest.raises(UsageError, match=f"others may open it: chmod 600 {path}"):
        from_config(config)
    with pytest.raises(UsageError, match="secretKey is missing"):
        for_client(secret_file(tmp_path / "half", "accessKey=orders\n"))
    for text in ("", "# accessKey=orders\n", "tls.client.trustCertPath=ca.pem\n"):
        with pytest.raises(UsageError, match=r"nothing secures nothing: it has neither tls.enable=true nor accessKey"):
            for_client(secret_file(tmp_path / "nothing", text))
    assert for_client(secret_file(tmp_path / "clear", "tls.enable=false\n")).client_tls is None
    with pytest.raises(UsageError, match=r"unknown key accesKey; known are accessKey, secretKey, tls.enable"):
        for_client(secret_file(tmp_path / "typo", "accesKey=orders\n"))


def test_secrets_are_not_among_the_keys_that_servers_show() -> None:
    shown = ServerConfig(credentials_file="/etc/keys", acl_file="/etc/acl").to_properties()
    assert not [key for key in shown if re.search("secret|password", key, re.I) and not key.endswith("File")]
    assert dataclasses.replace(ServerConfig(), acl_enable=True).to_properties()["aclEnable"] == "true"
