"""A broker process: listens, opens the store, starts the machine, and stops in order. Shell."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import trio

from rmqha import __version__
from rmqha.broker.advertised import (
    HA,
    LISTEN,
    AdvertisedAddressCheck,
    ResolvedHosts,
    advertised_hosts,
    check_advertised,
    resolved,
)
from rmqha.broker.core import BrokerCore
from rmqha.broker.host_shell import HostShell
from rmqha.broker.identity import BrokerIdentity
from rmqha.broker.loops import BrokerLoops
from rmqha.broker.replication.controller_link import ControllerLink
from rmqha.broker.replication.controller_route import parse_addresses
from rmqha.broker.replication.forward import HostTasks, SendForwarder
from rmqha.broker.replication.ha_authenticator import HaAuthenticator
from rmqha.broker.replication.ha_service import HaService
from rmqha.broker.replication.log_thread import LogThread
from rmqha.broker.replication.metadata_sync import ForeignProbe, MetadataSync, QueueMaxOffsetsSync, RepairLoop
from rmqha.broker.replication.nameserver_link import NameServerLink
from rmqha.broker.services.disk_probe import DiskProbe
from rmqha.broker.services.retention_loop import RetentionLoop
from rmqha.broker.services.scrub_loop import ScrubLoop
from rmqha.broker.shell import BrokerShell, HostFacts
from rmqha.ha.sync_state_set_manager import LEAVE_CAUSES
from rmqha.host.access import security
from rmqha.host.access.peer_filter import PeerRules
from rmqha.host.access.user_accounts import UserAccounts
from rmqha.host.clock import HostClock, local_month_ms
from rmqha.host.disk import HostDisk
from rmqha.host.event_counts import BROKER_PHASES, JOIN
from rmqha.host.http.endpoint import HttpEndpoint
from rmqha.host.kernel_choice import choose_kernel
from rmqha.host.limits.control_group import memory_bytes, processor_count
from rmqha.host.log_files import LogFiles
from rmqha.host.net import network, remoting
from rmqha.host.net.address_watch import AddressWatch
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.poller import Poller
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.kernel.batch_kernel import SignedSend
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.delay_level import parse_delay_levels
from rmqha.model.config.servers import CLOSED, BrokerConfig
from rmqha.model.error import ConfigError, RmqhaError
from rmqha.model.identity import join_address, parse_address
from rmqha.model.offset import BrokerId
from rmqha.model.quota import Quotas
from rmqha.port import Tracer
from rmqha.store.config import StoreConfig
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.meta.identity_file import IdentityFile
from rmqha.store.store import Store
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command

PEER_RULES = PeerRules(
    refuses=lambda command: command.code in (RequestCode.RMQHA_HAND_OVER, RequestCode.RMQHA_FOLLOW_TABLES),
    marks_unproven=lambda command: command.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
)
"""Requests that only controllers and replicas may send. The versions that a slave reports decide about the master's
answers. Apache's controllers send notices without proof: such a notice only causes a question to them."""
ADDRESS_SERVER_TIMEOUT_S = 3
OWN_NAME_TIMEOUT_S = 15
OWN_NAME_RETRY_MS = 500
MAX_LIST_BYTES = 64 * 1024
HAND_OVER_MS = 6000
"""Part (ms) of the ten seconds of a stop (ruling 24) for the hand-over; the rest is for the flush."""


class Ports(NamedTuple):
    """Ports of a broker."""

    listen: int
    ha: int
    fast: int


class _Gate:
    """Handler of the listeners. Ports are bound before the store is opened, so that a port in use leaves no file
    behind; connections in between are closed."""

    def __init__(self, advertised: AdvertisedAddressCheck, quotas: Quotas, tracer: HostTracer) -> None:
        self.advertised = advertised
        self.quotas = quotas
        self.core: BrokerCore | None = None
        self.ha: HaService | None = None
        self.poller = Poller()
        """Poller of the clients' port; the fast one has its own."""
        self.remoting = Statistics()
        """Statistics of both clients' ports."""
        self.boundary = Boundary(self.remoting, tracer)
        """Boundary for unexpected exceptions of all ports."""

    def opened(self, session: Session) -> None:
        self.advertised.connected(LISTEN, session.peer)
        if self.core is None:
            session.close()

    @property
    def takes_any(self) -> bool:
        return self.core is not None and self.core.processor.takes_any

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        return [(0, 0)] * len(reads) if self.core is None else self.core.processor.take(reads, max_count)

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        return [] if self.core is None else self.core.kernel.signed(data, max_count, nonce, proven)

    def received(self, session: Session, commands: list[Command]) -> None:
        if self.core is not None:
            self.core.processor.received(session, commands)

    def closed(self, session: Session) -> None:
        if self.core is not None:
            self.core.processor.closed(session)

    async def accept_ha(self, stream: trio.SocketStream) -> None:
        self.advertised.connected(HA, network.peer_name(stream))
        if self.ha is not None:
            await self.ha.accept(stream)
        else:
            await trio.aclose_forcefully(stream)


