"""Notice 40 to the members of consumer groups that have changed, so that they share the queues anew. Pure.

A group of AT_ONCE_COUNT members is told at once. Of a larger one MEMBERS_AT_A_TIME are told in a step, and what changes
meanwhile is told by one round more: thousands may come within a second, and each is news for all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmqha.broker.requests.request import Channel
from rmqha.broker.tables.clients import ClientTable
from rmqha.model.code import RequestCode
from rmqha.wire.command import FLAG_ONEWAY, Command

AT_ONCE_COUNT = 8
"""A connection is a member of 256 groups at most, which all change when it ends."""
MEMBERS_AT_A_TIME = 256
"""Members that are told in one step: some milliseconds."""


class GroupNotices:
    """`wake` is called when there are steps to do."""

    def __init__(self, clients: ClientTable, wake: Callable[[], None]) -> None:
        self._clients = clients
        self._wake = wake
        self._due: dict[str, None] = {}
        """Groups whose round has not begun, in the order of their changes."""
        self._told_next: deque[Channel] = deque()
        """Members whom the round that has begun is still to reach."""
        self._notice = Command(0)

    def changed(self, group_name: str) -> None:
        """Members or subscriptions of the group have."""
        group = self._clients.consumer_group(group_name)
        if group is None:
            return
        if len(group.channels) <= AT_ONCE_COUNT:
            notice = _notice(group_name)
            for channel in list(group.channels):
                channel.send(notice)
        else:
            self._due[group_name] = None
            self._wake()

    def step(self) -> bool:
        """Tell some; True if there are more."""
        if not self._told_next:
            name = next(iter(self._due), None)
            if name is None:
                return False
            del self._due[name]
            group = self._clients.consumer_group(name)
            self._told_next.extend(group.channels if group is not None else ())
            self._notice = _notice(name)
        for _ in range(min(MEMBERS_AT_A_TIME, len(self._told_next))):
            self._told_next.popleft().send(self._notice)
        return bool(self._told_next or self._due)


def _notice(group_name: str) -> Command:
    return Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_name}, flag=FLAG_ONEWAY)
