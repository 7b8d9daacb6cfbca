"""Sends of a few messages, one after the other, without a producer: that needs an event loop, which costs more than all
the rest of a short command. Control plane."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from rmqha.client.compression import compression
from rmqha.client.producers.outgoing import Outgoing, OutgoingMessage, check_message
from rmqha.client.producers.result import NOTHING_WRITTEN, STATUS_OF_CODE, SendResult, SendStatus, result_of
from rmqha.client.route import NameServers, TopicRoute, name_servers, parse_route
from rmqha.host.asking.shell import Caller, open_client
from rmqha.host.clock import local_month_ms
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import NotSentError, RemoteError, RemoteProtocolError, RmqhaError
from rmqha.model.identity import parse_address
from rmqha.model.message import UniqueKeys

FEW = 16
"""Number of messages up to which they are tried without a producer, which sends many at once."""
ANSWER_MS = 3_000


@dataclass(slots=True)
class Unsent:
    """Messages that a producer has to send, the first of which has been tried `tries` times without an
    acknowledgement."""

    messages: list[OutgoingMessage]
    tries: int = 0
    copies_possible: int = 0

    def whole(self, result: SendResult) -> SendResult:
        """The result of the first message, with the tries before it added."""
        copies = result.copies_possible + self.copies_possible
        return replace(result, tries=result.tries + self.tries, copies_possible=copies)


async def send_one_by_one(
    namesrv: str,
    group: str,
    messages: Sequence[OutgoingMessage],
    timeout_ms: int,
    on_result: Callable[[SendResult], None],
    *,
    require_ok: bool,
) -> Unsent:
    """Send the messages one after the other, each once. The rest is returned from the first one on that is not
    acknowledged, which keeps its id, or that has to wait for its own queue; all of them for an unknown topic. Raises
    UsageError for a message that no broker takes, UnreachableError if no name server answers."""
    async with open_client() as client:
        try:
            route = await _route(client, namesrv, messages[0].topic)
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return Unsent(list(messages))  # a producer may let brokers make it
        queues = route.write_queues()
        keys = UniqueKeys(_local_host(namesrv), os.getpid(), secrets.randbits(32), local_month_ms)
        for at, message in enumerate(messages):
            check_message(message)
            queue = queues[(at + 1) % len(queues)] if queues else None
            master = route.master(queue.broker_name) if queue is not None else None
            if queue is None or master is None or message.lane is not None or message.topic != route.topic:
                return Unsent(list(messages[at:]))
            now_ms = time.time_ns() // 1_000_000
            known = replace(message, unique_key=message.unique_key or keys.make(now_ms))
            code = RequestCode.SEND_MESSAGE_V2
            outgoing = Outgoing(code, group, known, known.unique_key, now_ms, compression("zlib"))
            unsent = Unsent([known, *messages[at + 1 :]], tries=1)
            try:
                answer = await client.call(master, outgoing.request(queue), min(timeout_ms, ANSWER_MS))
            except RmqhaError as error:
                unsent.copies_possible = int(not isinstance(error, NotSentError))
                return unsent
            status = STATUS_OF_CODE.get(answer.code)
            if status is None or (require_ok and status is not SendStatus.SEND_OK):
                unsent.copies_possible = int(answer.code not in NOTHING_WRITTEN)
                return unsent
            try:
                result = result_of(answer, status, outgoing.unique_key, queue, master, tries=1, copies_possible=0)
            except RemoteProtocolError:
                unsent.copies_possible = 1
                return unsent
            on_result(result)
    return Unsent([])


async def _route(client: Caller, namesrv: str, topic: str) -> TopicRoute:
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    address, body = await NameServers(client, namesrv).ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
    return parse_route(topic, body, address)


def _local_host(namesrv: str) -> bytes:
    """The IP address that this machine uses towards the name server, as ids of messages carry it. Nothing is sent."""
    host, port = parse_address(name_servers(namesrv)[0])
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return ip_address(probe.getsockname()[0]).packed
    except OSError:
        return ip_address("127.0.0.1").packed
