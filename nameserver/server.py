"""The name server: request codes over the route table. Shell.

Each request is answered at once from memory; the only task beside the sessions scans for silent brokers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path

import trio

from nameserver.config import NamesrvConfig
from nameserver.fifo_lock import FifoLock
from nameserver.follower import ElectionFollower
from nameserver.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from nameserver.metrics import collect
from nameserver.route_info import RouteTable
from rmqha import __version__
from rmqha.broker.replication.controller_route import parse_addresses
from rmqha.broker.services.live_config import LiveConfig
from rmqha.host.access import security, security_watch
from rmqha.host.clock import HostClock
from rmqha.host.disk import HostDisk, make_directories
from rmqha.host.http.endpoint import HttpEndpoint
from rmqha.host.log_files import LogFiles
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.network import FirstRemotePeer
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.code import SEE_FAQ, RequestCode, ResponseCode
from rmqha.model.error import ConfigError, RemoteProtocolError, UsageError
from rmqha.model.identity import is_loopback, join_address
from rmqha.model.printable import name_refusal
from rmqha.model.quota import Quotas
from rmqha.model.readiness import Readiness
from rmqha.model.series import Collecting
from rmqha.port import Clock, Pause
from rmqha.wire.auth.shown import events_shown, shown_in_steps, topics_shown
from rmqha.wire.bodies import encode_cluster_info, encode_member_group, encode_topic_route, required
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command
from rmqha.wire.config_answer import ConfigAnswer
from rmqha.wire.lenient_json import Entries, Items, dumps, dumps_in_steps
from rmqha.wire.registration import SMALL_BYTES, is_known, parse_data_version, parse_queues, parse_registration
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.steps import sorted_in_steps

Work = Generator[Pause | None, None, Command]
"""A costly request in steps, between which other connections are served; it returns the answer."""
MAX_SAVE_PAUSE_S = 0.2
MANY_ROUTES_COUNT = 10_000
OVERRIDES_FILE = "config-overrides.properties"
UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's system flags."""
STANDARD_JSON_VERSION = 401
"""MQVersion ordinal of 4.9.4, the first whose clients read routes as strict JSON."""


