"""The cluster that a command changes: asked for where several run in a folder, and named. Every command of click's tree
is one that acts, one that reads, or one that is told its place."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from rmqha.cli import options
from rmqha.cli.main import main
from rmqha.cli.target import target_cluster, target_directory, target_namesrv
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, ClusterState, NodeRecord
from rmqha.ops.local.supervisor import Process, start_stamp
from tests.support.command_cost import SERVERS, arguments_of, command_names

READING = frozenset(
    """
    status health top history explain explain-wait logs timers transactions doctor receive
    describe·cluster describe·group describe·broker describe·topic
    topic·ls topic·list topic·describe consumer·ls consumer·describe consumer·lag consumer·members
    message·find message·get message·track dlq·ls dlq·export
    config·show config·get config·diff acl·user·ls acl·policy·ls quorum·show
    upgrade·check fork·ls fork·show maintenance·show debug·bundle selftest·net
    """.replace("·", "_").split()
)
"""Commands that change nothing; `top` and `receive` act by a key and with --group, which has tests of its own."""
TOLD = frozenset(
    """
    up drill selftest·disk use context·add context·ls context·rm fsck migrate epochs·show epochs·diff
    log·ls log·stat log·cat log·grep log·export log·verify log·kept log·sync spark·query spark·archive spark·restore
    generate·completion generate·grafana generate·k8s generate·prometheus generate·secret generate·spark
    generate·systemd
    """.replace("·", "_").split()
)
"""Commands whose arguments name the files, the context or the new cluster they are about: no running one."""
ACTING = {
    "down": "directory", "start": "directory", "stop": "directory", "restart": "directory", "kill": "directory",
    "purge": "directory",
    "elect": "directory", "join": "directory", "drain": "directory", "remove": "directory",
    "maintenance on": "directory", "maintenance off": "directory", "config set": "directory",
    "fork repair": "directory",
    "send": "namesrv", "topic create": "namesrv", "topic alter": "namesrv", "topic delete": "namesrv",
    "consumer reset": "namesrv", "consumer skip": "namesrv", "consumer delete": "namesrv",
    "consumer create": "namesrv", "consumer alter": "namesrv",
    "message resend": "namesrv", "dlq resend": "namesrv",
    "acl user create": "namesrv", "acl user alter": "namesrv", "acl user rm": "namesrv",
    "acl policy set": "namesrv", "acl policy rm": "namesrv", "acl migrate": "namesrv",
    "bench produce": "namesrv", "bench consume": "namesrv", "bench e2e": "namesrv", "bench replicate": "namesrv",
    "group resize": "controller", "quorum add": "controller", "quorum remove": "controller",
    "quorum transfer": "controller", "quorum snapshot": "controller",
}  # fmt: skip
"""Commands that change a running cluster, each with the option that names it."""
SEVERAL = "rmqha: several clusters run in this folder, in rmqha-data/one and in rmqha-data/two; name one by "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def make(name: str, *, runs: bool, port: int = 1) -> ClusterState:
    """A cluster in rmqha-data, the last that was started; its one process is this one."""
    directory = Path("rmqha-data", name).absolute()
    directory.mkdir(parents=True)
    state = ClusterState(directory, name, "cp", "c.toml", {"ns-1": NodeRecord("ns-1", "namesrv", f"127.0.0.1:{port}")})
    if runs:
        stamp = start_stamp(os.getpid())
        assert stamp is not None
        state.record_process("ns-1", Process(os.getpid(), stamp))
    state.write()
    state.remember_as_last()
    return state


def test_one_that_runs_beside_others_that_do_not_is_the_last() -> None:
    make("one", runs=False)
    two = make("two", runs=True)
    assert target_cluster(None).directory == two.directory


def test_each_command_acts_or_reads_or_is_told_its_place() -> None:
    """A new command belongs into one of the three lists, and by that to what the next test asks of it."""
    assert not READING & TOLD
    known = [*(name.replace("_", " ") for name in READING | TOLD), *ACTING, *SERVERS]
    assert sorted(known) == sorted(command_names())


@pytest.mark.parametrize("name", ACTING)
def test_of_several_that_run_a_script_must_name_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make("one", runs=True)
    make("two", runs=True)
    password = Path("password")
    password.write_text("12345678")
    places = dict.fromkeys(("message", "namesrv", "directory", "store", "port"), "1")
    more = ["--password-file", str(password)] if name == "acl user create" else []
    with pytest.raises(SystemExit) as ended:
        main([*arguments_of(name, places), *more])
    told = capsys.readouterr()
    option = "--directory" if ACTING[name] == "directory" else f"--{ACTING[name]} or $RMQHA_DIRECTORY"
    assert (ended.value.code, told.out, told.err) == (2, "", f"{SEVERAL}{option}\n")


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("receive --topic T --group readers", True),
        ("receive --topic T --max 1", False),
        ("config set 127.0.0.1:1 slaveReadEnable=false", False),
        ("acl migrate accounts.yml --dry-run", False),
    ],
)
def test_who_reads_as_it_is_called_or_names_a_server_is_not_asked(
    words: str, asks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("accounts.yml").write_text("accounts:\n- accessKey: somebody\n  secretKey: 12345678\n")
    make("one", runs=True)
    make("two", runs=True)
    with pytest.raises(SystemExit):
        main(words.split())
    assert capsys.readouterr().err.startswith(SEVERAL) == asks


def test_somebody_at_a_terminal_is_asked_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make("one", runs=True)
    make("two", runs=True)
    monkeypatch.setattr(sys, "stdin", Terminal("three\nrmqha-data/one\n"))
    assert target_cluster(None).name == "one"
    told = capsys.readouterr()
    assert told.out == "" and "Which one" in told.err and "rmqha-data/two" in told.err


def test_who_names_one_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make("one", runs=True), make("two", runs=True)
    assert target_cluster(one.directory).name == "one"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(two.directory))
    assert target_cluster(None).name == "two"


def test_at_a_terminal_the_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make("one", runs=True)
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    target_cluster(None)
    assert told.getvalue() == f"cluster one, data in {one.directory}/NODE\n"


def test_somebody_who_chose_one_acts_on_its_name_servers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make("one", runs=True, port=1)
    make("two", runs=True, port=2)
    monkeypatch.setattr(sys, "stdin", Terminal("rmqha-data/one\nrmqha-data/two\n"))
    assert [target_namesrv(None), target_namesrv("127.0.0.1:3"), target_namesrv(None)] == [
        "127.0.0.1:1",
        "127.0.0.1:3",
        "127.0.0.1:2",
    ]


def test_without_a_cluster_it_is_the_quick_starts() -> None:
    assert target_namesrv(None) == options.DEFAULT_NAMESRV


def test_name_servers_of_a_context_are_named_even_to_a_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RMQHA_NAMESRV", "127.0.0.1:4")
    assert (target_namesrv(None), capsys.readouterr().err) == ("127.0.0.1:4", "name servers 127.0.0.1:4\n")
    assert (target_namesrv("127.0.0.1:5"), capsys.readouterr().err) == ("127.0.0.1:5", "")


def test_the_live_screen_whose_keys_act_is_of_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make("one", runs=True)
    make("two", runs=True)
    monkeypatch.setattr(sys, "stdin", Terminal("rmqha-data/one\n"))
    assert target_directory(None, None, None) == one.directory
    assert target_directory("127.0.0.1:1", None, None) is None
