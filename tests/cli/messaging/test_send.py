"""`rmqha send`: what is wrong with the input is said before anything is sent, what happened is counted."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from rmqha.cli.main import main
from rmqha.cli.messaging import send_input
from tests.client.fake import Do, FakeCluster, InTurn
from tests.support.command import loaded_by, rmqha_beside
from tests.support.patience import HANG_S

WELL = b'{"id": 1, "kind": "a", "name": "one"}\n{"id": 2, "kind": "b", "name": "two"}\n'


def refuse(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must end with exit code 2 and one sentence; nobody listens where it would send."""
    with pytest.raises(SystemExit) as caught:
        main(["send", "--namesrv", "127.0.0.1:1", *args])
    output = capsys.readouterr()
    assert (caught.value.code, output.out) == (2, "")
    assert "Traceback" not in output.err
    return output.err.removeprefix("rmqha: ").rstrip("\n")


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (b"", "", "{file}: is empty, there is nothing to send"),
        (b"\n\n", "", "{file}: is empty, there is nothing to send"),
        (b"fine\n\xff\xfe\n", "", "{file}:2: is not UTF-8 text"),
        (WELL + b"not json\n", "--format jsonl", "{file}:3: is not JSON: Expecting value"),
        (WELL + b"[1]\n", "--format jsonl", "{file}:3: is JSON, but not an object"),
        (b"[" * 100_000, "--format jsonl", "{file}:1: is not JSON: it is nested too deeply"),
        (WELL, "--format jsonl --key-field nr", "{file}:1: has no field 'nr'"),
        (
            WELL + b'{"id": [1]}',
            "--format jsonl --key-field id",
            "{file}:3: field 'id' must be a string or a number",
        ),
        (WELL + b'{"id": ""}', "--format jsonl --tag-field id", "{file}:3: field 'id' is empty"),
        (WELL + b'{"id": true}', "--format jsonl --order-by id", "{file}:3: field 'id' must be a string or a number"),
        (
            b"x" * (4 * 1024 * 1024 + 1),
            "",
            "{file}:1: a message for topic T has 4194305 bytes; brokers take 4194304 at most",
        ),
        (
            WELL + b'{"id": "\\ud800"}',
            "--format jsonl --key-field id",
            "{file}:3: field 'id' holds half a character (a surrogate)",
        ),
        (b'{"id": ' + b"9" * 5000 + b"}", "--format jsonl", "{file}:1: is not JSON: a number is too long"),
        (WELL, "--key-field id", "--key-field names a field of JSON records: add --format jsonl"),
        (b"x", "word", "give either messages or --file FILE ('-' reads standard input)"),
        (b"x", "--rate 0", "--rate '0' must be a number of messages per second, such as 500 or 500/s"),
        (b"x", "--acked /nowhere/acked", "--acked /nowhere/acked: cannot be written: No such file or directory"),
        (b"x", "--namesrv here", "--namesrv: 'here' is not an address of the form host:port"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, options: str, sentence: str
) -> None:
    file = tmp_path / "input"
    file.write_bytes(data)
    found = refuse(capsys, "--topic", "T", "--file", str(file), *options.split())
    assert found == sentence.format(file=file)


def test_wrong_calls_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none"
    assert refuse(capsys, "--topic", "T", "--file", str(missing)) == (
        f"{missing}: cannot be read: No such file or directory"
    )
    assert refuse(capsys, "--topic", "T", "--file", str(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"
    assert "give either messages" in refuse(capsys, "--topic", "T")
    assert refuse(capsys, "--topic", "a topic", "x").startswith("topic 'a topic' must consist of letters")
    refused = refuse(capsys, "--topic", "T", "x")
    assert refused.startswith("no name server answers: cannot connect to 127.0.0.1:1")
    assert refused.endswith("; start one of these, or give the address of one that runs")


def test_standard_input_is_checked_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    assert refuse(capsys, "--topic", "T", "--file", "-") == "standard input:2: is not UTF-8 text"


def test_standard_input_that_never_ends_is_left_at_the_first_line_that_is_no_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert "standard input:1: a message for topic T has 4194307 bytes" in refuse(
            capsys, "--topic", "T", "--file", "-"
        )
    monkeypatch.setattr(send_input, "MAX_SPOOLED_BYTES", 100)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * 51)))
    assert refuse(capsys, "--topic", "T", "--file", "-").startswith("standard input: is longer than")
    assert refuse(capsys, "--topic", "T", "--file", "/dev/zero") == (
        "/dev/zero: is a device, not a file; - reads standard input"
    )


