"""Requests 400 to 402: message request modes (pull or pop), and assignment of queues to clients by the broker.

Clients with setClientRebalance(false) ask one broker for the queues of all brokers, which it knows from a name server's
route. Modes are stored in config/messageRequestMode.json, in RocketMQ's form. Data plane, no trio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, ServingState
from rmqha.broker.tables import config_table
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.config_table import mapping
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.table_file import ROWS, PendingTableWrite, TableFile
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


_Rows = dict[str, Mapping[str, Mode]]
"""Modes by topic and group. The modes of a topic are not changed, but replaced."""


class PendingModeWrite(NamedTuple):
    """Content that the file must have; `ModeTable.write` takes it."""

    data: PendingTableWrite
    rows: _Rows


class ModeTable:
    """Modes by topic and group; a slave takes all modes of its master if they differ. A change takes effect at once and
    reaches the disk with others. Raises StoreError for an unreadable file."""

    def __init__(self, disk: Disk) -> None:
        found = config_table.load(disk, _TABLE, parse_modes, (_MAP,))
        self._rows = _rows_of(found.table)
        self._count = len(found.table)
        self.findings, self._unknown = found.findings, found.unknown
        self.file = TableFile(disk, _TABLE, (_MAP,), _row_to_json)
        self.file.holds(_MAP, self._rows)
        self._texts: dict[str, tuple[Mapping[str, Mode], bytes]] = {}
        """Encoded modes of each topic for the digest, with what they were made from; used only by `_digest_of`."""
        self._writing = Lock()
        self._waits: deque[tuple[int, Callable[[str], None]]] = deque()
        """Number of the change that each waits for."""
        self.digest = self._digest_of(self._rows)
        """Hexadecimal digest of what is on the disk, equal for equal modes."""

    def get(self, topic: str, group: str) -> Mode | None:
        return self._rows.get(topic, {}).get(group)

    @property
    def all(self) -> Mapping[tuple[str, str], Mode]:
        return {(topic, group): mode for topic, row in self._rows.items() for group, mode in row.items()}

    def put(self, mode: Mode) -> bool:
        """Set a mode; False beyond the bound."""
        row = self._rows.get(mode.topic, {})
        if mode.group not in row:
            if self._count >= MAX_MODES:
                return False
            self._count += 1
        self._rows[mode.topic] = {**row, mode.group: mode}
        self.file.change(_MAP, {mode.topic: self._rows[mode.topic]})
        return True

    def replace(self, modes: Mapping[tuple[str, str], Mode]) -> None:
        """Use these modes from now on."""
        self._rows, self._count = _rows_of(modes), len(modes)
        self.file.replace(_MAP, self._rows)

    # --- file ---------------------------------------------------------------------------------------------------------
    def unsaved(self, *, in_flight: bool = False) -> PendingModeWrite | None:
        """Content that the file lacks, for `write`."""
        data = self.file.unsaved(lambda: {_MAP: ROWS, **self._unknown}, in_flight=in_flight)
        return None if data is None else PendingModeWrite(data, dict(self._rows))

    def write(self, pending: PendingModeWrite) -> None:
        """Write the file, durable on return, in any thread. Raises OSError."""
        self.file.write(pending.data)
        with self._writing:
            digest = self._digest_of(pending.rows)
            if pending.data.changed_count == self.file.saved_count:
                self.digest = digest

    def wait(self, done: Callable[[str], None]) -> None:
        """Call `done("")` when the disk has the present modes, or `done(reason)` after a failed write."""
        self._waits.append((self.file.changed_count, done))

    def saved(self) -> None:
        """Take note that a write has ended."""
        while self._waits and (self.file.trouble or self._waits[0][0] <= self.file.saved_count):
            self._waits.popleft()[1](self.file.trouble)

    def to_json(self) -> dict[str, Any]:
        return {_MAP: {topic: _row_to_json(row) for topic, row in sorted(self._rows.items())}}

    def _digest_of(self, rows: _Rows) -> str:
        """Digest of `to_json`, of which only changed topics are encoded anew."""
        texts, found = self._texts, blake2b(b'{"%b":{' % _MAP.encode(), digest_size=16)
        self._texts = {}
        for place, topic in enumerate(sorted(rows)):
            row, known = rows[topic], texts.get(topic)
            if known is None or known[0] is not row:
                known = row, lenient_json.dumps({topic: _row_to_json(row)})[1:-1]
            self._texts[topic] = known
            found.update(b"," + known[1] if place else known[1])
        found.update(b"}}")
        return found.hexdigest()


def _rows_of(modes: Mapping[tuple[str, str], Mode]) -> _Rows:
    rows: dict[str, dict[str, Mode]] = {}
    for (topic, group), mode in modes.items():
        rows.setdefault(topic, {})[group] = mode
    return dict(rows)


def _row_to_json(row: Mapping[str, Mode]) -> dict[str, Any]:
    return {group: mode.to_json() for group, mode in sorted(row.items())}


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
        save_soon: Callable[[], None],
    ) -> None:
        self._save_soon = save_soon
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

    def _set(self, channel: Channel, command: Command) -> None:
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
        if not self._table.put(mode):
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"this broker keeps {MAX_MODES} modes at most")
        reply = command.reply()

        def written(trouble: str) -> None:
            if trouble:
                reply.code, reply.remark = ResponseCode.SYSTEM_ERROR, f"the mode is not on the disk yet: {trouble}"
            else:
                self._changed()
            if not command.is_oneway:
                channel.send(reply)

        self._table.wait(written)
        self._save_soon()

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
