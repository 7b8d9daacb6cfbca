"""The phases of one failover, from the events of all nodes. Pure.

    detect    the controllers have decided that the master is dead
    elect     the new master is agreed
    role      the elected broker has taken the role
    writable  it accepts sends
    route     the name server answers with its address
    first_ack a client got an acknowledgement from it

All are cumulative milliseconds from the kill, by the wall clocks of the nodes: exact on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmqha.wire.state.history import HistoryEvent

PHASES = ("detect_ms", "elect_ms", "role_ms", "writable_ms", "route_ms", "first_ack_ms")


def failover_phases(
    events: Iterable[HistoryEvent], killed_at_ms: int, group: str, ack_stamps_ms: Iterable[int] = ()
) -> dict[str, int | None]:
    """Phases of the failover that followed a kill, in ms from `killed_at_ms` on. `ack_stamps_ms`: wall times of
    acknowledgements, of which the first after the new master was writable counts.

    A phase that did not happen, or that no node reports, is None."""
    after = sorted((event for event in events if event.at_ms >= killed_at_ms), key=lambda event: event.at_ms)

    def first(wanted: Callable[[HistoryEvent], bool]) -> HistoryEvent | None:
        return next((event for event in after if wanted(event)), None)

    elected = first(lambda event: event.name == "master_elected" and event.get("group", group) == group)
    epoch = elected.get("epoch") if elected else None

    def of_epoch(name: str) -> Callable[[HistoryEvent], bool]:
        return lambda event: event.name == name and event.get("epoch") == epoch

    found = {
        "detect_ms": first(lambda event: event.name == "master_dead" and event.get("group", group) == group),
        "elect_ms": elected,
        "role_ms": first(lambda event: of_epoch("role_changed")(event) and event.get("role") == "MASTER"),
        "writable_ms": first(of_epoch("writable")),
        "route_ms": first(
            # before the election it can only be the dead master's own, still under way
            lambda event: (
                event.name == "route_changed"
                and event.get("broker_name") == group
                and elected is not None
                and event.at_ms >= elected.at_ms
                and _has_master(event)
            )
        ),
    }
    phases = {name: event.at_ms - killed_at_ms if event else None for name, event in found.items()}
    writable_ms = phases["writable_ms"]
    acked = [stamp - killed_at_ms for stamp in ack_stamps_ms if stamp - killed_at_ms >= (writable_ms or 0)]
    phases["first_ack_ms"] = min(acked) if acked and writable_ms is not None else None
    return phases


def _has_master(event: HistoryEvent) -> bool:
    """True if the route in the event has a master, broker id 0."""
    addresses = event.get("broker_addrs", event.get("addresses", {}))
    return "0" in addresses or 0 in addresses