async def test_a_pipe_is_sent_whole(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    async with FakeCluster() as fake, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, path.write_bytes, b"a\nb\n")
        done = await run(fake, "--topic", "T", "--file", str(path))
        assert (done.returncode, done.stderr) == (0, b"")
        assert sorted(item.body for item in fake.stored) == [b"a", b"b"]


async def run(fake: FakeCluster, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return await rmqha_beside("send", "--namesrv", fake.namesrv, *args, stdin=stdin)


async def test_a_file_of_json_records_arrives_with_keys_and_tags_and_is_listed(tmp_path: Path) -> None:
    file, acked = tmp_path / "in.jsonl", tmp_path / "acked.jsonl"
    file.write_bytes(WELL + b"\n" + '{"id": 3.5, "kind": "в", "name": "три"}\r\n'.encode())
    async with FakeCluster() as fake:
        fake.group.master.script = InTurn(Do.CLOSE_AFTER)
        done = await run(
            fake, "--topic", "T", "--file", str(file), "--format", "jsonl", "--key-field", "id", "--tag-field", "kind",
            "--order-by", "kind", "--acked", str(acked), "-o", "json", "--window", "1",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        result = json.loads(done.stdout)
        assert {name: result[name] for name in ("messages", "sent", "acknowledged", "failed", "not_sent")} == {
            "messages": 3, "sent": 3, "acknowledged": 3, "failed": 0, "not_sent": 0,
        }  # fmt: skip
        assert (result["retried"], result["duplicates_possible"], result["blank_lines"]) == (1, 1, 1)
        bodies = [line for line in file.read_bytes().splitlines() if line]
        assert [item.body for item in fake.stored] == [bodies[0], *bodies]
        assert [item.properties["KEYS"] for item in fake.stored] == ["1", "1", "2", "3.5"]
        assert [item.properties["TAGS"] for item in fake.stored] == ["a", "a", "b", "в"]
        lines = [json.loads(line) for line in acked.read_text().splitlines()]
        assert [line["line"] for line in lines] == [1, 2, 4]
        assert [line["sha256"] for line in lines] == [hashlib.sha256(body).hexdigest() for body in bodies]
        assert [line["msgId"] for line in lines] == [item.properties["UNIQ_KEY"] for item in fake.stored[1:]]
        assert lines[0]["duplicatePossible"] and lines[0]["tries"] == 2
        assert lines[2]["key"] == "3.5" and lines[2]["brokerName"] == "g-a"
        assert all(len(line["offsetMsgId"]) == 32 and line["ackedAtMs"] > 1_600_000_000_000 for line in lines)


async def test_words_and_standard_input() -> None:
    async with FakeCluster() as fake:
        done = await run(fake, "--topic", "T", "one", "two")
        assert done.returncode == 0
        assert b"sent                 2 of 2 to topic T\nacknowledged         2\n" in done.stdout
        assert max(len(line) for line in done.stdout.splitlines()) <= 80
        done = await run(fake, "--topic", "T", "--file", "-", stdin=b"drei\nvier")
        assert done.returncode == 0
        assert {item.body for item in fake.stored} == {b"one", b"two", b"drei", b"vier"}


@pytest.mark.parametrize("more", [(), ("--rate", "1000")], ids=["many", "at a rate"])
async def test_what_needs_a_producer_says_first_what_it_does(more: tuple[str, ...]) -> None:
    async with FakeCluster() as fake:
        words = list(map(str, range(1 if more else 17)))
        done = await run(fake, "--topic", "T", *more, *words)
        told = f"connecting to {fake.namesrv} to send {'1 message' if more else '17 messages'} to topic T\n"
        assert (done.returncode, done.stderr.decode(), len(fake.stored)) == (0, told, len(words))


async def test_a_failover_shows_as_the_longest_gap(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_text("\n".join(f"message {number}" for number in range(60)))
    async with FakeCluster() as fake:
        scheduled = False

        def script(node: object, command: object) -> Do:
            nonlocal scheduled
            if len(fake.stored) == 20 and not scheduled:
                scheduled = True
                fake.fail_over(after_ms=1000)
            return Do.STORE

        fake.group.master.script = script
        began = trio.current_time()
        done = await run(fake, "--topic", "T", "--file", str(file), "-o", "json", "--rate", "200/s", "--window", "8")
        whole_ms = (trio.current_time() - began) * 1000
        result = json.loads(done.stdout)
        assert (done.returncode, result["acknowledged"]) == (0, 60)
        assert 500 <= result["longest_gap_ms"] <= whole_ms
        assert result["first_ack_after_gap_at_ms"] > 1_600_000_000_000
        assert {item.body for item in fake.stored} == {f"message {number}".encode() for number in range(60)}


async def test_what_is_not_acknowledged_is_counted_with_its_reason() -> None:
    async with FakeCluster() as fake:
        fake.group.master.script = lambda node, command: (
            (1, False) if bytes(command.body) == b"bad" else (13, False) if command.body == b"worse" else Do.STORE
        )
        done = await run(fake, "--topic", "T", "good", "bad", "worse", "bad", "--timeout", "1")
        assert done.returncode == 1
        assert b"acknowledged         1\nfailed               3\n" in done.stdout
        errors = done.stderr.decode().splitlines()
        assert len(errors) == 2
        assert any(line.startswith("2 not acknowledged, first line 2: 127.0.0.1:") for line in errors)
        assert any("scripted 13" in line and "first line 3" in line for line in errors)


async def test_an_unknown_topic_is_wrong_usage() -> None:
    async with FakeCluster() as fake:
        done = await run(fake, "--topic", "Nowhere", "x")
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr == b"rmqha: topic Nowhere does not exist; create it first (nothing was sent)\n"


async def test_an_interrupt_ends_it_with_a_summary() -> None:
    async with FakeCluster() as fake:
        command = [sys.executable, "-m", "rmqha", "send", "--namesrv", fake.namesrv, "--topic", "T"]
        command += ["--rate", "1", "-o", "json", "one", "two", "three"]
        async with trio.open_nursery() as nursery:
            sending = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            process = await nursery.start(sending)
            with trio.fail_after(HANG_S):
                await fake.group.master.asked.wait()
                process.send_signal(signal.SIGINT)
                output = b"".join([chunk async for chunk in process.stdout])
                assert await process.wait() == 1
        result = json.loads(output)
        assert result["acknowledged"] in (1, 2) and result["failed"] == 0
        assert result["not_sent"] == 3 - result["acknowledged"]


async def test_a_few_messages_need_no_event_loop() -> None:
    async with FakeCluster() as fake:
        arguments = ["send", "--namesrv", fake.namesrv, "--topic", "T", "-o", "json", "one", "two", "three"]
        loaded, told = await trio.to_thread.run_sync(loaded_by, arguments)
        assert (json.loads(told)["acknowledged"], json.loads(told)["longest_gap_ms"]) == (3, 0)
        assert sorted(item.body for item in fake.stored) == [b"one", b"three", b"two"]
        assert len({item.properties["UNIQ_KEY"] for item in fake.stored}) == 3
        assert loaded & {"trio", "ssl", "rich"} == set()


async def test_a_full_disk_under_the_acknowledged_lines_names_their_file() -> None:
    async with FakeCluster() as fake:
        done = await run(fake, "--topic", "T", "--acked", "/dev/full", "one")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == b"rmqha: /dev/full: No space left on device; free some space on that disk\n"


@pytest.mark.parametrize(("first", "copies"), [(Do.CLOSE_AFTER, 1), ((2, False), 0)])
async def test_what_the_first_try_does_not_settle_is_tried_again_with_its_id(
    first: Do | tuple[int, bool], copies: int, tmp_path: Path
) -> None:
    """Answer 2: busy, nothing was stored."""
    acked = tmp_path / "acked"
    async with FakeCluster() as fake:
        fake.group.master.script = InTurn(Do.STORE, first)
        done = await run(fake, "--topic", "T", "--acked", str(acked), "-o", "json", "one", "two", "three")
        result = json.loads(done.stdout)
        assert (done.returncode, result["acknowledged"], result["retried"]) == (0, 3, 1)
        assert result["duplicates_possible"] == copies == len(fake.stored) - 3
        lines = {line["line"]: line for line in map(json.loads, acked.read_text().splitlines())}
        assert [lines[number]["tries"] for number in (1, 2, 3)] == [1, 2, 1]
        assert {item.properties["UNIQ_KEY"] for item in fake.stored} == {line["msgId"] for line in lines.values()}
