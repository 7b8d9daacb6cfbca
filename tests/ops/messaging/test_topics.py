"""Another shape for a topic: what is not named stays, and no message goes where nobody reads."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.ops.messaging.brokers import EditResult
from rmqha.ops.messaging.topics import (
    TopicEdit,
    TopicSettings,
    apply_edit,
    attributes_text,
    create,
    edited,
    of_users,
    plan_creation,
    plan_edit,
)
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps

SHAPE = TopicSettings(8, 4, 7, order=True, sys_flag=2, attributes={"queue.type": "BatchCQ"})


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


class FakeAdmin:
    """Masters of several broker groups, each with the read queues of the topic, None where it is not."""

    def __init__(self, **queues: int | None) -> None:
        self.queues = queues
        self.refusing = set[str]()

    async def cluster_info(self) -> dict[str, Any]:
        return {"brokers": {name: {"addresses": {0: name}} for name in self.queues}}

    async def route(self, topic: str) -> dict[str, Any]:
        return {"brokers": {name: {0: name} for name, count in self.queues.items() if count is not None}}

    async def ask(self, address: str, command: Command) -> Command:
        count = self.queues[address]
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            if address in self.refusing:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", address)
            self.queues[address] = int(command.ext["readQueueNums"])
            return command.reply()
        if count is None:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, "no such topic", address)
        shape = {"readQueueNums": count, "writeQueueNums": count, "perm": 6, "attributes": {"queue.type": "BatchCQ"}}
        return command.reply(body=dumps(shape))


async def made(
    fake: FakeAdmin, queue_count: int | None = None, *groups: str, **attributes: str
) -> tuple[EditResult, list[str]]:
    admin = cast("Admin", fake)
    plan = await plan_creation(
        admin, "T", queue_count, {name.replace("_", "."): attributes[name] for name in attributes}, groups
    )
    return await create(admin, "T", plan), sorted(plan.existing)


async def test_a_topic_that_exists_stays_as_it_is() -> None:
    fake = FakeAdmin(a=16, b=None)
    with pytest.raises(UsageError, match="T exists in a with 16 queues to read and 16 to write, so nothing was made"):
        await made(fake, 2)
    with pytest.raises(UsageError, match=r"queue.type=BatchCQ, .* rmqha topic alter T --attribute queue.type=SimpleCQ"):
        await made(fake, queue_type="SimpleCQ")
    with pytest.raises(UsageError, match="no attribute a, so nothing was made"):
        await made(fake, a="1")
    assert fake.queues == {"a": 16, "b": None}
    assert await made(fake, None, "a") == (EditResult(), ["a"])
    assert await made(fake, queue_type="BatchCQ") == (EditResult(("b",)), ["a"])
    assert fake.queues == {"a": 16, "b": 8}
    with pytest.raises(UnreachableError, match="there is no group z; known are a, b"):
        await made(fake, None, "z")


async def test_groups_that_refuse_a_topic_are_told_and_the_others_have_it() -> None:
    fake = FakeAdmin(a=None, b=None)
    fake.refusing = {"a"}
    result, _ = await made(fake, 4)
    assert (result.done, list(result.failed)) == (("b",), ["a"]) and "not enough" in result.failed["a"]
    fake.queues["a"] = 4
    changes = await plan_edit(cast("Admin", fake), "T", TopicEdit(5, 5))
    result = await apply_edit(cast("Admin", fake), "T", changes)
    assert (result.done, list(result.failed), fake.queues) == (("b",), ["a"], {"a": 4, "b": 5})
