"""Data plane: the index at work: built behind the queues in small steps, asked for messages by key.

Answers follow RocketMQ's QueryMessageProcessor and IndexService (formats.md §5), but that each hit is compared with
its record: a message that has not the key, or was stored at another time, is never given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.model.error import StoreError, UsageError
from rmqha.port import Disk, Tracer
from rmqha.store.config import StoreConfig
from rmqha.store.index.index import Index
from rmqha.store.index.index_file import IndexLayout
from rmqha.store.index.index_key import INDEX_KEY_TYPE, key_hash
from rmqha.store.index.wanted import Wanted
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.queue.dispatch_cache import DispatchCache
from rmqha.store.queue.dispatch_service import DispatchService
from rmqha.store.queue.dispatcher import DispatchedRecord

MAX_QUERY_COUNT = 64
"""RocketMQ's maxMsgsNumBatch."""
WALK_COUNT = 100_000
"""Entries that one query passes over: of other times, or of other keys with the same slot."""
WALK_STEP_COUNT = 2_000
"""Number of entries that a walk sees in one step: two milliseconds."""
HIT_COST_COUNT = 50
"""Entries that a record costs as much as: it is read and all its keys are hashed."""
KEY_COST_BYTES = 4
"""Bytes of its properties that cost as much as one entry more."""
QUERY_BUILD_BYTES = 64 * 1024
"""Bytes of dispatched log that a query enters into the index before it searches."""
QUERY_STEP_BYTES = 4 * 1024
"""Part of it that is entered in one step: a record may have sixty keys."""
CLOSE_LIMIT_BYTES = 64 * 1024 * 1024
"""Log that a clean stop still indexes; what is behind that is made after the next start."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Answer to a query by key. `records` are whole records in the log's own bytes, the newest first. `is_complete` is
    false if the search gave up before it had seen every entry. The index's newest entry was stored at
    `last_timestamp_ms` and points at `last_phy_offset`."""

    records: list[memoryview]
    is_complete: bool
    last_timestamp_ms: int
    last_phy_offset: int


class IndexSearch:
    """One query. A key may stand in very many entries, so it walks them in steps."""

    def __init__(self, index: IndexService, wanted: Wanted) -> None:
        self._index, self._wanted = index, wanted
        self._hash = key_hash(wanted.topic, wanted.key, wanted.index_type)
        self._entries = index.files.search(self._hash, wanted.begin_ms, wanted.end_ms)
        self._left_bytes = QUERY_BUILD_BYTES
        self._cut_count = index.files.cut_count
        self._passed = 0
        self._hits: set[int] = set()
        self._found: list[tuple[int, int]] = []
        """Offset and size of what is given."""

    def enter(self) -> bool:
        """Enter some of what was dispatched, before the first step; True if the query should wait for more. Raises
        StoreError if nothing can be entered."""
        more = self._index.build(QUERY_STEP_BYTES)
        self._index.require_sound()
        self._left_bytes -= QUERY_STEP_BYTES
        return more and self._left_bytes > 0

    def step(self) -> QueryResult | None:
        """Walk on; the result, None if there is more to walk. Raises StoreError, also if the index was cut since."""
        files = self._index.files
        if files.cut_count != self._cut_count:
            raise StoreError("the index of keys has changed during the search; ask again")
        stop = self._passed + WALK_STEP_COUNT
        try:
            for hit in self._entries:
                self._passed += 1
                if self._passed > WALK_COUNT or len(self._found) >= self._wanted.max_count:
                    break
                if hit is not None and hit not in self._hits:
                    self._hits.add(hit)
                    stop -= HIT_COST_COUNT + self._take(hit) // KEY_COST_BYTES
                if self._passed >= stop:
                    return None
        except StoreError:
            self._index.damaged()
            raise
        records = [self._index.view(hit, size_bytes) for hit, size_bytes in self._found]
        return QueryResult(records, self._passed <= WALK_COUNT, files.end_timestamp_ms, files.end_offset)

    def _take(self, hit: int) -> int:
        """Size (bytes) of the properties that were looked through."""
        record = self._index.record_of(hit, self._hash)
        if record is None:
            return 0
        if self._wanted.matches(record):
            self._found.append((hit, record.size_bytes))
        return len(record.properties)


