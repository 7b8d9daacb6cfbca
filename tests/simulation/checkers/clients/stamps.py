"""A stamp of a consumer's offset is given once: whichever replica has it has that offset. Replicas take what has the
newer stamp, so a stamp that stands for two offsets leaves them different for ever."""

from __future__ import annotations

from rmqha.broker.tables.offsets import CUT_STAMP
from rmqha.broker.tables.table_version import NO_STAMP, TableVersion
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

MOST = 10_000
Content = tuple[str, int, int | None]
"""The key, the queue and its offset."""


class Stamps:
    def __init__(self) -> None:
        self._content: dict[TableVersion, tuple[Content, str]] = {}
        """And who had it first."""
        self._seen: dict[str, tuple[int, TableVersion]] = {}
        """By host: its life, and the newest stamp that was looked at."""

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        offsets, known = broker.core.offsets, self._seen.get(broker.host)
        newest = offsets.stamp
        if known == (broker.life, newest):
            return
        since = known[1] if known is not None and known[0] == broker.life else NO_STAMP
        self._seen[broker.host] = broker.life, newest
        for change in offsets.changes_since(since, MOST):
            if change.stamp == CUT_STAMP:
                continue
            content = change.key, change.queue_id, change.offset
            before, host = self._content.setdefault(change.stamp, (content, broker.host))
            if before != content:
                raise InvariantError(f"{broker.host} has {content} with stamp {change.stamp}, and {host} has {before}")
