"""The remoting frame, formats.md §12. Data plane.

int32 length (without itself) | int32 word: top byte header codec, low 24 bits header length | header | body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command, HeaderCodec
from rmqha.wire.json_header import decode_json_header, encode_json_header, encode_json_success, json_success_template
from rmqha.wire.rocketmq_header import decode_rocketmq_header, encode_rocketmq_header, fits

MAX_HEADER_BYTES = 256 * 1024
"""Most bytes of a header: 32 KiB of properties fit, even if JSON escapes each byte by six."""
LARGE_BYTES = 64 * 1024
"""Size of a frame above which, if it came in pieces, its body is copied from the buffer directly, not from a copy of
the whole buffer: new memory pages cost more than the copy."""

_WORDS = struct.Struct(">iI")
_unpack_words = _WORDS.unpack_from


def encode_frame(command: Command) -> bytes:
    """The frame of `command`, header in its `codec` (JSON where the binary header's fields are too narrow)."""
    if command.codec == HeaderCodec.ROCKETMQ and fits(command):
        header, codec = encode_rocketmq_header(command), 1 << 24
    else:
        header, codec = encode_json_header(command), 0
    size = len(header)
    return b"".join((_WORDS.pack(4 + size + len(command.body), codec | size), header, command.body))


def success_frame(
    request: Command, ext: dict[str, str], body: Sequence[bytes | memoryview] = (), remark: str | None = None
) -> bytes:
    """Frame of the response SUCCESS to `request`, with this content; `body` in pieces, which are copied once."""
    if request.codec != HeaderCodec.JSON:
        return encode_frame(request.reply(0, ext, b"".join(body), remark))
    return _joined(encode_json_success(request.opaque, ext, remark), body)


def _joined(header: bytes, body: Sequence[bytes | memoryview]) -> bytes:
    size = len(header)
    return b"".join((_WORDS.pack(4 + size + sum(map(len, body)), size), header, *body))


class NumbersFrame:
    """Frames of the response SUCCESS whose fields, of these names, are numbers, at half the cost of `success_frame`."""

    def __init__(self, names: tuple[str, ...], remark: str) -> None:
        self._names, self._remark = names, remark
        self._template = json_success_template(names, remark)

    def encode(self, request: Command, numbers: tuple[int, ...], body: Sequence[bytes | memoryview]) -> bytes:
        """Frame with the fields' values in the order of the names."""
        if request.codec != HeaderCodec.JSON:
            return success_frame(request, dict(zip(self._names, map(str, numbers), strict=True)), body, self._remark)
        return _joined((self._template % (*numbers, request.opaque)).encode(), body)


_CODE_AT, _CODE = _WORDS.size, b'{"code":'
_SENDS_AT, _SENDS = _CODE_AT + len(_CODE), (b"310,", b"320,")


def begins_with_no_send(data: bytes) -> bool:
    """True if `data` is empty, or its first frame is no send of messages (310, 320) by the begin of its JSON header. To
    look for sends there would cost a quarter of a pull."""
    return not data or (data.startswith(_CODE, _CODE_AT) and not data.startswith(_SENDS, _SENDS_AT))


class FrameParser:
    """Incremental parser: `feed` takes any pieces of the byte stream and returns complete commands in order.

    After a RemoteProtocolError the position in the stream is unknown; the connection must be closed.
    """

    __slots__ = ("_buffer", "_max_frame_bytes", "_wanted", "has_more")

    def __init__(self, max_frame_bytes: int) -> None:
        """`max_frame_bytes` bounds the length word, so it bounds the memory that a peer can claim."""
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._wanted = 8
        self.has_more = False
        """True if the buffer may have more commands than `max_count` allowed: call `feed` again without new data."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame in the buffer."""
        return len(self._buffer)

    @property
    def announced_bytes(self) -> int:
        """Size (bytes) of the incomplete frame in the buffer, as far as it is known; 0 without one."""
        return self._wanted if self._buffer else 0

    def header(self) -> Command | None:
        """Header of the incomplete frame in the buffer; None if the header is incomplete too. Raises
        RemoteProtocolError."""
        buffer = self._buffer
        if len(buffer) < 8:
            return None
        _, word = _unpack_words(buffer)
        header_end = 8 + (word & 0xFFFFFF)
        return None if len(buffer) < header_end else _decode_header(word >> 24, bytes(buffer[8:header_end]))

    def unparsed(self, data: bytes) -> bytes:
        """Take all unparsed bytes, with `data` at their end, for another parser; the rest that it does not use must be
        put back or fed. b"" while the first frame is incomplete, or if it is large: then `data` is kept in the buffer,
        and `feed` without new data parses it."""
        if not self._buffer:
            return data
        self._buffer += data
        if len(self._buffer) < self._wanted or self._wanted > LARGE_BYTES:
            return b""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def put_back(self, data: bytes) -> None:
        """Keep `data` for the next `feed`."""
        assert not self._buffer, "what is put back stands in front"
        self._buffer += data
        self._wanted = 8
        self.has_more = len(data) >= 8

    def feed(self, data: bytes, max_count: int | None = None) -> list[Command]:
        """Parse bytes; returns `max_count` complete commands at most. Raises RemoteProtocolError for a length out of
        bounds or a header that does not decode."""
        self.has_more = False
        commands: list[Command] = []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return commands
            if self._wanted > LARGE_BYTES:
                commands.append(self._cut_first())
            data = bytes(self._buffer)
            self._buffer.clear()
        position, end = 0, len(data)
        self._wanted = 8
        while end - position >= 8:
            if len(commands) == max_count:
                self.has_more = True
                break
            size, word = _unpack_words(data, position)
            header_bytes = word & 0xFFFFFF
            if not 4 + header_bytes <= size <= self._max_frame_bytes or header_bytes > MAX_HEADER_BYTES:
                raise RemoteProtocolError(
                    f"frame announces {size} bytes with a header of {header_bytes}; "
                    f"at most {self._max_frame_bytes} and {MAX_HEADER_BYTES} are accepted"
                )
            frame_end = position + 4 + size
            if frame_end > end:
                self._wanted = 4 + size
                break
            body_start = position + 8 + header_bytes
            command = _decode_header(word >> 24, data[position + 8 : body_start])
            if body_start != frame_end:
                command.body = data[body_start:frame_end]
            commands.append(command)
            position = frame_end
        if position < end:
            self._buffer += data[position:] if position else data
        return commands

    def _cut_first(self) -> Command:
        """Remove the first frame, which is complete and within bounds, from the buffer and parse it. Raises as
        `feed`."""
        buffer, frame_end = self._buffer, self._wanted
        _, word = _unpack_words(buffer)
        body_start = 8 + (word & 0xFFFFFF)
        command = _decode_header(word >> 24, bytes(buffer[8:body_start]))
        with memoryview(buffer) as view:
            command.body = bytes(view[body_start:frame_end])
            self._buffer = bytearray(view[frame_end:])
        return command


def _decode_header(codec: int, data: bytes) -> Command:
    if codec == 0:
        return decode_json_header(data)
    if codec == 1:
        return decode_rocketmq_header(data)
    raise RemoteProtocolError(f"frame has header codec {codec}; only 0 (JSON) and 1 (ROCKETMQ) are known")
