"""The ROCKETMQ (binary) header of a remoting frame, formats.md §12.2. Data plane.

code int16 | language int8 | version int16 | opaque int32 | flag int32 | remark length int32 + bytes (0 = none) |
ext length int32 | repeated (key length int16, key, value length int32, value), UTF-8.
"""

from __future__ import annotations

import struct

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command, HeaderCodec

MAX_EXT_COUNT = 1024
_FIXED = struct.Struct(">hbhiii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def fits(command: Command) -> bool:
    """True if the numbers fit into the binary header's narrower fields; otherwise the JSON header is used."""
    return -32768 <= command.code <= 32767 and -32768 <= command.version <= 32767


def encode_rocketmq_header(command: Command) -> bytes:
    """Header bytes of a command. The caller has checked that its numbers fit (`fits`)."""
    remark = command.remark.encode() if command.remark else b""
    parts = [
        _FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag, len(remark)),
        remark,
        b"",
    ]
    ext_bytes = 0
    for key, value in command.ext.items():
        name, data = key.encode(), value.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(data)), data)
        ext_bytes += 6 + len(name) + len(data)
    parts[2] = _INT32.pack(ext_bytes)
    return b"".join(parts)


def decode_rocketmq_header(data: bytes) -> Command:
    """Decode a header to a command without a body. An empty value stays "" (Java reads it as null). Raises
    RemoteProtocolError."""
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
        position = _FIXED.size + remark_bytes
        if remark_bytes < 0 or position + 4 > len(data):
            raise RemoteProtocolError(f"binary header: remark of {remark_bytes} bytes does not fit")
        remark = data[_FIXED.size : position].decode() if remark_bytes else None
        (ext_bytes,) = _INT32.unpack_from(data, position)
        position += 4
        if position + ext_bytes != len(data):
            raise RemoteProtocolError(f"binary header: {ext_bytes} bytes of fields do not fill the header")
        ext = _decode_ext(data, position)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header: {error}") from None
    return Command(
        code,
        ext,
        flag=flag,
        opaque=opaque,
        remark=remark,
        language=language,
        version=version,
        codec=HeaderCodec.ROCKETMQ,
    )


def _decode_ext(data: bytes, position: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    end = len(data)
    while position < end:
        name_start = position + 2
        # big-endian by hand: an unpack call costs three times as much
        name_end = name_start + (data[position] << 8 | data[position + 1]) if name_start <= end else end
        value_start = name_end + 4
        if value_start > end:
            raise RemoteProtocolError("binary header: a field's name runs past the header")
        position = value_start + int.from_bytes(data[name_end:value_start], "big")
        if position > end:
            raise RemoteProtocolError("binary header: a field's value runs past the header")
        ext[data[name_start:name_end].decode()] = data[value_start:position].decode()
    if len(ext) > MAX_EXT_COUNT:
        raise RemoteProtocolError(f"binary header: {len(ext)} fields; at most {MAX_EXT_COUNT} are accepted")
    return ext
