"""How far a group is with a message, and what a copy of one keeps."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.client.consumers.message import Message
from rmqha.client.producers.outgoing import check_message
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.ops.messaging.brokers import QueueName
from rmqha.ops.messaging.consumer_group import ConsumerGroup, GroupMember, QueueProgress
from rmqha.ops.messaging.messages import MessageTrack, TrackState, copy_of, tracked
from rmqha.ops.messaging.resending import for_its_group


def message(offset: int = 5, reconsume_times: int = 0, topic: str = "T", **properties: str) -> Message:
    return Message(
        topic, "g-a", 0, QueueOffset(offset), PhyOffset(0), b"body", {"UNIQ_KEY": "U", **properties}, "O", 1, 2,
        reconsume_times, 0,
    )  # fmt: skip


def group(
    committed: int | None, expression: str = "*", *, model: str = "CLUSTERING", sql: bool = False
) -> ConsumerGroup:
    rows = [QueueProgress("T", QueueName("g-a", 0), committed, 9), QueueProgress("T", QueueName("g-b", 0), 9, 9)]
    member = GroupMember("c", "h:1", "PYTHON", 1, ("g-a",))
    return ConsumerGroup(
        "g", [member], model, subscriptions={"T": expression}, by_selector={"T"} if sql else set(), progress=rows
    )


@pytest.mark.parametrize(
    ("found", "state", "ahead"),
    [
        (group(6), TrackState.READ, 0),
        (group(5), TrackState.WAITING, 0),
        (group(2), TrackState.WAITING, 3),
        (group(None), TrackState.WAITING, 5),
        (group(6, "B || C"), TrackState.FILTERED, 0),
        (group(6, "A || B"), TrackState.READ, 0),
        (group(5, "B"), TrackState.WAITING, 0),
        (group(6, "n > 80", sql=True), TrackState.READ, 0),
        (group(None, model="BROADCASTING"), TrackState.BROADCAST, 0),
    ],
)
def test_how_far_a_group_is_with_a_message(found: ConsumerGroup, state: TrackState, ahead: int) -> None:
    assert tracked(found, message(TAGS="A"), [], []) == MessageTrack("g", state, ahead, 0, 1)


def test_a_message_that_could_not_be_worked_off() -> None:
    back, dead = message(reconsume_times=2), message(reconsume_times=16)
    assert tracked(group(6), message(), [back, message(reconsume_times=3)], []).tries == 3
    assert tracked(group(6), message(), [back], []).state is TrackState.SENT_BACK
    assert tracked(group(6), message(), [back], [dead]) == MessageTrack("g", TrackState.DEAD, 0, 16, 1)


STORED: dict[str, Any] = {
    "KEYS": "k1 k2", "TAGS": "A", "own": "1", "WAIT": "false", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1",
    "CLUSTER": "c", "MSG_REGION": "r", "TRACE_ON": "true", "__CRC32#": "9", "RETRY_TOPIC": "T",
    "ORIGIN_MESSAGE_ID": "O1", "RECONSUME_TIME": "4", "TRAN_MSG": "true", "PGROUP": "p", "INNER_BASE": "7",
}  # fmt: skip


def test_a_copy_keeps_what_is_the_applications() -> None:
    made = copy_of(message(**STORED), "U")
    check_message(made)
    assert (made.topic, made.body, made.keys, made.tags) == ("U", b"body", "k1 k2", "A")
    assert made.properties == {"own": "1"}


def test_a_dead_letter_goes_to_its_group_alone() -> None:
    made = for_its_group(message(topic="%DLQ%g", **STORED), "g")
    check_message(made)
    assert made.topic == "%RETRY%g"
    assert made.properties == {"own": "1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "O1"}
    # one that an old client sent there by itself
    made = for_its_group(message(topic="%DLQ%g"), "g")
    assert made.properties == {"RETRY_TOPIC": "%DLQ%g", "ORIGIN_MESSAGE_ID": "O"}
