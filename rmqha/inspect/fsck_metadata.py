"""Control plane: checks of a store's small files against their own form and against the log: checkpoint, epochs,
identity, our sidecars, tables, marks of a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from rmqha.inspect.finding import FindingKind, Findings, Severity
from rmqha.inspect.store_inspection import (
    BATCH_DIRECTORY,
    EPOCHS_LIMIT_BYTES,
    LOCK_PATH,
    QUEUE_DIRECTORY,
    StoreInspection,
    progress_slots,
)
from rmqha.model.epoch import EpochHistory
from rmqha.model.error import RmqhaError, StoreError
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.mapped_file import NAME_DIGITS
from rmqha.store.meta import end_mark, epoch_file, identity_file, sidecar
from rmqha.store.meta.boot_file import ABORT_PATH
from rmqha.store.meta.boot_file import PATH as BOOT_PATH
from rmqha.store.meta.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_PATH, PROGRESS_PATH, SLOT_BYTES, Checkpoint
from rmqha.store.meta.config_file import unreadable_members
from rmqha.store.meta.epoch_file import BadEpochFileError, HighestEpochFile
from rmqha.store.timer import timer_log, timer_wheel, timer_width
from rmqha.store.timer.timer_log import BadTimerLogError
from rmqha.wire import lenient_json

LIMIT_BYTES = 256 * 1024 * 1024
SAVED_PREFIX = "rmqha.fsck-"
"""Directories into which a repair puts what it changes."""
NAMES = frozenset((
    LOG_DIRECTORY, QUEUE_DIRECTORY, BATCH_DIRECTORY, "index", "config", CHECKPOINT_PATH, LOCK_PATH, ABORT_PATH,
    epoch_file.PATH, epoch_file.BACKUP_PATH, identity_file.PATH, identity_file.PENDING_PATH, "abort.bak", "logs",
    timer_log.DIRECTORY,
))  # fmt: skip
UNCHECKED = ("compaction", "rocksdbstore", "consumequeue_ext")
"""RocketMQ's directories that are not checked."""
_SIDECARS = {
    BOOT_PATH: FindingKind.BOOT,
    HighestEpochFile.PATH: FindingKind.HIGHEST_EPOCH,
    epoch_file.CHECKSUM_PATH: FindingKind.SIDECAR,
    epoch_file.COPY_PATH: FindingKind.SIDECAR,
    timer_log.SNAPSHOT_PATH: FindingKind.SIDECAR,
}
_NUMBERS = (
    "physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset",
)  # fmt: skip
_RESTORE = "restore it from a backup of this replica"
_TIMERS = "what waits is in the queue too: before Apache's broker opens the store, start one of ours and stop it"
_BY_REPAIR = "rmqha fsck --repair mends it"


