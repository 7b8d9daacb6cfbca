"""Files that a user names may be anything that has a name."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import chdir
from pathlib import Path

import pytest

from rmqha.host.text_file import read_text
from rmqha.model.error import UsageError


def test_a_file_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_bytes("brokerName=ä\r\n".encode())
    assert read_text(path, "the configuration") == "brokerName=ä\r\n"
    assert read_text(path, "the configuration", limit_bytes=15) == "brokerName=ä\r\n"


def test_a_mark_at_the_beginning_is_no_text(tmp_path: Path) -> None:
    """Editors of Windows write one; the first key would be called by another name that looks the same."""
    path = tmp_path / "a.conf"
    path.write_bytes(b"\xef\xbb\xbfbrokerName=a\r\n")
    assert read_text(path, "the configuration") == "brokerName=a\r\n"


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text("brokerName=a\n"))
    writer.start()
    assert read_text(path, "the configuration") == "brokerName=a\n"
    writer.join()


def refused(path: Path | str, limit_bytes: int = 100) -> str:
    with pytest.raises(UsageError) as caught:
        read_text(path, "the configuration", limit_bytes)
    return str(caught.value)


def test_what_is_no_text_of_that_size_is_refused_in_a_sentence(tmp_path: Path) -> None:
    long, binary = tmp_path / "long", tmp_path / "binary"
    long.write_bytes(b"x" * 101)
    binary.write_bytes(b"\xff")
    with chdir(tmp_path), socket.socket(socket.AF_UNIX) as listener:  # the whole path may be too long for a socket
        listener.bind("socket")
        assert refused("socket").endswith("socket: it is a device or a socket, not a file")
    assert refused(long) == f"cannot read the configuration {long}: it is longer than 100 bytes"
    assert refused(binary).endswith("binary: it is not UTF-8 text")
    assert refused("/dev/zero") == "cannot read the configuration /dev/zero: it is a device or a socket, not a file"
    assert refused(tmp_path).endswith("Is a directory")
    assert refused(tmp_path / "none").endswith("No such file or directory")
    assert refused("a\0b") == "cannot read the configuration 'a\\x00b': no name of a file has a zero byte"
    assert "\\udcff" in repr(refused("\udcff"))
