"""The `rmqha` command as a user meets it: exit codes, one sentence for every slip, and a fast start."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

import rmqha as package
from rmqha.cli.main import COMMANDS, SECTIONS, SERVERS, WITHOUT_ASSERTIONS, exit_code, sentence
from rmqha.ops.local.cluster_file import load
from rmqha.ops.local.cluster_state import QUICKSTART
from tests.support.command import rmqha_in
from tests.support.patience import HANG_S

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["statu"], "there is no command 'statu', did you mean status?"),
        (["up", "none.toml"], "cannot read the cluster file none.toml"),
        (["status"], "no cluster is known here"),
        (["down", "--directory", "nowhere"], "nowhere holds no cluster"),
        (["kill", "broker-a-1"], "no cluster is known here"),
        (["history"], "no cluster is known here"),
        (["elect", "broker-a"], "no cluster is known here"),
        (["purge"], "no cluster is known here"),
        (["logs", "ns-1"], "no cluster is known here"),
        (["upgrade", "check", "--to", "abc"], "--to 'abc' is no release: write all of its numbers, such as 0.2.0"),
        (["upgrade", "check", "--to", "0.2"], "--to '0.2' is no release"),
        (["upgrade", "check", "--to", "0.2.0rc1"], "no cluster is known here"),
    ],
)
def test_wrong_usage_is_one_sentence_and_writes_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = rmqha_in(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("rmqha: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["topic", "create"], "rmqha: missing argument 'TOPIC'; see rmqha topic create --help"),
        (
            ["group", "resize", "broker-a", "three"],
            "rmqha: invalid value for 'N': 'three' is not a whole number; see rmqha group resize --help",
        ),
        (
            ["health", "--timeout", "x"],
            "rmqha: invalid value for '--timeout': 'x' is not a number; see rmqha health --help",
        ),
        (
            ["status", "-o", "xml"],
            "rmqha: invalid value for '-o' / '--output': 'xml' is not one of .*; see rmqha status --help",
        ),
        (["--frob"], "rmqha: no such option:? '?--frob'?.*; see rmqha --help"),
        (
            ["status", "--direktory", "x"],
            "rmqha: no such option:? '?--direktory'?.? Did you mean .*; see rmqha status --help",
        ),
        (["log", "nosuch"], "rmqha: no such command 'nosuch'; see rmqha log --help"),
        (["bench", "produce", "--rate", "0"], "rmqha: invalid value for '--rate': .*; see rmqha bench produce --help"),
    ],
)
def test_wrong_options_are_one_sentence_too(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = rmqha_in(tmp_path, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(f"{sentence}\n", done.stderr), done.stderr


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-O", "-P", "-m", "rmqha", "broker"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (result.returncode, result.stderr) == (2, f"rmqha: {WITHOUT_ASSERTIONS}\n")


def test_a_group_of_commands_alone_shows_its_help(tmp_path: Path) -> None:
    done = rmqha_in(tmp_path, "quorum")
    assert done.returncode == 2
    assert "Commands:" in done.stderr


def test_up_refuses_a_foreign_directory_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    done = rmqha_in(tmp_path, "up", str(CONF / "quickstart.toml"), "--directory", "photos")
    assert done.returncode == 2
    assert "is not empty and has no cluster.json" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cat.jpg", "photos"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 1}', '{"version": 99, "nodes": []}', '{"version": 1, "nodes": [3]}']
)
def test_a_cluster_record_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    done = rmqha_in(tmp_path, "status", "--directory", ".")
    assert done.returncode == 2
    assert "cluster.json is " in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_lists_all_commands_without_loading_them(tmp_path: Path) -> None:
    program = """
import sys
from rmqha.cli.main import main
try:
    main(["--help"])
