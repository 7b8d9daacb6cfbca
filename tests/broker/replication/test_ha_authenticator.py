"""haSecurity: who may connect to a HA port, and that the stream is the same behind TLS and the greeting."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.broker.replication.ha_authenticator import MAGIC, AcceptedConnection, HaAuthenticator
from rmqha.host.access.audit import AuditLog
from rmqha.host.access.security import Security, ambient, from_config
from rmqha.host.access.tls_link import TlsStream
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig, ServerConfig
from rmqha.model.error import ConfigError, UnreachableError
from rmqha.model.offset import BrokerId
from rmqha.wire.auth.ha_proof import Greeting, HaClaim
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.ha_stream import SlaveHandshake
from tests.broker.test_server import Running, shells
from tests.host.access.test_security import files as files
from tests.host.access.test_security import secret_file
from tests.support.patience import HANG_S

ACCOUNTS = """
accounts:
- accessKey: broker
  secretKey: 12345678
  admin: true
- accessKey: reader
  secretKey: 87654321
"""
HANDSHAKE = SlaveHandshake(BrokerId(2)).encode()
CLAIM = HaClaim(BrokerId(2), "127.0.0.1:1", "DefaultCluster", "broker-a", 1)
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
    with trio.fail_after(HANG_S):
        try:
            await stream.send_all(data)
            return bytes(await stream.receive_some(4096))
        except trio.BrokenResourceError:
            return b""
        finally:
            await trio.aclose_forcefully(stream)


def old_greeting(security: Security) -> bytes:
    """As the release before sent it."""
    command = Command(RequestCode.RMQHA_HA_GREETING, {"version": "1"})
    assert security.credentials is not None
    sign(command, security.credentials)
    return MAGIC + encode_frame(command)


def hello(**fields: str) -> bytes:
    ext = {**CLAIM.to_ext(), "version": "2", "nonce": "n", **fields}
    return MAGIC + encode_frame(Command(RequestCode.RMQHA_HA_GREETING, ext))


async def test_replicas_that_enforce_it_replicate_and_take_nobody_else(files: Path, tmp_path: Path) -> None:
    ours = secured(files, tmp_path)
    ambient.set(ours)
    audited: list[str] = []
    ours.audit = AuditLog("broker", audited.append, HostTracer(write=lambda line: None))
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
            (MAGIC + encode_frame(Command(RequestCode.RMQHA_HA_GREETING)), "a greeting of an earlier release"),
            (old_greeting(ours), "which only haSecurity=permissive takes"),
            (hello(AccessKey="reader"), "account reader is not an admin"),
            (hello(AccessKey="nobody"), "there is no account 'nobody'"),
            (hello(AccessKey="broker", brokerName="another"), "this is a broker of the group"),
        ):
            (reply,) = FrameParser(4096).feed(await said(first, data, ours.client_tls))
            assert reply.code == ResponseCode.NO_PERMISSION and remark in (reply.remark or "")
        assert any("ha_refused" in line and "account reader" in line for line in first.lines)
        await here.until_state(first, ackUnion=[1, 2])
    ours.audit.close()
    kept = [json.loads(line) for text in audited for line in text.splitlines()]
    told = [line for line in kept if line.get("request") == "HA_CONNECTION"]
    assert any(line["allowed"] and line["about"]["brokerId"] == "2" for line in told)
    assert any("account reader is not an admin" in line.get("reason", "") and not line["allowed"] for line in told)


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
    reader = HaAuthenticator("enforcing", secured(files, tmp_path, "reader", "87654321"))
    master = HaAuthenticator("enforcing", secured(files, tmp_path))
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]

    async def serve(stream: trio.SocketStream) -> None:
        await master.accept(stream, "127.0.0.1")
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
        ({"haSecurity": "on"}, "must be auto, open, permissive or enforcing"),
        ({"haSecurity": "permissive"}, "needs haSecretFile, tls.server.certPath or aclEnable=true"),
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


# --- the secret -------------------------------------------------------------------------------------------------------
def sharing(tmp_path: Path, text: str = "s" * 32, **keys: Any) -> Security:
    path = secret_file(tmp_path / f"{text[:1]}.secret", text)
    return from_config(ServerConfig(ha_secret_file=path, **keys))


def with_tls(files: Path) -> dict[str, Any]:
    return {
        "tls_server_cert_path": str(files / "server.pem"),
        "tls_server_key_path": str(files / "server.key"),
        "tls_enable": True,
        "tls_client_trust_cert_path": str(files / "ca.pem"),
    }


@dataclass
class Meeting:
    """A master's guard behind a socket that takes down what a slave has said."""

    welcomes: list[AcceptedConnection]
    port: int

    async def dialled(self, slave: HaAuthenticator) -> trio.abc.Stream:
        address = f"127.0.0.1:{self.port}"
        with trio.fail_after(HANG_S):
            return await slave.dial(await trio.open_tcp_stream("127.0.0.1", self.port), address)


