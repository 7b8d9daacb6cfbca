"""What a real cluster of seven processes answered, to be asked again without it (`tests/golden/ops`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from rmqha.host.net.remoting import RemotingClient
from rmqha.model.error import UnreachableError
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.wire.command import Command

GOLDEN = Path(__file__).parents[1] / "golden" / "ops"
CASES = ("well", "broken")
"""All is well; a slave was killed and the other is in maintenance."""


class RecordedCluster:
    """Stands in for the client of a control plane: a request that was not recorded is answered by nobody."""

    def __init__(self, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        found = json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
        alive = {node["name"] for node in found["nodes"] if node.pop("alive")}
        monkeypatch.setattr(NodeRecord, "alive", property(lambda self: self.name in alive))
        nodes = [NodeRecord(**node) for node in found["nodes"]]
        self.state = ClusterState(Path("/nowhere"), "drill", "cp", "drill.toml", {node.name: node for node in nodes})
        self._replies = found["replies"]

    @property
    def client(self) -> RemotingClient:
        return cast(RemotingClient, self)

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        body = bytes(command.body).decode()
        reply = self._replies.get(f"{address} {int(command.code)} {json.dumps(command.ext, sort_keys=True)} {body}")
        if reply is None or "error" in reply:
            raise UnreachableError("it was not recorded" if reply is None else reply["error"])
        return Command(reply["code"], dict(reply["ext"]), reply["body"].encode(), remark=reply["remark"])
