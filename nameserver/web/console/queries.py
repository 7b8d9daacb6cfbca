"""Documents of the page's tables: topics, consumer groups, dead letters, waiting transactions and timer messages,
accounts. Shell.

Each has the content of a command, under the account of webCredentialsFile, or without one if there are no accounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from nameserver.web.lookup import text_field
from nameserver.web.message_view import short, visible
from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.message import MAX_TOPIC_BYTES, RETRY_PREFIX
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging import consumer_group, resending, timers, topics, transactions
from rmqha.ops.messaging.brokers import (
    all_brokers,
    ask_json,
    brokers_of_topic,
    from_each,
    queue_table,
    side_by_side,
)
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

MAX_ROWS = 500
MAX_CHARTED_GROUPS = 50
MAX_SHOWN_POLICIES = 64
MAX_BARS = 30
MAX_TIMED_TOPICS = 20

Document = dict[str, Any]
Query = Callable[[Admin, Mapping[str, str]], Awaitable[Document]]


async def topic_list(admin: Admin, query: Mapping[str, str]) -> Document:
    """Names of users' topics; `all` adds those of the servers."""
    names = await admin.topics()
    shown = names if query.get("all") else topics.of_users(names, await admin.cluster_info())
    return {"topics": [visible(name) for name in shown[:MAX_ROWS]], "leftOut": max(0, len(shown) - MAX_ROWS)}


async def topic(admin: Admin, query: Mapping[str, str]) -> Document:
    """A topic on each broker group: queues, permission, offsets."""
    name = text_field(query, "name", MAX_TOPIC_BYTES)
    told = await from_each(await brokers_of_topic(admin, name), lambda broker: _topic_at(admin, name, broker))
    return {
        "topic": visible(name),
        "groups": [{"group": visible(group), **row} for group, row in told.answers.items()],
        "silent": _silent(told.silent),
    }


