"""What `rmqha up` refuses before it writes anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_file import ClusterSpec, parse, properties_text
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.preflight import REST_COUNT, cannot_bind, check_cluster, free_ports
from rmqha.ops.local.supervisor import Process, start_stamp

TEXT = """
[cluster]
name = "c"
[namesrv]
listenPort = {namesrv}
[controllers]
listenPort = {controller}
[[group]]
name = "broker-a"
replicas = 2
listenPort = {broker}
"""


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    base = free_ports(40)
    text = TEXT.format(namesrv=base, controller=base + 1, broker=base + 10)
    return parse("my.toml", tomllib.loads(text), directory=tmp_path / "data")


@pytest.fixture
def taken(spec: ClusterSpec) -> Iterator[int]:
    """The HA port of the second broker, in use."""
    port = spec.node("broker-a-2").ports[1].number
    with socket.create_server(("127.0.0.1", port)):
        yield port


def test_a_new_cluster_passes_and_nothing_is_written(spec: ClusterSpec, tmp_path: Path) -> None:
    assert check_cluster(spec) is None
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_names_node_and_key(spec: ClusterSpec, taken: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check_cluster(spec)
    assert str(raised.value) == (
        f"port {taken} on 127.0.0.1, wanted by broker-a-2, is in use; free it or change [[group]] listenPort in my.toml"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_something_else_is_refused(spec: ClusterSpec) -> None:
    spec.directory.mkdir()
    (spec.directory / "photo.jpg").touch()
    with pytest.raises(UsageError, match="is not empty and has no cluster"):
        check_cluster(spec)


def test_a_new_disk_is_an_empty_directory(spec: ClusterSpec) -> None:
    (spec.directory / "lost+found").mkdir(parents=True)
    assert check_cluster(spec) is None


def test_what_an_up_that_was_cut_short_has_left_is_used_and_a_nodes_data_is_not(spec: ClusterSpec) -> None:
    """A full disk, or a kill: there was no record yet, and neither `up` nor `purge` took the directory."""
    node = spec.directory / spec.nodes[0].name
    node.mkdir(parents=True)
    for begun in (spec.directory / "cluster.lock", spec.directory / "ha.secret", node / "node.conf.tmp"):
        begun.touch()
    assert check_cluster(spec) is None
    (node / "store").mkdir()
    with pytest.raises(UsageError, match="is not empty and has no cluster"):
        check_cluster(spec)


def test_a_file_in_the_place_of_the_directory_is_refused(spec: ClusterSpec) -> None:
    spec.directory.touch()
    with pytest.raises(UsageError, match="is not a directory"):
        check_cluster(spec)


def test_a_directory_that_cannot_be_written_is_refused(spec: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot be written by this user"):
        check_cluster(spec)


def recorded(spec: ClusterSpec) -> ClusterState:
    spec.directory.mkdir()
    state = ClusterState.of(spec)
    state.write()
    return state


def test_the_directory_of_another_cluster_is_refused(spec: ClusterSpec) -> None:
    recorded(replace(spec, name="other"))
    with pytest.raises(UsageError, match="is the directory of cluster other"):
        check_cluster(spec)


def test_a_store_of_another_group_is_refused(spec: ClusterSpec) -> None:
    recorded(spec)
    store = spec.directory / "broker-a-2" / "store"
    store.mkdir(parents=True)
    (store / "brokerIdentity").write_text("c#broker-a#2")
    check_cluster(spec)
    (store / "brokerIdentity").write_text("c#broker-b#2")
    with pytest.raises(UsageError, match="a broker of c/broker-b, not of c/broker-a"):
        check_cluster(spec)


def test_what_runs_must_be_what_the_file_says(spec: ClusterSpec, taken: int) -> None:
    state = recorded(spec)
    own = Process(os.getpid(), start_stamp(os.getpid()) or "")
    state.record_process("broker-a-2", own)
    config = state.config_path("broker-a-2")
    config.parent.mkdir()
    config.write_text(properties_text(spec, spec.node("broker-a-2")))
    found = check_cluster(spec)
    assert found is not None, "a running node keeps its ports"
    assert found.node("broker-a-2").alive
    config.write_text(config.read_text().replace("haMode=cp", "haMode=ap"))
    with pytest.raises(UsageError, match="broker-a-2 runs with another configuration"):
        check_cluster(spec)
    with pytest.raises(UsageError, match="broker-a-2 runs but is not in my"):
        check_cluster(replace(spec, nodes=spec.nodes[:2]))


def test_nobody_else_is_given_the_ports_of_a_server_that_is_being_restarted() -> None:
    """Both processes begin their search at the same place, and nothing listens at that moment."""
    base = free_ports(25)
    imports = "import os; from rmqha.ops.local.preflight import free_ports as f"
    script = f"{imports}; os.getpid = lambda: {os.getpid()}; print(f(25))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    other = int(done.stdout)
    assert not set(range(base, base + 25)) & set(range(other, other + 25))


def test_ports_are_not_given_twice_before_a_server_may_listen_there() -> None:
    """Nothing listens on any of them. Those that were given long ago come again, so that a process takes few."""
    given = [set(range(base, base + 30)) for base in (free_ports(25) for _ in range(5 * REST_COUNT))]
    for place, ports in enumerate(given):
        assert not any(ports & later for later in given[place + 1 : place + 1 + REST_COUNT])
    assert len(set.union(*given)) <= 2 * REST_COUNT * 30


NAMED = {
    "six": [(socket.AF_INET6, "::1")],
    "both": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
    "half": [(socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "127.0.0.1")],
    "nowhere": [(socket.AF_INET6, "2001:db8::1")],
    "elsewhere": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "192.0.2.1")],
}
"""Hosts of /etc/hosts."""


@pytest.mark.parametrize(
    ("host", "taken_at", "reason"),
    [
        ("six", "::1", "is in use"),
        ("both", "::1", "is in use"),
        ("both", "127.0.0.1", "is in use"),
        ("six", "127.0.0.1", ""),
        ("half", "::1", ""),
        ("half", "127.0.0.1", "is in use"),
        ("nowhere", "::1", "cannot be bound: Cannot assign requested address"),
        ("elsewhere", "::1", "cannot be bound: Cannot assign requested address"),
    ],
)
def test_a_name_is_looked_at_by_all_its_numbers(
    host: str, taken_at: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = socket.AF_INET6 if ":" in taken_at else socket.AF_INET
    with socket.create_server((taken_at, 0), family=family) as server:
        port = server.getsockname()[1]
        rows = [(kind, socket.SOCK_STREAM, 6, "", (number, port)) for kind, number in NAMED[host]]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: rows)
        assert cannot_bind(host, port) == reason
