"""Bodies and fields of the controllers' answers (formats.md §14.2), and parsers of brokers' requests. Pure.

Every heartbeat's answer tells the group's master, so that part is built once per change of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.decisions.elect_master import LogEnd
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.ha.stream.registered import encode_registered
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import MASTER_ID, BrokerId, Epoch, PhyOffset
from rmqha.model.printable import is_printable
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

MAX_SET_MEMBERS = 64
MAX_EPOCH = 2**31 - 2
MAX_EPOCH_AHEAD = 1 << 20
"""Elections of a group that its controllers may have forgotten. A replica that tells of more is not believed: one word
of it would use up the numbers that the group has left."""
MAX_OFFSET = 2**63 - 1


class InvalidRequestError(ValueError):
    """Request with missing or malformed fields; the text becomes the remark of the answer."""


def is_plausible(epoch: int, known: Epoch) -> bool:
    """True if a replica may have an epoch while its controllers know of the epoch `known`."""
    return epoch <= known + MAX_EPOCH_AHEAD


def require_plausible(epoch: int, known: Epoch) -> None:
    """Raises InvalidRequestError for an epoch that cannot be."""
    if not is_plausible(epoch, known):
        raise InvalidRequestError(
            f"epoch {epoch} cannot be: the controllers know of epoch {known} and believe {MAX_EPOCH_AHEAD} more at most"
        )


def text(ext: Mapping[str, str], name: str, default: str | None = None) -> str:
    value = ext.get(name, default)
    if value is None:
        raise InvalidRequestError(f"the request lacks the field {name}")
    if not is_printable(value):
        raise InvalidRequestError(f"the field {name} holds characters that cannot be printed")
    return value


def integer(ext: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not ext.get(name):
        return default
    value = text(ext, name)
    try:
        number = int(value)
    except ValueError:
        raise InvalidRequestError(f"{name} = {value[:40]!r} must be a whole number") from None
    if not -1 <= number <= MAX_OFFSET:
        raise InvalidRequestError(f"{name} = {number} is out of range")
    return number


def flag(ext: Mapping[str, str], name: str) -> bool:
    return ext.get(name, "").lower() == "true"


def _is_number(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def parse_set(body: bytes | memoryview) -> tuple[tuple[int, ...], int]:
    """Members (sorted, no duplicates) and epoch of a SyncStateSet body."""
    try:
        document = lenient_json.loads(body, is_strict=True)
    except RemoteProtocolError as problem:
        raise InvalidRequestError(f"the body is no SyncStateSet: {problem}") from None
    members = document.get("syncStateSet") if isinstance(document, dict) else None
    epoch = document.get("syncStateSetEpoch") if isinstance(document, dict) else None
    well_formed = (
        isinstance(members, list)
        and 0 < len(members) <= MAX_SET_MEMBERS
        and all(_is_number(member, 1, MAX_OFFSET) for member in members)
        and _is_number(epoch, 0, MAX_EPOCH)
    )
    if not well_formed:
        raise InvalidRequestError("the body must be {syncStateSet: [ids], syncStateSetEpoch: number}")
    assert isinstance(members, list) and isinstance(epoch, int)
    return tuple(sorted(set(members))), epoch


def parse_names(body: bytes | memoryview) -> list[str]:
    """Broker names of request 1006, each once."""
    try:
        document = lenient_json.loads(body, is_strict=True) if body else []
    except RemoteProtocolError as problem:
        raise InvalidRequestError(f"the body is no list of broker names: {problem}") from None
    if not isinstance(document, list) or not all(isinstance(name, str) for name in document):
        raise InvalidRequestError("the body must be a list of broker names")
    return list(dict.fromkeys(document))


def parse_log_end(body: bytes | memoryview, broker_name: str, broker_id: BrokerId) -> LogEnd | None:
    """End of the log in an answer to 1007; None if it is malformed or from another broker, which may have taken over
    the address. A master's body has id 0, that of an Apache broker without a role -1."""
    try:
        document = lenient_json.loads(body)
    except RemoteProtocolError:
        return None
    if not isinstance(document, dict):
        return None
    told_id = document.get("brokerId")
    if document.get("brokerName") != broker_name or told_id not in (-1, MASTER_ID, broker_id):
        return None
    entries, max_offset = document.get("epochList") or [], document.get("maxOffset")
    if not _is_number(max_offset, 0, MAX_OFFSET) or not isinstance(entries, list):
        return None
    last = entries[-1] if entries else {"epoch": -1}
    epoch = last.get("epoch") if isinstance(last, dict) else None
    if not _is_number(epoch, -1, MAX_EPOCH):
        return None
    assert isinstance(epoch, int) and isinstance(max_offset, int)
    return LogEnd(Epoch(epoch), PhyOffset(max_offset), is_master=told_id == MASTER_ID)


