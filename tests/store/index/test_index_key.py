"""Hashes of keys against Java's String.hashCode, written down plainly."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.kernel.key_hash import KeyHasher, unsigned_hash
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.index.index_key import has_key, key_hash

words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=40)
topics = st.text("abZ%_-|9", min_size=1, max_size=12)


def java_hash(text: str) -> int:
    """The definition: 31-polynomial over UTF-16 units, in 32 bits, absolute value, MIN_VALUE as 0."""
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return abs(signed) % (1 << 31)


def test_known_values() -> None:
    assert unsigned_hash(b"") == 0
    assert unsigned_hash(b"hello") == 99162322
    assert key_hash("TopicTest", "TagA", "T") == java_hash("TopicTest#T#TagA")
    # Integer.MIN_VALUE has no absolute value in 32 bits
    assert unsigned_hash(b"polygenelubricants") == 1 << 31
    assert key_hash("a", "b") == java_hash("a#b")


@given(topics, words, words)
@example("T", "x" * 300, "y" * 16)
@example("T", "é" * 300, "\U0001f600" * 9)
def test_a_record_has_the_hashes_of_its_keys(topic: str, unique: str, keys: str) -> None:
    hasher = KeyHasher()
    properties = encode_properties({"UNIQ_KEY": unique, "X": "KEYS", "KEYS": keys, "TAGS": keys[:5]})
    expected = [f"{topic}#{unique}", *(f"{topic}#{key}" for key in keys.split(" ") if key)]
    expected += [f"{topic}#T#{keys[:5]}"] if keys[:5] else []
    for _ in range(2):  # the second time from what is kept
        assert hasher.hashes(topic, properties) == [java_hash(text) for text in expected]
    assert hasher.hashes(topic, properties)[0] == key_hash(topic, unique, "U")


def test_a_hash_of_min_value_is_zero() -> None:
    """`polygenelubricants` hashes to MIN_VALUE; here it stands behind a prefix that hashes to nothing."""
    text = "polygenelubricants"
    prefix = unsigned_hash(b"T#")
    needed = ((1 << 31) - prefix * pow(31, 7, 1 << 32)) & 0xFFFFFFFF
    found = ""
    for _ in range(7):  # seven characters whose hash is `needed`, each as high as may be
        weight = pow(31, 6 - len(found))
        unit = min(needed // weight, 0xD000)
        found += chr(unit)
        needed -= unit * weight
    assert len(text) == 18
    assert java_hash(f"T#{found}") == key_hash("T", found) == 0
    assert KeyHasher().hashes("T", encode_properties({"KEYS": found})) == [0]


@given(st.dictionaries(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "A"]), words.filter(bool)), words.filter(bool))
def test_which_records_a_query_means(pairs: dict[str, str], key: str) -> None:
    properties = encode_properties(pairs)
    known = decode_properties(properties)
    in_keys = key in known.get("KEYS", "").split(" ")
    assert has_key(properties, key, "T") == (known.get("TAGS") == key)
    assert has_key(properties, key, "U") == (known.get("UNIQ_KEY") == key)
    assert has_key(properties, key, "K") == (known.get("UNIQ_KEY") == key or in_keys)
    for name, value in pairs.items():
        assert has_key(properties, value, "T") or name != "TAGS"


def test_odd_properties() -> None:
    hasher = KeyHasher()
    assert hasher.hashes("T", b"") == []
    assert hasher.hashes("T", b"KEYS\x01a\x02KEYS\x01b\x02") == [java_hash("T#b")], "the last value of a name counts"
    assert hasher.hashes("T", b"XKEYS\x01a\x02") == []
    assert hasher.hashes("T", b"KEYS\x01  a  b \x02") == [java_hash("T#a"), java_hash("T#b")]
    assert hasher.hashes("T", b"UNIQ_KEY\x01\x02TAGS\x01\x02") == [java_hash("T#")]
    assert hasher.hashes("T", b"TAGS\x01end") == [java_hash("T#T#end")]
    assert hasher.hashes("T", b"KEYS\x01\xff\x02") == [java_hash("T#�")]
