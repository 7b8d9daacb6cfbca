"""Certificates, accounts and credentials count anew when their files change, and only if they are good."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trustme

from rmqha.host.access import security_watch
from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.audit import AuditLog
from rmqha.host.access.security import NO_SECURITY, Security, from_config
from rmqha.host.access.security_watch import SecurityWatch, collect, view
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import UnreachableError, UsageError
from rmqha.model.principal import UNRESTRICTED, Principal
from tests.host.access.test_security import ACCOUNTS, by_trio, running, secret_file
from tests.support.patience import HANG_S


def issue(ca: trustme.CA, directory: Path, name: str) -> None:
    """A certificate and its key, each file replaced at once, as tools that renew do."""
    made = ca.issue_cert("127.0.0.1")
    pem = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    for path, data in ((f"{name}.pem", pem), (f"{name}.key", made.private_key_pem.bytes())):
        temporary = directory / f"{path}.new"
        temporary.write_bytes(data)
        temporary.chmod(0o600)
        temporary.rename(directory / path)


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def allow(path: str, mode: int) -> None:
    Path(path).chmod(mode)


def tls_server(directory: Path) -> Security:
    keys = {"tls.server.certPath": str(directory / "s.pem"), "tls.server.keyPath": str(directory / "s.key")}
    return from_config(ServerConfig.from_properties(keys, "f"))


def tls_client(directory: Path, trust: str) -> Security:
    keys = {"tls.enable": "true", "tls.client.trustCertPath": str(directory / trust)}
    return from_config(ServerConfig.from_properties(keys, "f"))


def names(tracer: HostTracer) -> list[str]:
    return [item["event"] for item in tracer.history()]


@pytest.fixture
def tracer() -> HostTracer:
    return HostTracer(write=lambda line: None)


async def test_new_connections_show_the_new_certificate_and_check_by_the_new_issuers(
    tmp_path: Path, tracer: HostTracer
) -> None:
    old, new = trustme.CA(), trustme.CA()
    for name, ca in (("old.pem", old), ("new.pem", new), ("trust.pem", old)):
        ca.cert_pem.write_to_path(str(tmp_path / name))
    issue(old, tmp_path, "s")
    served, asking = tls_server(tmp_path), tls_client(tmp_path, "trust.pem")
    watches = [SecurityWatch(item, tracer) for item in (served, asking)]
    async with running(served) as (address, _):
        assert (await by_trio(address, asking)).code == 0
        issue(new, tmp_path, "s")
        new.cert_pem.write_to_path(str(tmp_path / "trust.pem"))
        for watch in watches:
            await watch.check()
        assert names(tracer) == ["security_file_loaded"] * 2
        assert (await by_trio(address, asking)).code == 0
        with pytest.raises(UnreachableError, match="not trusted"):
            await by_trio(address, tls_client(tmp_path, "old.pem"))


async def test_half_a_certificate_leaves_the_last_good_one_and_is_told_once(tmp_path: Path, tracer: HostTracer) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issue(ca, tmp_path, "s")
    served = tls_server(tmp_path)
    watch = SecurityWatch(served, tracer)
    good = (tmp_path / "s.pem").read_bytes()
    async with running(served) as (address, _):
        (tmp_path / "s.pem").write_bytes(good[:300])
        await watch.check()
        await watch.check()
        (refused,) = tracer.history()
        assert (refused["event"], refused["key"]) == ("security_file_refused", "tls.server.certPath")
        assert "no usable certificate" in refused["reason"]
        assert view(served, UNRESTRICTED)["files"][0]["problem"] == refused["reason"]
        assert [row.value for row in next(iter(collect(served).samples.values()))] == [1]
        assert (await by_trio(address, tls_client(tmp_path, "ca.pem"))).code == 0
        (tmp_path / "s.pem").write_bytes(good)
        await watch.check()
        assert names(tracer) == ["security_file_refused", "security_file_mended"]
        assert [row.value for row in next(iter(collect(served).samples.values()))] == [0]


async def test_a_certificate_before_its_key_is_not_in_force_until_both_are_there(
    tmp_path: Path, tracer: HostTracer
) -> None:
    ca = trustme.CA()
    issue(ca, tmp_path, "s")
    served = tls_server(tmp_path)
    before = served.server_tls
    watch = SecurityWatch(served, tracer)
    issue(ca, tmp_path, "t")
    (tmp_path / "t.pem").rename(tmp_path / "s.pem")
    await watch.check()
    assert served.server_tls is before
    (tmp_path / "t.key").rename(tmp_path / "s.key")
    await watch.check()
    assert served.server_tls is not before
    assert names(tracer) == ["security_file_refused", "security_file_mended"]


async def test_accounts_and_credentials_are_watched_too(tmp_path: Path, tracer: HostTracer) -> None:
    acl = secret_file(tmp_path / "acl.yml", ACCOUNTS)
    own = secret_file(tmp_path / "keys", "accessKey: operator\nsecretKey: abcdefgh\n")
    served = from_config(ServerConfig(acl_enable=True, acl_file=acl, credentials_file=own))
    watch = SecurityWatch(served, tracer)
    audited: list[str] = []
    served.audit = AuditLog("broker", audited.append, tracer)
    write(acl, ACCOUNTS.replace("operator", "keeper"))
    write(own, "accessKey: keeper\nsecretKey: abcdefgh\n")
    await watch.check()
    assert served.credentials is not None and served.credentials.access_key == "keeper"
    assert isinstance(served.accounts, AccessFile) and "keeper" in served.accounts.access.accounts
    allow(acl, 0o644)
    await watch.check()
    assert served.accounts.problem == f"{acl} holds secret keys and others may open it: chmod 600 {acl}"
    allow(acl, 0o640)
    write(own, "accessKey: keeper\n")
    await watch.check()
    assert [(item["event"], item["key"]) for item in tracer.history()[2:]] == [
        ("security_file_refused", "aclFile"),
        ("security_file_refused", "credentialsFile"),
        ("security_file_mended", "aclFile"),
    ]
    served.audit.close()
    kept = [json.loads(line) for text in audited for line in text.splitlines()]
    assert {(line["request"], line["about"]["key"], line["allowed"]) for line in kept} >= {
        ("SECURITY_FILE_LOADED", "aclFile", True),
        ("SECURITY_FILE_REFUSED", "aclFile", False),
    }
    assert served.credentials.access_key == "keeper"


@pytest.mark.parametrize("is_told", [False, True])
async def test_the_watch_looks_by_itself_and_at_once_when_told(
    tmp_path: Path, tracer: HostTracer, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    monkeypatch.setattr(security_watch, "CHECK_INTERVAL_S", 2 * HANG_S if is_told else 0.01)
    acl = secret_file(tmp_path / "acl.yml", ACCOUNTS)
    served = from_config(ServerConfig(acl_enable=True, acl_file=acl))
    watch = SecurityWatch(served, tracer)
    told = trio.Event()
    tracer.listeners.append(lambda now_ms, name, fields: told.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        for text in ("accounts: [", ACCOUNTS):
            told = trio.Event()
            write(acl, text)
            if is_told:
                watch.check_now()
            with trio.fail_after(HANG_S):
                await told.wait()
        nursery.cancel_scope.cancel()
    assert names(tracer) == ["security_file_refused", "security_file_mended"]


@pytest.mark.parametrize(
    ("config", "name", "holds"),
    [
        (lambda path: {"aclEnable": "true", "aclFile": path}, "acl.yml", "secret keys"),
        (lambda path: {"credentialsFile": path}, "keys", "a secret key"),
        (
            lambda path: {"tls.server.certPath": path.replace(".key", ".pem"), "tls.server.keyPath": path},
            "s.key",
            "the private key of tls.server.certPath",
        ),
        (
            lambda path: {"tls.enable": "true", "tls.client.certPath": path, "tls.client.authServer": "false"},
            "both.pem",
            "the private key of tls.client.certPath",
        ),
    ],
)
def test_secrets_that_others_may_read_are_refused(
    tmp_path: Path, config: Callable[[str], dict[str, str]], name: str, holds: str
) -> None:
    ca = trustme.CA()
    issue(ca, tmp_path, "s")
    ca.issue_cert("me").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    (tmp_path / "acl.yml").write_text(ACCOUNTS)
    (tmp_path / "keys").write_text("accessKey: orders\nsecretKey: 12345678\n")
    keys = config(str(tmp_path / name))
    for mode in (0o644, 0o604, 0o660):
        (tmp_path / name).chmod(mode)
        with pytest.raises(UsageError, match=f"{name} holds {holds} and others may open it: chmod 600 "):
            from_config(ServerConfig.from_properties(keys, "f"))
    for mode in (0o640, 0o600):
        (tmp_path / name).chmod(mode)
        assert from_config(ServerConfig.from_properties(keys, "f")).files


def test_scrapes_tell_problems_and_ends(tmp_path: Path) -> None:
    issue(trustme.CA(), tmp_path, "s")
    families = {series.name: rows[0] for series, rows in collect(tls_server(tmp_path)).samples.items()}
    labels = {"key": "tls.server.certPath", "file": str(tmp_path / "s.pem")}
    assert (families["rmqha_security_file_problem"].value, families["rmqha_security_file_problem"].labels) == (
        0,
        labels,
    )
    assert families["rmqha_certificate_expiry_timestamp_seconds"].value > 1_700_000_000
    assert NO_SECURITY.files == [] == view(NO_SECURITY, UNRESTRICTED)["files"]


def test_who_may_not_know_where_secrets_are_is_told_keys(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "accounts.yml", ACCOUNTS)
    security = from_config(ServerConfig.from_properties({"aclEnable": "true", "aclFile": path}, "f"))
    accounts = security.accounts
    assert accounts is not None
    guest = Principal(accounts, "orders")
    item = security.files[0]
    item.problem = f"{path} is broken"
    (row,) = view(security, UNRESTRICTED)["files"]
    assert (row["file"], row["problem"]) == (path, item.problem)
    (row,) = view(security, guest)["files"]
    assert (row["key"], row["file"]) == ("aclFile", "aclFile") and str(tmp_path) not in row["problem"] != ""
    item.problem = ""
    assert view(security, guest)["files"][0]["problem"] == ""
