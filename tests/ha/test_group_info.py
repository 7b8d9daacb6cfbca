"""What a controller's answer says of a group: numbers that no replica could keep are no answer."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.ha.group_info import MAX_BROKER_ID, MAX_EPOCH, parse_group_info
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps


def notice(**ext: str) -> Command:
    body: dict[str, Any] = {"syncStateSet": [1, 2], "syncStateSetEpoch": 3}
    fields = {"masterEpoch": "7", "masterBrokerId": "1", "masterAddress": "127.0.0.1:1", **ext}
    return Command(1008, fields, dumps(body))


def test_the_largest_numbers_are_read() -> None:
    ext = {"masterEpoch": str(MAX_EPOCH), "syncStateSetEpoch": str(MAX_EPOCH), "masterBrokerId": str(MAX_BROKER_ID)}
    found = parse_group_info(notice(**ext))
    assert found is not None
    assert (found.epoch, found.set_epoch, found.master_id) == (MAX_EPOCH, MAX_EPOCH, MAX_BROKER_ID)


@pytest.mark.parametrize(
    ("ext", "epoch"),
    [
        ({}, 0),
        ({"uncleanEpoch": "5"}, 5),
        ({"uncleanEpoch": "5", "electedUnclean": "true"}, 5),
        ({"electedUnclean": "true"}, 7),
    ],
)
def test_controllers_of_the_release_before_tell_an_unclean_election_of_the_present_epoch_alone(
    ext: dict[str, str], epoch: int
) -> None:
    found = parse_group_info(notice(**ext))
    assert found is not None and found.unclean_epoch == epoch


@pytest.mark.parametrize(
    "name", ["masterEpoch", "syncStateSetEpoch", "totalReplicas", "masterBrokerId", "uncleanEpoch"]
)
@pytest.mark.parametrize("value", ["-2", str(1 << 63), "9" * 400])
def test_a_number_that_cannot_be_kept_is_refused(name: str, value: str) -> None:
    """A replica took an epoch of any length, and no master's could be higher from then on."""
    with pytest.raises(RemoteProtocolError, match="out of range"):
        parse_group_info(notice(**{name: value}))
