"""Ends of certificates, from their PEM text. Shell only for the calendar; the standard library tells it of nobody but
a peer."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0


def earliest_end_ms(pem: str) -> int | None:
    """The wall clock's milliseconds at which the first of the certificates in `pem` is no longer valid; None if there
    is none, or one that is no X.509."""
    ends = []
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if end:
            try:
                ends.append(end_ms(ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END)))
            except (ValueError, IndexError):
                return None
    return min(ends, default=None)


def end_ms(der: bytes) -> int:
    """notAfter of one certificate (RFC 5280 §4.1). Raises ValueError or IndexError for bytes that are none."""
    certificate, _ = _element(der, 0)
    rest, _ = _element(certificate[1], 0)
    place, elements = 0, list[tuple[int, bytes]]()
    while len(elements) < 5:
        item, place = _element(rest[1], place)
        if item[0] != _VERSION:
            elements.append(item)
    # serial number, signature algorithm, issuer, validity
    _, place = _element(elements[3][1], 0)
    (kind, text), _ = _element(elements[3][1], place)
    return _time_ms(kind, text.decode("ascii"))


def _element(data: bytes, place: int) -> tuple[tuple[int, bytes], int]:
    """Tag and content at `place`, and where the next element begins."""
    tag, size = data[place], data[place + 1]
    place += 2
    if size & 0x80:
        count = size & 0x7F
        if not 0 < count <= 4:
            raise ValueError("a length that DER does not have here")
        size = int.from_bytes(data[place : place + count], "big")
        place += count
    if place + size > len(data):
        raise ValueError("an element longer than what holds it")
    return (tag, data[place : place + size]), place + size


def _time_ms(kind: int, text: str) -> int:
    if kind == _UTC_TIME:
        # two digits of the year: 50 and above are of the last century
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("no time")
    return round(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)
