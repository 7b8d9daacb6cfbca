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

An expected refusal of a decision is a returned value, not an exception; our own nonsense is an `assert`.
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
    pass


class ConfigError(UsageError):
    pass


class StoreError(RmqhaError):
    pass


class DamagedError(StoreError):
    """One place of a file is damaged. `phy_offset`: offset of the record of the log that it is, −1 if it is none;
    `size_bytes`: its size by its queue's entry, 0 if that was not read."""

    def __init__(self, text: str, phy_offset: int = -1, size_bytes: int = 0) -> None:
        super().__init__(text)
        self.phy_offset = phy_offset
        self.size_bytes = size_bytes


class NoRoomError(StoreError):
    pass


class BrokenInvariantError(RmqhaError):
    pass


class RemoteProtocolError(RmqhaError):
    pass


class UnreachableError(RmqhaError):
    pass


class NotSentError(UnreachableError):
    pass


FOREIGN = "does not speak RocketMQ's protocol: another program listens there, or it wants TLS"
CLOSED = "closed the connection before it answered"
CLOSED_UNHEARD = (
    "closed the connection before it answered anything: it serves as many as it may (connections_refused in its log), "
    "wants TLS, or is going down"
)
"""After an address: why no answer came. The last of a server that has not said a word on the connection."""


class RemoteError(RmqhaError):
    """A response with another code than SUCCESS. Its text has the remark's first line: RocketMQ's may end in a link."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        first_line = remark.partition("\n")[0].rstrip(" ,")
        super().__init__(f"{address or 'peer'} answered {code}: {first_line or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


def interrupted(error: Exception) -> NoReturn:
    """A change whose parts belong together was interrupted by `error`: raise what ends the process. Refusals, which
    come before anything is changed, and StoreError stay what they are."""
    if isinstance(error, UsageError | RemoteProtocolError | StoreError | BrokenInvariantError):
        raise error
    if isinstance(error, OSError):
        raise StoreError(f"a change was interrupted, the disk failed: {error}; mend it and start again") from error
    raise BrokenInvariantError(
        f"a change was interrupted by {type(error).__name__}: {error}; what holds is known after a restart"
    ) from error


def whole(change: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a change that is done as a whole, or the process ends."""

    @wraps(change)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return change(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    return guarded
