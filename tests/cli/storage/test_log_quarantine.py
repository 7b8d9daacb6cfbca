"""`rmqha log kept`: what a store has put aside is shown, and only that is removed, and only when it is old enough."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmqha.cli.main import cli, main
from rmqha.host.disk import HostDisk
from rmqha.ops.diagnosis.quarantine import find, remove
from rmqha.store.store import Store
from tests.store.damage.damaged import OWN, make_own
from tests.support.tracer import RecordingTracer

DAY_S = 86_400
KEPT = ("replaced-1", "replaced-12", "rmqha.cut-1", "rmqha.fsck-3", "rmqha.discarded-1")
NOT_KEPT = (
    "replaced-",
    "replaced-0",
    "replaced-x",
    "replaced-1.bak",
    "rmqha.cut-",
    "rmqha.fsck-1x",
    "rmqha.deleted",
    "x",
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of ours that has put aside something of each kind, two days ago, beside names that look like it."""
    root = tmp_path / "store"
    make_own(root)
    for name in (*KEPT, *NOT_KEPT):
        put(root / name, 2)
    return root


def put(directory: Path, age_days: float) -> None:
    inner = directory / "commitlog"
    inner.mkdir(parents=True)
    (inner / "00000000000000000000").write_bytes(os.urandom(5000))
    (directory / "manifest.json").write_text("{}")
    age(directory, age_days)


def age(directory: Path, age_days: float) -> None:
    at = time.time() - age_days * DAY_S
    for path in [*directory.rglob("*"), directory]:
        os.utime(path, (at, at))


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["log", "kept", *arguments], input=answer)


