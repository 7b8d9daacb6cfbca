"""Connections that take a place and give nothing: unread answers, half frames, half handshakes, churn."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.abuse.attack import MAX_CONNECTION_COUNT, Attack, made, once, requests
from tests.abuse.attacks.bodies import send_request
from tests.abuse.attacks.floods import pull
from tests.abuse.scene import Scene

CLIENT_HELLO = bytes.fromhex("16030100f5010000f10303") + bytes(32)
"""The start of a TLS handshake, which says that more is to come."""
FRAME_BYTES = 4 * 1024 * 1024


def half_frame(scene: Scene, number: int) -> Iterator[bytes]:
    """All but the last KiB of a frame of four MiB."""
    yield struct.pack(">iI", FRAME_BYTES, 100)
    for _ in range(FRAME_BYTES // 1024 - 1):
        yield bytes(1024)


def unread_bodies(scene: Scene, number: int) -> Iterator[Command]:
    for _ in range(4):
        yield send_request(scene, scene.own_topic, bytes(1 << 20))
    while True:
        yield pull(scene, "*", 0, 0)


def one_request(scene: Scene, number: int) -> Iterator[Command]:
    yield Command(RequestCode.GET_BROKER_RUNTIME_INFO)


SILENT = "A connection has two seconds for its first request; the oldest that said none gives way to newcomers"
ATTACKS = [
    Attack(
        "never-reads",
        "master",
        requests(Command(RequestCode.GET_BROKER_CONFIG)),
        "Requests whose answers are never read",
        "Who does not read is not read; beyond a bound the connection is closed",
        reads=False,
    ),
    Attack(
        "never-reads-pulls",
        "master",
        made(unread_bodies),
        "Pulls of megabytes that are never read",
        "Who does not read is not read; beyond a bound the connection is closed",
        reads=False,
    ),
    Attack(
        "half-frames",
        "master",
        half_frame,
        "Frames of 4 MiB but for the last KiB, then silence",
        "Before the first request a connection may keep 64 KiB; all ports have a bound for what is under way",
    ),
    Attack("half-frames-namesrv", "namesrv", half_frame, "The same at the name server", "As above", in_short=False),
    Attack("idle-connections", "master", once(b""), "Connections that say nothing", SILENT),
    Attack(
        "idle-connections-controller", "controller", once(b""), "The same at the controller", SILENT, in_short=False
    ),
    Attack(
        "idle-thousands",
        "master",
        once(b""),
        "4,000 connections that say nothing",
        SILENT,
        least_connections=MAX_CONNECTION_COUNT,
    ),
    Attack(
        "idle-known",
        "master",
        made(one_request),
        "4,000 connections that say nothing after their first request",
        "They cost their sessions; 20,000 fit, and then the oldest that said nothing gives way",
        least_connections=MAX_CONNECTION_COUNT,
    ),
    Attack(
        "half-handshakes", "master", once(CLIENT_HELLO), "TLS handshakes that are begun and left", SILENT, tls=False
    ),
    Attack("half-handshakes-ha", "ha", once(CLIENT_HELLO), "The same at the HA port", SILENT, tls=False),
    Attack("churn", "master", once(b"x"), "Connections made and left", "Counted", churns=True),
    Attack("churn-namesrv", "namesrv", once(b"x"), "The same at the name server", "Counted", churns=True),
    Attack("churn-ha", "ha", once(b"x"), "The same at the HA port", "Counted", churns=True, tls=False),
]
