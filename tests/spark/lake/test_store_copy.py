"""A copy of a store: the rows of the store, at every step of its renewal, whatever is killed when."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqha.cli.main import cli
from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import RowFilter, open_store, read_store
from rmqha.spark.lake.store_copy import CopyReport, CopyTarget, sync_copy
from tests.spark.lake.killing import KilledError, die_in
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack


def log(root: Path, count: int, *, epoch_2_from: int | None = None, identity: str | None = "c#group-a#1") -> LogWriter:
    """`count` messages; those from `epoch_2_from` on are of another epoch, and other ones."""
    shutil.rmtree(root, ignore_errors=True)
    writer, begin = LogWriter(root, 8192), -1
    for number in range(count):
        is_other = epoch_2_from is not None and number >= epoch_2_from
        if is_other and begin < 0:
            begin = writer.end
        body = b"other %d" % number if is_other else b"%d" % number
        writer.append(Message(topic=b"orders", body=body, queue_offset=number, stored_at_ms=1000 + number))
    epochs = "1\n0\n1-0\n" if begin < 0 else f"2\n0\n1-0\n2-{begin}\n"
    named = {} if identity is None else {"identity": identity, "epochs": epochs}
    writer.write(confirm_offset=writer.end, **named)
    return writer


def rows(root: Path | str) -> list[bytes]:
    return [body for batch in read_store(open_store(str(root))) for body in batch["body"].to_pylist()]


def sync(root: Path, target: Path | str, **how: Any) -> CopyReport:
    return sync_copy(str(root), CopyTarget(str(target), {}), **how)


def test_a_copy_has_the_stores_rows_and_only_what_changed_is_copied_again(tmp_path: Path) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    writer = log(store, 300)
    first = sync(store, copy)
    assert rows(copy) == rows(store) and first.end_offset == writer.end and first.file_count > 5
    assert sync(store, copy).file_count == 0
    log(store, 310)
    again = sync(store, copy)
    assert rows(copy) == rows(store) and again.file_count <= 4 and again.copied_bytes < first.copied_bytes / 2
    wanted = RowFilter(frozenset(["orders"])).with_values("queueOffset", frozenset([7, 305]))
    found = (batch["body"].to_pylist() for batch in read_store(open_store(str(copy)), rows=wanted))
    assert [body for bodies in found for body in bodies] == [b"7", b"305"]


def test_a_copy_ends_at_the_confirm_offset_although_queues_and_checkpoint_say_more(tmp_path: Path) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    writer = log(store, 100)
    view = open_store(str(store))
    writer = log(store, 150)
    with pytest.MonkeyPatch.context() as patch:
        # the broker goes on between the look and the copying
        patch.setattr("rmqha.spark.lake.store_copy.open_store", lambda root: view)
        sync(store, copy)
    assert len(rows(copy)) == 100 and open_store(str(copy)).end_offset == view.end_offset
    sync(store, copy)
    assert rows(copy) == rows(store) and open_store(str(copy)).end_offset == writer.end


@pytest.mark.parametrize("identity", ["c#group-a#1", None])
def test_a_log_that_was_cut_and_written_anew_is_copied_anew_from_there(tmp_path: Path, identity: str | None) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    log(store, 300, identity=identity)
    sync(store, copy)
    log(store, 310, epoch_2_from=200, identity=identity)
    report = sync(store, copy)
    assert rows(copy) == rows(store) and report.was_cut
    assert report.file_count < 30, "what is before the cut stays"


def test_a_replica_that_is_behind_is_waited_for(tmp_path: Path) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    log(store, 300)
    sync(store, copy)
    log(store, 200, identity="c#group-a#2")
    assert sync(store, copy).file_count == 0 and len(rows(copy)) == 300
    log(store, 400, identity="c#group-a#2")
    sync(store, copy)
    assert len(rows(copy)) == 400
    log(store, 10, identity="c#group-b#1")
    with pytest.raises(UsageError, match="is a copy of c#group-a, not of c#group-b"):
        sync(store, copy)


@pytest.mark.parametrize("keeps", [False, True])
def test_passwords_are_in_no_copy_and_leave_one_that_an_older_release_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    store = tmp_path / "s"
    log(store, 3)
    for name in ("auth", "topics"):
        (store / "config").mkdir(exist_ok=True)
        (store / "config" / f"{name}.json").write_text('{"users": {"ann": {"password": "secret"}}}')
    sync(store, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy" / "config").iterdir()) == ["topics.json"]
    with monkeypatch.context() as older:
        older.setattr("rmqha.spark.lake.store_copy.USERS", "")
        sync(store, tmp_path / "older")
    assert (tmp_path / "older" / "config" / "auth.json").exists()
    sync(store, tmp_path / "older", keeps=keeps)
    assert not (tmp_path / "older" / "config" / "auth.json").exists()


def test_files_that_the_store_lets_go_leave_the_copy_unless_they_are_kept(tmp_path: Path) -> None:
    store = tmp_path / "s"
    log(store, 300)
    for name in ("copy", "kept"):
        sync(store, tmp_path / name)
    (store / "commitlog" / f"{0:020}").unlink()
    assert sync(store, tmp_path / "copy").removed_count == 1 and rows(tmp_path / "copy") == rows(store)
    sync(store, tmp_path / "kept", keeps=True)
    assert len(rows(tmp_path / "kept")) == 300
    log(store, 310)
    (store / "commitlog" / f"{0:020}").unlink()
    sync(store, tmp_path / "kept", keeps=True)
    assert len(rows(tmp_path / "kept")) == 310


def test_what_a_copy_says_of_itself_is_on_the_disk_before_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power leaves zeros where the copy says that it has the file, and no later run looks there."""
    durable, named = set[str](), set[str]()
    fsync, replace, remove = os.fsync, Path.replace, CopyTarget.remove

    def noting_fsync(handle: int) -> None:
        place = str(Path(f"/proc/self/fd/{handle}").readlink())
        durable.add(place)
        named.difference_update({name for name in named if str(Path(name).parent) == place})
        fsync(handle)

    def noting_replace(self: Path, target: str) -> Path:
        assert str(self) in durable, f"the content of {target} is not durable"
        assert not named, f"the names of {named} are not durable"
        durable.discard(str(self))
        named.add(target)
        return replace(self, target)

    def noting_remove(self: CopyTarget, path: str) -> None:
        assert not named, f"the names of {named} are not durable"
        remove(self, path)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    monkeypatch.setattr(CopyTarget, "remove", noting_remove)
    log(tmp_path / "s", 60)
    assert sync(tmp_path / "s", tmp_path / "copy").file_count > 3
    log(tmp_path / "s", 90)
    assert sync(tmp_path / "s", tmp_path / "copy").file_count > 3
    assert rows(tmp_path / "copy") == rows(tmp_path / "s")


