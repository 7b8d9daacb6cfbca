"""Where a record starts inside a file, for certain and without a walk from the file's begin (data plane, read only).

A search finds what looks like a record; that the record's own queue points there proves it, for a body may hold what
looks like a record.
"""

from __future__ import annotations

from rmqha.store.scan_columns import Records
from rmqha.store.scan_files import StoreView
from rmqha.store.scan_queues import QueueEntries
from rmqha.store.scan_read import LogFile
from rmqha.store.scan_storage import storage_of

TRIES = 8
"""Of so many things that look like records one must be in its queue; a topic that was deleted has none."""


class Boundaries:
    """Record starts of a store that has consume queues; a store without them has none to tell."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._queues = QueueEntries(storage_of(view.root), view.root)
        self._file: LogFile | None = None

    @property
    def can_tell(self) -> bool:
        return self._queues.exist

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def at(self, offset: int) -> Records | None:
        """The record at physical offset `offset`, which must be a record's start; None if none is there."""
        file = self.file_of(offset)
        return None if file is None else file.record_at(offset - file.name.base_offset)

    def after(self, offset: int, end: int) -> Records | None:
        """A record of `offset`'s file that starts in the physical offsets [offset, end) and that its queue has; None if
        none is found."""
        file = self.file_of(offset) if self.can_tell else None
        if file is None:
            return None
        base = file.name.base_offset
        at, stop = offset - base, min(end, file.name.end_offset, self._view.end_offset) - base
        for _ in range(TRIES):
            found = file.find_record(at, stop)
            if found is None:
                return None
            record = file.record_at(found)
            if record is not None and self._queues.has(record):
                return record
            at = found + 1
        return None

    def file_of(self, offset: int) -> LogFile | None:
        """The file that has this byte; it is closed when another one is asked for."""
        if self._file is not None and self._file.name.base_offset <= offset < self._file.name.end_offset:
            return self._file
        self.close()
        self._file = next(
            (LogFile(name) for name in self._view.files if name.base_offset <= offset < name.end_offset), None
        )
        return self._file
