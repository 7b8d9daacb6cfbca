"""What `down`, `stop`, `kill` and `purge` refuse: directories and processes that are not this user's cluster."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from rmqha.cli.local import nodes
from rmqha.cli.main import cli
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local import cluster_state, launch, supervisor
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.supervisor import Process, start_stamp


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    """A cluster that has stopped."""
    record = NodeRecord("broker-a-1", "broker", "127.0.0.1:10911", group="broker-a")
    found = ClusterState(tmp_path / "data", "c", "cp", "c.toml", {record.name: record})
    (found.node_directory(record.name) / "store").mkdir(parents=True, mode=0o750)
    found.directory.chmod(0o750)
    found.node_directory(record.name).chmod(0o750)
    (found.node_directory(record.name) / "store" / "file").write_text("x")
    found.config_path(record.name).write_text("listenPort=10911\n")
    found.write()
    return found


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def run(state: ClusterState, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--directory", str(state.directory)])


def change(state: ClusterState, **values: Any) -> None:
    path = state.directory / cluster_state.FILE
    document = json.loads(path.read_text())
    document["nodes"][0] |= values
    path.write_text(json.dumps(document))


def refused(result: Result, words: str) -> bool:
    return isinstance(result.exception, UsageError) and words in str(result.exception)


@pytest.mark.parametrize("command", [["down"], ["stop", "broker-a-1"], ["kill", "broker-a-1"]])
def test_nothing_is_called_stopped_that_is_still_there(
    state: ClusterState, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Not even SIGKILL ends a process that waits for a disk that hangs."""
    change(state, pid=stranger.pid, process_start=start_stamp(stranger.pid))
    monkeypatch.setattr(cluster_state, "is_server", lambda *_: True)
    monkeypatch.setattr(nodes, "KILL_TIMEOUT_S", 0)
    monkeypatch.setattr(nodes, "stop_all", lambda processes, _: processes)
    monkeypatch.setattr(nodes, "send_signal", lambda *_: True)
    done = run(state, *command)
    assert isinstance(done.exception, RmqhaError) and f"pid {stranger.pid} is still there" in str(done.exception)
    assert not done.stdout


