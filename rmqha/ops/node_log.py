"""The log of a node elsewhere, read over the wire in pieces (request 52018). Control plane."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.host.asking.shell import Caller
from rmqha.model.code import RequestCode
from rmqha.ops.answer import readable_answer
from rmqha.ops.asking import ask
from rmqha.wire.command import Command

PIECE_BYTES = 64 * 1024
MAX_TAIL_BYTES = 4 * 1024 * 1024
"""Most bytes that are read for the last lines of a log."""


@dataclass(frozen=True, slots=True)
class NodeLogPiece:
    """Bytes of a node's log from `offset` on. `file` changes at each rotation."""

    file: str
    offset: int
    end: int
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


class NodeLog:
    """One log of one node. Each call raises UnreachableError or RemoteError."""

    def __init__(self, client: Caller, address: str, *, audit: bool) -> None:
        self._client = client
        self._address = address
        self._audit = audit

    async def piece(self, offset: int | None, count: int = PIECE_BYTES, file: str = "") -> NodeLogPiece:
        """The piece from `offset` on, or the last `count` bytes; never more than the node gives at once. If `file` is
        the rotated log before the present one and holds `offset`, the piece is of that."""
        fields = {"version": "1", "maxBytes": str(count)}
        fields |= {"audit": "true"} if self._audit else {}
        fields |= {"offset": str(offset)} if offset is not None else {}
        fields |= {"file": file} if file else {}
        reply = await ask(self._client, self._address, Command(RequestCode.RMQHA_READ_LOG_FILE, fields))
        with readable_answer(self._address, "a server's"):
            ext = reply.ext
            return NodeLogPiece(ext["file"], int(ext["offset"]), int(ext["end"]), bytes(reply.body))

    async def last_lines(self, count: int) -> tuple[list[str], NodeLogPiece]:
        """The last `count` lines, fewer if they are longer than MAX_TAIL_BYTES, and the last piece, for `added`."""
        last = first = await self.piece(None)
        data = last.data
        while first.offset > 0 and data.count(b"\n") <= count and len(data) < MAX_TAIL_BYTES:
            start = max(0, first.offset - PIECE_BYTES)
            first = await self.piece(start, first.offset - start)
            if first.file != last.file or first.next_offset != last.next_offset - len(data):
                break  # it was rotated meanwhile: what we hold is the end of the old one
            data = first.data + data
        lines = data.decode(errors="replace").splitlines()
        return lines[len(lines) - min(count, len(lines)) :], last

    async def added(self, last: NodeLogPiece) -> NodeLogPiece:
        """The bytes that were added after `last`. If the log was rotated, the rest of the old file comes first, then
        each newer one from its beginning."""
        found = await self.piece(last.next_offset, file=last.file)
        if found.offset == (last.next_offset if found.file == last.file else 0):
            return found
        return await self.piece(0)
