from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqha.model.offset import RaftIndex, Term
from rmqha.raft.snapshot import SnapshotAssembly
from rmqha.wire.raft_message import SnapshotChunk

FIRST = SnapshotChunk(
    sender="a",
    to="b",
    term=Term(3),
    index=RaftIndex(9),
    snapshot_term=Term(2),
    offset=0,
    total_bytes=6,
    configuration=b"",
    data=b"old",
)


def test_pieces_of_one_snapshot_make_it() -> None:
    assembly = SnapshotAssembly(FIRST)
    assert assembly.add(FIRST) is None
    last = replace(FIRST, offset=3, data=b"end")
    assert assembly.fits(last)
    made = assembly.add(last)
    assert made is not None and bytes(made.data) == b"oldend"


@pytest.mark.parametrize(
    "other", [{"index": RaftIndex(12)}, {"term": Term(4)}, {"snapshot_term": Term(3)}, {"configuration": b"c"}]
)
def test_a_piece_of_another_snapshot_does_not_fit(other: dict[str, Any]) -> None:
    """It may be as long: the two halves would be no state that ever was."""
    assert not SnapshotAssembly(FIRST).fits(replace(FIRST, offset=3, data=b"new", **other))
