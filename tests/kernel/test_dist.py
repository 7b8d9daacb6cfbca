"""Wheels with the native kernel: what they hold, and how they are called."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.kernel_choice import LIBRARY, load_kernel
from tests.kernel.support import kernel_named

dist: Any = import_module("tools.release.dist")


def elf(machine: int, *symbols: bytes) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(44) + b"\0".join([b"", *symbols, b""])


@pytest.mark.parametrize(
    ("data", "tag"),
    [
        (elf(62, b"GLIBC_2.2.5", b"GLIBC_2.34", b"GLIBC_2.9"), "manylinux_2_34_x86_64"),
        (elf(183, b"GLIBC_2.17"), "manylinux_2_17_aarch64"),
        (elf(62), "manylinux_2_17_x86_64"),
    ],
)
def test_a_wheel_s_tag_says_what_its_library_needs(tmp_path: Path, data: bytes, tag: str) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    assert dist.platform_tag(path) == tag


@pytest.mark.parametrize("data", [b"", b"no library", elf(3)])
def test_what_is_no_library_is_one_sentence(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    assert dist.main([str(tmp_path / "dist"), str(path)]) == 1
    assert "is no library for x86_64 or aarch64: make native builds one" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_the_wheel_holds_the_library_and_pip_takes_it(tmp_path: Path) -> None:
    kernel_named("native")
    assert dist.main([str(tmp_path / "dist")]) == 0
    plain, native = sorted((tmp_path / "dist").iterdir(), key=lambda path: "linux" in path.name)
    assert plain.name.endswith("-py3-none-any.whl") and native.name.endswith(f"{dist.platform_tag(LIBRARY)}.whl")
    with zipfile.ZipFile(plain) as before, zipfile.ZipFile(native) as after:
        added = set(after.namelist()) - set(before.namelist())
        assert added == {str(dist.LIBRARY)}
        assert after.read(str(dist.LIBRARY)) == LIBRARY.read_bytes()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(tmp_path / "there"), str(native)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    load_kernel(tmp_path / "there" / dist.LIBRARY)
