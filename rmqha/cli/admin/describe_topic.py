"""`rmqha describe topic`: where a topic's messages are, and what the groups that hold it promise. Control plane."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import click

from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.render import Text, console, table
from rmqha.client.admin import Admin
from rmqha.host.asking.shell import Caller, ask_by, open_client
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError
from rmqha.model.offset import MASTER_ID
from rmqha.ops.group_view import ask_broker, promise_of
from rmqha.ops.messaging.brokers import require_brokers
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import ObjectKey, loads

QUEUE_COLUMNS = [
    ("GROUP", "left"),
    ("QUEUE", "right"),
    ("MIN", "right"),
    ("MAX", "right"),
    ("MESSAGES", "right"),
    ("LAST STORED", "left"),
]
PERMISSIONS = {0: "none", 2: "write", 4: "read", 6: "read and write"}


@click.command("topic", epilog="Example: rmqha describe topic orders")
@click.argument("name", metavar="TOPIC")
@namesrv_option
@output_option
def topic_command(name: str, namesrv: str, output: str) -> None:
    """Tell in which groups TOPIC is, its queues with their offsets, and what those groups promise.

    Exit code: 0 every group of it was asked, 1 one could not be, 2 there is no such topic or nobody to ask.
    """
    describe_topic(name, namesrv, output)


def describe_topic(name: str, namesrv: str, output: str) -> None:
    """Print a topic; exit code 1 if one of its groups could not be asked."""
    view = ask_by(_ask, namesrv, name)
    if output == "json":
        echo_json(view)
    else:
        _show(view)
    if any(group["error"] for group in view["groups"]):
        sys.exit(1)


async def _ask(namesrv: str, name: str) -> dict[str, Any]:
    """A topic, JSON-ready. UsageError for one that the name servers do not know."""
    async with Admin(namesrv) as admin, open_client() as client:
        try:
            route = await admin.route(name)
        except RemoteError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                await require_brokers(admin)
                raise UsageError(f"the name servers {namesrv} know no topic {name!r}; see rmqha topic ls") from None
            raise
        groups = []
        for group, addresses in sorted(route["brokers"].items()):
            groups.append(await _describe_group(admin, client, name, group, addresses, route["queues"].get(group, {})))
        return {"topic": name, "answeredBy": route["answered_by"], "groups": groups}


async def _describe_group(
    admin: Admin, client: Caller, name: str, group: str, addresses: dict[int, str], queues: dict[str, int]
) -> dict[str, Any]:
    """A topic in one group, by its master, else by any broker of the group; a failure is in `error`."""
    address = addresses.get(MASTER_ID) or next(iter(addresses.values()), "")
    row: dict[str, Any] = {
        "group": group,
        "askedAt": address,
        "master": addresses.get(MASTER_ID),
        "permission": PERMISSIONS.get(queues.get("perm", -1), str(queues.get("perm"))),
        "readQueues": queues.get("read"),
        "writeQueues": queues.get("write"),
        "attributes": {},
        "queues": [],
        "kind": None,
        "acknowledged": None,
        "error": None,
    }
    try:
        row["queues"] = await _queues(admin, address, name)
        row["attributes"] = await _attributes(admin, address, name)
        view = await ask_broker(client, address)
        if view.error:
            raise RmqhaError(view.error)
        _, found = promise_of(view)
        row |= {"kind": found.kind, "acknowledged": found.acknowledged}
    except RmqhaError as error:
        row["error"] = str(error)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        row["error"] = f"an answer of {address} cannot be read: {error}"
    return row


async def _queues(admin: Admin, address: str, name: str) -> list[dict[str, int]]:
    """Queues of an answer to request 202, in order of the queue ids."""
    reply = await admin.ask(address, Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}))
    found = []
    for key, row in loads(bytes(reply.body)).get("offsetTable", {}).items():
        queue = key if isinstance(key, ObjectKey) else json.loads(key)
        found.append(
            {
                "queueId": int(queue["queueId"]),
                "minOffset": int(row["minOffset"]),
                "maxOffset": int(row["maxOffset"]),
                "lastStoredMs": int(row["lastUpdateTimestamp"]),
            }
        )
    return sorted(found, key=lambda item: item["queueId"])


async def _attributes(admin: Admin, address: str, name: str) -> dict[str, Any]:
    """Attributes of an answer to request 351, such as queue.type, and order."""
    body = loads(bytes((await admin.ask(address, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": name}))).body))
    found = dict(body.get("attributes") or {})
    if body.get("order"):
        found["order"] = True
    return found


def _show(view: dict[str, Any]) -> None:
    out = console()
    groups = view["groups"]
    count = sum(queue["maxOffset"] - queue["minOffset"] for group in groups for queue in group["queues"])
    names = ", ".join(group["group"] for group in groups)
    what = "1 message" if count == 1 else f"{count} messages"
    out.print(Text(f"{view['topic']} in {names}: {what}", "bold"))
    rows = []
    for group in groups:
        for queue in group["queues"]:
            stored_ms = queue["lastStoredMs"]
            at = f"{datetime.fromtimestamp(stored_ms / 1000).astimezone():%m-%d %H:%M:%S}" if stored_ms else ""
            low, high = queue["minOffset"], queue["maxOffset"]
            rows.append([group["group"], queue["queueId"], low, high, high - low, at])
    out.print(table(QUEUE_COLUMNS, rows))
    for group in groups:
        sizes = f"{group['readQueues']} queues to read, {group['writeQueues']} to write, {group['permission']} allowed"
        told = "".join(f", {key} {value}" for key, value in sorted(group["attributes"].items()))
        out.print(Text(f"{group['group']}: {sizes}{told}"))
        if group["acknowledged"]:
            out.print(Text(f"{group['group']}: {group['kind']}: {group['acknowledged']}"))
        if group["master"] is None:
            out.print(Text(f"{group['group']}: it has no master", "red"))
        if group["error"]:
            out.print(Text(f"{group['group']}: {group['error']}", "red"))