@dataclass(frozen=True, slots=True)
class MasterView:
    """Part of answers that tells a group's master (`ext`, {} without one) and set (`body`)."""

    ext: dict[str, str]
    body: bytes


NO_VIEW = MasterView({}, b"")


class MasterViews:
    """One view per group, rebuilt after the group has changed."""

    def __init__(self, info: ReplicasInfo) -> None:
        self._info = info
        self._views: dict[str, MasterView] = {}

    def of(self, broker_name: str) -> MasterView:
        view = self._views.get(broker_name)
        if view is None:
            group = self._info.group(broker_name)
            if group is None:
                return NO_VIEW
            view = self._views[broker_name] = MasterView(master_ext(group), set_body(group))
        return view

    def changed(self, broker_name: str) -> None:
        self._views.pop(broker_name, None)


def master_ext(group: BrokerGroup) -> dict[str, str]:
    """Fields of the master: RocketMQ's four, and rmqha's if they are known (docs/internals/request-codes.md)."""
    if group.master_id is None:
        return {}
    ext = {
        "masterBrokerId": str(group.master_id),
        "masterAddress": group.master_address,
        "masterEpoch": str(group.master_epoch),
        "syncStateSetEpoch": str(group.sync_state_set_epoch),
    }
    ha_address = group.replicas[group.master_id].ha_address
    if ha_address:
        ext["masterHaAddress"] = ha_address
        # a master of rmqha must know whose acknowledgements count
        ext["registered"] = encode_registered(
            {item.broker_id: (item.address, item.ha_address) for item in group.replicas.values()}
        )
    if group.binding_total_replicas:
        ext["totalReplicas"] = str(group.binding_total_replicas)
    if group.drained_ids:
        ext["drainedIds"] = ";".join(map(str, sorted(group.drained_ids)))
    if group.accepts_loss:
        ext["electedUnclean"] = "true"
    if group.unclean_epoch:
        ext["uncleanEpoch"] = str(group.unclean_epoch)
    return ext


def set_body(group: BrokerGroup) -> bytes:
    return lenient_json.dumps(
        {"syncStateSet": sorted(group.sync_state_set), "syncStateSetEpoch": group.sync_state_set_epoch}
    )


def member_group_body(group: BrokerGroup) -> bytes:
    """Body of an answer to 1002. Keys are quoted: mqadmin cannot print the unquoted form (formats.md §18.1)."""
    return lenient_json.dumps(
        {
            "brokerMemberGroup": {
                "brokerAddrs": {str(item.broker_id): item.address for item in group.replicas.values()},
                "brokerName": group.broker_name,
                "cluster": group.cluster_name,
            },
            "syncStateSet": sorted(group.sync_state_set),
        }
    )


def sync_state_data(groups: list[BrokerGroup], is_alive: Callable[[str, BrokerId], bool]) -> bytes:
    """Body of an answer to 1006."""
    table: dict[str, Any] = {}
    for group in groups:
        rows = {
            broker_id: {
                "alive": is_alive(group.broker_name, broker_id),
                "brokerAddress": replica.address,
                "brokerId": broker_id,
                "brokerName": group.broker_name,
                **({"haAddress": replica.ha_address} if replica.ha_address else {}),
            }
            for broker_id, replica in group.replicas.items()
        }
        entry: dict[str, Any] = {"inSyncReplicas": [rows[item] for item in sorted(group.sync_state_set)]}
        if group.master_id is not None:
            entry |= {"masterAddress": group.master_address, "masterBrokerId": group.master_id}
        entry |= {
            "masterEpoch": group.master_epoch,
            "notInSyncReplicas": [row for item, row in rows.items() if item not in group.sync_state_set],
            "syncStateSetEpoch": group.sync_state_set_epoch,
        }
        table[group.broker_name] = entry
    return lenient_json.dumps({"replicasInfoTable": table})


def elect_answer(
    request: Command,
    group: BrokerGroup,
    code: ResponseCode = ResponseCode.SUCCESS,
    bytes_at_stake: int | None = None,
) -> Command:
    """Answer to 1002 with the master of `group`. Brokers read the body for MASTER_STILL_EXIST too. `bytes_at_stake`: of
    an unclean election."""
    remark = None
    if code != ResponseCode.SUCCESS:
        name = group.broker_name
        remark = f"The old master {group.master_id} is still alive, not need to elect new master for broker {name}"
    ext = master_ext(group)
    if bytes_at_stake is not None:
        ext["bytesAtStake"] = str(bytes_at_stake)
    return request.reply(code, ext, member_group_body(group), remark)
