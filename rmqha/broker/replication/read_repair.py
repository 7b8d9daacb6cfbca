"""Request 52034, and the repair of damaged records from other replicas. No trio.

A reader that finds a damaged record notes it in the store's `DamageTable`. This task asks the replicas that have the
record, one after the other, checks the answer and writes it over the damage. Apache's brokers do not know the request:
what only they have stays damaged, and is reported.

A slave that rejects a record of its master's stream asks for it too. The master then checks and repairs its own first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from zlib import crc32

from rmqha.broker.requests.request import Channel, Handler, RequestError, number
from rmqha.broker.tables.metadata_follower import CALL_TIMEOUT_MS, AsyncPort
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.epoch import EpochEntry
from rmqha.model.error import DamagedError, RemoteProtocolError, UnreachableError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.port import Tracer
from rmqha.store.integrity.damage import DamagedRecord
from rmqha.store.integrity.repair import Repair, entry_of
from rmqha.store.store import Store
from rmqha.wire.command import Command

VERSION = 1
RETRY_FIRST_MS = 1000
RETRY_MOST_MS = 30_000
MAX_CLAIM_COUNT = 16
CLAIM_PAUSE_MS = 20
"""Interval (ms) of checks of peers' requests: each check reads every queue."""
NOBODY = "no other replica that has it can be reached"
ENTRY_DAMAGED = (
    "a replica has the same bytes: it is the entry of the queue that is damaged, and the queues must be made anew"
)


class RecordHolders(Protocol):
    """Port to the other replicas; `Replica` and `StaticReplica` are ones."""

    @property
    def is_writing(self) -> bool: ...

    def holders(self, phy_offset: PhyOffset) -> list[str]: ...


