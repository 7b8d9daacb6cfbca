"""What somebody who attacks a cluster knows of it, and how he speaks: frames, signed where an account is given."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame

MAX_ANSWER_BYTES = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0


class NoAnswerError(Exception):
    """The server closed the connection instead."""


@dataclass(frozen=True)
class Scene:
    """It stands in a file, which the attacker's process reads."""

    addresses: Mapping[str, str]
    """By name: master, slave, namesrv, controller, ha, page, health."""
    cluster: str
    broker_name: str
    master_id: int
    epoch: int
    log_end: int
    topic: str
    """Of the honest clients."""
    group: str
    own_topic: str
    """Of the attacker's own account."""
    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Account → access key and secret key; empty where the cluster asks for none."""
    ca: str = ""
    """PEM of who issued the servers' certificates; "": plain connections."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Scene:
        return cls(**json.loads(path.read_text()))

    # --- speak --------------------------------------------------------------------------------------------------------
    def frame(self, command: Command, account: str = "") -> bytes:
        """Its bytes; `account` signs it, if the cluster has accounts."""
        if account and self.accounts:
            sign(command, Credentials(access_key=self.accounts[account][0], secret_key=self.accounts[account][1]))
        return encode_frame(command)

    def frames(self, commands: Iterable[Command], account: str = "") -> bytes:
        return b"".join(self.frame(command, account) for command in commands)

    def connect(self, target: str, *, tls: bool = True) -> socket.socket:
        """A blocking connection; by TLS where the cluster insists on it. Raises OSError."""
        host, _, port = self.addresses[target].rpartition(":")
        if host != "127.0.0.1":
            raise ValueError(f"{host} is not this machine")
        plain = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
        if not (tls and self.ca):
            return plain
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False
        try:
            return context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def ask(self, target: str, command: Command, account: str = "") -> Command:
        """One request, one answer. Raises OSError and NoAnswerError."""
        with self.connect(target) as connection:
            return self.ask_on(connection, command, account)

    def ask_on(self, connection: socket.socket, command: Command, account: str = "") -> Command:
        connection.sendall(self.frame(command, account))
        parser = FrameParser(MAX_ANSWER_BYTES)
        while True:
            data = connection.recv(1 << 16)
            if not data:
                raise NoAnswerError("the server closed the connection")
            if found := parser.feed(data):
                return found[0]
