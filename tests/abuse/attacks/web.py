"""The page and the health ports: floods of HTTP, and bodies that inflate."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from rmqha.model.message import SYS_FLAG_COMPRESSED, SYS_FLAG_COMPRESSION_ZLIB
from tests.abuse.attack import Attack, Stream, over_and_over
from tests.abuse.attacks.bodies import send_request
from tests.abuse.scene import NoAnswerError, Scene

BOMB_BYTES = 512 * 1024 * 1024
HOST = "Host: 127.0.0.1\r\n"


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{HOST}\r\n".encode()


def bomb() -> bytes:
    """Half a MB that inflates to half a GB."""
    packer, zeros = zlib.compressobj(9), bytes(1 << 20)
    return b"".join([*(packer.compress(zeros) for _ in range(BOMB_BYTES >> 20)), packer.flush()])


_BOMBS: list[bytes] = []


def looked_up_bombs(scene: Scene, number: int) -> Iterator[bytes]:
    """Messages that inflate to half a GB, looked up on the page."""
    if not _BOMBS:
        _BOMBS.append(bomb())
    try:
        for queue_id in range(4) if number < 4 else ():
            command = send_request(scene, scene.own_topic, _BOMBS[0])
            command.ext |= {"e": str(queue_id), "f": str(SYS_FLAG_COMPRESSED | SYS_FLAG_COMPRESSION_ZLIB)}
            scene.ask("master", command, "guest")
    except (OSError, NoAnswerError):
        return iter(())
    look = "/lookup?by=place&topic={}&group={}&queue={}&offset=0&count=32"
    return over_and_over(
        b"".join(get(look.format(scene.own_topic, scene.broker_name, queue_id)) for queue_id in range(4))
    )


def gets(*paths: str) -> Stream:
    def stream(scene: Scene, number: int) -> Iterator[bytes]:
        return over_and_over(b"".join(get(path) for path in paths))

    return stream


def slow_head(scene: Scene, number: int) -> Iterator[bytes]:
    yield b"GET / HTTP/1.1\r\n" + HOST.encode()
    for _ in range(4000):
        yield b"X-Long: 1\r\n"


def many_events(scene: Scene, number: int) -> Iterator[bytes]:
    """Pages that stay open."""
    yield get("/events")


BOUNDED = "Answered in turns; connections, heads, bodies and times are bounded"
ATTACKS = [
    Attack("flood-page", "page", gets("/", "/metrics", "/health"), "Requests for the page without waiting", BOUNDED),
    Attack(
        "flood-health", "health", gets("/health", "/metrics"), "Requests for a broker's health and metrics", BOUNDED
    ),
    Attack("long-heads", "page", slow_head, "Heads of requests that do not end", BOUNDED, in_short=False),
    Attack("open-pages", "page", many_events, "Pages that stay open", BOUNDED),
    Attack(
        "zip-bombs",
        "page",
        looked_up_bombs,
        "Messages that inflate to half a GB, looked up on the page",
        "Inflated within a small budget, outside the event loop",
    ),
]
