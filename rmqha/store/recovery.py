"""Control plane: the recovery at a start, after the files are found: where the log ends, and what must be made anew.

Source: formats.md §2.4, with two differences. The start of the check is a position that was recorded after a sync
(`checkpoint.ProgressFile`) where RocketMQ derives a whole file from times; and what stands behind the end is zeroed,
durably, so that a stale tail with valid checksums cannot come back (apache/rocketmq 10666).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rmqha.kernel.sound_records import SkipSound, skip_sound
from rmqha.model.error import StoreError
from rmqha.port import Disk
from rmqha.store.log.commit_log import UNREADABLE, CommitLog
from rmqha.store.log.record import BLANK, MAGIC_BLANK, BadRecordError, locate, verify
from rmqha.store.meta import config_file
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.meta.checkpoint import Checkpoint
from rmqha.store.queue.dispatch_service import valid_topic, walk

CLOCK_MARGIN_MS = 3000
"""RocketMQ's margin on the checkpoint's times."""
NORMAL_FILE_COUNT = 3
"""Files that RocketMQ reads again after a clean stop."""


class Recovery:
    """Findings of one opening, one sentence each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last_stop = LastStop.CLEAN
        self.checked_from = 0
        self.last_store_timestamp_ms = 0
        self.cut_bytes = 0
        self.damaged = False
        """True if bytes of the log are not what was written, and no write that was under way explains it."""


def check_start(log: CommitLog, progress: int | None, checkpoint: Checkpoint, last_stop: LastStop) -> int:
    """Offset at which the check begins: the recorded position, else RocketMQ's rule by files and times."""
    files = log.files.files
    if not files:
        return 0
    if progress is not None and log.short_offset is not None and log.short_offset < progress:
        progress = max(files[0].start_offset, log.file_start(log.short_offset))
    if progress is not None and files[0].start_offset <= progress <= files[-1].end_offset:
        return progress
    if last_stop is LastStop.CLEAN:
        return files[max(0, len(files) - NORMAL_FILE_COUNT)].start_offset
    bound = min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - CLOCK_MARGIN_MS
    for file in reversed(files):
        log.probe_record(file.start_offset)
        try:
            parts = locate(file.region.view(0, log.file_size_bytes), 0, log.file_size_bytes, file.start_offset)
        except BadRecordError:
            continue
        if parts[10] <= bound:
            return file.start_offset
    return files[0].start_offset


def find_end(log: CommitLog, start: int, recovery: Recovery, skip_sound: SkipSound = skip_sound) -> int:
    """The end of the last whole and valid record from `start` on, and why it is the end if bytes follow."""
    position = start
    while (file := log.files.find(position)) is not None:
        file.probe(position, file.end_offset, UNREADABLE)
        size_bytes, file_start = log.file_size_bytes, file.start_offset
        view = file.region.view(0, size_bytes)
        at, newest = position - file_start, recovery.last_store_timestamp_ms
        try:
            while at < size_bytes:
                at, newest = skip_sound(view, at, file_start, newest)
                if at == size_bytes:
                    break
                parts = verify(view, at, size_bytes, file_start + at)
                at += parts[0]
                if parts[10] > newest:
                    newest = parts[10]
        except BadRecordError as error:
            size, magic = BLANK.unpack_from(view, at) if size_bytes - at >= BLANK.size else (-1, 0)
            if magic != MAGIC_BLANK or size != size_bytes - at:
                position = file_start + at
                if (size, magic) != (0, 0):
                    recovery.lines.append(f"{file.path} at byte {at}: {error}; the log ends here, at {position}.")
                return position
        finally:
            recovery.last_store_timestamp_ms = newest
        position = file.end_offset
    return position


def last_stored_ms(log: CommitLog, end: int) -> int:
    """Store time of the last record below `end`; 0 if there is none, or none can be read."""
    found = 0
    with suppress(StoreError):
        for *_, parts in walk(log, log.file_start(end - 1), end) if end > log.min_offset else ():
            found = found if parts is None else parts[10]
    return found


def batch_topics(disk: Disk, recovery: Recovery) -> set[str]:
    """Topics with attribute queue.type=BatchCQ, whose queues have another form."""
    try:
        found = config_file.load(disk, "topics", _batch_topics)
    except StoreError as error:
        recovery.lines.append(f"Topics with queue.type=BatchCQ are not known: {error}.")
        return set()
    recovery.lines += found.lines
    return found.value or set()


def _batch_topics(body: Mapping[str, Any]) -> set[str]:
    types = {
        str(topic): (config.get("attributes") or {}).get("queue.type")
        for topic, config in body.get("topicConfigTable", {}).items()
    }
    return {topic for topic, kind in types.items() if kind == "BatchCQ" and valid_topic(topic)}


def first_timestamp(log: CommitLog, end_offset: int) -> int:
    """Store timestamp of the first record of the file that holds `end_offset`, where a cut is to end; 0, which only
    costs time after a kill, if that goes too or is rotten."""
    start = log.file_start(end_offset)
    if start == end_offset:
        return 0
    view, _, end = log.file_view(start)
    try:
        return locate(view, 0, end, start)[10]
    except BadRecordError:
        return 0
