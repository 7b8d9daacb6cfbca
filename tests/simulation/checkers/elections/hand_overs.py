"""A master that says it has handed over (ruling 18): its target holds all that it has, and it writes nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class HandOvers:
    """`brokers` are the replicas that may become master."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._brokers = brokers
        self._told: dict[str, tuple[int, int, int]] = {}
        """By host: its life, the epoch that it leads, and where its log ended when it said so."""
        self.judged_count = 0

    def stepped(self, master: BrokerProcess) -> None:
        waiting = master.replica._switch._waiting
        if waiting is None or not waiting.told:
            self._told.pop(master.host, None)
            return
        term, end = (master.life, int(master.replica.epoch)), int(master.store.max_phy_offset)
        told = self._told.get(master.host)
        if told is None or told[:2] != term:
            self._told[master.host] = (*term, end)
            self.judged_count += 1
            if waiting_bytes := master.store.uncommitted_bytes:
                raise InvariantError(f"{master.host} hands over, and {waiting_bytes} bytes wait in its memory")
            for broker in self._brokers:
                if broker.broker_id == waiting.target and not broker.lost_power and broker.end_offset < end:
                    raise InvariantError(
                        f"{master.host} hands over at {end}; replica {waiting.target} ends at {broker.end_offset}"
                    )
        elif end > told[2]:
            raise InvariantError(f"{master.host} has handed over at {told[2]}, and writes on up to {end}")
