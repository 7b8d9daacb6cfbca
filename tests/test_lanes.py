"""`.ci/run` runs every lane whatever fails, and tells; a test that a lane marks lies where the lane looks for it; the
benchmarks are one command, which loads all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[1]
MAKE = """\
#!/bin/sh
echo "$@" >> "$RECORD"
echo "output of $1"
if [ "$1" = "$HANGING" ]; then exec sleep 60; fi
for name in $FAILING; do
  if [ "$1" = "$name" ]; then
    for test in $TELLING; do
      echo "tests/test_$1.py::$test (call)" >> "$RMQHA_FAILURES"
      for line in 1 2 3 4 5 6 7 8 9; do echo "    $line" >> "$RMQHA_FAILURES"; done
    done
    exit 2
  fi
done
"""
LANES = {
    *(
        "lint",
        "types",
        "sbom",
        "sanitize",
        "test-lowest",
        "test-newest",
        "test",
        "sim",
        "fuzz",
        "browser",
        "spec",
        "chaos",
        "abuse",
        "interop",
    ),
}
FOLDERS = {
    "interop": ("interop",),
    "chaos": (
        "chaos",
        "process",
        "cli/test_unreachable.py",
        "spark/test_source.py",
        "spark/sink/test_sink.py",
        "spark/test_connect.py",
    ),
    "abuse": ("abuse",),
    "browser": ("nameserver/web",),
    "sim": ("raft", "simulation", "store/damage/test_crash.py", "scan/test_proof.py"),
    "spec": ("simulation/spec/test_specified.py",),
}


class Run:
    """`.ci/run` with a make that only writes down what it is asked for."""

    def __init__(self, directory: Path, **environment: str) -> None:
        make, record = directory / "make", directory / "record"
        make.write_text(MAKE)
        make.chmod(0o755)
        path = f"{directory}:{os.environ['PATH']}"
        self.done = subprocess.run(
            [str(ROOT / ".ci" / "run")],
            env={**os.environ, "PATH": path, "RECORD": str(record), **environment},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        self.targets = [line.split()[0] for line in record.read_text().splitlines()]

    @property
    def failed(self) -> list[str]:
        """The lanes that the end names."""
        end = re.split(r"^=== \d+ s$", self.done.stdout, flags=re.M)[-1]
        return sorted(re.findall(r"^make (\S+?):? ", end, re.M))


def test_all_lanes_run_and_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.done.returncode == 0, run.done
    assert run.targets[0] == "env"
    assert sorted(run.targets[1:]) == sorted(LANES)
    for name in LANES:
        assert run.done.stdout.count(f"output of {name}\n") == 1
    assert run.failed == []


@pytest.mark.parametrize("failing", ["lint", "sim", "chaos", "types fuzz interop", " ".join(sorted(LANES))])
def test_a_failing_lane_fails_the_run_and_lets_the_others_run(tmp_path: Path, failing: str) -> None:
    """The first, one beside others, the last, some, all."""
    run = Run(tmp_path, FAILING=failing)
    assert run.done.returncode == 1
    assert sorted(run.targets[1:]) == sorted(LANES)
    assert run.failed == sorted(failing.split())


@pytest.mark.parametrize("told", ["", "test_it"])
def test_the_end_says_why_a_lane_failed(tmp_path: Path, told: str) -> None:
    """Of the whole output only the end is kept: the failing tests, or the lane's last words."""
    run = Run(tmp_path, FAILING="types chaos", TELLING=told)
    end = re.split(r"^=== \d+ s$", run.done.stdout, flags=re.M)[-1]
    for name in ("types", "chaos"):
        why = f"  tests/test_{name}.py::test_it (call)" if told else f"  output of {name}"
        assert f"--- make {name}\n" in end and f"{why}\n" in end.partition(f"--- make {name}\n")[2]
    assert "output of fuzz" not in end


