"""Stores of a consumer's offsets: at the brokers for a group, in a file for a broadcast reader. Control plane."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rmqha.client.answers import number
from rmqha.client.route import MessageQueue
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UsageError
from rmqha.store.meta import sidecar
from rmqha.wire.command import Command

Ask = Callable[[MessageQueue, RequestCode, dict[str, str]], Awaitable[Command]]
"""Ask the queue's group. Raises UnreachableError, RemoteError."""


class Offsets(Protocol):
    """The committed offset of each queue: the next message to read."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The committed offset; None if nothing has been committed. Raises RmqhaError."""
        ...

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset. Raises RmqhaError."""
        ...

    def close(self) -> None:
        """Release what is held."""


class BrokerOffsets:
    """Offsets of a consumer group (requests 14 and 15)."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def load(self, queue: MessageQueue) -> int | None:
        """Ask the broker for the committed offset; None if it has none."""
        try:
            answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, {})
            return answered_offset(answer, f"group {queue.broker_name}")
        except RemoteError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
        return None

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Commit at the broker."""
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": str(offset)})

    def close(self) -> None:
        """Do nothing: no resource is held."""


class FileOffsets:
    """Offsets in one file of our own (a sidecar: CBOR with version and checksum), replaced durably at each commit. One
    reader holds it at a time."""

    def __init__(self, path: str | os.PathLike[str], group: str) -> None:
        """Open and lock the file. Raises UsageError if it cannot be opened, another reader holds it or it is another
        group's, StoreError if it is of a newer release."""
        from rmqha.host.disk import HostDisk

        where = Path(path).absolute()
        self._disk = HostDisk(where.parent)
        self._name = where.name
        self._group = group
        try:
            self._disk.make_dirs("")
            unlock = self._disk.lock(f"{where.name}.lock")
        except OSError as error:
            raise UsageError(f"{where}, a file for offsets, cannot be opened: {error.strerror}") from None
        if unlock is None:
            raise UsageError(f"{where} is in use by another consumer; give each broadcast reader a file of its own")
        self._unlock = unlock
        try:
            self._offsets = self._read(where)
        except BaseException:
            unlock()
            raise

    def _read(self, where: Path) -> dict[tuple[str, str, int], int]:
        try:
            fields = sidecar.read(self._disk, self._name)
        except sidecar.BadSidecarError as error:
            raise UsageError(f"{where} is no file of offsets: {error}; name another one or remove it") from None
        if fields is None:
            return {}
        if fields.get("group") != self._group:
            raise UsageError(f"{where} holds the offsets of group {fields.get('group')}, not of {self._group}")
        return _entries(where, fields)

    async def load(self, queue: MessageQueue) -> int | None:
        """The offset of the file; None if it has none."""
        return self._offsets.get((queue.broker_name, queue.topic, queue.queue_id))

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Replace the file, durably."""
        self._offsets[queue.broker_name, queue.topic, queue.queue_id] = offset
        entries = [[*place, offset] for place, offset in sorted(self._offsets.items())]
        sidecar.write(self._disk, self._name, {"group": self._group, "offsets": entries})

    def close(self) -> None:
        """Let another reader have the file."""
        self._unlock()


def _entries(where: Path, fields: Mapping[str, Any]) -> dict[tuple[str, str, int], int]:
    found: dict[tuple[str, str, int], int] = {}
    for entry in fields.get("offsets") or ():
        match entry:
            case [str(broker_name), str(topic), int(queue_id), int(offset)]:
                found[broker_name, topic, queue_id] = offset
            case _:
                raise UsageError(f"{where} holds an offset that is none: {entry!r}; name another file or remove it")
    return found


def answered_offset(answer: Command, whose: str) -> int:
    """The offset in a broker's answer. Raises RemoteProtocolError, which names who answered."""
    return number(answer.ext, "offset", whose, least=0)
