"""The client library: `from rmqha.client import Producer, Consumer, Admin`. Each is loaded when it is first named: the
servers use parts of this package and load no more than those."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.client.consumers.consumer import Consumer
    from rmqha.client.consumers.message import Message, MessageBatch, MessageView
    from rmqha.client.consumers.pop_consumer import PopConsumer, PoppedMessage
    from rmqha.client.producers.outgoing import OutgoingMessage
    from rmqha.client.producers.producer import Producer
    from rmqha.client.producers.result import SendResult, SendStatus, SendTally
    from rmqha.client.producers.transaction import Outcome, Transaction, TransactionProducer

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "MessageBatch",
    "MessageView",
    "Outcome",
    "OutgoingMessage",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "SendResult",
    "SendStatus",
    "SendTally",
    "Transaction",
    "TransactionProducer",
]

_MODULES = {
    "Admin": "admin",
    "Consumer": "consumers.consumer",
    "Message": "consumers.message",
    "MessageBatch": "consumers.message",
    "MessageView": "consumers.message",
    "Outcome": "producers.transaction",
    "OutgoingMessage": "producers.outgoing",
    "PopConsumer": "consumers.pop_consumer",
    "PoppedMessage": "consumers.pop_consumer",
    "Producer": "producers.producer",
    "SendResult": "producers.result",
    "SendStatus": "producers.result",
    "SendTally": "producers.result",
    "Transaction": "producers.transaction",
    "TransactionProducer": "producers.transaction",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
