"""At the end: one serving master, every replica in the set, logs byte-equal, epochs equal, queues equal to the log,
every message found by its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from rmqha.model.error import StoreError
from rmqha.model.identity import Role
from rmqha.model.message import PROPERTY_KEYS, find_property
from rmqha.model.offset import PhyOffset
from rmqha.store.index.index_key import key_hash
from rmqha.store.log.record import properties_of
from tests.simulation.checkers.logs.records import entries, located
from tests.simulation.checkers.logs.visibility import checksum
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

QUERY_EVERY = 16
_KEYS = PROPERTY_KEYS.encode()


def missing(brokers: Sequence[BrokerProcess]) -> str:
    """What a whole group still lacks, or ""."""
    down = [broker.host for broker in brokers if not broker.alive]
    if down:
        return f"{down} are down: {[broker.failed for broker in brokers if not broker.alive]}"
    masters = [broker for broker in brokers if broker.replica.role is Role.MASTER]
    if len(masters) != 1:
        return f"{[broker.host for broker in masters]} serve as master"
    if masters[0].is_static:
        if astray := [
            broker.host for broker in brokers if broker is not masters[0] and not broker.replica.is_following
        ]:
            return f"{astray} do not follow {masters[0].host}"
        return _unlevel(brokers)
    state = masters[0].replica.state(0).to_json()
    if len(state["syncStateSet"]) != sum(not broker.config.async_learner for broker in brokers):
        return f"the set of {masters[0].host} is {state['syncStateSet']}"
    return _unlevel(brokers)


def _unlevel(brokers: Sequence[BrokerProcess]) -> str:
    ends = {broker.host: (broker.store.max_phy_offset, broker.store.dispatched_offset) for broker in brokers}
    if len(set(ends.values())) != 1 or any(end != dispatched for end, dispatched in ends.values()):
        return f"(end, dispatched) are {ends}"
    waiting = {broker.host: broker.store.uncommitted_bytes for broker in brokers if broker.store.uncommitted_bytes}
    return f"{waiting} bytes wait in memory" if waiting else ""


def logs_differ(brokers: Sequence[BrokerProcess]) -> str:
    """Which two replicas hold other bytes, or ""."""
    first = brokers[0]
    for other in brokers[1:]:
        start = max(first.store.min_phy_offset, other.store.min_phy_offset)
        # an old active file may have been rolled since the group was found whole
        end = min(first.store.max_phy_offset, other.store.max_phy_offset)
        if checksum(first, start, end) != checksum(other, start, end):
            return f"the logs of {first.host} and {other.host} differ in [{start}, {end})"
    return ""


def verify(brokers: Sequence[BrokerProcess]) -> None:
    hash_of = cache(key_hash)
    for broker in brokers:
        try:
            _check_index(broker, hash_of)
        except StoreError:
            if not broker.has_bad_disk:
                raise
            broker.store.index.damaged()  # as a query does; what is found damaged is made anew by then
            _check_index(broker, hash_of)
    first = brokers[0]
    if difference := logs_differ(brokers):
        raise InvariantError(difference)
    for other in brokers[1:]:
        start = max(first.store.min_phy_offset, other.store.min_phy_offset)
        end = min(first.store.max_phy_offset, other.store.max_phy_offset)
        # a static group writes under the last epoch that each member has heard of; migrate gives them one history
        if not other.is_static and _epochs_with_bytes(other, start, end) != _epochs_with_bytes(first, start, end):
            raise InvariantError(f"{first.host} has epochs {first.store.epochs}, {other.host} {other.store.epochs}")
        ends = [_live_ends(broker, start) for broker in (first, other)]
        if ends[0] != ends[1]:
            raise InvariantError(f"from {start} on {first.host} has queues up to {ends[0]}, {other.host} {ends[1]}")


def _check_index(broker: BrokerProcess, hash_of: Callable[[str, str], int]) -> None:
    """Each record of a queue is found by the hash of its unique key, among those stored in its millisecond, and entered
    once for each time that it has that key; some are asked for as clients ask."""
    store = broker.store
    while store.index.build(1 << 20):
        pass
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            for number, phy_offset, stored_ms, key, view, is_indexed in entries(broker, topic, queue_id):
                if not key or not is_indexed:
                    continue
                count = list(store.index.files.search(hash_of(topic, key), stored_ms, stored_ms)).count(phy_offset)
                if count > 1 + (find_property(properties_of(view), _KEYS) or b"").split(b" ").count(key.encode()):
                    raise InvariantError(f"{broker.host} has {count} entries of {key} at {phy_offset} in its index")
                found = count > 0
                if found and number % QUERY_EVERY == 0:
                    found = view in store.index.query(topic, key, 64, stored_ms, stored_ms).records
                if not found:
                    raise InvariantError(f"{broker.host} does not find {key} at {phy_offset} by its key")


def _epochs_with_bytes(broker: BrokerProcess, start: int, end: int) -> list[tuple[int, int]]:
    """An epoch in which nothing was written yet may reach a slave with the next heartbeat only."""
    epochs = broker.store.epochs.trimmed(PhyOffset(start))
    return [(entry.epoch, entry.start_offset) for entry in epochs if entry.start_offset < end]


def _live_ends(broker: BrokerProcess, start: int) -> dict[tuple[str, int], int]:
    """The ends of the queues that have a record at or behind `start`; older ones may have been removed by rule."""
    found = {}
    for topic, queue_ids in broker.store.queues().items():
        for queue_id in queue_ids:
            low, high = broker.store.queue_range(topic, queue_id)
            if low < high:
                newest = broker.store.pull(topic, queue_id, high - 1, 1, 1 << 20).records
                if not newest:
                    raise InvariantError(f"{broker.host}: {topic}/{queue_id} cannot be read at {high - 1}, its last")
                if located(newest[0])[0] >= start:
                    found[topic, queue_id] = int(high)
    return found


def too_long(brokers: Sequence[BrokerProcess]) -> str:
    """Which replica keeps a longer log than it may, or ""."""
    for broker in brokers:
        limit, log = broker.config.commit_log_max_bytes, broker.store
        if limit and log.max_phy_offset - log.min_phy_offset > limit:
            return f"{broker.host} keeps [{log.min_phy_offset}, {log.max_phy_offset}), more than {limit} bytes"
    return ""
