"""Tables and changes of the page: who may make them, and what a request of another site comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.code import RequestCode as Code
from tests.nameserver.web.site import TOPIC, Site, page, with_consumers
from tests.nameserver.web.test_lookup import stored

MAKE = {"act": "topic.create", "topic": "orders", "queues": "4"}


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    path = tmp_path / "page.credentials"
    path.write_text("accessKey=page\nsecretKey=page12345678\n")
    path.chmod(0o600)
    return str(path)


async def headers_of(site: Site) -> dict[str, str]:
    """Headers as the page's own script sends them."""
    token = json.loads((await site.get("/standing"))[2])["token"]
    return {
        "Host": f"127.0.0.1:{site.port}",
        "Origin": site.base,
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
        "X-Rmqha-Token": token,
    }


async def act(site: Site, fields: Mapping[str, Any], **changed: str | None) -> tuple[int, dict[str, Any]]:
    """The status, and the document if it is one; `changed` headers, None removes one."""
    headers = await headers_of(site) | {name.replace("_", "-"): value or "" for name, value in changed.items()}
    headers = {name: value for name, value in headers.items() if value}
    status, _, body = await site.post("/act", json.dumps(fields).encode(), headers)
    return status, json.loads(body)


def orders(site: Site) -> list[dict[str, str]]:
    """The topics that the master was told to make."""
    return [asked.ext for asked in site.brokers[0].asked if asked.code == Code.UPDATE_AND_CREATE_TOPIC]


async def test_the_page_itself_makes_a_topic_by_the_account_of_its_file(credentials: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        site.brokers[0].replies[Code.UPDATE_AND_CREATE_TOPIC] = (0, {}, b"")
        assert await act(site, MAKE) == (200, {"done": "orders: 4 queues in broker-a"})
        (made,) = orders(site)
        assert (made["topic"], made["writeQueueNums"], made["AccessKey"]) == ("orders", "4", "page")


async def test_a_group_that_refuses_a_change_of_a_topic_is_named(credentials: str) -> None:
    shape = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    wanted = {"act": "topic.alter", "topic": TOPIC, "permission": "read", "readQueues": "4", "writeQueues": "4"}
    async with page(web_credentials_file=credentials) as site:
        site.brokers[0].replies[Code.GET_TOPIC_CONFIG] = (0, {}, json.dumps(shape).encode())
        site.brokers[0].replies[Code.UPDATE_AND_CREATE_TOPIC] = (1, {}, b"")
        status, found = await act(site, wanted)
    assert status != 200 and f"{TOPIC}: changed in no group, not in broker-a: " in found["error"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", None),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Sec_Fetch_Site", "cross-site"),
        ("Sec_Fetch_Site", "same-site"),
        ("Sec_Fetch_Site", "none"),
        ("Content_Type", "text/plain"),
        ("Content_Type", "application/x-www-form-urlencoded"),
        ("X_Rmqha_Token", None),
        ("X_Rmqha_Token", "guessed"),
    ],
)
async def test_no_other_site_makes_the_page_change_anything(credentials: str, header: str, value: str | None) -> None:
    async with page(web_credentials_file=credentials) as site:
        site.brokers[0].replies[Code.UPDATE_AND_CREATE_TOPIC] = (0, {}, b"")
        status, found = await act(site, MAKE, **{header: value})
        assert status == 403
        assert found["error"]
        assert orders(site) == []


async def test_changes_are_off_without_an_account_and_no_token_is_told() -> None:
    async with page() as site:
        standing = json.loads((await site.get("/standing"))[2])
        assert (standing["acts"], standing["token"]) == (False, "")
        assert "webCredentialsFile" in standing["why"]
        status, found = await act(site, MAKE)
        assert status == 403
        assert "webCredentialsFile" in found["error"]
        assert orders(site) == []


