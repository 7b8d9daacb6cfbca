"""Ports of a broker's core to the shell around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rmqha.broker.requests.request import Channel
from rmqha.ha.action import RoleChanged
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts of host and process. `local_hour` None: UTC. `memory_bytes` 0: unknown. `month_of` returns begin and end
    (ms) of the local month of a wall time."""

    process: Mapping[str, Any]
    disk_usage: Callable[[], tuple[int, int, int]]
    history: Callable[[], list[dict[str, Any]]]
    local_hour: Callable[[], int] | None = None
    memory_bytes: int = 0
    processor_count: int = 1
    month_of: Callable[[int], tuple[int, int]] = lambda wall_ms: (0, 1 << 62)
    read_log: Callable[[Command], Command] | None = None
    """Answers request 52018; None without log files."""


NO_HOST = HostFacts({}, lambda: (0, 0, 0), list)
"""Facts of a broker in a simulation."""


class BrokerShell(Protocol):
    """Shell of a broker, called in its one thread from `driver.start()` on. Each `wake_…` reports work that the shell
    does soon, after the call."""

    def role_changed(self, action: RoleChanged) -> None: ...

    def stepped(self) -> None:
        """The replica's state has changed, and perhaps its deadline."""

    def write(self, work: Callable[[], None]) -> bool:
        """Run `work` as a `LogWriter`; `driver.log_written` follows False."""
        ...

    def at_turn_end(self, work: Callable[[], None]) -> bool:
        """Call `work` at the end of the turn in which connections are served; False, without effect, unless it serves
        several."""
        ...

    def wake_dispatch(self) -> None: ...

    def wake_flush(self) -> None: ...

    def wake_schedule(self) -> None: ...

    def wake_schedule_soon(self) -> None:
        """Deliver within some milliseconds: an entry of the timer topic has come."""

    def wake_transactions(self) -> None: ...

    def wake_retention(self) -> None: ...

    def wake_searches(self) -> None: ...

    def wake_cold_reads(self) -> None: ...

    def wake_notices(self) -> None: ...

    def save_offsets_soon(self) -> None:
        """Save consumer offsets, for which a request waits."""

    def save_tables_soon(self) -> None:
        """Save topics and groups, for which a request may wait."""

    def topics_changed(self) -> None:
        """Tell the name servers."""

    def when_routed(self, done: Callable[[], None]) -> None:
        """Call `done` once the name servers know the present topics."""

    def is_holding(self, channel: Channel) -> bool:
        """True if sends by this connection would be held now."""
        ...

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        """Hold or forward sends and ends of transactions during or after a hand-over; False if they must be handled
        here."""
        ...

    def call_client(
        self, channel: Channel, command: Command, timeout_ms: int, done: Callable[[Command | str], None]
    ) -> None:
        """Send a request by a client's connection; `done` gets the answer, or the reason of a failure."""

    def ask_name_server(self, command: Command, done: Callable[[Command | str], None]) -> None:
        """Send a request to a name server that answers; `done` gets the answer, or the reason of a failure, after this
        call."""

    def address_problem(self) -> str:
        """Fault of the advertised addresses, "" for none."""
        ...
