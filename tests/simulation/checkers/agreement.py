"""At the end: one serving master, every replica in the set, logs byte-equal, epochs equal, queues equal to the log."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.identity import Role

from ..broker_process import BrokerProcess
from ..history import InvariantError
from .visibility import checksum


def missing(brokers: Sequence[BrokerProcess]) -> str:
    """What a whole group still lacks, or ""."""
    down = [broker.host for broker in brokers if not broker.alive]
    if down:
        return f"{down} are down: {[broker.failed for broker in brokers if not broker.alive]}"
    masters = [broker for broker in brokers if broker.replica.role is Role.MASTER]
    if len(masters) != 1:
        return f"{[broker.host for broker in masters]} serve as master"
    state = masters[0].replica.state(0)
    if len(state["syncStateSet"]) != len(brokers):
        return f"the set of {masters[0].host} is {state['syncStateSet']}"
    ends = {broker.host: (broker.store.max_phy_offset, broker.store.dispatched_offset) for broker in brokers}
    if len(set(ends.values())) != 1 or masters[0].store.max_phy_offset != masters[0].store.dispatched_offset:
        return f"(end, dispatched) are {ends}"
    return ""


def verify(brokers: Sequence[BrokerProcess]) -> None:
    first = brokers[0]
    for other in brokers[1:]:
        if other.store.epochs != first.store.epochs:
            raise InvariantError(f"{first.host} has epochs {first.store.epochs}, {other.host} {other.store.epochs}")
        start = max(first.store.min_phy_offset, other.store.min_phy_offset)
        end = first.store.max_phy_offset
        if checksum(first, start, end) != checksum(other, start, end):
            raise InvariantError(f"the logs of {first.host} and {other.host} differ in [{start}, {end})")
        if first.store.queues() != other.store.queues():
            raise InvariantError(f"{first.host} has queues {first.store.queues()}, {other.host} {other.store.queues()}")
