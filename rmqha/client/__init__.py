"""The client library: `from rmqha.client import Producer, Consumer, Admin`. Each is loaded when it is first named: the
servers use parts of this package and load no more than those."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.client.consumer import Consumer
    from rmqha.client.message import Message, MessageBatch, MessageView
    from rmqha.client.outgoing import OutgoingMessage
    from rmqha.client.producer import Producer
    from rmqha.client.result import SendResult, SendStatus, SendTally
    from rmqha.client.transaction import Outcome, Transaction, TransactionProducer

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "MessageBatch",
    "MessageView",
    "Outcome",
    "OutgoingMessage",
    "Producer",
    "SendResult",
    "SendStatus",
    "SendTally",
    "Transaction",
    "TransactionProducer",
]

_MODULES = {
    "Admin": "admin",
    "Consumer": "consumer",
    "Message": "message",
    "MessageBatch": "message",
    "MessageView": "message",
    "Outcome": "transaction",
    "OutgoingMessage": "outgoing",
    "Producer": "producer",
    "SendResult": "result",
    "SendStatus": "result",
    "SendTally": "result",
    "Transaction": "transaction",
    "TransactionProducer": "transaction",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
