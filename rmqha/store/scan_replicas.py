"""Several replicas of one group: one log, to be read once; and whether they all hold the same bytes (data plane)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmqha.model.error import StoreError
from rmqha.store.scan_columns import Records
from rmqha.store.scan_files import StoreView
from rmqha.store.scan_read import LogFile


def by_group(views: Sequence[StoreView]) -> list[list[StoreView]]:
    """The views of each group, the one with the most committed first. A store without an identity is its own group."""
    groups: dict[str, list[StoreView]] = {}
    for view in views:
        groups.setdefault(f"group {view.broker_name}" if view.broker_name is not None else view.root, []).append(view)
    return [sorted(group, key=lambda view: -view.end_offset) for group in groups.values()]


def check_same(records: Records, peers: Sequence[StoreView]) -> None:
    """StoreError if a peer's log holds other bytes where it has these records; names the first that differs."""
    if not len(records):
        return
    window, starts = records.window, records.starts
    ends = starts + records.fixed["storeSize"]
    for peer in peers:
        held = (starts + window.base_offset >= peer.min_offset) & (ends + window.base_offset <= peer.end_offset)
        if not held.any():
            continue
        low, high = int(starts[held][0]), int(ends[held][-1])
        theirs = _read(peer, low + window.base_offset, high + window.base_offset)
        same = window.data[low:high] == theirs
        if same.all():
            continue
        first = low + int(np.argmin(same))
        place = int(starts[np.searchsorted(starts, first, "right") - 1]) + window.base_offset
        raise StoreError(
            f"{window.path} and {peer.root} are replicas of one group and differ in the record at physical offset "
            f"{place}: compare them with `rmqha epochs diff` and `rmqha fsck`"
        )


def _read(view: StoreView, start: int, end: int) -> np.ndarray:
    """The bytes [start, end) of a log."""
    found = np.zeros(end - start, np.uint8)
    for name in view.files:
        low, high = max(start, name.base_offset), min(end, name.end_offset)
        if low < high:
            with LogFile(name) as file:
                piece = file.window(low - name.base_offset, high - name.base_offset).data
            found[low - start : high - start] = piece
    return found
