"""A restore that was stopped anywhere goes on, and has each message once in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import ViewOptions, open_store, read_store
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.lake.restore import RestoreReport, restore
from rmqha.spark.writer import CommitLogWriter
from tests.spark.lake.killing import KilledError, die_in
from tests.spark.lake.test_archive import log, run
from tests.spark.test_writer import CONFIG, ROW, commit
from tests.support.patience import HANG_S


def again(root: Path, topics: Sequence[str] = ()) -> RestoreReport:
    return restore(ArchiveFiles(str(root / "a")), str(root / "again"), CONFIG, topics)


def messages(store: Path) -> list[tuple[Any, ...]]:
    batches = read_store(open_store(str(store), ViewOptions(uncommitted=True)))
    return [(row["topic"], row["storeTimestamp"]) for batch in batches for row in batch.to_pylist()]


def archive(root: Path, count: int = 60) -> None:
    log(root / "s", count)
    run(root / "a", root / "s")


def stopped(root: Path, owner: Any, step: str, count: int, is_before: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_in(patch, owner, step, count, is_before)
        with suppress(KilledError):
            again(root)
            raise AssertionError("it was not stopped")


@pytest.mark.parametrize(
    ("owner", "step", "count", "is_before"),
    [
        *((ArchiveFiles, "write", count, is_before) for count in (0, 2) for is_before in (True, False)),
        *((CommitLogWriter, "commit", count, is_before) for count in (0, 2) for is_before in (True, False)),
        (ArchiveFiles, "remove", 0, True),
    ],
)
def test_a_stopped_restore_goes_on(tmp_path: Path, owner: Any, step: str, count: int, is_before: bool) -> None:
    archive(tmp_path)
    stopped(tmp_path, owner, step, count, is_before)
    done = again(tmp_path)
    assert done.row_count == 60
    assert messages(tmp_path / "again") == messages(tmp_path / "s")
    assert not (tmp_path / "again" / "rmqha.restore").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from rmqha.store.store import Store
from tests.spark.lake.test_restore import again

root, step, left = Path(sys.argv[1]), sys.argv[2], [1]
called = getattr(Store, step)

def dying(*arguments, **named):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return called(*arguments, **named)

setattr(Store, step, dying)
again(root)
"""


@pytest.mark.parametrize("step", ["end_write", "close"])
def test_a_killed_restore_goes_on(tmp_path: Path, step: str) -> None:
    archive(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), step],
        timeout=HANG_S,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == -signal.SIGKILL
    report = again(tmp_path)
    assert report.row_count == 60 > report.earlier_count > 0
    # store timestamps never fall, also behind those of a write that was cut off
    found, wanted = messages(tmp_path / "again"), messages(tmp_path / "s")
    assert [topic for topic, _ in found] == [topic for topic, _ in wanted]
    assert all(now >= then for (_, now), (_, then) in zip(found, wanted, strict=True))


def test_a_restore_that_cannot_go_on_says_what_to_do(tmp_path: Path) -> None:
    archive(tmp_path)
    stopped(tmp_path, CommitLogWriter, "commit", 1, False)
    store, before = tmp_path / "again", messages(tmp_path / "again")
    with pytest.raises(UsageError, match=f"{store} has a part of the archive {tmp_path / 'a'}, which was to be rest"):
        again(tmp_path, ["orders"])
    commit(store, ROW)
    with pytest.raises(UsageError, match=f"not all that was written there since: remove that store .* {store}/rmqha"):
        again(tmp_path)
    assert messages(store)[:-1] == before, "nothing was added to it"
    (store / "rmqha.restore").write_text("{}")
    with pytest.raises(StoreError, match="expected the mark of a restore, found other content"):
        again(tmp_path)


def test_an_archive_that_has_changed_meanwhile_is_told(tmp_path: Path) -> None:
    archive(tmp_path)
    stopped(tmp_path, CommitLogWriter, "commit", 2, True)
    (tmp_path / "a").rename(tmp_path / "old")
    archive(tmp_path, 10)
    with pytest.raises(UsageError, match="which has fewer messages now: remove that store and restore again"):
        again(tmp_path)


def test_a_restore_that_is_refused_leaves_no_mark(tmp_path: Path) -> None:
    archive(tmp_path)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "notes.txt").touch()
    with pytest.raises(UsageError, match="is not a store and not empty"):
        again(tmp_path)
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["notes.txt"]


def test_what_an_archive_has_more_is_appended_by_no_second_restore_twice(tmp_path: Path) -> None:
    archive(tmp_path)
    stopped(tmp_path, CommitLogWriter, "commit", 1, True)
    archive(tmp_path, 90)
    assert again(tmp_path).row_count == 90
    assert messages(tmp_path / "again") == messages(tmp_path / "s")
