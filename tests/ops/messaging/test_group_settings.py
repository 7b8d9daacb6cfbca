"""Changes of a consumer group's settings in several broker groups."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rmqha.cli.messaging.consumer_change import edit_json, edit_sentence
from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UsageError
from rmqha.ops.messaging.brokers import EditResult
from rmqha.ops.messaging.group_settings import GroupEdit, apply_edit, plan_creation, plan_edit
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads


class FakeAdmin:
    """Masters of several broker groups, each with the settings of the consumer group, None if it has none."""

    def __init__(self, **settings: dict[str, Any] | None) -> None:
        self.settings = settings
        self.refusing = set[str]()

    async def cluster_info(self) -> dict[str, Any]:
        return {"brokers": {name: {"addresses": {0: name}} for name in self.settings}}

    async def ask(self, address: str, command: Command) -> Command:
        if command.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            if address in self.refusing:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", address)
            self.settings[address] = loads(bytes(command.body))
        elif self.settings[address] is None:
            raise RemoteError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group", address)
        return command.reply(body=dumps(self.settings[address]))


PAUSE = GroupEdit(reads=False)


async def test_a_partial_failure_is_told_and_the_others_are_changed() -> None:
    fake = FakeAdmin(a={"consumeEnable": True, "retryMaxTimes": 3}, b={"consumeEnable": True}, c=None)
    fake.refusing = {"a"}
    admin = cast("Admin", fake)
    changes = await plan_edit(admin, "g", PAUSE)
    assert [change.broker.name for change in changes] == ["a", "b"], "c does not know the group"
    result = await apply_edit(admin, "g", changes)
    assert result.done == ("b",)
    assert list(result.failed) == ["a"] and "in-sync replicas not enough" in result.failed["a"]
    told = edit_json("g", changes, result, dry_run=False)
    assert (told["changed"], told["failed"]) == (["b"], result.failed)
    assert edit_sentence("g", changes, result, creates=False) == "g: changed in b"

    fake.refusing = set()
    again = await plan_edit(admin, "g", PAUSE)
    assert await apply_edit(admin, "g", again) == EditResult(("a",))
    assert fake.settings["a"] is not None and fake.settings["a"]["retryMaxTimes"] == 3, "what is not given stays"
    so = await plan_edit(admin, "g", PAUSE)
    assert edit_sentence("g", so, await apply_edit(admin, "g", so), creates=False) == "g: is so already"


@pytest.mark.parametrize(
    ("existing", "sentence"),
    [
        ((), "g: made in a, b"),
        (("a",), "g: made in b, exists already in a and stays as it is; see rmqha consumer alter"),
        (("a", "b"), "g: exists already and stays as it is; see rmqha consumer alter"),
    ],
)
async def test_a_group_that_exists_stays_as_it_is(existing: tuple[str, ...], sentence: str) -> None:
    before = {name: {"retryMaxTimes": 16} if name in existing else None for name in ("a", "b")}
    fake = FakeAdmin(**before)
    admin = cast("Admin", fake)
    changes = await plan_creation(admin, "g", GroupEdit(max_retries=3))
    result = await apply_edit(admin, "g", changes)
    assert edit_sentence("g", changes, result, creates=True) == sentence
    assert all(fake.settings[name] == before[name] for name in existing)
    made = [cast("dict[str, Any]", fake.settings[name]) for name in ("a", "b") if name not in existing]
    assert all((row["groupName"], row["retryMaxTimes"]) == ("g", 3) for row in made)


async def test_a_group_that_nobody_knows_is_not_altered() -> None:
    with pytest.raises(UsageError, match="no broker of b knows a consumer group 'g'"):
        await plan_edit(cast("Admin", FakeAdmin(a={}, b=None)), "g", PAUSE, ("b",))
