"""The units, by systemd's own checker where it is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rmqha.cli.generate.systemd import KINDS, hidden_from_units, unit
from rmqha.host.process import GRACE_MS


def keys(kind: str) -> dict[str, str]:
    lines = (line for line in unit(kind, "/bin/true").splitlines() if line and line[0] not in "#[")
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_starts_its_server_and_lets_it_leave_in_order(kind: str) -> None:
    found = keys(kind)
    assert found["ExecStart"] == f"/bin/true {kind} -c ${{CREDENTIALS_DIRECTORY}}/conf"
    assert found["KillSignal"] == "SIGTERM" and found["ExecReload"].endswith("-HUP $MAINPID")
    assert int(found["TimeoutStopSec"]) * 1000 > GRACE_MS
    assert found["StateDirectory"] == f"rmqha/{kind}/%i"
    assert all(line.count("=") >= 1 for line in unit(kind, "/x").splitlines() if line and line[0] not in "#[")


def test_a_program_that_a_unit_cannot_reach_is_told() -> None:
    seen = (Path("/opt/rmqha/bin/rmqha"), Path("/usr/bin/python3"), Path("/homes/rmqha"))
    assert hidden_from_units(seen) is None
    for hidden in ("/home/me/.venv/bin/rmqha", "/root/.pyenv/bin/python", "/tmp/x"):
        assert hidden_from_units((*seen, Path(hidden))) == Path(hidden)


if shutil.which("systemd-analyze"):  # a machine without systemd runs the rest

    def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
        paths = [tmp_path / f"rmqha-{kind}@.service" for kind in KINDS]
        for kind, path in zip(KINDS, paths, strict=True):
            path.write_text(unit(kind, "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", *map(str, paths)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