@pytest.mark.parametrize("whole", [0, 100])
def test_what_a_killed_run_left_is_no_hole_once_the_store_has_let_it_go(tmp_path: Path, whole: int) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    if whole:
        log(store, whole)
        sync(store, copy)
    log(store, 300)
    with pytest.MonkeyPatch.context() as patch:
        die_in(patch, CopyTarget, "write", 3, is_before=False)
        with suppress(KilledError):
            sync(store, copy)
    left = len(list((copy / "commitlog").iterdir()))
    (copy / "commitlog" / "half.tmp").touch()
    log(store, 900)
    for path in sorted((store / "commitlog").iterdir())[: left + 2]:
        path.unlink()
    sync(store, copy)
    assert rows(copy) == rows(store)
    assert names(copy) == names(store)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "commitlog").iterdir())


def test_older_files_are_kept_only_if_the_log_goes_on_from_them(tmp_path: Path) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    log(store, 100)
    sync(store, copy, keeps=True)
    writer = log(store, 600)
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()
    with pytest.raises(StoreError, match=r"begins at 24576, .* was removed before it was copied"):
        sync(store, copy, keeps=True)
    assert len(rows(copy)) == 100
    sync(store, copy)
    assert rows(copy) == rows(store) and open_store(str(copy)).end_offset == writer.end


