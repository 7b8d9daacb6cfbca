"""Control plane: rebuild of damaged queues from the log, beside the old ones, which are set aside at the end."""

from __future__ import annotations

from rmqha.inspect.fsck_backup import RepairBackup
from rmqha.inspect.fsck_queues import MAX_GAP_COUNT, QueueKey, Queues, UnitCodec
from rmqha.inspect.log_reader import LogReader, StopReason
from rmqha.inspect.store_inspection import BATCH_UNIT_BYTES, PREFILL, QueueFiles, StoreInspection
from rmqha.port import Disk
from rmqha.store.log.mapped_file import file_name
from rmqha.store.log.record import SYS_COMMIT, SYS_INNER_BATCH, SYS_TRANSACTION
from rmqha.store.meta.problem import disk_errors

DEFAULT_UNITS = 300_000
"""Entries of a file if no file is left that tells their number."""


class QueueWriter:
    """Writer of the files of one queue below `directory`, entry by entry, in rising order."""

    def __init__(self, disk: Disk, directory: str, unit_bytes: int, file_size_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self._unit = unit_bytes
        self._per_file = file_size_bytes // unit_bytes
        self._start: int | None = None
        self._data = bytearray()
        self.next = 0

    def put(self, number: int, unit: bytes) -> None:
        """Write entry `number`, which is not below `next`; entries between are filled in."""
        if self._start is None:
            self._begin(number - number % self._per_file)
        while self.next < number:
            self._add(PREFILL)
        self._add(unit)

    def _begin(self, number: int) -> None:
        self._start = self.next = number
        self._data = bytearray(self._per_file * self._unit)

    def _add(self, unit: bytes) -> None:
        assert self._start is not None
        if self.next - self._start == self._per_file:
            self._flush()
            self._begin(self.next)
        at = (self.next - self._start) * self._unit
        self._data[at : at + self._unit] = unit
        self.next += 1

    def _flush(self) -> None:
        assert self._start is not None
        path = f"{self.directory}/{file_name(self._start * self._unit)}"
        with disk_errors(self._disk, path, "write the file"):
            self._disk.write_atomic(path, self._data)

    def finish(self, floor: int) -> None:
        """Finish the files; a queue whose records are all expired goes on counting at `floor`."""
        if self._start is None:
            self._begin(floor - floor % self._per_file)
            while self.next < floor:
                self._add(PREFILL)
        self._flush()


def rebuild_queues(
    disk: Disk,
    backup: RepairBackup,
    store: StoreInspection,
    queues: Queues,
    end_offset: int,
    file_size_bytes: int | None,
) -> list[str]:
    """Make the damaged queues anew for the records below `end_offset`. Returns their directories."""
    writers: dict[QueueKey, QueueWriter] = {}
    floors: dict[QueueKey, int] = {}
    for directory, key, unit_bytes, floor in queues.damaged():
        size = file_size_bytes or queues.file_sizes[unit_bytes]
        if size < unit_bytes or size % unit_bytes:
            size = DEFAULT_UNITS * unit_bytes
        writer = writers[key] = QueueWriter(disk, f"{backup.directory}/new/{directory}", unit_bytes, size)
        floors[key] = floor
        if unit_bytes == BATCH_UNIT_BYTES and floor:
            _keep_expired(store, directory, writer, floor)
    _fill(writers, store, queues.batch, end_offset)
    done = []
    for directory, key, _, _ in list(queues.damaged()):
        writers[key].finish(floors[key])
        if disk.exists(directory):
            backup.move(directory)
        with disk_errors(disk, directory, "put the new queue in its place"):
            disk.rename(writers[key].directory, directory)
        done.append(directory)
    return done


def _keep_expired(store: StoreInspection, directory: str, writer: QueueWriter, floor: int) -> None:
    """Keep the entries of a batch queue whose records are not in the log any more: they say how far it had counted."""
    files = QueueFiles(store.disk, directory, BATCH_UNIT_BYTES)
    try:
        for number in range(files.first_byte // BATCH_UNIT_BYTES, floor):
            writer.put(number, files.read(number * BATCH_UNIT_BYTES, BATCH_UNIT_BYTES))
    finally:
        files.close()


def _fill(
    writers: dict[QueueKey, QueueWriter], store: StoreInspection, batch: frozenset[bytes], end_offset: int
) -> None:
    """Write the entries of all records, in one pass of the log that skips what is damaged."""
    codec, reader, position = UnitCodec(), LogReader(store.disk, store.log.files), store.min_offset
    while position < end_offset:
        for start, view, _, parts in reader.records(position, end_offset):
            if parts is None or parts[1] & SYS_TRANSACTION not in (0, SYS_COMMIT):
                continue
            topic = bytes(view[parts[6] : parts[6] + parts[7]])
            writer = writers.get((topic, parts[2]))
            if writer is None:
                continue
            properties = bytes(view[parts[8] : parts[8] + parts[9]])
            if topic in batch:
                writer.put(writer.next, codec.batch_unit(start, parts, topic, properties))
            elif not parts[1] & SYS_INNER_BATCH and _in_order(writer, parts[3]):
                writer.put(parts[3], codec.unit(start, parts, topic, properties))
        stop = reader.stop
        if stop.why is StopReason.END:
            break
        resumed = reader.next_whole(stop.position + max(stop.size_bytes, 1), end_offset)
        if resumed is None:
            break
        position = resumed
    reader.close()


def _in_order(writer: QueueWriter, queue_offset: int) -> bool:
    """True unless the record is out of order: that is a finding of its own, and the record is not queued."""
    return writer.next <= queue_offset and (not writer.next or queue_offset <= writer.next + MAX_GAP_COUNT)
