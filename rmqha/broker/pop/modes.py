"""Requests 400 to 402: message request modes (pull or pop), and assignment of queues to clients by the broker.

Clients with setClientRebalance(false) ask one broker for the queues of all brokers, which it knows from a name server's
route. Modes are stored in config/messageRequestMode.json, in RocketMQ's form. Data plane, no trio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, ServingState
from rmqha.broker.tables import config_table
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.config_table import mapping
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import PERM_READ, RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import RETRY_PREFIX
from rmqha.port import Clock, Disk
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

PULL, POP = "PULL", "POP"
MAX_MODES = 100_000
"""Bound on pairs of topic and group."""
MAX_ROUTES, MAX_ROUTE_QUEUES = 10_000, 200_000
"""Bounds on the routes that are remembered, and on their queues."""
ROUTE_MS = 2000
"""Age (ms) after which a route is requested again."""
_TABLE = "messageRequestMode"
_MAP = "messageRequestModeMap"
_INT_MAX = 2**31 - 1


class Mode(NamedTuple):
    topic: str
    group: str
    mode: str = PULL
    share_count: int = 0
    """Other clients that share the queues of a client; 0 or less: each client pops from all queues."""

    def to_json(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share_count,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Any) -> Mode:
        """Mode of a JSON value. Raises ValueError if malformed."""
        given = mapping(value, "a mode")
        mode, share_count = given.get("mode", PULL), given.get("popShareQueueNum", 0)
        if mode not in (PULL, POP) or type(share_count) is not int or abs(share_count) > _INT_MAX:
            raise ValueError("mode must be PULL or POP, popShareQueueNum a whole number")
        topic, group = given.get("topic"), given.get("consumerGroup")
        if not isinstance(topic, str) or not isinstance(group, str) or not topic or not group:
            raise ValueError("a mode names its topic and its consumerGroup")
        return cls(topic, group, mode, share_count)


class AssignedQueue(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


class ModeTable:
    """Modes by topic and group; a slave takes all modes of its master if they differ. Raises StoreError for an
    unreadable file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        found = config_table.load(disk, _TABLE, parse_modes, (_MAP,))
        self._modes: dict[tuple[str, str], Mode] = found.table
        self.findings, self._unknown = found.findings, found.unknown
        self.digest = self._digest()

    def get(self, topic: str, group: str) -> Mode | None:
        return self._modes.get((topic, group))

    @property
    def all(self) -> Mapping[tuple[str, str], Mode]:
        return self._modes

    def put(self, mode: Mode) -> bool:
        """Store a mode, durable on return; False beyond the bound. Raises OSError."""
        place = mode.topic, mode.group
        if place not in self._modes and len(self._modes) >= MAX_MODES:
            return False
        modes = {**self._modes, place: mode}
        self.write(modes)
        self.hold(modes)
        return True

    def write(self, modes: Mapping[tuple[str, str], Mode]) -> None:
        """Write the file, durable on return, in any thread. Raises OSError."""
        config_table.save(self._disk, _TABLE, {**_to_json(modes), **self._unknown})

    def hold(self, modes: Mapping[tuple[str, str], Mode]) -> None:
        """Use these modes, which have been written, from now on."""
        self._modes = dict(modes)
        self.digest = self._digest()

    def to_json(self) -> dict[str, Any]:
        return _to_json(self._modes)

    def _digest(self) -> str:
        """Hexadecimal digest, equal for equal modes."""
        return blake2b(lenient_json.dumps(self.to_json()), digest_size=16).hexdigest()


def _to_json(modes: Mapping[tuple[str, str], Mode]) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for (topic, group), mode in sorted(modes.items()):
        rows.setdefault(topic, {})[group] = mode.to_json()
    return {_MAP: rows}


def parse_modes(body: Mapping[str, Any]) -> dict[tuple[str, str], Mode]:
    """Modes of messageRequestMode.json or of a body of request 402. Raises ValueError."""
    found = {}
    for topic, groups in mapping(body.get(_MAP), _MAP).items():
        for group, value in mapping(groups, str(topic)).items():
            found[str(topic), str(group)] = Mode.from_json(value)
    if len(found) > MAX_MODES:
        raise ValueError(f"{len(found)} modes, {MAX_MODES} at most")
    return found


# --- assignment of queues ---------------------------------------------------------------------------------------------
def averagely(client: int, count: int, queues: Sequence[AssignedQueue]) -> list[AssignedQueue]:
    """Consecutive queues for client number `client` of `count`; the first clients get one more."""
    share, more = divmod(len(queues), count)
    start = client * share + min(client, more)
    return list(queues[start : start + share + (client < more)])


def by_circle(client: int, count: int, queues: Sequence[AssignedQueue]) -> list[AssignedQueue]:
    return list(queues[client::count])


STRATEGIES: Mapping[str, Callable[[int, int, Sequence[AssignedQueue]], list[AssignedQueue]]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
}