async def _topic_at(admin: Admin, name: str, broker: Any) -> Document:
    settings = await topics.settings_at(admin, broker, name)
    command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name})
    rows = queue_table(await ask_json(admin, broker.address, command), broker.address)
    queues: list[dict[str, Any]] = []
    messages = 0
    with readable_answer(broker.address, "a broker's"):
        for (_, queue_id), row in sorted(rows.items()):
            low, high, newest_ms = (int(row[key]) for key in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
            messages += high - low
            queues.append({"queue": queue_id, "low": low, "high": high, "newestAtMs": newest_ms or None})
    words = {value: key for key, value in topics.PERMISSIONS.items()}
    return {
        "readQueues": settings.read_queues,
        "writeQueues": settings.write_queues,
        "permission": words.get(settings.perm & 6, str(settings.perm)),
        "attributes": {visible(key): visible(value) for key, value in settings.attributes.items()},
        "messages": messages,
        "queues": queues[:MAX_ROWS],
    }


async def consumer_list(admin: Admin, query: Mapping[str, str]) -> Document:
    """Consumer groups with members, lag and topics."""
    told = await consumer_group.group_names(admin)
    names = sorted({name for found in told.answers.values() for name in found})
    found = await consumer_group.describe_groups(admin, names[:MAX_ROWS])
    silent = dict(told.silent)
    for group in found:
        silent |= group.silent
    return {
        "groups": [
            {
                "group": visible(item.name),
                "members": len(item.members),
                "lag": item.lag,
                "model": (item.message_model or "").lower(),
                "topics": [visible(name) for name in item.topics],
            }
            for item in found
        ],
        "leftOut": max(0, len(names) - MAX_ROWS),
        "silent": _silent(silent),
    }


async def lags(admin: Admin) -> dict[str, int]:
    """Waiting messages of the first MAX_CHARTED_GROUPS consumer groups by name."""
    told = await consumer_group.group_names(admin)
    names = sorted({name for found in told.answers.values() for name in found})
    found = await consumer_group.describe_groups(admin, names[:MAX_CHARTED_GROUPS])
    return {visible(item.name): item.lag for item in found}


async def consumer(admin: Admin, query: Mapping[str, str]) -> Document:
    """All facts about one consumer group."""
    found = await consumer_group.describe_group(admin, text_field(query, "name", MAX_TOPIC_BYTES))
    return {
        "group": visible(found.name),
        "lag": found.lag,
        "oldestAgeMs": found.oldest_age_ms,
        "model": (found.message_model or "").lower(),
        "poppedInFlight": sum(found.popped.values()),
        "retriesWaiting": found.retries_waiting,
        "retriesDelayed": found.delayed.get(RETRY_PREFIX + found.name, (0, 0))[0],
        "deadLetters": found.dead_letters,
        "subscriptions": {visible(name): visible(text) for name, text in found.subscriptions.items()},
        "paused": {visible(place): visible(why) for place, why in found.paused.items()},
        "members": [
            {key: visible(value) if isinstance(value, str) else value for key, value in asdict(item).items()}
            for item in found.members[:MAX_ROWS]
        ],
        "progress": [
            {
                "topic": visible(item.topic),
                "queue": visible(str(item.queue)),
                "committed": item.committed,
                "end": item.end,
                "lag": item.lag,
                "oldestAgeMs": item.oldest_age_ms,
                "readAtMs": item.read_at_ms or None,
            }
            for item in found.progress[:MAX_ROWS]
        ],
        "silent": _silent(found.silent),
    }


async def dead_letters(admin: Admin, query: Mapping[str, str]) -> Document:
    """Dead letter queues of all consumer groups that have one."""
    names = await resending.groups_with_dead_letters(admin)
    found, failed = await side_by_side(names[:MAX_ROWS], lambda name: resending.queues_of(admin, name))
    return {
        "queues": [
            {
                "group": visible(item.group),
                "topic": visible(f"%DLQ%{item.group}"),
                "brokerName": visible(item.queue.broker_name),
                "queueId": item.queue.queue_id,
                "low": item.low,
                "dead": item.count,
                "notSentAgain": item.waiting,
                "newestAtMs": item.newest_at_ms or None,
            }
            for queues in found.values()
            for item in queues
        ],
        "silent": _silent({name: str(error) for name, error in failed.items()}),
    }


async def transactions_open(admin: Admin, query: Mapping[str, str]) -> Document:
    """Transactions without an end by producer group and topic. A broker of Apache's tells an upper bound only."""
    told = await transactions.open_transactions(admin)
    rows = [
        {
            "brokerName": visible(name),
            "producerGroup": visible(row.producer_group),
            "topic": visible(row.topic),
            "open": row.count,
            "oldestAgeMs": max(0, found.now_ms - row.oldest_born_at_ms),
            "checks": row.check_count,
            "producers": row.member_count,
        }
        for name, found in sorted(told.answers.items())
        for row in found.rows
    ]
    others = [
        {"brokerName": visible(name), "open": found.unread}
        for name, found in sorted(told.answers.items())
        if found.unread
    ]
    return {"rows": rows[:MAX_ROWS], "others": others, "silent": _silent(told.silent)}


async def waiting_timers(admin: Admin, query: Mapping[str, str]) -> Document:
    """Waiting timer messages by minutes until delivery and by topic; of one topic if `name` is given. Groups whose
    master does not know the request are listed as silent."""
    name = text_field(query, "name", MAX_TOPIC_BYTES) if query.get("name") else None
    told = await timers.count_waiting(admin, name)
    minutes: Counter[int] = Counter()
    by_topic: Counter[str] = Counter()
    for found in told.answers.values():
        minutes.update(found.minutes)
        by_topic.update(found.topics)
    step, rows = timers.by_step(minutes, MAX_BARS)
    return {
        "waiting": sum(found.waiting if name is None else found.topics.get(name, 0) for found in told.answers.values()),
        "unread": sum(found.unread for found in told.answers.values()),
        "overdueMs": max((found.overdue_ms for found in told.answers.values()), default=0),
        "stepMinutes": step,
        "rows": [{"atMs": at_ms, "count": count} for at_ms, count in rows],
        "topics": [
            {"topic": visible(topic), "count": count} for topic, count in by_topic.most_common(MAX_TIMED_TOPICS)
        ],
        "topicsLeftOut": max(0, len(by_topic) - MAX_TIMED_TOPICS),
        "silent": _silent(told.silent),
    }


async def accounts(admin: Admin, query: Mapping[str, str]) -> Document:
    """Users and policies of the first broker that answers; passwords are left out."""
    silent: dict[str, str] = {}
    for broker in await all_brokers(admin):
        try:
            users = _listed(await admin.ask(broker.address, Command(RequestCode.AUTH_LIST_USER)))
            policies = _listed(await admin.ask(broker.address, Command(RequestCode.AUTH_LIST_ACL)))
        except RmqhaError as error:
            silent[broker.name] = str(error)
            continue
        with readable_answer(broker.address, "a broker's"):
            return _account_document(users, policies, silent)
    return {"users": [], "silent": _silent(silent)}


def _account_document(users: list[Any], policies: list[Any], silent: Mapping[str, str]) -> Document:
    rights: dict[str, list[str]] = {}
    for item in policies:
        name = str(item.get("subject") or "").removeprefix("User:")
        for policy in item.get("policies") or ():
            for entry in policy.get("entries") or ():
                actions = entry.get("actions") or ""
                words = ", ".join(actions) if isinstance(actions, list) else str(actions)
                text = f"{entry.get('decision') or ''} {words} on {entry.get('resource') or ''}"
                rights.setdefault(name, []).append(short(" ".join(text.split())))
    rows = [
        {
            "user": visible(str(item.get("username") or "")),
            "type": visible(str(item.get("userType") or "")),
            "status": visible(str(item.get("userStatus") or "")),
            "rights": rights.get(str(item.get("username") or ""), [])[:MAX_SHOWN_POLICIES],
        }
        for item in users[:MAX_ROWS]
    ]
    return {"users": rows, "silent": _silent(silent)}


def _listed(answer: Command) -> list[Any]:
    body = bytes(answer.body)
    found = loads(body) if body else []
    if not isinstance(found, list):
        raise UsageError("the answer is no list")
    return found


def _silent(silent: Mapping[str, str]) -> list[str]:
    return [short(f"{name}: {why}") for name, why in sorted(silent.items())]


QUERIES: Mapping[str, Query] = {
    "topics": topic_list,
    "topic": topic,
    "consumers": consumer_list,
    "consumer": consumer,
    "dead-letters": dead_letters,
    "transactions": transactions_open,
    "timers": waiting_timers,
    "accounts": accounts,
}
