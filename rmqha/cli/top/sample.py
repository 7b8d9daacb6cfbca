"""The rows of `rmqha top` for each replica, from what the nodes say now and said a moment ago. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from rmqha.ops.health.agreement import LEADERS, groups_of
from rmqha.ops.health.survey import NodeReport, ServerKind


@dataclass(frozen=True, slots=True)
class Row:
    """One replica; None where it does not apply or nobody told. Rates and latencies are of the time between two looks,
    of the sends that were acknowledged in it; a latency is the upper end of its power of two, in ms."""

    node: str
    address: str
    group: str
    broker_id: int | None
    role: str
    epoch: int | None = None
    in_set: bool | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    in_per_second: float | None = None
    out_per_second: float | None = None
    ack_p50_ms: int | None = None
    ack_p99_ms: int | None = None
    waiting: int | None = None
    in_maintenance: bool = False
    drained: bool = False
    error: str = ""

    @property
    def is_master(self) -> bool:
        return self.role.upper() in LEADERS

    def as_json(self) -> dict[str, Any]:
        return {_camel(name): value for name, value in asdict(self).items()}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def rows(now: Sequence[NodeReport], before: Sequence[NodeReport], elapsed_s: float) -> list[Row]:
    """All replicas, by group and name. `before`: the words of `elapsed_s` ago, [] at the first look."""
    earlier = {word.address: word.state for word in before if word.kind is ServerKind.BROKER}
    told = {key: row for name in groups_of(now) for key, row in _controllers_rows(now, name).items()}
    found = []
    for name in groups_of(now):
        brokers = [word for word in now if word.kind is ServerKind.BROKER and name in word.groups | {word.group}]
        master = _master(brokers)
        made = [_row(word, name, told.get(word.address, {}), master, earlier, elapsed_s) for word in brokers]
        found += sorted(made, key=lambda row: (row.node, row.address))
    return found


def _controllers_rows(words: Iterable[NodeReport], group: str) -> dict[str, Mapping[str, Any]]:
    """Replicas by address as the leading controller has them, else as any controller."""
    told = [word for word in words if word.kind is ServerKind.CONTROLLER and group in word.state.get("groups", {})]
    best = max(told, key=lambda word: (word.leads, word.state["groups"][group]["masterEpoch"]), default=None)
    return {} if best is None else {item["address"]: item for item in best.state["groups"][group]["replicas"]}


def _master(brokers: Iterable[NodeReport]) -> Mapping[str, Any]:
    """The state that the master of the highest epoch tells; {} if none answers."""
    masters = [word.state for word in brokers if word.state.get("role") in LEADERS]
    return max(masters, key=lambda state: state["epoch"] or 0, default={})


def _row(
    word: NodeReport,
    group: str,
    told: Mapping[str, Any],
    master: Mapping[str, Any],
    earlier: Mapping[str, Mapping[str, Any]],
    elapsed_s: float,
) -> Row:
    state = word.state
    broker_id = state.get("brokerId", told.get("brokerId"))
    members = master.get("syncStateSet")
    by_master = None if members is None or broker_id is None else broker_id in members
    bare = Row(
        word.title,
        word.address,
        group,
        broker_id,
        "down" if word.error else "apache",
        in_set=told.get("inSyncStateSet", by_master),
        in_maintenance=bool(told.get("inMaintenance")),
        drained=bool(told.get("drained")),
        error=word.error,
    )
    if not state:
        return bare
    is_master = state["role"] in LEADERS
    slaves: dict[int | None, Mapping[str, Any]] = {item.get("brokerId"): item for item in master.get("slaves", [])}
    slave = slaves.get(broker_id, {}) if broker_id is not None else {}
    before = earlier.get(word.address, {})
    p50, p99 = latencies(state.get("waits") or {}, before.get("waits") or {}) if is_master else (None, None)
    return replace(
        bare,
        role=str(state["role"]).lower(),
        epoch=state["epoch"],
        lag_bytes=0 if is_master else slave.get("lagBytes"),
        lag_ms=0 if is_master else slave.get("lagMs"),
        max_offset=state["maxPhyOffset"],
        confirm_offset=state["confirmOffset"],
        in_per_second=_rate(state, before, "putCount", elapsed_s),
        out_per_second=_rate(state, before, "getCount", elapsed_s),
        ack_p50_ms=p50,
        ack_p99_ms=p99,
        waiting=(state.get("waits") or {}).get("count"),
    )


def _rate(state: Mapping[str, Any], before: Mapping[str, Any], name: str, elapsed_s: float) -> float | None:
    """None at the first look, and after a restart of the broker."""
    if name not in state or name not in before or state[name] < before[name] or elapsed_s <= 0:
        return None
    return round((int(state[name]) - int(before[name])) / elapsed_s, 1)


def latencies(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(p50, p99) of the acknowledgements between two looks; None if there was none."""
    old, new = before.get("latencyCounts"), now.get("latencyCounts")
    if old is None or new is None:
        return None, None
    counts = [end - start for end, start in zip_longest(new, old, fillvalue=0)]
    if min(counts, default=0) < 0 or not any(counts):
        return None, None
    return _quantile(counts, 0.5), _quantile(counts, 0.99)


def _quantile(counts: Sequence[int], share: float) -> int:
    """Place n counts the waits of n bits, of less than 2**n ms."""
    wanted, seen = share * sum(counts), 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return (1 << place) - 1
    raise AssertionError("the shares of all places make the whole")
