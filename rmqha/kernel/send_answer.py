"""The answers to plain sends, as `rmqha.wire` would encode them: literals by the configuration, and few values between
them."""

from __future__ import annotations

import struct
from collections.abc import Callable

from rmqha.kernel.batch_kernel import SendRules
from rmqha.model.code import ResponseCode
from rmqha.model.message import offset_message_id
from rmqha.wire.command import FLAG_RESPONSE, Command
from rmqha.wire.json_header import encode_json_header
from rmqha.wire.rocketmq_header import encode_rocketmq_header

Answer = Callable[[int, bytes, bytes, int, bytes], bytes]
"""Function that makes a response frame (SUCCESS) of: opaque, message ids, queue id, first queue offset, unique key."""
_WORDS = struct.Struct(">iI")
_HOLE = "@hole@"
_OPAQUE = 1_234_567_890
_ROCKETMQ = 1 << 24
_PHY_OFFSET_CHARS = 16


def json_literals(rules: SendRules) -> list[bytes]:
    """Parts of a JSON header around message ids, queue id, queue offset, unique key and opaque."""
    fields = {"msgId": _HOLE, "queueId": _HOLE, "queueOffset": _HOLE, **dict(rules.answer_fields)}
    fields["transactionId"] = _HOLE
    command = Command(ResponseCode.SUCCESS, fields, flag=FLAG_RESPONSE, opaque=_OPAQUE)
    *parts, rest = encode_json_header(command).decode().split(_HOLE, 3)
    before, rest = rest.rsplit(_HOLE, 1)  # the fields between are the broker's own
    parts += before, *rest.rsplit(str(_OPAQUE), 1)
    return [part.encode() for part in parts]


def json_answer(rules: SendRules) -> Answer:
    """Make the function for answers to requests with a JSON header."""
    forms = (b"%b", b"%b", b"%d", b"%b", b"%d", b"")
    literals = [literal.replace(b"%", b"%%") for literal in json_literals(rules)]
    template = b"".join(literal + form for literal, form in zip(literals, forms, strict=True))
    pack = _WORDS.pack

    def answer(opaque: int, ids: bytes, queue_id: bytes, queue_offset: int, key: bytes) -> bytes:
        header = template % (ids, queue_id, queue_offset, key, opaque)
        size = len(header)
        return pack(4 + size, size) + header

    return answer


def rocketmq_literals(rules: SendRules) -> list[bytes]:
    """Parts of a ROCKETMQ header around: opaque; bytes of all fields; message ids, behind their length; queue id and
    queue offset, each behind the last byte of its length; and the unique key, behind its length."""
    command = Command(ResponseCode.SUCCESS, dict(rules.answer_fields), flag=FLAG_RESPONSE)
    header = encode_rocketmq_header(command)
    opaque_at, fields_at = 5, 21
    return [
        header[:opaque_at],
        header[opaque_at + 4 : fields_at - 4],
        _name(b"msgId")[:-3],
        _name(b"queueId"),
        _name(b"queueOffset"),
        header[fields_at:],
        _name(b"transactionId")[:-3],
    ]


def rocketmq_answer(rules: SendRules) -> Answer:
    """Make the function for answers to requests with a ROCKETMQ header."""
    head, middle, ids_name, queue_name, offset_name, own, key_name = rocketmq_literals(rules)
    template = b"%b%b%b%b%b%b%b%b%b%c%b%b%c%b%b%b"
    int32 = struct.Struct(">i").pack
    header_bytes = len(head) + 4 + len(middle) + 4
    rest_bytes = len(ids_name) + 4 + len(queue_name) + 1 + len(offset_name) + 1 + len(own)

    def answer(opaque: int, ids: bytes, queue_id: bytes, queue_offset: int, key: bytes) -> bytes:
        offset = b"%d" % queue_offset
        last = key_name + int32(len(key)) + key
        ext_bytes = rest_bytes + len(ids) + len(queue_id) + len(offset) + len(last)
        size = header_bytes + ext_bytes
        return template % (
            _WORDS.pack(4 + size, _ROCKETMQ | size),
            head,
            int32(opaque),
            middle,
            int32(ext_bytes),
            ids_name,
            int32(len(ids)),
            ids,
            queue_name,
            len(queue_id),
            queue_id,
            offset_name,
            len(offset),
            offset,
            own,
            last,
        )

    return answer


def _name(name: bytes) -> bytes:
    """A field's name, and the first three of the four bytes of its value's length."""
    return struct.pack(">h", len(name)) + name + b"\0\0\0"


def store_host(rules: SendRules) -> bytes:
    """Beginning of the message ids of this broker; the physical offset follows as sixteen hexadecimal digits."""
    return offset_message_id((rules.store_address, rules.store_port), 0)[:-_PHY_OFFSET_CHARS].encode()