@asynccontextmanager
async def meeting(master: HaAuthenticator) -> AsyncIterator[Meeting]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    here = Meeting([], listeners[0].socket.getsockname()[1])

    async def serve(stream: trio.SocketStream) -> None:
        with trio.move_on_after(HANG_S):
            try:
                here.welcomes.append(await master.accept(stream, "127.0.0.1"))
                if not here.welcomes[-1].refused:
                    await here.welcomes[-1].stream.receive_some(1)
            except trio.BrokenResourceError:
                return
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield here
        nursery.cancel_scope.cancel()


def authenticator(security: Security, claim: HaClaim = CLAIM, mode: str = "auto") -> HaAuthenticator:
    return HaAuthenticator(mode, security, lambda: claim)


@pytest.mark.parametrize("tls", [False, True])
async def test_both_ends_prove_the_secret(files: Path, tmp_path: Path, tls: bool) -> None:
    ours = sharing(tmp_path, **(with_tls(files) if tls else {}))
    async with meeting(authenticator(ours)) as here:
        stream = await here.dialled(authenticator(ours))
        assert isinstance(stream, TlsStream) is tls
        await trio.testing.wait_all_tasks_blocked()
        assert here.welcomes[0].claim == CLAIM and not here.welcomes[0].refused
        await trio.aclose_forcefully(stream)


async def test_who_has_another_secret_or_none_is_refused(tmp_path: Path) -> None:
    ours = sharing(tmp_path)
    async with meeting(authenticator(ours)) as here:
        with pytest.raises(UnreachableError, match="it does not know the secret: compare its haSecretFile"):
            await here.dialled(authenticator(sharing(tmp_path, "t" * 32)))
        with pytest.raises(UnreachableError, match="this is a broker of the group broker-a"):
            await here.dialled(authenticator(ours, CLAIM._replace(broker_name="broker-b")))
        stream = await here.dialled(authenticator(Security(), mode="open"))
        await stream.send_all(HANDSHAKE)
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some(1) == b"", "a replica of Apache's needs haSecurity=open"
        await stream.aclose()
        assert "no greeting" in here.welcomes[-1].refused


async def test_a_recorded_greeting_is_worth_nothing(tmp_path: Path) -> None:
    """What a slave said once, said again to the same master: the master's random number is another."""
    ours = sharing(tmp_path)
    greeting = Greeting(CLAIM, "n", "the master's number of the first time", b"")
    second = Command(RequestCode.RMQHA_HA_GREETING, {"version": "2", "proof": greeting.proof("slave", b"s" * 32)})
    async with meeting(authenticator(ours)) as here:
        stream = await trio.open_tcp_stream("127.0.0.1", here.port)
        await stream.send_all(hello())
        assert await stream.receive_some(4096)
        await stream.send_all(encode_frame(second))
        (answer,) = FrameParser(4096).feed(bytes(await stream.receive_some(4096)))
        assert answer.code == ResponseCode.NO_PERMISSION and "does not know the secret" in (answer.remark or "")
        await stream.aclose()


async def test_a_master_that_does_not_prove_itself_is_not_followed(tmp_path: Path) -> None:
    """It says yes to everything; a slave would cut its log to what such a master shows."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def agree(stream: trio.SocketStream) -> None:
        await stream.receive_some(len(MAGIC))
        parser = FrameParser(4096)
        while data := await stream.receive_some(4096):
            for asked in parser.feed(bytes(data)):
                await stream.send_all(encode_frame(asked.reply(ext={"version": "2", "nonce": "n", "proof": "yes"})))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, agree, listeners)
        here = Meeting([], listeners[0].socket.getsockname()[1])
        with pytest.raises(UnreachableError, match="it has not proved that it knows the secret"):
            await here.dialled(authenticator(sharing(tmp_path)))
        nursery.cancel_scope.cancel()


def test_a_proof_counts_for_one_end_one_claim_one_connection() -> None:
    secret, greeting = b"s" * 32, Greeting(CLAIM, "a", "b", b"certificate")
    proof = greeting.proof("slave", secret)
    assert greeting.is_proof(proof, "slave", secret)
    assert not greeting.is_proof(proof, "master", secret)
    assert not greeting.is_proof(proof, "slave", b"t" * 32)
    for other in (
        greeting._replace(claim=CLAIM._replace(broker_id=BrokerId(3))),
        greeting._replace(claim=CLAIM._replace(address="127.0.0.1:2")),
        greeting._replace(claim=CLAIM._replace(epoch=2)),
        greeting._replace(slave_nonce="ab", master_nonce=""),
        greeting._replace(master_nonce="c"),
        greeting._replace(binding=b"of another connection"),
    ):
        assert not other.is_proof(proof, "slave", secret)


async def test_a_group_copies_behind_the_secret(tmp_path: Path) -> None:
    ambient.set(sharing(tmp_path))
    async with shells(tmp_path) as here:
        first = await here.start("a", **GROUP)
        assert (await here.send(first, b"alone")).code == 0
        await here.start("b", **GROUP)
        await here.until_state(first, ackUnion=[1, 2])
        assert (await here.send(first, b"both")).code == 0
        assert await said(first, HANDSHAKE, None) == b""
