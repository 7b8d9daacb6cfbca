"""The answers to plain sends, as `rmqha.wire` would encode them: templates of which few bytes differ."""

from __future__ import annotations

import struct
from collections.abc import Callable

from rmqha.kernel.batch_kernel import SendRules
from rmqha.model.code import ResponseCode
from rmqha.model.message import offset_message_id
from rmqha.wire.command import FLAG_RESPONSE, Command
from rmqha.wire.json_header import encode_json_header
from rmqha.wire.rocketmq_header import encode_rocketmq_header

Answer = Callable[[int, int, bytes, int, bytes | None], bytes]
"""A frame that says SUCCESS, of: opaque, physical offset, queue id, queue offset, unique key if there is one."""
_WORDS = struct.Struct(">iI")
_HOLE = "@hole@"
_OPAQUE = 1_234_567_890
_ROCKETMQ = 1 << 24
_PHY_OFFSET_CHARS = 16


def json_answer(rules: SendRules) -> Answer:
    """For requests with a JSON header."""
    keyed, plain = _json_template(rules, has_key=True), _json_template(rules, has_key=False)
    pack = _WORDS.pack

    def answer(opaque: int, phy_offset: int, queue_id: bytes, queue_offset: int, key: bytes | None) -> bytes:
        if key is None:
            header = plain % (phy_offset, queue_id, queue_offset, opaque)
        else:
            header = keyed % (phy_offset, queue_id, queue_offset, key, opaque)
        size = len(header)
        return pack(4 + size, size) + header

    return answer


def _json_template(rules: SendRules, *, has_key: bool) -> bytes:
    last = {"transactionId": _HOLE} if has_key else {}
    fields = {"msgId": _HOLE, "queueId": _HOLE, "queueOffset": _HOLE, **dict(rules.answer_fields), **last}
    command = Command(ResponseCode.SUCCESS, fields, flag=FLAG_RESPONSE, opaque=_OPAQUE)
    text = encode_json_header(command).decode().replace("%", "%%")
    for form in (f"{_store_host(rules)}%0{_PHY_OFFSET_CHARS}X", "%b", "%d"):
        text = text.replace(_HOLE, form, 1)
    if has_key:
        text = "%b".join(text.rsplit(_HOLE, 1))  # what stands between is the broker's own
    return "%d".join(text.rsplit(str(_OPAQUE), 1)).encode()


def rocketmq_answer(rules: SendRules) -> Answer:
    """For requests with a ROCKETMQ header."""
    command = Command(ResponseCode.SUCCESS, dict(rules.answer_fields), flag=FLAG_RESPONSE)
    header = encode_rocketmq_header(command)
    opaque_at, fields_at = 5, 21
    head, middle, own = (
        header[:opaque_at],
        header[opaque_at + 4 : fields_at - 4],
        header[fields_at:].replace(b"%", b"%%"),
    )
    host = _store_host(rules)
    template = (
        b"%b%b%b%b%b"
        + _field(b"msgId", bytes((len(host) + _PHY_OFFSET_CHARS,)), b"%b%%0%dX" % (host.encode(), _PHY_OFFSET_CHARS))
        + _field(b"queueId", b"%c", b"%b")
        + _field(b"queueOffset", b"%c", b"%b")
        + own
    )
    key_head = _field(b"transactionId", b"", b"")[:-3]
    int32 = struct.Struct(">i").pack
    rest_bytes = len(template % (b"", b"", b"", b"", b"", 0, 0, b"", 0, b""))

    def answer(opaque: int, phy_offset: int, queue_id: bytes, queue_offset: int, key: bytes | None) -> bytes:
        offset = b"%d" % queue_offset
        last = b"" if key is None else key_head + int32(len(key)) + key
        ext_bytes = rest_bytes + len(queue_id) + len(offset) + len(last)
        size = fields_at + ext_bytes
        return (
            template
            % (
                _WORDS.pack(4 + size, _ROCKETMQ | size),
                head,
                int32(opaque),
                middle,
                int32(ext_bytes),
                phy_offset,
                len(queue_id),
                queue_id,
                len(offset),
                offset,
            )
            + last
        )

    return answer


def _field(name: bytes, length: bytes, value: bytes) -> bytes:
    """A field with a value below 256 bytes; `length` is the last of the four bytes of its length."""
    return struct.pack(">h", len(name)) + name + b"\0\0\0" + length + value


def _store_host(rules: SendRules) -> str:
    """Beginning of the message ids of this broker."""
    return offset_message_id((rules.store_address, rules.store_port), 0)[:-_PHY_OFFSET_CHARS]
