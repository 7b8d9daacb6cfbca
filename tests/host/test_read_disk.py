"""The reading half of the host's disk: short files, other kinds of file, and whose lock it is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk

POSIX_LOCK = "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0); {}"


def test_a_file_is_read_in_pieces_and_ends_short(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"0123456789")
    disk = HostReadDisk(tmp_path)
    assert (disk.list("d"), disk.list("none"), disk.is_directory("d"), disk.exists("d/f")) == (["f"], [], True, True)
    file = disk.open_read("d/f")
    assert (file.size_bytes, file.read_at(8, 5), file.read_at(20, 5)) == (10, b"89", b"")
    os.truncate(tmp_path / "d" / "f", 4)
    assert file.read_at(2, 8) == b"23"
    file.close()
    file.close()
    assert disk.read("d/f", 3) == b"012"


def test_what_is_no_file_is_an_error_and_a_pipe_does_not_hold_the_reader(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "pipe")
    disk = HostReadDisk(tmp_path)
    with pytest.raises(IsADirectoryError):
        disk.open_read("d").read_at(0, 1)
    with pytest.raises(OSError):
        disk.open_read("pipe").read_at(0, 1)
    with pytest.raises(FileNotFoundError):
        disk.read("none", 1)
    with pytest.raises(NotADirectoryError):
        disk.list("pipe")


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.exists` takes it for one from Python 3.14 on."""
    look = os.stat

    def stat(path: str | Path, **how: Any) -> os.stat_result:
        if str(path).endswith("topics.json"):
            raise OSError(errno.EIO, "Input/output error")
        return look(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(Path, "exists", os.path.exists)
    for disk in (HostReadDisk(tmp_path), HostDisk(tmp_path)):
        for ask in (disk.exists, disk.list):
            with pytest.raises(OSError, match="Input/output error"):
                ask("config/topics.json")
        assert not disk.exists("config/none.json")
        assert not disk.exists("a\0b")


def test_the_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    disk = HostReadDisk(tmp_path)
    assert not disk.is_locked("lock")
    assert list(tmp_path.iterdir()) == []
    release = HostDisk(tmp_path).lock("lock")
    assert release is not None
    assert disk.is_locked("lock")
    release()
    assert not disk.is_locked("lock")
    holding = subprocess.Popen(
        [sys.executable, "-c", POSIX_LOCK.format("print(flush=True); sys.stdin.read()"), str(tmp_path / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holding.stdin is not None
    assert holding.stdout is not None
    holding.stdout.readline()
    assert disk.is_locked("lock"), "Java's kind of lock is seen too"
    holding.communicate()
    assert not disk.is_locked("lock")
