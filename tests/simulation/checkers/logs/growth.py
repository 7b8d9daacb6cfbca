"""Nothing is kept that nobody needs: when a group is whole and at rest, each container of a process is as long as the
group and its tables explain, and its disk holds no file that the log has left behind. In the midst of the faults no
container grows with the number of messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmqha.broker.pop.requests.pop_request import MAX_KNOWN_COUNT
from rmqha.broker.services.transaction import MAX_REMEMBERED_COUNT
from rmqha.broker.tables.delay_offsets import MAX_STATES
from rmqha.broker.tables.table_version import MAX_REMEMBERED
from rmqha.ha.replica import Replica
from rmqha.ha.static_replica import StaticReplica
from rmqha.store.queue.batch_consume_queue import DIRECTORY as BATCH_DIRECTORY
from rmqha.store.queue.batch_consume_queue import UNIT_BYTES as BATCH_UNIT_BYTES
from rmqha.store.queue.dispatch_cache import MAX_COUNT as MAX_UNDISPATCHED_COUNT
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

MOST_ITEMS = 24
"""In a container of a process at rest; a run sends thousands of messages to two queues."""
MOST_BUSY_ITEMS = 1000
"""The same under way, whoever stands still meanwhile: clients wait for one send, or a few, before the next."""
EXPLAINED = (
    "._handlers",  # one for each request code
    ".latency_counts",  # one for each step of the scale
    "._log.files.files",  # the log's files: `left_behind`
    ".index.files._files",
    "._index.files._files",
    "._raft._core.log._entries",  # until the next snapshot
    "._client._master_entries",  # one for each epoch that the log had at the handshake
    ".replicas",  # one for each that the controllers know: who lost its disk stays until it is cleaned
    "._hasher._heads",  # a cache, emptied when it is full
    ".store.recovery.lines",  # one for each queue at most
    ".table[].files.files",  # a queue's files: `left_behind`
)
"""Ends of paths whose length something else bounds."""
BOUNDS = {
    "._table_changes._changes": MAX_REMEMBERED,
    ".transactions._state._copies": MAX_REMEMBERED_COUNT,
    ".transactions._state._ended": MAX_REMEMBERED_COUNT,
    ".delay_offsets._states": MAX_STATES,
    ".pops.reader._known": MAX_KNOWN_COUNT,
    "._dispatch_service._pending": MAX_UNDISPATCHED_COUNT,  # while a confirm offset, or rot, stands in front
}
"""Ends of paths that have a bound of their own."""
ENTRY_BYTES = 20
"""Of a queue."""
OWN = ("rmqha.", "controller.", "nameserver.")
LEFT_OUT = ("rmqha.sim.", "rmqha.model.config.")
CONTAINERS = (dict, list, set, deque)


def containers(root: object, name: str) -> Iterator[tuple[str, int]]:
    """Path and length of every container below `root`, in objects of ours."""
    seen, waiting = {id(root)}, [(name, root)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, CONTAINERS):
            yield path, len(item)
        for place, child in _parts(item):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}{place}", child))


def _parts(item: object) -> Iterator[tuple[str, Any]]:
    if isinstance(item, Mapping):
        yield from (("[]", child) for child in list(item.values()))
    elif isinstance(item, list | set | deque | tuple):
        yield from (("[]", child) for child in list(item))
    elif type(item).__module__.startswith(OWN) and not type(item).__module__.startswith(LEFT_OUT):
        names = [slot for kind in type(item).__mro__ for slot in getattr(kind, "__slots__", ())]
        found = {slot: getattr(item, slot) for slot in names if hasattr(item, slot)} | getattr(item, "__dict__", {})
        for key, child in found.items():
            yield f".{key}", child


def overgrown(root: object, name: str, most: int = MOST_ITEMS) -> list[str]:
    """Each container that is longer than anything explains."""
    return [
        f"{path} has {length} items"
        for path, length in containers(root, name)
        if length > _most(path, most) and not path.endswith(EXPLAINED)
    ]


def _most(path: str, most: int) -> int:
    return next((bound for end, bound in BOUNDS.items() if path.endswith(end)), most)


def spare_connections(broker: BrokerProcess, peer_count: int) -> str:
    """Of slaves: a master keeps one for each, a slave none. In a static group nobody knows whose one is: if a slave was
    killed while it was cut off its connection stays beside its next one until it has been silent for long."""
    replica = broker.core.replica
    assert isinstance(replica, Replica | StaticReplica)
    if isinstance(replica, Replica):
        count, most = len(replica._slaves.connections), peer_count
    else:
        count, most = len(replica._connections), 2 * peer_count
    most = most if replica.is_master else 0
    return f"{count} connections of slaves, {most} at most" if count > most else ""


def left_behind(broker: BrokerProcess) -> str:
    """A file of the log or of a queue in front of all that the log holds, or ""."""
    store, config = broker.store, broker.config
    for path in broker.disk.paths():
        folder, _, name = path.rpartition("/")
        if folder == "commitlog" and int(name) + config.mapped_file_size_commit_log <= store.min_phy_offset:
            return f"{path}, the log begins at {store.min_phy_offset}"
        if folder.startswith("consumequeue/"):
            _, topic, queue_id = folder.split("/")
            low = store.queue_range(topic, int(queue_id))[0]
            # the last file of a queue that holds nothing more says where it goes on
            if int(name) + config.mapped_file_size_consume_queue < low * ENTRY_BYTES:
                return f"{path}, the queue begins at {low}"
        if folder.startswith(f"{BATCH_DIRECTORY}/"):
            _, topic, queue_id = folder.split("/")
            queue = store._batch_queues.table[topic, int(queue_id)]
            # one unit in front of the log says where offsets go on behind a cut
            first = queue.index_at(store.min_phy_offset) - 1
            if int(name) + queue.files.file_size_bytes <= first * BATCH_UNIT_BYTES:
                return f"{path}, the first unit of the log is {first + 1}"
    return ""


def verify(brokers: Sequence[BrokerProcess], controllers: Sequence[ControllerProcess]) -> None:
    """Of a group that is whole and at rest."""
    found = [
        f"{broker.host} keeps {excess}"
        for broker in brokers
        for excess in (*overgrown(broker.core, "broker"), spare_connections(broker, len(brokers) - 1))
        if excess
    ]
    found += [f"{item.host} keeps {excess}" for item in controllers for excess in overgrown(item.machine, "machine")]
    if found:
        raise InvariantError(f"at rest {'; '.join(found[:3])}")


def verify_busy(brokers: Sequence[BrokerProcess], controllers: Sequence[ControllerProcess]) -> None:
    """At any moment."""
    roots = [(item.host, item.core, "broker") for item in brokers if item.alive and item.driver.is_log_free]
    others = [(item.host, item.machine, "machine") for item in controllers if item.alive]
    for host, root, name in (*roots, *others):
        if found := overgrown(root, name, MOST_BUSY_ITEMS):
            raise InvariantError(f"under way {host} keeps {'; '.join(found[:3])}")
