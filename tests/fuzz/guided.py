"""Fuzzing that is guided by what it reaches: an input that takes a way through a parser that none took before is kept,
and others are made of it. `python -m tests.fuzz.guided --count 20000` adds to `tests/fuzz/corpus` what it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

import click

from .targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
OURS = tuple(str(ROOT / name) for name in ("rmqha", "controller", "nameserver"))
MAX_BYTES = 2000
WORDS = [bytes([value]) * size for value in (0, 1, 0x7F, 0x80, 0xFF) for size in (1, 4, 8)] + [
    b"{",
    b'"',
    b"\n",
    b"-1",
    b"1e999",
]
Way = tuple[CodeType, int, int]


@dataclass
class Found:
    """`failures`: inputs with what the parser raised and must not."""

    kept: list[bytes] = field(default_factory=list)
    failures: list[tuple[bytes, BaseException]] = field(default_factory=list)


def attempt(target: Target, data: bytes) -> BaseException | None:
    """What the parser raises and must not."""
    try:
        target.parse(data)
    except target.refuses_with as refusal:
        return None if str(refusal) else AssertionError("a refusal is a sentence")
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return error
    return None


def ways(work: Callable[[], object]) -> set[Way]:
    """Pairs of lines of our code that follow each other as `work` runs."""
    taken: set[Way] = set()
    last: dict[int, int] = {}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            key = id(frame)
            taken.add((frame.f_code, last.get(key, 0), frame.f_lineno))
            last[key] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return local

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken


def changed(random: Random, pool: list[bytes]) -> bytes:
    data = bytearray(random.choice(pool))
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1 if data:
                data[at % len(data)] = random.randrange(256)
            case 2:
                del data[at : at + random.randint(1, 8)]
            case 3:
                data[at:at] = random.choice(WORDS)
            case 4:
                other = random.choice(pool)
                start = random.randrange(len(other) + 1)
                data[at:] = other[start : start + random.randint(1, 64)]
            case _:
                word = random.choice(WORDS)
                data[at : at + len(word)] = word
    return bytes(data[:MAX_BYTES])


def explore(target: Target, known: Iterable[bytes], count: int, seed: int) -> Found:
    """`known` inputs first, then `count` made of them."""
    random, found, seen = Random(seed), Found(), set[Way]()
    pool = [b""]
    failed: set[tuple[type, int]] = set()

    def look(data: bytes) -> bool:
        problem: list[BaseException | None] = []
        new = ways(lambda: problem.append(attempt(target, data))) - seen
        seen.update(new)
        if (error := problem[0]) is not None:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            key = type(error), place.tb_lineno if place is not None else 0
            if key not in failed:
                failed.add(key)
                found.failures.append((data, error))
        return bool(new)

    for data in known:
        look(data)
        pool.append(data)
    for _ in range(count):
        data = changed(random, pool)
        if look(data):
            pool.append(data)
            found.kept.append(data)
    return found


def corpus(name: str) -> list[bytes]:
    """Kept inputs of a target: each reached something new when it was found, or once failed."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


@click.command()
@click.option("--count", type=click.IntRange(1), default=5000, show_default=True, help="Inputs for each parser.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(list(TARGETS)))
def main(count: int, seed: int, names: tuple[str, ...]) -> None:
    """Look for inputs that reach new ways through the parsers, or crash one, and keep them. Exit code 1 for a crash."""
    crashed = False
    for name in names or TARGETS:
        target = TARGETS[name]
        found = explore(target, [*target.begin(), *corpus(name)], count, seed)
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        for data in [*found.kept, *(data for data, _ in found.failures)]:
            (CORPUS / name / sha256(data).hexdigest()[:12]).write_bytes(data)
        print(f"{name}: {len(found.kept)} kept")
        for data, error in found.failures:
            crashed = True
            print(f"{name}: {data!r} raises {error!r}")
    sys.exit(crashed)


if __name__ == "__main__":
    main()
