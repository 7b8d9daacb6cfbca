"""The types of offsets, epochs and ids, which keep the numbers of the field apart, and of the bytes that they count.

All NewTypes are plain ints at run time.
"""

from __future__ import annotations

from typing import NewType

# bytes, bytearray, memoryview or mmap; `collections.abc.Buffer` needs Python 3.12
Buffer = bytes | bytearray | memoryview

PhyOffset = NewType("PhyOffset", int)
"""A byte position in the CommitLog; ends are exclusive."""

QueueOffset = NewType("QueueOffset", int)
"""An entry number in one ConsumeQueue."""

Epoch = NewType("Epoch", int)
"""A master epoch of a broker group. Never a Raft term."""

Term = NewType("Term", int)
"""A Raft term of the controllers. Never a master epoch."""

RaftIndex = NewType("RaftIndex", int)
"""Position of an entry in the controllers' Raft log; the first entry is 1."""

BrokerId = NewType("BrokerId", int)
"""A controller-issued id of a replica, 1 or more; to clients and name servers a master calls itself 0."""

MASTER_ID = BrokerId(0)
NO_EPOCH = Epoch(0)
"""Below that of every master."""
OPEN_END = PhyOffset(2**63 - 1)
"""End offset of the epoch that is still being written (RocketMQ shows Long.MAX_VALUE)."""