finally:
    print(sorted(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    for name in ("up", "status", "broker", "namesrv", "controller", "spark", "send"):
        assert f"\n  {name} " in done.stdout
    assert "'trio'" not in done.stderr
    assert "'rich'" not in done.stderr


def test_each_command_stands_below_one_heading_of_the_help() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted([*COMMANDS, *SERVERS])


def test_the_cluster_file_of_the_package_is_the_one_in_conf() -> None:
    """`rmqha up` without FILE works from a wheel, where there is no conf/."""
    assert QUICKSTART.is_relative_to(Path(package.__file__).parent)
    assert QUICKSTART.read_bytes() == (CONF / "quickstart.toml").read_bytes()
    assert load(QUICKSTART).name == "quickstart"


@pytest.mark.parametrize("command", ["broker", "namesrv", "controller"])
def test_servers_load_no_rich_numpy_or_pyspark(tmp_path: Path, command: str) -> None:
    program = f"""
import json, sys
from rmqha.cli.main import cli
assert cli.get_command(None, {command!r}) is not None
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    loaded = set(json.loads(done.stdout))
    assert loaded.isdisjoint({"rich", "numpy", "pyspark", "pyarrow", "pandas"}), loaded
    # of importlib.metadata, which only the commands of the packages above need
    assert command != "broker" or loaded.isdisjoint({"zipfile", "email"}), loaded


@pytest.mark.parametrize("command", ["broker", "namesrv", "controller"])
def test_a_server_with_an_unknown_key_says_the_nearest(tmp_path: Path, command: str) -> None:
    (tmp_path / "node.conf").write_text("listenAdress=127.0.0.1\n")
    done = rmqha_in(tmp_path, command, "-c", "node.conf")
    assert done.returncode == 2
    assert "node.conf: unknown key listenAdress; the nearest known key is listenAddress" in done.stderr
    assert done.stderr.count("\n") == 1


INTERRUPTED_IMPORT = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from rmqha.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


CLOSED_STREAMS = """
import os, subprocess, sys
for number in range(3):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from rmqha.__main__ import open_what_is_closed
open_what_is_closed()
print("nobody hears this", file=sys.stderr)
child = subprocess.run([sys.executable, "-c", "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"])
with open(sys.argv[1], "w") as told:
    print(*(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), child.returncode, file=told)
"""


def test_no_file_gets_the_number_of_a_standard_stream_that_was_closed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    subprocess.run([sys.executable, "-c", CLOSED_STREAMS, str(told)], timeout=HANG_S, check=True)
    assert told.read_text() == "/dev/null /dev/null /dev/null 0\n"


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "k8s"]])
def test_a_full_disk_under_the_output_is_told_as_that_of_the_output(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run_process(tmp_path, arguments, full)
    assert (done.returncode, done.stderr) == (1, "rmqha: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; raise the limit of open files",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/data/a"),
            "/data/a: No space left on device; free some space on that disk",
        ),
        (OSError(errno.EROFS, "Read-only file system", "a", None, "b"), "a: Read-only file system"),
        (
            RuntimeError("can't start new thread"),
            "cannot start a thread; raise the limits of processes (ulimit -u, TasksMax of its unit, pids.max) and of"
            " memory (ulimit -v)",
        ),
        (
            MemoryError(),
            "there is no memory left; raise the limits of memory (ulimit -v, MemoryMax of its unit, memory.max)",
        ),
    ],
)
def test_an_error_of_the_system_is_a_sentence_that_says_what_to_do(error: Exception, text: str) -> None:
    assert (exit_code(error), sentence(error)) == (1, text)


def test_a_bug_is_no_sentence() -> None:
    assert exit_code(RuntimeError("dictionary changed size during iteration")) is None


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path: Path, unbuffered: str) -> None:
    """1 would say that something is wrong with the cluster, where the command is wrong."""
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "rmqha", "no-such-command"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken, Path("/dev/full").open("w") as full:
        for stream in (full, broken):
            done = subprocess.run(command, cwd=tmp_path, stderr=stream, env=environment, timeout=HANG_S, check=False)
            assert done.returncode == 2


SAYS_BOTH = """
import sys
import click
import rmqha.cli.main as cli
@click.command()
def both():
    click.echo("it begins", err=True)
    click.echo("it is done")
    click.echo("it ends", err=True)
cli.COMMANDS["up"] = ("__main__:both", "")
cli.main(["up"])
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_messages_that_nobody_takes_end_no_command(tmp_path: Path, unbuffered: str) -> None:
    """Else an `up` would be undone halfway, for want of a reader."""
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken, Path("/dev/full").open("w") as full:
        for stream in (full, broken):
            command, pipe = [sys.executable, "-c", SAYS_BOTH], subprocess.PIPE
            done = subprocess.run(
                command, cwd=tmp_path, stdout=pipe, stderr=stream, env=environment, timeout=HANG_S, check=False
            )
            assert (done.returncode, done.stdout) == (0, b"it is done\n")


def test_a_reader_that_is_gone_ends_a_command_without_a_word(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = run_process(tmp_path, ["--help"], pipe)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_current_directory_that_was_removed_is_a_sentence(tmp_path: Path) -> None:
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from rmqha.__main__ import main; main()"
    command = [sys.executable, "-c", gone, "log", "ls", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    sentence = "rmqha: the current directory was removed; change to one that is there\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_each_question_is_asked_in_one_place_which_names_the_option() -> None:
    folder = Path(package.__file__).parent / "cli"
    asking = [path.name for path in sorted(folder.rglob("*.py")) if "click.confirm" in path.read_text()]
    assert asking == ["options.py"], "where a script cannot answer, --yes is named: use rmqha.cli.options.confirm"


def run_process(directory: Path, arguments: list[str], output: TextIO) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmqha", *arguments]
    return subprocess.run(
        command, cwd=directory, stdout=output, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False
    )
