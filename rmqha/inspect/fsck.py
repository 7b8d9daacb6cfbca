"""Control plane: a check of a whole store, of every byte that has a meaning; nothing is written.

One pass of the log checks its records, the queues and the index together; the small files follow. A store in use is
checked up to what was committed when the check began, and a finding in it counts only if a second check finds it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from rmqha.inspect.finding import FindingKind, Findings, Severity, StoreFinding
from rmqha.inspect.fsck_index import Indexes
from rmqha.inspect.fsck_metadata import MetadataCheck
from rmqha.inspect.fsck_queues import LogFacts, Queues
from rmqha.inspect.log_reader import LogReader, Stop, StopReason
from rmqha.inspect.store_inspection import LOCK_PATH, StoreInspection, inspect_store
from rmqha.model.error import UsageError
from rmqha.port import ReadDisk
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY

PROGRESS_STEP_BYTES = 8 * 1024 * 1024
QUEUE_ID_AT = 12
QUEUE_OFFSET_AT = 20

Progress = Callable[[int, int], None]
"""Callback with the bytes of log that are done, and those in all."""


class Scope(Enum):
    EVERYTHING = 0
    RECORDS = 1
    """The log and the queues."""


@dataclass(slots=True)
class Report:
    """Report of a check. `findings` are in the order of the check; `end_offset` is where the valid log ends, of a live
    store where the check did."""

    store: StoreInspection
    findings: list[StoreFinding] = field(default_factory=list)
    end_offset: int = 0
    record_count: int = 0
    record_bytes: int = 0
    last_stored_ms: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the log that hold no whole record while whole ones stand behind them."""
    queues: Queues | None = None
    index_damaged: bool = False

    @property
    def faults(self) -> list[StoreFinding]:
        return [finding for finding in self.findings if finding.severity is not Severity.NOTE]


def check(
    disk: ReadDisk,
    scope: Scope = Scope.EVERYTHING,
    progress: Progress | None = None,
    *,
    locked_by_us: bool = False,
) -> Report:
    """Check the store on `disk`. UsageError for what is no store or cannot be read."""
    report = _check_once(disk, scope, progress, locked_by_us)
    if not report.faults or locked_by_us or not (report.store.live or disk.is_locked(LOCK_PATH)):
        return report
    again = _check_once(disk, scope, progress, False)
    seen = {(finding.path, finding.at, finding.expected) for finding in report.faults}
    again.findings = [
        finding
        for finding in again.findings
        if finding.severity is Severity.NOTE or (finding.path, finding.at, finding.expected) in seen
    ]
    return again


def _check_once(disk: ReadDisk, scope: Scope, progress: Progress | None, locked_by_us: bool) -> Report:
    try:
        return _Check(inspect_store(disk, locked_by_us=locked_by_us), scope, progress).run()
    except OSError as error:
        raise UsageError(f"{disk.label} cannot be read: {error.strerror or error}; check the path and rights") from None


