"""`--check` of the three servers: the configuration is read as at a start, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from rmqha.cli.main import cli
from rmqha.model.error import UsageError

GOOD = {
    "broker": "brokerName=broker-a\nlistenPort=20911\n",
    "namesrv": "listenPort=20876\nenableControllerInNamesrv=true\ncontrollerDLegerPeers=n0-127.0.0.1:20878\n",
    "controller": "controllerDLegerPeers=n0-127.0.0.1:20878\n",
}


def check(server: str, path: Path) -> None:
    command = cli.get_command(click.Context(cli), server)
    assert command is not None
    command.main(["-c", str(path), "--check"], standalone_mode=False)


@pytest.mark.parametrize("server", GOOD)
def test_a_good_file_passes_and_nothing_is_made(server: str, tmp_path: Path) -> None:
    path = tmp_path / "node.conf"
    path.write_text(GOOD[server])
    check(server, path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("server", GOOD)
def test_a_wrong_key_is_a_sentence(server: str, tmp_path: Path) -> None:
    path = tmp_path / "node.conf"
    path.write_text(GOOD[server] + "tls.server.mod=enforcing\n")
    with pytest.raises(UsageError, match=r"unknown key tls\.server\.mod; the nearest known key is tls\.server\.mode"):
        check(server, path)


@pytest.mark.parametrize("server", GOOD)
def test_a_file_that_a_key_names_must_be_there(server: str, tmp_path: Path) -> None:
    path = tmp_path / "node.conf"
    path.write_text(GOOD[server] + f"aclEnable=true\naclFile={tmp_path}/none.yml\n")
    with pytest.raises(UsageError, match=r"cannot read the accounts .*none\.yml"):
        check(server, path)
