"""Routes of a name server: brokers, their addresses and topics. Control plane; pure.

A broker is listed from its registration (103) until it unregisters (104) or its time-out is over. A broker that sends
lite heartbeats (904) has the time-out `lite_timeout_ms`, and may lose its connection. A broker that only registers has
the longer time-out, but is removed with the connection of its registration, as Apache's brokers expect. This is
RocketMQ's RouteInfoManager with three exceptions: a stale master is ignored (ruling 14), the name server suspects
itself if most lite heartbeats stop, and controllers report elections (`elected`) before the brokers do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from rmqha.model.offset import MASTER_ID
from rmqha.port import Tracer
from rmqha.wire.bodies import GroupData, QueueData, Registration, TopicTableVersion
from rmqha.wire.steps import RUN_COUNT, sorted_in_steps

SELF_SUSPICION_COUNT = 3
"""Lost brokers from which the name server may suspect itself; fewer may well die at once."""
READ, WRITE = 4, 2
"""Bits of a topic's permission."""


@dataclass(slots=True)
class _BrokerLiveInfo:
    """Liveness and registration of one address."""

    updated_at_ms: int
    timeout_ms: int
    version: TopicTableVersion
    ha_address: str
    session_id: int
    """Connection of the newest registration."""
    lite: bool = False


@dataclass(eq=False, slots=True)
class _TableUpdate:
    """Topic table of a registration that is applied in steps."""

    digest: str
    """Digest of the table; "" after another change of these topics."""


@dataclass(frozen=True, slots=True)
class _Displaced:
    """Broker that lost its id to another of the same state version, and its registration until then."""

    by: str
    broker_id: int
    live: _BrokerLiveInfo


@dataclass(slots=True)
class _Group:
    """Broker group by its brokerName. `addresses` and `live` have the same addresses, each under one id."""

    cluster_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    live: dict[str, _BrokerLiveInfo] = field(default_factory=dict)
    enable_acting_master: bool = False
    topics_from: tuple[str, TopicTableVersion] | None = None
    """Address and version of the topic table that was applied last."""
    topics: dict[str, QueueData] = field(default_factory=dict)
    """Queues of the group's topics."""
    topics_digest: str = ""
    """Digest of the topic table that was applied last, while no other change was made; "" if unknown."""
    update: _TableUpdate | None = None
    """Topic table that is being applied. If its connection ends before, it stays here as incomplete, so that the next
    table is read."""
    refused: dict[str, int] = field(default_factory=dict)
    """State versions of up to MAX_REFUSED_COUNT addresses whose claim of an occupied id was ignored; each claim is
    traced once."""
    displaced: dict[str, _Displaced] = field(default_factory=dict)
    """MAX_REFUSED_COUNT addresses that lost their id; one that shows that it lives gets it back when the other goes."""
    rivals: dict[str, int] = field(default_factory=dict)
    """Addresses, displaced or not, of brokers that were alive under one id at one time, and when that was seen last."""

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    def topics_changed(self) -> None:
        """Note that the topics differ from the broker's table, so that its next version is read."""
        self.topics_digest = ""
        if self.update is not None:
            self.update.digest = ""


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """Outcome of a registration. `refusal` is a sentence if the broker is not accepted."""

    master_address: str = ""
    ha_address: str = ""
    ignored: bool = False
    refusal: str = ""


MAX_ROUTE_COUNT = 200_000
MAX_BROKER_COUNT = 5_000
"""Bound on the brokers of all groups."""
MAX_ADDRESS_COUNT = 64
"""Bound on the brokers of one group."""
MAX_REFUSED_COUNT = 64
MAX_NAME_CHARS, MAX_REASON_CHARS = 255, 1024
"""Characters of what is remembered of a broker that is not accepted."""
CONTEST_MS = 40_000
"""Longer than brokers without heartbeats register apart (registerNameServerPeriod)."""
MAX_INTERNED_COUNT = 1024


