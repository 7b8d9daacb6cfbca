"""A cluster as it is seen from another machine: no directory, only the name server's address."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import trio

from rmqha.cli.main import main
from rmqha.client import Admin
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.process.cluster import LocalCluster

WAIT_S = 30


class Remote:
    """The `rmqha` command with `--namesrv`, and a topic that is made for it."""

    def __init__(self, cluster: LocalCluster, topic: str, *, queues: int = 2) -> None:
        self.cluster = cluster
        self.topic = topic
        self.raw = b""
        assert self.run("topic", "create", topic, "--queues", str(queues)).returncode == 0

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """The command in this process: a process of its own costs a busy machine seconds. Output that is no text is in
        `raw`."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        words = [*arguments, "--namesrv", self.cluster.namesrv]
        before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(words)
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.stdin = before
        out.flush()
        err.flush()
        told = [stream.buffer.getvalue() for stream in (out, err)]
        self.raw = told[0]
        assert isinstance(code, int)
        return subprocess.CompletedProcess(words, code, told[0].decode("utf-8", "replace"), told[1].decode())

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "-o", "json")
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    def refused(self, *arguments: str, code: int = 2) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done
        return done.stderr

    def send(self, count: int) -> None:
        assert self.run("send", "--topic", self.topic, *map(str, range(count))).returncode == 0

    def read(self, group: str, count: int) -> None:
        done = self.run("receive", "--topic", self.topic, "--group", group, "--max", str(count), "--idle", "20")
        assert done.stdout.count("\n") == count, done

    @contextmanager
    def member(self, group: str) -> Iterator[Path]:
        """A connected member, and the file where it writes a JSON line for each message."""
        lines = self.cluster.scratch / f"{group}.jsonl"
        arguments = ("receive", "--topic", self.topic, "--group", group, "-o", "json")
        command = self.cluster.command(*arguments, "--namesrv", self.cluster.namesrv)
        with lines.open("w") as out, subprocess.Popen(command, stdout=out) as process:
            try:
                yield lines
            finally:
                process.terminate()

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def admin(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        async def ask() -> None:
            async with Admin(self.cluster.namesrv) as admin:
                for group in (await admin.cluster_info())["brokers"].values():
                    await admin.ask(group["addresses"][0], Command(code, ext, body))

        trio.run(ask)
