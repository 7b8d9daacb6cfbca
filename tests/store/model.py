"""What a log should be: a string of records with their ends, and what a store must show for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqha.model.epoch import EpochHistory
from rmqha.model.message import decode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import NewMessage, blank, decode, encode, fixed_bytes, topic_field
from rmqha.store.store import Store
from tests.store.support import SMALL, log_bytes

FILE_BYTES = SMALL.mapped_file_size_commit_log


@dataclass
class LogModel:
    """`image` is the log from offset 0; `ends` are the record ends, 0 first; `queues` the record ends per queue; `keys`
    the offsets of records per topic and key, all of KEYS being one."""

    image: bytes = b""
    ends: list[int] = field(default_factory=lambda: [0])
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    keys: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def copy(self) -> LogModel:
        queues = {key: list(ends) for key, ends in self.queues.items()}
        keys = {key: list(offsets) for key, offsets in self.keys.items()}
        return LogModel(self.image, list(self.ends), queues, keys)

    def add(self, message: NewMessage, stored_ms: int) -> bytes:
        """Add the record that a master would write, behind a blank one if it does not fit. Returns the bytes added."""
        topic, version = topic_field(message.topic)
        size = fixed_bytes(message) + len(message.body) + len(topic) + 2 + len(message.properties)
        left = FILE_BYTES - len(self.image) % FILE_BYTES
        before = len(self.image)
        if size + 8 > left:
            self.image += blank(left).ljust(left, b"\0")
            self.ends.append(len(self.image))
        key = decode_properties(message.properties).get("KEYS")
        if key:
            self.keys.setdefault((message.topic, key), []).append(len(self.image))
        queue = self.queues.setdefault((message.topic, message.queue_id), [])
        self.image += encode(message, topic, version, len(queue), len(self.image), stored_ms)
        self.ends.append(len(self.image))
        queue.append(len(self.image))
        return self.image[before:]

    def roll(self) -> None:
        """A blank record takes the rest of the file."""
        left = -len(self.image) % FILE_BYTES
        if left:
            self.image += blank(left).ljust(left, b"\0")
            self.ends.append(len(self.image))

    def cut(self, end: int) -> None:
        self.image = self.image[:end]
        self.ends = [known for known in self.ends if known <= end]
        self.queues = {key: [known for known in ends if known <= end] for key, ends in self.queues.items()}
        self.keys = {key: [known for known in offsets if known < end] for key, offsets in self.keys.items()}

    def whole(self, end: int) -> int:
        """The last record end at or below `end`."""
        return max(known for known in self.ends if known <= end)


def check_queues(store: Store, model: LogModel) -> None:
    """Each queue holds exactly the records below the dispatched offset, in order."""
    dispatched = store.dispatched_offset
    assert dispatched <= store.confirm_offset <= store.max_phy_offset
    assert dispatched in model.ends
    for (topic, queue_id), ends in model.queues.items():
        expected = [end for end in ends if end <= dispatched]
        low, high = store.queue_range(topic, queue_id)
        gone = sum(1 for end in expected if end <= store.min_phy_offset)
        assert (low, high) == (gone, len(expected)), (topic, queue_id)
        for number, end in enumerate(expected[gone:], gone):
            (view,) = store.pull(topic, queue_id, number, 1, 1 << 20).records
            record = decode(view)
            assert (record.phy_offset + record.size_bytes, record.queue_offset) == (end, number)
    assert set(store.queues()) <= {topic for topic, _ in model.queues}


def check_index(store: Store, model: LogModel, step_bytes: int = 1 << 20) -> None:
    """Each record below the dispatched offset has exactly one entry for its key and is found by it."""
    while store.index.build(step_bytes):
        pass
    dispatched = store.dispatched_offset
    count = 0
    for (topic, key), offsets in model.keys.items():
        expected = [offset for offset in reversed(offsets) if store.min_phy_offset <= offset < dispatched]
        count += len(expected)
        result = store.index.query(topic, key)
        assert [decode(view).phy_offset for view in result.records] == expected[:64], (topic, key)
    if store.index.files.end_offset < dispatched and not store.min_phy_offset:
        assert sum(file.header.index_count - 1 for file in store.index.files) == count


def check_prefix(store: Store, model: LogModel, at_least: int) -> None:
    """The log is a whole-record prefix of the model that reaches `at_least`, without the files that were removed."""
    start, end = store.min_phy_offset, store.max_phy_offset
    assert log_bytes(store) == model.image[start:end]
    assert end in model.ends
    assert end >= model.whole(at_least)


def is_prefix(history: EpochHistory, of: EpochHistory) -> bool:
    return list(history) == list(of)[: len(history)]


def epochs_agree(history: EpochHistory, of: EpochHistory, start: int) -> bool:
    """The same entries, but for those that only speak of bytes below `start`, which may be gone."""
    return list(history) in (list(of)[index:] for index in range(len(of) - len(of.trimmed(PhyOffset(start))) + 1))
