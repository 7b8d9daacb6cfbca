"""Programs that speak gRPC with a proxy, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.processes import Process


class Try(NamedTuple):
    number: int
    attempt: int
    late_ms: int


class GrpcClients:
    """Clients of one proxy, of one test, and where they write. `command` runs a Java program. Call `close` in the
    end."""

    def __init__(self, endpoints: str, command: list[str], directory: Path) -> None:
        self._endpoints = endpoints
        self._command = command
        self._directory = directory
        self._clients: list[Process] = []

    def client(self, what: str, topic: str, *arguments: str, settings: dict[str, str] | None = None) -> Process:
        """`settings`: system properties of its own."""
        name = f"{what}-{topic}-{len(self._clients)}"
        java, *options = self._command
        own = [f"-D{key}={value}" for key, value in (settings or {}).items()]
        program = [f"-Duser.home={self._directory}", *own, *options, "Grpc", self._endpoints]
        self._clients.append(Process(name, [java, *program, what, topic, *arguments], self._directory))
        return self._clients[-1]

    def log(self) -> str:
        """Their own log, of all together."""
        return (self._directory / "logs" / "rocketmq" / "rocketmq-client.log").read_text()

    def refused(self) -> list[str]:
        """Errors in the clients' log."""
        return [line for line in self.log().splitlines() if " ERROR " in line]

    def send(self, kind: str, topic: str, count: int, settings: dict[str, str] | None = None) -> list[int]:
        sender = self.client(kind, topic, "0", str(count), "0", settings=settings)
        assert sender.wait(TIMEOUT_S) == 0, sender.tail()
        return sent(sender)

    def close(self) -> None:
        for process in self._clients:
            process.kill()


def sent(sender: Process) -> list[int]:
    return [int(line.split()[1]) for line in sender.lines() if line.startswith("SEND_OK ")]


def tries(*consumers: Process) -> list[Try]:
    rows = [line.split() for consumer in consumers for line in consumer.lines() if line.startswith("TRY ")]
    return [Try(*map(int, row[1:4])) for row in rows]
