"""The crate of the native kernel: its own tests, its form, what clippy says, and the tool that builds it."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.support import CRATE, lack_of_cargo

native: Any = import_module("tools.native")
COMMANDS = {
    "tests": ["test", "--locked", "--quiet"],
    "form": ["fmt", "--check"],
    "clippy": ["clippy", "--locked", "--quiet", "--all-targets", "--", "-D", "warnings"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_cargo_is_content(name: str) -> None:
    lack = lack_of_cargo()
    if lack:
        pytest.skip(f"{lack}: the crate's own tests are left out")
    found = subprocess.run(["cargo", *COMMANDS[name]], cwd=CRATE, capture_output=True, text=True, check=False)
    if "is not installed" in found.stderr or "no such command" in found.stderr:
        pytest.skip(f"cargo without {COMMANDS[name][0]}: it is left out")
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_cargo_without_its_crates_is_told_from_a_crate_with_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("no cargo")
    assert "cannot fetch" in lack_of_cargo(tmp_path / "nothing downloaded")
    crate = tmp_path / "native"
    shutil.copytree(CRATE, crate, ignore=shutil.ignore_patterns("target"))
    (crate / "Cargo.lock").write_text("no lock file")
    monkeypatch.setattr("tests.kernel.support.CRATE", crate)
    assert lack_of_cargo.__wrapped__(tmp_path / "nothing downloaded") == ""


def test_only_the_border_is_unsafe() -> None:
    found = {path.name for path in (CRATE / "src").glob("*.rs") if "unsafe " in path.read_text()}
    assert found == {"border.rs"}


# --- the tool -------------------------------------------------------------------------------------------------------
@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A crate that a cargo of ours builds: it writes the sources' hash."""
    (tmp_path / "native" / "src").mkdir(parents=True)
    (tmp_path / "rmqha" / "kernel").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs"):
        (tmp_path / "native" / name).write_text(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr(native, "CRATE", tmp_path / "native")
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "rmqha" / "kernel" / "librmqha_kernel.so")
    monkeypatch.setattr(native, "SOURCES", tmp_path / "native" / "target" / "sources")
    return tmp_path


def cargo(tree: Path, script: str) -> None:
    path = tree / "bin" / "cargo"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


BUILDS = "/bin/mkdir -p target/release; echo run >>../runs; /bin/cat src/lib.rs >target/release/librmqha_kernel.so"


def test_it_builds_once(tree: Path) -> None:
    cargo(tree, BUILDS)
    for _ in range(2):
        native.main()
    assert (tree / "runs").read_text() == "run\n"
    (tree / "native" / "src" / "lib.rs").write_text("new")
    native.main()
    assert native.LIBRARY.read_text() == "new"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "there is no cargo"),
        ("echo 'error: no network' >&2; exit 101", "cargo fails (error: no network)"),
        ("exec /bin/sleep 60", "cargo takes longer than 0.2 s"),
    ],
)
def test_it_says_why_not_and_succeeds(
    tree: Path, script: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "LIMIT_S", 0.2 if "sleep" in script else 60)
    if script:
        cargo(tree, script)
    native.main()
    assert f"{words}: brokers run their kernel in Python" in capsys.readouterr().err
    assert not native.LIBRARY.exists()


def test_a_library_of_other_sources_goes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cargo(tree, BUILDS)
    native.main()
    cargo(tree, "exit 1")
    (tree / "native" / "src" / "lib.rs").write_text("new")
    native.main()
    assert "cargo fails (1)" in capsys.readouterr().err
    assert not native.LIBRARY.exists()


def test_a_library_that_was_brought_stays(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native.LIBRARY.write_text("brought")
    native.main()
    assert "stays" in capsys.readouterr().err
    assert native.LIBRARY.read_text() == "brought"
