"""A cluster as it is seen from another machine: no directory, only the name server's address."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from rmqha.client import Admin
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.process.cluster import LocalCluster
from tests.support.command import decoded, rmqha_bytes


class Remote:
    """The `rmqha` command with `--namesrv`, and a topic that is made for it."""

    def __init__(self, cluster: LocalCluster, topic: str, *, queues: int = 2) -> None:
        self.cluster = cluster
        self.topic = topic
        self.raw = b""
        assert self.run("topic", "create", topic, "--queues", str(queues)).returncode == 0

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Output that is no text is in `raw`."""
        words = [*arguments, "--namesrv", self.cluster.namesrv]
        done = rmqha_bytes(Path.cwd(), *words, stdin=stdin.encode())
        self.raw = done.stdout
        return decoded(done)

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

    def admin(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        async def ask() -> None:
            async with Admin(self.cluster.namesrv) as admin:
                for group in (await admin.cluster_info())["brokers"].values():
                    await admin.ask(group["addresses"][0], Command(code, ext, body))

        trio.run(ask)