@pytest.mark.parametrize("place", ["", "cluster.json", "broker-a-1", "broker-a-1/node.conf"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_what_others_could_have_written_is_not_believed(state: ClusterState, place: str, mode: int) -> None:
    path = state.directory / place
    path.chmod(mode)
    for command in (
        ["down"],
        ["purge", "--yes"],
        ["stop", "broker-a-1"],
        ["kill", "broker-a-1"],
        ["start", "broker-a-1"],
    ):
        assert refused(run(state, *command), f"others may write {path}: look at what it holds, then chmod -R go-w"), (
            command
        )
    assert (state.directory / "broker-a-1" / "store" / "file").exists()


def test_a_directory_of_somebody_else_is_not_believed(state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert refused(run(state, "purge", "--yes"), f"{state.directory} belongs to user {os.getuid()}, not to you")


@pytest.mark.parametrize("command", [["down"], ["stop", "broker-a-1"], ["kill", "broker-a-1"]])
def test_a_process_that_is_no_server_of_ours_is_not_ended(
    state: ClusterState, stranger: subprocess.Popen[bytes], command: list[str]
) -> None:
    change(state, pid=stranger.pid, process_start=start_stamp(stranger.pid))
    assert refused(run(state, *command), f"calls process {stranger.pid} broker-a-1, but it does not run ")
    assert stranger.poll() is None


@pytest.mark.parametrize("name", ["../precious", "/tmp/precious", "..", ".", "", 3, "a/b"])
def test_a_name_that_leads_elsewhere_is_no_record(state: ClusterState, tmp_path: Path, name: object) -> None:
    (tmp_path / "precious").mkdir()
    change(state, name=name)
    assert refused(run(state, "purge", "--yes"), "is not a record of `rmqha up`")
    assert (tmp_path / "precious").is_dir()


@pytest.mark.parametrize("pid", [-1, "1", True, 1.5])
def test_a_process_id_is_a_number(state: ClusterState, pid: object) -> None:
    change(state, pid=pid)
    assert refused(run(state, "down"), "is not a record of `rmqha up`")


def test_the_audit_log_is_shown(state: ClusterState) -> None:
    found = run(state, "logs", "broker-a-1", "--audit")
    assert refused(found, "it keeps one with aclEnable or auditLogLevel")
    path = state.log_path("broker-a-1").with_name("audit.log")
    path.parent.mkdir()
    path.write_text('{"a":1}\n{"a":2}\n')
    assert run(state, "logs", "broker-a-1", "--audit", "-n", "1").output == '{"a":2}\n'


def test_purge_follows_no_link(state: ClusterState, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (state.node_directory("broker-a-1") / "store" / "link").symlink_to(precious)
    assert run(state, "purge", "--yes").exit_code == 0
    assert (precious / "file").exists() and not state.directory.exists()


def test_a_start_after_a_killed_repair_has_the_identity(state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store without it would ask the controllers for another id."""
    store = state.node_directory("broker-a-1") / "store"
    store.rename(store.with_name("store.fork-1"))
    (store.with_name(".store.fresh")).mkdir()
    (store.with_name(".store.fresh") / "brokerIdentity").write_text("c#broker-a#1")

    def spawned(arguments: list[str], output: Path) -> NoReturn:
        raise RmqhaError((store / "brokerIdentity").read_text())

    monkeypatch.setattr(launch, "spawn", spawned)
    done = run(state, "start", "broker-a-1")
    assert str(done.exception) == "c#broker-a#1"
    assert "a killed `rmqha fork repair` had put its store aside" in done.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_node_on_a_disk_that_takes_nothing_is_not_started(
    state: ClusterState, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended at once, after it had been called well, and could write nowhere why."""

    def full(dir: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(launch, "TemporaryFile", full)
    done = run(state, "start", "broker-a-1")
    assert isinstance(done.exception, RmqhaError), done.output
    where = state.output_path("broker-a-1").parent
    assert f"nothing can be written in {where}: {os.strerror(code)}; free" in str(done.exception)
    after = ClusterState.read(state.directory)
    assert after is not None and not after.node("broker-a-1").pid


def test_a_node_that_cannot_be_recorded_does_not_stay(state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own disk has room, that of the record has none: no command would ever end it."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    started: list[Process] = []

    def spawn(_: object, output: Path) -> Process:
        started.append(supervisor.spawn(sleeper, output))
        return started[-1]

    def write(_: ClusterState) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "spawn", spawn)
    monkeypatch.setattr(ClusterState, "write", write)
    with pytest.raises(OSError, match="No space left"):
        launch.launch(state, "broker-a-1")
    (process,) = started
    assert not process.alive


def test_a_cluster_on_a_disk_that_became_read_only_can_be_stopped(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux does that after an error of the disk."""
    with state.locked():
        assert refused_by_lock(state)
    real = os.open

    def read_only(path: Any, flags: int, *how: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(state.directory)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *how, **named)

    monkeypatch.setattr(os, "open", read_only)
    assert run(state, "down").output == f"nothing runs in {state.directory}\n"
    with state.locked():
        assert refused_by_lock(state)


def refused_by_lock(state: ClusterState) -> bool:
    return "another rmqha command is at work" in str(run(state, "down").exception)


@pytest.mark.parametrize("mount", [".", "broker-a-1"])
def test_purge_empties_a_disk_and_leaves_its_directory(
    state: ClusterState, mount: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes a mount point is told that it is busy, after all in it has gone."""
    disk = (state.directory / mount).resolve()
    (disk / "lost+found").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self.resolve() == disk)
    done = run(state, "purge", "--yes")
    said = f"all in {state.directory}, a disk of its own" if mount == "." else f"all but {mount} in {state.directory}"
    assert (done.exit_code, done.output) == (0, f"deleted {said}\n")
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


def test_a_link_in_the_place_of_a_node_or_the_lock_is_refused(state: ClusterState, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    lock = state.directory / cluster_state.LOCK
    lock.symlink_to(precious)
    assert refused(run(state, "down"), f"{lock} is a symbolic link")
    lock.unlink()
    node = state.node_directory("broker-a-1")
    node.rename(tmp_path / "moved")
    node.symlink_to(tmp_path / "moved")
    assert refused(run(state, "purge", "--yes"), f"{node} is a symbolic link")
    assert precious.read_text() == "x" and (tmp_path / "moved" / "store" / "file").exists()


def test_a_note_of_the_last_cluster_that_others_may_write_is_not_believed(
    state: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cluster_state.DIRECTORY_VARIABLE, raising=False)
    state.remember_as_last()
    assert CliRunner().invoke(cli, ["down"]).output == f"nothing runs in {state.directory}\n"
    cluster_state.LAST_UP.parent.chmod(0o777)
    assert refused(CliRunner().invoke(cli, ["down"]), "others may write rmqha-data")


def test_what_commands_make_is_closed_to_others_whatever_the_umask(state: ClusterState) -> None:
    before = os.umask(0)
    try:
        with state.locked():
            state.write()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in state.directory.iterdir() if path.is_file()}
    assert modes == {"cluster.json": 0o640, "cluster.lock": 0o640}
