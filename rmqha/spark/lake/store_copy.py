"""A copy of a store to be read elsewhere: made once, then brought up to date by what has changed.

Files are written in an order in which the copy can be read at any moment: first a mark (`rmqha.write`) says how far the
copy counts, then come the log, the queues, the tables and the checkpoint, and in the end the mark is removed. The copy
ends at the confirm offset of the moment: no entry of a queue, and no checkpoint, names more. A log that was cut and
written anew is copied anew from there. The next run finishes what a killed run left, after a loss of power too: each
file is durable before the next.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import StoreView, open_store
from rmqha.scan.files import CONFIRM_OFFSET_AT, WRITE_MARK
from rmqha.scan.queues import BATCH_UNIT_BYTES, UNIT_BYTES
from rmqha.scan.storage import file_system
from rmqha.spark.lake.files import sync_path

STATE, MARK = "rmqha.sync", "rmqha.write"
USERS = "config/auth.json"
"""Users with their passwords: no copy has them, since a copy is read by others than the broker."""
VERSION = 1
QUEUES = {"consumequeue": UNIT_BYTES, "batchconsumequeue": BATCH_UNIT_BYTES}
BLOCK_BYTES = 8 * 1024 * 1024
CHECKED_BYTES = 4096


@dataclass(slots=True)
class SyncedFiles:
    """Content of the copy, as the last whole run left it."""

    end_offset: int = 0
    epochs: list[list[int]] = field(default_factory=list)
    files: dict[str, list[int]] = field(default_factory=dict)
    """Size and CRC of a queue's or a table's file, size and 0 of a log file, by path."""
    version: int = VERSION

    def forget_behind(self, offset: int) -> None:
        """Trust no more than the log below `offset`: a killed run may have written all else."""
        self.end_offset = min(self.end_offset, offset)
        self.files = {name: told if name.startswith("commitlog/") else [-1, 0] for name, told in self.files.items()}

    @classmethod
    def parse(cls, content: bytes, where: str) -> SyncedFiles:
        """The record in a file's content. StoreError for content that is none, or of a newer version."""
        try:
            given = json.loads(content)
            if int(given["version"]) > VERSION:
                raise StoreError(f"{where} has version {given['version']}, this release reads up to {VERSION}")
            return cls(**given)
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{where}: expected the state of a copy, found other content ({error})") from None


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Numbers of a copy run."""

    end_offset: int
    file_count: int
    copied_bytes: int
    removed_count: int
    was_cut: bool
    """True if the log had been cut below what was copied."""


class CopyTarget:
    """Place of a copy: a directory or an address that fsspec knows; paths are relative."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        """UsageError if it cannot be used."""
        self.address = address
        self._files, self._root = file_system(address, options)
        self._is_local = "file" in np.atleast_1d(self._files.protocol)

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def read(self, path: str, span: tuple[int, int] | None = None) -> bytes | None:
        """A file, or its bytes [start, end); None if there is none."""
        try:
            start, end = span or (None, None)
            return bytes(self._files.cat_file(self._at(path), start=start, end=end))
        except FileNotFoundError:
            return None

    def write(self, path: str, blocks: Iterator[bytes] | list[bytes], length_bytes: int = 0) -> int:
        """Write a file, whole; where it is no object store it takes the old file's place in the end. Returns the number
        of bytes. On a local disk the file has at least `length_bytes`, zeros behind what is written, and is durable."""
        place, size = self._at(path), 0
        self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        aside = f"{place}.tmp" if self._is_local else place
        with self._files.open(aside, "wb") as file:
            for block in blocks:
                file.write(block)
                size += len(block)
        if self._is_local:
            os.truncate(aside, max(size, length_bytes))
            sync_path(Path(aside))
            Path(aside).replace(place)
            sync_path(Path(place).parent)
        return size

    def files(self, directory: str) -> list[str]:
        """Paths of all files in a directory and below it, none if it is not there."""
        root = self._root.rstrip("/")
        self._files.invalidate_cache()
        try:
            return [str(name).removeprefix(f"{root}/") for name in self._files.find(f"{root}/{directory}")]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._files.rm_file(self._at(path))
        except FileNotFoundError:
            return


def sync_copy(
    root: str, target: CopyTarget, *, keeps: bool = False, say: Callable[[str], None] = lambda text: None
) -> CopyReport:
    """Bring the copy up to what the store has committed now. `keeps`: files that the store has let go stay in the copy.
    StoreError for damage, and for a store that is not the one that was copied."""
    return _Run(root, target, keeps, say).run()


class _Run:
    def __init__(self, root: str, target: CopyTarget, keeps: bool, say: Callable[[str], None]) -> None:
        self._root, self._target, self._keeps, self._say = Path(root), target, keeps, say
        self._left: list[str] = []
        """Files that a killed run had made, and that no whole run knows."""
        content = target.read(STATE)
        self._before = SyncedFiles() if content is None else SyncedFiles.parse(content, f"{target.address}/{STATE}")
        if (mark := target.read(MARK)) is not None:
            self._before.forget_behind(_marked(mark))
            made = [name for directory in ("commitlog", *QUEUES) for name in target.files(directory)]
            self._left = [name for name in made if name not in self._before.files]
        self._view = open_store(root)
        self._now = SyncedFiles(self._view.end_offset, [list(item) for item in self._view.epochs])
        self._count = self._bytes = 0

    def run(self) -> CopyReport:
        self._check_identity()
        self._check_no_hole()
        common = self._same_bytes(_common_end(self._view, self._before))
        if common == self._view.end_offset < self._before.end_offset:
            return CopyReport(self._before.end_offset, 0, 0, 0, False)  # this replica is behind the one that was copied
        was_cut = common < self._before.end_offset
        self._target.write(MARK, [f"1 {common}\n".encode()])
        self._log(common)
        for name, unit_bytes in QUEUES.items():
            self._queues(name, unit_bytes)
        for path in sorted(self._root.glob("config/*.json")):
            if f"config/{path.name}" != USERS:
                self._small(f"config/{path.name}", path.read_bytes())
        for name in ("brokerIdentity", "epochFileCheckpoint"):
            if (self._root / name).exists():
                self._small(name, (self._root / name).read_bytes())
        self._small("checkpoint", self._checkpoint())
        if self._keeps:
            older = {
                name: told for name, told in self._before.files.items() if not self._is_behind(name) and name != USERS
            }
            self._now.files = older | self._now.files
        gone = [name for name in (*self._before.files, *self._left) if name not in self._now.files]
        self._target.write(STATE, [json.dumps(asdict(self._now)).encode()])
        # to the last: where the store no longer goes on from them they are what readers see until the mark goes
        for name in gone:
            self._target.remove(name)
        self._target.remove(MARK)
        return CopyReport(self._view.end_offset, self._count, self._bytes, len(gone), was_cut)

    def _is_behind(self, path: str) -> bool:
        """True of a log file behind the end, which belongs to another history."""
        directory, _, name = path.partition("/")
        return directory == "commitlog" and int(name) >= self._view.end_offset

    def _check_no_hole(self) -> None:
        """StoreError if older files that are to be kept do not reach up to where the store begins by now."""
        begin = self._view.files[0].base_offset if self._view.files else self._view.end_offset
        held = any(name.startswith("commitlog/") for name in self._before.files)
        if self._keeps and held and begin > self._before.end_offset:
            raise StoreError(
                f"{self._root} begins at {begin}, and the copy ends at {self._before.end_offset}: what is between was "
                "removed before it was copied; give another address, or no --keep, and the older files go"
            )

    def _same_bytes(self, common: int) -> int:
        """The offset, or the beginning of a file before it, up to which store and copy have the same last bytes: a
        plain broker has no epochs that would tell of a cut."""
        for name in reversed(self._view.files):
            stop = min(common, name.end_offset)
            if name.base_offset < stop:
                start = max(stop - CHECKED_BYTES, name.base_offset)
                span = start - name.base_offset, stop - name.base_offset
                with Path(name.path).open("rb") as file:
                    file.seek(span[0])
                    ours = file.read(span[1] - span[0])
                if self._target.read(f"commitlog/{name.base_offset:020}", span) == ours:
                    return common
                common = name.base_offset
        return min(common, self._view.min_offset) if self._view.files else common

    def _check_identity(self) -> None:
        theirs, ours = self._target.read("brokerIdentity"), self._view
        if theirs is not None and ours.broker_name is not None:
            parts = theirs.decode("utf-8", "replace").strip().split("#")
            if parts[:2] != [ours.cluster, ours.broker_name]:
                raise UsageError(
                    f"{self._target.address} is a copy of {'#'.join(parts[:2])}, not of "
                    f"{ours.cluster}#{ours.broker_name}: give another address"
                )

    def _log(self, common: int) -> None:
        for name in self._view.files:
            size = min(name.end_offset, self._view.end_offset) - name.base_offset
            path = f"commitlog/{name.base_offset:020}"
            self._now.files[path] = [size, 0]
            if self._before.files.get(path) == [size, 0] and name.base_offset + size <= common:
                continue
            self._put(path, _blocks(Path(name.path), size), name.size_bytes)
            self._say(f"{path}: {size:,} bytes")

    def _queues(self, directory: str, unit_bytes: int) -> None:
        for path in sorted(self._root.glob(f"{directory}/*/*/*")):
            if not path.name.isdecimal():
                continue
            relative = str(path.relative_to(self._root))
            content = _cut_units(path.read_bytes(), unit_bytes, self._view.end_offset)
            self._small(relative, content)

    def _small(self, path: str, content: bytes) -> None:
        mark = [len(content), zlib.crc32(content)]
        self._now.files[path] = mark
        if self._before.files.get(path) != mark:
            self._put(path, [content])

    def _checkpoint(self) -> bytes:
        """The store's checkpoint, with the copy's end as its confirm offset."""
        path = self._root / "checkpoint"
        content = bytearray(path.read_bytes() if path.exists() else b"")
        content.extend(bytes(max(4096 - len(content), 0)))
        struct.pack_into(">q", content, CONFIRM_OFFSET_AT, self._view.end_offset)
        return bytes(content)

    def _put(self, path: str, blocks: Iterator[bytes] | list[bytes], length_bytes: int = 0) -> None:
        self._bytes += self._target.write(path, blocks, length_bytes)
        self._count += 1


def _marked(content: bytes) -> int:
    """Physical offset up to which the copy counted when a run began; 0 for a mark that says nothing."""
    found = WRITE_MARK.fullmatch(content)
    return int(found[1]) if found is not None else 0


def _common_end(view: StoreView, before: SyncedFiles) -> int:
    """Physical offset up to which the histories of the store and of the copy are the same."""
    end = min(before.end_offset, view.end_offset)
    epochs = [(epoch, start) for epoch, start in before.epochs]
    for theirs, ours in zip_longest(epochs, view.epochs):
        if theirs != ours:
            return max(min([end, *(item[1] for item in (theirs, ours) if item is not None)]), 0)
    return end


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a file. StoreError if it has become shorter."""
    with path.open("rb", buffering=0) as file:
        left = size
        while left:
            block = file.read(min(left, BLOCK_BYTES))
            if not block:
                raise StoreError(f"{path} was removed or shortened while it was copied: ask again")
            left -= len(block)
            yield block


def _cut_units(content: bytes, unit_bytes: int, end_offset: int) -> bytes:
    """A queue's file without entries of records behind `end_offset`: zeros, as where nothing was written."""
    count = len(content) // unit_bytes
    units = np.frombuffer(content, np.uint8, count * unit_bytes).reshape(count, unit_bytes)
    ends = _number(units, 0, ">i8", 8) + _number(units, 8, ">i4", 4)
    if not (ends > end_offset).any():
        return content
    kept = units.copy()
    kept[ends > end_offset] = 0
    return kept.tobytes() + content[count * unit_bytes :]


def _number(units: Any, at: int, kind: str, size: int) -> Any:
    return np.ascontiguousarray(units[:, at : at + size]).view(kind)[:, 0].astype(np.int64)
