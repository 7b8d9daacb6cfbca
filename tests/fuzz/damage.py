"""Captured streams, damaged and split at random."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import trio

from tests.golden.reader import frames, raw

STREAMS = [raw(entry) for entry in frames() if len(raw(entry)) < 3000]


def damaged(random: Random) -> bytes:
    """One or two captured frames with up to three bytes, pieces or lengths changed."""
    data = bytearray(random.choice(STREAMS))
    if random.random() < 0.3:
        data += random.choice(STREAMS)
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                del data[at : at + random.randint(1, 8)]
            case 2:
                data[at:at] = random.randbytes(random.randint(1, 8))
            case _:
                data[at % 8] = random.randrange(256)
        if not data:
            break
    return bytes(data)


def pieces(random: Random, data: bytes) -> list[bytes]:
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randint(0, 3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def descriptors() -> Counter[str]:
    """Open files of this process, by the name of what they are open on; each socket has a name of its own."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found[str(link.readlink())] += 1
    return found


def tasks() -> int:
    """Of trio."""
    return trio.lowlevel.current_statistics().tasks_living