async def run_broker(
    config: BrokerConfig,
    tracer: HostTracer,
    stopping: trio.Event | None = None,
    *,
    exposure: HttpEndpoint | None = None,
    task_status: trio.TaskStatus[Ports] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping` is set (then hand over, drain, flush) or cancelled. `task_status.started(ports)` follows
    when requests are answered; listenPort 0 lets the system choose all three ports.

    Raises, in an ExceptionGroup, UsageError for bad input (nothing is written then), StoreError or OSError when the
    disk fails: the store is left as after a kill, for recovery at the next start.
    """
    hosts = await _resolved_hosts(config)
    controllers, name_servers = checked_addresses(config, hosts)
    core: BrokerCore | None = None
    in_order = True
    try:
        async with trio.open_nursery() as nursery:
            gate = _Gate(AdvertisedAddressCheck(config, hosts, tracer), Quotas(config.quotas), tracer)
            config, ports = await _listen(config, gate, nursery)
            shell = HostShell(gate.advertised, gate.poller)
            core = _open(config, tracer, await store_host(config, tracer), gate.quotas, shell)
            accounts = security.ambient.get().accounts
            if isinstance(accounts, UserAccounts):
                accounts.follow(core.users)
            if exposure is not None:
                _show(exposure, core, gate.remoting)
            stop = trio.Event() if stopping is None else stopping
            await _serve(core, shell, gate, tracer, controllers, name_servers, ports, stop, task_status)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        in_order = errors.split(trio.Cancelled)[1] is None
        raise
    finally:
        if core is not None:
            _close(core, tracer, in_order)


def _show(exposure: HttpEndpoint, core: BrokerCore, counts: Statistics) -> None:
    # only a broker with httpPort loads it
    from rmqha.broker.services.health_source import BrokerHealthSource

    exposure.counts.expect(set_changes=[JOIN, *(("leave", cause) for cause in LEAVE_CAUSES)], phases=BROKER_PHASES)
    exposure.parts["broker"] = BrokerHealthSource(core, counts)


async def _listen(config: BrokerConfig, gate: _Gate, nursery: trio.Nursery) -> tuple[BrokerConfig, Ports]:
    """Bind the three ports; returns the configuration with the numbers that the system chose for 0."""
    serve = partial(
        remoting.serve,
        gate,
        max_frame_bytes=config.max_frame_bytes,
        statistics=gate.remoting,
        boundary=gate.boundary,
        first_request_timeout_ms=config.first_request_timeout_millis,
        quotas=gate.quotas,
        peer_rules=PEER_RULES if config.ha_security in CLOSED else PeerRules(),
        fast_path=gate,
    )
    host = config.listen_address
    main = partial(serve, poller=gate.poller)
    listen_port: int = await nursery.start(main, join_address(host, config.listen_port))
    wanted = config.ha_listen_port or (config.listen_port + 1 if config.listen_port else 0)
    listeners = await network.listen(join_address(host, wanted))
    nursery.start_soon(trio.serve_listeners, gate.accept_ha, listeners)
    fast_port: int = await nursery.start(serve, join_address(host, config.listen_port - 2 if config.listen_port else 0))
    ports = Ports(listen_port, network.local_port(listeners[0]), fast_port)
    return dataclasses.replace(config, listen_port=ports.listen, ha_listen_port=ports.ha), ports


def checked_addresses(config: BrokerConfig, hosts: ResolvedHosts) -> tuple[list[str], list[str]]:
    """Addresses of the controllers and of the name servers. Raises UsageError or ConfigError for an invalid one, or an
    unusable advertised address."""
    controllers, name_servers = _addresses(config)
    check_advertised(config, [*controllers, *name_servers], hosts)
    return controllers, name_servers


def _addresses(config: BrokerConfig) -> tuple[list[str], list[str]]:
    controllers = parse_addresses(config.controller_addr, "controllerAddr") if config.enable_controller_mode else []
    return controllers, [] if config.asks_address_server else parse_addresses(config.namesrv_addr, "namesrvAddr")


async def _resolved_hosts(config: BrokerConfig) -> ResolvedHosts:
    """Numeric addresses of the configured hosts."""
    peers = (parse_address(peer)[0] for part in _addresses(config) for peer in part)
    return await resolved([*advertised_hosts(config).values(), *peers])


async def store_host(config: BrokerConfig, tracer: Tracer) -> tuple[bytes, int]:
    """Address in records and offset message ids. Raises ConfigError if the name has none, and gets none
    within OWN_NAME_TIMEOUT_S: that of a container is often known some seconds after its start."""
    host, reason = advertised_hosts(config)[LISTEN], ""
    with trio.move_on_after(OWN_NAME_TIMEOUT_S):
        while True:
            try:
                found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                return ip_address(found[0][4][0]).packed, config.listen_port
            except OSError as error:
                if not reason:
                    tracer.event("own_name_unknown", key=LISTEN, host=host, reason=error.strerror)
                reason = error.strerror or str(error)
            await trio.sleep(OWN_NAME_RETRY_MS / 1000)
    reason = reason or f"no answer within {OWN_NAME_TIMEOUT_S} s"
    raise ConfigError(f"{LISTEN}: {host} has no address ({reason}); write it as numbers")


def _open(
    config: BrokerConfig, tracer: HostTracer, store_host: tuple[bytes, int], quotas: Quotas, shell: BrokerShell
) -> BrokerCore:
    root = Path(config.store_path_root_dir).absolute()
    choice = choose_kernel()
    if choice.fallback_reason:
        tracer.event("kernel_in_python", reason=choice.fallback_reason)
    disk, clock = HostDisk(root), HostClock()
    identity = BrokerIdentity(IdentityFile(disk), config.broker_cluster_name, config.broker_name)
    store_config = StoreConfig(
        mapped_file_size_commit_log=config.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        mapper_file_size_batch_consume_queue=config.mapper_file_size_batch_consume_queue,
        transient_store_pool_enable=config.transient_store_pool_enable,
        transient_store_pool_size=config.transient_store_pool_size,
        commit_commit_log_least_pages=config.commit_commit_log_least_pages,
        message_index_enable=config.message_index_enable,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        # what waits was taken under a maxMessageSize that may have been larger, up to this; sends are looked at before
        max_message_size=config.mapped_file_size_commit_log // 2,
        enabled_append_prop_crc=config.enabled_append_prop_crc,
        delay_levels_ms=parse_delay_levels(config.message_delay_level),
    )
    store = Store.open(disk, store_config, tracer, process_id=os.getpid(), kernel=choice.kernel)
    try:
        return BrokerCore(
            config,
            disk,
            store,
            identity,
            clock,
            tracer,
            store_host,
            shell,
            choice.kernel,
            quotas,
            HostFacts(
                process={
                    "pid": os.getpid(),
                    "dataDirectory": str(root),
                    "kernel": choice.description,
                    "release": __version__,
                },
                disk_usage=partial(disk.usage, LOG_DIRECTORY),
                history=tracer.history,
                local_hour=lambda: time.localtime().tm_hour,
                month_of=local_month_ms,
                memory_bytes=memory_bytes(),
                processor_count=processor_count(),
                read_log=LogFiles.of(config).answer,
            ),
        )
    except BaseException:
        store.close()
        raise


async def _serve(
    core: BrokerCore,
    shell: HostShell,
    gate: _Gate,
    tracer: HostTracer,
    controllers: list[str],
    name_servers: list[str],
    ports: Ports,
    stopping: trio.Event,
    task_status: trio.TaskStatus[Ports],
) -> None:
    clock, driver = HostClock(), core.driver
    link = NameServerLink(core.config, driver, core.topics, name_servers, clock, tracer, trio.lowlevel.checkpoint)
    max_frame_bytes, secured = core.config.max_frame_bytes, security.ambient.get()
    client = remoting.RemotingClient(max_frame_bytes=max_frame_bytes, on_closed=link.lost)
    to_peers = remoting.RemotingClient(max_frame_bytes=max_frame_bytes, security=secured.signing_with_secret())
    async with client, to_peers, trio.open_nursery() as nursery:
        static = not core.config.enable_controller_mode
        asked: Callable[[], list[str]] = list
        authenticator = HaAuthenticator(core.config.ha_security, secured, partial(_claim, core))
        if not static:
            driver.controller = to_leader = ControllerLink(driver, to_peers, controllers, nursery, tracer)
            asked = to_leader.addresses
            watch = _address_watch(core, "controllerAddr", partial(_controllers, core), to_leader.follow, tracer)
            nursery.start_soon(watch.run)
        driver.ha = gate.ha = HaService(driver, tracer, nursery, authenticator, gate.boundary, plain=static)
        loops = BrokerLoops(core, clock)
        sync = _metadata_sync(core, to_peers, tracer)
        retention = RetentionLoop(core.config, core.retention)
        forwarder = _forwarder(core, client, nursery, clock, tracer)
        shell.begin(loops, link, sync, retention, forwarder, LogThread(nursery, driver.log_written), nursery)
        ends = QueueMaxOffsetsSync(core.queue_ends, core.store.queue_min_offsets, client)
        repair = RepairLoop(core.read_repair, core.store.damage, client)
        probe = _probe(core, to_peers, asked)
        nursery.start_soon(_address_watch(core, "namesrvAddr", partial(_name_servers, core), link.follow, tracer).run)
        for task in (loops.run, partial(link.run, client), sync.run, ends.run, repair.run, probe.run):
            nursery.start_soon(task)
        nursery.start_soon(retention.run)
        nursery.start_soon(ScrubLoop(core).run)
        if core.config.disk_probe_interval_millis:
            disk_probe = DiskProbe(core.config, core.disk, clock, driver.disk_probed)
            nursery.start_soon(disk_probe.run)
        gate.core = core
        driver.start()
        tracer.event("listening", address=core.config.address, ha_port=ports.ha, fast_port=ports.fast)
        task_status.started(ports)
        await stopping.wait()
        await _leave(core, link, loops, tracer)
        nursery.cancel_scope.cancel()


def _address_watch(
    core: BrokerCore,
    key: str,
    given: Callable[[], Awaitable[list[str]]],
    follow: Callable[[list[str]], None],
    tracer: HostTracer,
) -> AddressWatch:
    watch = AddressWatch(key, given, follow, core.config.update_name_server_addr_period, tracer)
    core.live.add_listener(lambda config: watch.resolve_again())
    return watch


async def _name_servers(core: BrokerCore) -> list[str]:
    """Name servers of the present configuration. Raises ConfigError."""
    config = core.config
    if not config.asks_address_server:
        return parse_addresses(config.namesrv_addr, "namesrvAddr")
    # only a broker that asks for it loads an HTTP client
    from rmqha.host.http.get import http_get

    place, _, path = config.address_server.partition("/")
    try:
        body = await http_get(place, f"/{path}", timeout_s=ADDRESS_SERVER_TIMEOUT_S, limit_bytes=MAX_LIST_BYTES)
        text = body.decode().strip()
    except (RmqhaError, UnicodeDecodeError) as error:
        raise ConfigError(f"addressServer: {error}") from None
    return parse_addresses(text, f"the list of addressServer http://{config.address_server}")


async def _controllers(core: BrokerCore) -> list[str]:
    return parse_addresses(core.config.controller_addr, "controllerAddr")


def _claim(core: BrokerCore) -> HaClaim:
    """Identity that this replica claims in its greeting to a master."""
    config, replica = core.config, core.replica
    broker_id = BrokerId(replica.broker_id or 0)
    return HaClaim(broker_id, config.address, config.broker_cluster_name, config.broker_name, replica.epoch)


def _metadata_sync(core: BrokerCore, client: remoting.RemotingClient, tracer: HostTracer) -> MetadataSync:
    tables = (
        core.topics,
        core.groups,
        core.offsets,
        core.delay_offsets,
        core.users,
        core.modes,
        core.master_timer_counts,
    )
    strict = core.config.offset_sync == "strict"
    place = (lambda: core.followed_master, core.holds_log)
    made = MetadataSync(*tables, client, *place, tracer, saves_offsets=strict)
    core.store.on_truncate(lambda end_offset: made.follower.log_cut())
    return made


def _forwarder(
    core: BrokerCore, client: remoting.RemotingClient, nursery: trio.Nursery, clock: HostClock, tracer: HostTracer
) -> SendForwarder | None:
    """Forwarder of sends; None if the master never hands over, or sends must not be forwarded."""
    replica, window_ms = core.replica, core.config.forward_sends_millis
    if not core.config.enable_controller_mode or not window_ms:
        return None
    return SendForwarder(
        core.config.address,
        window_ms,
        replica,
        lambda: core.driver.admission()[0] is ResponseCode.SUCCESS,
        core.admit,
        client,
        HostTasks(nursery),
        clock,
        tracer,
    )


def _probe(core: BrokerCore, client: remoting.RemotingClient, controllers: Callable[[], list[str]]) -> ForeignProbe:
    replica = core.replica

    def slaves() -> list[BrokerId]:
        return [slave_id for slave_id, _ in replica.slave_acks()] if replica.is_master else []

    return ForeignProbe(
        core.metadata_leader, client, controllers, core.config.broker_name, slaves, lambda: replica.epoch
    )


async def _leave(core: BrokerCore, link: NameServerLink, loops: BrokerLoops, tracer: HostTracer) -> None:
    """Refuse new requests, hand over, drain; in bounded time."""
    tracer.event("stopping")
    core.leave()
    with trio.move_on_after(HAND_OVER_MS / 1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.leave)
            await loops.until_may_stop()
        # it may have heard of an election while it told the name servers
        await loops.until_may_stop()


def _close(core: BrokerCore, tracer: HostTracer, in_order: bool) -> None:
    """Close after all tasks have ended. `in_order`: everything is written and `abort` is removed; else the files stay
    as they are."""
    if not in_order or not core.driver.is_log_free:
        return  # a thread in the midst of a change of the log is left behind with it
    core.close()
    tracer.event("stopped", max_phy_offset=core.store.max_phy_offset)
