"""A learner (asyncLearner) only copies: it is never master, and in no set from which a master may be elected. That it
counts for no acknowledgement is seen by `copies`, which looks at the other replicas alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess


class Learners:
    """`brokers` are the learners of group `name`."""

    def __init__(self, name: str, brokers: Sequence[BrokerProcess]) -> None:
        self._name = name
        self._brokers = brokers

    def elected(self, broker: BrokerProcess) -> None:
        """`broker` takes the role of master."""
        if broker in self._brokers:
            raise InvariantError(f"{broker.host} is a learner and master of epoch {broker.replica.epoch}")

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        if not self._brokers:
            return
        group = controller.machine.info.groups.get(self._name)
        if group is None:
            return
        for broker in self._brokers:
            if broker.broker_id in group.electable_ids:
                raise InvariantError(f"{broker.host} is a learner and may be elected: {list(group.electable_ids)}")
