"""RemotingCommand, the one message of RocketMQ's request/response protocol. Data plane: a mutable slotted class."""

from __future__ import annotations

from enum import IntEnum

from rmqha.model.code import ResponseCode
from rmqha.model.principal import UNRESTRICTED, Principal

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
PROTOCOL_VERSION = 493
"""MQVersion ordinal of 5.4.0, which decides what peers assume of us."""


class HeaderCodec(IntEnum):
    """Top byte of the frame's second word."""

    JSON = 0
    ROCKETMQ = 1


class Language(IntEnum):
    """Language of the program that sent a command (RocketMQ's LanguageCode)."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Command:
    """A request or a response. `ext`: header fields, as text (a JSON peer's numbers and booleans become text: 4 → "4",
    false → "false").

    `opaque` pairs a response with its request, per connection and per initiator. `principal` is not sent: the server
    sets it to the account that a received request comes from.
    """

    __slots__ = ("body", "code", "codec", "ext", "flag", "language", "opaque", "principal", "remark", "version")

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        flag: int = 0,
        opaque: int = 0,
        remark: str | None = None,
        language: int = Language.PYTHON,
        version: int = PROTOCOL_VERSION,
        codec: HeaderCodec = HeaderCodec.JSON,
    ) -> None:
        self.code = code
        self.ext = {} if ext is None else ext
        self.body = body
        self.flag = flag
        self.opaque = opaque
        self.remark = remark
        self.language = language
        self.version = version
        self.codec = codec
        self.principal: Principal = UNRESTRICTED

    @property
    def is_response(self) -> bool:
        """True for an answer, False for a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True if the sender wants no answer."""
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
    ) -> Command:
        """The response to this request: same opaque and header codec."""
        return Command(code, ext, body, flag=FLAG_RESPONSE, opaque=self.opaque, remark=remark, codec=self.codec)

    def stub(self, *names: str) -> Command:
        """Copy of this request with only these fields and no body, to be kept while it waits: the sender may have added
        large fields."""
        ext = {name: self.ext[name] for name in names if name in self.ext}
        command = Command(
            self.code,
            ext,
            flag=self.flag,
            opaque=self.opaque,
            language=self.language,
            version=self.version,
            codec=self.codec,
        )
        command.principal = self.principal
        return command

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return f"<{kind} code={self.code} opaque={self.opaque} ext={self.ext} body={len(self.body)} B>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Command) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


def payload_bytes(command: Command) -> int:
    """Size of a request as quotas count it: bytes of the body plus characters of the fields' values."""
    return len(command.body) + sum(map(len, command.ext.values()))
