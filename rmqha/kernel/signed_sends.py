"""Signed sends at the front of a connection's bytes, with all that is needed to check their signatures.
`rmqha.wire.auth` says which bytes a signature covers.
"""

from __future__ import annotations

import re
import struct

from rmqha.kernel.batch_kernel import SignedSend
from rmqha.kernel.send_header import JSON_END
from rmqha.wire.auth.session_signature import COUNT, FORM, MAX_COUNT_CHARS, VERSION, session_message
from rmqha.wire.auth.signature import ACCESS_KEY, SIGNATURE, signed_message
from rmqha.wire.command import Command, Language, payload_bytes
from rmqha.wire.frame import MAX_HEADER_BYTES

_words = struct.Struct(">iI").unpack_from
_NAME, _VALUE = rb"[a-zA-Z]*", rb"[ !#-~]*"
_PAIR = rb'"' + _NAME + rb'":"' + _VALUE + rb'"'
_HEADER = re.compile(
    rb'\{"code":(310|320),"extFields":\{('
    + _PAIR
    + b"(?:,"
    + _PAIR
    + rb')*)\},"flag":0,"language":"([A-Z_]+)"'
    + JSON_END
)
"""Groups: code, fields, language, opaque, version."""
_pairs = re.compile(rb'"(' + _NAME + rb')":"(' + _VALUE + rb')"').findall
_LANGUAGES = {language.name.encode(): language for language in Language}
MAX_FIELD_COUNT = 24
_TOPIC = "b"
_SIGNED = (ACCESS_KEY, SIGNATURE, FORM, COUNT)


def signed_sends(data: bytes, max_count: int, nonce: str, proven: str) -> list[SignedSend]:
    """Implement `BatchKernel.signed`."""
    found: list[SignedSend] = []
    at, end = 0, len(data)
    while len(found) < max_count and end - at >= 8:
        size, word = _words(data, at)
        body_at, frame_end = at + 8 + word, at + 4 + size  # codec 0, JSON, adds nothing to the word
        if word > MAX_HEADER_BYTES or not body_at <= frame_end <= end:
            break
        command = _command(data, at + 8, body_at)
        if command is None:
            break
        command.body = data[body_at:frame_end]
        is_unsigned = bool(proven) and not any(name in command.ext for name in _SIGNED)
        send = _unsigned_send(command, frame_end, proven) if is_unsigned else _signed_send(command, frame_end, nonce)
        if send is None:
            break
        found.append(send)
        at = frame_end
    return found


def _command(data: bytes, start: int, end: int) -> Command | None:
    match = _HEADER.fullmatch(data, start, end)
    if match is None:
        return None
    code, fields, language, _, version = match.groups()
    pairs = [(name.decode(), value.decode()) for name, value in _pairs(fields)]
    ext = dict(pairs)
    if language not in _LANGUAGES or len(pairs) > MAX_FIELD_COUNT or len(ext) != len(pairs):
        return None
    if b"\\" in fields:
        ext = {name: value.replace("\\u0001", "\x01").replace("\\u0002", "\x02") for name, value in pairs}
        if any("\\" in value for value in ext.values()):
            return None
    return Command(int(code), ext, language=_LANGUAGES[language], version=int(version))


def _are_names(*names: str) -> bool:
    """True if all names are there and contain no separator (which is escaped in the header)."""
    return all(names) and not any(text < " " for name in names for text in name)


def _unsigned_send(command: Command, end: int, proven: str) -> SignedSend | None:
    topic = command.ext.get(_TOPIC, "")
    if not _are_names(topic):
        return None
    return SignedSend(end, command.code, topic, proven, 0, b"", b"", payload_bytes(command))


def _signed_send(command: Command, end: int, nonce: str) -> SignedSend | None:
    ext = command.ext
    named = [ext.get(name, "") for name in (_TOPIC, ACCESS_KEY, SIGNATURE)]
    if not _are_names(*named):
        return None
    topic, access_key, signature = named
    count = 0
    if FORM in ext or COUNT in ext:
        text = ext.get(COUNT, "")
        if not nonce or ext.get(FORM) != VERSION or not text.isdigit() or len(text) > MAX_COUNT_CHARS:
            return None
        count = int(text)
        if not count:
            return None
    message = session_message(command, nonce) if count else signed_message(command)
    return SignedSend(end, command.code, topic, access_key, count, signature.encode(), message, payload_bytes(command))
