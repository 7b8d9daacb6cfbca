"""Choice of the next controller to ask: the leader if known, else each of controllerAddr in turn. A decision, no
trio."""

from __future__ import annotations

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import ConfigError
from rmqha.model.identity import split_addresses
from rmqha.wire.command import Command


def parse_addresses(text: str, key: str) -> list[str]:
    """Addresses by `split_addresses`. Raises ConfigError naming `key`."""
    try:
        return split_addresses(text)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


class ControllerRoute:
    """The controller to ask next. `target` is its address; report the result of each request. The leader is remembered
    between requests."""

    def __init__(self, addresses: list[str]) -> None:
        assert addresses
        self._addresses = addresses
        self._place = 0
        self._leader = ""

    def follow(self, addresses: list[str]) -> None:
        """Use these configured addresses from now on."""
        assert addresses
        self._addresses = addresses
        self._place %= len(addresses)

    @property
    def leader(self) -> str:
        """Address of the leader, "" if unknown."""
        return self._leader

    @property
    def target(self) -> str:
        return self._leader or self._addresses[self._place]

    @property
    def max_attempts(self) -> int:
        """Number of requests that reach every configured address and its redirect."""
        return 2 * len(self._addresses) + 1

    def attempt_timeout_ms(self, left_ms: int) -> int:
        """Time-out (ms) of a request to one of several controllers, before the next is asked."""
        return left_ms if len(self._addresses) == 1 else max(1, min(left_ms, max(300, left_ms // 2)))

    def answered(self, address: str) -> None:
        """Take note that `address` answered as the leader."""
        self._leader = address

    def redirected(self, address: str, leader: str) -> None:
        """Take note that `address` is no leader and names `leader` ("" if it knows none)."""
        if leader and leader != address:
            self._leader = leader
        else:
            self.failed(address)

    def failed(self, address: str) -> None:
        """Turn to the next configured address after a failure of `address`."""
        if self._leader == address:
            self._leader = ""
        self._place = (self._place + 1) % len(self._addresses)


def is_redirect(reply: Command) -> bool:
    return reply.code == ResponseCode.CONTROLLER_NOT_LEADER


def named_leader(reply: Command) -> str:
    """Leader that a refusal or an answer to 1005 names; "" if none."""
    return reply.ext.get("controllerLeaderAddress") or ""


def answer_to(command: Command, reply: Command, *, is_open: bool) -> Command:
    """Final answer of a call. `is_open`: an earlier attempt had no answer and may still be executed. A refusal of a
    later copy of an alter does not prove that no copy will be applied (ruling 1)."""
    if not is_open or reply.code == ResponseCode.SUCCESS or command.code != RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
        return reply
    remark = f"a copy of the request may still be applied; a later one was refused with code {reply.code}"
    return reply.reply(ResponseCode.SYSTEM_ERROR, remark=f"{remark}: {reply.remark}")
