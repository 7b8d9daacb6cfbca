"""Checks the age of the log and the disk at each interval, and at once when an operator asks. Shell."""

from __future__ import annotations

import trio

from rmqha.broker.services.retention import Retention
from rmqha.model.config.servers import BrokerConfig


class RetentionLoop:
    def __init__(self, config: BrokerConfig, retention: Retention) -> None:
        self._config = config
        self._retention = retention
        self._asked = trio.Event()

    def wake(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Check until cancelled. Raises StoreError when the disk fails."""
        while True:
            self._asked = trio.Event()
            self._retention.check()
            await self._unlink()
            with trio.move_on_after(self._config.clean_resource_interval / 1000):
                await self._asked.wait()

    async def _unlink(self) -> None:
        more = True
        while more:
            more = await trio.to_thread.run_sync(self._retention.schedule_unlink)
            self._retention.pending_unlink()
            if more:
                await trio.sleep(self._config.delete_commit_log_files_interval / 1000)
