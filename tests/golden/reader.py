"""Reads the golden data. See README.md for what the files hold."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import zstandard

GOLDEN = Path(__file__).parent
FRAME_FILES = (
    "binary-both-sides.jsonl",
    "cluster.jsonl",
    "java-binary.jsonl",
    "java-consumer.jsonl",
    "java-producer.jsonl",
    "mqadmin.jsonl",
)


@cache
def lines(path: str) -> tuple[dict[str, Any], ...]:
    """The objects of a .jsonl file."""
    return tuple(json.loads(line) for line in (GOLDEN / path).read_text().splitlines())


def raw(entry: dict[str, Any]) -> bytes:
    """The whole frame of an entry of wire/*.jsonl."""
    return base64.b64decode(entry["raw_b64"])


def frames() -> Iterator[dict[str, Any]]:
    """Every captured remoting frame."""
    for name in FRAME_FILES:
        yield from lines(f"wire/{name}")


@cache
def manifest() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / "store/manifest.json").read_text())
    return value


def unpack(archive: str, target: Path) -> Path:
    """Extract tests/golden/<archive>.tar.zst; returns `target`."""
    packed = (GOLDEN / f"{archive}.tar.zst").read_bytes()
    plain = zstandard.ZstdDecompressor().stream_reader(packed).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        # Debian 12's Python has no filters; what is extracted is our own
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(target)
    return target
