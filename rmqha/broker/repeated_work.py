"""Work that a dedicated thread repeats on demand, signalled by eventfd. Shell.

Trio's threads need some forty microseconds of CPU for a call, which is much if a disk syncs in a few hundred.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType

import trio


class RepeatedWork:
    """Calls `work` in the thread, once for each `do`, never twice at a time. Use as a context manager, which ends the
    thread."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._is_over = False
        self._begin = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> RepeatedWork:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        os.eventfd_write(self._begin, 1)
        self._thread.join()
        os.close(self._begin)
        os.close(self._done)

    async def do(self) -> None:
        """Run the work once; raises what it raises. A cancellation takes effect before its begin or after its end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        os.eventfd_write(self._begin, 1)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._done)
        os.eventfd_read(self._done)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._begin)
            if self._is_over:
                return
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001  (raised by `do`)
                self._error = error
            os.eventfd_write(self._done, 1)
