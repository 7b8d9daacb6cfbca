"""Offsets at which queues go on of which this log has no record: our sidecar beside a log that was begun behind 0.
Control plane.

A queue offset is given once for ever, but a replica that began to copy at the master's first byte has never seen the
records of idle queues. Its master tells it where they end (request 52032). Until then it `lacks` them, and must not be
a member of the group: as master it would give their offsets again, from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmqha.port import Disk
from rmqha.store.meta import sidecar
from rmqha.store.queue.batch_consume_queue import BatchConsumeQueues
from rmqha.store.queue.consume_queue import ConsumeQueues

PATH = "rmqha.queues"

QueueEnd = tuple[str, int, int]
"""Topic, queue id, and the queue offset behind its last message."""


class QueueMinOffsets:
    """First offsets of queues of which this log has no record. `known`: the first offset of each queue that has no
    file; without an entry it is 0."""

    def __init__(self, disk: Disk, queues: ConsumeQueues, batch_queues: BatchConsumeQueues) -> None:
        self._disk = disk
        self._queues = queues
        self._batch_queues = batch_queues
        self._known: dict[tuple[str, int], int] = {}
        self.lacks = False
        """True if this log was begun behind 0, and no master has told the ends of the queues without a record in it."""
        self.restart_count = 0
        """Number of times that the log was begun anew."""
        self._learners: list[Callable[[], None]] = []

    def subscribe(self, learner: Callable[[], None]) -> None:
        """Call `learner` whenever the ends of queues are not known any more."""
        self._learners.append(learner)

    # --- life of the log --------------------------------------------------------------------------------------------
    def load(self) -> list[str]:
        """Read the sidecar. Returns one sentence per finding. Raises StoreError for a newer version."""
        lines: list[str] = []
        try:
            fields = sidecar.read(self._disk, PATH)
            if fields is not None:
                self.lacks, self._known = parse(fields)
        except sidecar.BadSidecarError as error:
            self.lacks = True
            lines.append(f"{PATH}: {error}; the group's master is asked where its queues end.")
        self._queues.starts = self._known
        return lines

    def recovered(self, log_min: int, unit_count: int, *, lost: bool) -> list[str]:
        """Note that the queues on disk have been found; the start of some may be `lost`. If they had `unit_count`
        entries, those in front of the known starts included, and all are gone, they are made anew from the log, which
        says nothing of queues without a record."""
        are_gone = not self._queues.table and not self._batch_queues.table and unit_count > sum(self._known.values())
        if log_min and (lost or are_gone) and not self.lacks:
            self.lose()
            return ["Queues are gone: the group's master is asked where those without a message in the log end."]
        self._add()
        return []

    def lose(self) -> None:
        """Note, durably, that nothing is known any more of queues without a record."""
        self._set(True, {})

    def restarted(self, phy_offset: int) -> None:
        """Note that the log begins anew at `phy_offset`, without a queue; a log that begins at 0 tells all."""
        self.restart_count += 1
        if not phy_offset and (self.lacks or self._known):
            self._set(False, {})

    # --- the ends of the queues -------------------------------------------------------------------------------------
    def ends(self) -> list[QueueEnd]:
        """Ends of all queues, as of what is dispatched."""
        found = {(queue.topic, queue.queue_id): queue.max_offset for queue in self._queues}
        found |= {(queue.topic, queue.queue_id): queue.max_offset for queue in self._batch_queues}
        return [(topic, queue_id, end) for (topic, queue_id), end in sorted(found.items()) if end]

    def learn(self, ends: Iterable[QueueEnd]) -> int:
        """Store, durably, the ends that the master told; the log that it answered for must be dispatched here. Queues
        that have a record keep their own end. Returns the number of the others."""
        has_record = self._queues.table.keys() | self._batch_queues.table.keys()
        self._set(False, {(topic, number): end for topic, number, end in ends if (topic, number) not in has_record})
        self._add()
        return len(self._known)

    def _set(self, lacks: bool, known: dict[tuple[str, int], int]) -> None:
        self.lacks, self._known = lacks, known
        self._queues.starts = known
        starts = [[topic, queue_id, start] for (topic, queue_id), start in sorted(known.items())]
        sidecar.write(self._disk, PATH, {"lacks": lacks, "starts": starts})
        if lacks:
            for learner in self._learners:
                learner()

    def _add(self) -> None:
        """Make the queues that are known by their start only."""
        for topic, queue_id in self._known:
            if topic in self._batch_queues.topics:
                self._batch_queues.make(topic, queue_id)
            elif self._queues.get(topic, queue_id) is None:
                self._queues.add_started(topic, queue_id)


def parse(fields: dict[str, object]) -> tuple[bool, dict[tuple[str, int], int]]:
    """(lacks, starts) of a sidecar's fields. Raises BadSidecarError."""
    match fields:
        case {"lacks": bool(lacks), "starts": list(starts)}:
            pass
        case _:
            raise sidecar.BadSidecarError(f"expected lacks and starts, found {sorted(map(str, fields))}")
    table: dict[tuple[str, int], int] = {}
    for item in starts:
        match item:
            case [str(topic), int(queue_id), int(start)] if queue_id >= 0 and start >= 0:
                table[topic, queue_id] = start
            case _:
                raise sidecar.BadSidecarError(f"expected a topic, a queue and an offset, found {item!r}")
    return lacks, table
