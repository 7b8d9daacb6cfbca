"""Modules that a command must not load: most of a short command's processor time is spent on imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from tests.support.patience import HANG_S

NOT_TO_ASK = {
    "cryptography",
    "difflib",
    "h11",
    "numpy",
    "prometheus_client",
    "pyspark",
    "rich",
    "structlog",
    "yaml",
    "rmqha.cli.render",
    "rmqha.host.access.accounts",
    "rmqha.host.access.auth_filter",
    "rmqha.host.access.peer_filter",
    "rmqha.host.disk",
    "rmqha.host.access.quota_filter",
    "rmqha.model.config.servers",
    "rmqha.ops.local.cluster_file",
    "rmqha.store.store",
    "rmqha.wire.auth.acl",
}
"""What a client without accounts and without a table does not use: a server's guards, configurations, stores."""
NOT_TO_HELP = NOT_TO_ASK | {"trio", "rmqha.client", "rmqha.host.net.remoting", "rmqha.ops.cluster_view"}
NOBODY = ("--namesrv", "127.0.0.1:1")


def loaded_by(arguments: tuple[str, ...]) -> set[str]:
    """Names of all modules that one command has loaded when it ends."""
    program = f"""
import json, sys
from rmqha.cli.main import main
try:
    main({arguments!r})
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [("--help",), ("status", "--help"), ("topic", "--help"), ("consumer", "--help")])
def test_help_loads_nothing_that_asks(arguments: tuple[str, ...]) -> None:
    assert loaded_by(arguments) & NOT_TO_HELP == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "--topic", "orders", *NOBODY, "body"),
        ("topic", "ls", *NOBODY),
        ("consumer", "ls", *NOBODY),
        ("status", *NOBODY),
    ],
)
def test_a_command_loads_only_what_asks(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(arguments)
    assert "rmqha.host.net.remoting" in loaded
    assert loaded & NOT_TO_ASK == set()


def test_the_nodes_of_a_cluster_here_are_shown_without_the_classes_of_servers(tmp_path: Path) -> None:
    """They cost as much processor time as the table."""
    record = NodeRecord("ns-1", NodeKind.NAMESRV.value, "127.0.0.1:1")
    ClusterState(tmp_path, "c", "cp", "c.toml", {"ns-1": record}).write()
    path = tmp_path / "ns-1" / "node.conf"
    path.parent.mkdir()
    path.write_text("httpPort=7\n")
    loaded = loaded_by(("status", "--directory", str(tmp_path)))
    assert "rmqha.cli.render" in loaded
    assert loaded & (NOT_TO_ASK - {"rich", "rmqha.cli.render", "rmqha.host.disk"}) == set()