class NameServer:
    """Service of a name server's sessions."""

    def __init__(
        self,
        config: NamesrvConfig,
        tracer: HostTracer,
        clock: Clock,
        kv_config: KvConfig,
        live: LiveConfig[NamesrvConfig] | None = None,
    ) -> None:
        """`live` None: keys that are changed at run time are lost when the process ends."""
        self.live = LiveConfig(None, config, tracer, OVERRIDES_FILE) if live is None else live
        self.live.add_listener(self._configure)
        config = self.live.current
        self._tracer = tracer
        self._clock = clock
        self._kv_config = kv_config
        self.routes = RouteTable(
            tracer,
            lite_timeout_ms=config.lite_heartbeat_timeout_millis,
            register_timeout_ms=config.register_broker_timeout_millis,
            max_route_count=config.max_route_count,
        )
        self._large_registrations = FifoLock()
        """Connections with large registrations: one is read at a time, since each takes tens of megabytes."""
        self.follower: ElectionFollower | None = None
        if config.controller_addr:
            controllers = parse_addresses(config.controller_addr, "controllerAddr")
            self.follower = ElectionFollower(controllers, self.routes, tracer)
        self.remoting = Statistics()
        self._config_answer = ConfigAnswer()
        self.quotas = Quotas(config.quotas)
        kv_config.max_count = config.max_kv_count
        self._far = FirstRemotePeer()
        self._loopback_traced = False
        self._handlers: dict[int, Callable[[Command], Command | Work]] = {
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self._flagged_topics, UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(self._flagged_topics, UNIT_SUB, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(self._flagged_topics, UNIT_SUB, UNIT),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.RMQHA_GET_HISTORY: self._history,
            RequestCode.RMQHA_GET_NAMESRV_STATE: self._state,
            RequestCode.RMQHA_GET_SECURITY_STATE: self._security_state,
            RequestCode.RMQHA_READ_LOG_FILE: LogFiles.of(config).answer,
        }

    @property
    def codes(self) -> frozenset[int]:
        """Request codes that are served."""
        return frozenset({RequestCode.REGISTER_BROKER, *self._handlers})

    def statistics(self) -> dict[str, int]:
        return {
            **self.remoting.as_dict(),
            **self._tracer.statistics(),
            "broker_count": self.routes.broker_count,
            "topic_count": self.routes.topic_count,
            "suspects_itself": int(self.routes.suspects_itself),
        }

    # HealthSource

    def readiness(self) -> Readiness:
        """Ready, also when most brokers are silent: there are no better routes."""
        suspicion = {"suspectsItself": self.routes.suspects_itself}
        return Readiness("namesrv", True, facts={"brokers": self.routes.broker_count, **suspicion})

    def collect(self) -> Collecting:
        address = join_address(self.live.current.listen_address, self.live.current.listen_port)
        index = None if self.follower is None else self.follower.index
        return collect(address, self.routes, index, self.remoting.as_dict())

    # remoting.Service

    def opened(self, session: Session) -> None:
        """Note a session from another host; only the first is recorded."""
        self._far.came(session.peer)

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            outcome = self._begin(session.id, command)
            if isinstance(outcome, Command):
                self._send(session, command, outcome)
            else:
                session.work(self._in_steps(session, command, outcome))

    def _in_steps(self, session: Session, command: Command, work: Work) -> Iterator[Pause | None]:
        self._send(session, command, (yield from _guarded(command, work)))

    def _send(self, session: Session, command: Command, reply: Command) -> None:
        if command.is_oneway:
            return
        if command.code in _PERSISTENT and reply.code == ResponseCode.SUCCESS:
            self._kv_config.wait(partial(_answer, session, reply))
        else:
            session.send(reply)

    def closed(self, session: Session) -> None:
        self._large_registrations.release(session.id)
        self.routes.session_closed(session.id)

    # requests

    def handle(self, session_id: int, request: Command) -> Command:
        """Answer to a request after all its steps; no peer's request raises an exception."""
        outcome = self._begin(session_id, request)
        if isinstance(outcome, Command):
            return outcome
        steps = _guarded(request, outcome)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                reply: Command = end.value
                return reply

    def _begin(self, session_id: int, request: Command) -> Command | Work:
        try:
            if fault := body_refusal(request):
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=fault)
            if request.code == RequestCode.REGISTER_BROKER:
                return self._register(session_id, request)
            handler = self._handlers.get(request.code)
            if handler is not None:
                return handler(request)
        except (RemoteProtocolError, OSError) as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
        )

    def _register(self, session_id: int, request: Command) -> Work:
        is_large = len(request.body) > SMALL_BYTES and not is_known(request, self.routes.topics_digest)
        try:
            if is_large and (turn := self._large_registrations.acquire(session_id, len(request.body))):
                yield turn
            registration = yield from parse_registration(request, self.routes.topics_digest)
            outcome = yield from self.routes.register(self._clock.now_ms(), session_id, registration)
        finally:
            if is_large:
                self._large_registrations.release(session_id)
        if outcome.refusal:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=outcome.refusal)
        ext = {"haServerAddr": outcome.ha_address, "masterAddr": outcome.master_address}
        order = self._kv_config.namespace(ORDER_TOPIC_NAMESPACE)
        reply = request.reply(ext=ext if outcome.master_address else None)
        return (yield from _with_table(reply, order)) if order else reply

    def _unregister(self, request: Command) -> Work:
        self.routes.unregister(required(request.ext, "brokerName"), required(request.ext, "brokerAddr"))
        while self.routes.drop_removed_topics():
            yield None
        return request.reply()

    def _heartbeat(self, request: Command) -> Command:
        ext = request.ext
        if self.routes.heartbeat(self._clock.now_ms(), required(ext, "brokerName"), required(ext, "brokerAddr")):
            return request.reply()
        return request.reply(ResponseCode.SYSTEM_ERROR, remark="this broker is not registered; send request 103")

    def _data_version(self, request: Command) -> Command:
        """Tell a broker if it must register because its topics have changed."""
        name, address = required(request.ext, "brokerName"), required(request.ext, "brokerAddr")
        asked = parse_data_version(bytes(request.body))
        held = self.routes.table_version(self._clock.now_ms(), name, address)
        ext = {"changed": str(held is None or held != asked).lower()}
        return request.reply(ext=ext, body=b"" if held is None else dumps(held.to_json()))

    def _member_group(self, request: Command) -> Command:
        name = required(request.ext, "brokerName")
        body = encode_member_group(request.ext.get("clusterName", ""), name, self.routes.addresses(name))
        return request.reply(body=body)

    def _register_topic(self, request: Command) -> Command:
        topic = required(request.ext, "topic")
        fault = name_refusal("topic", topic) or self.routes.register_topic(topic, parse_queues(bytes(request.body)))
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=fault) if fault else request.reply()

    def _flagged_topics(self, set_flags: int, unset_flags: int, request: Command) -> Work:
        topics = yield from self.routes.topics_flagged(set_flags, unset_flags)
        return (yield from _topic_list(request, topics))

    def _route(self, request: Command) -> Command:
        topic = required(request.ext, "topic")
        found = self.routes.route(topic)
        if found is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic}{SEE_FAQ}",
            )
        standard = (
            request.version >= STANDARD_JSON_VERSION or request.ext.get("acceptStandardJsonOnly", "").lower() == "true"
        )
        order = self._kv_config.get(ORDER_TOPIC_NAMESPACE, topic) if self.live.current.order_message_enable else None
        return request.reply(body=encode_topic_route(*found, order_topic_conf=order, standard_json=standard))

    def _cluster_info(self, request: Command) -> Work:
        return request.reply(body=(yield from encode_cluster_info(self.routes.groups())))

    def _topic_list(self, request: Command) -> Work:
        topics = yield from sorted_in_steps(self.routes.topic_names)
        return (yield from _topic_list(request, topics))

    def _put_kv(self, request: Command) -> Command:
        ext = request.ext
        self._kv_config.put(required(ext, "namespace"), required(ext, "key"), required(ext, "value"))
        return request.reply()

    def _get_kv(self, request: Command) -> Command:
        namespace, key = required(request.ext, "namespace"), required(request.ext, "key")
        value = self._kv_config.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.reply(ext={"value": value})

    def _delete_kv(self, request: Command) -> Command:
        self._kv_config.delete(required(request.ext, "namespace"), required(request.ext, "key"))
        return request.reply()

    def _kv_list(self, request: Command) -> Command | Work:
        namespace = required(request.ext, "namespace")
        settings = self._kv_config.namespace(namespace)
        if not settings:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return _with_table(request.reply(), settings)

    def _topics_of_cluster(self, request: Command) -> Work:
        topics = yield from self.routes.topics_of_cluster(required(request.ext, "cluster"))
        return (yield from _topic_list(request, topics))

    def _system_topics(self, request: Command) -> Command:
        """Topics of every cluster and group name, which all brokers have; any broker returns the others."""
        groups = self.routes.groups()
        names = {group.cluster_name for group in groups} | {group.broker_name for group in groups}
        addresses = [address for group in groups for _, address in sorted(group.addresses.items())]
        some = {"brokerAddr": addresses[0]} if addresses else {}
        return request.reply(body=dumps({**some, "topicList": sorted(names)}))

    def _wipe_write_permission(self, request: Command) -> Work:
        count = yield from self.routes.set_write_permission(required(request.ext, "brokerName"), False)
        return request.reply(ext={"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: Command) -> Work:
        count = yield from self.routes.set_write_permission(required(request.ext, "brokerName"), True)
        return request.reply(ext={"addTopicCount": str(count)})

    def _delete_topic(self, request: Command) -> Command:
        self.routes.delete_topic(required(request.ext, "topic"), request.ext.get("clusterName") or None)
        return request.reply()

    def _configure(self, config: NamesrvConfig) -> None:
        self.quotas.configure(config.quotas)
        self._kv_config.max_count = config.max_kv_count
        self.routes.max_route_count = config.max_route_count
        self.routes.set_timeouts(
            lite_timeout_ms=config.lite_heartbeat_timeout_millis,
            register_timeout_ms=config.register_broker_timeout_millis,
        )

    def _get_config(self, request: Command) -> Command:
        config = self.live.current
        ext, body = self._config_answer.of(config, self.live.overridden, request)
        return request.reply(ext=ext, body=body)

    def _update_config(self, request: Command) -> Command:
        """Apply live keys at once and store them beside kvConfigPath; a request with any other key changes nothing
        (ruling 25)."""
        try:
            self.live.update(str(request.body, "utf-8"), "request 318")
        except UnicodeDecodeError:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="the body of request 318 is not UTF-8 text")
        except ConfigError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.reply(ext={"kept": str(self.live.is_persistent).lower()})

    def _state(self, request: Command) -> Command:
        follower = self.follower
        state = NameServerState(
            release=__version__,
            follows=None if follower is None else follower.leader,
            event_index=None if follower is None else follower.index,
            address_problem=self.address_problem(),
            contested=self.routes.contested(self._clock.now_ms()) or None,
            refused=self.routes.refused(self._clock.now_ms()) or None,
            statistics=self.statistics(),
        )
        return request.reply(body=dumps(state.to_json()))

    def address_problem(self) -> str:
        """Sentence if remote clients get routes to a loopback address (ruling 23), else ""."""
        if not self._far.peer:
            return ""
        for group in self.routes.groups():
            for address in group.addresses.values():
                if is_loopback(address.rpartition(":")[0]):
                    return (
                        f"brokerIP1 of {group.broker_name}: clients elsewhere, as {self._far.peer}, are told {address} "
                        "and cannot reach it"
                    )
        return ""

    def check_addresses(self) -> None:
        """Trace that problem once; call periodically."""
        if not self._loopback_traced and (problem := self.address_problem()):
            self._loopback_traced = True
            self._tracer.event("tells_loopback", reason=problem)

    def _security_state(self, request: Command) -> Command:
        return request.reply(body=dumps(security_watch.view(security.ambient.get(), request.principal)))

    def _history(self, request: Command) -> Command:
        told = self._tracer.history_answer()
        return request.reply(body=dumps({**told, "events": events_shown(request.principal, told["events"])}))


_PERSISTENT = (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG)
"""Requests that are answered when their change is on the disk."""


def _guarded(request: Command, work: Work) -> Work:
    """Answer after all steps; an error of a step becomes an answer too."""
    try:
        return (yield from work)
    except (RemoteProtocolError, OSError) as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))