class ReadRepair:
    """Fetch of damaged records from other replicas. `settled` is called when a record was repaired, or is missing for
    good."""

    def __init__(self, store: Store, group: RecordHolders, tracer: Tracer, settled: Callable[[], None]) -> None:
        self._store = store
        self._group = group
        self._tracer = tracer
        self._settled = settled
        self._traced: set[str] = set()
        """Addresses that do not know the request; traced once."""
        self._peer_requests: dict[PhyOffset, None] = {}
        """Offsets that peers asked for and that are damaged or no record here."""

    # --- answering replica ------------------------------------------------------------------------------------------
    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RMQHA_READ_RECORD: self._answer}

    def _answer(self, channel: Channel, command: Command) -> Command:
        offset = PhyOffset(number(command, "phyOffset"))
        found = self._store.verified_record_at(offset)
        if found is None:
            if len(self._peer_requests) < MAX_CLAIM_COUNT:
                self._peer_requests[offset] = None
                self._store.damage.wake()
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no sound record begins at {offset} here")
        entry = entry_of(self._store.epochs, offset)
        data = bytes(found.data)
        ext = {"version": str(VERSION), "crc32": str(crc32(data))}
        if entry is not None:
            ext |= {"epoch": str(entry.epoch), "epochStartOffset": str(entry.start_offset)}
        return command.reply(ResponseCode.SUCCESS, ext, data)

    # --- asking replica ---------------------------------------------------------------------------------------------
    async def run(self, port: AsyncPort) -> None:
        """Repair until nothing is damaged. May be cancelled at any await. Raises StoreError."""
        damage, pause_ms = self._store.damage, RETRY_FIRST_MS
        while self._peer_requests or damage.refused or damage.records:
            if self._peer_requests:
                self._check_claim(next(iter(self._peer_requests)))
                await port.sleep(CLAIM_PAUSE_MS)
            if damage.refused is not None:
                await self._report(port, damage.refused[0])
            mended = [await self._repair_record(port, record) for record in damage.records]
            if any(mended):
                pause_ms = RETRY_FIRST_MS
            elif damage.records or damage.refused:
                await port.sleep(RETRY_FIRST_MS if damage.refused else pause_ms)
                pause_ms = min(2 * pause_ms, RETRY_MOST_MS)

    def _check_claim(self, offset: PhyOffset) -> None:
        """Note an offset that a peer asked for and that is damaged or no record here."""
        del self._peer_requests[offset]
        self._check(offset)

    def _check(self, offset: int) -> None:
        if self._group.is_writing:
            return  # the log is being changed
        try:
            self._store.repair.check(offset)
        except DamagedError as error:
            self._store.damage.found(error)

    async def _report(self, port: AsyncPort, offset: int) -> None:
        """Ask the master for the record that it sent damaged, so that it checks its own."""
        for address in self._group.holders(PhyOffset(offset))[:1]:
            with suppress(UnreachableError):
                reply = await port.call(address, self._question(offset), CALL_TIMEOUT_MS)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and address not in self._traced:
                    self._traced.add(address)
                    self._tracer.event("damage_not_reported", address=address, reason="it does not know request 52034")

    @staticmethod
    def _question(offset: int) -> Command:
        return Command(RequestCode.RMQHA_READ_RECORD, {"version": str(VERSION), "phyOffset": str(offset)})

    async def _repair_record(self, port: AsyncPort, record: DamagedRecord) -> bool:
        """Repair one record; True if it is valid again."""
        reasons: list[str] = []
        damage, offset = self._store.damage, record.phy_offset
        for address in self._group.holders(PhyOffset(offset)):
            try:
                outcome, reason = await self._ask(port, address, record)
            except (UnreachableError, RemoteProtocolError) as error:
                reasons.append(str(error))
                continue
            if not self._is_still(record):
                return False
            if outcome is Repair.WRITTEN:
                await port.write(self._store.repair.sync, offset)
                return await self._write_copy(port, record, address)
            if outcome is Repair.SAME:
                damage.lacked(offset, ENTRY_DAMAGED, as_written=True)
                self._settled()
                return False
            reasons.append(f"{address}: {reason}")
        if self._is_still(record):
            damage.lacked(offset, "; ".join(reasons) or NOBODY)
            self._settled()
        return False

    def _is_still(self, record: DamagedRecord) -> bool:
        """False if the log is being changed, or was cut or trimmed meanwhile."""
        return not self._group.is_writing and self._store.damage.get(record.phy_offset) is record

    async def _write_copy(self, port: AsyncPort, record: DamagedRecord, address: str) -> bool:
        """Write the copy from `address` durably. True unless the record's file was removed meanwhile."""
        while self._group.is_writing:
            await port.sleep(CLAIM_PAUSE_MS)
        if not self._is_still(record):
            return False
        self._store.damage.repaired(record.phy_offset, address)
        # a sector has several records, and the begin of one is known from the one before
        self._check(self._store.repair.end_of(record.phy_offset))
        self._settled()
        return True

    async def _ask(self, port: AsyncPort, address: str, record: DamagedRecord) -> tuple[Repair, str]:
        """Ask a replica for a record. Raises UnreachableError, RemoteProtocolError and StoreError."""
        reply = await port.call(address, self._question(record.phy_offset), CALL_TIMEOUT_MS)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return Repair.REFUSED, "it does not know request 52034"
        if reply.code != ResponseCode.SUCCESS:
            return Repair.REFUSED, reply.remark or f"it answered code {reply.code}"
        if self._store.damage.get(record.phy_offset) is not record:
            return Repair.REFUSED, "it is damaged no more"
        if self._group.is_writing:
            return Repair.REFUSED, WAITS_FOR_DISK
        data = bytes(reply.body)
        if reply.ext.get("crc32") != str(crc32(data)):
            return Repair.REFUSED, "what came is not what was sent"
        return self._store.repair.offer(record.phy_offset, record.size_bytes, data, parse_entry(address, reply))


def parse_entry(address: str, reply: Command) -> EpochEntry | None:
    """Epoch entry of an answer to 52034, under which the peer's record was written. Raises RemoteProtocolError."""
    epoch, start_offset = reply.ext.get("epoch"), reply.ext.get("epochStartOffset")
    if epoch is None and start_offset is None:
        return None
    try:
        return EpochEntry(Epoch(int(epoch or "")), PhyOffset(int(start_offset or "")))
    except ValueError:
        raise RemoteProtocolError(f"the answer of {address} to request 52034 has no epoch that can be read") from None