def assigned(
    mode: Mode, strategy: str, client_id: str, client_ids: Sequence[str], queues: Sequence[AssignedQueue]
) -> list[AssignedQueue]:
    """Queues for a client of a group. Both lists are sorted."""
    if client_id not in client_ids or not queues:
        return []
    divide, client, count = STRATEGIES[strategy], client_ids.index(client_id), len(client_ids)
    if mode.mode == PULL:
        return divide(client, count, queues)
    if mode.share_count <= 0 or mode.share_count >= count - 1:
        return list(dict.fromkeys(queue._replace(queue_id=-1) for queue in queues))
    if count > len(queues):
        return [queues[client % len(queues)]]
    shared = range(client, client + mode.share_count + 1)
    return list(dict.fromkeys(queue for item in shared for queue in divide(item % count, count, queues)))


class ModeRequests:
    """Processor of the requests that set and read message request modes. `ask` sends a request to a name server and
    gives the answer, or the reason of a failure, to its argument. `changed` sends new modes to slaves."""

    def __init__(
        self,
        table: ModeTable,
        serving: ServingState,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        clock: Clock,
        ask: Callable[[Command, Callable[[Command | str], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._table = table
        self._serving = serving
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._clock = clock
        self._ask = ask
        self._changed = changed
        self._routes: dict[str, tuple[int, list[AssignedQueue]]] = {}
        self._route_queue_count = 0
        """Queues of all routes that were remembered since the last time that they were forgotten."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self._query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._all,
        }

    def _set(self, channel: Channel, command: Command) -> Command:
        try:
            mode = Mode.from_json(lenient_json.loads(command.body, is_strict=True))
        except (ValueError, RemoteProtocolError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the mode cannot be read: {error}") from None
        if mode.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.get(mode.topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if self._groups.get_or_create(mode.group, command.principal) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        try:
            if not self._table.put(mode):
                raise RequestError(ResponseCode.SYSTEM_BUSY, f"this broker keeps {MAX_MODES} modes at most")
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the mode cannot be written: {error.strerror}") from None
        self._changed()
        return command.reply()

    def _all(self, channel: Channel, command: Command) -> Command:
        return command.reply(body=lenient_json.dumps(self._table.to_json()))

    def _query(self, channel: Channel, command: Command) -> Command | None:
        given = lenient_json.loads(command.body, is_strict=True) if command.body else None
        if not isinstance(given, dict):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the request's body is none")
        topic, group = str(given.get("topic") or ""), str(given.get("consumerGroup") or "")
        known = self._routes.get(topic)
        if known is not None and known[0] > self._clock.now_ms():
            return self._answer(command, given, topic, group, known[1])

        command.body = bytes(command.body)  # the socket's buffer is used again

        def routed(found: Command | str) -> None:
            try:
                if was_refused(channel, command):
                    return
                channel.send(self._answer(command, given, topic, group, self._queues_of(topic, found)))
            except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
                channel.fail(error, [command])

        route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        self._ask(route, routed)
        return None

    def knows_route(self, topic: str, queues: list[AssignedQueue]) -> None:
        """Remember the queues in a name server's route of the topic."""
        self._route_queue_count += len(queues)
        if len(self._routes) >= MAX_ROUTES or self._route_queue_count > MAX_ROUTE_QUEUES:
            self._routes.clear()
            self._route_queue_count = len(queues)
        self._routes[topic] = self._clock.now_ms() + ROUTE_MS, queues

    def _queues_of(self, topic: str, found: Command | str) -> list[AssignedQueue]:
        """Queues of all brokers; none without an answer of a name server."""
        if isinstance(found, str):
            return []
        queues = _read_route(topic, found.body) if found.code == ResponseCode.SUCCESS else []
        self.knows_route(topic, queues)
        return queues

    def _answer(
        self, command: Command, given: Mapping[str, Any], topic: str, group: str, queues: list[AssignedQueue]
    ) -> Command:
        mode = self._table.get(topic, group) or Mode(topic, group)
        if given.get("messageModel") == "BROADCASTING":
            return _assignments(command, mode, queues)
        members = self._clients.consumer_group(group)
        strategy = str(given.get("strategyName") or "")
        if not queues or members is None or strategy not in STRATEGIES:
            return command.reply(body=lenient_json.dumps({}))  # the client leaves what it has
        client_ids = members.client_ids()
        found = assigned(mode, strategy, str(given.get("clientId") or ""), client_ids, queues)
        return _assignments(command, mode, found)


def _assignments(command: Command, mode: Mode, queues: Sequence[AssignedQueue]) -> Command:
    rows = [{"messageQueue": queue.to_json(), "mode": mode.mode} for queue in queues]
    return command.reply(body=lenient_json.dumps({"messageQueueAssignments": rows}))


def _read_route(topic: str, body: bytes | bytearray | memoryview) -> list[AssignedQueue]:
    """Readable queues of a route, sorted; none of a malformed one."""
    try:
        route = lenient_json.loads(body)
        rows = route.get("queueDatas") if isinstance(route, dict) else None
        queues = [
            AssignedQueue(topic, str(row["brokerName"]), queue_id)
            for row in rows or ()
            if int(row.get("perm", 0)) & PERM_READ
            for queue_id in range(min(int(row["readQueueNums"]), 1 << 16))
        ]
    except (RemoteProtocolError, ValueError, TypeError, KeyError, AttributeError):
        return []
    return sorted(queues)
