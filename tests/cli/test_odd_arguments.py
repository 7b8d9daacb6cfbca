"""Every option and argument of every command, given what no one should: the answer is a sentence, never a traceback.

The cases are made from the commands themselves, so that a new one cannot be forgotten."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmqha.cli.main import cli, main
from tests.support.patience import HANG_S

HALF = "\udcff\udcfe"
"""What Python makes of the bytes FF FE on a command line."""
"""A command that reads for ever is ended by SIGALRM, and the test run with it."""


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


ALL = dict(commands())
SLOTS = [
    (path, parameter.name or "")
    for path, command in ALL.items()
    for parameter in command.params
    if not getattr(parameter, "is_flag", False)
]


def is_path(path: tuple[str, ...], name: str) -> bool:
    found = parameter_of(path, name)
    return isinstance(found.type, click.Path) or (isinstance(found, click.Option) and found.metavar == "FILE")


def parameter_of(path: tuple[str, ...], name: str) -> click.Parameter:
    return next(item for item in ALL[path].params if item.name == name)


def plain(parameter: click.Parameter) -> str:
    """Something that its type takes."""
    match parameter.type:
        case click.Choice(choices=choices):
            return str(choices[0])
        case click.types.IntParamType() | click.types.FloatParamType():
            return "1"
        case _:
            return "none:1" if parameter.name in ("namesrv", "controllers", "address") else "none"


def call(path: tuple[str, ...], name: str, value: str) -> list[str]:
    """The command with what it must have, and with this value in one place."""
    words, options = list(path), list[str]()
    for parameter in ALL[path].params:
        chosen = parameter.name == name
        if not (chosen or parameter.required):
            continue
        given = value if chosen else plain(parameter)
        if isinstance(parameter, click.Argument):
            words.append(given)
        else:
            options += [parameter.opts[0], given]
    return [*words[: len(path)], *options, "--", *words[len(path) :]] if path else options


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what it says; an exception that is no exit is a traceback for the user."""
    signal.alarm(HANG_S)
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        signal.alarm(0)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.err


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a cluster, and no name server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQHA_DIRECTORY", raising=False)
    monkeypatch.delenv("RMQHA_SECURITY", raising=False)
    return tmp_path


def label(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("path", "name"), SLOTS, ids=label)
def test_bytes_that_are_no_text_are_refused(
    path: tuple[str, ...], name: str, nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(call(path, name, HALF), capsys)
    said.encode()
    is_name = isinstance(parameter_of(path, name).type, click.Path)
    if code == 0 and is_name:
        # a file of that name has been written
        assert [item.name for item in nobody.iterdir()] == [HALF]
        return
    assert code in (1, 2), said
    assert said.startswith("rmqha: ") and said.count("\n") == 1, said
    assert list(nobody.iterdir()) == []
    assert is_name or "\\udcff" in said, said


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A device that never ends. For root it is none of the machine's: a command that is wrong may replace it."""
    path = tmp_path_factory.mktemp("devices") / "zero"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        return "/dev/zero"
    return str(path)


@pytest.mark.parametrize(("path", "name"), [slot for slot in SLOTS if is_path(*slot)], ids=label)
def test_a_file_that_never_ends_is_refused(
    path: tuple[str, ...], name: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(call(path, name, device), capsys)
    assert Path(device).is_char_device(), "still there"
    assert code in (1, 2), said
    assert said.startswith("rmqha: ") and said.count("\n") == 1, said


def test_a_name_that_is_no_text_is_printed_as_escapes(tmp_path: Path) -> None:
    store = tmp_path / os.fsdecode(b"st\xffre")
    (store / "commitlog").mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "rmqha", "epochs", "show", str(store), "-o", "json"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"st\\udcffre" in done.stdout
