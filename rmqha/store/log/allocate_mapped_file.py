"""The log's next file, made before an append needs it. Data plane.

Named after RocketMQ's AllocateMappedFileService.
"""

from __future__ import annotations

from rmqha.model.error import StoreError
from rmqha.port import Tracer
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.failure import StoreFailure


class AllocateMappedFileService:
    """A file that could not be made is no failure of the store: sends are refused and a slave waits until it can."""

    def __init__(self, log: CommitLog, failure: StoreFailure, tracer: Tracer) -> None:
        self._log = log
        self._failure = failure
        self._tracer = tracer
        self._trouble = ""
        """The reason why no file could be made the last time, "" if one could."""
        self._is_needed = False
        """True if bytes have come for which a log without files needs its first."""

    @property
    def is_due(self) -> bool:
        """True if `allocate_ahead` should be called."""
        log = self._log
        return (log.is_file_due or (self._is_needed and not log.files.files)) and not self._failure.reason

    def allocate_ahead(self) -> None:
        """Make the next log file, for a thread of its own: no append and no sync waits for it then."""
        trouble = ""
        try:
            self._log.allocate_ahead(first=self._is_needed)
            self._is_needed = False
        except StoreError as error:
            trouble = str(error)
        self._note(trouble)

    def failed(self, reason: str) -> None:
        """Take note that an append has needed the next file, which could not be made."""
        self._is_needed = not self._log.files.files
        self._note(reason)

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._tracer.event("no_file_ahead", reason=trouble)
        self._trouble = trouble

    def refusal(self, record_bytes: int) -> str:
        """The reason to take no more sends: the next file could not be made, and the last has an eighth left, or no
        room for two records of that size. A master that needs a file that cannot be made ends."""
        return self._trouble if self._log.is_nearly_full(record_bytes) or self.room_refusal else ""

    @property
    def room_refusal(self) -> str:
        """The reason why not one more byte can be appended: the next file could not be made; "" if it may be."""
        return self._trouble if self._log.is_full and self.is_due else ""
