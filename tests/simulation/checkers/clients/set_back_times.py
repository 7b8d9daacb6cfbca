"""Times of pops and of set-backs stand in the order in which a master has carried them out, whatever its clock shows:
by them a new master tells which pops in the log still move a group."""

from __future__ import annotations

from rmqha.broker.pop.positions import HeldEntries, PopQueue
from rmqha.broker.tables.offsets import OffsetTable
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class SetBackTimes:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int], int, list[HeldEntries]]] = {}
        """By host: its life and the epoch that it leads, how often something was set back, and the pops whose
        checkpoints were on their way."""
        self._times: dict[str, dict[PopQueue, int]] = {}
        """By host: when groups were set back last."""

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        if not broker.core.driver.is_serving:
            self._seen.pop(broker.host, None)
            return
        positions, offsets = broker.core.pops.positions, broker.core.offsets
        standing, count, takes = (
            (broker.life, int(broker.replica.epoch)),
            offsets.set_back_count,
            [*positions._under_way],
        )
        known, told = self._seen.get(broker.host), self._times.get(broker.host, {})
        self._seen[broker.host] = standing, count, takes
        if known is None or known[:2] != (standing, count):
            self._times[broker.host] = times_of(offsets)
        if known is None or known[0] != standing:
            return
        _, before_count, before = known
        if count == before_count:
            old = set(map(id, before))
            for took in takes:
                if id(took) not in old and positions.is_void(took.place, took.pop_ms):
                    raise InvariantError(
                        f"{broker.host} gives messages of {took.place} at {took.pop_ms}, where the group was set back"
                        " before: that pop says nothing"
                    )
            return
        for took in before:
            at_ms = self._times[broker.host].get(took.place, 0)
            if at_ms != told.get(took.place, 0) and took.pop_ms > at_ms:
                raise InvariantError(
                    f"{broker.host} has set the group of {took.place} back at {at_ms}; a pop before has {took.pop_ms}"
                )


def times_of(offsets: OffsetTable) -> dict[PopQueue, int]:
    found = {}
    for key in offsets._set_backs.keys():  # noqa: SIM118
        topic, _, group = key.rpartition("@")
        for queue_id, at_ms in offsets._set_backs.of(key).items():
            found[PopQueue(topic, group, queue_id)] = at_ms
    return found
