"""A master has one connection of each slave, its newest, and a replica that is no master has none: acknowledgements of
another connection, or of another epoch, never count (ruling 17). Where no disk and no link spoils anything no replica
takes what another says for a breach of the protocol, or for unsound.

A master's word is so: the bytes of one transfer were written under the epoch that its header names, and none lies
behind the start of the next one; no confirm offset is ahead of the master's own, and a handshake tells its epochs and
its end. A slave has nothing else to tell where another master's bytes begin."""

from __future__ import annotations

from rmqha.ha.replica import Replica
from rmqha.wire.ha_stream import MasterHandshake, MasterStreamParser, Transfer
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


def sent(broker: BrokerProcess, data: bytes) -> None:
    """`broker` is about to send one frame to a replica."""
    if broker.is_static or not broker.replica.is_master:
        return
    (frame,) = MasterStreamParser().feed(data)
    if isinstance(frame, Transfer):
        _verify_transfer(broker, frame)
    else:
        _verify_handshake(broker, frame)


def _verify_transfer(broker: BrokerProcess, frame: Transfer) -> None:
    header, store = frame.header, broker.store
    start, end = header.phy_offset, header.phy_offset + header.size_bytes
    own = store.epochs.at(start)
    told = header.epoch, header.epoch_start_offset
    if own is not None and told != (own.epoch, own.start_offset):
        raise InvariantError(f"{broker.host} sends its log from {start} on under {told}; it was written under {own}")
    if any(start < entry.start_offset < end for entry in store.epochs):
        raise InvariantError(
            f"{broker.host} sends [{start}, {end}) under epoch {told[0]}; {store.epochs} begins another one there"
        )
    if header.confirm_offset > store.confirm_offset or end > store.max_phy_offset:
        raise InvariantError(
            f"{broker.host} tells the confirm offset {header.confirm_offset} and sends up to {end}; it has"
            f" {store.confirm_offset} and {store.max_phy_offset}"
        )


def _verify_handshake(broker: BrokerProcess, frame: MasterHandshake) -> None:
    store = broker.store
    if frame.entries != store.epochs or frame.max_phy_offset > store.max_phy_offset:
        raise InvariantError(
            f"{broker.host} shakes hands with {frame.entries} up to {frame.max_phy_offset}; it has {store.epochs} up to"
            f" {store.max_phy_offset}"
        )
