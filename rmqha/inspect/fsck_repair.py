"""Control plane: repair of findings that need no choice. All bytes that it changes are saved first (`fsck_backup`).

Order: the log first, then a second check, then what is derived from the log and the small files, then a last check. A
finding that needs a choice (a bad record with good ones behind it, the highest epoch, an identity) stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rmqha.inspect.finding import FindingKind, StoreFinding
from rmqha.inspect.fsck import Report, check
from rmqha.inspect.fsck_backup import RepairBackup
from rmqha.inspect.fsck_index import DIRECTORY as INDEX_DIRECTORY
from rmqha.inspect.fsck_metadata import table_error
from rmqha.inspect.fsck_rebuild import rebuild_queues
from rmqha.inspect.log_reader import LogPiece, LogReader
from rmqha.inspect.store_inspection import EPOCHS_LIMIT_BYTES, LOCK_PATH, StoreInspection, size_of
from rmqha.model.epoch import EpochHistory
from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import PhyOffset
from rmqha.port import Disk, ReadDisk
from rmqha.store.log.record import BLANK, MAGIC_BLANK
from rmqha.store.meta import epoch_file, sidecar
from rmqha.store.meta.boot_file import PATH as BOOT_PATH
from rmqha.store.meta.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_PATH, PROGRESS_PATH, Checkpoint
from rmqha.store.meta.config_file import TABLE_LIMIT_BYTES, with_quoted_keys
from rmqha.store.meta.epoch_file import BadEpochFileError, HighestEpochFile
from rmqha.store.meta.problem import disk_errors, place, usage_errors

ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Options that only the operator can make."""

    cut_at: int | None = None
    """Physical offset from which the log is dropped."""
    file_size_bytes: int | None = None
    """Size of a log file (mappedFileSizeCommitLog), if the files do not tell it."""
    queue_file_size_bytes: int | None = None
    highest_epoch: int | None = None


@dataclass(slots=True)
class RepairOutcome:
    """Result of a repair, with the check before and after it. `actions` are sentences; `directory` holds what was
    saved, "" if nothing had to be."""

    before: Report
    after: Report
    actions: list[str] = field(default_factory=list)
    directory: str = ""


def repair(disk: Disk, reader: ReadDisk, choices: RepairOptions) -> RepairOutcome:
    """Lock the store, check it, mend it, check it again. UsageError for a store in use and for a choice that does not
    fit, with nothing changed; StoreError if the disk fails on the way: what was saved stays."""
    before = check(reader)
    if before.store.live:
        raise UsageError(f"{reader.label} is in use by a running broker: stop it, then repair")
    with usage_errors(disk, LOCK_PATH, "lock the store"):
        release = disk.lock(LOCK_PATH)
    if release is None:
        raise UsageError(f"{reader.label} is in use by a running broker: stop it, then repair")
    try:
        with disk_errors(disk, "", "repair the store"):
            return _Repair(disk, reader, choices).run(before)
    finally:
        release()


def _may_be_cut(report: Report) -> bool:
    """True if something in the log is not whole."""
    kinds = FindingKind.LOG_TAIL, FindingKind.LOG_DAMAGE
    return bool(report.damage) or any(finding.kind in kinds for finding in report.faults)