def _topic_list(request: Command, topics: list[str]) -> Work:
    shown = yield from shown_in_steps(topics_shown, request.principal, topics)
    return request.reply(body=(yield from dumps_in_steps({"topicList": Items(shown)})))


def _with_table(reply: Command, settings: Mapping[str, str]) -> Work:
    reply.body = yield from dumps_in_steps({"table": Entries(settings.items())})
    return reply


def _answer(session: Session, reply: Command, fault: str) -> None:
    if fault:
        reply.code, reply.remark = ResponseCode.SYSTEM_ERROR, fault
    session.send(reply)


def open_persistent(config: NamesrvConfig, tracer: HostTracer) -> tuple[KvConfig, LiveConfig[NamesrvConfig]]:
    """Open the settings and overrides that outlive the process. Raises UsageError if the directory of kvConfigPath
    cannot be used or a file there is malformed."""
    path = config.kv_config_path
    if not path:
        return KvConfig(), LiveConfig(None, config, tracer, OVERRIDES_FILE)
    directory = Path(path).resolve().parent
    try:
        make_directories(directory)
        disk = HostDisk(str(directory))
        return KvConfig(disk, Path(path).name), LiveConfig(disk, config, tracer, OVERRIDES_FILE)
    except OSError as error:
        place = error.filename or path
        raise UsageError(f"kvConfigPath = {path} cannot be used: {place}: {error.strerror}") from None


