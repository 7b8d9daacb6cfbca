"""A real local cluster on free ports in a scratch directory, driven through the `rmqha` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rmqha.ops.local.preflight import free_ports
from tests.support.command import rmqha_in
from tests.support.patience import until

TEXT = """\
[cluster]
name = "{name}"
haMode = "{mode}"
[namesrv]
listenPort = {namesrv}
[controllers]
listenPort = {controller}
[[group]]
name = "broker-a"
replicas = {replicas}
listenPort = {broker}
[broker]
mappedFileSizeCommitLog = 16777216
diskMaxUsedSpaceRatio = 100
controllerHeartBeatTimeoutMills = 10000
"""


class LocalCluster:
    """`path` is its cluster file, `directory` where it lives. Call `down` in the end."""

    def __init__(
        self, scratch: Path, *, name: str = "test", mode: str = "cp", replicas: int = 3, http: bool = False
    ) -> None:
        """`http`: every node has an httpPort."""
        self.scratch = scratch
        self.directory = scratch / "data"
        self.path = scratch / f"{name}.toml"
        base = free_ports(80)
        self.namesrv = f"127.0.0.1:{base}"
        text = TEXT.format(name=name, mode=mode, replicas=replicas, namesrv=base, controller=base + 1, broker=base + 10)
        self.path.write_text(text.replace("[namesrv]", f"httpPort = {base + 40}\n[namesrv]") if http else text)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "rmqha", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"RMQHA_DIRECTORY": str(self.directory)}

    def rmqha(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In the test's own process: what it starts are processes of their own."""
        with patch.dict(os.environ, self.environment):
            return rmqha_in(self.scratch, *arguments)

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rmqha("up", str(self.path), "--directory", str(self.directory), *arguments)

    def status(self) -> dict[str, Any]:
        """Asked from the test's process: many tests ask until something has come."""
        done = rmqha_in(self.scratch, "status", "--directory", str(self.directory), "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.status()["nodes"] if node["node"] == name)

    def master(self) -> str:
        """The node that says it is master and writable, once one does."""
        return until(
            lambda: next((node["node"] for node in self.status()["nodes"] if node["state"].get("writable")), "")
        )

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.rmqha("down")
