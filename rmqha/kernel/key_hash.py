"""Hashes of a record's keys, as the index has them: the reference. Data plane; pure.

Source: formats.md §5. The hash of a key is Java's String.hashCode of `topic#key` (`topic#T#tags` for TAGS), made
positive. As h(a + b) = h(a) * 31^len(b) + h(b), what stands before a key is hashed once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from operator import mul

from rmqha.model.message import (
    MAX_REMEMBERED_TAGS_BYTES,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    java_string_hash,
)

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_POWER_COUNT = 256
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_POWER_COUNT)]
_WEIGHTS = [tuple(reversed(_POWERS[:count])) for count in range(_POWER_COUNT)]
"""Factors of the characters, by length of the text."""
_POWER_8, _WEIGHTS_8 = _POWERS[8], _WEIGHTS[8]
"""A producer's unique keys differ, within a minute, only in their last eight characters."""
_PAIRS = {bytes((high, low)): high * 31 + low for high in b"0123456789ABCDEF" for low in b"0123456789ABCDEF"}
"""Hashes of two digits: within a millisecond a producer's unique keys differ in the last four, a counter."""
_COUNTER_BYTES = 4
_POWER_2 = _POWERS[2]
_MAX_MISSES = 4
"""Records of a run that differ from the one before; after so many, the keys are no counter, and none is kept."""
_CACHE_COUNT = 10_000

_NAMES = tuple(name.encode() + b"\x01" for name in (PROPERTY_UNIQUE_KEY, PROPERTY_KEYS, PROPERTY_TAGS))
_UNIQUE, _KEYS, _TAGS = _NAMES
_UNIQUE_INSIDE, _KEYS_INSIDE, _TAGS_INSIDE = (b"\x02" + name for name in _NAMES)


def unsigned_hash(text: bytes) -> int:
    """Java's String.hashCode of UTF-8 text as a number in [0, 2^32)."""
    size = len(text)
    if size < _POWER_COUNT and text.isascii():
        value: int = sum(map(mul, text, _WEIGHTS[size])) & _MASK
        return value
    return java_string_hash(str(text, "utf-8", "replace")) & _MASK


def _utf16_length(text: bytes) -> int:
    return len(text) if text.isascii() else len(str(text, "utf-8", "replace").encode("utf-16-be")) // 2


def _power(exponent: int) -> int:
    return _POWERS[exponent] if exponent < _POWER_COUNT else pow(31, exponent, 1 << 32)


def property_value(properties: bytes, name: bytes, inside: bytes) -> bytes | None:
    """Value of a property, as `find_property` finds it but faster; of a repeated name the last value."""
    at = properties.rfind(inside)
    if at >= 0:
        at += len(inside)
    elif properties.startswith(name):
        at = len(name)
    else:
        return None
    end = properties.find(b"\x02", at)
    return properties[at:] if end < 0 else properties[at:end]