class RouteTable:
    def __init__(
        self, tracer: Tracer, *, lite_timeout_ms: int, register_timeout_ms: int, max_route_count: int = MAX_ROUTE_COUNT
    ) -> None:
        self._tracer = tracer
        self.max_route_count = max_route_count
        self._route_count = 0
        """Topics of all groups, each counted once for each group that has it."""
        self.change_count = 0
        """Changes of groups' addresses since the start."""
        self._lite_timeout_ms = lite_timeout_ms
        self._register_timeout_ms = register_timeout_ms
        self._groups: dict[str, _Group] = {}
        self._topics: dict[str, tuple[str, ...]] = {}
        """Groups of each topic, sorted. Topics of one group share a tuple: a dict for each would need three quarters of
        a route's memory."""
        self._interned: dict[QueueData, QueueData] = {}
        """Interned values: most topics have one of a few."""
        self.removed_count = 0
        """Routes removed since the last `compact`."""
        self._removed_groups: deque[tuple[str, Iterator[str]]] = deque()
        """Large groups that were removed, and their topics that are still in the table."""
        self._elected: dict[str, int] = {}
        """Epoch of each group's newest election by the controllers; a broker that registers as master of an older one
        is ignored."""
        self._refused: dict[str, tuple[str, str, int]] = {}
        """Brokers that are not accepted, by address: name of the group, reason, time of the last attempt (ms)."""
        self._scanned_at_ms: int | None = None
        self._suspects_itself = False

    def set_timeouts(self, *, lite_timeout_ms: int, register_timeout_ms: int) -> None:
        """Set the time-outs. That of registrations applies to a broker from its next one."""
        self._lite_timeout_ms = lite_timeout_ms
        self._register_timeout_ms = register_timeout_ms

    # queries

    @property
    def suspects_itself(self) -> bool:
        """True if most heartbeats stopped at once: this name server is then more likely cut off than all brokers
        dead."""
        return self._suspects_itself

    @property
    def topic_names(self) -> list[str]:
        """Names of all topics, unsorted."""
        return list(self._topics)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def broker_count(self) -> int:
        return sum(len(group.addresses) for group in self._groups.values())

    def groups(self) -> list[GroupData]:
        """All groups, sorted by name."""
        return [self._group_data(name) for name in sorted(self._groups)]

    def topics_digest(self, broker_name: str) -> str:
        """Digest of the group's topics, "" if its next registration must be read."""
        group = self._groups.get(broker_name)
        return "" if group is None else group.topics_digest

    def route(self, topic: str) -> tuple[list[GroupData], dict[str, QueueData]] | None:
        """Groups that have the topic, sorted, and its queues on each; None if no group has it."""
        queues = {
            name: group.topics[topic]
            for name in self._topics.get(topic, ())
            if (group := self._groups.get(name)) is not None and topic in group.topics
        }
        return ([self._group_data(name) for name in queues], queues) if queues else None

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        """Addresses of a group by broker id; none if the group is unknown."""
        group = self._groups.get(broker_name)
        return {} if group is None else dict(group.addresses)

    def contested(self, now_ms: int) -> dict[str, list[str]]:
        """Addresses by group of brokers of one name and one id."""
        found = {}
        for name, group in self._groups.items():
            if rivals := sorted(address for address, at in group.rivals.items() if now_ms - at < CONTEST_MS):
                found[name] = rivals
        return found

    def refused(self, now_ms: int) -> dict[str, list[str]]:
        """Brokers that this name server does not accept: address → name of the group, reason. They try each second."""
        return {
            address: [broker_name, reason]
            for address, (broker_name, reason, at_ms) in sorted(self._refused.items())
            if now_ms - at_ms < CONTEST_MS
        }

    def _group_data(self, name: str) -> GroupData:
        group = self._groups[name]
        return GroupData(name, group.cluster_name, dict(group.addresses), group.enable_acting_master)

    # brokers

    def register(
        self, now_ms: int, session_id: int, request: Registration
    ) -> Generator[None, None, RegistrationOutcome]:
        """Register a broker, its topics in steps: they are complete after the last step."""
        group = self._groups.get(request.broker_name)
        address = request.address[:MAX_NAME_CHARS]
        if refusal := self._refusal(group, request):
            if len(self._refused) >= MAX_REFUSED_COUNT and address not in self._refused:
                del self._refused[next(iter(self._refused))]
            self._refused[address] = (request.broker_name[:MAX_NAME_CHARS], refusal[:MAX_REASON_CHARS], now_ms)
            return RegistrationOutcome(refusal=refusal)
        self._refused.pop(address, None)
        group = group or _Group(request.cluster_name)
        if self._is_stale(group, session_id, request):
            return RegistrationOutcome(*self._master_of(group, request.address), ignored=True)
        self._groups[request.broker_name] = group
        group.refused.pop(request.address, None)
        group.enable_acting_master = request.enable_acting_master
        self._note_displaced(group, now_ms, request)
        group.displaced.pop(request.address, None)
        moved = self._assign_id(group, request.broker_id, request.address)
        self._renew(group, now_ms, session_id, request)
        topics_changed = yield from self._apply_topics(group, request)
        if moved or topics_changed:
            self._trace_route(request.broker_name, group)
        return RegistrationOutcome(*self._master_of(group, request.address))

    def _refusal(self, group: _Group | None, request: Registration) -> str:
        if group is not None and group.cluster_name != request.cluster_name:
            return (
                f"broker group {request.broker_name} is registered in cluster {group.cluster_name}, "
                f"not {request.cluster_name}; a brokerName must be unique"
            )
        if group is None or not (request.broker_id in group.addresses or request.address in group.live):
            if self.broker_count >= MAX_BROKER_COUNT:
                return (
                    f"this name server knows {MAX_BROKER_COUNT} brokers and takes no more: "
                    "look who registers so many groups"
                )
            if group is not None and len(group.addresses) >= MAX_ADDRESS_COUNT:
                return (
                    f"broker group {request.broker_name} has {MAX_ADDRESS_COUNT} brokers and takes no more: "
                    "look who registers them"
                )
        if self._is_full(request):
            return (
                f"this name server keeps as many routes as maxRouteCount allows, {self.max_route_count}: "
                "raise it, or look who registers so many topics"
            )
        return ""

    def _is_full(self, request: Registration) -> bool:
        topics = request.topics or {}
        if self._route_count + len(topics) <= self.max_route_count:
            return False
        group = self._groups.get(request.broker_name)
        added = len(topics) if group is None else sum(topic not in group.topics for topic in topics)
        return self._route_count + added > self.max_route_count

    def _is_stale(self, group: _Group, session_id: int, request: Registration) -> bool:
        """True if the registration is stale (ruling 14): another address has the id under a higher state version (the
        epoch of the master), or this address registered again by a later connection."""
        holder = group.addresses.get(request.broker_id)
        held = group.live[holder].version.state_version if holder is not None else 0
        claimed = request.version.state_version if request.version is not None else 0
        if holder == request.address:
            # a broker may itself begin anew with lower epochs, under other controllers
            return claimed < held and session_id < group.live[holder].session_id
        if request.broker_id == MASTER_ID:
            held = max(held, self._elected.get(request.broker_name, 0))
        if claimed >= held:
            return False
        traced = group.refused.get(request.address)
        if traced != claimed and (traced is not None or len(group.refused) < MAX_REFUSED_COUNT):
            group.refused[request.address] = claimed
            self._tracer.event(
                "registration_ignored",
                broker_name=request.broker_name,
                broker_id=request.broker_id,
                address=request.address,
                state_version=claimed,
                holder=holder,
                holder_state_version=held,
            )
        return True

    def elected(self, broker_name: str, address: str, epoch: int) -> None:
        """Apply an election: `address` is master of `epoch`; "" if the group has no master.

        The old master's route is removed, and the new master's is set if it is registered as a slave. A group without a
        successor keeps its route, since clients that reach the old master may go on (ruling 5). Controllers never lower
        an epoch: a lower one belongs to other controllers, of a group that was created anew. It changes no route, but
        ends the bound on the epochs of masters."""
        known = self._elected.get(broker_name, 0)
        if not address or epoch == known:
            return
        self._elected[broker_name] = epoch
        if epoch < known:
            self._tracer.event("epochs_begin_anew", broker_name=broker_name, epoch=epoch, known_epoch=known)
            return
        group = self._groups.get(broker_name)
        if group is None or group.master == address:
            return
        old = group.master
        if old is not None:
            if group.live[old].version.state_version >= epoch:
                return  # the broker itself was faster
            del group.live[old], group.addresses[MASTER_ID]
            group.displaced.pop(old, None)
        if address in group.live:
            group.addresses = {key: value for key, value in group.addresses.items() if value != address}
            group.addresses[MASTER_ID] = address
            live = group.live[address]
            live.version = live.version._replace(state_version=max(epoch, live.version.state_version))
        if not group.addresses:
            self._remove_group(broker_name, group)
        self._trace_route(broker_name, group)

    def _master_of(self, group: _Group, address: str) -> tuple[str, str]:
        """Addresses (client, HA) of the master for a slave; empty for the master itself and without a master."""
        master = group.master
        return (master, group.live[master].ha_address) if master is not None and master != address else ("", "")

    def _note_displaced(self, group: _Group, now_ms: int, request: Registration) -> None:
        holder = group.addresses.get(request.broker_id)
        if holder is None or holder == request.address or request.version is None:
            return
        if group.live[holder].version.state_version == request.version.state_version:
            self._note_life(group, now_ms, request.address)
            if len(group.displaced) >= MAX_REFUSED_COUNT:
                group.displaced.clear()
            group.displaced[holder] = _Displaced(request.address, request.broker_id, group.live[holder])

    def _note_life(self, group: _Group, now_ms: int, address: str, *, lite: bool = False) -> None:
        """A sign of life of a broker that was displaced: it has not moved to the other's address."""
        if (displaced := group.displaced.get(address)) is not None:
            displaced.live.updated_at_ms = now_ms
            displaced.live.lite = displaced.live.lite or lite
            if len(group.rivals) >= MAX_REFUSED_COUNT:
                group.rivals.clear()
            group.rivals |= {address: now_ms, displaced.by: now_ms}

    def _part_rivals(self, group: _Group, address: str) -> None:
        """The broker is gone, and nobody's rival."""
        group.displaced = {key: value for key, value in group.displaced.items() if address not in (key, value.by)}
        if group.rivals.pop(address, None) is not None and len(group.rivals) < 2:
            group.rivals.clear()

    def _assign_id(self, group: _Group, broker_id: int, address: str) -> bool:
        """Put `address` under `broker_id` alone. True if that changes anything."""
        if group.addresses.get(broker_id) == address:
            return False
        displaced = group.addresses.get(broker_id)
        group.addresses = {key: value for key, value in group.addresses.items() if value != address}
        group.addresses[broker_id] = address
        if displaced is not None:
            del group.live[displaced]
        return True

    def _renew(self, group: _Group, now_ms: int, session_id: int, request: Registration) -> None:
        known = group.live.get(request.address)
        lite = known is not None and known.lite
        version = request.version or (known.version if known is not None else TopicTableVersion())
        limit = request.timeout_ms or self._register_timeout_ms
        group.live[request.address] = _BrokerLiveInfo(now_ms, limit, version, request.ha_address, session_id, lite)

    def _apply_topics(self, group: _Group, request: Registration) -> Generator[None, None, bool]:
        """Apply, in steps, the topics of the master, or of the lowest id without a master. True if a route changed.

        Topics are added and changed only: a registration may have a part of the table (RocketMQ's incremental form)."""
        if request.version is None or request.broker_id != min(group.addresses):
            return False
        source = (request.address, request.version)
        if request.digest and request.digest == group.topics_digest:
            group.topics_from = source
            return False
        if not request.topics:
            return False
        if group.topics_from == source:
            return False
        is_whole = group.update is None
        group.topics_from, group.topics_digest = None, ""
        update = group.update = _TableUpdate(request.digest)
        changed = False
        topics = iter(request.topics.items())
        while some := list(islice(topics, RUN_COUNT)):
            changed = self._apply_some(request.broker_name, group, some) or changed
            if len(some) == RUN_COUNT:
                yield
                if group.update is not update:
                    return changed  # a newer table took its place, or the group is gone
        group.update = None
        if is_whole:
            group.topics_from, group.topics_digest = source, update.digest
        return changed

    def _apply_some(self, name: str, group: _Group, topics: list[tuple[str, QueueData]]) -> bool:
        changed = False
        alone = (name,)
        for topic, data in topics:
            if group.topics.get(topic) == data:
                continue
            if topic not in group.topics:
                self._route_count += 1
                others = self._topics.get(topic, ())
                if name not in others:  # else it has come back
                    self._topics[topic] = tuple(sorted((*others, name))) if others else alone
            group.topics[topic] = self._intern(data)
            changed = True
        return changed

    def _intern(self, data: QueueData) -> QueueData:
        if len(self._interned) >= MAX_INTERNED_COUNT:
            self._interned.clear()
        return self._interned.setdefault(data, data)

    def heartbeat(self, now_ms: int, broker_name: str, address: str) -> bool:
        """Take a lite heartbeat. False if the broker is not registered and must register."""
        group = self._groups.get(broker_name)
        live = group.live.get(address) if group is not None else None
        if live is None:
            if group is not None:
                self._note_life(group, now_ms, address, lite=True)
            return False
        live.updated_at_ms = now_ms
        live.lite = True
        return True

    def table_version(self, now_ms: int, broker_name: str, address: str) -> TopicTableVersion | None:
        """Version of the topic table that the broker registered last; None if there is none or it is not applied
        completely. Counts as a sign of life."""
        group = self._groups.get(broker_name)
        live = group.live.get(address) if group is not None else None
        if group is None or live is None:
            return None
        live.updated_at_ms = now_ms
        return None if group.update is not None else live.version

    def unregister(self, broker_name: str, address: str) -> bool:
        """Remove a broker; False if it was not registered."""
        group = self._groups.get(broker_name)
        if group is None or address not in group.live:
            if group is not None:
                self._part_rivals(group, address)
            return False
        self._remove(broker_name, group, address)
        return True

    def session_closed(self, session_id: int) -> None:
        """Remove the brokers that registered by this connection and send no lite heartbeats."""
        for broker_name, group, address, live in list(self._entries()):
            if live.session_id == session_id and not live.lite:
                self._tracer.event("broker_disconnected", broker_name=broker_name, address=address)
                self._remove(broker_name, group, address)
        for group in self._groups.values():
            for address, displaced in list(group.displaced.items()):
                if displaced.live.session_id == session_id and not displaced.live.lite:
                    self._part_rivals(group, address)

    def _remove(self, broker_name: str, group: _Group, address: str) -> None:
        del group.live[address]
        rival = self._living_rival(broker_name, group, address)
        self._part_rivals(group, address)
        group.addresses = {key: value for key, value in group.addresses.items() if value != address}
        if rival is not None:
            heir, displaced = rival
            group.addresses[displaced.broker_id], group.live[heir] = heir, displaced.live
            group.topics_from = None
        if not group.addresses:
            self._remove_group(broker_name, group)
        self._trace_route(broker_name, group)

    def _living_rival(self, broker_name: str, group: _Group, address: str) -> tuple[str, _Displaced] | None:
        """Broker that this one displaced and that lives, the one last heard of: it registers again at its next period
        only, and clients would have no route until then. One that has died since is removed by its time-out."""
        elected = self._elected.get(broker_name, 0)
        found = [
            (heir, displaced)
            for heir, displaced in group.displaced.items()
            if displaced.by == address and heir in group.rivals and heir not in group.live
            if group.addresses.get(displaced.broker_id, address) == address
            if displaced.broker_id != MASTER_ID or displaced.live.version.state_version >= elected
        ]
        return max(found, key=lambda item: item[1].live.updated_at_ms, default=None)

    def _trace_route(self, broker_name: str, group: _Group) -> None:
        addresses = {str(key): group.addresses[key] for key in sorted(group.addresses)}
        self.change_count += 1
        self._tracer.event("route_changed", broker_name=broker_name, addresses=addresses)

    # topics

    def register_topic(self, topic: str, queues: Mapping[str, QueueData]) -> str:
        """Add a topic's queues to some groups, until they register a changed table. Returns the reason of a refusal,
        else ""."""
        unknown = [name for name in queues if name not in self._groups]
        if unknown:
            return f"broker group {unknown[0]} is not registered: nothing is changed"
        added = sum(topic not in self._groups[name].topics for name in queues)
        if self._route_count + added > self.max_route_count:
            return f"this name server keeps as many routes as maxRouteCount allows, {self.max_route_count}"
        for name, data in queues.items():
            group = self._groups[name]
            if self._apply_some(name, group, [(topic, data)]):
                group.topics_changed()
        return ""

    def topics_flagged(self, set_flags: int, unset_flags: int = 0) -> Generator[None, None, list[str]]:
        """List, in steps and sorted, the topics with all system flags of the first and none of the second argument, by
        the first group of each topic."""
        found = []
        for place, (topic, names) in enumerate(list(self._topics.items())):
            group = self._groups.get(names[0])
            data = group.topics.get(topic) if group is not None else None
            if data is not None and data.topic_sys_flag & (set_flags | unset_flags) == set_flags:
                found.append(topic)
            if place % RUN_COUNT == RUN_COUNT - 1:
                yield
        return (yield from sorted_in_steps(found))

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Remove a topic, from the groups of one cluster if one is given. A broker that still has it restores it with
        its next changed table."""
        left = []
        for broker_name in self._topics.get(topic, ()):
            group = self._groups.get(broker_name)
            if group is None or topic not in group.topics:
                continue  # what is left of a group that is gone
            if cluster_name is None or group.cluster_name == cluster_name:
                del group.topics[topic]
                self._route_count -= 1
                group.topics_changed()
            else:
                left.append(broker_name)
        self._set_groups(topic, tuple(left))

    def _set_groups(self, topic: str, broker_names: tuple[str, ...]) -> None:
        if broker_names:
            self._topics[topic] = broker_names
        else:
            self._topics.pop(topic, None)

    def set_write_permission(self, broker_name: str, allowed: bool) -> Generator[None, None, int]:
        """Set, in steps, the write permission of all topics of a group, until it registers a changed table or another
        master. Returns the number of topics."""
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        topics = list(group.topics)
        if topics:
            group.topics_changed()
        for place, topic in enumerate(topics):
            data = group.topics.get(topic)
            if data is not None:
                perm = READ | WRITE if allowed else data.perm & ~WRITE
                group.topics[topic] = self._intern(data._replace(perm=perm))
            if place % RUN_COUNT == RUN_COUNT - 1:
                yield
        return len(topics)

    def topics_of_cluster(self, cluster_name: str) -> Generator[None, None, list[str]]:
        """List the cluster's topics in steps, sorted."""
        found: dict[str, None] = {}
        for group in [group for group in self._groups.values() if group.cluster_name == cluster_name]:
            found |= dict.fromkeys(group.topics)
            yield
        return (yield from sorted_in_steps(found))

    def _remove_group(self, broker_name: str, group: _Group) -> None:
        """Remove a group and its queues; the topics of a large one are removed by `drop_removed_topics`."""
        del self._groups[broker_name]
        self._route_count -= len(group.topics)
        self.removed_count += len(group.topics)
        topics, group.topics = group.topics, {}
        group.update, group.topics_digest = None, ""
        if len(topics) <= RUN_COUNT:
            self._drop(broker_name, topics)
        else:
            self._removed_groups.append((broker_name, iter(topics)))

    def drop_removed_topics(self) -> bool:
        """Drop RUN_COUNT topics of removed groups; True if more are left."""
        if self._removed_groups:
            broker_name, topics = self._removed_groups[0]
            some = list(islice(topics, RUN_COUNT))
            self._drop(broker_name, some)
            if len(some) < RUN_COUNT:
                self._removed_groups.popleft()
        return bool(self._removed_groups)

    def _drop(self, broker_name: str, topics: Iterable[str]) -> None:
        group = self._groups.get(broker_name)
        for topic in topics:
            if group is None or topic not in group.topics:  # else it has come back
                self._set_groups(topic, tuple(name for name in self._topics.get(topic, ()) if name != broker_name))

    def compact(self) -> None:
        """Free the memory of removed routes: a dict that shrinks keeps its size."""
        self.removed_count = 0
        self._topics = dict(self._topics)
        self._interned.clear()

    # time-outs

    def scan(self, now_ms: int) -> None:
        """Remove brokers whose time-out is over. Call it several times per `lite_timeout_ms`."""
        self._exclude_pause(now_ms)
        self._update_self_suspicion(now_ms)
        for broker_name, group, address, live in list(self._entries()):
            limit = live.timeout_ms
            if live.lite and not self._suspects_itself:
                limit = self._lite_timeout_ms
            if now_ms - live.updated_at_ms >= limit:
                self._tracer.event("broker_expired", broker_name=broker_name, address=address, silent_limit_ms=limit)
                self._remove(broker_name, group, address)

    def _exclude_pause(self, now_ms: int) -> None:
        """Exclude a pause of this process from all times: heartbeats of that time have not been read yet."""
        before, self._scanned_at_ms = self._scanned_at_ms, now_ms
        if before is None or now_ms - before <= self._lite_timeout_ms // 2:
            return
        self._tracer.event("name_server_paused", paused_ms=now_ms - before)
        for _, _, _, live in self._entries():
            live.updated_at_ms = min(now_ms, live.updated_at_ms + now_ms - before)

    def _update_self_suspicion(self, now_ms: int) -> None:
        """Suspect this name server if many brokers fall silent at once. If their heartbeats stop together, they stop
        within one interval. So a silence of three fifths of the time-out counts as lost: else the first broker would be
        removed before the last is missed."""
        silences = [now_ms - live.updated_at_ms for _, _, _, live in self._entries() if live.lite]
        lost_count = sum(1 for silence in silences if 5 * silence >= 3 * self._lite_timeout_ms)
        suspects = lost_count >= SELF_SUSPICION_COUNT and 2 * lost_count > len(silences)
        if suspects != self._suspects_itself:
            self._suspects_itself = suspects
            name = "name_server_suspects_itself" if suspects else "name_server_trusts_itself"
            self._tracer.event(name, lost_count=lost_count, broker_count=len(silences))

    def _entries(self) -> Iterator[tuple[str, _Group, str, _BrokerLiveInfo]]:
        for broker_name, group in self._groups.items():
            for address, live in group.live.items():
                yield broker_name, group, address, live
