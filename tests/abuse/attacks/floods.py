"""Cheap and costly requests, as many as the server takes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import count
from random import Random

from rmqha.model.code import RequestCode
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.abuse.attack import Attack, made, over_and_over, requests
from tests.abuse.attacks.bodies import send_request
from tests.abuse.scene import Scene

OPEN = frozenset(("open",))
ENTRIES = 20_000


def oneway(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    return Command(code, ext, body, flag=FLAG_ONEWAY)


def unknown_codes(scene: Scene, number: int) -> Iterator[Command]:
    chance = Random(number)
    while True:
        yield Command(chance.choice((-1, 0, 7, 999, 52_099, 2**31 - 1)), {"x": "y"})


def bad_frames(scene: Scene, number: int) -> Iterator[bytes]:
    """Each ends its connection."""
    chance = Random(number)
    yield struct.pack(">iI", chance.choice((-1, 2**31 - 1, 4, 8)), chance.randrange(2**32)) + chance.randbytes(64)


def big_heartbeat(scene: Scene, number: int) -> Iterator[Command]:
    """A megabyte of subscriptions."""
    for turn in count():
        subscriptions = [
            {"topic": f"t{turn}-{entry}", "subString": "a || b || c", "subVersion": turn, "tagsSet": [], "codeSet": []}
            for entry in range(9000)
        ]
        consumer = {
            "groupName": "guest",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        body = {"clientID": f"guest@{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def new_groups(scene: Scene, number: int) -> Iterator[Command]:
    """Heartbeats that each name a hundred groups that nobody knows."""
    for turn in count():
        consumers = [
            {
                "groupName": f"g-{number}-{turn}-{entry}",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": scene.own_topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
                ],
            }
            for entry in range(100)
        ]
        body = {"clientID": f"guest@{number}", "producerDataSet": [], "consumerDataSet": consumers}
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def new_topics(scene: Scene, number: int) -> Iterator[Command]:
    for turn in count():
        yield send_request(scene, f"t-{number}-{turn}", b"x")


def new_topics_by_admin(scene: Scene, number: int) -> Iterator[Command]:
    for turn in count():
        ext = {
            "topic": f"made-{number}-{turn}",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        yield Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


PULLED = {
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": str(1 | 4),
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}
"""A pull that commits and names its subscription."""


def offsets_of_random_groups(scene: Scene, number: int) -> Iterator[Command]:
    chance = Random(number)
    while True:
        ext = {
            "consumerGroup": f"g{chance.randrange(2**60)}",
            "topic": scene.topic,
            "queueId": "0",
            "commitOffset": "0",
        }
        yield oneway(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        # A commit makes no group; a pull that carries one does.
        yield oneway(RequestCode.PULL_MESSAGE, ext | PULLED)


def offsets_of_one_group(scene: Scene, number: int) -> Iterator[Command]:
    for turn in count():
        ext = {"consumerGroup": "guest", "topic": scene.own_topic, "queueId": "0", "commitOffset": str(turn % 100)}
        yield Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def index_walks(scene: Scene, number: int) -> Iterator[Command]:
    """First messages with one key, then queries for it that walk their whole chain."""
    for _ in range(200):
        command = send_request(scene, scene.own_topic, b"x")
        command.ext["i"] = command.ext["i"] + "KEYS\x01same " + " ".join(f"k{n}" for n in range(60)) + "\x02"
        yield command
    while True:
        for key in ("same", "k1", f"none{number}"):
            ext = {
                "topic": scene.own_topic,
                "key": key,
                "maxNum": "100000",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            yield Command(RequestCode.QUERY_MESSAGE, ext)


def filtered_pulls(scene: Scene, number: int) -> Iterator[Command]:
    """Pulls over a queue of ENTRIES messages none of which has the tag."""
    if number == 0:
        for _ in range(ENTRIES):
            yield oneway(RequestCode.SEND_MESSAGE_V2, send_request(scene, scene.own_topic, b"x").ext, b"x")
    while True:
        yield pull(scene, "absent", 0, 0)


def pull(
    scene: Scene, subscription: str, suspend_ms: int, offset: int, expression_type: str = "TAG", queue_id: int = 0
) -> Command:
    ext = {
        "consumerGroup": "guest",
        "topic": scene.own_topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "1024",
        "sysFlag": str(4 | (2 if suspend_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": subscription,
        "subVersion": "0",
        "expressionType": expression_type,
    }
    return Command(RequestCode.PULL_MESSAGE, ext)


SQL_ENTRIES = 2_000
SQL = (
    " AND ".join(f"a{n} > {n}" for n in range(2000)),
    " AND ".join(f"a{n} > {n}" for n in range(250)),
    " OR ".join(f"zeros = {n}" for n in range(250)),
    " OR ".join(f"zeros BETWEEN {n} AND 9{n}.5" for n in range(160)),
    " OR ".join("long = TRUE" for _ in range(250)),
    "(" * 3000 + "a > 1" + ")" * 3000,
    " AND ".join(["(" * 90 + "TRUE" + ")" * 90] * 5),
    "NOT " * 3000 + "TRUE",
    "a IN (" + ",".join(f"'{n}'" for n in range(9000)) + ")",
    "a LIKE '" + "%a" * 2000 + "'",
    " OR ".join(["long CONTAINS 'aaabaa'"] * 120),
    "long CONTAINS '" + "a" * 500 + "b" + "a" * 500 + "'",
)


def with_properties(command: Command) -> Command:
    """As many bytes of them as a message may have."""
    command.ext["i"] += f"\x02zeros\x01{'0' * 15_000}5\x02long\x01{'a' * 15_000}\x02"
    return command


def sql_pulls(scene: Scene, number: int) -> Iterator[Command]:
    """Expressions that are long, deep, or never true, over many messages, some of them with long properties."""
    if number == 0:
        for turn in range(SQL_ENTRIES):
            command = send_request(scene, scene.own_topic, b"x")
            yield command if turn % 100 else with_properties(command)
    for turn in count():
        for text in SQL:
            yield pull(scene, text + " " * (turn % 1000), 0, 0, "SQL92")


def sql_heartbeats(scene: Scene, number: int) -> Iterator[Command]:
    """As many expressions as a heartbeat may have."""
    texts = [text for text in SQL if len(text) < 10_000]
    for turn in count():
        subscriptions = [
            {"topic": f"t{entry}", "subString": f"{text} ", "subVersion": turn, "expressionType": "SQL92"}
            for entry, text in enumerate(texts * 4)
        ]
        consumer = {"groupName": "guest", "subscriptionDataSet": subscriptions}
        body = {"clientID": f"guest@{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def held_filters(scene: Scene, number: int) -> Iterator[Command]:
    """Pulls that wait with a filter which takes nothing, and messages that they are shown."""
    for turn in count():
        yield pull(scene, SQL[1] if turn % 2 else "absent", 30_000, 0, "SQL92" if turn % 2 else "TAG", queue_id=1)
        if turn % 8 == 0:
            command = send_request(scene, scene.own_topic, b"x")
            command.ext["e"] = "1"
            yield command


def long_polls(scene: Scene, number: int) -> Iterator[bytes]:
    """A thousand held pulls for each connection, then silence. Nothing is sent to their queue."""
    yield scene.frame(send_request(scene, scene.own_topic, b"x"), "guest")
    for turn in range(1000):
        command = pull(scene, "*", 30_000, 0, queue_id=2)
        command.opaque = turn
        yield scene.frame(command, "guest")


def held_headers(scene: Scene, number: int) -> Iterator[bytes]:
    """Pulls and pops that wait, each with as much in its header as a header may have, then silence."""
    yield scene.frame(send_request(scene, scene.own_topic, b"x"), "guest")
    for turn in range(64):
        held = pull(scene, "*", 30_000, 0, queue_id=turn % 4)
        popped = {"maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "30000", "bornTime": "0", "initMode": "1"}
        ext = {"consumerGroup": "guest", "topic": scene.own_topic, "queueId": "3", **popped}
        for command in (held, Command(RequestCode.POP_MESSAGE, ext)):
            command.ext["x"] = f"{turn}" + "x" * 200_000
            yield scene.frame(command, "guest")


def held_tags(scene: Scene, number: int) -> Iterator[bytes]:
    """The same, with thousands of tags."""
    yield scene.frame(send_request(scene, scene.own_topic, b"x"), "guest")
    for turn in range(64):
        tags = "||".join(f"{turn:x}{number:x}{tag:x}" for tag in range(3_000))
        yield scene.frame(pull(scene, tags, 30_000, 0, queue_id=turn % 4), "guest")


def wide_heartbeats(scene: Scene, number: int) -> Iterator[Command]:
    """Each names groups that nobody knows, each with hundreds of subscriptions."""
    for turn in count():
        subscriptions = [{"topic": f"t{entry}"} for entry in range(900)]
        consumers = [
            {"groupName": f"w-{number}-{turn}-{entry}", "subscriptionDataSet": subscriptions} for entry in range(16)
        ]
        body = {"clientID": f"guest@{number}", "producerDataSet": [], "consumerDataSet": consumers}
        yield Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def big_bodies(scene: Scene, number: int) -> Iterator[bytes]:
    return over_and_over(scene.frame(send_request(scene, scene.own_topic, bytes(1 << 20)), "guest"))


def replies_to_nothing(scene: Scene, number: int) -> Iterator[bytes]:
    """Responses without a request."""
    return over_and_over(scene.frames((Command(0, {}, b"x" * 100, flag=1, opaque=n) for n in range(64)), ""))


def routes(scene: Scene, number: int) -> Iterator[Command]:
    for turn in count():
        yield Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"t{turn % 1000}" if turn % 2 else scene.topic})


def delayed(scene: Scene, number: int) -> Iterator[Command]:
    while True:
        yield send_request(scene, scene.own_topic, b"x", delay=1)


FAIR = "Sessions take turns, so it delays no other"
ATTACKS = [
    Attack(
        "flood-26", "master", requests(Command(RequestCode.GET_BROKER_CONFIG)), "Requests for the configuration", FAIR
    ),
    Attack(
        "flood-26-slave",
        "slave",
        requests(Command(RequestCode.GET_BROKER_CONFIG)),
        "The same at a slave",
        FAIR,
        in_short=False,
    ),
    Attack(
        "flood-52000", "master", requests(Command(RequestCode.RMQHA_GET_REPLICA_STATE)), "Looks at the replica", FAIR
    ),
    Attack("flood-105", "namesrv", made(routes), "Requests for routes", FAIR),
    Attack(
        "flood-tables",
        "master",
        requests(
            Command(RequestCode.GET_ALL_TOPIC_CONFIG),
            Command(RequestCode.GET_ALL_CONSUMER_OFFSET),
            Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            Command(RequestCode.GET_ALL_DELAY_OFFSET),
        ),
        "Requests for whole tables (21, 43, 45, 201)",
        FAIR,
    ),
    Attack("flood-unknown-codes", "master", made(unknown_codes), "Codes that do not exist", FAIR),
    Attack(
        "flood-oneway",
        "master",
        requests(oneway(RequestCode.GET_BROKER_RUNTIME_INFO), oneway(RequestCode.HEART_BEAT, {}, b"{")),
        "Requests that want no answer",
        FAIR,
    ),
    Attack(
        "flood-sends",
        "master",
        made(lambda scene, _: iter(lambda: send_request(scene, scene.own_topic, b"x"), None)),
        "Sends of the own topic without waiting",
        FAIR,
        in_short=False,
    ),
    Attack("flood-delayed", "master", made(delayed), "Delayed messages without waiting", FAIR, in_short=False),
    Attack(
        "big-bodies",
        "master",
        big_bodies,
        "Sends of one MiB without waiting",
        "Large sends wait unwritten while 128 KiB of the log are not acknowledged; turns go by bytes",
    ),
    Attack("bad-frames", "master", bad_frames, "Bytes that are no frame", "The connection is closed", churns=True),
    Attack("answers-to-nothing", "master", replies_to_nothing, "Responses without a request", "Dropped"),
    Attack("big-heartbeats", "master", made(big_heartbeat), "Heartbeats with 9,000 subscriptions", FAIR),
    Attack("new-groups", "master", made(new_groups), "Heartbeats that make groups", "`maxGroupCount` bounds the table"),
    Attack(
        "new-topics",
        "master",
        made(new_topics),
        "Sends that make topics",
        "SYSTEM_BUSY beyond `autoCreateMaxPerSecond`; `maxTopicCount` bounds the table",
        missed_p99_ms=5_000,
    ),
    Attack(
        "new-topics-17",
        "master",
        made(new_topics_by_admin),
        "Requests that make topics",
        "SYSTEM_BUSY beyond 256 that wait to be held; `maxTopicCount` bounds the table",
        in_short=False,
    ),
    Attack(
        "offsets-of-random-groups",
        "master",
        made(offsets_of_random_groups),
        "Consumer offsets of groups with random names",
        "The table of offsets is bounded",
    ),
    Attack("offsets", "master", made(offsets_of_one_group), "Commits without waiting", FAIR, in_short=False),
    Attack("index-walks", "master", made(index_walks), "Queries that walk the index (12)", FAIR),
    Attack("filtered-pulls", "master", made(filtered_pulls), "Pulls whose filter passes over 20,000 messages", FAIR),
    Attack(
        "sql-filters",
        "master",
        made(sql_pulls),
        "Long and deep SQL expressions over many messages",
        "Refused beyond a bound; what a pull may evaluate is bounded",
        both=True,
    ),
    Attack(
        "sql-heartbeats",
        "master",
        made(sql_heartbeats),
        "Heartbeats full of SQL expressions",
        "They are compiled when they are first used",
        in_short=False,
    ),
    Attack(
        "held-filters",
        "master",
        made(held_filters),
        "Held pulls with filters, and sends that they are shown",
        "What is looked at for the held pulls of a queue is bounded; the others are told to pull again",
    ),
    Attack(
        "held-headers",
        "master",
        held_headers,
        "Held pulls and pops with headers of 200 KB",
        "Of what waits its topic and its group are kept",
        in_short=False,
    ),
    Attack(
        "held-tags",
        "master",
        held_tags,
        "Held pulls with thousands of tags",
        "The filters of what waits are bounded together; the others are told to pull again",
        in_short=False,
    ),
    Attack(
        "wide-heartbeats",
        "master",
        made(wide_heartbeats),
        "Heartbeats of ever new groups with hundreds of subscriptions",
        "The subscriptions of all groups are bounded together: SYSTEM_BUSY",
        in_short=False,
    ),
    Attack("long-polls", "master", long_polls, "A thousand held pulls for each connection", "Held pulls are bounded"),
]
