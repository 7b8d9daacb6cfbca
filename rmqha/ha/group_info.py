"""A broker group as a controller's answer describes it: the one parser of answers to 904, 1002, 1003 and 1004, and of
notice 1008.

Source: formats.md §14.2; masterHaAddress, totalReplicas, drainedIds, registered and uncleanEpoch are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.ha.sync_state import Members, as_members
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import NO_EPOCH, BrokerId, Epoch
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

MAX_EPOCH = 2**31 - 1
"""RocketMQ's masterEpoch and syncStateSetEpoch are an int."""
MAX_BROKER_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """State of a group in one answer. `master_id` None: the group has no master. `members` None: the answer does not
    contain the set."""

    master_id: BrokerId | None
    master_address: str
    master_ha_address: str
    epoch: Epoch
    members: Members | None
    set_epoch: int
    total_replicas: int | None
    elected_unclean: bool
    """The election of this epoch accepted that messages may be lost; ours."""
    drained_ids: Members = ()
    """Replicas that an operator keeps out of the set; ours."""
    registered: str = ""
    """Every replica and its addresses, encoded (`rmqha.ha.stream.registered`); ours."""
    unclean_epoch: Epoch = NO_EPOCH
    """The newest epoch whose master may lack what was acknowledged before it was elected; 0 if none is known. Ours."""


def parse_group_info(command: Command) -> GroupInfo | None:
    """The group that a command describes; None if it describes none (for example a Java controller's empty answer).

    Raises RemoteProtocolError for values that are not what the protocol says.
    """
    try:
        return _parse(command)
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"a controller's answer about the group cannot be read: {error}") from None


def _parse(command: Command) -> GroupInfo | None:
    ext = command.ext
    if "masterEpoch" not in ext:
        return None
    master_id = _number(ext.get("masterBrokerId") or -1, MAX_BROKER_ID)
    members, set_epoch = _set_of(command)
    total, elected_unclean = ext.get("totalReplicas"), ext.get("electedUnclean") == "true"
    # controllers of the previous release send it only for the current epoch
    unclean_epoch = ext.get("uncleanEpoch") or (ext["masterEpoch"] if elected_unclean else 0)
    return GroupInfo(
        master_id=BrokerId(master_id) if master_id > 0 else None,
        master_address=ext.get("masterAddress", ""),
        master_ha_address=ext.get("masterHaAddress", ""),
        epoch=Epoch(_number(ext["masterEpoch"])),
        members=members,
        set_epoch=set_epoch,
        total_replicas=_number(total) if total else None,
        elected_unclean=elected_unclean,
        drained_ids=as_members([int(item) for item in ext.get("drainedIds", "").split(";") if item]),
        registered=ext.get("registered", ""),
        unclean_epoch=Epoch(_number(unclean_epoch)),
    )


def parse_set(command: Command) -> tuple[Members | None, int]:
    """(members, set epoch) of a successful answer to 1001; members None if it does not list them.

    Raises RemoteProtocolError."""
    try:
        return _set_of(command)
    except (ValueError, TypeError) as error:
        raise RemoteProtocolError(f"a controller's SyncStateSet cannot be read: {error}") from None


def _set_of(command: Command) -> tuple[Members | None, int]:
    body = loads(bytes(command.body)) if command.body else {}
    shown = body if isinstance(body, dict) else {}
    listed = shown.get("syncStateSet")
    members = as_members([int(item) for item in listed]) if isinstance(listed, list) else None
    ext = command.ext
    set_epoch = ext.get("newSyncStateSetEpoch") or ext.get("syncStateSetEpoch") or shown.get("syncStateSetEpoch") or 0
    return members, _number(set_epoch)


def _number(value: str | int, most: int = MAX_EPOCH) -> int:
    """Parse a number from −1 to `most`. Raises ValueError for anything else."""
    found = int(value)
    if not -1 <= found <= most:
        raise ValueError(f"{str(value)[:40]} is out of range")
    return found
