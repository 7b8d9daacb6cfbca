"""CP, around an unclean election: a replica that was killed before it keeps each whole record that it held, byte for
byte, until its operator has seen that it refuses to follow."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.checkers.logs.visibility import checksum
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Keeping:
    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int, int]] = {}
        """By host: first and last offset of what it holds, and the checksum."""
        self.judged_count = 0

    def holds(self, broker: BrokerProcess, end_offset: int) -> None:
        start = int(broker.store.min_phy_offset)
        self._held[broker.host] = start, end_offset, checksum(broker, start, end_offset)

    def end_of(self, broker: BrokerProcess) -> int:
        return self._held[broker.host][1]

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        held = self._held.get(broker.host)
        if held is None:
            return
        self.judged_count += 1
        if broker.store.max_phy_offset < held[1]:
            raise InvariantError(
                f"{broker.host} held whole records up to {held[1]} before an unclean election and ends at"
                f" {broker.store.max_phy_offset}"
            )

    def end(self, brokers: Sequence[BrokerProcess]) -> None:
        """The operator decides now: whoever is emptied gives all of it."""
        for broker in brokers:
            start, end, before = self._held.pop(broker.host)
            if start == broker.store.min_phy_offset and checksum(broker, start, end) != before:
                raise InvariantError(f"{broker.host} holds other bytes below {end} than before an unclean election")
