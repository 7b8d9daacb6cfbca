"""The shell of a broker process: passes the core's calls to the tasks that do the work. Shell."""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.broker.advertised import AdvertisedAddressCheck
from rmqha.broker.loops import BrokerLoops
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.replication.log_thread import LogThread
from rmqha.broker.replication.metadata_sync import MetadataSync
from rmqha.broker.replication.nameserver_link import NameServerLink
from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.broker.services.retention_loop import RetentionLoop
from rmqha.ha.action import RoleChanged
from rmqha.host.net.poller import Poller
from rmqha.host.net.session import Session
from rmqha.model.error import UnreachableError
from rmqha.wire.command import Command


class HostShell:
    """A `BrokerShell`. `begin` comes before `driver.start()`: until then there are no tasks, and a call that needs one
    fails."""

    _loops: BrokerLoops
    _link: NameServerLink
    _sync: MetadataSync
    _retention: RetentionLoop
    _forwarder: SendForwarder | None
    _log: LogThread
    _nursery: trio.Nursery

    def __init__(self, advertised: AdvertisedAddressCheck, poller: Poller) -> None:
        """`poller`: of the senders' connections."""
        self._advertised = advertised
        self.at_turn_end = poller.at_turn_end

    def begin(
        self,
        loops: BrokerLoops,
        link: NameServerLink,
        sync: MetadataSync,
        retention: RetentionLoop,
        forwarder: SendForwarder | None,
        log: LogThread,
        nursery: trio.Nursery,
    ) -> None:
        """Set the tasks. `forwarder` None: the master never hands over, or sends must not be forwarded. Calls of
        clients run in `nursery`."""
        self._loops, self._link, self._sync, self._retention = loops, link, sync, retention
        self._forwarder = forwarder
        self._log = log
        self._nursery = nursery
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

    def wake_schedule_soon(self) -> None:
        self._loops.wake_schedule_soon()

    def wake_transactions(self) -> None:
        self._loops.wake_transactions()

    def wake_retention(self) -> None:
        self._retention.wake()

    def wake_notices(self) -> None:
        self._loops.wake_notices()

    def wake_searches(self) -> None:
        self._loops.wake_searches()

    def wake_cold_reads(self) -> None:
        self._loops.wake_cold_reads()

    def save_offsets_soon(self) -> None:
        self._loops.save_offsets_soon()

    def save_tables_soon(self) -> None:
        self._loops.save_tables_soon()

    def topics_changed(self) -> None:
        self._link.changed()

    def when_routed(self, done: Callable[[], None]) -> None:
        self._link.when_registered(done)

    def is_holding(self, channel: Channel) -> bool:
        return self._forwarder is not None and self._forwarder.is_holding(channel)

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        return self._forwarder is not None and self._forwarder.hold(channel, commands)

    def call_client(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        self._nursery.start_soon(_call, channel, command, timeout_ms, done)

    def ask_name_server(self, command: Command, done: Done) -> None:
        self._nursery.start_soon(self._link.ask, command, done)

    def address_problem(self) -> str:
        return self._advertised.problem


async def _call(channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
    assert isinstance(channel, Session)
    try:
        done(await channel.call(command, timeout_ms))
    except UnreachableError as error:
        done(str(error))
    except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
        channel.fail(error, [command])
