"""A log that is followed loses nothing: through rotations, cuts in place, and halves of letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.ops.local.followed_file import FollowedFile


def write(path: Path, data: bytes, mode: str = "ab") -> None:
    with path.open(mode) as file:
        file.write(data)


def rotate(path: Path) -> None:
    """As the servers' logs are rotated: the old files move on by one."""
    for number in (2, 1):
        old = path.with_name(f"a.log.{number}")
        if old.exists():
            old.rename(path.with_name(f"a.log.{number + 1}"))
    path.rename(path.with_name("a.log.1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


def test_a_rotation_loses_nothing_that_was_written_before_it(path: Path) -> None:
    write(path, b"1\n")
    with FollowedFile(path) as file:
        assert file.added() == "1\n"
        write(path, b"2\n")
        rotate(path)
        write(path, b"3\n")
        assert file.added() == "2\n3\n"
        write(path, b"4\n")
        rotate(path)
        assert file.added() == "4\n", "the new one is not there yet"
        write(path, b"5\n")
        assert file.added() == "5\n"
        assert file.added() == ""


def test_a_file_may_come_later_and_be_cut_in_place(path: Path) -> None:
    with FollowedFile(path) as file:
        assert file.added() == ""
        write(path, b"12345\n")
        assert file.added() == "12345\n"
        write(path, b"6\n", "wb")
        assert file.added() == "6\n"


def test_a_letter_that_is_written_in_two_parts_is_read_whole(path: Path) -> None:
    whole = "ä".encode()
    write(path, whole[:1])
    with FollowedFile(path) as file:
        assert file.added() == ""
        write(path, whole[1:])
        assert file.added() == "ä"
        write(path, whole[:1])
        assert file.added() == ""
        path.rename(path.with_name("a.log.1"))
        write(path, b"b\n")
        assert file.added() == "\N{REPLACEMENT CHARACTER}b\n"


def test_two_rotations_between_two_looks_lose_nothing(path: Path) -> None:
    write(path, b"1\n")
    rotate(path)
    write(path, b"2\n")
    with FollowedFile(path) as file:
        assert file.added() == "2\n"
        write(path, b"3\n")
        for text in (b"4\n", b"5\n"):
            rotate(path)
            write(path, text)
        assert file.added() == "3\n4\n5\n"
        assert file.added() == ""


def test_a_file_that_was_moved_elsewhere_brings_no_old_ones_back(path: Path) -> None:
    write(path.with_name("a.log.1"), b"old\n")
    write(path, b"1\n")
    with FollowedFile(path) as file:
        assert file.added() == "1\n"
        path.rename(path.with_name("a.log-2026"))
        write(path, b"2\n")
        assert file.added() == "2\n"
