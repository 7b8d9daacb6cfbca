"""`rmqha debug bundle`: what is in it, what is not, and that no planted secret survives."""

from __future__ import annotations

import gzip
import json
import string
import tarfile
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.cli.diagnosis import bundle as bundles
from rmqha.cli.diagnosis import collection
from rmqha.cli.diagnosis import debug as command
from rmqha.cli.diagnosis.bundle import Bundle, BundleTarget, known_secrets, take_answers, take_cluster, take_machine
from rmqha.host.http.server import Request, Response, Routes, serve
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode as Code
from rmqha.model.error import RmqhaError, UnreachableError, UsageError
from rmqha.ops.local.cluster_file import parse
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.prepare import prepare
from tests.cli.hostile import hostile
from tests.client.test_admin import peers
from tests.support.patience import HANG_S
from tests.support.tracer import SilentTracer

TEXT = """
[cluster]
name = "c"
[namesrv]
listenPort = 3
[controllers]
listenPort = 4
[[group]]
name = "broker-a"
replicas = 2
listenPort = 10
"""
# a marker, so that a short one is not part of something else by chance
SECRET = st.text(string.ascii_letters + string.digits + "+/!%$_.~", min_size=8, max_size=30).map(
    lambda text: f"Zq{text}"
)


def stopped_cluster(root: Path) -> ClusterState:
    path = root / "c.toml"
    path.write_text(TEXT)
    return prepare(parse(str(path), tomllib.loads(TEXT), directory=root / "data"), None)


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    return stopped_cluster(tmp_path)