def test_the_end_names_all_failing_tests_of_a_lane_first(tmp_path: Path) -> None:
    names = [f"test_{number}" for number in range(30)]
    run = Run(tmp_path, FAILING="chaos", TELLING=" ".join(names))
    _, _, end = run.done.stdout.partition("--- make chaos\n")
    lines = end.splitlines()
    told = [f"  tests/test_chaos.py::{name} (call)" for name in names]
    assert lines[:31] == [*told, "  …"]
    assert lines[31:33] == [told[0], "      1"]
    assert len(lines) < 100


FAILING_MODULE = """
import os
import trio

def test_plain():
    found = {"writable": False}
    assert found["writable"], "three of five hold everything"

def test_of_a_child():
    assert "RMQHA_FAILURES" not in os.environ, "a pytest that a test starts would tell of its failures too"

def test_group():
    async def main():
        async with trio.open_nursery() as nursery:
            with trio.fail_after(0):
                await trio.sleep(1)
    trio.run(main)

def test_long():
    assert list(range(300)) == [], "\\n".join(map(str, range(300)))
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_failing_tests_are_told_in_a_few_lines_each(tmp_path: Path, workers: str) -> None:
    directory, told = tmp_path / "tests", tmp_path / "told"
    directory.mkdir()
    (directory / "test_failing.py").write_text(FAILING_MODULE)
    (directory / "test_broken.py").write_text("import nothing_of_that_name\n")
    (directory / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", workers]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--continue-on-collection-errors", *options, str(directory)],
        cwd=ROOT,
        env=os.environ | {"RMQHA_FAILURES": str(told)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1, done
    blocks = {
        block.split()[0].partition("::")[2]: block for block in re.split(r"^(?=\S)", told.read_text(), flags=re.M)[1:]
    }
    assert blocks.keys() == {"", "test_plain", "test_group", "test_long"}
    assert max(block.count("\n") for block in blocks.values()) <= 15
    assert 'assert found["writable"], "three of five hold everything"' in blocks["test_plain"]
    assert "AssertionError: three of five hold everything" in blocks["test_plain"]
    assert "await trio.sleep(1)" in blocks["test_group"] and "TooSlowError" in blocks["test_group"]
    assert "AssertionError: 0" in blocks["test_long"]
    assert "No module named 'nothing_of_that_name'" in blocks[""]


def test_without_an_environment_nothing_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, FAILING="env")
    assert run.done.returncode == 2
    assert run.targets == ["env"]


def test_a_lane_that_hangs_is_ended_and_the_end_comes_in_time(tmp_path: Path) -> None:
    """The first one: others before it might take the time on a busy machine."""
    run = Run(tmp_path, HANGING="lint", RMQHA_CI_SECONDS="5")
    assert run.done.returncode == 1
    assert run.targets == ["env", "lint"]
    assert run.failed == sorted(LANES)
    assert "make lint: FAILED, ended after its" in run.done.stdout
    assert "make interop: FAILED, not run" in run.done.stdout


@pytest.mark.parametrize("mark", FOLDERS)
def test_what_a_lane_runs_lies_where_it_looks(mark: str) -> None:
    """`make test` leaves out what is marked, and says so; the lane looks into its folders alone, which is quicker to
    collect."""
    folders = [ROOT / "tests" / folder for folder in FOLDERS[mark]]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(rf"mark\.{mark}\b", path.read_text())]
    assert marked
    assert [path for path in marked if not any(path.is_relative_to(folder) for folder in folders)] == []
    assert all(f"tests/{folder}" in recipe_of(mark) for folder in FOLDERS[mark])
    assert f"not {mark}" in recipe_of("test") and f"make {mark} (" in recipe_of("test")


def recipe_of(target: str) -> str:
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    return str(found)


def test_what_a_worker_measured_is_printed(tmp_path: Path) -> None:
    (tmp_path / "test_told.py").write_text("def test_fault(tell):\n    tell('done in 12 ms')\n")
    options = ["-p", "tests.chaos.conftest", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", "1", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert "\ntest_fault: done in 12 ms\n" in done.stdout, done


def test_all_benchmarks_load() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0 and "--only" in done.stdout, done.stderr
