"""Bodies that hold records: what a client stores so that it can name an offset inside a message of its own."""

from __future__ import annotations

from rmqha.model.message import encode_properties
from rmqha.store.log.record import NewMessage, encode, topic_field
from tests.broker.support import Broker, send_command

BODY_AT = 88
"""Where the body of a record with IPv4 hosts begins."""
HOST = (b"\x7f\0\0\1", 20911)
NO_TEXT = b"\x02\xff\xfe"
"""Length and bytes of a topic that is not UTF-8."""


def record(
    phy_offset: int,
    topic: str = "T",
    *,
    queue_id: int = 0,
    queue_offset: int = 0,
    body: bytes = b"planted",
    properties: dict[str, str] | None = None,
    sys_flag: int = 0,
    field: bytes | None = None,
) -> bytes:
    """A whole record, its CRC right, which says that it stands at `phy_offset`. `field`: other bytes for the topic."""
    name, version = topic_field(topic)
    message = NewMessage(
        topic, queue_id, body, encode_properties(properties or {"KEYS": "k"}), 1, HOST, HOST, 0, sys_flag
    )
    return encode(message, name if field is None else field, version, queue_offset, phy_offset, 1)


def half(phy_offset: int, *, real_topic: str = "Foreign", queue_offset: int = 0) -> bytes:
    """One of the topic of half messages, of a transaction that nobody began."""
    properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "ID", "REAL_TOPIC": real_topic, "REAL_QID": "0"}
    topic = "RMQ_SYS_TRANS_HALF_TOPIC"
    return record(phy_offset, topic, queue_offset=queue_offset, properties=properties)


def next_offset(broker: Broker, before: int = 0) -> int:
    """Where the `before`th byte of the next message's body will stand."""
    return int(broker.store.max_phy_offset) + BODY_AT + before


def plant(broker: Broker, body: bytes, topic: str = "T") -> int:
    """Send `body`; the physical offset of its first byte."""
    start = next_offset(broker)
    assert broker.ask(send_command(topic, body=body)).code == 0
    return start
