"""A directory that is set aside for another one, of which another disk may hold what it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmqha.host.disk import HostDisk, directory_beside
from rmqha.model.offset import PhyOffset
from tests.store.support import bodies, commit_all, filled, log_bytes, message, open_store, sim_disk


class KilledError(BaseException):
    pass


@pytest.fixture
def linked(tmp_path: Path) -> tuple[HostDisk, Path, Path]:
    """A store whose log is a link, by a relative name, to a directory of another disk: (disk, root, that one)."""
    root, log = tmp_path / "store", tmp_path / "disk/log"
    root.mkdir()
    log.mkdir(parents=True)
    (root / "commitlog").symlink_to("../disk/log")
    return HostDisk(root), root, log


def test_a_plain_directory_moves(tmp_path: Path) -> None:
    disk = HostDisk(tmp_path)
    disk.write_atomic("a/x", b"1")
    disk.set_aside("a", "old/a")
    assert disk.list("old/a") == ["x"] and not disk.exists("a")


def test_a_links_new_directory_is_where_the_old_one_is(linked: tuple[HostDisk, Path, Path]) -> None:
    disk, root, log = linked
    disk.write_atomic("commitlog/x", b"1")
    for number in (1, 2):
        disk.set_aside("commitlog", f"replaced-{number}/commitlog")
        assert disk.list("commitlog") == []
        disk.write_atomic("commitlog/x", b"%d" % (number + 1))
    assert (root / "commitlog").resolve().parent == log.parent
    assert [disk.read(path) for path in ("replaced-1/commitlog/x", "replaced-2/commitlog/x")] == [b"1", b"2"]
    assert sorted(path.name for path in log.parent.iterdir()) == ["log", "log.1", "log.1.1"]


def test_beside_the_root_of_a_disk_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def other_device(self: Path, **options: Any) -> os.stat_result:
        found = list(stat(self, **options))
        found[2] += self == tmp_path
        return os.stat_result(found)

    root = tmp_path / "mounted"
    root.mkdir()
    monkeypatch.setattr(Path, "stat", other_device)
    assert directory_beside(root) == root / "mounted.1"
    assert directory_beside(root) == root / "mounted.2"
    assert directory_beside(root / "mounted.1") == root / "mounted.1.1"


def test_where_nothing_may_be_made_beside_it_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The administrator has given the broker's account this directory only."""
    mkdir, log = Path.mkdir, tmp_path / "log"
    log.mkdir()

    def refused(self: Path, mode: int = 0o777) -> None:
        if self.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        mkdir(self, mode)

    monkeypatch.setattr(Path, "mkdir", refused)
    assert directory_beside(log) == log / "log.1"
    assert directory_beside(log / "log.1") == log / "log.1.1"
    monkeypatch.setattr(Path, "mkdir", lambda self, mode: refused(tmp_path / "x"))
    with pytest.raises(PermissionError):
        directory_beside(log)


@pytest.mark.parametrize("stops_at", [0, 1])
def test_a_kill_leaves_the_old_log_in_its_place(
    linked: tuple[HostDisk, Path, Path], monkeypatch: pytest.MonkeyPatch, stops_at: int
) -> None:
    disk, _, _ = linked
    disk.write_atomic("commitlog/x", b"1")
    made: list[Path] = []
    symlink_to = Path.symlink_to

    def killed(self: Path, target: Path) -> None:
        if len(made) == stops_at:
            raise KilledError
        made.append(self)
        symlink_to(self, target)

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(Path, "symlink_to", killed)
        disk.set_aside("commitlog", "replaced-1/commitlog")
    assert disk.read("commitlog/x") == b"1"
    disk.set_aside("commitlog", "replaced-2/commitlog")
    assert disk.list("commitlog") == [] and disk.read("replaced-2/commitlog/x") == b"1"


def test_a_store_whose_log_is_linked_begins_its_next_log_there(linked: tuple[HostDisk, Path, Path]) -> None:
    disk, root, log = linked
    store = filled(disk)  # type: ignore[arg-type]
    old = log_bytes(store)
    commit_all(store)
    store.restart_at(PhyOffset(40960))
    assert (root / "commitlog").is_symlink() and (root / "commitlog").resolve().parent == log.parent
    assert (root / "replaced-1/commitlog").resolve() == log
    assert b"".join(path.read_bytes() for path in sorted(log.iterdir())).startswith(old)
    store.append(message(1, body=b"new"), 1)
    store.close()
    store = open_store(disk)
    commit_all(store)
    assert (store.min_phy_offset, bodies(store)[-1]) == (40960, b"new")
    store.close()


def test_a_log_that_is_a_mount_point_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    store = filled(disk)
    assert store.room_refusal(anew=True) == ""
    monkeypatch.setattr(disk, "is_mount_point", lambda path: path == "commitlog")
    assert "sim/commitlog is where a disk is mounted" in store.room_refusal(anew=True)
    empty = open_store(sim_disk())
    assert empty.room_refusal(anew=True) == "", "there is nothing to set aside"


def test_only_a_directory_where_a_disk_begins_is_a_mount_point(linked: tuple[HostDisk, Path, Path]) -> None:
    disk, root, _ = linked
    (root / "proc").symlink_to("/proc")
    assert [disk.is_mount_point(path) for path in ("commitlog", "proc", "none", "")] == [False] * 4
    assert HostDisk(Path("/")).is_mount_point("proc")
