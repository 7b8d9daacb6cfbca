"""The promise of a group in words, from its effective keys. Pure.

The sentences are those of docs/start/guarantees.md as far as they hold for these keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRESETS: dict[str, dict[str, str]] = {
    "ap": {"brokerRole": "ASYNC_MASTER", "allAckInSyncStateSet": "false"},
    "cp": {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true"},
}
"""Keys that haMode writes into every broker's properties file besides itself."""


ACK_DEFAULTS = {
    "haMode": "",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "totalReplicas": "1",
    "inSyncReplicas": "1",
    "minInSyncReplicas": "1",
    "allAckInSyncStateSet": "false",
    "enableAutoInSyncReplicas": "false",
    "asyncLearner": "false",
    "haAckStallBoundMs": "2000",
    "haMaxTimeSlaveNotCatchup": "15000",
    "haMaxGapNotInSync": "268435456",
    "slaveTimeout": "3000",
    "syncFlushTimeout": "5000",
    "flushIntervalCommitLog": "500",
}
"""The keys that say what an acknowledgement means, with BrokerConfig's defaults. They are repeated here because loading
that class costs a command a tenth of the time until its first output."""


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The effective value of a key, and its source."""

    key: str
    value: str
    source: str
    """`preset haMode=…`, `file` or `default`."""


def effective_keys(given: Mapping[str, str], total_replicas: int | None = None) -> dict[str, EffectiveValue]:
    """Effective values of the keys. `given`: a broker's keys by its own report, ours or Apache's; `total_replicas`: by
    the controllers."""
    mode = given.get("haMode", "")
    preset = PRESETS.get(mode, {})
    found = {}
    for key, default in ACK_DEFAULTS.items():
        value = given.get(key, default)
        source = "default" if value == default else "file"
        if mode == "cp" and key in preset:
            value = preset[key]  # haMode=cp overrules the plain keys; haMode=ap only sets what the file does not
        if preset.get(key) == value:
            source = f"preset haMode={mode}"
        if key == "totalReplicas" and total_replicas is not None and str(total_replicas) != value:
            value, source = str(total_replicas), "controllers"
        found[key] = EffectiveValue(key, value, source)
    if given.get("haMode") == "cp":
        majority = int(found["totalReplicas"].value) // 2 + 1
        found["minInSyncReplicas"] = EffectiveValue("minInSyncReplicas", str(majority), "preset haMode=cp")
    return found


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a group, in sentences. `kind` is CP, AP or static."""

    kind: str
    acknowledged: str
    losses: list[str]
    notes: list[str]
    """Keys without effect, contradictions, conditions."""


def promise(
    keys: Mapping[str, EffectiveValue],
    *,
    set_size: int | None = None,
    one_copy_synced: bool = False,
    needed: int | None = None,
    is_static: bool = False,
) -> Guarantee:
    """The guarantee that keys give. `set_size`, `one_copy_synced` and `needed` (replicas that must hold a record now)
    are the master's, if known."""
    value = {key: item.value for key, item in keys.items()}
    if is_static:
        return _static(value)
    return _cp(value, set_size, one_copy_synced) if value["haMode"] == "cp" else _ap(value, set_size, needed)


