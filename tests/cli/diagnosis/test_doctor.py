"""`rmqha doctor` on files, ports and disks: nothing runs, or something else does."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from rmqha.cli.diagnosis import disk_test
from rmqha.cli.diagnosis.checks import machine as check_machine
from rmqha.cli.diagnosis.checks.listeners import SocketOwner, listening, parse_listeners
from rmqha.cli.diagnosis.checks.machine import check_memory_limit, parse_pressure, parse_sizes
from rmqha.cli.diagnosis.checks.mounts import Mount
from rmqha.cli.diagnosis.checks.node_under_test import kind_of
from rmqha.cli.diagnosis.doctor import doctor
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.model.error import UsageError
from rmqha.ops.finding import Verdict, counts_sentence, in_order, merged, ok, warn, wrong
from rmqha.ops.local.cluster_file import ClusterSpec, parse
from rmqha.ops.local.preflight import free_ports
from rmqha.ops.local.prepare import prepare
from rmqha.store.meta.checkpoint import Checkpoint

TEXT = """
[cluster]
name = "c"
[namesrv]
listenPort = {base}
[controllers]
listenPort = {controller}
[[group]]
name = "broker-a"
replicas = 2
listenPort = {broker}
[broker]
mappedFileSizeCommitLog = 1048576
maxMessageSize = 65536
"""


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    """A cluster that `rmqha up` has written and that does not run."""
    base = free_ports(40)
    text = TEXT.format(base=base, controller=base + 1, broker=base + 10)
    spec = parse(str(tmp_path / "c.toml"), tomllib.loads(text), directory=tmp_path / "data")
    prepare(spec, None)
    return spec


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, real_syncs: None) -> None:
    """Few syncs, and a disk that is well, whatever the one of the tests is."""
    monkeypatch.setattr(check_machine, "SYNC_COUNT", 5)
    monkeypatch.setattr(check_machine, "mount_of", lambda path: Mount("/", "ext4", read_only=False))
    monkeypatch.setattr(HostDisk, "space", lambda self: (60 * 10**9, 40 * 10**9))
    monkeypatch.setattr(check_machine, "files_left", lambda place: None)


def run(*arguments: str) -> tuple[list[dict[str, Any]], int]:
    done = CliRunner().invoke(doctor, [*arguments, "-o", "json"])
    if isinstance(done.exception, UsageError):
        raise done.exception
    assert done.stdout, done.exception
    return json.loads(done.stdout)["findings"], done.exit_code


def look(spec: ClusterSpec, *arguments: str) -> tuple[list[dict[str, Any]], int]:
    return run("--directory", str(spec.directory), *arguments)


def told(findings: list[dict[str, Any]], subject: str, check: str, verdict: Verdict) -> str:
    """Sentences and fixes of that kind, one after the other."""
    kind = (subject, check, verdict.name)
    return "\n".join(
        f"{item['sentence']} | {item['fix']}"
        for item in findings
        if (item["subject"], item["check"], item["verdict"]) == kind
    )


def store_of(spec: ClusterSpec, node: str) -> Path:
    place = Path(spec.node(node).properties["storePathRootDir"])
    place.mkdir(exist_ok=True)
    return place


def config_of(spec: ClusterSpec, node: str) -> Path:
    return spec.directory / node / "node.conf"


# --- a cluster --------------------------------------------------------------------------------------------------------
def test_a_stopped_cluster_is_not_wrong(spec: ClusterSpec) -> None:
    before = sorted(spec.directory.rglob("*"))
    findings, code = look(spec)
    assert (code, [item for item in findings if item["verdict"] == "WRONG"]) == (0, [])
    assert told(findings, "broker-a-1", "process", Verdict.OK) == "was never started | "
    assert "are free" in told(findings, "broker-a-1", "ports", Verdict.OK)
    assert "a sole controller" in told(findings, "ns-1", "config", Verdict.WARN)
    assert "totalReplicas=2" in told(findings, "broker-a-1", "config", Verdict.WARN)
    assert sorted(spec.directory.rglob("*")) == before, "nothing is left behind"
    assert look(spec, "--strict")[1] == 1
    names = {item["subject"] for item in look(spec, "broker-a-2")[0]}
    assert "broker-a-2" in names
    assert not names & {"broker-a-1", "ns-1"}


def test_a_cluster_file_is_examined_before_it_is_started(spec: ClusterSpec) -> None:
    path = Path(spec.source)
    base = int(spec.node("ns-1").address.rpartition(":")[2])
    path.write_text(TEXT.format(base=base, controller=base + 1, broker=base + 10))
    findings, code = run("-c", str(path))
    assert code == 0
    assert {item["subject"] for item in findings} >= {"ns-1", "broker-a-1", "broker-a-2", "broker-a"}


def test_who_has_the_port(spec: ClusterSpec) -> None:
    port = spec.node("broker-a-2").ports[1].number
    with socket.create_server(("127.0.0.1", port)):
        findings, code = look(spec)
    assert code == 1
    sentence = told(findings, "broker-a-2", "ports", Verdict.WRONG)
    assert f"127.0.0.1:{port} is taken by pid {os.getpid()} (" in sentence
    assert f"kill {os.getpid()}, or change haListenPort in {spec.source}" in sentence


def test_the_port_of_metrics_is_a_port_too(spec: ClusterSpec) -> None:
    port = free_ports(2)
    with config_of(spec, "ns-1").open("a") as file:
        file.write(f"httpPort={port}\n")
    with socket.create_server(("127.0.0.1", port)):
        findings, _ = look(spec, "ns-1", "--no-write")
    assert f"change httpPort in {spec.source}" in told(findings, "ns-1", "ports", Verdict.WRONG)


def test_a_killed_broker_and_a_store_in_use(spec: ClusterSpec) -> None:
    (store_of(spec, "broker-a-1") / "abort").touch()
    release = HostDisk(store_of(spec, "broker-a-2")).lock("lock")
    assert release is not None
    findings, code = look(spec)
    release()
    assert told(look(spec)[0], "broker-a-2", "process", Verdict.OK) == "stopped in order | "
    assert code == 1
    assert "was killed or lost power" in told(findings, "broker-a-1", "process", Verdict.WARN)
    assert "is in use by a process that is not this node" in told(findings, "broker-a-2", "process", Verdict.WRONG)


# --- configuration ----------------------------------------------------------------------------------------------------
def test_an_unknown_key_and_replicas_that_differ(spec: ClusterSpec) -> None:
    with config_of(spec, "ns-1").open("a") as file:
        file.write("kvConfigPaht=x\n")
    text = config_of(spec, "broker-a-2").read_text()
    config_of(spec, "broker-a-2").write_text(text.replace("CommitLog=1048576", "CommitLog=2097152"))
    findings, code = look(spec)
    assert code == 1
    assert "unknown key kvConfigPaht" in told(findings, "ns-1", "config", Verdict.WRONG)
    words = told(findings, "broker-a", "config", Verdict.WRONG)
    assert "differ in mappedFileSizeCommitLog: broker-a-1 1048576, broker-a-2 2097152" in words


@pytest.mark.parametrize(
    ("lines", "check", "verdict", "words"),
    [
        (
            "haMode=ap\ntotalReplicas=3",
            "config",
            Verdict.WARN,
            "the master dies: what it had acknowledged and not yet",
        ),
        ("haMode=ap\ntotalReplicas=3", "config", Verdict.WARN, "of about the last 500 ms"),
        ("haMode=cp\ntotalReplicas=1", "config", Verdict.WARN, "what this disk loses is lost"),
        (
            "haMode=cp\ntotalReplicas=3\ndiskProbeIntervalMillis=0",
            "config",
            Verdict.WARN,
            "does not move the mastership away",
        ),
        ("transientStorePoolEnable=true", "config", Verdict.WARN, "that nobody waits for"),
        ("inSyncReplicas=2\ntotalReplicas=3", "config", Verdict.WARN, "inSyncReplicas=2 without effect"),
        ("enableControllerMode=false", "config", Verdict.WARN, "nobody takes its place"),
        ("haMode=cp\ninSyncReplicas=2\ntotalReplicas=3", "config", Verdict.WRONG, "contradicts haMode=cp"),
        (
            "listenAddress=0.0.0.0\nhaSecurity=open\nbrokerIP1=127.0.0.1",
            "config",
            Verdict.WARN,
            "whoever reaches this server may ask it for anything",
        ),
        (
            "listenAddress=0.0.0.0\nhaSecurity=open\nbrokerIP1=127.0.0.1",
            "config",
            Verdict.WARN,
            "may acknowledge in its name what it does not have",
        ),
        (
            "listenAddress=0.0.0.0\nhaSecurity=open\nbrokerIP1=127.0.0.1\nenableControllerMode=false\nbrokerId=0",
            "config",
            Verdict.WARN,
            "may acknowledge in its name what it does not have",
        ),
        (
            "listenAddress=0.0.0.0\nhaSecurity=open",
            "config",
            Verdict.WRONG,
            "brokerIP1: clients cannot reach 0.0.0.0",
        ),
        ("controllerAddr=10.9.8.7:9878", "config", Verdict.WRONG, "10.9.8.7:9878 would be told 127.0.0.1"),
        ("controllerAddr=ctl.example:9878", "address", Verdict.WRONG, "ctl.example is told 127.0.0.1 and cannot"),
        ("brokerIP1=10.9.8.7", "address", Verdict.WRONG, "told 10.9.8.7, but it listens on 127.0.0.1 only"),
        (
            "listenAddress=0.0.0.0\nhaSecurity=open\nbrokerIP1=203.0.113.9",
            "address",
            Verdict.WARN,
            "is not an address of this machine",
        ),
    ],
)
def test_dangerous_keys(lines: str, check: str, verdict: Verdict, words: str, tmp_path: Path) -> None:
    path, port = tmp_path / "b.conf", free_ports(4) + 2
    path.write_text(f"brokerName=broker-a\nlistenPort={port}\nstorePathRootDir={tmp_path}/store\n{lines}\n")
    findings, code = run("-c", str(path), "--no-write")
    assert words in told(findings, "b", check, verdict)
    assert code == any(item["verdict"] == "WRONG" for item in findings)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("controllerDLegerPeers=n0-127.0.0.1:9878;n1-127.0.0.1:9879", "2 controllers bear no more losses than 1"),
        ("enableElectUncleanMaster=true", "one that lacks messages is elected"),
        ("listenAddress=0.0.0.0\nhaSecurity=open", "in a broker's name"),
    ],
)
def test_dangerous_keys_of_controllers(lines: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text(f"controllerStorePath={tmp_path}/controller\n{lines}\n")
    assert words in told(run("-c", str(path), "--no-write")[0], "c", "config", Verdict.WARN)


def test_accounts_need_accounts(spec: ClusterSpec, tmp_path: Path) -> None:
    accounts, own = tmp_path / "acl.yml", tmp_path / "tools.yml"
    accounts.write_text("accounts:\n- accessKey: operator\n  secretKey: secret-enough\n  admin: true\n")
    own.write_text("accessKey: operator\nsecretKey: secret-enough\n")
    for secret in (accounts, own):
        secret.chmod(0o600)
    with config_of(spec, "broker-a-1").open("a") as file:
        file.write(f"aclEnable=true\naclFile={accounts}\ncredentialsFile={own}\n")
    findings, _ = look(spec)
    assert told(findings, "broker-a-1", "accounts", Verdict.WRONG) == ""
    for node in ("ns-1", "broker-a-2"):
        assert "aclEnable=true on broker-a-1, and this server has no account" in told(
            findings, node, "accounts", Verdict.WRONG
        )


def test_files_of_accounts_and_certificates(spec: ClusterSpec, tmp_path: Path) -> None:
    accounts = tmp_path / "acl.yml"
    accounts.write_text("accounts: []\n")
    accounts.chmod(0o644)
    with config_of(spec, "broker-a-1").open("a") as file:
        file.write(f"aclEnable=true\naclFile={accounts}\n")
    findings, _ = look(spec)
    assert f"others may open it: chmod 600 {accounts}" in told(findings, "broker-a-1", "config", Verdict.WRONG)
    accounts.chmod(0o600)
    findings, _ = look(spec)
    assert "files of certificates and accounts can be used: 2" in told(findings, "broker-a-1", "security", Verdict.OK)


def test_a_store_that_everybody_may_read_is_told(spec: ClusterSpec) -> None:
    store = config_of(spec, "broker-a-1").parent / "store"
    HostDisk(store).make_dirs("commitlog")
    assert told(look(spec)[0], "broker-a-1", "data", Verdict.WARN) == ""
    store.chmod(0o755)
    assert "can be read by every user of this machine" in told(look(spec)[0], "broker-a-1", "data", Verdict.WARN)


@pytest.mark.parametrize(
    ("days", "verdict", "words"),
    [
        (10.5, Verdict.WARN, "ends in 10 days"),
        (-1, Verdict.WRONG, "has ended"),
        (100, Verdict.WRONG, "is not valid before"),
        (15, Verdict.OK, "can be used"),
    ],
)
def test_certificates_that_end_soon_or_have_not_begun(
    spec: ClusterSpec, tmp_path: Path, days: float, verdict: Verdict, words: str
) -> None:
    end = datetime.now(UTC) + timedelta(days=days)
    made = trustme.CA().issue_cert("127.0.0.1", not_before=end - timedelta(days=90), not_after=end)
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "s.pem"))
    (tmp_path / "s.pem").chmod(0o600)
    with config_of(spec, "broker-a-1").open("a") as file:
        file.write(f"tls.server.certPath={tmp_path}/s.pem\ntls.server.keyPath={tmp_path}/s.pem\n")
    assert words in told(look(spec)[0], "broker-a-1", "security", verdict)


def test_a_key_set_while_it_ran_hides_the_file(spec: ClusterSpec) -> None:
    with config_of(spec, "broker-a-1").open("a") as file:
        file.write("fileReservedTime=24\n")
    place = store_of(spec, "broker-a-1") / "config"
    place.mkdir()
    (place / "config-overrides.properties").write_text("fileReservedTime=12\ndeleteWhen=03\n")
    findings, _ = look(spec)
    sentence = told(findings, "broker-a-1", "overrides", Verdict.WARN)
    assert "fileReservedTime=24" in sentence
    assert "12 was set while it ran" in sentence
    assert "deleteWhen" not in sentence


# --- store ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("c#broker-b#1", "belongs to broker-b of cluster c, not to broker-a of c"),
        ("nonsense", "expected cluster#brokerName#brokerId"),
    ],
)
def test_identity_files(text: str, words: str, spec: ClusterSpec) -> None:
    (store_of(spec, "broker-a-1") / "brokerIdentity").write_text(text)
    findings, code = look(spec)
    assert code == 1
    assert words in told(findings, "broker-a-1", "identity", Verdict.WRONG)


def test_a_copied_store(spec: ClusterSpec) -> None:
    for node in ("broker-a-1", "broker-a-2"):
        (store_of(spec, node) / "brokerIdentity").write_text("c#broker-a#7")
    findings, _ = look(spec)
    assert "both hold id 7" in told(findings, "broker-a", "identity", Verdict.WRONG)


def test_epochs_behind_the_log_and_a_clock_set_back(spec: ClusterSpec) -> None:
    place = store_of(spec, "broker-a-1")
    (place / "commitlog").mkdir()
    (place / "commitlog" / ("0" * 20)).write_bytes(bytes(65536))
    (place / "epochFileCheckpoint").write_text("1\n3-4096\n")
    stored_ms = 4_000_000_000_000
    (place / "checkpoint").write_bytes(Checkpoint(physic_msg_timestamp_ms=stored_ms).encode().ljust(4096, b"\0"))
    findings, code = look(spec)
    assert code == 1
    sentence = told(findings, "broker-a-1", "epochs", Verdict.WRONG)
    assert "rmqha fsck" in sentence
    assert "in the future: the clock has been set back" in told(findings, "broker-a-1", "clock", Verdict.WARN)


def test_files_of_timers(spec: ClusterSpec) -> None:
    place = store_of(spec, "broker-a-1")
    (place / "config").mkdir()

    def check(read_ms: int, offset: int) -> None:
        data = struct.pack(">7q", read_ms, 0, offset, offset, 1, 1, 1).ljust(4096, b"\0")
        (place / "config" / "timercheck").write_bytes(data)

    check(1_000_000, 7)
    assert "from entry 7 of the queue on wait" in told(look(spec)[0], "broker-a-1", "timers", Verdict.OK)
    check(4_000_000_000_000, 7)
    assert "ahead of this clock" in told(look(spec)[0], "broker-a-1", "timers", Verdict.WARN)
    check(-1, 7)
    assert "config/timercheck at byte 0" in told(look(spec)[0], "broker-a-1", "timers", Verdict.WARN)


# --- machine ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("used", "free", "verdict", "words"),
    [
        (10, 90, Verdict.OK, "10 % in use"),
        (80, 20, Verdict.WARN, "above diskMaxUsedSpaceRatio=75"),
        (87, 13, Verdict.WRONG, "above diskSpaceCleanForciblyRatio=85"),
        (95, 5, Verdict.WRONG, "so sends are refused"),
        (0.0006, 0.0009, Verdict.WRONG, "two log files of 1 MiB do not fit"),
    ],
)
def test_space(
    used: float, free: float, verdict: Verdict, words: str, spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostDisk, "space", lambda self: (round(used * 10**9), round(free * 10**9)))
    findings, _ = look(spec, "broker-a-1", "--no-write")
    assert words in told(findings, "broker-a-1", "disk", verdict)


def test_a_log_that_is_linked_to_another_disk_has_its_own_findings(
    spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = spec.directory / "broker-a-1" / "store" / "commitlog"
    monkeypatch.setattr(check_machine, "places_of", lambda data: [data, log] if log.is_relative_to(data) else [data])

    def space(disk: HostDisk, path: str = "") -> tuple[int, int]:
        return (95 * 10**9, 5 * 10**9) if disk.label == str(log) else (10 * 10**9, 90 * 10**9)

    monkeypatch.setattr(HostDisk, "space", space)
    findings, _ = look(spec, "broker-a-1", "--no-write")
    assert f"{log}: 95 % in use" in told(findings, "broker-a-1", "disk", Verdict.WRONG)


def test_a_disk_without_inodes(spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDisk, "space", lambda self: (10 * 10**9, 90 * 10**9))
    for left, verdict in ((7, Verdict.WRONG), (100_000, Verdict.OK), (None, Verdict.OK)):
        monkeypatch.setattr(check_machine, "files_left", lambda place, left=left: left)
        findings, _ = look(spec, "broker-a-1", "--no-write")
        words = "has room for 7 more files (inodes)" if verdict is Verdict.WRONG else "10 % in use"
        assert words in told(findings, "broker-a-1", "disk", verdict)


@pytest.mark.parametrize(
    ("mount", "verdict", "words"),
    [
        (Mount("/x", "tmpfs", read_only=False), Verdict.WRONG, "in memory: a loss of power takes everything"),
        (Mount("/x", "nfs4", read_only=False), Verdict.WARN, "its server decides what a sync is"),
        (Mount("/x", "ext4", read_only=True), Verdict.WRONG, "is mounted read-only"),
    ],
)
def test_file_systems(
    mount: Mount, verdict: Verdict, words: str, spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_machine, "mount_of", lambda path: mount)
    findings, _ = look(spec, "broker-a-1", "--no-write")
    assert words in told(findings, "broker-a-1", "disk", verdict)


def test_copies_that_a_store_keeps_are_told_with_their_size(spec: ClusterSpec) -> None:
    store = spec.directory / "broker-a-1" / "store"
    for name, count in (("replaced-1", 3), ("rmqha.cut-2", 1), ("other", 5)):
        (store / name).mkdir(parents=True)
        for number in range(count):
            (store / name / f"{number}").write_bytes(os.urandom(500_000))
    findings, _ = look(spec, "broker-a-1", "--no-write")
    said = told(findings, "broker-a-1", "kept", Verdict.WARN)
    assert said.startswith("2 directories with 2.0 MB put aside, which nobody removes: replaced-1, rmqha.cut-2 | ")
    assert f"rmqha log kept {store}" in said
    assert not told(look(spec, "broker-a-2", "--no-write")[0], "broker-a-2", "kept", Verdict.WARN)


def test_a_slow_disk_is_wrong_only_for_who_waits_for_it(spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(directory: Path, **limits: Any) -> disk_test.DiskFigures:
        figures = disk_test.DiskFigures(str(directory), Mount("/", "ext4", read_only=False))
        figures.syncs.record(120_000)
        return figures

    monkeypatch.setattr(disk_test, "measure", slow)
    findings, code = look(spec, "broker-a-1")
    assert "very slow here" in told(findings, "broker-a-1", "sync", Verdict.WARN)
    assert code == 0
    with config_of(spec, "broker-a-1").open("a") as file:
        file.write("flushDiskType=SYNC_FLUSH\n")
    assert "set flushDiskType=ASYNC_FLUSH" in told(look(spec, "broker-a-1")[0], "broker-a-1", "sync", Verdict.WRONG)


def test_too_few_descriptors(spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store_of(spec, "broker-a-1") / "consumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    for number in range(5):
        (queue / f"{number * 6_000_000:020}").touch()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1004, 1004))
    findings, _ = look(spec, "broker-a-1", "--no-write")
    words = "it needs 5 store files and 1000 connections, the limit is 1004"
    assert words in told(findings, "broker-a-1", "descriptors", Verdict.WRONG)
    findings, _ = look(spec, "ns-1", "--no-write")
    assert "1000 connections, the limit is 1004" in told(findings, "ns-1", "descriptors", Verdict.WARN)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1010, 1010))
    assert "soon needs more" in told(look(spec)[0], "broker-a-1", "descriptors", Verdict.WARN)


V2 = ("memory.max", "memory.current", "memory.stat", "")
V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_")


@pytest.mark.parametrize(("limit_file", "used_file", "stat_file", "prefix"), [V2, V1])
def test_the_page_cache_is_no_memory_that_a_container_lacks(
    tmp_path: Path, limit_file: str, used_file: str, stat_file: str, prefix: str
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit_file).write_text(f"{1000 << 20}\n")
    (tmp_path / used_file).write_text(f"{990 << 20}\n")

    def told(anonymous: int, active: int, inactive: int) -> list[str]:
        lines = {f"{prefix}active_anon": anonymous, f"{prefix}active_file": active, f"{prefix}inactive_file": inactive}
        (tmp_path / stat_file).write_text("".join(f"{name} {size << 20}\n" for name, size in lines.items()))
        return [found.sentence for found in check_memory_limit(tmp_path)]

    assert told(190, active=300, inactive=500) == []
    assert told(950, active=10, inactive=30) == [
        "this container holds 950 of 1,000 MiB without the page cache: the kernel may kill a node"
    ]
    (tmp_path / limit_file).write_text("max\n")
    assert told(950, active=10, inactive=30) == []


def test_what_the_kernel_tells_is_read() -> None:
    assert parse_sizes("MemTotal:  24684164 kB\nHugePages_Total:   0\n") == {"MemTotal": 24684164 * 1024}
    assert parse_pressure("some avg10=1.50 avg60=2.25 avg300=0.1 total=5\nfull avg10=0\n") == 2.25
    assert parse_pressure("") is None
    row = "   0: 0100007F:2694 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100"
    assert parse_listeners(f"head\n{row}\n{row.replace(' 0A ', ' 01 ')}\n") == [(0x2694, 4711)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert [owner.pid for owner in listening([port])[port]] == [os.getpid()]
    assert listening([port]) == {}


def test_a_process_is_ours_by_its_command_line(tmp_path: Path) -> None:
    path = tmp_path / "b.conf"
    ours = SocketOwner(1, ("python", "-m", "rmqha", "broker", "-c", str(path)))
    assert ours.runs("broker", path)
    assert not ours.runs("namesrv", path)
    assert not ours.runs("broker", tmp_path / "other.conf")
    assert not SocketOwner(2, ("java", "broker", str(path))).runs("broker", path)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"brokerName": "b"}, "broker"),
        ({"controllerDLegerPeers": "n0-h:1"}, "controller"),
        ({"controllerDLegerPeers": "n0-h:1", "enableControllerInNamesrv": "true"}, "namesrv"),
        ({"listenPort": "9876"}, "namesrv"),
    ],
)
def test_which_server_a_file_is_for(keys: dict[str, str], kind: str) -> None:
    assert kind_of(keys).value == kind


def test_findings_are_counted_and_the_worst_comes_first() -> None:
    found = [ok("a", "x", "s"), warn("a", "y", "s", "f"), wrong("a", "z", "s", "f")]
    assert [item.check for item in in_order(found)] == ["z", "y", "x"]
    assert counts_sentence(found) == "1 wrong, 1 warning, 1 ok"
    same = [*found, warn("b", "y", "s", "f"), warn("c", "y", "s", "g")]
    assert [item.subject for item in merged(same)] == ["a", "a, b", "a", "c"]


def test_what_may_not_be_looked_at_is_a_finding_and_the_rest_goes_on(
    spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: HostReadDisk, path: str) -> bool:
        raise PermissionError(13, os.strerror(13), f"{self.label}/{path}")

    monkeypatch.setattr(HostReadDisk, "is_locked", refused)
    findings, code = look(spec)
    assert code == 1
    sentence = told(findings, "broker-a-1", "process", Verdict.WRONG)
    assert "lock cannot be looked at: Permission denied" in sentence
    assert "as the user that runs the node" in sentence
    assert "are free" in told(findings, "broker-a-1", "ports", Verdict.OK)


# --- usage ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQHA_DIRECTORY", raising=False)
    yield tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no cluster is known here"),
        (("-c", "none.conf"), "cannot read the configuration none.conf"),
        (("-c", "none.conf", "broker-a-1"), "leave NODE, --directory and addresses out"),
        (("-c", "."), "cannot read the configuration"),
    ],
)
def test_nothing_to_examine(arguments: tuple[str, ...], words: str, nowhere: Path) -> None:
    with pytest.raises(UsageError, match=words):
        run(*arguments)
