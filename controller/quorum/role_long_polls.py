"""Long polls of the controllers' event log: who is master of which group, from an index on (request 52013). Pure.

Every member keeps the newest role changes, so that a new leader needs no reload. A client that asks from an index that
is too old, or that this log does not have, gets all groups in pages and goes on from the index of the first page:
changes that came meanwhile are sent again.

An answered role is applied, so it is decided; of two roles of one group the one with the higher master epoch counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from controller.state.answers import InvalidRequestError, integer
from controller.state.event import BrokerRegistered, BrokersCleaned, Event, MasterElected, MasterVacated, MemberRemoved
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.model.code import ResponseCode
from rmqha.wire import lenient_json
from rmqha.wire.auth.accesses import refusal_now
from rmqha.wire.command import Command

VERSION = 1
MAX_REMEMBERED_GROUPS = 10_000
PAGE_GROUPS = 500
MAX_WAIT_MS = 30_000
MAX_WAITING_COUNT = 64
_ROLE_EVENTS = (MasterElected, MasterVacated, MemberRemoved, BrokersCleaned, BrokerRegistered)


@dataclass(frozen=True, slots=True)
class RoleChangeRequest:
    """Request for role changes. All up to `from_index` are known. `after_place`: begin of the next page of all groups,
    None if no listing is under way."""

    from_index: int
    wait_ms: int
    after_place: int | None = None


class RoleChangeLog:
    """Newest role change of each group. `index` is that of the last applied entry."""

    def __init__(self, info: ReplicasInfo, index: int) -> None:
        self._info = info
        self._floor = self.index = index
        """Index above which role changes are remembered, each group's newest."""
        self._changed: OrderedDict[str, int] = OrderedDict()

    def applied(self, index: int, events: list[Event]) -> None:
        self.index = index
        for event in events:
            if isinstance(event, _ROLE_EVENTS):
                self._changed[event.broker_name] = index
                self._changed.move_to_end(event.broker_name)
        while len(self._changed) > MAX_REMEMBERED_GROUPS:
            _, self._floor = self._changed.popitem(last=False)

    def restart(self, index: int) -> None:
        """Begin anew after a snapshot has replaced the state."""
        self._changed.clear()
        self._floor = self.index = index

    def has_changes(self, request: RoleChangeRequest) -> bool:
        """True if there is something to answer; else the request may wait."""
        if request.after_place is not None or not self._floor <= request.from_index <= self.index:
            return True
        newest = next(reversed(self._changed.values()), 0)
        return newest > request.from_index

    def answer(self, command: Command, request: RoleChangeRequest) -> Command:
        """Answer with the role changes after `from_index`, or a page of all groups. Ext `index`: where to ask from
        next."""
        place = request.after_place
        if place is None and self._floor <= request.from_index <= self.index:
            newest = takewhile(lambda item: item[1] > request.from_index, reversed(self._changed.items()))
            groups = [self._info.groups[name] for name, _ in newest if name in self._info.groups]
            return _reply(command, self.index, groups, None)
        all_names = self._info.names
        start = place or 0
        groups = [self._info.groups[name] for name in all_names[start : start + PAGE_GROUPS]]
        end = start + len(groups)
        return _reply(command, self.index, groups, end if end < len(all_names) else None, full=True)


def parse_role_change_request(command: Command) -> RoleChangeRequest:
    """Parse the request. Raises InvalidRequestError for another version or numbers out of range."""
    if integer(command.ext, "version", VERSION) != VERSION:
        raise InvalidRequestError(f"request {command.code} is of another version than {VERSION}")
    from_index = max(0, integer(command.ext, "fromIndex", 0))
    place = integer(command.ext, "afterPlace", -1)
    wait_ms = min(MAX_WAIT_MS, max(0, integer(command.ext, "waitMs", 0)))
    return RoleChangeRequest(from_index, wait_ms, None if place < 0 else place)


@dataclass(frozen=True, slots=True)
class _Waiting:
    until_ms: int
    command: Command
    request: RoleChangeRequest
    answer: Callable[[Command], None]


class RoleLongPolls:
    """Requests that wait at this leader: each is answered at the next role change, or at its time-out."""

    def __init__(self, role_changes: RoleChangeLog) -> None:
        self._role_changes = role_changes
        self._waiting: list[_Waiting] = []

    def ask(self, now_ms: int, command: Command, answer: Callable[[Command], None]) -> None:
        """Take a request; `answer` is called once, now or later. Raises InvalidRequestError."""
        request = parse_role_change_request(command)
        if self._role_changes.has_changes(request) or len(self._waiting) >= MAX_WAITING_COUNT:
            answer(self._role_changes.answer(command, request))
        else:
            self._waiting.append(_Waiting(now_ms + request.wait_ms, command, request, answer))

    def changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if self._role_changes.has_changes(item.request):
                self._answer(item)
            else:
                self._waiting.append(item)

    def timeout(self, now_ms: int) -> None:
        due = [item for item in self._waiting if item.until_ms <= now_ms]
        self._waiting = [item for item in self._waiting if item.until_ms > now_ms]
        for item in due:
            self._answer(item)

    def _answer(self, item: _Waiting) -> None:
        """Answer a request that has waited, if its account may still make it."""
        if reason := refusal_now(item.command):
            item.command.principal.denied(item.command, reason)
            item.answer(item.command.reply(ResponseCode.NO_PERMISSION, {}, remark=reason))
        else:
            item.answer(self._role_changes.answer(item.command, item.request))

    def deadline_ms(self) -> int | None:
        return min((item.until_ms for item in self._waiting), default=None)

    def resign(self, refuse: Callable[[Command], Command]) -> None:
        """Refuse all waiting requests, for the clients to ask the new leader."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            item.answer(refuse(item.command))


def _reply(
    command: Command, index: int, groups: list[BrokerGroup], next_place: int | None, *, full: bool = False
) -> Command:
    rows: list[list[Any]] = [
        [group.broker_name, group.master_id or 0, group.master_address, group.master_epoch]
        for group in groups
        if group.master_epoch
    ]
    ext = {"version": str(VERSION), "index": str(index), "full": str(full).lower()}
    if next_place is not None:
        ext["nextPlace"] = str(next_place)
    return command.reply(ext=ext, body=lenient_json.dumps({"groups": rows}))
