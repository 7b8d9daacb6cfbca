"""`rmqha explain` beside a replica that follows nobody."""

from __future__ import annotations

import json

import pytest

from rmqha.cli.admin.explain import ask_refusals, show
from rmqha.model.code import RequestCode as Code
from rmqha.wire.state.explained_state import ExplainedGroup
from tests.cli.health.reports import group_row, replica_row, told_by_a_broker
from tests.client.test_admin import peers
from tests.support.patience import HANG_MS


async def test_a_refused_fork_is_told_with_the_replicas_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    async with peers(2) as (refusing, silent):
        state = told_by_a_broker(3) | {"refusal": "following would cut to 10, below the own confirm offset 20"}
        refusing.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, json.dumps(state).encode())
        rows = [
            replica_row(1),
            replica_row(2, inSyncStateSet=False, address=silent.address),
            replica_row(3, inSyncStateSet=False, address=refusing.address),
        ]
        view = ExplainedGroup.from_json(group_row(replicas=rows) | {"answer": "replica 1 is master of epoch 4"})
        refusals = await ask_refusals(view, HANG_MS)
        assert refusals == {3: "following would cut to 10, below the own confirm offset 20"}
        show("broker-a", view, refusals)
        assert "follows nobody: following would cut to 10" in " ".join(capsys.readouterr().out.split())
