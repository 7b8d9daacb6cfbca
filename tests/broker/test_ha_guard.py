"""haSecurity: who may connect to a HA port, and that the stream is the same behind TLS and the greeting."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import trio

from rmqha.broker.ha_guard import MAGIC, HaGuard
from rmqha.host.security import Security, ambient, from_config
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config import BrokerConfig, ServerConfig
from rmqha.model.error import ConfigError, UnreachableError
from rmqha.model.offset import BrokerId
from rmqha.wire.acl import sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.ha_stream import SlaveHandshake
from tests.broker.test_server import Running, shells
from tests.host.test_security import files as files
from tests.host.test_security import secret_file

ACCOUNTS = """
accounts:
- accessKey: broker
  secretKey: 12345678
  admin: true
- accessKey: reader
  secretKey: 87654321
"""
HANDSHAKE = SlaveHandshake(BrokerId(2)).encode()
GROUP = {"total_replicas": 2, "broker_role": "SYNC_MASTER", "all_ack_in_sync_state_set": True}


def secured(files: Path, tmp_path: Path, key: str = "broker", secret: str = "12345678") -> Security:
    secret_file(tmp_path / "acl.yml", ACCOUNTS)
    return from_config(
        ServerConfig(
            acl_enable=True,
            acl_file=str(tmp_path / "acl.yml"),
            credentials_file=secret_file(tmp_path / f"{key}.yml", f"accessKey: {key}\nsecretKey: '{secret}'\n"),
            tls_server_cert_path=str(files / "server.pem"),
            tls_server_key_path=str(files / "server.key"),
            tls_enable=True,
            tls_client_trust_cert_path=str(files / "ca.pem"),
        )
    )


async def said(broker: Running, data: bytes, context: ssl.SSLContext | None) -> bytes:
    """What the HA port says to a peer that says `data`; b"" when it closes the connection."""
    stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", broker.ports.ha)
    if context is not None:
        stream = trio.SSLStream(stream, context, https_compatible=True)
    with trio.fail_after(10):
        try:
            await stream.send_all(data)
            return bytes(await stream.receive_some(4096))
        except trio.BrokenResourceError:
            return b""
        finally:
            await trio.aclose_forcefully(stream)


def greeting(security: Security) -> bytes:
    command = Command(RequestCode.RMQHA_HA_GREETING, {"version": "1"})
    assert security.credentials is not None
    sign(command, security.credentials)
    return MAGIC + encode_frame(command)


async def test_replicas_that_enforce_it_replicate_and_take_nobody_else(files: Path, tmp_path: Path) -> None:
    ours = secured(files, tmp_path)
    ambient.set(ours)
    async with shells(tmp_path) as here:
        first = await here.start("a", ha_security="enforcing", **GROUP)
        for _ in range(5):
            # more than what is encrypted at a time
            assert (await here.send(first, b"x" * 90_000)).code == 0
        second = await here.start("b", ha_security="enforcing", **GROUP)
        await here.until_state(first, ackUnion=[1, 2])
        assert (await here.send(first, b"both")).code == 0
        assert (await here.state(second))["maxPhyOffset"] == (await here.state(first))["maxPhyOffset"] > 450_000
        for data, context, answer in (
            (HANDSHAKE, None, b""),
            (HANDSHAKE, ours.client_tls, b""),
            (b"GET / HTTP/1.0\r\n\r\n", ours.client_tls, b""),
            (MAGIC + encode_frame(Command(RequestCode.GET_BROKER_CONFIG)), ours.client_tls, b""),
            (MAGIC + b"\x7f\xff\xff\xff", ours.client_tls, b""),
        ):
            assert await said(first, data, context) == answer
        for data, remark in (
            (MAGIC + encode_frame(Command(RequestCode.RMQHA_HA_GREETING)), "is not signed"),
            (greeting(secured(files, tmp_path, "reader", "87654321")), "account reader is not an admin"),
            (greeting(secured(files, tmp_path, "broker", "wrong-one")), "the signature of account broker is wrong"),
        ):
            (reply,) = FrameParser(4096).feed(await said(first, data, ours.client_tls))
            assert reply.code == ResponseCode.NO_PERMISSION and remark in (reply.remark or "")
        assert any("ha_refused" in line and "account reader" in line for line in first.lines)
        await here.until_state(first, ackUnion=[1, 2])


async def test_a_permissive_master_takes_both_kinds(files: Path, tmp_path: Path) -> None:
    ambient.set(secured(files, tmp_path))
    async with shells(tmp_path) as here:
        first = await here.start("a", ha_security="permissive", **{**GROUP, "total_replicas": 3})
        assert (await here.send(first, b"alone")).code == 0
        await here.start("b", **{**GROUP, "total_replicas": 3})
        await here.until_state(first, ackUnion=[1, 2])
        await here.start("c", ha_security="enforcing", **{**GROUP, "total_replicas": 3})
        await here.until_state(first, ackUnion=[1, 2, 3])
        assert (await here.send(first, b"all")).code == 0


async def test_a_slave_is_told_why_it_is_not_taken(files: Path, tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    reader = HaGuard("enforcing", secured(files, tmp_path, "reader", "87654321"))
    master = HaGuard("enforcing", secured(files, tmp_path))
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]

    async def serve(stream: trio.SocketStream) -> None:
        await master.welcome(stream, "127.0.0.1")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        host, _, port = address.rpartition(":")
        with pytest.raises(UnreachableError, match="takes no HA connection from here: account reader is not an admin"):
            await reader.dial(await trio.open_tcp_stream(host, int(port)), address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"haSecurity": "on"}, "must be disabled, permissive or enforcing"),
        ({"haSecurity": "permissive"}, "needs tls.server.certPath or aclEnable=true"),
        ({"haSecurity": "enforcing", "tls.server.certPath": "c"}, "tls.server.certPath needs tls.enable=true too"),
        ({"haSecurity": "enforcing", "aclEnable": "true"}, "aclEnable needs credentialsFile too"),
        (
            {"haSecurity": "enforcing", "aclEnable": "true", "credentialsFile": "f", "tls.enable": "true"},
            "tls.enable needs tls.server.certPath too",
        ),
    ],
)
def test_what_contradicts_itself_is_a_sentence(keys: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig.from_properties(keys, "f")
