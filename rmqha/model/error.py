"""The errors that someone catches specifically.

    RmqhaError
    ├── UsageError          bad input of the user: one sentence, exit code 2, nothing written
    ├── ConfigError         (a UsageError) a configuration key or value is wrong
    ├── StoreError          the files are not what they must be: names file, offset, expected and found
    ├── DamagedError        (a StoreError) so is one place of a file; what stands elsewhere may be sound
    ├── BrokenInvariantError
    │                       a machine or the log may be half changed: the process ends (rmqha.host.boundary)
    ├── RemoteError         a peer answered with a response code other than success (has .code, .remark)
    ├── RemoteProtocolError a peer sent bytes that are not the protocol: the connection is closed
    └── UnreachableError    no answer: refused, closed or timed out

An expected refusal of a decision is a returned value, not an exception; our own nonsense is an `assert`.
"""

from __future__ import annotations

from contextlib import ContextDecorator


class RmqhaError(Exception):
    """Its text is one sentence for the user: what, where, what to do."""


class UsageError(RmqhaError):
    pass


class ConfigError(UsageError):
    pass


class StoreError(RmqhaError):
    pass


class DamagedError(StoreError):
    pass


class BrokenInvariantError(RmqhaError):
    pass


class RemoteProtocolError(RmqhaError):
    pass


class UnreachableError(RmqhaError):
    pass


class RemoteError(RmqhaError):
    """A response with another code than SUCCESS. Its text has the remark's first line: RocketMQ's may end in a link."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        first_line = remark.partition("\n")[0].rstrip(" ,")
        super().__init__(f"{address or 'peer'} answered {code}: {first_line or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


class _Whole(ContextDecorator):
    """What is inside is done as a whole, or the process ends: an exception that nobody foresaw becomes
    BrokenInvariantError, one of the disk StoreError. Refusals, which come before anything is changed, stay."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, UsageError | RemoteProtocolError | StoreError | BrokenInvariantError):
            return
        if isinstance(error, OSError):
            raise StoreError(f"a change was interrupted, the disk failed: {error}; mend it and start again") from error
        if isinstance(error, Exception):
            raise BrokenInvariantError(
                f"a change was interrupted by {type(error).__name__}: {error}; what holds is known after a restart"
            ) from error


whole = _Whole()
"""Around a change whose parts belong together: a decorator, or for a `with`."""
