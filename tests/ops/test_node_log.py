"""The log of a node elsewhere is shown as its file is, through any number of pieces and a rotation."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio

from rmqha.host.log_files import LogFiles
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.error import RemoteError, UnreachableError
from rmqha.ops.node_log import MAX_TAIL_BYTES, PIECE_BYTES, NodeLog
from rmqha.wire.command import Command


class Node:
    """Answers as a server does that has this log."""

    def __init__(self, path: Path) -> None:
        self.files = LogFiles(path, None)
        self.asked_count = 0

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        self.asked_count += 1
        return self.files.answer(command)

    def log(self, *, audit: bool = False) -> NodeLog:
        return NodeLog(cast(RemotingClient, self), "10.0.0.1:10911", audit=audit)


def write(path: Path, text: str, mode: str = "w") -> None:
    with path.open(mode) as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.log"


@pytest.mark.parametrize("count", [0, 1, 50, 3_000, 10_000])
async def test_the_last_lines_are_the_files(path: Path, count: int) -> None:
    lines = [f"{number} {'x' * (number % 90)}" for number in range(5_000)]
    write(path, "".join(line + "\n" for line in lines))
    node = Node(path)
    shown, last = await node.log().last_lines(count)
    assert shown == (lines[-count:] if count else [])
    assert last.next_offset == last.end == sum(map(len, lines)) + len(lines)
    assert count > 50 or node.asked_count == 1, "a few lines take one request"


async def test_one_endless_line_is_not_fetched_whole(path: Path) -> None:
    write(path, "x" * (2 * MAX_TAIL_BYTES))
    node = Node(path)
    (line,), _ = await node.log().last_lines(1)
    assert len(line) == MAX_TAIL_BYTES
    assert node.asked_count == MAX_TAIL_BYTES // PIECE_BYTES


async def test_what_is_added_follows_through_a_rotation(path: Path) -> None:
    write(path, "one\n")
    log = Node(path).log()
    _, last = await log.last_lines(1)
    write(path, "two\n" + "x" * PIECE_BYTES, "a")
    last = await log.added(last)
    assert last.data == b"two\n" + b"x" * (PIECE_BYTES - 4)
    last = await log.added(last)
    assert last.data == b"xxxx"
    assert (await log.added(last)).data == b""
    write(path, "before\n", "a")
    await trio.Path(path).rename(f"{path}.1")
    write(path, "three\n")
    last = await log.added(last)
    assert last.data == b"before\n", "the end of the old one"
    last = await log.added(last)
    assert last.data == b"three\n"
    write(path, "")
    assert (await log.added(last)).data == b"", "cut in place: from its beginning"


async def test_a_file_between_two_rotations_is_read_too(path: Path) -> None:
    write(path, "one\n")
    log = Node(path).log()
    _, last = await log.last_lines(1)
    write(path, "two\n", "a")
    await trio.Path(path).rename(f"{path}.2")
    write(path.with_name("broker.log.1"), "three\n")
    write(path, "four\n")
    told = []
    for _ in range(4):
        last = await log.added(last)
        told.append(last.data)
    assert told == [b"two\n", b"three\n", b"four\n", b""]


async def test_a_node_without_such_a_log_says_so(path: Path) -> None:
    with pytest.raises(RemoteError, match="writes its log to standard error"):
        await Node(path).log(audit=True).last_lines(5)


async def test_another_program_is_no_node(path: Path) -> None:
    class Other(Node):
        async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
            return command.reply(body=b"hello")

    with pytest.raises(UnreachableError, match="is not a server's of rmqha"):
        await Other(path).log().last_lines(5)
