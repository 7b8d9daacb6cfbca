"""`rmqha migrate` as an operator meets it, on two replicas of a real RocketMQ group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmqha.cli.main import cli, main
from tests.store.support import unpack


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two members of one real group, stopped in order."""
    for name in ("n0", "n1"):
        unpack(name, tmp_path)
    return tmp_path / "n0", tmp_path / "n1"


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, ["migrate", *map(str, arguments)])


def test_two_real_replicas_are_proven_equal(pair: tuple[Path, Path]) -> None:
    done = run("--check", *pair)
    assert done.exit_code == 0, done.output
    assert "yes: all logs are the same; the group may get a controller without a loss" in done.stdout
    assert "totalReplicas=2" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:4])
    done = run("--check", "--to", "static", *pair)
    assert done.exit_code == 0 and "brokerRole=SLAVE" in done.stdout


def test_the_same_for_a_script(pair: tuple[Path, Path]) -> None:
    found = json.loads(run("--check", *pair, "-o", "json").stdout)
    assert found["safe"] and found["to"] == "controller"
    first, second = found["members"]
    assert first["sameUntil"] == first["endOffset"] == second["endOffset"] == second["sameUntil"] > 0
    assert first["epochs"] == second["epochs"] != [] and not first["copiesAgain"]


def test_a_difference_forbids_the_switch_and_nothing_is_written(pair: tuple[Path, Path]) -> None:
    file = sorted((pair[1] / "commitlog").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    (pair[1] / "epochFileCheckpoint").unlink()
    done = run(*pair)
    assert done.exit_code == 1
    assert "no: before the group may get a controller" in done.stdout and "differs" in done.stdout
    assert not (pair[1] / "epochFileCheckpoint").exists()


def test_a_static_group_gets_epochs_unless_it_is_only_checked(pair: tuple[Path, Path]) -> None:
    """As a group that never had a controller: no epoch file, no identity."""
    for path in pair:
        for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak", "brokerIdentity"):
            (path / name).unlink(missing_ok=True)
    done = run("--check", *pair)
    assert done.exit_code == 0 and "rmqha migrate without --check" in done.stdout
    assert not (pair[0] / "epochFileCheckpoint").exists()
    done = run(*pair)
    assert done.exit_code == 0 and "epoch history {0:0} was written" in done.stdout
    assert (pair[0] / "epochFileCheckpoint").read_bytes() == (pair[1] / "epochFileCheckpoint").read_bytes()
    assert "without --check" not in run("--check", *pair).stdout


def test_what_cannot_be_compared_is_one_sentence_and_exit_code_2(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    wrong = {tmp_path / "other": "is no message store", pair[0]: "is given twice"}
    for path, words in wrong.items():
        with pytest.raises(SystemExit) as stopped:
            main(["migrate", "--check", str(pair[0]), str(path)])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_accounts_are_converted_by_acl_migrate_under_this_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain_acl.yml").write_text("accounts:\n- {accessKey: anne-key, secretKey: anne-secret, admin: true}\n")
    Path("plain_acl.yml").chmod(0o600)
    told = []
    for words in (["acl", "migrate"], ["migrate", "acl"]):
        with pytest.raises(SystemExit) as stopped:
            main([*words, "plain_acl.yml", "--dry-run"])
        assert stopped.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and "anne-key" in told[0]
    Path("acl").mkdir()
    with pytest.raises(SystemExit) as stopped:
        main(["migrate", "--check", "acl", "acl"])
    assert stopped.value.code == 2 and "is given twice" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["migrate", "acl"])
    assert "is no message store" in capsys.readouterr().err
