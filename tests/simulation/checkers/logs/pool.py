"""Nothing that a master collects in memory (transientStorePoolEnable) waits there for longer than
commitIntervalCommitLog. That no client waits for it is judged by copies and survival."""

from __future__ import annotations

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

SLACK_MS = 50
"""A host's clock runs fast or slow by 2 % of 1,500 ms at most."""


class Pool:
    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}
        """By host: its life, and since when something waits."""

    def stepped(self, broker: BrokerProcess) -> None:
        waiting_bytes = broker.store.uncommitted_bytes
        if not waiting_bytes:
            self._since.pop(broker.host, None)
            return
        now_ms = broker.scheduler.now_ms
        life, since_ms = self._since.setdefault(broker.host, (broker.life, now_ms))
        if life != broker.life:
            self._since[broker.host] = (broker.life, now_ms)
            return
        waited_ms = now_ms - max(since_ms, broker.disturbed_at_ms)
        if waited_ms > broker.config.commit_interval_commit_log + SLACK_MS:
            raise InvariantError(f"{waiting_bytes} bytes wait in the memory of {broker.host} for {waited_ms} ms")
