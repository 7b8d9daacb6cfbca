"""What a broker's core tells: done by timers of its process, as the host's tasks do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqha.broker.requests.request import Channel
from rmqha.ha.action import RoleChanged
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from tests.simulation.processes.broker_process import BrokerProcess


class SimShell:
    """Of one life of a broker."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self.role_changed: Callable[[RoleChanged], None] = process.role_changed
        self.stepped = process.wake_timer
        self.wake_dispatch = process.wake_dispatch
        self.wake_flush = process.flush_soon

    def write(self, work: Callable[[], None]) -> bool:
        return self._process.write(work)

    def at_turn_end(self, work: Callable[[], None]) -> bool:
        return False  # each delivery is a turn of its own

    def wake_schedule(self) -> None:
        if self._process.is_delivering:
            self._process.deliver_soon()

    def wake_schedule_soon(self) -> None:
        self.wake_schedule()

    def wake_transactions(self) -> None:
        if self._process.transacting is not None:
            self._process.transacting.wake()

    def wake_retention(self) -> None:
        """Operators of these runs ask for nothing."""

    def wake_notices(self) -> None:
        while self._process.core.notices.step():
            pass

    def wake_searches(self) -> None:
        while self._process.core.queries.step():
            pass

    def save_offsets_soon(self) -> None:
        if self._process.follows_tables:
            self._process.save_soon()

    def save_tables_soon(self) -> None:
        if self._process.follows_tables:
            self._process.save_tables_soon()
        else:
            self._process.core.save_tables()

    def topics_changed(self) -> None:
        if self._process.registering is not None:
            self._process.registering.changed()

    def when_routed(self, done: Callable[[], None]) -> None:
        """Operators of these runs do not wait for routes."""
        done()

    def is_holding(self, channel: Channel) -> bool:
        return self._process.forwarder is not None and self._process.forwarder.is_holding(channel)

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        return self._process.forwarder is not None and self._process.forwarder.hold(channel, commands)

    def call_client(
        self, channel: Channel, command: Command, timeout_ms: int, done: Callable[[Command | str], None]
    ) -> None:
        """No operator of these runs asks a client."""
        done("no client answers")

    def ask_name_server(self, command: Command, done: Callable[[Command | str], None]) -> None:
        """No client of these runs lets the broker divide queues."""
        done("no name server answers")

    def address_problem(self) -> str:
        return ""
