"""The live documents over real sockets: who is asked when, and what silent and odd nodes do to the page."""

from __future__ import annotations

import json
from contextlib import aclosing

import pytest
import trio

from nameserver.web.watch import MAX_VIEWERS, ClusterWatch
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode as Code
from tests.cli.hostile import hostile
from tests.ha.group import started
from tests.nameserver.web.site import GROUP, page, register
from tests.support.patience import HANG_S

PERIOD_S = 0.2


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nameserver.web.watch.PERIOD_S", PERIOD_S)


async def test_nobody_is_asked_before_a_page_is_open_and_after_it_is_closed(short_rounds: None) -> None:
    async with page(started()) as site:
        await trio.sleep(0.3)
        assert [peer.asked for peer in site.brokers] == [[], [], []]
        with trio.fail_after(HANG_S):
            async with aclosing(site.documents()) as documents:
                async for found in documents:
                    assert found["health"]["healthy"], found["health"]
                    assert [row["role"] for row in found["groups"][0]["replicas"]] == ["MASTER", "SLAVE", "SLAVE"]
                    assert found["controllers"][0]["role"] == "LEADER"
                    break
        # the recorder of the last hour goes on looking at brokers, and at nobody else
        with trio.fail_after(HANG_S):
            before = -1
            while len(site.controller.asked) != before:
                before = len(site.controller.asked)
                await trio.sleep(3 * PERIOD_S)


async def test_a_new_master_is_looked_at_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nameserver.web.watch.PERIOD_S", 10 * HANG_S)
    async with page(started()) as site, RemotingClient() as client:
        with trio.fail_after(HANG_S):
            async with aclosing(site.events("/events")) as events:
                looks = 0
                async for name, _ in events:
                    looks += name == "at"
                    if looks == 1 and name == "at":
                        await register(client, site.namesrv, 7, "127.0.0.1:1")
                    if looks == 2:
                        break


async def test_a_change_reaches_an_open_page_and_an_unchanged_picture_is_not_sent_again(short_rounds: None) -> None:
    async with page(started()) as site:
        seen = []
        with trio.fail_after(HANG_S):
            async with aclosing(site.documents()) as documents:
                async for found in documents:
                    seen.append(found["groups"][0]["writable"])
                    if len(seen) > 1:
                        break
                    await trio.sleep(3 * PERIOD_S)
                    master = site.brokers[0]
                    state = json.loads(master.replies[Code.RMQHA_GET_REPLICA_STATE][2])
                    state |= {"writable": False, "whyNotWritable": "disk full"}
                    master.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, json.dumps(state).encode())
        assert seen == [True, False]


async def test_heartbeats_come_while_a_look_takes_long_and_its_time_is_that_of_the_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is old is never told with a new time."""
    hold, whole = trio.Event(), ClusterWatch._round

    async def endless(watch: ClusterWatch, client: RemotingClient) -> int:
        if watch.round_count:
            await hold.wait()
        return await whole(watch, client)

    monkeypatch.setattr(ClusterWatch, "_round", endless)
    monkeypatch.setattr("nameserver.web.watch.BEAT_S", 0.1)
    async with page(started()) as site:
        seen = []
        with trio.fail_after(HANG_S):
            async with aclosing(site.events()) as events:
                async for name, value in events:
                    seen.append((name, value))
                    if len(seen) > 20 and not hold.is_set():
                        assert [item for item, _ in seen if item != "beat"] == ["message", "at"]
                        hold.set()
                    if hold.is_set() and name == "at":
                        break
        looks = [value for item, value in seen if item == "at"]
        assert [look["nextMs"] for look in looks] == [3000, 3000] and looks[0]["at"] < looks[1]["at"]


async def test_a_frozen_and_a_foreign_node_cost_a_sentence_each() -> None:
    with hostile("half-dead") as frozen, hostile("ssh") as foreign:
        async with page(started()) as site:
            state = json.loads(site.controller.replies[Code.RMQHA_GET_CONTROLLER_STATE][2])
            rows = state["groups"][GROUP]["replicas"]
            rows[1]["address"], rows[2]["address"] = frozen, foreign
            site.controller.replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, json.dumps(state).encode())
            with trio.fail_after(HANG_S):
                async with aclosing(site.documents()) as documents:
                    async for found in documents:
                        rows = {row["address"]: row for row in found["groups"][0]["replicas"]}
                        assert rows[site.brokers[0].address]["role"] == "MASTER"
                        assert rows[frozen]["role"] == rows[foreign]["role"] == "DOWN"
                        wheres = [item["where"] for item in found["health"]["findings"]]
                        assert [wheres.count(f"broker {address}") for address in (frozen, foreign)] == [1, 1]
                        break


async def test_answers_that_are_no_answers_leave_the_name_server_alive(short_rounds: None) -> None:
    async with page(started()) as site:
        for body in (b"[]", b'{"role":7}', b"\xff"):
            for peer in (*site.brokers, site.controller):
                peer.replies = {code: (0, {}, body) for code in peer.replies}
            with trio.fail_after(HANG_S):
                async with aclosing(site.documents()) as documents:
                    async for found in documents:
                        assert found["error"] if "error" in found else not found["health"]["healthy"]
                        break
        assert (await site.get("/healthz"))[0] == 200


async def test_a_groups_page_asks_closer() -> None:
    async with page(started()) as site:
        cut = {"at_ms": 5, "event": "log_truncated", "end_offset": 10, "cut_bytes": 7}
        site.brokers[2].replies[Code.RMQHA_GET_HISTORY] = (0, {}, json.dumps({"events": [cut]}).encode())
        with trio.fail_after(HANG_S):
            async with aclosing(site.documents(f"/events?group={GROUP}")) as documents:
                async for found in documents:
                    assert found["answer"] == "replica 1 is master of epoch 1"
                    assert found["elections"][0]["reason"] == "lowest id"
                    assert [part["kind"] for part in found["logs"]["lanes"][2]["parts"]][-1] == "cut"
                    break
            async with aclosing(site.documents("/events?group=nowhere")) as documents:
                async for found in documents:
                    assert "knows a group 'nowhere'" in found["error"]
                    break
        asked = [command.code for command in site.brokers[2].asked]
        assert asked.count(Code.RMQHA_GET_HISTORY) == 1


async def test_too_many_pages_are_refused_in_words() -> None:
    async with page(started()) as site, trio.open_nursery() as nursery:

        async def look() -> None:
            async with aclosing(site.documents()) as documents:
                async for _ in documents:
                    pass

        for _ in range(MAX_VIEWERS):
            nursery.start_soon(look)
        with trio.fail_after(HANG_S):
            while True:
                status, _, body = await site.get("/events?group=" + "x" * 301)
                if status == 503:
                    break
                await trio.sleep(0.05)
        assert body == b"32 pages are open already; close one\n"
        nursery.cancel_scope.cancel()