class KeyHasher:
    """Hasher of the keys of records; it caches the hashes of common parts."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[int, int]] = {}
        """Hashes of `topic#` and `topic#T#` by topic."""
        self._heads: dict[bytes, int] = {}
        """Hash of a unique key without its last eight characters, by that text."""
        self._tags: dict[tuple[str, bytes], int] = {}

    def hashes(self, topic: str, properties: bytes) -> list[int]:
        """Hashes of a record's keys in RocketMQ's order: UNIQ_KEY, each of KEYS, TAGS. It calls no functions for speed,
        since it runs for every record."""
        prefixes = self._topics.get(topic)
        if prefixes is None:
            prefixes = self._topic(topic)
        prefix = prefixes[0]
        rfind, find, starts = properties.rfind, properties.find, properties.startswith
        found: list[int] = []
        at = rfind(_UNIQUE_INSIDE)
        if at >= 0 or starts(_UNIQUE):
            at = at + 10 if at >= 0 else 9
            end = find(b"\x02", at)
            unique = properties[at:end] if end >= 0 else properties[at:]
            size = len(unique)
            if 16 < size < _POWER_COUNT and unique.isascii():
                head = self._heads.get(unique[:-8])
                if head is None:
                    head = self._head(unique[:-8])
                value = prefix * _POWERS[size] + head * _POWER_8 + sum(map(mul, unique[-8:], _WEIGHTS_8)) & _MASK
            else:
                value = (prefix * _power(_utf16_length(unique)) + unsigned_hash(unique)) & _MASK
            found.append(value if value < _SIGN else (-value & _MASK) % _SIGN)
        at = rfind(_KEYS_INSIDE)
        if at >= 0 or starts(_KEYS):
            at = at + 6 if at >= 0 else 5
            end = find(b"\x02", at)
            keys = properties[at:end] if end >= 0 else properties[at:]
            for key in keys.split(b" ") if b" " in keys else (keys,):
                size = len(key)
                if 0 < size < _POWER_COUNT and key.isascii():
                    value = (prefix * _POWERS[size] + sum(map(mul, key, _WEIGHTS[size]))) & _MASK
                elif size:
                    value = (prefix * _power(_utf16_length(key)) + unsigned_hash(key)) & _MASK
                else:
                    continue
                found.append(value if value < _SIGN else (-value & _MASK) % _SIGN)
        at = rfind(_TAGS_INSIDE)
        if at >= 0 or starts(_TAGS):
            at = at + 6 if at >= 0 else 5
            end = find(b"\x02", at)
            tags = properties[at:end] if end >= 0 else properties[at:]
            if tags:
                tag_hash = self._tags.get((topic, tags))
                found.append(self._tag(topic, tags) if tag_hash is None else tag_hash)
        return found

    def run_hashes(self, topic: str, tails: Sequence[bytes]) -> Iterator[list[int]]:
        """Hashes, as from `hashes`, of records of one topic. `tails`: properties with their length in front. If a
        record differs from the one before only in the counter of its unique key, only that is hashed."""
        front = back = b""
        size, base, misses = -1, 0, 0
        unpack = struct.Struct("").unpack
        more: list[int] = []
        for tail in tails:
            if len(tail) == size:
                head, high, low, end = unpack(tail)
                if head == front and end == back and high in _PAIRS and low in _PAIRS:
                    value = base + _PAIRS[high] * _POWER_2 + _PAIRS[low] & _MASK
                    yield [value if value < _SIGN else (-value & _MASK) % _SIGN, *more]
                    continue
            properties = tail[2:]
            found = self.hashes(topic, properties)
            yield found
            size, misses = -1, misses + 1
            if misses > _MAX_MISSES:
                continue
            unique = property_value(properties, _UNIQUE, _UNIQUE_INSIDE) or b""
            if _COUNTER_BYTES <= len(unique) < _POWER_COUNT and unique[-_COUNTER_BYTES:].isalnum() and unique.isascii():
                inside_at = tail.rfind(_UNIQUE_INSIDE, 2)
                at = (inside_at + 1 if inside_at >= 0 else 2) + len(_UNIQUE) + len(unique) - _COUNTER_BYTES
                size, more, front, back = len(tail), found[1:], tail[:at], tail[at + _COUNTER_BYTES :]
                unpack = struct.Struct(f"{at}s2s2s{len(back)}s").unpack
                head_hash = unsigned_hash(unique[:-_COUNTER_BYTES]) * _POWERS[_COUNTER_BYTES]
                base = self._topics[topic][0] * _POWERS[len(unique)] + head_hash

    def _topic(self, topic: str) -> tuple[int, int]:
        if len(self._topics) >= _CACHE_COUNT:
            self._topics.clear()
        prefixes = self._topics[topic] = (unsigned_hash(f"{topic}#".encode()), unsigned_hash(f"{topic}#T#".encode()))
        return prefixes

    def _head(self, head: bytes) -> int:
        if len(self._heads) >= _CACHE_COUNT:
            self._heads.clear()
        value = self._heads[head] = unsigned_hash(head)
        return value

    def _tag(self, topic: str, tags: bytes) -> int:
        value = (self._topics[topic][1] * _power(_utf16_length(tags)) + unsigned_hash(tags)) & _MASK
        value = value if value < _SIGN else (-value & _MASK) % _SIGN
        if len(tags) <= MAX_REMEMBERED_TAGS_BYTES:
            if len(self._tags) >= _CACHE_COUNT:
                self._tags.clear()
            self._tags[topic, tags] = value
        return value
