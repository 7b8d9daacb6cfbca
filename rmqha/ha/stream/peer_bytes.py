"""Bytes of a peer, read by a codec: the boundary of ruling 31 at the HA port. Decision.

A codec changes only its own state. So an unexpected exception in it ends one connection, as a breach of the protocol
does. The machines change the replica by the frames, and an exception there ends the process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import Buffer

T = TypeVar("T")


def frames_of(feed: Callable[[Buffer], list[T]], data: Buffer) -> list[T]:
    """Frames that the codec makes of `data`. Raises RemoteProtocolError, also for an unexpected exception."""
    try:
        return feed(data)
    except RemoteProtocolError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        raise RemoteProtocolError(f"its bytes met a bug of rmqha, {error!r} at {where}; please report it") from error
