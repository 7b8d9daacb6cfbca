"""Each send to a broker that lives, runs and has a disk that is well is answered, good or bad, before its client gives
up: no wait is without a bound, whoever it is that does not acknowledge."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Answers:
    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._brokers = {broker.config.address: broker for broker in brokers}

    def missing(self, key: str, address: str, called_at_ms: int, given_up_at_ms: int) -> None:
        """A client has waited in vain."""
        broker = self._brokers[address]
        if broker.alive and not broker.is_paused and broker.disturbed_at_ms < called_at_ms:
            raise InvariantError(
                f"{broker.host} has not answered {key} for {given_up_at_ms - called_at_ms} ms and was well all the time"
            )
