"""Stores to damage, what must be found when they are, and whether a repair kept what it changed."""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.finding import FindingKind, StoreFinding
from rmqha.inspect.fsck import Report, check
from rmqha.inspect.fsck_repair import RepairOptions, RepairOutcome, repair
from rmqha.inspect.store_inspection import inspect_store
from rmqha.model.offset import Buffer, Epoch
from rmqha.port import AppendFile, MappedRegion
from rmqha.store.config import StoreConfig
from rmqha.store.store import Store
from tests.store.support import commit_all, message
from tests.support.tracer import RecordingTracer

OWN = StoreConfig(
    mapped_file_size_commit_log=16384,
    mapped_file_size_consume_queue=400,
    max_message_size=3000,
    max_hash_slot_num=50,
    max_index_num=80,
)
OWN_CHOICES = RepairOptions(file_size_bytes=16384, queue_file_size_bytes=400, highest_epoch=7)
NO_CHOICES = RepairOptions()
NEEDS_AN_OPERATOR = (FindingKind.IDENTITY, FindingKind.CONFIG)
"""What no repair can know."""


def make_own(root: Path, count: int = 60) -> None:
    """A store of ours after a clean stop: three files of log, three queues, two epochs, all sidecars, tables."""
    store = Store.open(HostDisk(root), OWN, RecordingTracer(), process_id=1)
    for number in range(count):
        if number in (0, count // 2):
            store.append_epoch(Epoch(3 + number // 10), store.max_phy_offset)
        store.append(
            message(
                number,
                topic="T" if number % 3 else "Other",
                queue_id=number % 2,
                body=b"%d|" % number + b"x" * (number * 37 % 900),
                properties=b"KEYS\x01k%d\x02TAGS\x01tag%d\x02UNIQ_KEY\x017F%030d\x02" % (number, number % 4, number),
            ),
            1_700_000_000_000 + number * 100,
        )
    store.accept_epoch(Epoch(7))
    commit_all(store)
    store.close()
    (root / "brokerIdentity").write_text("c#broker-a#1")
    config = root / "config"
    config.mkdir(exist_ok=True)
    table = {"dataVersion": {"counter": 1}, "topicConfigTable": {"T": {"perm": 6}, "Other": {"perm": 6}}}
    for name in ("topics.json", "topics.json.bak"):
        (config / name).write_text(json.dumps(table))


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.relative_to(root).parts[0].startswith("rmqha.fsck-")
    }


def records(root: Path) -> dict[int, bytes]:
    """Every whole and valid record by its place, over whatever is damaged."""
    store = inspect_store(HostReadDisk(root))
    reader = store.reader()
    found: dict[int, bytes] = {}
    position: int | None = store.min_offset
    while position is not None:
        for start, view, at, parts in reader.records(position, reader.max_offset):
            if parts is not None:
                found[start] = bytes(view[at : at + parts[0]])
        position = reader.next_whole(reader.stop.position + 1, reader.max_offset)
    reader.close()
    return found


def fsck(root: Path) -> Report:
    return check(HostReadDisk(root))


def mend(root: Path, choices: RepairOptions = NO_CHOICES) -> RepairOutcome:
    return repair(HostDisk(root), HostReadDisk(root), choices)


class FailingDisk(HostDisk):
    """A disk whose n-th change fails, and every one after it."""

    def __init__(self, root: Path, fail_at: int) -> None:
        super().__init__(root)
        self._left = fail_at
        self.failed = False

    def _step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.failed = True
            raise OSError(errno.EIO, "Input/output error")

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._step()
        super().write_atomic(path, data)

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> MappedRegion:
        self._step()
        return super().map(path, size_bytes, create=create, reserve=reserve, durable=durable)

    def open_append(self, path: str) -> AppendFile:
        self._step()
        return super().open_append(path)

    def rename(self, old_path: str, new_path: str) -> None:
        self._step()
        super().rename(old_path, new_path)


def with_cut(choices: RepairOptions, report: Report) -> RepairOptions:
    """The choices of an operator who gives up what stands behind the first damage."""
    if not any(finding.kind is FindingKind.LOG_DAMAGE for finding in report.faults):
        return choices
    cut_at = report.damage[0][0] if report.damage else report.end_offset
    return RepairOptions(cut_at, choices.file_size_bytes, choices.queue_file_size_bytes, choices.highest_epoch)


def left(report: Report) -> list[StoreFinding]:
    """Findings that a repair should have mended."""
    return [finding for finding in report.faults if finding.kind not in NEEDS_AN_OPERATOR]


@dataclass(frozen=True)
class Kept:
    offset: int
    data: bytes


def saved(root: Path) -> dict[str, list[Kept]]:
    """What the manifests of all repairs name, the first repair last, each with its checksum checked."""
    found: dict[str, list[Kept]] = {}
    for manifest in sorted(root.glob("rmqha.fsck-*/manifest.json"), reverse=True):
        for entry in json.loads(manifest.read_text())["entries"]:
            if not (root / entry["saved"]).exists():
                continue  # the repair was interrupted before it moved the file; `unsaved_changes` finds what is lost
            data = (root / entry["saved"]).read_bytes()
            assert len(data) == entry["length"], entry
            assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry
            found.setdefault(entry["file"], []).append(Kept(entry["offset"], data))
    return found


def unsaved_changes(root: Path, before: dict[str, bytes]) -> list[str]:
    """Bytes of `before` that are neither in their files any more nor in what a repair saved."""
    kept, now = saved(root), contents(root)
    lost = []
    for path, old in before.items():
        new = now.get(path, b"")
        rebuilt = bytearray(new[: len(old)].ljust(len(old), b"\xa5"))
        if len(new) < len(old):
            rebuilt[len(new) :] = bytes(byte ^ 0xFF for byte in old[len(new) :])
        for piece in kept.get(path, []):
            rebuilt[piece.offset : piece.offset + len(piece.data)] = piece.data
        if bytes(rebuilt) != old:
            lost.append(path)
    return lost
