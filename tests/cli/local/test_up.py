"""`rmqha up` without a file: another size, other ports, and the file that remembers them."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.cli.local.up import note_as_last, quickstart_text
from rmqha.cli.main import main
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_file import ClusterSpec, parse
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, LAST_UP, OWN_FILE, ClusterState
from rmqha.ops.local.preflight import free_ports


@example(brokers=3, base=9878, mode="cp")
@example(brokers=3, base=10911, mode="cp")
@given(brokers=st.integers(1, 9), base=st.integers(1024, 65_400), mode=st.sampled_from(["ap", "cp"]))
def test_any_size_at_any_ports_is_a_cluster_within_a_hundred_ports(brokers: int, base: int, mode: str) -> None:
    spec = parse("own.toml", tomllib.loads(quickstart_text(brokers, base, mode)))
    ports = sorted(port.number for node in spec.nodes for port in node.ports)
    assert ports[0] == base and ports[-1] < base + 100 and len(set(ports)) == len(ports) == 3 + 3 * brokers
    assert spec.ha_mode == mode
    assert spec.namesrv_addresses == f"127.0.0.1:{base}"
    assert [node.name for node in spec.nodes][1:] == [f"broker-a-{number + 1}" for number in range(brokers)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["c.toml", "--brokers", "2"], "c.toml says those"),
        (["c.toml", "--port-base", "20000"], "c.toml says those"),
        (["--ap", "--mode", "cp"], "contradict each other"),
        (["--brokers", "0"], "--brokers"),
        (["--port-base", "80"], "--port-base"),
    ],
)
def test_what_contradicts_itself_starts_nothing(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_of_the_quick_start_is_no_reason_to_edit_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that it would be in is the package's own, or not there yet."""
    monkeypatch.chdir(tmp_path)
    port = free_ports(100)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SystemExit) as ended:
        main(["up", "--port-base", str(port)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "is in use; free it or take other ports, such as `rmqha up --port-base" in said
    assert list(tmp_path.iterdir()) == []


def test_it_starts_the_cluster_that_the_other_commands_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else `up` begins another one beside that which `down` stops."""
    prepared: list[ClusterSpec] = []

    def stop_here(spec: ClusterSpec, running: ClusterState | None) -> NoReturn:
        prepared.append(spec)
        raise UsageError("enough")

    monkeypatch.setattr("rmqha.cli.local.up.prepare", stop_here)
    monkeypatch.setattr("rmqha.cli.local.up.check_cluster", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / OWN_FILE).write_text(quickstart_text(1, 20_000, "cp"))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(mine))
    with pytest.raises(SystemExit):
        main(["up"])
    (spec,) = prepared
    assert (spec.directory, spec.namesrv_addresses) == (mine, "127.0.0.1:20000")
    capsys.readouterr()
    other = ClusterState(tmp_path / "other", "c", "cp", "c.toml")
    note_as_last(other)
    assert f"of $RMQHA_DIRECTORY, {mine}, not this one: unset it, or give" in capsys.readouterr().err
    note_as_last(ClusterState(mine, "c", "cp", "c.toml"))
    assert capsys.readouterr().err == ""


def test_a_current_directory_that_takes_no_note_undoes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster runs by then. A file in the directory's place refuses root too, as a file system without writes."""
    monkeypatch.chdir(tmp_path)
    LAST_UP.parent.touch()
    spec = parse("own.toml", tomllib.loads(quickstart_text(1, 20_000, "cp")), directory=tmp_path / "d")
    note_as_last(ClusterState.of(spec))
    said = capsys.readouterr().err
    assert said == f"cannot write rmqha-data: File exists; other commands find it by --directory {tmp_path / 'd'}\n"
