"""Ports that a broker's core asks of the shell around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rmqha.broker.requests.request import Channel
from rmqha.ha.action import RoleChanged
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts that the host tells of itself and the process. `local_hour` None: it is UTC's. `memory_bytes` 0:
    unknown. `month_of` gives start and end (ms) of the local month that a wall time is in."""

    process: Mapping[str, Any]
    disk_usage: Callable[[], tuple[int, int, int]]
    history: Callable[[], list[dict[str, Any]]]
    local_hour: Callable[[], int] | None = None
    memory_bytes: int = 0
    processor_count: int = 1
    month_of: Callable[[int], tuple[int, int]] = lambda wall_ms: (0, 1 << 62)
    read_log: Callable[[Command], Command] | None = None
    """Answers request 52018; None: there is no log to tell."""


NO_HOST = HostFacts({}, lambda: (0, 0, 0), list)
"""Facts of a broker in a simulation."""


class BrokerShell(Protocol):
    """Called in the broker's one thread, from `driver.start()` on. Each `wake_…` says that there is work: the shell
    does it soon, and not within the call."""

    def role_changed(self, action: RoleChanged) -> None: ...

    def stepped(self) -> None:
        """The replica has moved, and its deadline may have."""

    def write(self, work: Callable[[], None]) -> bool:
        """The `LogWriter`; `driver.log_written` follows False."""
        ...

    def at_turn_end(self, work: Callable[[], None]) -> bool:
        """Do `work` when the turn ends in which connections are served; False, and nothing is done, unless there are
        several in it."""
        ...

    def wake_dispatch(self) -> None: ...

    def wake_flush(self) -> None: ...

    def wake_schedule(self) -> None: ...

    def wake_schedule_soon(self) -> None:
        """Within some milliseconds: what waits for its time has come."""

    def wake_transactions(self) -> None: ...

    def wake_retention(self) -> None: ...

    def wake_searches(self) -> None: ...

    def wake_cold_reads(self) -> None: ...

    def wake_notices(self) -> None: ...

    def save_offsets_soon(self) -> None:
        """Somebody waits for the file of consumer offsets."""

    def save_tables_soon(self) -> None:
        """Topics or groups have changed, and somebody may wait for their files."""

    def topics_changed(self) -> None:
        """The name servers are to be told."""

    def when_routed(self, done: Callable[[], None]) -> None:
        """Call `done` once the name servers know the topics as they are now."""

    def is_holding(self, channel: Channel) -> bool:
        """True if sends that came now by this connection would be held."""
        ...

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        """Take care of sends and ends of transactions that come during or after a hand-over; False: they are not
        held."""
        ...

    def call_client(
        self, channel: Channel, command: Command, timeout_ms: int, done: Callable[[Command | str], None]
    ) -> None:
        """Send a request by the connection on which a client came; the answer, or the reason why there is none, goes
        to `done`."""

    def ask_name_server(self, command: Command, done: Callable[[Command | str], None]) -> None:
        """Send a request to a name server that answers; the answer, or the reason why there is none, goes to `done`,
        later than in this call."""

    def address_problem(self) -> str:
        """The fault of the addresses that others are told, "" for none."""
        ...
