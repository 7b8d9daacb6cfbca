"""The errors that someone catches specifically.

    RmqhaError
    ├── UsageError          bad input of the user: one sentence, exit code 2, nothing written
    ├── ConfigError         (a UsageError) a configuration key or value is wrong
    ├── StoreError          the files are not what they must be: names file, offset, expected and found
    ├── DamagedError        (a StoreError) so is one place of a file; what stands elsewhere may be sound
    ├── NoRoomError         (a StoreError) the disk, or a limit, has no room for a file; nothing has been changed
    ├── BrokenInvariantError
    │                       a machine or the log may be half changed: the process ends (rmqha.host.net.boundary)
    ├── RemoteError         a peer answered with a response code other than success (has .code, .remark)
    ├── RemoteProtocolError a peer sent bytes that are not the protocol: the connection is closed
    └── UnreachableError    no answer: refused, closed or timed out; the peer may have done what was asked
        └── NotSentError    (an UnreachableError) there was no connection: the peer has not been asked

An expected refusal by a decision is a returned value, not an exception; a bug of our own is found by an `assert`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RmqhaError(Exception):
    """Base of errors whose text is one sentence for the user: what, where, what to do."""


class UsageError(RmqhaError):
    """Bad input of the user. The program ends with exit code 2 and has written nothing."""


class ConfigError(UsageError):
    """Wrong key or value of a configuration."""


class StoreError(RmqhaError):
    """Files that are not what they must be. The text names file, offset, expected and found."""


class DamagedError(StoreError):
    """Error for one damaged place. `phy_offset`: physical offset of the damaged record, −1 if it is no record;
    `size_bytes`: its size by its queue's entry, 0 if unknown."""

    def __init__(self, text: str, phy_offset: int = -1, size_bytes: int = 0) -> None:
        super().__init__(text)
        self.phy_offset = phy_offset
        self.size_bytes = size_bytes


class NoRoomError(StoreError):
    """No room for a file on the disk or under a limit; nothing has been changed."""


class BrokenInvariantError(RmqhaError):
    """Error after which a machine or the log may be half changed: the process ends."""


class RemoteProtocolError(RmqhaError):
    """Bytes of a peer that are not the protocol: the connection is closed."""


class UnreachableError(RmqhaError):
    """No answer of a peer: refused, closed or timed out. It may have done what was asked."""


class NotSentError(UnreachableError):
    """No connection to a peer: it has not been asked."""


FOREIGN = "does not speak RocketMQ's protocol: another program listens there, or it wants TLS"
CLOSED = "closed the connection before it answered"
CLOSED_UNHEARD = (
    "closed the connection before it answered anything: it serves as many as it may (connections_refused in its log), "
    "wants TLS, or is going down"
)
"""Ends of sentences that begin with an address: reasons why no answer came. CLOSED_UNHEARD: the server has sent no byte
on the connection."""


class RemoteError(RmqhaError):
    """A response with another code than SUCCESS. Its text has the remark's first line: RocketMQ's may end in a link."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        first_line = remark.partition("\n")[0].rstrip(" ,")
        super().__init__(f"{address or 'peer'} answered {code}: {first_line or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


def interrupted(error: Exception) -> NoReturn:
    """Raise the error that ends the process after a change was interrupted by `error`. Refusals, which come before
    anything is changed, and StoreError are raised unchanged."""
    if isinstance(error, UsageError | RemoteProtocolError | StoreError | BrokenInvariantError):
        raise error
    if isinstance(error, OSError):
        raise StoreError(f"a change was interrupted, the disk failed: {error}; mend it and start again") from error
    raise BrokenInvariantError(
        f"a change was interrupted by {type(error).__name__}: {error}; what holds is known after a restart"
    ) from error


def whole(change: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a change that must be complete: if an exception interrupts it, the process ends."""

    @wraps(change)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return change(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    return guarded
