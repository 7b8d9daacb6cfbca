"""The shell of a broker process: what its core tells goes to the tasks that do it. Shell."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.broker.advertised import Advertised
from rmqha.broker.loops import BrokerLoops
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.replication.log_thread import LogThread
from rmqha.broker.replication.metadata_sync import MetadataSync
from rmqha.broker.replication.nameserver_link import NameServerLink
from rmqha.broker.requests.request import Channel
from rmqha.broker.services.retention_loop import RetentionLoop
from rmqha.ha.action import RoleChanged
from rmqha.wire.command import Command


class HostShell:
    """A `BrokerShell`. `begin` comes before `driver.start()`: until then there is no task to tell, and a call of what
    needs one fails."""

    _loops: BrokerLoops
    _link: NameServerLink
    _sync: MetadataSync
    _retention: RetentionLoop
    _forwarder: SendForwarder | None
    _log: LogThread

    def __init__(self, advertised: Advertised) -> None:
        self._advertised = advertised

    def begin(
        self,
        loops: BrokerLoops,
        link: NameServerLink,
        sync: MetadataSync,
        retention: RetentionLoop,
        forwarder: SendForwarder | None,
        log: LogThread,
    ) -> None:
        """`forwarder` None: no master of this group ever hands over, or sends are not to be passed on."""
        self._loops, self._link, self._sync, self._retention = loops, link, sync, retention
        self._forwarder = forwarder
        self._log = log
        self.stepped = loops.stepped  # each send comes by: spare it a call
        self.wake_dispatch, self.wake_flush = loops.wake_dispatch, loops.wake_flush

    def role_changed(self, action: RoleChanged) -> None:
        self._link.role_changed(action)
        self._sync.role_changed()
        if self._forwarder is not None:
            self._forwarder.role_changed()

    def write(self, work: Callable[[], None]) -> bool:
        return self._log.write(work)

    def wake_schedule(self) -> None:
        self._loops.wake_schedule()

    def wake_transactions(self) -> None:
        self._loops.wake_transactions()

    def wake_retention(self) -> None:
        self._retention.wake()

    def wake_notices(self) -> None:
        self._loops.wake_notices()

    def wake_searches(self) -> None:
        self._loops.wake_searches()

    def save_offsets_soon(self) -> None:
        self._loops.save_offsets_soon()

    def save_tables_soon(self) -> None:
        self._loops.save_tables_soon()

    def topics_changed(self) -> None:
        self._link.changed()

    def when_routed(self, done: Callable[[], None]) -> None:
        self._link.when_told(done)

    def is_holding(self, channel: Channel) -> bool:
        return self._forwarder is not None and self._forwarder.is_holding(channel)

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        return self._forwarder is not None and self._forwarder.hold(channel, commands)

    def address_problem(self) -> str:
        return self._advertised.problem
