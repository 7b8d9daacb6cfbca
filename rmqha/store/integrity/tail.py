"""Control plane: what stands behind the log's end at an opening: judged, cut, and the log made durable."""

from __future__ import annotations

from rmqha.port import Disk
from rmqha.store.log import salvage
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.recovery import Recovery, last_stored_ms


def judge_tail(
    disk: Disk, log: CommitLog, end: int, recovery: Recovery, last_stop: LastStop, *,
    trusted: bool, was_cut: bool, written: int | None,
) -> bool:  # fmt: skip
    """Judge the bytes behind `end`: True if they must be cut. They are saved first if they may be more than a write
    that was under way, and `recovery.damaged` is set if they may have held a record that was acknowledged.

    `written`: how far the log was written, as `EndMark` knows it; None if another program wrote it since. With
    `trusted` (a clean stop of our own) only the first bytes are checked: the rest is known to be zero. `was_cut`: a
    cut to `end` was under way, so what stands there was dropped before. Raises StoreError if it cannot be read or
    saved."""
    recovery.lines += salvage.earlier(disk)
    file = log.files.find(end)
    if last_stop is not LastStop.POWER_LOST and written is not None and end < written:
        recovery.damaged = not salvage.is_beginning(log, end, written)
        if recovery.damaged:
            recovery.lines.append(
                f"The log was written up to {written} and its whole records end at {end}: after {last_stop.text} that"
                " is damage and no torn write; this replica counts as unclean."
            )
    if trusted and not recovery.damaged and file is not None and file is log.files.files[-1]:
        at = end - file.start_offset
        if not any(file.region.view(at, min(64, file.end_offset - end))):
            return False
    if not was_cut:
        _judge_bytes(disk, log, end, recovery, last_stop, written)
    return True


def cut_tail(log: CommitLog, end: int, recovery: Recovery, *, was_cut: bool) -> None:
    """Zero what stands behind `end`, durably."""
    spare = len(log.files.files)
    recovery.cut_bytes = log.cut(end)
    if was_cut and recovery.checked_from == end:  # it has lowered the checkpoint's times; store times must not fall
        recovery.last_store_timestamp_ms = last_stored_ms(log, end)
    spare -= len(log.files.files)
    if recovery.cut_bytes:
        files = f", with {spare} files," if spare else ""
        recovery.lines.append(f"The log was cut to {end}: {recovery.cut_bytes} bytes behind it{files} were dropped.")


def make_durable(
    log: CommitLog, start: int, end: int, recovery: Recovery, last_stop: LastStop, *, recorded: bool, failed: bool
) -> None:
    """Make the log durable from `start` on, which a save has `recorded` or not. After a kill what was checked is
    written once more, for the system may call pages clean that it has failed to write. If a sync of the last run has
    `failed`, the zeros behind the end are too: a cut may be what failed."""
    if failed:
        recovery.lines.append(
            f"The last run could not make everything durable: it was written again from {start} on, and this replica"
            " counts as unclean."
        )
        log.rewrite(start, end)
        log.rewrite_behind(end)
    elif last_stop is LastStop.KILLED and recorded:
        log.rewrite(start, end)
    elif last_stop is not LastStop.CLEAN:
        log.sync(start, end)


def _judge_bytes(
    disk: Disk, log: CommitLog, end: int, recovery: Recovery, last_stop: LastStop, written: int | None
) -> None:
    tail = salvage.find_tail(log, end)
    if tail.record_offset is not None and last_stop is not LastStop.POWER_LOST:
        recovery.damaged = True
        recovery.lines.append(
            f"A whole record stands at {tail.record_offset}, behind the log's end {end}: after {last_stop.text} that"
            " is damage and no torn write; this replica counts as unclean."
        )
    elif last_stop is LastStop.KILLED and tail.pieces and not _is_explained(log, end, tail, written):
        recovery.damaged = True
        recovery.lines.append(
            f"{tail.size_bytes} bytes stand behind the log's end {end}, and nothing tells how far it was written: a"
            " torn write or damage; this replica counts as unclean."
        )
    if tail.pieces and (recovery.damaged or not tail.torn or last_stop is LastStop.CLEAN):
        directory = salvage.save(disk, tail)
        recovery.lines.append(
            f"{tail.size_bytes} bytes behind the log's end {end} were saved in {directory} before they were cut."
        )


def _is_explained(log: CommitLog, end: int, tail: salvage.LogTail, written: int | None) -> bool:
    """True if a write that a kill has stopped explains the bytes. If one sector of the end mark is damaged, the
    record's own lengths must show it."""
    if written is None:
        return False
    last = tail.pieces[-1]
    return log.mark.is_exact or salvage.is_beginning(log, end, last.offset + len(last.data))
