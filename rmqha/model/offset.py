"""Types of offsets, epochs and ids, so that mypy does not let them be mixed up, and the type of byte buffers.

All NewTypes are plain ints at run time.
"""

from __future__ import annotations

from typing import NewType

# bytes, bytearray, memoryview or mmap; `collections.abc.Buffer` needs Python 3.12
Buffer = bytes | bytearray | memoryview

PhyOffset = NewType("PhyOffset", int)
"""Byte position in the CommitLog; ends are exclusive."""

QueueOffset = NewType("QueueOffset", int)
"""Number of an entry in one ConsumeQueue."""

Epoch = NewType("Epoch", int)
"""Master epoch of a broker group. Never a Raft term."""

Term = NewType("Term", int)
"""Raft term of the controllers. Never a master epoch."""

RaftIndex = NewType("RaftIndex", int)
"""Position of an entry in the controllers' Raft log; the first entry is 1."""

BrokerId = NewType("BrokerId", int)
"""Id of a replica from the controllers, 1 or more. For clients and name servers a master has the id 0."""

MASTER_ID = BrokerId(0)
NO_EPOCH = Epoch(0)
"""Epoch below that of every master."""
OPEN_END = PhyOffset(2**63 - 1)
"""End offset of the epoch that is still being written (RocketMQ shows Long.MAX_VALUE)."""