class MetadataCheck:
    """Check of one store's small files. `end`: where the valid log ends (of a live store: where the check ends);
    `last_stored_ms`: the newest store time in it."""

    def __init__(self, store: StoreInspection, findings: Findings, end: int, last_stored_ms: int) -> None:
        self._store = store
        self._disk = store.disk
        self._findings = findings
        self._end = end
        self._last_stored_ms = last_stored_ms

    def check(self) -> None:
        for step in (
            self._state, self._checkpoint, self._progress, self._end_mark, self._epochs, self._identity, self._sidecars,
        ):  # fmt: skip
            step()
        self._config()
        if not self._store.live:
            self._timers()
        self._names()

    def _error(self, kind: FindingKind, path: str, at: int | None, expected: str, found: str, advice: str) -> None:
        self._findings.add(Severity.ERROR, kind, path, at, expected, found, advice)

    def _warning(self, kind: FindingKind, path: str, at: int | None, expected: str, found: str, advice: str) -> None:
        self._findings.add(Severity.WARNING, kind, path, at, expected, found, advice)

    def _read(self, kind: FindingKind, path: str, limit_bytes: int = LIMIT_BYTES) -> bytes | None:
        """Content of a file; None if it is missing or, which is reported here, cannot be read."""
        if not self._disk.exists(path):
            return None
        try:
            return self._disk.read(path, limit_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._error(kind, path, None, "a file that can be read", error.strerror or str(error), _RESTORE)
            return None

    # --- state ------------------------------------------------------------------------------------------------------
    def _state(self) -> None:
        if self._store.live:
            self._findings.note(LOCK_PATH, f"the store is in use: checked up to {self._end}, what was committed then")
        elif not self._store.stopped_cleanly:
            self._findings.note(ABORT_PATH, "the broker was killed or lost power: its next start checks the tail")

    # --- positions --------------------------------------------------------------------------------------------------
    def _checkpoint(self) -> None:
        data = self._read(FindingKind.CHECKPOINT, CHECKPOINT_PATH, CHECKPOINT_BYTES + 1)
        if data is None:
            return
        if len(data) != CHECKPOINT_BYTES:
            size = f"{len(data)}" if len(data) < CHECKPOINT_BYTES else "more"
            expected = f"{CHECKPOINT_BYTES} bytes"
            self._error(
                FindingKind.CHECKPOINT, CHECKPOINT_PATH, min(len(data), CHECKPOINT_BYTES), expected, size, _BY_REPAIR
            )
            return
        try:
            value = Checkpoint.decode(data)
        except ValueError as error:
            byte, _, found = str(error).partition(":")
            self._error(
                FindingKind.CHECKPOINT, CHECKPOINT_PATH, int(byte), "a time or offset from 0", found, _BY_REPAIR
            )
            return
        rest = data[len(value.encode()) :].rstrip(b"\0")
        if rest:
            at = len(value.encode()) + len(rest) - 1
            self._warning(FindingKind.CHECKPOINT, CHECKPOINT_PATH, at, "zeros", f"byte {rest[-1]}", _BY_REPAIR)
        if self._store.live:
            return
        if value.confirm_phy_offset > self._end:
            self._error(
                FindingKind.CHECKPOINT, CHECKPOINT_PATH, 32, f"a confirmPhyOffset up to the log's end {self._end}",
                f"{value.confirm_phy_offset}",
                "either this file is damaged or the log has lost its end: --repair lowers it and marks the replica"
                " unclean, so that it follows a master first",
            )  # fmt: skip
        times = (value.physic_msg_timestamp_ms, value.logics_msg_timestamp_ms, value.index_msg_timestamp_ms)
        for index, time_ms in enumerate(times):
            if time_ms > self._last_stored_ms:
                expected = f"a {_NUMBERS[index]} up to the log's newest, {self._last_stored_ms}"
                self._error(FindingKind.CHECKPOINT, CHECKPOINT_PATH, index * 8, expected, f"{time_ms}", _BY_REPAIR)

    def _progress(self) -> None:
        data = self._read(FindingKind.PROGRESS, PROGRESS_PATH, 2 * SLOT_BYTES + 1)
        if data is None:
            return
        if len(data) != 2 * SLOT_BYTES:
            found = f"{len(data)}" if len(data) < 2 * SLOT_BYTES else "more"
            expected = f"{2 * SLOT_BYTES} bytes"
            self._warning(
                FindingKind.PROGRESS, PROGRESS_PATH, min(len(data), 2 * SLOT_BYTES), expected, found, _BY_REPAIR
            )
        if self._store.live:
            return
        for slot_at, position, _, seen, wrong in progress_slots(data, PROGRESS_PATH):
            if wrong:
                self._warning(FindingKind.PROGRESS, PROGRESS_PATH, slot_at, *_split(wrong), _BY_REPAIR)
            elif position > self._end and seen == self._store.checkpoint.encode():
                expected = f"a position up to the log's end {self._end}"
                advice = "the log has lost synced records: --repair marks the replica unclean"
                self._error(FindingKind.PROGRESS, PROGRESS_PATH, slot_at, expected, f"{position}", advice)

    def _end_mark(self) -> None:
        data = self._read(FindingKind.SIDECAR, end_mark.PATH, 2 * end_mark.SECTOR_BYTES + 1)
        if data is None or self._store.live:
            return
        if len(data) != 2 * end_mark.SECTOR_BYTES:
            found = f"{len(data)}" if len(data) < 2 * end_mark.SECTOR_BYTES else "more"
            expected = f"{2 * end_mark.SECTOR_BYTES} bytes"
            self._warning(FindingKind.SIDECAR, end_mark.PATH, min(len(data), 1024), expected, found, _BY_REPAIR)
            return
        written = 0
        for at in (0, end_mark.SECTOR_BYTES):
            slot = data[at : at + end_mark.SECTOR_BYTES]
            try:
                found_mark = end_mark.decode(slot, end_mark.PATH)
            except StoreError as error:
                self._error(FindingKind.OTHER, end_mark.PATH, at, "", str(error), "")
                return
            if found_mark is None or any(slot[end_mark.SLOT_BYTES :]):
                expected = "the log's end with its checksum"
                self._warning(FindingKind.SIDECAR, end_mark.PATH, at, expected, "something else", _BY_REPAIR)
            else:
                written = max(written, found_mark[0])
        if written > self._end:
            self._findings.note(
                end_mark.PATH,
                f"the log was written up to {written} and its whole records end at {self._end}: without a loss of"
                " power, or a transfer that was under way, the next start counts this replica as unclean",
            )

    # --- epochs -----------------------------------------------------------------------------------------------------
    def _epochs(self) -> None:
        backup = self._read(FindingKind.EPOCH_BACKUP, epoch_file.BACKUP_PATH, EPOCHS_LIMIT_BYTES)
        main = self._read(FindingKind.EPOCHS, epoch_file.PATH, EPOCHS_LIMIT_BYTES)
        spare: EpochHistory | None = None
        if backup is not None:
            try:
                spare = epoch_file.parse(backup)
            except BadEpochFileError as error:
                path = epoch_file.BACKUP_PATH
                self._warning(FindingKind.EPOCH_BACKUP, path, error.at, error.expected, error.found, _BY_REPAIR)
        advice = f"--repair takes {epoch_file.COPY_PATH}, or {epoch_file.BACKUP_PATH} and marks the replica unclean"
        if spare is None and not self._disk.exists(epoch_file.COPY_PATH):
            advice = _RESTORE
        if main is None:
            if backup is not None:
                self._error(FindingKind.EPOCHS, epoch_file.PATH, None, "a file beside its .bak", "none", advice)
            return
        try:
            history = epoch_file.parse(main)
            if main.split(b"\n")[1] == b"0" and not self._own_checksum_holds(main):
                raise BadEpochFileError(0, f"the bytes that {epoch_file.CHECKSUM_PATH} was made for", "others")
        except BadEpochFileError as error:
            self._error(FindingKind.EPOCHS, epoch_file.PATH, error.at, error.expected, error.found, advice)
            return
        last = history.last
        if last is not None and last.start_offset > self._end and not self._store.live:
            at = main.rstrip(b"\n").rfind(b"\n") + 1
            expected = f"epochs that start up to the log's end {self._end}"
            advice = "--repair drops the entries behind it, as a start does"
            self._error(FindingKind.EPOCHS, epoch_file.PATH, at, expected, f"{last.epoch}-{last.start_offset}", advice)

    def _own_checksum_holds(self, data: bytes) -> bool:
        checksum = self._read(FindingKind.SIDECAR, epoch_file.CHECKSUM_PATH)
        if checksum is None:
            return True
        try:
            return sidecar.number(sidecar.decode(checksum, epoch_file.CHECKSUM_PATH), "crc32") == crc32(data)
        except (sidecar.BadSidecarError, StoreError):
            return True  # the sidecar itself is reported

    # --- identity and sidecars --------------------------------------------------------------------------------------
    def _identity(self) -> None:
        for path, parts_count, kind in (
            (identity_file.PATH, 3, FindingKind.IDENTITY),
            (identity_file.PENDING_PATH, 4, FindingKind.PENDING_IDENTITY),
        ):
            data = self._read(kind, path, 4096)
            if data is None:
                continue
            parts = data.decode("utf-8", "replace").strip().split("#")
            number = parts[2] if len(parts) == parts_count else ""
            sound = number.isascii() and number.isdigit() and len(number) < 19 and int(number) > 0 and all(parts)
            if sound and "\ufffd" not in "".join(parts):
                continue
            form = "cluster#brokerName#brokerId" + ("#registerCheckCode" if parts_count == 4 else "")
            if kind is FindingKind.IDENTITY:
                advice = "write it again: the controller knows the ids (rmqha status)"
                self._error(kind, path, 0, form, repr(data[:60]), advice)
            else:
                self._warning(kind, path, 0, form, repr(data[:60]), _BY_REPAIR)

    def _sidecars(self) -> None:
        for name, kind in _SIDECARS.items():
            data = self._read(kind, name)
            if data is not None:
                self._sidecar(kind, name, data)

    def _sidecar(self, kind: FindingKind, name: str, data: bytes) -> None:
        try:
            fields = sidecar.decode(data, name)
            if kind is FindingKind.BOOT:
                if not isinstance(fields.get("boot_id"), str) or not isinstance(fields.get("unclean"), bool):
                    raise sidecar.BadSidecarError(f"expected boot_id and unclean, found {sorted(map(str, fields))}")
            elif kind is FindingKind.HIGHEST_EPOCH:
                sidecar.number(fields, "highest_epoch")
            elif name == epoch_file.CHECKSUM_PATH:
                sidecar.number(fields, "crc32")
            elif name == epoch_file.COPY_PATH:
                epoch_file.decode_copy(fields)
        except StoreError as error:
            self._error(FindingKind.OTHER, name, 0, "", str(error), "")
        except sidecar.BadSidecarError as error:
            if kind is FindingKind.HIGHEST_EPOCH:
                advice = "restore it, or say --repair --highest-epoch N with the group's master epoch (rmqha status)"
            elif kind is FindingKind.BOOT:
                advice = "--repair counts this replica as unclean: it follows a master first"
            else:
                advice = _BY_REPAIR
            self._error(kind, name, 0, *_split(str(error)), advice)

    # --- tables and names -------------------------------------------------------------------------------------------
    def _config(self) -> None:
        if not self._disk.is_directory("config"):
            if self._disk.exists("config"):
                self._error(FindingKind.OTHER, "config", None, "a directory", "something else", "move it away")
            return
        for name in self._disk.list("config"):
            path = f"config/{name}"
            is_backup = name.endswith(".json.bak")
            if not (name.endswith(".json") or is_backup) or self._disk.is_directory(path):
                continue
            kind = FindingKind.CONFIG_BACKUP if is_backup else FindingKind.CONFIG
            data = self._read(kind, path)
            wrong = table_error(data) if data is not None else ""
            if not wrong:
                if data is not None:
                    self._apache_reads(path, data)
                continue
            if is_backup:
                self._warning(kind, path, None, "a JSON object", wrong, "--repair writes it anew from the table itself")
            else:
                spare = self._read(FindingKind.CONFIG_BACKUP, f"{path}.bak")
                usable = spare is not None and not table_error(spare)
                advice = f"--repair takes {name}.bak" if usable else f"{_RESTORE}, or copy it from another replica"
                self._error(kind, path, None, "a JSON object", wrong, advice)

    def _timers(self) -> None:
        """Check the files in which RocketMQ names the timer messages that wait."""
        data = self._timer_check()
        if self._disk.is_directory(timer_log.DIRECTORY):
            for name in self._disk.list(timer_log.DIRECTORY):
                self._timer_log(f"{timer_log.DIRECTORY}/{name}", name)
        for name in filter(timer_wheel.is_wheel, self._disk.list("")):
            wheel = self._read(FindingKind.TIMER, name, timer_wheel.WHEEL_BYTES + 1)
            if wheel is not None:
                self._wheel(name, wheel, data)

    def _timer_check(self) -> bytes:
        """The content of the file, b"" if there is none that can be read."""
        path = timer_log.CHECK_PATH
        data = self._read(FindingKind.TIMER, path, LIMIT_BYTES)
        if data is None:
            return b""
        try:
            timer_log.check_numbers(data)
        except BadTimerLogError as error:
            self._error(FindingKind.TIMER, path, error.at, error.expected, error.found, _RESTORE)
            return b""
        widths = timer_width.decode(data)
        if widths is not None and widths.sentence:
            self._findings.note(
                path, f"{widths.sentence}: Apache's broker would go by the new one", timer_width.NOTE_AT
            )
        return data

    def _wheel(self, name: str, data: bytes, check: bytes) -> None:
        """Check all slots of a wheel, and their width."""
        read_ms = (timer_log.check_numbers(check)[0] if check else 0) or self._last_stored_ms
        try:
            found = timer_width.wheel_width(timer_wheel.slots(data), read_ms)
        except BadTimerLogError as error:
            self._warning(FindingKind.TIMER, name, error.at, error.expected, error.found, _TIMERS)
            return
        noted = timer_width.decode(check)
        if found is not None and found.other is not None:
            at, width_ms = found.other
            expected = f"slots of {found.width_ms} ms, as most are"
            self._warning(FindingKind.TIMER, name, at, expected, f"one of {width_ms} ms, which is passed over", _TIMERS)
        elif found is not None and noted is not None and noted.width_ms != found.width_ms:
            text = f"its slots have {found.width_ms} ms, what ours stored before has slots of {noted.width_ms} ms"
            self._findings.note(name, text, 0)

    def _timer_log(self, path: str, name: str) -> None:
        if len(name) != NAME_DIGITS or not name.isascii() or not name.isdigit():
            self._findings.note(path, "not one of the store's files")
            return
        data = self._read(FindingKind.TIMER, path)
        if data is not None:
            self._consume(path, timer_log.units(data, int(name)))

    def _consume(self, path: str, items: Iterator[object]) -> None:
        """Check all `items` of a file that our broker does not need."""
        try:
            for _ in items:
                pass
        except BadTimerLogError as error:
            self._warning(FindingKind.TIMER, path, error.at, error.expected, error.found, _TIMERS)

    def _apache_reads(self, path: str, data: bytes) -> None:
        """Report a table that an earlier release has written with integer keys without quotes."""
        members = unreadable_members(data)
        if members:
            advice = (
                "Apache's broker would end on it and leave an empty table: --repair quotes them; so does a start of"
                " this release"
            )
            found = f"integer keys without quotes in {', '.join(members)}"
            self._warning(FindingKind.CONFIG_KEYS, path, None, "keys that Apache's broker can pass over", found, advice)

    def _names(self) -> None:
        for name in self._disk.list(""):
            if name in UNCHECKED:
                self._findings.note(name, "not looked into")
            elif name not in NAMES and not timer_wheel.is_wheel(name) and not name.startswith(("rmqha.", "replaced-")):
                self._findings.note(name, "not one of the store's files")
        for name in (LOG_DIRECTORY, QUEUE_DIRECTORY, BATCH_DIRECTORY, "index"):
            if self._disk.exists(name) and not self._disk.is_directory(name):
                self._error(FindingKind.OTHER, name, None, "a directory", "something else", "move it away")
        for name in (CHECKPOINT_PATH, ABORT_PATH, LOCK_PATH):
            if self._disk.is_directory(name):
                self._error(FindingKind.OTHER, name, None, "a file", "a directory", "move it away")


def table_error(data: bytes) -> str:
    """The reason that keeps a table of config/ from being read, "" if nothing does."""
    if not data.strip():
        return "nothing"
    try:
        value = lenient_json.loads(data)
    except RmqhaError as error:
        return str(error)
    return "" if isinstance(value, dict) else f"a {type(value).__name__}"


def _split(text: str) -> tuple[str, str]:
    """The parts (expected, found) of a sentence that says both, ("", text) of any other."""
    expected, comma, found = text.removeprefix("expected ").partition(", found ")
    return (expected, found) if comma else ("", text)