async def test_another_site_is_told_no_token_and_no_table(credentials: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        for path in ("/standing", "/ask?of=topics", "/hour?group=broker-a"):
            assert (await site.get(path, {"Sec-Fetch-Site": "cross-site"}))[0] == 403, path


async def test_tables_are_off_where_there_are_accounts_and_the_page_has_none(tmp_path: Path) -> None:
    async with page(http_host="127.0.0.1", acl_enable=True, acl_file=acl_file(tmp_path)) as site:
        found = json.loads((await site.get("/ask?of=topics"))[2])
        assert "webCredentialsFile" in found["refused"]


def acl_file(scratch: Path) -> str:
    path = scratch / "acl.yml"
    path.write_text("accounts:\n  - accessKey: admin\n    secretKey: secret12345\n    admin: true\n")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"act": "purge"}, "act must be one of"),
        ([], "act must be one of"),
        ({"act": "topic.create", "topic": "a b", "queues": "4"}, "must consist of"),
        ({"act": "topic.create", "topic": "x", "queues": "0"}, "between 1 and 1024"),
        ({"act": "topic.create", "topic": TOPIC, "queues": "1"}, "already"),
        ({"act": "topic.delete", "topic": TOPIC, "confirm": "t"}, "nothing was deleted"),
        ({"act": "topic.alter", "topic": TOPIC, "permission": "all"}, "permission must be one of"),
        ({"act": "message.send", "topic": TOPIC, "body": ""}, "a body must have"),
        ({"act": "message.send", "topic": "none", "body": "x"}, "there is no topic none"),
        ({"act": "dlq.resend", "group": "billing"}, "has no dead letters"),
        ({"act": "message.resend", "id": "x"}, "topic is missing"),
    ],
)
async def test_a_change_that_cannot_be_made_is_one_sentence(credentials: str, fields: Any, words: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        status, found = await act(site, fields)
        assert status == 400
        assert words in found["error"]
        assert orders(site) == []


async def test_a_message_is_sent_again_to_its_own_topic(credentials: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        (record,) = stored(b"body")
        master = site.brokers[0]
        master.replies[Code.QUERY_MESSAGE] = (0, {}, record)
        master.replies[Code.SEND_MESSAGE_V2] = (0, {"msgId": "A", "queueId": "0", "queueOffset": "1"}, b"")
        asked = {"act": "message.resend", "topic": TOPIC, "id": "U0"}
        assert (await act(site, asked, X_Rmqha_Token="guessed"))[0] == 403
        status, found = await act(site, asked)
        assert status == 200 and found["done"].startswith("a copy was sent to T as ")
        (sent,) = [item for item in master.asked if item.code == Code.SEND_MESSAGE_V2]
        assert bytes(sent.body) == b"body" and "KEYS\x01k" in sent.ext["i"] and "U0" not in sent.ext["i"]


def resets(site: Site) -> list[tuple[str, str]]:
    """Queue and offset of each queue that the master was told to set."""
    code = Code.INVOKE_BROKER_TO_RESET_OFFSET
    return [(asked.ext["queueId"], asked.ext["offset"]) for asked in site.brokers[0].asked if asked.code == code]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {},
            "nothing was changed; it would be: 4 messages of T read again, 0 passed over, 1 queues. Write the group's",
        ),
        ({"to": "last"}, "0 messages of T read again, 7 passed over, 2 queues"),
        ({"to": "last", "confirm": "bill"}, "nothing was changed"),
        ({"to": "9"}, "to must be first, last or time"),
        ({"to": "time", "at": "noon"}, "at must be a time"),
        ({"topic": "none"}, "none"),
    ],
)
async def test_a_reset_says_first_what_it_would_change(credentials: str, fields: Any, words: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        with_consumers(site)
        status, found = await act(site, {"act": "consumer.reset", "group": "billing", "to": "first"} | fields)
        assert status == 400 and words in found["error"]
        assert resets(site) == []


async def test_a_group_goes_on_from_another_place_once_its_name_is_written(credentials: str) -> None:
    async with page(web_credentials_file=credentials) as site:
        with_consumers(site)
        asked = {"act": "consumer.reset", "group": "billing", "topic": TOPIC, "to": "last", "confirm": "billing"}
        status, _ = await act(site, asked, Origin="https://evil.example")
        assert (status, resets(site)) == (403, [])
        done = "billing: 0 messages of T read again, 7 passed over, 2 queues"
        assert await act(site, asked) == (200, {"done": done})
        assert sorted(resets(site)) == [("0", "9"), ("1", "2")]
        with_consumers(site)
        status, _ = await act(site, asked | {"to": "first", "topic": ""})
        assert status == 200 and sorted(resets(site))[0] == ("0", "0")


async def test_an_unknown_table_is_one_sentence() -> None:
    async with page() as site:
        status, _, body = await site.get("/ask?of=passwords")
        assert status == 400
        assert "of must be one of" in json.loads(body)["error"]


async def test_topics_are_listed_and_a_passwords_never_shown() -> None:
    async with page() as site:
        found = json.loads((await site.get("/ask?of=topics"))[2])
        assert found == {"topics": [TOPIC], "leftOut": 0}
        users = [{"username": "ann", "password": "hidden", "userType": "Super", "userStatus": "enable"}]
        entry = {"resource": "Topic:orders", "actions": ["PUB", "SUB"], "decision": "ALLOW"}
        policies = [{"subject": "User:ann", "policies": [{"policyType": "CUSTOM", "entries": [entry]}]}]
        site.brokers[0].replies[Code.AUTH_LIST_USER] = (0, {}, json.dumps(users).encode())
        site.brokers[0].replies[Code.AUTH_LIST_ACL] = (0, {}, json.dumps(policies).encode())
        body = (await site.get("/ask?of=accounts"))[2]
        assert b"hidden" not in body
        (user,) = json.loads(body)["users"]
        assert (user["user"], user["rights"]) == ("ann", ["ALLOW PUB, SUB on Topic:orders"])


def timers_answer(**changed: Any) -> bytes:
    """A broker's answer to 52036."""
    told: dict[str, Any] = {
        "version": 1,
        "nowMs": 60_000,
        "delivers": True,
        "waiting": 7,
        "unread": 1,
        "overdueMs": 0,
        "topicCount": 2,
    }
    told |= {"topics": [[TOPIC, 4], ["<b>", 3]], "minutes": [[120_000, 5], [240_000, 2]]}
    return json.dumps(told | changed).encode()


async def test_timer_messages_are_told_by_minute_and_by_topic() -> None:
    async with page() as site:
        site.brokers[0].replies[Code.RMQHA_GET_TIMERS] = (0, {}, timers_answer())
        found = json.loads((await site.get("/ask?of=timers"))[2])
        assert (found["waiting"], found["unread"], found["stepMinutes"], found["silent"]) == (7, 1, 1, [])
        assert [tuple(row.values()) for row in found["rows"]] == [(120_000, 5), (180_000, 0), (240_000, 2)]
        assert [tuple(row.values()) for row in found["topics"]] == [(TOPIC, 4), ("<b>", 3)]
        site.brokers[0].replies[Code.RMQHA_GET_TIMERS] = (0, {}, timers_answer(topics=[[TOPIC, 4]]))
        assert json.loads((await site.get(f"/ask?of=timers&name={TOPIC}"))[2])["waiting"] == 4
        assert site.brokers[0].asked[-1].ext["topic"] == TOPIC


@pytest.mark.parametrize("answer", [(1, {}, b""), (0, {}, b"{"), (0, {}, b'{"nowMs": 1}')])
async def test_a_group_that_does_not_tell_its_timers_is_named(answer: tuple[int, dict[str, str], bytes]) -> None:
    async with page() as site:
        site.brokers[0].replies[Code.RMQHA_GET_TIMERS] = answer
        found = json.loads((await site.get("/ask?of=timers"))[2])
        assert found["waiting"] == 0 and len(found["silent"]) == 1 and "broker-a" in found["silent"][0]


async def test_transactions_without_an_end_are_told_by_producer_group_and_topic() -> None:
    async with page() as site:
        rows = [["<b>", TOPIC, 3, 1_000, 2, 0], ["pay", TOPIC, 1, 9_000, 0, 1]]
        told = {"version": 1, "nowMs": 10_000, "waiting": 6, "unread": 2, "rowCount": 2, "rows": rows}
        site.brokers[0].replies[Code.RMQHA_GET_TRANSACTIONS] = (0, {}, json.dumps(told).encode())
        found = json.loads((await site.get("/ask?of=transactions"))[2])
        assert [tuple(row.values()) for row in found["rows"]] == [
            ("broker-a", "<b>", TOPIC, 3, 9_000, 2, 0),
            ("broker-a", "pay", TOPIC, 1, 1_000, 0, 1),
        ]
        assert found["others"] == [{"brokerName": "broker-a", "open": 2}] and found["silent"] == []
