"""Our own small files beside RocketMQ's: CBOR with a version and a checksum (rulings 3, 4 and 21). Control plane.

A sidecar is the CBOR list [version, fields, CRC-32 of the encoded fields]. Release N reads what N-1 wrote; a newer
version is refused in one sentence.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import cbor2

from rmqha.model.error import StoreError
from rmqha.model.offset import Buffer
from rmqha.port import Disk
from rmqha.store.meta.problem import disk_errors, place

VERSION = 1


class BadSidecarError(Exception):
    """The bytes are no sidecar; the text says how. Caught by each sidecar's reader, which knows what is safe then."""


def encode(fields: dict[str, Any]) -> bytes:
    payload = cbor2.dumps(fields, canonical=True)
    return cbor2.dumps([VERSION, payload, crc32(payload)])


def decode(data: bytes, where: str) -> dict[str, Any]:
    """The fields of a sidecar's bytes. Raises BadSidecarError for other bytes, StoreError for a newer version."""
    try:
        outer = cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise BadSidecarError(f"expected CBOR, found {len(data)} other bytes ({error})") from None
    match outer:
        case [int(version), *_] if version > VERSION:
            raise StoreError(
                f"{where} has version {version}, this release reads up to {VERSION};"
                " use the release that wrote it or a newer one"
            )
        case [1, bytes(payload), int(crc)] if crc == crc32(payload):
            pass
        case _:
            raise BadSidecarError("expected [version, fields, checksum], found something else")
    try:
        fields = cbor2.loads(payload)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise BadSidecarError(f"expected CBOR fields, found other bytes ({error})") from None
    if not isinstance(fields, dict):
        raise BadSidecarError(f"expected a map of fields, found {type(fields).__name__}")
    return fields


def read(disk: Disk, path: str) -> dict[str, Any] | None:
    """The fields, None without such a file. Raises BadSidecarError and StoreError."""
    with disk_errors(disk, path, "read the file"):
        if not disk.exists(path):
            return None
        data = disk.read(path)
    return decode(data, place(disk, path))


def write(disk: Disk, path: str, fields: dict[str, Any]) -> None:
    """Replace the file, durably."""
    data: Buffer = encode(fields)
    with disk_errors(disk, path, "write the file"):
        disk.write_atomic(path, data)


def number(fields: dict[str, Any], name: str) -> int:
    """A field that must be a whole number from 0. Raises BadSidecarError."""
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise BadSidecarError(f"expected a number as {name}, found {value!r}")
    return value
