"""Notice 40 to the members of consumer groups that have changed, for them to rebalance. Pure.

A small group is notified at once. A larger one is notified in steps of NOTIFIED_PER_STEP, and changes meanwhile cause
one more round: thousands of members may come within a second, and each changes the group for all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmqha.broker.requests.request import Channel
from rmqha.broker.tables.clients import ClientTable
from rmqha.model.code import RequestCode
from rmqha.wire.command import FLAG_ONEWAY, Command

SMALL_GROUP_COUNT = 8
"""Members of a group that is notified at once. A connection is a member of 256 groups at most, which all change when it
ends."""
NOTIFIED_PER_STEP = 256
"""Members that are notified in one step: some milliseconds."""


class GroupNotices:
    """Queue of notices. `wake` is called when there are steps to do."""

    def __init__(self, clients: ClientTable, wake: Callable[[], None]) -> None:
        self._clients = clients
        self._wake = wake
        self._due: dict[str, None] = {}
        """Groups whose round has not begun, in the order of their changes."""
        self._remaining: deque[Channel] = deque()
        """Members to whom the running round must still send."""
        self._notice = Command(0)

    def changed(self, group_name: str) -> None:
        """Take note that members or subscriptions of the group have changed."""
        group = self._clients.consumer_group(group_name)
        if group is None:
            return
        if len(group.channels) <= SMALL_GROUP_COUNT:
            notice = _notice(group_name)
            for channel in list(group.channels):
                channel.send(notice)
        else:
            self._due[group_name] = None
            self._wake()

    def step(self) -> bool:
        """Notify some members; True if more remain."""
        if not self._remaining:
            name = next(iter(self._due), None)
            if name is None:
                return False
            del self._due[name]
            group = self._clients.consumer_group(name)
            self._remaining.extend(group.channels if group is not None else ())
            self._notice = _notice(name)
        for _ in range(min(NOTIFIED_PER_STEP, len(self._remaining))):
            self._remaining.popleft().send(self._notice)
        return bool(self._remaining or self._due)


def _notice(group_name: str) -> Command:
    return Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_name}, flag=FLAG_ONEWAY)