def _copies(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _synced(value: Mapping[str, str]) -> bool:
    return value["flushDiskType"] == "SYNC_FLUSH"


def _window(value: Mapping[str, str]) -> str:
    """A sentence on acknowledged messages that the disk may lack."""
    return f"messages of about the last {value['flushIntervalCommitLog']} ms (flushIntervalCommitLog)"


def _all_lose_power(value: Mapping[str, str]) -> str:
    if _synced(value):
        return "all replicas lose power at once: nothing acknowledged is lost (each acks what its disk holds)"
    return f"all replicas lose power at once: {_window(value)} may be lost (flushDiskType=ASYNC_FLUSH)"


UNCOVERED = "not covered: oneway sends, and messages with WAIT=false, which the master answers after its own append"


def _cp(value: Mapping[str, str], set_size: int | None, one_copy_synced: bool) -> Guarantee:
    total = int(value["totalReplicas"])
    majority = total // 2 + 1
    notes = [UNCOVERED]
    rule = (
        "a message is acknowledged when every member of the confirmed SyncStateSet has it, "
        f"{'on disk' if _synced(value) else 'in memory'}, and that set has at least {majority} of {_copies(total)}; "
        "consumers see nothing else"
    )
    if total == 1:
        losses = ["one replica is all there is: what its disk loses is lost", _all_lose_power(value)]
        return Guarantee("CP", rule, losses, notes)
    minority = majority - 1
    losses = [
        f"{_copies(minority)} of {total} gone for good, or without power: nothing acknowledged is lost",
        "the master cut off from the controllers and a member: it acknowledges nothing",
        _all_lose_power(value),
    ]
    if total == 2:
        notes.append("of two replicas the master needs both, until the controllers have confirmed the other one out")
    if one_copy_synced:
        losses[0] = "this replica gone for good: what it acknowledged alone is lost; without power: nothing is"
        notes.insert(0, "one copy, synced: the other replica is out, so each message is on one disk before its answer")
    elif set_size is not None and set_size < majority:
        notes.insert(0, f"the set has {set_size} now: sends are refused before anything is written")
    return Guarantee("CP", rule, losses, notes)


def _ap(value: Mapping[str, str], set_size: int | None, needed: int | None) -> Guarantee:
    is_async = value["brokerRole"] == "ASYNC_MASTER"
    whole_set = value["allAckInSyncStateSet"] == "true"
    adaptive = value["enableAutoInSyncReplicas"] == "true" and not is_async and not whole_set
    wanted, least = int(value["inSyncReplicas"]), int(value["minInSyncReplicas"])
    where = "on disk" if _synced(value) else "in memory"
    notes = [UNCOVERED]
    if whole_set:
        rule = f"a message is acknowledged when every member of the SyncStateSet has it, {where}"
        sure = max(1, least)
        notes.append(f"the set may shrink to {_copies(sure)}; a slave that stops holds sends up to haAckStallBoundMs")
    elif is_async or wanted == 1:
        rule = f"a message is acknowledged when the master has it, {where}"
        sure = 1
    elif adaptive:
        rule = (
            f"a message is acknowledged when {wanted} of the set's replicas have it, {where}, or as many as live and "
            f"are close enough, never fewer than {least}"
        )
        sure = least
        if needed is not None and needed < wanted:
            notes.insert(0, f"downgraded: {needed} of {_copies(wanted)} are needed now")
    else:
        rule = f"a message is acknowledged when {wanted} of the set's replicas have it, {where}"
        sure = wanted
    losses = _ap_losses(value, sure, whole_set)
    if sure > 1 and not whole_set:
        notes.append("a replica that does not answer the controllers' question for its log's end counts as gone")
    if least > 1:
        told = f"with a set below {least} sends are refused before anything is written"
        notes.append(f"{told}; it has {set_size} now" if set_size is not None and set_size < least else told)
    notes += _without_effect(value, is_async, whole_set)
    return Guarantee("AP", rule, losses, notes)


def _ap_losses(value: Mapping[str, str], sure: int, whole_set: bool) -> list[str]:
    """Sentences on what an AP group may lose. `sure`: number of replicas that hold each acknowledged message."""
    if sure == 1:
        dead = (
            "the master dies while it is alone in the set: what it acknowledged alone is lost if another is elected"
            if whole_set
            else "the master dies: what it had acknowledged and not yet copied is lost, about the last tens of ms"
        )
    else:
        dead = (
            f"{_copies(sure - 1)} with the newest messages gone for good: nothing acknowledged is lost; {sure} such: "
            "what only they had is lost"
        )
    cut_off = "a master that is cut off goes on as far as it can; its fork is cut when it comes back, and counted"
    return [dead, cut_off, _all_lose_power(value)]


def _without_effect(value: Mapping[str, str], is_async: bool, whole_set: bool) -> list[str]:
    """Sentences on keys without effect, which another key overrules."""
    why = "allAckInSyncStateSet=true" if whole_set else "brokerRole=ASYNC_MASTER" if is_async else ""
    if not why:
        return []
    given = []
    if value["inSyncReplicas"] != "1":
        given.append(f"inSyncReplicas={value['inSyncReplicas']}")
    if value["enableAutoInSyncReplicas"] == "true":
        given.append("enableAutoInSyncReplicas=true")
    return [f"{' and '.join(given)} without effect, because of {why}"] if given else []


def _static(value: Mapping[str, str]) -> Guarantee:
    where = "on disk" if _synced(value) else "in memory"
    if value["brokerRole"] == "SYNC_MASTER":
        count = max(2, int(value["inSyncReplicas"]))
        rule = f"a message is acknowledged when the master and {_copies(count - 1)} more have it, {where}"
    else:
        rule = f"a message is acknowledged when the master has it, {where}"
    losses = [
        "the master dies: nobody takes its place, slaves go on serving reads",
        "the master gone for good: what no slave has copied is lost",
        _all_lose_power(value),
    ]
    return Guarantee("static", rule, losses, [UNCOVERED])


def conditions(
    *, controllers_ours: bool | None, master_ours: bool, unclean: bool | None, is_cp: bool, is_static: bool
) -> list[str]:
    """Sentences on the conditions of the guarantee besides the keys (ruling 10 and C4), also on unknown ones."""
    if is_static:
        return []
    found = []
    if not master_ours:
        found.append(
            "the master is Apache RocketMQ's: the promise is Apache's, which checks the set only before a write"
        )
    if controllers_ours is None:
        found.append("no controller answers: whether the group can elect is not known")
    elif not controllers_ours:
        found.append(
            "the controllers are Apache RocketMQ's: the promise needs enableElectUncleanMaster=false there, and nobody "
            "may run cleanBrokerMetadata on a live group"
        )
    if unclean:
        found.append(
            "enableElectUncleanMaster=true contradicts haMode=cp: a replica outside the set may be elected"
            if is_cp
            else "enableElectUncleanMaster=true: if no member of the set lives, one that lacks messages is elected"
        )
    return found
