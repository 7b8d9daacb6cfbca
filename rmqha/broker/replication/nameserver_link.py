"""Registers with every name server: 103 at changes and periodically, 904 every second, 104 at the end. Shell."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TypeVar
from zlib import crc32

import trio

from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import RoleChanged
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UnreachableError
from rmqha.model.identity import Role
from rmqha.model.offset import MASTER_ID, BrokerId
from rmqha.port import Clock, Tracer
from rmqha.wire.command import Command

T = TypeVar("T")
CALL_TIMEOUT_MS = 3000
LEAVE_TIMEOUT_MS = 1000
MAX_PAUSE_S = 0.5
PAUSE_FACTOR = 9
"""After a registration whose body took t to encode, changes of topics gather for 9 t: topics may be created all the
time, and each registration has them all."""
HEADER_BYTES = 64 * 1024
"""Bytes of a registration's frame besides the topics. Those that do not fit into a frame are compressed."""
RELEASED_COUNT = 200
"""Waiting callbacks that are called in one turn of the event loop: some milliseconds."""


class NameServerLink:
    """Link with one task per name server, so that a dead one delays no other. `give_turn` lets other tasks run."""

    def __init__(
        self,
        config: BrokerConfig,
        driver: ReplicaDriver,
        topics: TopicTable,
        addresses: list[str],
        clock: Clock,
        tracer: Tracer,
        give_turn: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._driver = driver
        self._topics = topics
        self._clock = clock
        self._tracer = tracer
        self._give_turn = give_turn
        self._registrations = {address: self._unknown() for address in addresses}
        self._changed = {address: trio.Event() for address in addresses}
        self._scopes: dict[str, trio.CancelScope] = {}
        """Cancel scopes of the running tasks, by address."""
        self._addresses_changed = trio.Event()
        """Set when the list of name servers has changed."""
        self._urgent = trio.Event()
        """Set during a change of the role: no change waits to be sent together with others."""
        self._encode_s = 0.0
        """Time (s) in which the last body was encoded."""
        self._unreachable: set[str] = set()
        """Name servers whose failure was traced: once when it begins."""
        self._waits: deque[tuple[int, Callable[[], None]]] = deque()
        """Waiting callbacks by revision, the lowest first."""
        self._revision = 0
        self._role = Role.STARTING
        self._aligned = False
        self._stopped = False
        self._left = trio.Event()
        self._client: RemotingClient | None = None

    def _unknown(self) -> NameServerRegistration:
        return NameServerRegistration(self._config.broker_heartbeat_interval, self._config.register_name_server_period)

    def follow(self, addresses: list[str]) -> None:
        """Use these name servers from now on. One that is left out gets no more requests and forgets this broker."""
        for address in [item for item in self._registrations if item not in addresses]:
            del self._registrations[address], self._changed[address]
            self._unreachable.discard(address)
            if (scope := self._scopes.pop(address, None)) is not None:
                scope.cancel()
        for address in addresses:
            if address not in self._registrations:
                self._registrations[address] = self._unknown()
                self._changed[address] = trio.Event()
        self._addresses_changed.set()
        for event in self._changed.values():
            event.set()  # who waits for one that has gone waits for it no more

    def statistics(self) -> dict[str, BrokerId | None]:
        """Id under which each name server lists this broker."""
        return {address: item.known_as for address, item in self._registrations.items()}

    # --- news -------------------------------------------------------------------------------------------------------
    def role_changed(self, action: RoleChanged) -> None:
        if self._role is Role.MASTER and action.role is Role.SLAVE:
            # An old master may have records that its group has not committed.
            self._aligned = False
        self._role = action.role
        self._wake_retries()
        self.changed()

    def _wake_retries(self) -> None:
        self._urgent.set()
        self._urgent = trio.Event()

    def changed(self) -> None:
        """Tell every name server at once that role or topics have changed."""
        self._revision += 1
        for event in self._changed.values():
            event.set()

    def when_registered(self, done: Callable[[], None]) -> None:
        """Call `done` when every reachable name server has all changes so far, at once if they have."""
        self._waits.append((self._revision, done))
        if len(self._waits) == 1:
            self._release()

    def _release(self) -> bool:
        """Call waiting callbacks; True if more remain for another turn. An unreachable name server, and a replica that
        is not to be listed, delay no callback."""
        fenced, waits = self._advertised().wanted is None, self._waits
        asked = [item for address, item in self._registrations.items() if address not in self._unreachable]
        for _ in range(RELEASED_COUNT):
            if not waits or not (fenced or all(item.is_settled(waits[0][0]) for item in asked)):
                return False
            _, done = waits.popleft()
            done()
        return bool(waits)

    def lost(self, address: str) -> None:
        if address in self._registrations:
            self._registrations[address].lost()
            self._changed[address].set()

    def _advertised(self) -> AdvertisedState:
        replica = self._driver.replica
        if self._stopped:
            return AdvertisedState(None, self._revision)
        if replica.is_master:
            return AdvertisedState(MASTER_ID, self._revision)
        if replica.is_listed_unaligned:
            return AdvertisedState(replica.broker_id, self._revision)  # the answer says where the master is
        self._aligned = self._aligned or replica.is_following
        return AdvertisedState(replica.broker_id if self._aligned else None, self._revision)

    # --- tasks ------------------------------------------------------------------------------------------------------
    async def ask(self, command: Command, done: Callable[[Command | str], None]) -> None:
        """Send the first answer of a name server to `done`. Name servers that were reachable last are asked first."""
        fault = "there is no name server"
        for address in sorted(self._registrations, key=self._unreachable.__contains__):
            assert self._client is not None
            try:
                reply = await self._client.call(address, command, CALL_TIMEOUT_MS)
            except UnreachableError as error:
                fault = str(error)
            else:
                done(reply)
                return
        done(fault)

    async def run(self, client: RemotingClient) -> None:
        self._client = client
        async with trio.open_nursery() as nursery:
            while True:
                self._addresses_changed = trio.Event()
                for address in self._registrations.keys() - self._scopes.keys():
                    self._scopes[address] = trio.CancelScope()
                    nursery.start_soon(self._run_scoped, client, address, self._scopes[address])
                await self._addresses_changed.wait()

    async def _run_scoped(self, client: RemotingClient, address: str, scope: trio.CancelScope) -> None:
        with scope:
            await self._register_loop(client, address)

    async def _register_loop(self, client: RemotingClient, address: str) -> None:
        while (registration := self._registrations.get(address)) is not None:
            self._changed[address] = trio.Event()
            while self._release():
                await trio.lowlevel.checkpoint()
            now_ms = self._clock.now_ms()
            advertised = self._advertised()
            step = registration.next(now_ms, advertised)
            if self._stopped and all(item.known_as is None for item in self._registrations.values()):
                self._left.set()
            if step is None:
                # A slave's alignment is checked at each interval, since it is no event of the machine.
                wait_ms = min(registration.deadline_ms(now_ms) - now_ms, self._config.broker_heartbeat_interval)
                with trio.move_on_after(max(1, wait_ms) / 1000):
                    await self._changed[address].wait()
            else:
                await self._perform_step(client, address, registration, step, advertised)
                if step is RegistrationStep.REGISTER:
                    with trio.move_on_after(min(MAX_PAUSE_S, PAUSE_FACTOR * self._encode_s)):
                        await self._urgent.wait()

    async def _perform_step(
        self,
        client: RemotingClient,
        address: str,
        registration: NameServerRegistration,
        step: RegistrationStep,
        advertised: AdvertisedState,
    ) -> None:
        try:
            match step:
                case RegistrationStep.REGISTER:
                    assert advertised.wanted is not None
                    await self._register(client, address, advertised.wanted)
                case RegistrationStep.UNREGISTER:
                    assert registration.known_as is not None
                    await self._unregister(client, address, registration.known_as)
                case RegistrationStep.HEARTBEAT:
                    await client.oneway(address, Command(RequestCode.BROKER_HEARTBEAT, self._names()))
        except UnreachableError as error:
            registration.failed(self._clock.now_ms(), advertised)
            if address not in self._unreachable:
                self._unreachable.add(address)
                self._tracer.event("name_server_unreachable", address=address, reason=str(error))
        else:
            self._unreachable.discard(address)
            known_as = registration.known_as
            registration.done(self._clock.now_ms(), step, advertised)
            if step is RegistrationStep.REGISTER and self._driver.replica.seeks_master:
                registration.repeat_soon(self._clock.now_ms())
            if registration.known_as != known_as:
                self._tracer.event(f"name_server_{step.value}ed", address=address, broker_id=advertised.wanted)

    def _names(self) -> dict[str, str]:
        config = self._config
        return {
            "brokerAddr": config.address,
            "brokerName": config.broker_name,
            "clusterName": config.broker_cluster_name,
        }

    async def _register(self, client: RemotingClient, address: str, broker_id: BrokerId) -> None:
        topics, self._encode_s = await _in_turns(self._topics.registration(), self._give_turn)
        body, digest = topics.body, topics.digest
        is_packed = self._config.compressed_register or len(body) > self._config.max_frame_bytes - HEADER_BYTES
        if is_packed:
            body, packed_s = await _in_turns(self._topics.packed_registration(), self._give_turn)
            self._encode_s += packed_s
            if self._topics.version.to_json() != topics.version:
                digest = ""  # it may be of other topics than those that are packed
        ext = {
            **self._names(),
            "brokerId": str(broker_id),
            "haServerAddr": self._config.ha_address,
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
            "compressed": str(is_packed).lower(),
            "enableActingMaster": "false",
            "topicsDigest": digest,
            "topicsVersion": ";".join(map(str, topics.version.values())),
        }
        reply = await client.call(address, Command(RequestCode.REGISTER_BROKER, ext, body), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise UnreachableError(f"{address} refused the registration with code {reply.code}: {reply.remark}")
        self._driver.master_discovered(reply.ext.get("masterAddr", ""), reply.ext.get("haServerAddr", ""))

    async def _unregister(self, client: RemotingClient, address: str, broker_id: BrokerId) -> None:
        ext = {**self._names(), "brokerId": str(broker_id)}
        await client.call(address, Command(RequestCode.UNREGISTER_BROKER, ext), CALL_TIMEOUT_MS)

    async def leave(self) -> None:
        """Unregister from every name server. One that does not answer within a second removes this broker by its
        time-out."""
        self._stopped = True
        self._wake_retries()
        self.changed()
        with trio.move_on_after(LEAVE_TIMEOUT_MS / 1000):
            await self._left.wait()


async def _in_turns(steps: Generator[None, None, T], give_turn: Callable[[], Awaitable[None]]) -> tuple[T, float]:
    """Run each step in its own turn of the event loop. Returns the result, and the time (s) of the steps."""
    taken_s = 0.0
    while True:
        began_at_s = perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found, taken_s + perf_counter() - began_at_s
        taken_s += perf_counter() - began_at_s
        await give_turn()


# --- the next request to one name server: register, unregister, or the lite heartbeat ---------------------------------
# A master registers with id 0, a slave with its controller id. A replica that is not aligned with its master is not
# registered, so that no client is routed to it (fenced).

RETRY_MS = 1000


class RegistrationStep(Enum):
    REGISTER = "register"
    UNREGISTER = "unregister"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class AdvertisedState:
    """State for the name servers: `wanted` None is fenced. `revision` rises with every change that they must get at
    once: role, epoch, topics."""

    wanted: BrokerId | None
    revision: int


class NameServerRegistration:
    """State of this broker on one name server. Times are monotonic milliseconds."""

    def __init__(self, heartbeat_interval_ms: int, period_ms: int) -> None:
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._period_ms = period_ms
        self._known_as: BrokerId | None = None
        self._revision = -1
        self._registered_at_ms = 0
        self._heartbeat_at_ms = 0
        self._not_before_ms = 0

    @property
    def known_as(self) -> BrokerId | None:
        """Id under which this name server lists the broker, as far as known."""
        return self._known_as

    def is_settled(self, revision: int) -> bool:
        """True if this name server has that revision, or could not be reached."""
        return self._revision >= revision

    def next(self, now_ms: int, advertised: AdvertisedState) -> RegistrationStep | None:
        if advertised.wanted is None:
            return None if self._known_as is None or now_ms < self._not_before_ms else RegistrationStep.UNREGISTER
        if now_ms < self._not_before_ms and advertised.revision == self._revision:
            return None
        if self._known_as != advertised.wanted or self._revision != advertised.revision:
            return RegistrationStep.REGISTER
        if now_ms >= self._registered_at_ms + self._period_ms:
            return RegistrationStep.REGISTER
        return RegistrationStep.HEARTBEAT if now_ms >= self._heartbeat_at_ms else None

    def deadline_ms(self, now_ms: int) -> int:
        """Time (ms) at which to call `next` again if nothing changes."""
        return max(self._not_before_ms, self._heartbeat_at_ms, now_ms + 1)

    def done(self, now_ms: int, step: RegistrationStep, advertised: AdvertisedState) -> None:
        self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms
        match step:
            case RegistrationStep.REGISTER:
                self._known_as, self._revision, self._registered_at_ms = advertised.wanted, advertised.revision, now_ms
            case RegistrationStep.UNREGISTER:
                self._known_as = None
            case RegistrationStep.HEARTBEAT:
                self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms

    def repeat_soon(self, now_ms: int) -> None:
        """Register again after RETRY_MS instead of a whole period."""
        self._registered_at_ms = now_ms + RETRY_MS - self._period_ms

    def failed(self, now_ms: int, advertised: AdvertisedState) -> None:
        """Retry after a pause, or at once after a change."""
        self._not_before_ms = now_ms + RETRY_MS
        self._revision = advertised.revision
        self._known_as = None if advertised.wanted is not None else self._known_as

    def lost(self) -> None:
        """Register again: the connection closed, and the name server may have restarted."""
        self._known_as = None
