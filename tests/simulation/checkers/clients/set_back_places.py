"""What a master keeps of pops from before a set-back: once it knows of one, no pop under way takes the group on, and
where the order was taken up nothing counts as given in order that was given before."""

from __future__ import annotations

from rmqha.broker.pop.positions import PopQueue
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class SetBackPlaces:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[tuple[int, int], set[PopQueue]]] = {}
        """By host: its life and the epoch that it leads, and the places whose orders wait to be taken up."""

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        pops, offsets = broker.core.pops, broker.core.offsets
        if not broker.core.driver.is_serving or not pops.recovery.is_done:
            self._waiting.pop(broker.host, None)
            return
        positions = pops.positions
        if positions._set_back_count == offsets.set_back_count:
            for takes in positions._taken.values():
                last = takes[-1]
                if positions.is_void(last.place, last.pop_ms):
                    raise InvariantError(
                        f"{broker.host} goes on at {last.next_offset} in {last.place} by a pop at {last.pop_ms}, and"
                        " the group was set back since"
                    )
        standing = broker.life, int(broker.replica.epoch)
        known, before = self._waiting.get(broker.host, (standing, set()))
        waiting = {_place(key, queue_id) for key, queue_id in offsets._resets}
        self._waiting[broker.host] = standing, waiting
        for place in before - waiting if known == standing else ():
            info = pops.orders.get(place)
            if info is not None and positions.is_void(place, info.pop_ms):
                raise InvariantError(
                    f"{broker.host} has set the group of {place} back, and {info.queue_offsets} count as given there"
                    f" at {info.pop_ms}"
                )


def _place(key: str, queue_id: int) -> PopQueue:
    topic, _, group = key.rpartition("@")
    return PopQueue(topic, group, queue_id)