def told(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "-o", "json")
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["log", "kept", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, capsys.readouterr().err


def test_what_is_kept_is_shown(store: Path) -> None:
    before = tree(store)
    found = told(str(store))
    assert [item["name"] for item in found["kept"]] == sorted(KEPT) and found["removed"] == []
    assert {item["files"] for item in found["kept"]} == {2}
    assert all(item["bytes"] >= 5000 for item in found["kept"])
    newest_ms = max(item["changedAt"] for item in found["kept"])
    assert abs(time.time() - 2 * DAY_S - newest_ms / 1000) < 100
    shown = run(str(store)).stdout
    assert "replaced-12" in shown and f"{store} keeps 5 directories with " in shown
    assert tree(store) == before


def test_a_store_that_keeps_nothing(tmp_path: Path) -> None:
    make_own(tmp_path / "store")
    assert told(str(tmp_path / "store")) == {"kept": [], "removed": []}
    assert "keeps 0 directories with 0 bytes" in run(str(tmp_path / "store")).stdout
    done = run(str(tmp_path / "store"), "--remove", "--older-than", "1d", "--yes")
    assert (done.exit_code, "nothing kept is that old" in done.stdout) == (0, True)


def test_only_what_is_old_enough_goes_and_nothing_else(store: Path) -> None:
    (store / "replaced-12/commitlog/00000000000000000000").touch()
    young = tree(store / "replaced-12")
    others = {name: data for name, data in tree(store).items() if name.split("/")[0] not in KEPT}
    done = told(str(store), "--remove", "--older-than", "1d", "--yes")
    assert sorted(done["removed"]) == sorted(set(KEPT) - {"replaced-12"})
    assert [item["name"] for item in told(str(store))["kept"]] == ["replaced-12"]
    assert tree(store / "replaced-12") == young
    assert {name: data for name, data in tree(store).items() if name.split("/")[0] not in KEPT} == others
    assert len(others) > 20
    assert told(str(store), "--remove", "--older-than", "0s", "--yes")["removed"] == ["replaced-12"]


def test_it_asks(store: Path) -> None:
    before = tree(store)
    # a script has no answer
    done = run(str(store), "--remove", "--older-than", "1d", answer="")
    assert str(done.exception) == "nothing removed: there was no answer on standard input; --yes asks nothing"
    assert done.stderr.endswith("[y/N]: \n") and tree(store) == before
    done = run(str(store), "--remove", "--older-than", "1d", answer="n\n")
    assert done.exit_code != 0 and "for good: replaced-1, replaced-12, rmqha.cut-1" in done.stderr
    assert tree(store) == before
    done = run(str(store), "--remove", "--older-than", "1d", answer="y\n")
    assert done.exit_code == 0 and "removed 5 directories with " in done.stdout
    assert find(store) == []


def test_a_store_in_use_keeps_what_may_still_be_written(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store / "replaced-13", 1 / 48)
    opened = Store.open(HostDisk(store), OWN, RecordingTracer(), process_id=1)
    try:
        code, said = sentence(capsys, str(store), "--remove", "--older-than", "59m", "--yes")
        assert code == 2 and "is in use, so nothing younger than 1h is removed" in said
        assert len(find(store)) == 6
        assert told(str(store), "--remove", "--older-than", "1h", "--yes")["removed"] == sorted(KEPT)
        assert opened.queues().keys() == {"Other", "T"}
    finally:
        opened.close()
    assert [item.name for item in find(store)] == ["replaced-13"]


def test_what_has_changed_since_it_was_looked_at_stays(store: Path) -> None:
    found = find(store)
    (store / "rmqha.cut-1/new").write_bytes(b"new")
    assert [item.name for item in remove(store, found)] == sorted(set(KEPT) - {"rmqha.cut-1"})
    assert (store / "rmqha.cut-1/new").exists()


def test_links_are_neither_followed_nor_removed(store: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", 9)
    (store / "replaced-7").symlink_to(tmp_path / "elsewhere")
    (store / "replaced-8").write_bytes(b"a file")
    (store / "replaced-1/link").symlink_to(tmp_path / "elsewhere")
    age(store / "replaced-1/commitlog", 2)
    told(str(store), "--remove", "--older-than", "0s", "--yes")
    assert tree(tmp_path / "elsewhere").keys() == {"commitlog/00000000000000000000", "manifest.json"}
    assert (store / "replaced-7").is_symlink() and (store / "replaced-8").is_file()
    assert not (store / "replaced-1").exists()


def linked_log(store: Path, name: str, target: Path) -> None:
    """An old log of the store, which stands on another disk."""
    (target / "beside").mkdir(parents=True)
    (target / f"{0:020}").write_bytes(b"x" * 5000)
    (target / "readme").write_text("not of the log")
    (store / name).mkdir()
    (store / name / "commitlog").symlink_to(target)
    age(target, 2)
    age(store / name, 2)


def test_an_old_log_on_another_disk_is_counted_and_removed(store: Path, tmp_path: Path) -> None:
    linked_log(store, "replaced-7", tmp_path / "disk/log")
    (item,) = [item for item in told(str(store))["kept"] if item["name"] == "replaced-7"]
    assert item["files"] >= 1 and item["bytes"] >= 5000
    told(str(store), "--remove", "--older-than", "1d", "--yes")
    assert sorted(path.name for path in (tmp_path / "disk/log").iterdir()) == ["beside", "readme"]
    assert not (store / "replaced-7").exists()


def test_a_log_that_is_in_use_is_no_old_one(store: Path, tmp_path: Path) -> None:
    """A kill while the log was set aside has left both links."""
    linked_log(store, "replaced-7", tmp_path / "disk/log")
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").symlink_to("../disk/log")
    told(str(store), "--remove", "--older-than", "1d", "--yes")
    assert (tmp_path / "disk/log" / f"{0:020}").exists() and not (store / "replaced-7").exists()


def test_a_removal_that_was_interrupted_is_finished_later(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", stop)
        done = run(str(store), "--remove", "--older-than", "1d", "--yes")
    assert "Input/output error" in str(done.exception) and "for what is left" in str(done.exception)
    names = [item.name for item in find(store)]
    assert "replaced-1" not in names and "rmqha.discarded-2" in names
    assert len(told(str(store), "--remove", "--older-than", "1d", "--yes")["removed"]) == 5
    assert find(store) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--remove",), "--remove needs --older-than, such as 7d"),
        (("--yes",), "--yes belongs to --remove"),
        (("--remove", "--older-than", "7"), "--older-than '7' is no age"),
        (("--remove", "--older-than", "-1d"), "--older-than '-1d' is no age"),
        (("--remove", "--older-than", "1w"), "is no age: write a number and s, m, h or d"),
        (("--older-than", "٣d"), "is no age"),
    ],
)
def test_wrong_usage(store: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(store)
    code, told_so = sentence(capsys, str(store), *arguments)
    assert code == 2 and said in told_so
    assert tree(store) == before


@pytest.mark.parametrize("place", ["nowhere", "parent", "file"])
def test_what_is_no_store(store: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Something called replaced-1 that lies in another directory is nobody's business."""
    put(store.parent / "replaced-1", 9)
    (store.parent / "file").write_bytes(b"")
    where = store.parent if place == "parent" else store.parent / place
    code, said = sentence(capsys, str(where), "--remove", "--older-than", "0s", "--yes")
    assert code == 2
    assert ("is no message store" if place == "parent" else "is no directory") in said
    assert (store.parent / "replaced-1").exists()
