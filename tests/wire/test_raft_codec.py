"""Raft messages survive the wire; nothing a peer sends raises anything but RemoteProtocolError."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import RaftIndex, Term
from rmqha.wire import raft_codec
from rmqha.wire.raft_codec import decode_entry, decode_message, encode_entry, encode_message
from rmqha.wire.raft_message import (
    AnyMessage,
    AppendReject,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    PreVoteReply,
    PreVoteRequest,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

numbers = st.integers(0, 2**63 - 1)
head = (st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), numbers)


@st.composite
def appends(draw: st.DrawFn) -> AppendRequest:
    terms = sorted(draw(st.lists(numbers, min_size=2, max_size=6)))
    prev_index = draw(st.integers(0, 2**62))
    entries = tuple(
        Entry(RaftIndex(prev_index + 1 + offset), Term(term), draw(st.binary()), draw(st.sampled_from(EntryKind)))
        for offset, term in enumerate(terms[1:-1])
    )
    sender, to = draw(head[0]), draw(head[1])
    return AppendRequest(
        sender, to, Term(terms[-1]), RaftIndex(prev_index), Term(terms[0]), RaftIndex(draw(numbers)), entries
    )


messages: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(PreVoteRequest, *head, numbers, numbers),
    st.builds(PreVoteReply, *head, st.booleans()),
    st.builds(VoteRequest, *head, numbers, numbers, st.booleans()),
    st.builds(VoteReply, *head, st.booleans()),
    appends(),
    st.builds(AppendReply, *head, numbers),
    st.builds(AppendReject, *head, numbers, numbers, numbers),
    st.builds(Heartbeat, *head, numbers, numbers),
    st.builds(HeartbeatReply, *head, numbers),
    st.builds(SnapshotChunk, *head, numbers, numbers, st.integers(0, 2**30), numbers, st.binary(), st.binary()),
    st.builds(SnapshotReply, *head, numbers, numbers),
    st.builds(TimeoutNow, *head),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: AnyMessage) -> None:
    assert decode_message(encode_message(message)) == message


@given(messages, st.data())
def test_changed_bytes_are_another_message_or_refused(message: AnyMessage, data: st.DataObject) -> None:
    raw = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for changed in (bytes(raw), cut):
        try:
            decode_message(changed)
        except RemoteProtocolError as error:
            assert str(error).startswith("Raft")


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(noise)
    with pytest.raises(RemoteProtocolError):
        decode_entry(noise)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([2, 6, "a", "b", 1, 5], "of version 2; this release understands 1"),
        ([1, 99, "a", "b", 1, 5], "unknown kind 99"),
        ([1, 6, "a", "b", 1], "AppendReply has 3 fields; expected 4"),
        ([1, 6, "a", "b", 1, -1], "a number out of range"),
        ([1, 6, "a", "b", 1, True], "a number out of range"),
        ([1, 6, "a", "b", 2**63, 1], "a number out of range"),
        ([1, 6, "", "b", 1, 1], "no short text"),
        ([1, 6, "a" * 256, "b", 1, 1], "no short text"),
        ([1, 4, "a", "b", 1, 1], "neither true nor false"),
        ([1, 5, "a", "b", 3, 0, 0, 0, [[1, 0, b""]] * 4097], "no list of at most 4096 entries"),
        ([1, 5, "a", "b", 3, 7, 2, 0, [[1, 0, b""]]], "entry 8 of term 1 between terms 2 and 3"),
        ([1, 5, "a", "b", 3, 7, 2, 0, [[4, 0, b""]]], "entry 8 of term 4 between terms 2 and 3"),
        ([1, 5, "a", "b", 3, 7, 2, 0, [[2, 9, b""]]], "9 is not a valid EntryKind"),
        ([1, 5, "a", "b", 3, 7, 2, 0, [[2, 0, "text"]]], "entry 8 whose data"),
        ([1, 5, "a", "b", 3, 7, 2, 0, [[2, 0]]], "no array of term, kind and data"),
        ([1, 10, "a", "b", 1, 1, 1, 2**30 + 1, 0, b"", b""], "a snapshot over"),
        ([1, 10, "a", "b", 1, 1, 1, 2**30, 0, bytes(1024 * 1024 + 1), b""], "a snapshot chunk over"),
        ([1, 10, "a", "b", 1, 1, 1, 9, 0, b"", bytes(64 * 1024 + 1)], "a configuration over"),
        ([], "no CBOR array"),
        ({"version": 1}, "no CBOR array"),
    ],
)
def test_every_bound_is_kept(values: Any, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        decode_message(cbor2.dumps(values))


def test_a_message_too_long_is_not_even_read() -> None:
    with pytest.raises(RemoteProtocolError, match="exceeds"):
        decode_message(bytes(raft_codec.MAX_MESSAGE_BYTES + 1))


def test_the_bytes_of_version_1() -> None:
    """Numbers on the wire and on disk never change their meaning."""
    entry = Entry(RaftIndex(8), Term(2), b"x", EntryKind.NOOP)
    request = AppendRequest("a", "b", Term(3), RaftIndex(7), Term(2), RaftIndex(6), (entry,))
    assert encode_message(request).hex() == "8901056161616203070206818302014178"
    assert encode_entry(entry).hex() == "85010802014178"
    assert decode_entry(encode_entry(entry)) == entry
