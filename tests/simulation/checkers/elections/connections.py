"""A master has one connection of each slave, its newest, and a replica that is no master has none: acknowledgements of
another connection, or of another epoch, never count (ruling 17). Where no disk and no link spoils anything no replica
takes what another says for a breach of the protocol, or for unsound."""

from __future__ import annotations

from rmqha.ha.replica import Replica
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


def stepped(broker: BrokerProcess) -> None:
    replica = broker.replica
    assert isinstance(replica, Replica)
    connections = replica._slaves._connections
    if not connections:
        return
    if not replica.is_master:
        raise InvariantError(f"{broker.host} is no master and has {len(connections)} connections of slaves")
    known = [item.slave_id for item in connections.values() if item.slave_id is not None]
    if len(set(known)) < len(known):
        raise InvariantError(f"{broker.host} has more than one connection of a slave: {sorted(known)}")


def spoken(broker: BrokerProcess) -> None:
    if broker.core.driver.ha_breach_count:
        raise InvariantError(f"{broker.host} has closed a connection for what its peer sent")
