"""A store is put aside whole; a kill at any step leaves the old one, or what the next start finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.ops.local.fresh_store import KEPT_FILES, finish_putting_aside, put_aside


class KilledError(BaseException):
    pass


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    for name in (*KEPT_FILES, "log"):
        (made / name).write_text(name)
    return made


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_new_store_has_the_identity_alone(store: Path) -> None:
    aside = put_aside(store, 3)
    assert aside.name == "store.fork-3" and names(aside) == sorted([*KEPT_FILES, "log"])
    assert names(store) == sorted(KEPT_FILES) and names(store.parent) == ["store", "store.fork-3"]
    assert not finish_putting_aside(store)


@pytest.mark.parametrize("rename_count", [0, 1])
def test_a_kill_between_its_renames_is_finished(
    store: Path, monkeypatch: pytest.MonkeyPatch, rename_count: int
) -> None:
    done: list[Path] = []
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if len(done) == rename_count:
            raise KilledError
        done.append(self)
        return rename(self, target)

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(Path, "rename", killed)
        put_aside(store, 1)
    assert finish_putting_aside(store) == (rename_count == 1)
    assert names(store) == sorted(KEPT_FILES if rename_count else [*KEPT_FILES, "log"])
    aside = put_aside(store, 2)
    assert names(aside) == sorted(KEPT_FILES if rename_count else [*KEPT_FILES, "log"])
    assert names(store) == sorted(KEPT_FILES)


def test_a_log_on_another_disk_stays_there_and_so_does_the_new_one(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "disk/log"
    other.mkdir(parents=True)
    (other / "0").write_text("old")
    (store / "commitlog").symlink_to("../disk/log")
    aside = put_aside(store, 1)
    assert (aside / "commitlog/0").read_text() == "old"
    assert (store / "commitlog").is_symlink() and names(store / "commitlog") == []
    assert (store / "commitlog").resolve() == tmp_path / "disk/log.1"
