"""The headers of plain sends in both codecs (formats.md §12.1, §12.2): patterns over a frame, no object for a field.

A pattern accepts less than the codec: fields in the order of RocketMQ's clients, ASCII, numbers that fit. For a header
that it matches, its groups are the values that `rmqha.wire` would decode; any other header is not plain.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = rb"[ !#-\[\]-~]*"
"""Text without quotation marks and backslashes, which is the same in both codecs."""
_TOPIC = rb"[%|a-zA-Z0-9_-]+"
_INT = rb"-?[0-9]{1,9}"
_COUNT = rb"[0-9]{1,9}"
_TIME = rb"[0-9]{1,18}"
_OPAQUE = rb"-?(?:0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8})"
_JSON_PROPERTIES = rb"[ !#-~]*"
_PROPERTIES = rb"[\x01\x02 -~]*"

_JSON_SIGNED = rb'(?:,"(?:AccessKey|Signature|SignatureForm|SignatureCount)":"' + _TEXT + rb'"){0,4}'
"""Fields of the signature, which was checked before."""

JSON_END = rb',"opaque":(' + _OPAQUE + rb'),"serializeTypeCurrentRPC":"JSON","version":((?:0|[1-9][0-9]{0,8}))\}'
"""The end of a JSON header. Groups: opaque, version."""

JSON_SEND = re.compile(
    rb'\{"code":(310|320),"extFields":\{"a":"' + _TEXT + rb'","b":"(' + _TOPIC + rb')","c":"' + _TEXT
    + rb'","d":"' + _INT + rb'","e":"(' + _COUNT + rb')","f":"(' + _COUNT + rb')","g":"(' + _TIME + rb')","h":"(' + _INT
    + rb')","i":"(' + _JSON_PROPERTIES + rb')","j":"(' + _COUNT + rb')","k":"' + _TEXT
    + rb'"(?:,"l":"[0-9]{0,9}")?,"m":"(' + _TEXT + rb')"(?:,"n":"' + _TEXT + rb'")?' + _JSON_SIGNED
    + rb'\},"flag":0,"language":"' + _TEXT + rb'"' + JSON_END
)  # fmt: skip
"""Groups: code, topic, queue id, sysFlag, bornTimestamp, flag, properties, reconsumeTimes, batch, opaque, version."""


def _field(name: bytes, value: bytes) -> bytes:
    """Pattern of a field with a value below 256 bytes. Groups: length, value."""
    return rb"\x00\x01" + name + rb"\x00\x00\x00([\x00-\xff])(" + value + rb")"


ROCKETMQ_SEND = re.compile(
    rb"\x01([\x36\x40])[\x00-\xff]{3}([\x00-\xff]{4})\x00{4}\x00{4}([\x00-\xff]{4})"
    + _field(b"a", _TEXT) + _field(b"b", _TOPIC) + _field(b"c", _TEXT) + _field(b"d", _INT) + _field(b"e", _COUNT)
    + _field(b"f", _COUNT) + _field(b"g", _TIME) + _field(b"h", _INT)
    + rb"\x00\x01i\x00\x00([\x00-\xff]{2})(" + _PROPERTIES + rb")"
    + _field(b"j", _COUNT) + _field(b"k", _TEXT) + _field(b"m", _TEXT) + rb"(?:" + _field(b"n", _TEXT) + rb")?"
)  # fmt: skip
"""Groups: the code's second byte, opaque, bytes of all fields, then length and value of each of a…h, i, j, k, m and
perhaps n."""
_EXT_AT = 21
"""Index of the first field in a header without a remark."""
_PLACES = 3, 9, 11, 13, 15, 17, 19
_BATCH = 23
"""Places of values among the lengths and values."""
Fields = list[bytes]
"""Topic, queue id, sysFlag, bornTimestamp, flag, properties, reconsumeTimes; all numbers fit their Java types."""
_PROPERTIES_AT = 5


class Send(NamedTuple):
    """Content of a send's header."""

    fields: Fields
    opaque: int
    is_batch: bool
    """True if its body is that of request 320."""


def json_send(data: bytes, start: int, end: int) -> Send | None:
    """The send whose header is at [start, end); None if it is not that of a plain one."""
    match = JSON_SEND.fullmatch(data, start, end)
    if match is None:
        return None
    code, *fields, batch, opaque, _ = match.groups()
    is_batch = code == b"320"
    if batch == b"true" and not is_batch:
        return None
    if b"\\" in fields[_PROPERTIES_AT]:
        properties = fields[_PROPERTIES_AT].replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
        if b"\\" in properties:
            return None
        fields[_PROPERTIES_AT] = properties
    return Send(fields, int(opaque), is_batch)


def rocketmq_send(data: bytes, start: int, end: int) -> Send | None:
    """The send, as from `json_send`, whose ROCKETMQ header is at [start, end)."""
    match = ROCKETMQ_SEND.fullmatch(data, start, end)
    if match is None:
        return None
    code, opaque, ext_bytes, *pairs = match.groups(b"")
    for length, value in zip(pairs[::2], pairs[1::2], strict=True):
        if int.from_bytes(length, "big") != len(value):
            return None
    is_batch = code == b"\x40"
    if int.from_bytes(ext_bytes, "big") != end - start - _EXT_AT or (pairs[_BATCH] == b"true" and not is_batch):
        return None
    return Send([pairs[place] for place in _PLACES], int.from_bytes(opaque, "big", signed=True), is_batch)
