"""`rmqha receive`: what it prints, where it stops, what it says when nothing can be read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from functools import partial
from shlex import quote
from subprocess import PIPE

import pytest
import trio

from rmqha.cli.main import main
from rmqha.cli.messaging.message_lines import json_line, table_line
from rmqha.client.consumers.message import Message
from rmqha.model.code import ResponseCode
from rmqha.model.offset import PhyOffset, QueueOffset
from tests.client.consumers.test_consumer import fill
from tests.client.fake import FakeCluster
from tests.support.command import loaded_by, rmqha_beside
from tests.support.patience import HANG_S


def message(body: bytes, **properties: str) -> Message:
    return Message(
        topic="T",
        broker_name="g-a",
        queue_id=3,
        queue_offset=QueueOffset(41),
        phy_offset=PhyOffset(1000),
        body=body,
        properties={"UNIQ_KEY": "U", **properties},
        offset_msg_id="O",
        born_at_ms=1_000,
        stored_at_ms=2_000,
        reconsume_times=0,
        flag=0,
    )


def connecting(fake: FakeCluster, group: str = "") -> bytes:
    """The line that is told before what reads on is loaded, unless messages were shown by then."""
    return f"connecting to {fake.namesrv} to read topic T{f' as group {group}' if group else ''}\n".encode()


async def run(fake: FakeCluster, *args: str) -> subprocess.CompletedProcess[bytes]:
    return await rmqha_beside("receive", "--namesrv", fake.namesrv, *args)


def test_a_line_fits_the_width_and_cannot_drive_the_terminal() -> None:
    line = table_line(message(b"\x1b[2J" + "д".encode() * 500, TAGS="A", KEYS="k1"), 80)
    assert len(line) == 80 and line.endswith("…")
    assert line.startswith("g-a:3@41 ") and "[A] [k1] ·[2Jдд" in line
    assert "\x1b" not in table_line(message(b"\x1b"), 80)
    assert table_line(message(b"short"), 80).endswith(" short")
    # where there is no width nothing is cut
    assert table_line(message(b"x" * 5000), None).endswith(" " + "x" * 5000)


def test_json_keeps_bytes_that_are_no_text() -> None:
    text = json.loads(json_line(message("строка\n".encode(), TAGS="A")))
    assert (text["body"], text["tags"], text["msgId"], text["offsetMsgId"]) == ("строка\n", "A", "U", "O")
    assert (text["queueId"], text["queueOffset"], text["storedAtMs"]) == (3, 41, 2_000)
    binary = json.loads(json_line(message(b"\xff\x00")))
    assert base64.b64decode(binary["bodyBase64"]) == b"\xff\x00" and "body" not in binary


async def test_it_reads_all_and_stops_when_it_is_quiet() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:02}" for number in range(10)])
        done = await run(fake, "--topic", "T", "--idle", "0.5", "-o", "json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert sorted(json.loads(line)["body"] for line in done.stdout.splitlines()) == [
            f"{number:02}" for number in range(10)
        ]
        assert fake.group.offsets == {}


async def test_a_topic_that_nobody_may_read_is_no_empty_one() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "a")
        fake.group.perm = 2
        for more in ([], ["--group", "G"]):
            done = await run(fake, "--topic", "T", "--idle", "0.2", *more)
            assert (done.returncode, done.stdout) == (1, b"")
            assert done.stderr.splitlines()[-1] == (
                b"rmqha: nobody may read topic T: its permission in g-a forbids it; see rmqha topic describe T"
            )


async def test_a_group_goes_on_where_it_stopped() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcde", queue_count=1)
        first = await run(fake, "--topic", "T", "--group", "G", "--max", "3", "-o", "json")
        rest = await run(fake, "--topic", "T", "--group", "G", "--max", "2")
        assert [json.loads(line)["body"] for line in first.stdout.splitlines()] == ["a", "b", "c"]
        assert [line[-1:] for line in rest.stdout.splitlines()] == [b"d", b"e"]
        assert rest.stderr == connecting(fake, "G") + b"2 messages\n"
        assert fake.group.offsets["G", "T", 0] == 5


async def test_a_pipe_gets_the_bytes_that_were_sent() -> None:
    """A body is never cut, escaped or decoded where the output is no terminal."""
    bodies = ["x" * 5000, "\x1b[2J\t", "строка"]
    async with FakeCluster() as fake:
        fill(fake.group, bodies, queue_count=1, tags="A")
        done = await run(fake, "--topic", "T", "--max", "3")
        assert done.stdout == "".join(f"{body}\n" for body in bodies).encode()
        done = await run(fake, "--topic", "T", "--max", "3", "--format", r"%t|%q|%o|%g|%v\0")
        assert done.stdout == "".join(f"T|g-a:0|{at}|A|{body}\0" for at, body in enumerate(bodies)).encode()
        # a table that is asked for is not cut either, but drives no terminal
        done = await run(fake, "--topic", "T", "--max", "3", "-o", "table")
        lines = done.stdout.decode().splitlines()
        assert lines[0].endswith("] " + bodies[0]) and lines[1].endswith("] ·[2J·") and len(lines) == 3


async def test_one_queue_from_an_offset_on() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdefgh", queue_count=2)
        every = await run(fake, "--topic", "T", "--idle", "0.5", "--format", "%q %o %v")
        wanted = [line for line in every.stdout.splitlines() if line.startswith((b"g-a:1 2", b"g-a:1 3"))]
        done = await run(
            fake, "--topic", "T", "--queue", "g-a:1", "--offset", "2", "--idle", "0.5", "--format", "%q %o %v"
        )
        assert done.stdout.splitlines() == wanted and len(wanted) == 2
        done = await run(fake, "--topic", "T", "--queue", "g-a:7", "--idle", "0.5")
        assert done.returncode == 2 and b"has no queue g-a:7 to read; it has g-a:0, g-a:1" in done.stderr


async def test_tags_and_the_last_end() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1, tags="A")
        fill(fake.group, "cd", queue_count=1, tags="B")
        done = await run(fake, "--topic", "T", "--tags", "B", "--idle", "0.5", "-o", "json")
        assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["c", "d"]
        done = await run(fake, "--topic", "T", "--from", "last", "--idle", "0.5")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", connecting(fake) + b"0 messages\n")


async def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, (str(number) for number in range(2000)))
        command = f"{quote(sys.executable)} -m rmqha receive --namesrv '{fake.namesrv}' --topic T | head -1"
        done = await trio.run_process(["bash", "-c", f"set -o pipefail; {command}"], capture_stdout=True,
                                      capture_stderr=True, check=False)  # fmt: skip
        assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, b"", 1)


async def test_brokers_that_are_all_down_are_said_to_be() -> None:
    async with FakeCluster() as fake:
        for node in fake.group.nodes.values():
            node.kill()
        done = await run(fake, "--topic", "T", "--idle", "0.5")
        assert (done.returncode, done.stdout) == (1, b"")
        told = done.stderr.removeprefix(connecting(fake))
        assert told.startswith(b"rmqha: nothing was read from topic T: cannot connect to 127.0.0.1:")


async def test_who_waits_is_told_what_went_wrong() -> None:
    """There is no --idle: it was silent for ever. It goes on, and reads when the broker is well again."""
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)
        for node in fake.group.nodes.values():
            node.pull_script = lambda command: command.reply(ResponseCode.SYSTEM_ERROR, remark="the disk is ill")
        command = [sys.executable, "-m", "rmqha", "receive", "--namesrv", fake.namesrv, "--topic", "T", "--max", "2"]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdout=PIPE, stderr=PIPE, check=False))
            told = b""
            with trio.fail_after(HANG_S):
                while b"the disk is ill" not in told:
                    told += await process.stderr.receive_some()
                for node in fake.group.nodes.values():
                    node.pull_script = lambda command: None
                read = b""
                while piece := await process.stdout.receive_some():
                    read += piece
                assert await process.wait() == 0
        assert told.removeprefix(connecting(fake)).startswith(
            b"rmqha: nothing comes from topic T, trying on: 127.0.0.1:"
        )
        assert read == b"a\nb\n"


@pytest.mark.parametrize("group", [(), ("--group", "G")])
async def test_who_may_not_read_is_told_at_once(group: tuple[str, ...]) -> None:
    """It retried in silence until it was interrupted. There is no --idle: nothing else would end it."""
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)
        for node in fake.group.nodes.values():
            node.pull_script = lambda command: command.reply(ResponseCode.NO_PERMISSION, remark="account g may not")
        with trio.fail_after(HANG_S):
            done = await run(fake, "--topic", "T", *group)
        assert (done.returncode, done.stdout) == (1, b"")
        told = done.stderr.removeprefix(connecting(fake, "G" if group else ""))
        assert told.startswith(b"rmqha: topic T may not be read: 127.0.0.1:")
        assert told.endswith(b" answered 16: account g may not\n") and told.count(b"\n") == 1


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--from", "committed"], "--from committed needs --group, whose offsets they are"),
        (["--offset", "3"], "--offset is one of a queue: say which with --queue"),
        (["--queue", "q"], "queue 'q' must be written GROUP:N"),
        (["--queue", "q:1", "--group", "G"], "--since, --queue and --offset read without a group"),
        (["--since", "2026-01-01", "--from", "last"], "--from, --since and --offset each say where to begin"),
        (["--since", "soon"], "--since 'soon' is no time"),
        (["--format", "%x"], "--format '%x': %x stands for nothing"),
        (["--format", "%v", "-o", "json"], "--format and -o each say how a message is printed"),
        (["--group", "two words"], "group 'two words' must consist of letters"),
        (["--group", "g" * 121], "is longer than 120 characters"),
        (["--tags", "A ||"], "tags 'A ||': an alternative is empty"),
        ([], "no name server answers: cannot connect to 127.0.0.1:1"),
    ],
)
def test_wrong_calls_are_one_sentence(capsys: pytest.CaptureFixture[str], args: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["receive", "--namesrv", "127.0.0.1:1", "--topic", "T", *args])
    output = capsys.readouterr()
    assert (caught.value.code, output.out) == (2, "")
    assert output.err.startswith("rmqha: ") and sentence in output.err and output.err.count("\n") == 1


@pytest.mark.parametrize("tags", ["*", "A || B"])
async def test_what_lies_there_is_shown_without_an_event_loop(tags: str) -> None:
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:02}" for number in range(10)], tags="A")
        arguments = ["receive", "--namesrv", fake.namesrv, "--topic", "T", "--max", "4", "-o", "json", "--tags", tags]
        loaded, told = await trio.to_thread.run_sync(loaded_by, arguments)
        assert len({json.loads(line)["body"] for line in told.splitlines()}) == 4
        assert loaded & {"trio", "ssl", "rich"} == set()


async def test_what_comes_later_follows_what_was_there() -> None:
    """The one is read before there is a consumer, the other by it: each message once."""
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:03}" for number in range(100)], queue_count=1)
        done = await run(fake, "--topic", "T", "--idle", "0.5", "-o", "json", "--max", "70")
        assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == [f"{n:03}" for n in range(70)]
        done = await run(fake, "--topic", "T", "--queue", "g-a:0", "--offset", "20", "--idle", "0.5", "-o", "json")
        assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == [f"{n:03}" for n in range(20, 100)]
