"""A ReplicaLog of plain bytes, so that the group rules are tested apart from the store."""

from __future__ import annotations

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import NoRoomError, StoreError
from rmqha.model.offset import BrokerId, Epoch, PhyOffset

NO_ROOM = "commitlog/1: cannot create or map a file: No space left on device"


class MemoryLog:
    def __init__(self) -> None:
        self.start = 0
        self.data = bytearray()
        self.synced = 0
        self.confirm = 0
        self.dispatched = 0
        self.epochs = EpochHistory()
        self.highest_epoch = Epoch(0)
        self.unclean = False
        self.has_queues = False
        """As a test may say: then a log that begins anew lacks their ends."""
        self.lacks_queue_ends = False
        self.half_record_bytes = 0
        """Bytes at the end that belong to a record whose rest has not arrived."""
        self.disk_error = ""
        """What the disk says to every small file that is to be written."""
        self.room_end: int | None = None
        """Where the last file of the log ends, if there is no room for the next one."""
        self.disk_hangs = False
        """Who writes a small file is never heard of again."""

    @property
    def min_phy_offset(self) -> PhyOffset:
        return PhyOffset(self.start)

    @property
    def max_phy_offset(self) -> PhyOffset:
        return PhyOffset(self.start + len(self.data))

    @property
    def synced_offset(self) -> PhyOffset:
        return PhyOffset(self.synced)

    @property
    def confirm_offset(self) -> PhyOffset:
        return PhyOffset(self.confirm)

    @property
    def confirmed_record_end(self) -> PhyOffset:
        return PhyOffset(min(self.confirm, self.record_end_offset))

    @property
    def dispatched_offset(self) -> PhyOffset:
        return PhyOffset(self.dispatched)

    @property
    def record_end_offset(self) -> PhyOffset:
        return PhyOffset(self.max_phy_offset - self.half_record_bytes)

    def append_raw(self, phy_offset: PhyOffset, data: bytes | bytearray | memoryview) -> str:
        assert phy_offset == self.max_phy_offset
        room_bytes = len(data) if self.room_end is None else self.room_end - phy_offset
        self.data += data[:room_bytes]
        if room_bytes < len(data):
            raise NoRoomError(NO_ROOM)
        return ""

    def room_refusal(self, *, anew: bool = False) -> str:
        is_full = self.room_end is not None and (anew or self.max_phy_offset >= self.room_end)
        return NO_ROOM if is_full else ""

    def view(self, phy_offset: PhyOffset, limit_bytes: int) -> memoryview:
        begin = phy_offset - self.start
        return memoryview(bytes(self.data[begin : begin + limit_bytes]))

    def truncate(self, end_offset: PhyOffset) -> None:
        assert self.start <= end_offset <= self.max_phy_offset
        self.half_record_bytes = max(0, self.half_record_bytes - (self.max_phy_offset - end_offset))
        del self.data[end_offset - self.start :]
        self.epochs = self.epochs.truncated(end_offset)
        self.synced = min(self.synced, end_offset)
        self.confirm = min(self.confirm, end_offset)
        self.dispatched = min(self.dispatched, end_offset)

    def trim(self, start_offset: int) -> None:
        """As retention does."""
        assert start_offset <= min(self.confirm, self.dispatched)
        del self.data[: start_offset - self.start]
        self.start = start_offset
        self.epochs = self.epochs.trimmed(PhyOffset(start_offset))

    def restart_at(self, phy_offset: PhyOffset) -> None:
        self.start = phy_offset
        self.lacks_queue_ends = self.has_queues and phy_offset > 0
        self.data.clear()
        self.epochs = EpochHistory()
        self.synced = self.confirm = self.dispatched = phy_offset

    def append_epoch(self, epoch: Epoch, start_offset: PhyOffset) -> bool:
        appended = self.epochs.appended(EpochEntry(epoch, start_offset))
        if appended is None:
            return False
        self.epochs = appended
        return True

    def accept_epoch(self, epoch: Epoch) -> None:
        assert not self.disk_hangs or epoch <= self.highest_epoch, "the event loop stands still"
        if self.disk_error:
            raise StoreError(self.disk_error)
        self.highest_epoch = max(self.highest_epoch, epoch)

    def set_confirm_offset(self, offset: PhyOffset) -> None:
        self.confirm = max(self.start, min(offset, self.max_phy_offset))

    def dispatch(self, limit_bytes: int) -> bool:
        self.dispatched = min(self.confirm, self.dispatched + limit_bytes)
        return self.dispatched < self.confirm

    def clear_epochs(self) -> None:
        self.epochs = EpochHistory()

    def mark_unclean(self) -> None:
        self.unclean = True

    def mark_clean(self) -> None:
        self.unclean = False

    def sync(self) -> None:
        self.synced = self.max_phy_offset


class MemoryIdentity:
    def __init__(self, broker_id: int | None = None) -> None:
        self.id = None if broker_id is None else BrokerId(broker_id)
        self.temp: tuple[BrokerId, str] | None = None

    def broker_id(self) -> BrokerId | None:
        return self.id

    def pending(self) -> tuple[BrokerId, str] | None:
        return self.temp

    def begin(self, broker_id: BrokerId, check_code: str) -> None:
        self.temp = (broker_id, check_code)

    def confirm(self) -> None:
        assert self.temp is not None
        self.id, self.temp = self.temp[0], None

    def abandon(self) -> None:
        self.temp = None
