from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.state.event import Event, decode_events, encode_events
from rmqha.model.error import StoreError
from tests.controller.values import EVENTS


@given(st.lists(EVENTS, max_size=5))
def test_what_is_encoded_is_decoded(events: list[Event]) -> None:
    assert decode_events(encode_events(events)) == events


def test_another_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(StoreError, match="has version 5; this release reads up to 4"):
        decode_events(cbor2.dumps([5, []]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        cbor2.dumps([1]),
        cbor2.dumps([1, [[99]]]),
        cbor2.dumps([1, [[3, "a"]]]),
        cbor2.dumps([3, [[3, "a", 1, 1]]]),
        cbor2.dumps([4, [[11, "a", 1]]]),
        cbor2.dumps(7),
        cbor2.dumps([3, [{1: "a"}]]),
        cbor2.dumps([3, {(6, "g", 2): 1}]),
        cbor2.dumps([3, [[0, "g", 2, True]]]),
        cbor2.dumps([3, [[5, "g", 2, 3, "members", 2, 5, "x"]]]),
    ],
)
def test_bytes_that_are_no_events_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        decode_events(data)


def test_bytes_are_fixed() -> None:
    """A release reads what the one before it wrote: these bytes never change their meaning."""
    from controller.state.event import Cause, MaintenanceSet, MasterElected
    from rmqha.model.offset import BrokerId, Epoch

    event = MasterElected("g", BrokerId(2), Epoch(3), (BrokerId(1),), Cause.MASTER_DEAD, 5, "x")
    assert encode_events([event]).hex() == "8203818805616702038101" + "02" + "05" + "6178"
    assert encode_events([MaintenanceSet("g", BrokerId(2), True)]).hex() == "820481840b616702f5"
    before = MasterElected("g", BrokerId(2), Epoch(3), (BrokerId(1),), Cause.MASTER_DEAD)
    assert decode_events(bytes.fromhex("8201818605616702038101" + "02")) == [before]
