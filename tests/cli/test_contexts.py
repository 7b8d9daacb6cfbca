"""The cluster that a command asks: its options say, else $RMQHA_NAMESRV, the context in use, the cluster directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli import contexts, options
from rmqha.cli.contexts import Context, Contexts
from rmqha.cli.main import main
from rmqha.cli.settings.context import context, use
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from tests.support.command import forget_home, rmqha_in

PROD = Context("10.0.0.1:9876;10.0.0.2:9876", "10.0.0.1:9878")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(contexts.NAMESRV_VARIABLE, raising=False)
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(group: object, *arguments: str) -> str:
    done = CliRunner().invoke(group, arguments, catch_exceptions=False)  # type: ignore[arg-type]
    assert done.exit_code == 0, done.output
    return done.stdout


@given(
    saved=st.dictionaries(st.text(min_size=1), st.builds(Context, st.just("h:1"), st.sampled_from(["", "h:2"]))),
    current=st.text(),
)
def test_what_is_saved_is_read_again(saved: dict[str, Context], current: str) -> None:
    contexts.write(Contexts(current, saved))
    assert contexts.read() == Contexts(current, saved)


def test_a_context_is_saved_used_and_forgotten(home: Path) -> None:
    keys = home / "keys.conf"
    keys.write_text("")
    run(context, "add", "prod", "--namesrv", PROD.namesrv, "--security", "keys.conf")
    assert contexts.read().saved["prod"] == Context(PROD.namesrv, "", str(keys))
    assert contexts.default_context() is None
    assert run(use, "prod") == f"prod: {PROD.namesrv}\n"
    assert contexts.default_context() == contexts.read().saved["prod"]
    assert json.loads(run(context, "ls", "-o", "json"))["current"] == "prod"
    run(use, "--none")
    assert contexts.default_context() is None
    run(use, "prod")
    run(context, "rm", "prod")
    assert contexts.read() == Contexts()


def test_the_order_in_which_a_cluster_is_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeRecord("ns-1", NodeKind.NAMESRV.value, "127.0.0.1:1", "127.0.0.1:2")
    (home / "here").mkdir()
    ClusterState(home / "here", "here", "cp", "c.toml", {"ns-1": node}).write()
    assert options.resolve_namesrv(None) == options.DEFAULT_NAMESRV
    monkeypatch.setenv(DIRECTORY_VARIABLE, "here")
    assert options.resolve_namesrv(None) == "127.0.0.1:1"
    assert options.resolve_controllers(None) == ["127.0.0.1:2"]
    contexts.write(Contexts("prod", {"prod": PROD}))
    assert options.resolve_namesrv(None) == PROD.namesrv
    assert options.resolve_controllers(None) == [PROD.controller]
    assert options.find_cluster(None, None, Path("here")).name == "here"
    monkeypatch.setenv(contexts.NAMESRV_VARIABLE, "10.9.9.9:9876")
    assert options.resolve_namesrv(None) == "10.9.9.9:9876"
    assert options.resolve_namesrv("10.0.0.7:1") == "10.0.0.7:1"
    with pytest.raises(UsageError, match="--directory names a cluster of this machine"):
        options.find_cluster("10.0.0.7:1", None, Path("here"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no contexts"),
        ("[]", "holds no contexts"),
        ('{"version":1,"current":"","contexts":{"a":{"namesrv":3}}}', "holds no contexts"),
        ('{"version":1,"current":"","contexts":{"a":{"port":"h:1"}}}', "holds no contexts"),
        ('{"version":1,"current":"","contexts":{"a":{"namesrv":"nonsense"}}}', "is not an address"),
        ('{"version":2,"current":"","contexts":{}}', "is of version 2"),
    ],
)
def test_a_file_that_is_none_of_ours_is_a_sentence(text: str, said: str) -> None:
    file = contexts.path()
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        contexts.read()


@pytest.mark.parametrize(
    "arguments",
    [
        ["use", "nowhere"],
        ["use", "prod", "--none"],
        ["context", "rm", "nowhere"],
        ["context", "add", "x"],
        ["context", "add", "x", "--namesrv", "nonsense"],
        ["context", "add", "x", "--namesrv", "h:1", "--security", "nowhere.conf"],
        ["status", "--namesrv", "h:1", "--directory", "here"],
        ["elect", "broker-a", "--controller", "nonsense"],
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.err.startswith("rmqha: ") and told.err.count("\n") == 1


def test_a_user_without_a_home_directory_has_no_contexts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_home(monkeypatch)
    assert contexts.default_context() is None
    assert rmqha_in(home, "context", "ls").returncode == 0
    done = rmqha_in(home, "context", "add", "prod", "--namesrv", PROD.namesrv)
    assert done.returncode == 2 and done.stderr == (
        "rmqha: there is no home directory to save contexts in: set XDG_CONFIG_HOME to a directory of yours\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--directory", "~nobody-of-that-name/x"),
        ("up", "--directory", "~nobody-of-that-name/x"),
        ("context", "add", "prod", "--namesrv", PROD.namesrv, "--security", "~nobody-of-that-name/x"),
    ],
)
def test_the_home_directory_of_an_unknown_user_is_refused_in_a_sentence(home: Path, arguments: tuple[str, ...]) -> None:
    done = rmqha_in(home, *arguments)
    assert done.returncode == 2 and done.stderr == (
        "rmqha: cannot find ~nobody-of-that-name/x: this machine knows no home directory for ~nobody-of-that-name; "
        "write the path in full\n"
    )
