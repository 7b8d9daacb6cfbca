"""A stamp of a consumer's offset is given once: whichever replica has it has that offset. Replicas take what has the
newer stamp, so a stamp that stands for two offsets leaves them different for ever. And what has been changed on a
master stays, whatever a slave gives back to it that its last life had told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmqha.broker.tables.offsets import CUT_VERSION, OffsetChange
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
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
        if known is None or known[0] != broker.life:
            _watch(broker)
        since = known[1] if known is not None and known[0] == broker.life else NO_VERSION
        self._seen[broker.host] = broker.life, newest
        for change in offsets.changes_since(since, MOST):
            if change.stamp == CUT_VERSION:
                continue
            content = change.key, change.queue_id, change.offset
            before, host = self._content.setdefault(change.stamp, (content, broker.host))
            if before != content:
                raise InvariantError(f"{broker.host} has {content} with stamp {change.stamp}, and {host} has {before}")


def _watch(broker: BrokerProcess) -> None:
    """Of one life."""
    offsets = broker.core.offsets
    take_back = offsets.take_back

    def checked(changes: Iterable[OffsetChange], end_of: Callable[[str, int, int], int]) -> int:
        given_back = {place for place, (told, _) in offsets._taken_back.items() if offsets._stamps.get(place) == told}
        changed = {
            place: offsets._offsets[place[0]][place[1]]
            for place, stamp in offsets._stamps.items()
            if stamp > offsets._begun and place not in given_back
        }
        given = list(changes)
        count = take_back(given, end_of)
        for (key, queue_id), offset in changed.items():
            found = offsets._offsets.get(key, {}).get(queue_id)
            if found != offset:
                raise InvariantError(
                    f"{broker.host} is given back {found} of {key} {queue_id}, where {offset} was told since it leads"
                )
        for change in given:
            _verify_tail(broker, change)
        return count

    offsets.take_back = checked  # type: ignore[method-assign]


def _verify_tail(broker: BrokerProcess, change: OffsetChange) -> None:
    """What another master was told counts on records that stand in front of this one's epoch: that one's own tail may
    be lost, and other messages stand there."""
    offsets, store, last = broker.core.offsets, broker.store, broker.store.epochs.last
    place = change.key, change.queue_id
    told, had = offsets._taken_back.get(place, (NO_VERSION, NO_VERSION))
    at = offsets._offsets.get(change.key, {}).get(change.queue_id, 0)
    is_taken = had == change.stamp and offsets._stamps.get(place) == told
    if not is_taken or not at or last is None or change.stamp.epoch >= last.epoch or not broker.driver.is_serving:
        return
    topic = change.key.rpartition("@")[0]
    units = store.units(topic, change.queue_id, at - 1, 1)
    if units and units[0][0] >= last.start_offset:
        raise InvariantError(
            f"{broker.host} takes back {at} of {place} with stamp {change.stamp}; the record in front of it is of its"
            f" own epoch, {last}"
        )
