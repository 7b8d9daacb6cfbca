"""The keys of a record, as queries by key compare them. Data plane; pure.

The hashes are `rmqha.kernel.key_hash`'s (formats.md §5).
"""

from __future__ import annotations

from rmqha.kernel.key_hash import property_value
from rmqha.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, java_string_hash

INDEX_UNIQUE_TYPE = "U"
INDEX_KEY_TYPE = "K"
INDEX_TAG_TYPE = "T"

_SIGN = 0x80000000
_NAMES = tuple(name.encode() + b"\x01" for name in (PROPERTY_UNIQUE_KEY, PROPERTY_KEYS, PROPERTY_TAGS))
_UNIQUE, _KEYS, _TAGS = _NAMES
_UNIQUE_INSIDE, _KEYS_INSIDE, _TAGS_INSIDE = (b"\x02" + name for name in _NAMES)


def key_hash(topic: str, key: str, index_type: str = INDEX_KEY_TYPE) -> int:
    """The hash under which a record of `topic` with this key, or with these TAGS for INDEX_TAG_TYPE, is entered."""
    full = f"{topic}#T#{key}" if index_type == INDEX_TAG_TYPE else f"{topic}#{key}"
    value = java_string_hash(full)
    return 0 if value == -_SIGN else abs(value)


def has_key(properties: bytes, key: str, index_type: str) -> bool:
    """True if a query for `key` finds a record with these properties. INDEX_UNIQUE_TYPE compares UNIQ_KEY,
    INDEX_TAG_TYPE TAGS, every other type UNIQ_KEY and KEYS."""
    wanted = key.encode("utf-8", "replace")
    if index_type == INDEX_TAG_TYPE:
        return property_value(properties, _TAGS, _TAGS_INSIDE) == wanted
    if property_value(properties, _UNIQUE, _UNIQUE_INSIDE) == wanted:
        return True
    keys = property_value(properties, _KEYS, _KEYS_INSIDE) or b""
    return index_type != INDEX_UNIQUE_TYPE and wanted in keys.split(b" ")
