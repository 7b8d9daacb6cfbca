"""The errors that someone catches specifically.

    RmqhaError
    ├── UsageError          bad input of the user: one sentence, exit code 2, nothing written
    ├── ConfigError         (a UsageError) a configuration key or value is wrong
    ├── StoreError          the files are not what they must be: names file, offset, expected and found
    ├── DamagedError        (a StoreError) so is one place of a file; what stands elsewhere may be sound
    ├── RemoteError         a peer answered with a response code other than success (has .code, .remark)
    ├── RemoteProtocolError a peer sent bytes that are not the protocol: the connection is closed
    └── UnreachableError    no answer: refused, closed or timed out

An expected refusal of a decision is a returned value, not an exception; our own nonsense is an `assert`.
"""

from __future__ import annotations


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
