"""Files that somebody wrote by hand, or that a disk has spoilt: each command that reads one ends in one sentence that
names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqha.cli import contexts
from rmqha.host.text_file import MAX_TEXT_BYTES
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, LAST_UP, ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from tests.support.command import rmqha_in


def foreign_bytes(path: Path) -> None:
    path.write_bytes(b"name=\xff\xfe\n")


def directory(path: Path) -> None:
    path.mkdir(0o755)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_TEXT_BYTES + 1)


def unreadable(path: Path) -> None:
    """A file of the kernel's that gives EIO, as a failing disk does, to root too."""
    path.symlink_to("/proc/self/mem")


SPOILED = [foreign_bytes, directory, huge, unreadable]
BROKER = "brokerName=a\nbrokerClusterName=c\nlistenPort=10911\nnamesrvAddr=127.0.0.1:1\n"

FILES: dict[str, tuple[str, ...]] = {
    "given": ("broker", "--check", "-c", "given"),
    "given of a controller": ("controller", "--check", "-c", "given of a controller"),
    "given of a name server": ("namesrv", "--check", "-c", "given of a name server"),
    "secret": ("broker", "--check", "-c", "broker.conf"),
    "accounts": ("controller", "--check", "-c", "controller.conf"),
    "keys": ("--security", "keys", "status", "--namesrv", "127.0.0.1:1"),
    "cluster.toml": ("up", "cluster.toml"),
    "config/rmqha/contexts.json": ("context", "ls"),
    "rmqha-data/last-up": ("status",),
    "data/cluster.json": ("status", "--directory", "data"),
    "data/broker-a-1/node.conf": ("status", "--directory", "data"),
}
"""Each with the command that reads it."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with a cluster that has stopped, where all those files are missing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (contexts.NAMESRV_VARIABLE, DIRECTORY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "broker.conf").write_text(f"{BROKER}haSecretFile={tmp_path / 'secret'}\n")
    (tmp_path / "controller.conf").write_text(f"aclEnable=true\naclFile={tmp_path / 'accounts'}\n")
    record = NodeRecord("broker-a-1", NodeKind.BROKER.value, "127.0.0.1:1", group="broker-a")
    data = tmp_path / "data"
    for made in (LAST_UP.parent, Path("data"), Path("data/broker-a-1"), Path("config/rmqha")):
        (tmp_path / made).mkdir(0o700, parents=True)
    ClusterState(data, "c", "cp", "c.toml", {record.name: record}).write()
    return tmp_path


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("name", FILES)
def test_a_spoilt_file_is_told_in_one_sentence(place: Path, name: str, spoil: Callable[[Path], None]) -> None:
    path = place / name
    path.unlink(missing_ok=True)
    mask = os.umask(0o077)
    try:
        spoil(path)
    finally:
        os.umask(mask)
    done = rmqha_in(place, *FILES[name])
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("rmqha: ") and name in line, line
    assert len(line) < 400 + 2 * len(str(place)), "the file is not shown whole"
    assert spoil is not directory or "Is a directory" in line, line


def test_an_endless_line_is_not_told_whole(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("x" * 100_000)
    done = rmqha_in(tmp_path, "broker", "--check", "-c", "conf")
    assert done.returncode == 2 and len(done.stderr) < 400 and "expected key=value, found 'xxx" in done.stderr
