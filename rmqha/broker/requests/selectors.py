"""SQL92 subscriptions: permission (enablePropertyFilter), compilation, request 46."""

from __future__ import annotations

from rmqha.broker.requests.request import Channel, Handler, RequestError, Shares
from rmqha.broker.tables.clients import SQL92, TAG
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import find_property
from rmqha.model.principal import Principal
from rmqha.model.selector import Selector, SelectorError, parse_selector
from rmqha.store.log.record import properties_of
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

MAX_EVALUATED = 5_000
"""Bound on the cost of the selectors of one pull: two or three milliseconds."""

HELD_FILTER_BYTES = 24 * 1024 * 1024
"""Bound on the memory of the filters of waiting requests, of pulls and of pops each."""
SHORT_FILTER_CHARS = 1024
_FILTER_BYTES, _FILTER_BYTES_PER_CHAR = 256, 24
"""Memory of a filter, and of each character of its expression: short tags need that much."""


class HeldFilters:
    """Memory of the filters of waiting requests. An amount is the number of characters of an expression; 0: none.
    Filters longer than SHORT_FILTER_CHARS may have half of it, so that short ones find room, and so may one account."""

    def __init__(self, max_bytes: int = HELD_FILTER_BYTES) -> None:
        self._shares = Shares(max_bytes)

    @property
    def size_bytes(self) -> int:
        return self._shares.used

    def take(self, principal: Principal, amount: int) -> bool:
        """Count a filter; False, with nothing counted, beyond the bound."""
        size_bytes = filter_bytes(amount)
        if not size_bytes:
            return True
        if amount > SHORT_FILTER_CHARS and self.size_bytes + size_bytes > self._shares.most // 2:
            return False
        return self._shares.take(principal, size_bytes)

    def give_back(self, access_key: str, amount: int) -> None:
        """Stop counting a filter of that account whose request was answered."""
        if size_bytes := filter_bytes(amount):
            self._shares.give_back(access_key, size_bytes)
            assert self.size_bytes >= 0, "a filter is dropped that was not held"


def filter_bytes(chars: int) -> int:
    """Upper bound on the memory of a filter with that many characters; 0 for none."""
    return _FILTER_BYTES + _FILTER_BYTES_PER_CHAR * chars if chars else 0


def require_property_filter(config: BrokerConfig, expression_type: str) -> None:
    if not config.enable_property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )


def compile_selector(expression_type: str, expression: str) -> Selector:
    """Selector of an expression. Raises SelectorError, also for an unknown type."""
    if expression_type != SQL92:
        raise SelectorError(f"there is no expression type {expression_type}")
    return parse_selector(expression)


class RecordFilter:
    """Applies a selector to records' properties. Only properties that it names are decoded, once per record. A costly
    selector reads few records in one pull: `begin` it, then `used` grows until it `is_spent`."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._encoded: dict[str, bytes] = {}
        self.used = 0
        """Cost so far in half microseconds at most, as `Selector.cost`."""

    def begin(self) -> None:
        self.used = 0

    @property
    def is_spent(self) -> bool:
        return self.used >= MAX_EVALUATED

    def __call__(self, record: memoryview) -> bool:
        properties, encoded = properties_of(record), self._encoded
        self.used += self._selector.cost(len(properties))
        found: dict[str, str | None] = {}

        def get(name: str) -> str | None:
            if name in found:
                return found[name]
            key = encoded.get(name)
            if key is None:
                key = encoded[name] = name.encode()
            value = find_property(properties, key)
            text = found[name] = None if value is None else value.decode("utf-8", "replace")
            return text

        return self._selector.matches(get)


class SelectorRequests:
    """Check of a selector that consumers request before they start."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self._check}

    def _check(self, channel: Channel, command: Command) -> Command:
        body = lenient_json.loads(command.body, is_strict=True) if command.body else None
        subscription = body.get("subscriptionData") if isinstance(body, dict) else None
        if not isinstance(subscription, dict):
            return command.reply()
        expression_type = str(subscription.get("expressionType") or TAG)
        if expression_type != TAG:
            require_property_filter(self._config, expression_type)
            try:
                compile_selector(expression_type, str(subscription.get("subString") or ""))
            except SelectorError as error:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"Invalid MessageSelector. {error}"
                ) from None
        return command.reply()
