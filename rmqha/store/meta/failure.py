"""A disk that has failed to make something durable: nothing more is accepted, and the next start knows (ruling 29).

After a failed sync Linux calls the pages clean. The next start reads them from its cache and would take them for whole,
until a loss of power shows what the disk has. Control plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmqha.model.error import StoreError
from rmqha.port import Tracer
from rmqha.store.meta.boot_file import BootFile
from rmqha.store.meta.end_mark import EndMark


class StoreFailure:
    """A failure that ends a store's use. `reason` is "" while the store may be used."""

    def __init__(self, boot: BootFile, mark: EndMark, tracer: Tracer) -> None:
        self._boot = boot
        self._mark = mark
        self._tracer = tracer
        self.reason = ""

    @property
    def is_remembered(self) -> bool:
        """True if an earlier run had a failure, and what it wrote has not been written again."""
        return self._boot.failed or self._mark.failed

    def check(self) -> None:
        """Raise StoreError with the reason, if there is one."""
        if self.reason:
            raise StoreError(self.reason)

    def close(self, reason: str) -> None:
        self.reason = self.reason or reason

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """A StoreError inside is the end of this store's use, and is written down: in the boot file, and in the page
        cache, which is what cannot be trusted and the last that still takes a write."""
        try:
            yield
        except StoreError as error:
            self.reason = str(error)
            kept = self._keep()
            if not kept:
                self.reason += (
                    "; nor can this be written down: before this replica is started again restart the machine, or"
                    " remove the replica's store and let it copy the group's"
                )
                self._tracer.event("failure_not_recorded", reason=self.reason)
            raise StoreError(self.reason) from error

    def _keep(self) -> bool:
        kept = False
        try:
            self._mark.set_failed(True)
            kept = True
        except OSError as error:
            self._tracer.event("unclean_not_recorded", reason=str(error))
        try:
            self._boot.set_failed()
            kept = True
        except StoreError as error:
            self._tracer.event("unclean_not_recorded", reason=str(error))
        return kept

    def recovered(self) -> None:
        """Note that everything was written again and is durable. Raises StoreError."""
        try:
            self._mark.set_failed(False)
        except OSError as error:
            raise StoreError(str(error)) from error
        self._boot.recovered()
