"""SQL92 subscriptions: whether they are allowed (enablePropertyFilter), whether they compile, request 46."""

from __future__ import annotations

from rmqha.broker.requests.request import Channel, Handler, RequestError
from rmqha.broker.tables.clients import SQL92, TAG
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import find_property
from rmqha.model.selector import Selector, SelectorError, parse_selector
from rmqha.store.log.record import properties_of
from rmqha.store.reader import Matches
from rmqha.wire import lenient_json
from rmqha.wire.command import Command


def require_property_filter(config: BrokerConfig, expression_type: str) -> None:
    if not config.enable_property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )


def compile_selector(expression_type: str, expression: str) -> Selector:
    """Raises SelectorError, for a type that there is not too."""
    if expression_type != SQL92:
        raise SelectorError(f"there is no expression type {expression_type}")
    return parse_selector(expression)


def record_filter(selector: Selector) -> Matches:
    """Asks the selector about a record's properties. Only those that it names are decoded."""
    encoded: dict[str, bytes] = {}

    def matches(record: memoryview) -> bool:
        properties = properties_of(record)

        def get(name: str) -> str | None:
            key = encoded.get(name)
            if key is None:
                key = encoded[name] = name.encode()
            value = find_property(properties, key)
            return None if value is None else value.decode("utf-8", "replace")

        return selector.matches(get)

    return matches


class SelectorRequests:
    """Consumers ask before they start whether their selector will do."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self._check}

    def _check(self, channel: Channel, command: Command) -> Command:
        body = lenient_json.loads(command.body) if command.body else None
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
