"""A kernel that does what another does: what watches or plants a fault changes some of it."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.kernel.batch_kernel import (
    BatchKernel,
    Checked,
    Collected,
    IndexFront,
    KeyedRecords,
    LogBlock,
    PlacedEntries,
    PulledUnits,
    Scanned,
    SendContext,
    SendRead,
    SendResults,
    SendRules,
    SignedSend,
)


class KernelAround:
    """Implements BatchKernel by `kernel`."""

    def __init__(self, kernel: BatchKernel) -> None:
        self.kernel = kernel
        self.scans_in_bulk = kernel.scans_in_bulk

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        return self.kernel.sends(read, rules, context)

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        return self.kernel.signed(data, max_count, nonce, proven)

    def scan(self, block: LogBlock) -> Scanned:
        return self.kernel.scan(block)

    def index_entries(self, records: KeyedRecords) -> bytes:
        return self.kernel.index_entries(records)

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        return self.kernel.index_place(front, entries)

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None:
        self.kernel.put_words(memory, positions, words)

    def skip_sound(self, view: memoryview, at: int, phy_offset: int, newest_ms: int) -> Checked:
        return self.kernel.skip_sound(view, at, phy_offset, newest_ms)

    def collect(self, view: memoryview, start: int, pulled: PulledUnits) -> Collected:
        return self.kernel.collect(view, start, pulled)