def opened(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, file → bytes)."""
    with tarfile.open(path) as archive:
        files = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.partition("/")[2]] = file.read()
    return json.loads(files["manifest.json"]), files


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(command.debug, ["bundle", *arguments])
    if isinstance(done.exception, RmqhaError):
        raise done.exception
    return done


# --- secrets ----------------------------------------------------------------------------------------------------------
def plant(state: ClusterState, root: Path, secrets: list[str]) -> None:
    """Each at every place where one was ever seen."""
    store = state.directory / "broker-a-1" / "store"
    (store / "config").mkdir(parents=True)
    log = state.log_path("broker-a-1")
    log.parent.mkdir()
    accounts, credentials = root / "plain_acl.yml", root / "tools.yml"
    accounts.write_text(
        "accounts:\n" + "".join(f"- accessKey: a{n}\n  secretKey: {json.dumps(s)}\n" for n, s in enumerate(secrets))
    )
    credentials.write_text(f"accessKey: me\nsecretKey: {json.dumps(secrets[0])}\n")
    with state.config_path("broker-a-1").open("a") as file:
        file.write(f"aclFile={accounts}\ncredentialsFile={credentials}\n")
        file.writelines(f"tls.server.keyPassword{n}={secret}\n" for n, secret in enumerate(secrets))
    Path(state.cluster_file).write_text(TEXT + "".join(f'[broker]\nx.secret = "{secret}"\n' for secret in secrets))
    (store / "config" / "topics.json").write_text(json.dumps({"order": {"authToken": secrets}, "note": secrets[-1]}))
    (store / "config" / "config-overrides.properties").write_text(f"secretKey={secrets[0]}\n")
    (store / "rmqha.boot").write_bytes(b"\xff\x00" + secrets[0].encode())
    lines = [
        f"2026-11-22T06:00:00.000Z denied reason={json.dumps(f'bare {secret}')} password={secret}" for secret in secrets
    ]
    log.write_text("\n".join(lines) + f"\n-----BEGIN PRIVATE KEY-----\n{secrets[0]}\n-----END PRIVATE KEY-----\n")
    state.output_path("broker-a-1").write_text(f"amqp://me:{secrets[0]}@host\nValueError: {secrets[-1]}\n")


@given(st.lists(SECRET, min_size=1, max_size=3, unique=True))
@settings(max_examples=25)
def test_no_planted_secret_survives(secrets: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        state = stopped_cluster(root)
        plant(state, root, secrets)
        configs = [*map(state.config_path, state.nodes), Path(state.cluster_file)]
        made = Bundle(10_000_000, known_secrets(configs))
        take_cluster(made, state)
        take_machine(made)
        made.miss("somewhere", f"a reason with {secrets[0]}")
        made.write(root / "b.tar.gz", {})
        everything = gzip.decompress((root / "b.tar.gz").read_bytes())
        _, files = opened(root / "b.tar.gz")
    for secret in secrets:
        assert secret.encode() not in everything
    assert b"brokerName=broker-a" in files["nodes/broker-a-1/node.conf"]
    assert b"denied" in files["nodes/broker-a-1/broker-a-1.log"]
    assert not any("acl" in name or "tools" in name for name in files), "files of accounts are not taken"


# --- the command ------------------------------------------------------------------------------------------------------
def test_a_stopped_cluster_gives_what_it_can(
    state: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        collection, "_commands", lambda *a: {"status": ["status", "--directory", str(state.directory), "-o", "json"]}
    )
    out = tmp_path / "b.tar.gz"
    done = run("--directory", str(state.directory), "--out", str(out), "--timeout", "0.5", "-o", "json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    manifest, files = opened(out)
    assert found["missing"] == manifest["missing"] != []
    reasons = {item["path"]: item["reason"] for item in manifest["missing"]}
    assert "Connection refused" in reasons["answers/broker-a-1/state.json"]
    assert "is not there" in reasons["nodes/broker-a-1/files.json"]
    assert json.loads(files["commands/status.json"])["problems"]["broker-a-1"] == "not running"
    assert {item["path"] for item in manifest["taken"]} == files.keys() - {"manifest.json"}
    assert json.loads(files["machine/versions.json"])["libraries"]["trio"]
    assert out.stat().st_mode & 0o077 == 0, "for the owner only"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


async def test_pages_of_the_http_port_are_taken() -> None:
    async def metrics(request: Request) -> Response:
        return Response.text("rmqha_up 1\n")

    async def not_ready(request: Request) -> Response:
        return Response.text("it has no master yet\n", 503)

    made = Bundle(100_000)
    async with peers(1) as (peer,), trio.open_nursery() as nursery:
        routes: Routes = {"/metrics": metrics, "/readyz": not_ready}
        port = await nursery.start(
            partial(serve, boundary=Boundary(Statistics(), SilentTracer())), routes, "127.0.0.1:0"
        )
        with trio.fail_after(HANG_S):
            await take_answers(made, [BundleTarget("b", NodeKind.BROKER, peer.address, f"127.0.0.1:{port}")], HANG_S)
            await take_answers(made, [BundleTarget("x", NodeKind.BROKER, peer.address, peer.address)], 0.3)
        nursery.cancel_scope.cancel()
    assert made.files["answers/b/metrics"] == b"rmqha_up 1\n"
    assert made.files["answers/b/readyz"] == b"it has no master yet\n"
    reasons = {item["path"]: item["reason"] for item in made.missing}
    assert "answers/x/metrics" in reasons, "something else listens there"


def test_controllers_are_found_by_what_brokers_tell() -> None:
    made = Bundle(1_000_000)
    made.add("answers/b-1/config.properties", b"brokerName=b\ncontrollerAddr=h:1; h:2\n", "test")
    made.add("answers/ns/config.properties", b"controllerAddr=\n", "test")
    made.add("nodes/b-1/node.conf", b"controllerAddr=h:3\n", "test")
    assert collection.configured_controllers(made) == {"h:1", "h:2"}
    commands = collection._commands(None, "n:1", ["g"], ["h:1", "h:2"])
    assert commands["explain-g"] == ["explain", "g", "--controller", "h:1;h:2", "-o", "json"]
    assert "status" not in commands


async def test_live_nodes_are_asked_and_silent_ones_told(tmp_path: Path) -> None:
    async with peers(1) as (peer,):
        peer.replies = {
            Code.RMQHA_GET_HISTORY: (0, {}, b'{"events":[]}'),
            Code.GET_BROKER_CONFIG: (0, {}, b"brokerName=b\nsecretKey=hidden-one\n"),
        }
        made = Bundle(1_000_000)
        targets = [
            BundleTarget("b-1", NodeKind.BROKER, peer.address),
            BundleTarget("b-2", NodeKind.BROKER, "127.0.0.1:9"),
        ]
        with trio.fail_after(HANG_S):
            await take_answers(made, targets, HANG_S)
    assert json.loads(made.files["answers/b-1/history.json"]) == {"events": []}
    assert made.files["answers/b-1/config.properties"] == b"brokerName=b\nsecretKey=[redacted]\n"
    assert {item["path"]: item["reason"] for item in made.missing}["answers/b-1/state.json"].endswith("scripted")
    missing = [item["path"] for item in made.missing]
    assert "answers/b-1/epochs.json" in missing, "a question that a peer does not know is no reason to stop asking"
    assert [path for path in missing if "b-2" in path] == ["answers/b-2/state.json"]


def test_a_name_server_without_a_broker_gives_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all brokers are gone a bundle is wanted most; it once was a traceback."""
    monkeypatch.setattr(collection, "_commands", lambda *a: {})
    with hostile("says something else") as address:
        for out, given in ((tmp_path / "a.gz", ["--namesrv", address]), (tmp_path / "b.gz", [])):
            if not given:
                monkeypatch.setenv("RMQHA_NAMESRV", address)
            done = run(*given, "--out", str(out), "--timeout", "1")
            assert done.exit_code == 0, done.output
            assert any("127.0.0.1" in name for name in opened(out)[1])