def test_a_reader_of_a_copy_that_lacks_a_stretch_sees_no_gap_while_it_is_renewed(tmp_path: Path) -> None:
    """The store has let go what lies between: until the new files are whole the copy is what it was."""
    store, copy = tmp_path / "s", tmp_path / "copy"
    log(store, 100)
    sync(store, copy)
    shutil.copytree(copy, tmp_path / "before")
    before = rows(copy)
    log(store, 600)
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()
    seen = set()
    for step in ("write", "remove"):
        for left in range(20):
            shutil.rmtree(copy)
            shutil.copytree(tmp_path / "before", copy)
            with pytest.MonkeyPatch.context() as patch:
                die_in(patch, CopyTarget, step, left, is_before=False)
                with suppress(KilledError):
                    sync(store, copy)
            held = rows(copy)
            seen.add(len(held))
            is_whole = not (copy / "rmqha.write").exists()
            assert held == rows(store) if is_whole else held == before or step == "remove"
            sync(store, copy)
            assert rows(copy) == rows(store)
    assert {len(before), len(rows(store))} <= seen


def test_files_of_another_history_are_not_kept(tmp_path: Path) -> None:
    store, copy = tmp_path / "s", tmp_path / "copy"
    log(store, 400)
    sync(store, copy, keeps=True)
    log(store, 150, epoch_2_from=100)
    sync(store, copy, keeps=True)
    assert rows(copy) == rows(store)
    assert names(copy) == names(store)


@settings(max_examples=40)
@example([("write", 0, False, False), ("write", 7, False, False), ("write", 1, False, True)])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "remove"]), st.integers(0, 25), st.booleans(), st.booleans()), max_size=4
    )
)
def test_a_copy_is_readable_and_right_whatever_is_killed_when(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bool, bool]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    store, copy, count, whole = root / "s", root / "copy", 60, False
    for name, left, is_before, cuts in steps:
        log(store, count, epoch_2_from=40 if cuts else None)
        with pytest.MonkeyPatch.context() as patch:
            die_in(patch, CopyTarget, name, left, is_before)
            with suppress(KilledError):
                sync(store, copy)
                whole = True
        if whole and (copy / "checkpoint").exists():
            held = rows(copy)
            assert held == rows(store)[: len(held)] or held == _rows_before(held), "no row of two histories"
        count += 30
    log(store, count)
    sync(store, copy)
    assert rows(copy) == rows(store)


def _rows_before(held: list[bytes]) -> list[bytes]:
    """The messages of one of the two histories."""
    plain = [b"%d" % number for number in range(len(held))]
    return plain if held == plain else [*plain[:40], *(b"other %d" % number for number in range(40, len(held)))]


def test_a_real_store_is_copied_by_the_command_and_found_whole(tmp_path: Path) -> None:
    golden = unpack("n0", tmp_path) / "n0"
    done = CliRunner().invoke(cli, ["log", "sync", str(golden), "--to", str(tmp_path / "copy"), "-o", "json"])
    assert done.exit_code == 0, done.output
    assert rows(tmp_path / "copy") == rows(golden)
    checked = CliRunner().invoke(cli, ["fsck", str(tmp_path / "copy")])
    assert checked.exit_code == 0, checked.output
    wrong = CliRunner().invoke(cli, ["log", "sync", str(golden), "--to", "nosuch://a/b"])
    assert isinstance(wrong.exception, UsageError) and "nosuch://a/b cannot be opened" in str(wrong.exception)
