"""KEYS of many records parted at once, as the slow way parts them; bodies' CRCs; places of bytes."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.scan.columns import PIECE_COUNT, STRING_LIST, crcs_of_ranges, crcs_of_small
from rmqha.scan.properties import split_keys
from rmqha.scan.walk import where_bytes


@given(st.lists(st.none() | st.text("aé ", max_size=6), max_size=6), st.integers(0, 2))
def test_keys_are_parted_by_spaces(stored: list[str | None], skipped: int) -> None:
    found = split_keys(pa.array(stored, pa.string())[skipped:], STRING_LIST)
    found.validate(full=True)
    assert found.to_pylist() == [[key for key in (item or "").split(" ") if key] for item in stored[skipped:]]


@pytest.mark.parametrize("size", [0, 1, 100, 3000])
def test_crcs_of_small_and_large_bodies(size: int) -> None:
    bodies = [bytes([index % 251]) * (size + index % 3) for index in range(PIECE_COUNT + 2)]
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    expected = [zlib.crc32(body) for body in bodies]
    assert crcs_of_small(pa.array(bodies, pa.binary())).tolist() == expected
    assert crcs_of_ranges(b"".join(bodies), starts, ends).tolist() == expected
    assert crcs_of_small(pa.array([], pa.binary())).tolist() == []


@given(st.lists(st.sampled_from([b"TAGS", b"TRACE_ON", b"TAGT", b"XAGS"])), st.sampled_from([b"TAGS", b"T", b""]))
def test_where_bytes_stand(words: list[bytes], wanted: bytes) -> None:
    data = np.frombuffer(b"".join(words), np.uint8)
    positions = np.cumsum([0, *map(len, words)], dtype=np.int64)[:-1]
    found = where_bytes(data, positions, wanted)
    assert found.tolist() == [index for index, word in enumerate(words) if word.startswith(wanted)]