class _Check:
    def __init__(self, store: StoreInspection, scope: Scope, progress: Progress | None) -> None:
        self._store = store
        self._scope = scope
        self._progress = progress
        self._reader = store.reader()
        self._limit = store.committed_end if store.live else self._reader.max_offset
        self._findings = Findings()
        self.report = Report(store)

    def run(self) -> Report:
        store, findings, report = self._store, self._findings, self.report
        store.log.judge(findings)
        facts = LogFacts(store, self._reader, findings, self._limit)
        queues = report.queues = Queues(store, facts)
        index = Indexes(store, findings) if self._scope is Scope.EVERYTHING else None
        self._walk(queues, index, facts)
        facts.end = report.end_offset
        queues.finish()
        for position, entry in sorted(facts.foreign.items()):
            self._misplaced(position, f"another topic or queue than {entry} has it in", "queueId")
        if not store.live:
            self._tail()
        if index is not None:
            index.finish(report.end_offset)
            report.index_damaged = index.damaged
            MetadataCheck(store, findings, report.end_offset, report.last_stored_ms).check()
        elif not store.live and store.committed_end > report.end_offset:
            path, at = self._reader.where(report.end_offset)
            expected = f"records up to the committed end {store.committed_end}"
            findings.add(
                Severity.ERROR, FindingKind.LOG_DAMAGE, path, at, expected, f"none from {report.end_offset} on"
            )
        self._reader.close()
        report.findings = findings.all()
        return report

    # --- the log ----------------------------------------------------------------------------------------------------
    def _walk(self, queues: Queues, index: Indexes | None, facts: LogFacts) -> None:
        """Every record, over damage in the middle. Sets the report's end."""
        reader, report = self._reader, self.report
        position, told = self._store.min_offset, 0
        total = self._limit - position
        while True:
            for start, view, _, parts in reader.records(position, self._limit):
                if parts is None:
                    continue
                report.record_count += 1
                report.record_bytes += parts[0]
                if parts[10] > report.last_stored_ms:
                    report.last_stored_ms = parts[10]
                wrong = queues.record(start, view, parts)
                if wrong:
                    self._misplaced(start, wrong)
                if index is not None:
                    index.record(start, view, parts)
                done = start - self._store.min_offset
                if self._progress is not None and done - told >= PROGRESS_STEP_BYTES:
                    told = done
                    self._progress(done, total)
            stop = reader.stop
            report.end_offset = stop.position
            if stop.why is StopReason.END:
                break
            resumed = self._resume(stop)
            if resumed is None:
                self._ended(stop)
                break
            self._damaged(stop, resumed)
            facts.bad_ranges.append((stop.position, resumed))
            if index is not None:
                index.bad_ranges.append((stop.position, resumed))
            position = resumed
        if self._progress is not None:
            self._progress(total, total)

    def _resume(self, stop: Stop) -> int | None:
        """Offset at which whole records go on behind a bad place; None if they do not."""
        reader = LogReader(self._store.disk, self._store.log.files)
        try:
            behind = stop.position + stop.size_bytes
            if stop.size_bytes and reader.whole_size(behind):
                return behind
            return reader.next_whole(stop.position + 1, self._limit)
        except OSError:
            return self._next_file(stop.position)
        finally:
            reader.close()

    def _next_file(self, position: int) -> int | None:
        """Offset of the next file that begins with a record: used if a sector of this one cannot be read."""
        reader = LogReader(self._store.disk, self._store.log.files)
        for piece in self._store.log.files:
            if position < piece.start_offset < self._limit:
                try:
                    if reader.whole_size(piece.start_offset):
                        return piece.start_offset
                except OSError:
                    continue
        return None

    def _misplaced(self, position: int, found: str, field_name: str = "queueOffset") -> None:
        """Note a record that is whole and stands in another place of the queues than it says."""
        path, at = self._reader.where(position)
        at += QUEUE_OFFSET_AT if field_name == "queueOffset" else QUEUE_ID_AT
        advice = (
            "put the record back from another replica, whose log is the same, or drop it and everything behind with"
            f" --repair --cut-at {position}"
        )
        self._findings.add(
            Severity.ERROR, FindingKind.LOG_DAMAGE, path, at, f"the {field_name} that the queues have", found, advice
        )
        self.report.damage.append((position, position))
        self.report.damage.sort()

    def _damaged(self, stop: Stop, resumed: int) -> None:
        advice = (
            f"whole records go on at {resumed}: put bytes {stop.position} to {resumed} of the log back from another"
            f" replica, whose log is the same, or drop them and all behind with --repair --cut-at {stop.position}"
        )
        self._findings.add(
            Severity.ERROR, FindingKind.LOG_DAMAGE, stop.path, stop.at, stop.expected, stop.found, advice
        )
        self.report.damage.append((stop.position, resumed))

    def _ended(self, stop: Stop) -> None:
        """Note that the log ends at `stop`: no whole record stands behind it."""
        if stop.why is StopReason.UNWRITTEN and (not self._store.live or stop.position >= self._limit):
            return
        lost = stop.position < self._store.committed_end
        severity = Severity.ERROR if lost or stop.why is StopReason.UNREADABLE else Severity.WARNING
        kind = FindingKind.LOG_DAMAGE if self._store.live or stop.why is StopReason.UNREADABLE else FindingKind.LOG_TAIL
        advice = (
            "check the disk" if stop.why is StopReason.UNREADABLE else "--repair drops it, saved first; so does a start"
        )
        if lost and not self._store.live:
            advice = f"records up to {self._store.committed_end} were committed; {advice}"
        self._findings.add(severity, kind, stop.path, stop.at, stop.expected, stop.found, advice)

    def _tail(self) -> None:
        """Check that every byte behind the log's end is zero."""
        end, reader = self.report.end_offset, self._reader
        for piece in self._store.log.files:
            if piece.end_offset <= end:
                continue
            at = max(end - piece.start_offset, 0)
            try:
                used = reader.used_end(piece, at)
            except OSError as error:
                reason = error.strerror or str(error)
                self._findings.add(
                    Severity.ERROR, FindingKind.OTHER, piece.path, at, "readable bytes", reason, "check the disk"
                )
                continue
            if used > at and not any(finding.path == piece.path and finding.at == at for finding in self._kept()):
                advice = "--repair zeroes them, saved first; so does a start"
                expected = f"zeros behind the log's end {end}"
                self._findings.add(
                    Severity.WARNING, FindingKind.LOG_TAIL, piece.path, at, expected, f"{used - at} bytes", advice
                )

    def _kept(self) -> list[StoreFinding]:
        return [finding for finding in self._findings.all() if finding.path.startswith(LOG_DIRECTORY)]
