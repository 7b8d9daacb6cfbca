"""Modules that a command must not load: most of a short command's processor time is spent on imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from tests.support.command import loaded_by

NOT_TO_SEND = {
    "cryptography",
    "difflib",
    "h11",
    "numpy",
    "prometheus_client",
    "pyspark",
    "rich",
    "structlog",
    "yaml",
    "rmqha.cli.rich_console",
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
NOT_TO_ASK = NOT_TO_SEND | {"trio", "attr", "asyncio", "ssl", "rmqha.host.access.security", "rmqha.host.net.remoting"}
"""An event loop costs as much as all the rest of a command that only asks."""
NOT_TO_ASK_SECURED = {
    "rmqha.model.config.servers",
    "trio",
    "attr",
    "asyncio",
    "rich",
    "yaml",
    "rmqha.host.access.security",
    "rmqha.host.net.remoting",
}
NOT_TO_TELL_KEYS = NOT_TO_ASK - {"rmqha.model.config.servers"}
NOT_TO_HELP = NOT_TO_ASK | {"rmqha.client", "rmqha.ops.cluster_view"}
NOBODY = ("--namesrv", "127.0.0.1:1")
NO_CONTROLLER = ("--controller", "127.0.0.1:1")


@pytest.mark.parametrize("arguments", [("--help",), ("status", "--help"), ("topic", "--help"), ("consumer", "--help")])
def test_help_loads_nothing_that_asks(arguments: tuple[str, ...]) -> None:
    loaded, _ = loaded_by(arguments)
    assert loaded & NOT_TO_HELP == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "ls", *NOBODY),
        ("topic", "create", "orders", *NOBODY),
        ("consumer", "ls", *NOBODY),
        ("consumer", "reset", "g", "--to", "first", *NOBODY),
        ("message", "get", "7F00000100002A9F0000000000000000", *NOBODY),
        ("dlq", "ls", *NOBODY),
        ("timers", *NOBODY),
        ("send", "--topic", "orders", *NOBODY, "body"),
        ("receive", "--topic", "orders", *NOBODY),
        ("acl", "user", "ls", *NOBODY),
        ("status", *NOBODY),
        ("fork", "ls", *NOBODY),
        ("upgrade", "check", *NOBODY),
        ("elect", "broker-a", *NOBODY),
        ("drain", "broker-a-1", *NOBODY),
        ("history", *NOBODY),
        ("health", *NOBODY),
        ("top", "--once", *NOBODY),
        ("explain", "broker-a", *NO_CONTROLLER),
        ("quorum", "show", *NO_CONTROLLER),
    ],
    ids=" ".join,
)
def test_a_command_that_asks_loads_no_event_loop(arguments: tuple[str, ...]) -> None:
    loaded, _ = loaded_by(arguments)
    assert "rmqha.host.asking.blocking" in loaded
    assert loaded & NOT_TO_ASK == set()


@pytest.mark.parametrize(
    "arguments",
    [("describe", "cluster", *NOBODY), ("describe", "topic", "orders", *NOBODY), ("explain-wait", *NOBODY)],
    ids=" ".join,
)
def test_a_command_that_judges_keys_loads_no_event_loop(arguments: tuple[str, ...]) -> None:
    loaded, _ = loaded_by(arguments)
    assert "rmqha.host.asking.blocking" in loaded
    assert loaded & NOT_TO_TELL_KEYS == set()


@pytest.mark.parametrize(
    "arguments",
    [("topic", "ls", *NOBODY), ("health", *NOBODY), ("quorum", "show", *NO_CONTROLLER)],
    ids=" ".join,
)
def test_nor_does_it_with_tls_and_an_account(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "tools.properties"
    file.touch(mode=0o600)
    file.write_text("tls.enable=true\ntls.client.authServer=false\naccessKey=operator\nsecretKey=12345678\n")
    loaded, _ = loaded_by(("--security", str(file), *arguments))
    assert {"ssl", "rmqha.host.asking.blocking"} <= loaded
    assert loaded & NOT_TO_ASK_SECURED == set()


def test_a_send_loads_only_what_sends() -> None:
    loaded, _ = loaded_by(("send", "--topic", "orders", "--rate", "9", *NOBODY, "body"))
    assert "rmqha.host.net.remoting" in loaded
    assert loaded & NOT_TO_SEND == set()


def test_the_nodes_of_a_cluster_here_are_shown_without_the_classes_of_servers(tmp_path: Path) -> None:
    """They cost as much processor time as the table."""
    record = NodeRecord("ns-1", NodeKind.NAMESRV.value, "127.0.0.1:1")
    ClusterState(tmp_path, "c", "cp", "c.toml", {"ns-1": record}).write()
    path = tmp_path / "ns-1" / "node.conf"
    path.parent.mkdir()
    path.write_text("httpPort=7\n")
    loaded, _ = loaded_by(("status", "--directory", str(tmp_path)))
    assert "rmqha.cli.render" in loaded
    assert loaded & (NOT_TO_ASK - {"rmqha.host.disk"}) == set()
