"""Restores of an archive into a store, each message once: a restore that was stopped goes on where it was.

A batch is written whole or not at all (`rmqha.spark.writer`). A mark in the store says before where the log ends, so
the next run sees by the log whether that batch is in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import StoreView, ViewOptions, open_store
from rmqha.scan.position import between, record_count
from rmqha.spark.lake.archive import tables
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.writer import RESTORE_MARK, CommitLogWriter
from rmqha.store.config import StoreConfig


@dataclass(frozen=True, slots=True)
class RestoreMark:
    """The batch that was under way, and what was restored before it."""

    archive: str
    topics: list[str]
    batch_count: int
    row_count: int
    begin_offset: int
    """Physical offset at which the store's log ended."""

    @classmethod
    def parse(cls, content: bytes, where: str) -> RestoreMark:
        """The mark in a file's content. StoreError for content that is none."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise StoreError(f"{where}: expected the mark of a restore, found other content ({error})") from None


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Numbers of a restore."""

    row_count: int
    earlier_count: int
    """Number of messages among them that an earlier run had written."""


def restore(
    archive: ArchiveFiles, path: str, config: StoreConfig, topics: Sequence[str] = (), catalog: str = ""
) -> RestoreReport:
    """Append the messages of an archive, of these topics only if any are named, to the store at `path`.

    UsageError if there is no archive, the store cannot be written, or a restore into it that was stopped cannot go on.
    """
    root = Path(path).absolute()
    store = ArchiveFiles(str(root))
    address = str(archive.local_path("")) if archive.is_local else archive.address
    mark = RestoreMark.parse(store.read(RESTORE_MARK), str(root / RESTORE_MARK)) if store.exists(RESTORE_MARK) else None
    count = row_count = earlier_count = 0
    for found in tables(archive, topics, catalog):
        is_in = mark is not None and count < mark.batch_count
        if mark is not None and count == mark.batch_count:
            is_in = _is_in(mark, RestoreMark(address, sorted(topics), count, row_count, 0), root, found.num_rows)
        if not is_in:
            writer, view = CommitLogWriter(path, config, overwrite=False), _view(root)
            end = 0 if view is None else view.end_offset
            made = RestoreMark(address, sorted(topics), count, row_count, end)
            store.write(RESTORE_MARK, json.dumps(asdict(made)).encode())
            try:
                writer.write_table(found)
            except Exception:
                if not count:
                    store.remove(RESTORE_MARK)  # nothing of the archive is in
                raise
        count, row_count = count + 1, row_count + found.num_rows
        earlier_count += found.num_rows if is_in else 0
    if mark is not None and count <= mark.batch_count:
        raise _cannot_go_on(root, mark, "has fewer messages now")
    if store.exists(RESTORE_MARK):
        store.remove(RESTORE_MARK)
    return RestoreReport(row_count, earlier_count)


def _view(root: Path) -> StoreView | None:
    """The store with all that was written whole, also by a run that was killed before it closed the store."""
    return open_store(str(root), ViewOptions(uncommitted=True)) if (root / "commitlog").is_dir() else None


def _is_in(mark: RestoreMark, now: RestoreMark, root: Path, row_count: int) -> bool:
    """True if the batch of the mark is in the store. UsageError if that cannot be told."""
    if (mark.archive, mark.topics) != (now.archive, now.topics):
        raise _cannot_go_on(root, mark, "was to be restored with other words")
    if mark.row_count != now.row_count:
        raise _cannot_go_on(root, mark, "has other messages now")
    view = _view(root)
    if view is None or view.end_offset == mark.begin_offset:
        return False
    if record_count(between(view, mark.begin_offset, view.end_offset), row_count + 1) != row_count:
        raise _cannot_go_on(root, mark, "is not all that was written there since")
    return True


def _cannot_go_on(root: Path, mark: RestoreMark, why: str) -> UsageError:
    topics = f" (topics {', '.join(mark.topics)})" if mark.topics else ""
    return UsageError(
        f"{root} has a part of the archive {mark.archive}{topics}, which {why}: remove that store and restore again, "
        f"or remove {root / RESTORE_MARK} to append to it as it is"
    )