async def run_name_server(
    config: NamesrvConfig,
    tracer: HostTracer,
    *,
    clock: Clock | None = None,
    exposure: HttpEndpoint | None = None,
    controllers: tuple[str, ...] = (),
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the actual port. `controllers`: those of the same process, which the page asks
    besides controllerAddr. Raises UsageError if the address or a file cannot be used."""
    clock = HostClock() if clock is None else clock
    kv_config, live = open_persistent(config, tracer)
    server = NameServer(config, tracer, clock, kv_config, live)
    config = live.current
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(_serve, server, config, tracer)
        if exposure is not None:
            exposure.parts["namesrv"] = server
            # only a name server with httpPort imports the page
            from nameserver.web.site import Site

            await nursery.start(Site(config, server.routes, port, controllers, tracer).serve, exposure)
        tracer.event("name_server_started", address=config.listen_address, port=port)
        task_status.started(port)
        nursery.start_soon(_save_settings, kv_config)
        if server.follower is not None:
            nursery.start_soon(_follow, server.follower, config)
        while True:
            server.routes.scan(clock.now_ms())
            while server.routes.drop_removed_topics():
                await trio.lowlevel.checkpoint()
            release_memory(server.routes)
            server.check_addresses()
            await trio.sleep(server.live.current.scan_ms / 1000)


def release_memory(routes: RouteTable) -> bool:
    """Return the memory of many removed routes to the system; True if there were so many. Python's free lists hold it,
    in scattered places, until a full collection."""
    if routes.removed_count < MANY_ROUTES_COUNT:
        return False
    routes.compact()
    gc.collect()
    return True


async def _save_settings(kv_config: KvConfig) -> None:
    """Save settings in a thread. One write serves all changes before it; then follows a pause as long as the write,
    since settings may change all the time."""
    wanted = trio.Event()
    kv_config.save_soon = lambda: wanted.set()
    try:
        while True:
            await wanted.wait()
            wanted = trio.Event()
            began_at_s, write = trio.current_time(), kv_config.unsaved()
            if write is not None:
                await trio.to_thread.run_sync(write)
            kv_config.saved()
            await trio.sleep(min(MAX_SAVE_PAUSE_S, trio.current_time() - began_at_s))
    finally:
        kv_config.save_soon = kv_config.save
        kv_config.save()


async def _follow(follower: ElectionFollower, config: NamesrvConfig) -> None:
    async with RemotingClient(max_frame_bytes=config.max_frame_bytes) as client:
        await follower.run(client)


async def _serve(
    server: NameServer, config: NamesrvConfig, tracer: HostTracer, *, task_status: trio.TaskStatus[int]
) -> None:
    await serve(
        server,
        join_address(config.listen_address, config.listen_port),
        max_frame_bytes=config.max_frame_bytes,
        statistics=server.remoting,
        boundary=Boundary(server.remoting, tracer),
        first_request_timeout_ms=config.first_request_timeout_millis,
        quotas=server.quotas,
        task_status=task_status,
    )