class _Repair:
    def __init__(self, disk: Disk, reader: ReadDisk, choices: RepairOptions) -> None:
        self._disk = disk
        self._reader = reader
        self._choices = choices
        self._backup = RepairBackup(disk, reader)
        self._actions: list[str] = []

    def run(self, before: Report) -> RepairOutcome:
        report = before
        cut_at = self._choices.cut_at
        if self._complete_blanks(report):
            report = self._check()
            if cut_at is not None and not _may_be_cut(report):
                self._actions.append(f"nothing was cut at {cut_at}: every record is whole now")
                cut_at = None
        if cut_at is not None:
            self._require_boundary(report, cut_at)
        sizes = [finding for finding in report.faults if finding.kind is FindingKind.LOG_SIZE]
        tail = any(finding.kind is FindingKind.LOG_TAIL for finding in report.faults)
        if cut_at is not None or (not report.damage and (tail or sizes)):
            self._cut(report.store, report.end_offset if cut_at is None else cut_at)
            report = self._check()
        for finding in report.faults:
            self._repair_finding(finding, report)
        self._repair_derived(report)
        after = self._check()
        return RepairOutcome(before, after, self._actions, self._backup.directory if self._backup.entries else "")

    def _check(self) -> Report:
        return check(self._reader, locked_by_us=True)

    # --- the log ----------------------------------------------------------------------------------------------------
    def _file_size(self, store: StoreInspection) -> int:
        """Size of a log file. Raises UsageError if nothing tells it."""
        size = self._choices.file_size_bytes
        files = store.log.files
        if size is None:
            return store.log.file_size_bytes
        if any(piece.start_offset % size for piece in files) or size < BLANK.size:
            raise UsageError(
                f"--file-size {size} does not fit the names of the log's files; see the broker's configuration"
            )
        return size

    def _complete_blanks(self, report: Report) -> bool:
        """Complete files with zeros that end within their blank record, which has no content; True if any did."""
        changed = False
        store, wanted = report.store, self._file_size(report.store)
        for start, _ in report.damage:
            piece = next((piece for piece in store.log.files if piece.start_offset <= start < piece.end_offset), None)
            if piece is None or store.log.sizes[piece.path] >= wanted:
                continue
            head = LogReader(self._reader, (piece,)).read(piece, start - piece.start_offset, BLANK.size)
            if len(head) == BLANK.size and BLANK.unpack(head) == (piece.start_offset + wanted - start, MAGIC_BLANK):
                self._extend(piece.path, wanted)
                changed = True
        return changed

    def _extend(self, path: str, size_bytes: int) -> None:
        with disk_errors(self._disk, path, "complete it with zeros"):
            self._disk.map(path, size_bytes).close()
        self._actions.append(f"{path} was completed with zeros to {size_bytes} bytes")

    def _require_boundary(self, report: Report, cut_at: int) -> None:
        """UsageError unless the log may be cut there: at the start or end of a record, with damage not before it."""
        store = report.store
        worst = report.damage[0][0] if report.damage else report.end_offset
        if not _may_be_cut(report):
            raise UsageError(f"--cut-at {cut_at}: every record of {self._reader.label} is whole, nothing has to be cut")
        if not store.min_offset <= cut_at <= worst:
            raise UsageError(
                f"--cut-at {cut_at} must lie between the log's start {store.min_offset} and its first damage at {worst}"
            )
        reader = store.reader()
        for _ in reader.records(store.min_offset, cut_at):
            pass
        reader.close()
        if reader.stop.position != cut_at:
            raise UsageError(
                f"--cut-at {cut_at} is no record's start; the one before it starts at {reader.stop.position}"
            )

    def _cut(self, store: StoreInspection, end: int) -> None:
        """Make `end` the log's end: the bytes behind it are saved, then zeroed or set aside, the last file first."""
        wanted = self._file_size(store)
        reader = store.reader()
        sizes = store.log.sizes
        files = [LogPiece(piece.path, piece.start_offset, sizes[piece.path]) for piece in store.log.files]
        behind = [piece for piece in files[1:] if piece.start_offset >= end]
        foul = [
            index
            for index, piece in enumerate(behind)
            if piece.size_bytes != wanted or LogReader(self._reader, (piece,)).used_end(piece, 0)
        ]
        moved = behind[min(foul) :] if foul else []
        if end < store.committed_end:
            self._mark_unclean(f"the log was cut to {end}, below its committed end {store.committed_end}")
        for piece in reversed(moved):
            self._backup.move(piece.path)
            self._actions.append(f"{piece.path}, behind the log's end {end}, was set aside")
        for piece in files:
            if piece in moved or piece in behind:
                continue
            self._zero_behind(piece, max(end - piece.start_offset, 0), wanted)
        reader.close()

    def _zero_behind(self, piece: LogPiece, at: int, wanted: int) -> None:
        """Zero the bytes of a file from `at` on, and make its size `wanted`."""
        path = piece.path
        if piece.size_bytes > wanted:
            self._backup.copy(path, wanted)
            with disk_errors(self._disk, path, "cut it"):
                file = self._disk.open_append(path)
                file.truncate(wanted)
                file.sync()
                file.close()
            self._actions.append(f"{path} was cut to {wanted} bytes")
        rest = LogPiece(path, piece.start_offset, min(piece.size_bytes, wanted))
        used = LogReader(self._reader, (rest,)).used_end(rest, at) if at < rest.size_bytes else at
        if used > at:
            self._backup.copy(path, at, used - at)
            with disk_errors(self._disk, path, "zero its end"):
                region = self._disk.map(path, rest.size_bytes)
                for position in range(at, used, len(ZEROS)):
                    region.write(position, ZEROS[: min(len(ZEROS), used - position)])
                region.sync()
                region.close()
            self._actions.append(f"{path}: {used - at} bytes from byte {at} on were zeroed")
        if rest.size_bytes < wanted:
            self._extend(path, wanted)

    def _mark_unclean(self, reason: str) -> None:
        """Mark the store unclean (ruling 3): a replica that has lost acknowledged records must follow a master before
        it may be one."""
        boot_id, failed = "", False
        if self._disk.exists(BOOT_PATH):
            self._backup.copy(BOOT_PATH)
            try:
                fields = sidecar.decode(self._disk.read(BOOT_PATH), place(self._disk, BOOT_PATH))
                boot_id, failed = str(fields.get("boot_id", "")), fields.get("failed") is True
            except sidecar.BadSidecarError:
                boot_id = ""
        kept = {"boot_id": boot_id, "unclean": True}
        sidecar.write(self._disk, BOOT_PATH, kept | {"failed": True} if failed else kept)
        self._actions.append(f"this replica counts as unclean, {reason}: it follows a master before it may be one")

    # --- small files ------------------------------------------------------------------------------------------------
    def _repair_finding(self, finding: StoreFinding, report: Report) -> None:
        steps: dict[FindingKind, Callable[[StoreFinding, Report], None]] = {
            FindingKind.CHECKPOINT: self._checkpoint,
            FindingKind.PROGRESS: self._progress,
            FindingKind.EPOCHS: self._epochs,
            FindingKind.EPOCH_BACKUP: self._epoch_backup,
            FindingKind.BOOT: self._boot,
            FindingKind.HIGHEST_EPOCH: self._highest_epoch,
            FindingKind.SIDECAR: self._aside,
            FindingKind.PENDING_IDENTITY: self._aside,
            FindingKind.CONFIG: self._config,
            FindingKind.CONFIG_BACKUP: self._config_backup,
            FindingKind.CONFIG_KEYS: self._config_keys,
        }
        step = steps.get(finding.kind)
        if step is not None:
            step(finding, report)

    def _write(self, path: str, data: bytes, action: str) -> None:
        if self._disk.exists(path):
            if self._disk.read(path) == data:
                return
            self._backup.copy(path)
        with disk_errors(self._disk, path, "write the file"):
            self._disk.write_atomic(path, data)
        self._actions.append(f"{path} {action}")

    def _aside(self, finding: StoreFinding, report: Report) -> None:
        if self._disk.exists(finding.path):
            self._backup.move(finding.path)
            self._actions.append(f"{finding.path} was set aside")

    def _checkpoint(self, finding: StoreFinding, report: Report) -> None:
        """Write a checkpoint that keeps the plausible times; the others begin anew, which costs a start some
        reading."""
        data = self._disk.read(CHECKPOINT_PATH).ljust(CHECKPOINT_BYTES, b"\0")
        end = report.end_offset
        try:
            old = Checkpoint.decode(data)
        except ValueError:
            old = Checkpoint()
        if old.confirm_phy_offset > end:
            self._mark_unclean(f"the checkpoint confirms up to {old.confirm_phy_offset} and the log ends at {end}")
        times = (old.physic_msg_timestamp_ms, old.logics_msg_timestamp_ms, old.index_msg_timestamp_ms)
        if max(times) > report.last_stored_ms:
            times = (0, 0, 0)
        value = Checkpoint(*times, old.master_flushed_offset, min(old.confirm_phy_offset, end))
        self._write(CHECKPOINT_PATH, value.encode().ljust(CHECKPOINT_BYTES, b"\0"), "was written anew")

    def _progress(self, finding: StoreFinding, report: Report) -> None:
        if self._disk.exists(PROGRESS_PATH):
            if finding.severity == "error":
                self._mark_unclean("the log has lost records that were synced")
            self._aside(finding, report)

    def _parsed(self, path: str) -> EpochHistory | None:
        """The history of an epoch file, None if it is missing or damaged."""
        try:
            return epoch_file.parse(self._reader.read(path, EPOCHS_LIMIT_BYTES))
        except (OSError, BadEpochFileError):
            return None

    def _epoch_copy(self) -> EpochHistory | None:
        """Our copy of the epoch file, if it can be read and nobody has added an epoch since."""
        path = epoch_file.COPY_PATH
        try:
            data = self._disk.read(path) if self._disk.exists(path) else b""
            copy = epoch_file.decode_copy(sidecar.decode(data, place(self._disk, path)))
            backup = epoch_file.BACKUP_PATH
            return (
                copy
                if epoch_file.is_newer(copy, self._disk.read(backup) if self._disk.exists(backup) else None)
                else None
            )
        except (OSError, StoreError, sidecar.BadSidecarError):
            return None

    def _epochs(self, finding: StoreFinding, report: Report) -> None:
        history = self._parsed(epoch_file.PATH) if finding.at != 0 else None
        origin = "lost the entries behind the log's end"
        if history is None:
            history, origin = self._epoch_copy(), f"was taken from {epoch_file.COPY_PATH}"
        if history is None:
            history = self._parsed(epoch_file.BACKUP_PATH)
            origin = f"was taken from {epoch_file.BACKUP_PATH}"
            if history is not None:
                self._mark_unclean(f"as {epoch_file.BACKUP_PATH} may lack the newest epoch")
        if history is None:
            return
        history = history.truncated(PhyOffset(report.end_offset + 1))
        data = epoch_file.encode(history)
        self._write(epoch_file.BACKUP_PATH, data, "holds the same as the file from now on")
        self._write(epoch_file.PATH, data, origin)
        if self._disk.exists(epoch_file.CHECKSUM_PATH):
            self._backup.move(epoch_file.CHECKSUM_PATH)
        if self._disk.exists(epoch_file.COPY_PATH):
            self._backup.move(epoch_file.COPY_PATH)  # the next start makes it anew

    def _epoch_backup(self, finding: StoreFinding, report: Report) -> None:
        history = self._parsed(epoch_file.PATH)
        if history is not None:
            self._write(epoch_file.BACKUP_PATH, epoch_file.encode(history), f"was made from {epoch_file.PATH}")

    def _boot(self, finding: StoreFinding, report: Report) -> None:
        self._mark_unclean(f"as {BOOT_PATH} was damaged")

    def _highest_epoch(self, finding: StoreFinding, report: Report) -> None:
        if self._choices.highest_epoch is not None:
            data = sidecar.encode({"highest_epoch": self._choices.highest_epoch})
            self._write(HighestEpochFile.PATH, data, f"holds epoch {self._choices.highest_epoch}")

    def _config(self, finding: StoreFinding, report: Report) -> None:
        backup = f"{finding.path}.bak"
        if self._disk.exists(backup) and size_of(self._reader, backup) < TABLE_LIMIT_BYTES:
            data = self._disk.read(backup)
            if not table_error(data):
                self._write(finding.path, data, f"was taken from {backup}")

    def _config_backup(self, finding: StoreFinding, report: Report) -> None:
        main = finding.path.removesuffix(".bak")
        if self._disk.exists(main):
            data = self._disk.read(main)
            if not table_error(data):
                self._write(finding.path, data, f"was made from {main}")

    def _config_keys(self, finding: StoreFinding, report: Report) -> None:
        self._write(finding.path, with_quoted_keys(self._disk.read(finding.path)), "was written with quoted keys")

    # --- what follows from the log ----------------------------------------------------------------------------------
    def _repair_derived(self, report: Report) -> None:
        store, queues = report.store, report.queues
        assert queues is not None
        if any(finding.kind is FindingKind.QUEUE for finding in report.faults):
            confirmed = store.committed_end
            if confirmed > report.end_offset:
                confirmed = max(store.progress_offset or 0, store.covered_offset)
            end = min(confirmed, report.end_offset)
            size = self._choices.queue_file_size_bytes
            for directory in rebuild_queues(self._disk, self._backup, store, queues, end, size):
                self._actions.append(f"{directory} was made anew from the log")
            if size is None and not any(queues.file_sizes.values()):
                self._actions.append(
                    "no queue file was left to tell their size, so the default was taken:"
                    " if mappedFileSizeConsumeQueue is another, say --queue-file-size"
                )
        if report.index_damaged:
            self._backup.move(INDEX_DIRECTORY)
            self._actions.append(f"{INDEX_DIRECTORY} was set aside: the next start makes it anew from the log")
