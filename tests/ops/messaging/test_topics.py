"""Another shape for a topic: what is not named stays, and no message goes where nobody reads."""

from __future__ import annotations

import pytest

from rmqha.model.error import UsageError
from rmqha.ops.messaging.topics import TopicEdit, TopicShape, attributes_text, edited, of_users

SHAPE = TopicShape(8, 4, 7, order=True, sys_flag=2, attributes={"queue.type": "BatchCQ"})


@pytest.mark.parametrize(
    ("edit", "read_queues", "write_queues", "perm"),
    [
        (TopicEdit(), 8, 4, 7),
        (TopicEdit(read_queues=9), 9, 4, 7),
        (TopicEdit(write_queues=0), 8, 0, 7),
        (TopicEdit(read_queues=2, write_queues=2), 2, 2, 7),
        # the bit that says that the brokers made the topic is not an operator's
        (TopicEdit(perm=4), 8, 4, 5),
        (TopicEdit(perm=0), 8, 4, 1),
    ],
)
def test_what_is_not_named_stays(edit: TopicEdit, read_queues: int, write_queues: int, perm: int) -> None:
    after = edited(SHAPE, edit)
    assert (after.read_queues, after.write_queues, after.perm) == (read_queues, write_queues, perm)
    assert (after.order, after.sys_flag, after.attributes) == (True, 2, {"queue.type": "BatchCQ"})


def test_attributes_are_set_and_removed() -> None:
    edit = TopicEdit(attributes={"queue.type": None, "a": "1"})
    assert edited(SHAPE, edit).attributes == {"a": "1"}
    assert attributes_text(edit) == "-queue.type,+a=1"
    assert SHAPE.attributes == {"queue.type": "BatchCQ"}
    with pytest.raises(UsageError, match="no attribute 'b'; it has queue"):
        edited(SHAPE, TopicEdit(attributes={"b": None}))


@pytest.mark.parametrize("edit", [TopicEdit(read_queues=3), TopicEdit(write_queues=9)])
def test_no_message_goes_where_nobody_reads(edit: TopicEdit) -> None:
    with pytest.raises(UsageError, match="would take messages that nobody reads; give both"):
        edited(SHAPE, edit)


def test_topics_of_users() -> None:
    info = {"brokers": {"broker-a": {}}, "clusters": {"c": []}}
    names = [
        "T",
        "broker-a",
        "c",
        "%RETRY%g",
        "%DLQ%g",
        "TBW102",
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_x",
        "c_REPLY_TOPIC",
        "U",
    ]
    assert of_users(names, info) == ["T", "U"]
