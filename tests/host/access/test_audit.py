"""The audit log: who asked for what, from where, allowed or not; bounded, rotated, beside the event loop."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from rmqha.host.access import audit
from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.audit import AuditLog
from rmqha.host.access.auth_filter import Audited, AuthFilter
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import ConfigError, UsageError
from rmqha.wire.command import Command
from tests.host.access.test_auth_filter import ACCOUNTS, FakeSession, Taken, signed_send
from tests.host.access.test_security import secret_file
from tests.support.patience import HANG_S


@pytest.fixture
def tracer() -> HostTracer:
    return HostTracer(write=lambda line: None)


@pytest.fixture
def kept(tmp_path: Path, tracer: HostTracer) -> Iterator[AuditLog]:
    made = opened(tmp_path, tracer)
    yield made
    made.close()


def opened(tmp_path: Path, tracer: HostTracer, level: str = "changes", **keys: Any) -> AuditLog:
    config = ServerConfig(audit_log_level=level, log_file=str(tmp_path / "log" / "broker.log"), **keys)
    made = AuditLog.of(config, "broker", tracer)
    assert made is not None
    return made


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log" / "audit.log").read_text().splitlines()]


def guarded(tmp_path: Path, made: AuditLog, *commands: Command, peer: str = "10.0.0.2:7") -> None:
    accounts = AccessFile(Path(secret_file(tmp_path / "acl.yml", ACCOUNTS)))
    AuthFilter(Taken(), accounts, Statistics(), made).received(cast(Session, FakeSession(peer)), list(commands))


def test_refused_requests_are_kept_with_who_where_what_and_why(tmp_path: Path, kept: AuditLog) -> None:
    guarded(tmp_path, kept, signed_send("T"), signed_send("U"), Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"a=b"))
    kept.close()
    send, config = lines(tmp_path)
    assert send.pop("time").endswith("Z")
    assert send == {
        "server": "broker",
        "from": "10.0.0.2:7",
        "account": "orders",
        "code": 310,
        "request": "SEND_MESSAGE_V2",
        "about": {"topic": "U"},
        "allowed": False,
        "reason": "account orders has no PUB permission on topic U",
    }
    assert (config["account"], config["about"], config["allowed"]) == (None, {}, False)
    assert (tmp_path / "log" / "audit.log").stat().st_mode & 0o137 == 0


def test_changes_are_kept_though_allowed_and_tell_no_values_of_keys(tmp_path: Path, kept: AuditLog) -> None:
    changes = [
        Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=1\nsecret=x=y\nnonsense"),
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "b": "no topic here"}),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}'),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"[" * 10_000),
        Command(RequestCode.HEART_BEAT, {}),
        Command(RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "G"}),
    ]
    guarded(tmp_path, kept, *changes, peer="10.0.0.1:9")
    Audited(Taken(), kept).received(cast(Session, FakeSession("[::1]:5")), [Command(99_999), *changes[-2:]])
    kept.close()
    assert [(line["from"], line["request"], line["about"]) for line in lines(tmp_path)] == [
        ("10.0.0.1:9", "UPDATE_BROKER_CONFIG", {"keys": "fileReservedTime,secret"}),
        ("10.0.0.1:9", "UPDATE_AND_CREATE_TOPIC", {"topic": "T"}),
        ("10.0.0.1:9", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", {"group": "G"}),
        ("10.0.0.1:9", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", {"group": "?"}),
        ("[::1]:5", "99999", {}),
    ]
    assert all(line["allowed"] and line["account"] is None for line in lines(tmp_path))


GRANTED = [
    {"policyType": "Custom", "entries": [{"resource": "Topic:*", "actions": ["Pub", "Sub"], "decision": "Allow"}]},
    {"policyType": "Default", "entries": [{"resource": "Cluster:*", "actions": ["All"], "decision": "Deny"}]},
]

DISGUISED = [
    {
        "entries": [
            {
                "resource": f"topic:*{'x' * 300}*",
                "actions": ["no action " * 30, "all"],
                "decision": "ALLOW",
                "sourceIps": ["10.0.0.0/8", "::1"],
            }
        ]
    }
]
"""What the service takes for all actions on all topics."""


@pytest.mark.parametrize(
    ("command", "about"),
    [
        (
            Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"consumerGroup": "Decoy", "groupName": "G"}),
            {"group": "Decoy", "groupName": "G"},
        ),
        (
            Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "group": "Decoy"}),
            {"group": "Decoy", "groupName": "G"},
        ),
        (
            Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"consumerGroup": "Decoy", "topic": "T", "group": "G"}),
            {"topic": "T", "group": "G", "consumerGroup": "Decoy"},
        ),
        (
            Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {"topic": "Decoy"}, b'{"topic":"T","consumerGroup":"G"}'),
            {"topic": "T", "group": "G"},
        ),
        (Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, b"[]"), {"topic": "?", "group": "?"}),
        (
            Command(RequestCode.AUTH_CREATE_ACL, {"subject": "User:Decoy"}, b'{"subject":"User:u"}'),
            {"subject": "User:u"},
        ),
        (Command(RequestCode.AUTH_UPDATE_ACL, {"subject": "User:u"}, b'{"policies":[]}'), {"subject": "User:u"}),
        (
            Command(RequestCode.AUTH_UPDATE_ACL, {"subject": "User:u"}, json.dumps({"policies": GRANTED}).encode()),
            {"subject": "User:u", "grants": "Allow Pub+Sub Topic:*,Deny All Cluster:*"},
        ),
        (Command(RequestCode.AUTH_CREATE_ACL, {}, b'{"policies":[3]}'), {"subject": "?", "grants": "?"}),
        (
            Command(RequestCode.AUTH_UPDATE_ACL, {"subject": "User:u"}, json.dumps({"policies": DISGUISED}).encode()),
            {"subject": "User:u", "grants": "Allow All Topic:* from 10.0.0.0/8+::1"},
        ),
        (
            Command(RequestCode.AUTH_CREATE_USER, {"username": "u"}, b'{"userType":"Super","password":"secret"}'),
            {"username": "u", "userType": "Super", "userStatus": "?"},
        ),
    ],
)
def test_no_field_that_a_request_does_not_need_hides_what_it_is_about(command: Command, about: dict[str, str]) -> None:
    assert dict(audit.about(command, trusted=True)) == about


def test_all_that_a_request_may_be_about_finds_room() -> None:
    ext = {name: name for name in audit._ABOUT} | {"groupName": "G"}
    found = audit.about(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext), trusted=True)
    assert ("groupName", "G") in found[: audit.MAX_FACT_COUNT]


TOPICS = json.dumps({"topicConfigList": [{"topicName": f"Topic{number:03}"} for number in range(300)]}).encode()


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"#=\n" * 2000 + b"! a=b\n" * 500 + b"last=1"), ["last"]),
        (
            Command(
                RequestCode.UPDATE_BROKER_CONFIG, {}, b"".join(b"key%03d=1\n" % number for number in range(300)) * 2
            ),
            [f"key{number:03}" for number in range(300)],
        ),
        (
            Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, dict.fromkeys(audit._ABOUT, "Decoy"), TOPICS),
            [f"Topic{number:03}" for number in range(300)],
        ),
        (
            Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, TOPICS.replace(b"}]", b"}" + b" " * 100_000 + b"]")),
            [f"Topic{number:03}" for number in range(300)],
        ),
    ],
)
def test_nothing_that_a_request_names_first_hides_what_it_names_last(command: Command, names: list[str]) -> None:
    """An admin of a part could change a key, or a topic, that no line of the log has."""
    found = audit.about(command, trusted=True)[: audit.MAX_FACT_COUNT]
    assert all(len(value) <= audit.MAX_TEXT_CHARS for _, value in found)
    listed = [name for fact, value in found for name in value.split(",") if fact.partition(".")[0] in ("keys", "topic")]
    assert listed == names


def test_what_finds_no_room_at_all_is_counted() -> None:
    body = b"".join(b"key%05d=1\n" % number for number in range(5000))
    found = dict(audit.about(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, body), trusted=True))
    listed = sum(len(value.split(",")) for fact, value in found.items() if fact.startswith("keys"))
    assert int(found["more"]) == 5000 - listed > 0


def test_every_request_is_kept_on_demand(tmp_path: Path, tracer: HostTracer) -> None:
    made = opened(tmp_path, tracer, "all")
    guarded(tmp_path, made, signed_send("T"), Command(RequestCode.GET_BROKER_CONFIG))
    made.close()
    assert [(line["request"], line["account"], line["allowed"]) for line in lines(tmp_path)] == [
        ("SEND_MESSAGE_V2", "orders", True),
        ("GET_BROKER_CONFIG", None, False),
    ]


def test_what_changes_something_is_never_everyday() -> None:
    """A code that nobody thought of is kept."""
    kept = {code.name for code in RequestCode} - {code.name for code in audit.EVERYDAY}
    assert {name for name in kept if not name.startswith(("UPDATE_", "DELETE_", "CONTROLLER_", "RMQHA_"))} == {
        "PUT_KV_CONFIG",
        "UNREGISTER_BROKER",
        "REGISTER_TOPIC_IN_NAMESRV",
        "WIPE_WRITE_PERM_OF_BROKER",
        "ADD_WRITE_PERM_OF_BROKER",
        "RESET_CONSUMER_CLIENT_OFFSET",
        "INVOKE_BROKER_TO_RESET_OFFSET",
        "CLEAN_EXPIRED_CONSUMEQUEUE",
        "CLEAN_UNUSED_TOPIC",
        "RESUME_CHECK_HALF_MESSAGE",
        "CONSUME_MESSAGE_DIRECTLY",
        "CLONE_GROUP_OFFSET",
        "SWITCH_TIMER_ENGINE",
        "SET_MESSAGE_REQUEST_MODE",
        "NOTIFY_BROKER_ROLE_CHANGED",
        *(f"AUTH_{act}_{what}" for act in ("CREATE", "UPDATE", "DELETE", "GET", "LIST") for what in ("USER", "ACL")),
    }
    assert {"CONTROLLER_ELECT_MASTER", "CONTROLLER_CLEAN_BROKER_METADATA", "RMQHA_ADD_CONTROLLER"} <= kept


def test_a_flood_of_the_same_is_one_line_and_hides_nothing(
    tmp_path: Path, kept: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "GATHER_S", HANG_S)
    count = audit.QUEUE_COUNT // 2 - 1  # so many find room however late the writer comes
    guarded(tmp_path, kept, *[signed_send("U") for _ in range(count)], Command(RequestCode.UPDATE_BROKER_CONFIG))
    kept.close()
    found = lines(tmp_path)
    assert len(found) < 10 and sum(line.get("count", 1) for line in found) == count + 1
    assert found[-1]["request"] == "UPDATE_BROKER_CONFIG"


def test_a_flood_of_refused_requests_is_bounded_by_address_and_hides_nobody_elses(
    tmp_path: Path, tracer: HostTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "GATHER_S", HANG_S)
    made = opened(tmp_path, tracer)
    for number in range(audit.QUEUE_COUNT):
        made.record(f"10.0.0.2:{number}", "X", [("topic", f"{number % 1000}")], "no")
    assert made.lost_count == audit.QUEUE_COUNT // 2
    made.record("10.0.0.3:1", "UPDATE")
    made.record("10.0.0.3:1", "X", refusal="no")
    made.close()
    found = [line for line in lines(tmp_path) if line.get("event") != "lost"]
    flood = [line for line in found if line["from"].startswith("10.0.0.2") and "event" not in line]
    (more,) = [line for line in found if line.get("event") == "more_refused"]
    assert len(flood) == audit.MAX_REFUSED_LINES and more["from"] == "10.0.0.2"
    assert sum(line["count"] for line in flood) + more["count"] == audit.QUEUE_COUNT // 2
    assert [line["request"] for line in found if line["from"] == "10.0.0.3:1"] == ["UPDATE"]


def test_what_finds_no_room_is_counted_and_told(
    tmp_path: Path, tracer: HostTracer, kept: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "QUEUE_COUNT", 3)
    monkeypatch.setattr(audit, "GATHER_S", HANG_S)
    for number in range(10):
        kept.record(f"10.0.0.{number}:1", "X")
    assert kept.lost_count == 7
    kept.close()
    assert [line.get("event") for line in lines(tmp_path)] == [None] * 3 + ["lost"]
    assert [(event["event"], event["count"]) for event in tracer.history()] == [("audit_lost", 7)]


def test_a_disk_that_does_not_take_it_holds_up_nobody(tmp_path: Path, tracer: HostTracer) -> None:
    blocked, told, done = threading.Event(), threading.Event(), threading.Event()
    written: list[str] = []

    def count() -> int:
        return sum(text.count('"request"') for text in written)

    def write(text: str) -> None:
        told.set()
        blocked.wait(HANG_S)
        written.append(text)
        if count() > audit.QUEUE_COUNT:
            done.set()

    made = AuditLog("broker", write, tracer)
    made.record("a", "X")
    assert told.wait(HANG_S)
    for number in range(audit.QUEUE_COUNT + 5):
        made.record(f"{number}:1", "X")
    assert made.lost_count == 5
    blocked.set()
    assert done.wait(HANG_S)
    made.close()  # waits for a bounded time
    assert count() == audit.QUEUE_COUNT + 1


def test_it_rotates_by_size_keeps_so_many_and_is_reopened(tmp_path: Path, tracer: HostTracer) -> None:
    made = opened(tmp_path, tracer, audit_log_max_bytes=4096, audit_log_file_count=2)
    for number in range(300):
        made.record(f"10.0.0.{number}:1", "X" * 40)
        if number % 20 == 19:
            made._write_queued()
    made.close()
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(path.stat().st_size <= 8192 for path in (tmp_path / "log").iterdir())
    made = opened(tmp_path, tracer)
    (tmp_path / "log" / "audit.log").rename(tmp_path / "moved")
    made.reopen()
    made.record("a", "X")
    made.close()
    assert len(lines(tmp_path)) == 1


def test_hostile_names_stay_one_line_of_ascii(tmp_path: Path, kept: AuditLog) -> None:
    guarded(tmp_path, kept, signed_send('U\n{"allowed":true}\x1b[31m\u202e' + "x" * 9999))
    kept.close()
    text = (tmp_path / "log" / "audit.log").read_text()
    assert text.count("\n") == 1 and text.isascii() and "\x1b" not in text
    assert len(lines(tmp_path)[0]["about"]["topic"]) == audit.MAX_TEXT_CHARS


def test_names_that_nobody_has_cost_no_more_than_their_start(tmp_path: Path, kept: AuditLog) -> None:
    """A reason says again what the request says: 5,000 wait, and lines of 250 KB would rotate the others away."""
    long = "x" * 200_000
    topic = signed_send(long)
    unknown = Command(RequestCode.SEND_MESSAGE_V2, {"b": "T", "AccessKey": long})
    guarded(tmp_path, kept, topic, unknown)
    waiting = sum(
        len(text) for entry in kept._queue for text in (entry.account, entry.reason, *dict(entry.about).values())
    )
    kept.close()
    assert waiting < 8 * audit.MAX_TEXT_CHARS
    first, second = lines(tmp_path)
    assert first["reason"].startswith("account orders has no PUB permission on topic xxx")
    assert second["reason"].startswith("there is no account 'xxx")


def test_it_is_kept_where_accounts_are(tmp_path: Path, tracer: HostTracer) -> None:
    log = str(tmp_path / "log")
    assert AuditLog.of(ServerConfig(log_file=log), "x", tracer) is None
    assert AuditLog.of(ServerConfig(log_file=log, acl_enable=True, audit_log_level="off"), "x", tracer) is None
    made = AuditLog.of(ServerConfig(log_file=log, acl_enable=True), "x", tracer)
    assert made is not None
    made.close()
    with pytest.raises(UsageError, match=r"cannot write the audit log /proc/x: .*; set auditLogFile"):
        AuditLog.of(ServerConfig(audit_log_file="/proc/x", audit_log_level="all"), "x", tracer)
    with pytest.raises(ConfigError, match="auditLogLevel = 'some' is none of auto, off, changes, all"):
        ServerConfig.from_properties({"auditLogLevel": "some"}, "f")


def test_standard_error_that_takes_nothing_ends_no_audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[str] = []
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        made = AuditLog.of(ServerConfig(audit_log_level="changes"), "broker", HostTracer(write=events.append))
        assert made is not None
        guarded(tmp_path, made, signed_send("U"))
        made.close()
        assert made.lost_count == 1
    assert "the disk, or standard error, does not take the audit log" in events[0]