class IndexService:
    """Builder and reader of the index of keys, named after RocketMQ's. `position` is the index's own dispatched offset.
    `queues_position` gives that of the queues, which the index never passes; `store_durable_offset` stores
    `files.durable_offset` when it was lowered."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        config: StoreConfig,
        cached: DispatchCache,
        tracer: Tracer,
        queues_position: Callable[[], int],
        store_durable_offset: Callable[[], None],
        kernel: BatchKernel | None = None,
    ) -> None:
        self._log = log
        self._queues_position = queues_position
        self._tracer = tracer
        self._layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
        self.is_enabled = config.message_index_enable
        self.files = Index(disk, log, self._layout, tracer, store_durable_offset, kernel)
        self._dispatch_service = DispatchService(
            log, [self.files], cached if self.is_enabled else DispatchCache(), tracer, kernel, is_keyed=True
        )
        self._failed = ""

    @property
    def position(self) -> int:
        return self._dispatch_service.position

    @property
    def behind_bytes(self) -> int:
        """Bytes of dispatched log that are not entered yet; 0 if there shall be no index."""
        return max(0, self._queues_position() - self.position) if self.is_enabled else 0

    def recover(self, durable_offset: int | None, last_stop: LastStop) -> list[str]:
        """Returns one sentence per finding; what is missing is built later. `durable_offset` is None where no mark of
        ours holds. If then the last stop was not clean, perhaps another program was stopped, and RocketMQ drops index
        files after such a stop without making all of them anew: nothing is trusted."""
        if durable_offset is None and last_stop is LastStop.KILLED:
            last_stop = LastStop.POWER_LOST
        self.files.durable_offset = durable_offset or 0
        found = self.files.recover(self._log, self._log.end_offset, last_stop)
        self._dispatch_service.position = found.repair_from or 0
        return found.lines

    def build(self, limit_bytes: int) -> bool:
        """Enter about `limit_bytes` of dispatched log. True if more remains.

        An index that cannot be written, or an old record that cannot be read, is no reason to stop a broker: nothing
        more is entered then until `retry`, and every query says why."""
        if self._failed or not self.behind_bytes:
            return False
        self._dispatch_service.position = max(self.position, self._log.min_offset)
        try:
            return self._dispatch_service.dispatch(self._queues_position(), limit_bytes)
        except StoreError as error:
            self._fail(error)
            return False

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    def retry(self) -> None:
        """Enter records again after a failure: the disk may have room by now."""
        self._failed = ""

    def _fail(self, error: StoreError) -> None:
        self._failed = str(error)
        self._tracer.event("index_stopped", reason=self._failed, phy_offset=self.position)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = MAX_QUERY_COUNT,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        index_type: str = INDEX_KEY_TYPE,
    ) -> QueryResult:
        """The newest committed messages of a topic that have this key and were stored in [begin_ms, end_ms], up to 64.
        `index_type` U compares UNIQ_KEY, T TAGS, all else UNIQ_KEY and KEYS. Raises UsageError if there shall be
        no index, StoreError if it is damaged (it is made anew then) or cannot be written."""
        search = self.search(Wanted(topic, key, max_count, begin_ms, end_ms, index_type))
        while search.enter():
            pass
        while (result := search.step()) is None:
            pass
        return result

    def search(self, wanted: Wanted) -> IndexSearch:
        """Search as `query` does, for a caller that does something else between its steps."""
        if not self.is_enabled:
            raise UsageError("this broker keeps no index of keys (messageIndexEnable=false); set the key to true")
        return IndexSearch(self, wanted._replace(max_count=min(wanted.max_count, MAX_QUERY_COUNT)))

    def require_sound(self) -> None:
        """Raise StoreError if nothing more can be entered."""
        if self._failed:
            raise StoreError(f"the index of keys ends at {self.position}: {self._failed}")

    def record_of(self, hit: int, wanted_hash: int) -> DispatchedRecord | None:
        """The record of an entry, None if it is gone or not dispatched."""
        return self.files.check_hit(hit, wanted_hash, self._queues_position())

    def view(self, phy_offset: int, size_bytes: int) -> memoryview:
        return self._log.view(phy_offset, size_bytes)

    def damaged(self) -> None:
        """Make the entries behind the files' end anew, after damaged files were dropped."""
        self._dispatch_service.position = min(self.position, max(self.files.end_offset, self._log.min_offset))

    # --- durability -------------------------------------------------------------------------------------------------
    @property
    def sync_due(self) -> bool:
        return not self._failed and self.files.sync_due

    def sync(self) -> None:
        """Make full files durable; a disk that cannot stops the index, as in `build`."""
        try:
            self.files.sync()
        except StoreError as error:
            self._fail(error)

    # --- follow the log ---------------------------------------------------------------------------------------------
    def truncate(self, end_offset: int) -> None:
        """Drop the entries of records at or behind `end_offset`. `files.durable_below(end_offset)` must be stored
        durably before."""
        self.files.truncate(end_offset)
        self._dispatch_service.position = min(self._dispatch_service.position, end_offset)

    def restart_at(self, phy_offset: int) -> None:
        self._dispatch_service.position = phy_offset

    def finish(self) -> None:
        """Enter what is missing, unless it is more than CLOSE_LIMIT_BYTES, and make all durable: for a clean stop."""
        while self.behind_bytes <= CLOSE_LIMIT_BYTES and self.build(CLOSE_LIMIT_BYTES):
            pass
        if self.behind_bytes:
            self._tracer.event("index_behind", behind_bytes=self.behind_bytes)
        self.files.sync_all()
