"""Makes the machine's durable changes of the log in a thread, so that a disk that hangs blocks only that. Shell."""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio

GRACE_S = 0.02
"""Time (s) for which `write` waits for a change; a faster change needs no notification."""


class LogThread:
    """A `LogWriter`. `written` is called in the broker's thread at the end of a slow change: with None, or with its
    exception. Until then nothing else may read or change the log."""

    def __init__(
        self, nursery: trio.Nursery, written: Callable[[BaseException | None], None], grace_s: float = GRACE_S
    ) -> None:
        self._nursery = nursery
        self._grace_s = grace_s
        self._written = written

    def write(self, work: Callable[[], None]) -> bool:
        change = _Change(work)
        # a thread that hangs cannot be cancelled; as a daemon it is left behind when the broker ends
        threading.Thread(target=change.run, name="rmqha log change", daemon=True).start()
        if not change.ended.wait(self._grace_s):
            self._nursery.start_soon(self._rest, change)
            return False
        if change.error is not None:
            raise change.error
        return True

    async def _rest(self, change: _Change) -> None:
        await trio.to_thread.run_sync(change.ended.wait, abandon_on_cancel=True)
        self._written(change.error)


class _Change:
    def __init__(self, work: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._work = work

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  (raised again in the broker's thread)
            self.error = error
        self.ended.set()