def test_a_store_that_may_not_be_looked_at(state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    made = Bundle(1_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", refused)
        take_cluster(made, state)
    reasons = {item["path"]: item["reason"] for item in made.missing}
    assert reasons["nodes/broker-a-1/store"].endswith("broker-a-1/store cannot be looked at: Permission denied")
    assert "nodes/broker-a-2/node.conf" in made.files


def test_sizes_are_bounded_and_the_newest_lines_are_taken(state: ClusterState) -> None:
    log = state.log_path("ns-1")
    log.parent.mkdir()
    log.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(20_000)))
    made = Bundle(bundles.TAIL_BYTES + 20_000)
    take_cluster(made, state)
    tail = made.files["nodes/ns-1/ns-1.log"]
    assert len(tail) <= bundles.TAIL_BYTES
    assert tail.startswith(b"line ")
    assert b"line 19999 " in tail
    made.add("more", bytes(30_000), "test")
    assert "more" not in made.files
    assert made.missing[-1]["path"] == "more"
    assert made.used_bytes <= made.limit_bytes


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("--out", "there.gz"), UsageError, "there.gz is there already"),
        (("--out", "no/such/place.gz"), UsageError, "is no directory"),
        ((), UsageError, "no cluster is known here"),
        (("--directory", "."), UsageError, "holds no cluster"),
        (("--namesrv", "nonsense"), UsageError, "--namesrv"),
        (("--namesrv", "127.0.0.1:9"), UnreachableError, "no name server of 127.0.0.1:9 tells of a group"),
    ],
)
def test_wrong_usage_writes_nothing(
    arguments: tuple[str, ...], error: type[RmqhaError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQHA_DIRECTORY", raising=False)
    (tmp_path / "there.gz").touch()
    with pytest.raises(error, match=words):
        run(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["there.gz"]


def test_files_of_zeros_are_neither_taken_nor_missed(tmp_path: Path) -> None:
    state = stopped_cluster(tmp_path)
    store = state.data_path(state.brokers[0])
    store.mkdir(parents=True, exist_ok=True)
    for name in ("rmqha.reserve", "rmqha.probe-1"):
        (store / name).write_bytes(bytes(1024 * 1024))
    (store / "rmqha.boot").write_bytes(b"{}")
    made = Bundle(10_000_000)
    take_cluster(made, state)
    assert not [item for item in made.missing if "rmqha." in item["path"]]
    taken = {Path(name).name for name in made.files}
    assert "rmqha.boot" in taken and not taken & {"rmqha.reserve", "rmqha.probe-1"}
