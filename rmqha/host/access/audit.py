"""The audit log: account, address, request and decision, as one JSON object per line. Shell.

The event loop only puts entries into a bounded queue; a separate thread writes them. Equal requests from one address
within GATHER_S are one line with a `count`. Of refused requests from one address, MAX_REFUSED_LINES have lines of their
own. So a flood of requests neither hides other entries nor makes the log rotate them away.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rmqha.host.clock import HostClock
from rmqha.host.tracer import AUDIT_FILE, ErrorStream, RotatingLogFile, stamp
from rmqha.model.authorization import policy
from rmqha.model.authorization.policy import PolicyEntry
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import ConfigError, UsageError
from rmqha.port import Clock, Tracer
from rmqha.wire.auth.signature import ACCESS_KEY
from rmqha.wire.command import Command

QUEUE_COUNT = 10_000
"""Most entries in the queue; refused requests may fill half of it, so that a flood of them leaves room for others."""
GATHER_S = 0.2
"""Time (s) for which entries wait for others that are the same."""
CLOSE_TIMEOUT_S = 2.0
MAX_REFUSED_LINES = 20
"""Most lines for refused requests of one address in each GATHER_S; the others are one line with their number."""
MAX_TEXT_CHARS = 256
MAX_FACT_COUNT = 64
"""Most subjects of one entry; requests have fewer fields that name one."""
MAX_LIST_FACTS = 16
"""Most subjects of one entry that are lists of names."""
MAX_BODY_BYTES = 64 * 1024
MAX_LIST_BYTES = 512 * 1024
"""Bound of the service on a list of topics or groups (`rmqha.wire.body_bound`)."""
EVERYDAY = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.RMQHA_RAFT_MESSAGE,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.RMQHA_EXPLAIN_GROUP,
        RequestCode.RMQHA_FOLLOW_GROUPS,
        RequestCode.RMQHA_FOLLOW_TABLES,
        RequestCode.RMQHA_HOLDS_SENDS,
        RequestCode.RMQHA_ECHO,
    }
    | {code for code in RequestCode if code.name.startswith(("GET_", "CONTROLLER_GET_", "RMQHA_GET_"))}
)
"""Messages, queries, and periodic requests between servers: they are entries only with auditLogLevel=all. Every other
request code, also one that is added later, is an entry with the level `changes`."""
_ABOUT = {
    "topic": "topic",
    "b": "topic",
    "group": "group",
    "consumerGroup": "group",
    "producerGroup": "group",
    "srcGroup": "group",
    "groupName": "group",
    "destGroup": "destGroup",
    "brokerName": "brokerName",
    "brokerAddr": "brokerAddr",
    "brokerId": "brokerId",
    "targetBrokerId": "brokerId",
    "clusterName": "clusterName",
    "namespace": "namespace",
    "key": "key",
    "node": "node",
    "address": "address",
    "clientId": "clientId",
    "designateElect": "designateElect",
    "totalReplicas": "totalReplicas",
    "drained": "drained",
    "on": "on",
    "username": "username",
    "subject": "subject",
    "policyType": "policyType",
    "resource": "resource",
}
"""Header fields that name the subject of a request, with the subject's kind."""
_BODIES: dict[int, tuple[tuple[str, str], ...]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (("group", "groupName"),),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (("topic", "topic"), ("group", "consumerGroup")),
    RequestCode.AUTH_CREATE_ACL: (("subject", "subject"),),
    RequestCode.AUTH_UPDATE_ACL: (("subject", "subject"),),
    RequestCode.AUTH_CREATE_USER: (("userType", "userType"), ("userStatus", "userStatus")),
    RequestCode.AUTH_UPDATE_USER: (("userType", "userType"), ("userStatus", "userStatus")),
}
"""Requests whose bodies name their subjects: kind of subject and member of the body, which wins over a field."""
_LISTS: dict[int, tuple[str, str, str]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ("topic", "topicConfigList", "topicName"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("group", "groupConfigList", "groupName"),
}
"""Requests with several subjects: their kind, the list in the body, and the member that has the name."""
_GRANTS = frozenset({RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL})
_SHORT_NAMES = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
_CONFIG_CHANGES = frozenset(
    {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.CONTROLLER_UPDATE_CONFIG}
)
_NAMES = {int(code): code.name for code in RequestCode}


class AuditEntry(NamedTuple):
    """Entry of the log. Entries that differ only in the time and the peer's port are written as one line."""

    at_ms: int
    peer: str
    account: str
    code: int
    request: str
    about: tuple[tuple[str, str], ...]
    allowed: bool
    reason: str


class AuditLog:
    """Audit log of one process. `write` takes lines; only the writing thread calls it."""

    def __init__(
        self,
        server: str,
        write: Callable[[str], None],
        tracer: Tracer,
        *,
        everything: bool = False,
        file: RotatingLogFile | ErrorStream | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._write = write
        self._tracer = tracer
        self._everything = everything
        self._file = file
        self._clock: Clock = HostClock() if clock is None else clock
        self._queue: deque[AuditEntry] = deque()
        self._work, self._closing = threading.Event(), threading.Event()
        self._dropped_count = 0
        self._reported_drop_count = self._failed_count = 0
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, config: ServerConfig, server: str, tracer: Tracer) -> AuditLog | None:
        """Audit log by a server's configuration; None if that asks for none. Raises UsageError if the file cannot be
        opened."""
        level = config.audit_log_level
        if level == "auto":
            level = "changes" if config.requires_signatures else "off"
        if level == "off":
            return None
        path = config.audit_log_file or (str(Path(config.log_file).parent / AUDIT_FILE) if config.log_file else "")
        everything = level == "all"
        if not path:
            stream = ErrorStream()
            return cls(server, stream.line, tracer, everything=everything, file=stream)
        try:
            file = RotatingLogFile.open(path, config.audit_log_max_bytes, config.audit_log_file_count)
        except OSError as error:
            raise UsageError(f"cannot write the audit log {path}: {error.strerror}; set auditLogFile") from None
        return cls(server, file.line, tracer, everything=everything, file=file)

    @property
    def lost_count(self) -> int:
        """Number of entries for which the queue was full, and of lines that the disk did not take."""
        return self._dropped_count + (self._file.lost_count if self._file is not None else 0)

    @property
    def records_sends(self) -> bool:
        """True if each allowed send is an entry."""
        return self._everything

    # --- the event loop's side --------------------------------------------------------------------------------------
    def request(self, peer: str, command: Command, refusal: str) -> None:
        """Record a request from `peer`; `refusal`: reason why it was refused, "" if it was allowed."""
        if not refusal and not self._everything and command.code in EVERYDAY:
            return
        account = command.principal.access_key
        if refusal:
            # of an unknown account only the access key in the request is known
            account = command.ext.get(ACCESS_KEY) or account
        code = command.code
        self.record(
            peer, _NAMES.get(code, ""), about(command, trusted=not refusal), refusal, account=account, code=code
        )

    def record(
        self,
        peer: str,
        request: str,
        about: Iterable[tuple[str, str]] = (),
        refusal: str = "",
        *,
        account: str = "",
        code: int = 0,
    ) -> None:
        """Record an action that is no remoting command, or that `request` has translated. It never waits: entries
        beyond QUEUE_COUNT are lost and counted."""
        if len(self._queue) >= (QUEUE_COUNT // 2 if refusal else QUEUE_COUNT):
            self._dropped_count += 1
            return
        facts = tuple((name[:MAX_TEXT_CHARS], value[:MAX_TEXT_CHARS]) for name, value in islice(about, MAX_FACT_COUNT))
        account, refusal = account[:MAX_TEXT_CHARS], refusal[: 2 * MAX_TEXT_CHARS]
        entry = AuditEntry(self._clock.wall_ms(), peer, account, code, request, facts, not refusal, refusal)
        self._queue.append(entry)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        if not self._work.is_set():
            self._work.set()

    def reopen(self) -> None:
        """SIGHUP: go on in a new file if the present one was moved away."""
        if self._file is not None:
            self._file.close()

    def close(self) -> None:
        """Write what is queued, within CLOSE_TIMEOUT_S."""
        self._closing.set()
        self._work.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._file is not None:
            self._file.close()

    # --- the thread's side ------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._closing.is_set():
            self._work.wait()
            self._closing.wait(GATHER_S)
            self._work.clear()
            self._write_queued()
        self._write_queued()

    def _write_queued(self) -> None:
        firsts: dict[AuditEntry, AuditEntry] = {}
        counts: Counter[AuditEntry] = Counter()
        refused: Counter[str] = Counter()
        more: Counter[str] = Counter()
        for _ in range(len(self._queue)):
            entry = self._queue.popleft()
            host = entry.peer.rpartition(":")[0]
            key = entry._replace(at_ms=0, peer=host)
            if key not in firsts:
                if not entry.allowed and refused[host] >= MAX_REFUSED_LINES:
                    more[host] += 1
                    continue
                refused[host] += not entry.allowed
                firsts[key] = entry
            counts[key] += 1
        lines = [self._line(entry, counts[key]) for key, entry in firsts.items()]
        for host, count in more.items():
            more_refused = {"time": self._now(), "server": self._server, "event": "more_refused", "from": host}
            lines.append(json.dumps({**more_refused, "count": count}))
        if self._dropped_count != self._reported_drop_count:
            count = self._dropped_count - self._reported_drop_count
            self._reported_drop_count += count
            lines.append(json.dumps({"time": self._now(), "server": self._server, "event": "lost", "count": count}))
            self._tracer.event("audit_lost", count=count, reason="more came than could be written")
        if lines:
            self._write("\n".join(lines))
        failed_count = self._file.lost_count if self._file is not None else 0
        if failed_count and not self._failed_count:
            self._tracer.event(
                "audit_lost", count=failed_count, reason="the disk, or standard error, does not take the audit log"
            )
        self._failed_count = failed_count

    def _now(self) -> str:
        return stamp(self._clock.wall_ms())

    def _line(self, entry: AuditEntry, count: int) -> str:
        view = {
            "time": stamp(entry.at_ms),
            "server": self._server,
            "from": entry.peer,
            "account": entry.account or None,
            **({"code": entry.code} if entry.code else {}),
            "request": entry.request or f"{entry.code}",
            "about": dict(entry.about),
            "allowed": entry.allowed,
            **({"reason": entry.reason} if entry.reason else {}),
            **({"count": count} if count > 1 else {}),
        }
        return json.dumps(view)


def about(command: Command, *, trusted: bool) -> tuple[tuple[str, str], ...]:
    """Subjects of a request: (kind, name) pairs. `trusted`: it was allowed, so that its body is read too."""
    found: dict[str, str] = {}
    for name, value in sorted(command.ext.items(), key=_is_renamed):
        known = _ABOUT.get(name)
        if known is None or (name == "b" and command.code not in _SHORT_NAMES):
            continue
        if found.setdefault(known, value) != value:
            found[name] = value  # a field that the request does not need hides none that it does
    if trusted and command.code in _CONFIG_CHANGES:
        found |= _listed("keys", _keys_of(bytes(command.body[:MAX_BODY_BYTES]).decode(errors="replace")))
    for subject, name in _BODIES.get(command.code, ()) if trusted else ():
        found[subject] = _read(bytes(command.body), partial(_member, name, command.ext.get(name, "?")))
    if trusted and (listed := _LISTS.get(command.code)) is not None:
        subject, members, name = listed
        found |= _listed(subject, _names_in(bytes(command.body), members, name))
    if trusted and command.code in _GRANTS and (grants := _grants_in(bytes(command.body))):
        found |= _listed("grants", grants)
    return tuple(found.items())


def _keys_of(text: str) -> list[str]:
    """Keys that the lines of a change name, as `parse_properties` reads them; their values may be secrets."""
    lines = (line.strip() for line in text.splitlines())
    return [line.partition("=")[0].strip() for line in lines if "=" in line and line[0] not in "#!"]


def _names_in(body: bytes, members: str, name: str) -> list[str]:
    """Values that the objects of a list in a document have under a name; "?" if it is too large or cannot be read."""
    if len(body) > MAX_LIST_BYTES:
        return ["?"]
    try:
        return [str(item.get(name, "?")) for item in json.loads(body)[members]]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return ["?"]


def _grants_in(body: bytes) -> list[str]:
    """Entries of the policies in a document as the service reads them, as "Allow Pub+Sub Topic:T from 10.0.0.0/8"; "?"
    if it is too large or cannot be read."""
    if len(body) > MAX_BODY_BYTES:
        return ["?"]
    try:
        given = json.loads(body).get("policies")
        policies = policy.from_json(given) if given else ()
    except (ValueError, RecursionError, AttributeError, TypeError, ConfigError):
        return ["?"]
    return [_grant(entry) for kind in policies for entry in kind.entries]


def _grant(entry: PolicyEntry) -> str:
    actions = "+".join(action.value for action in entry.actions)
    sources = f" from {'+'.join(entry.sources)}" if entry.sources else ""
    return f"{'Allow' if entry.allows else 'Deny'} {actions} {entry.resource.key}{sources}"


def _listed(subject: str, names: Iterable[str]) -> dict[str, str]:
    """Facts with these names, each once: what does not fit into one stands in the next, `subject.2` and so on; who has
    many to name hides none behind the others."""
    facts, left = [""], deque(dict.fromkeys(names))
    while left:
        name = left[0][:MAX_TEXT_CHARS]
        joined = f"{facts[-1]},{name}" if facts[-1] else name
        if len(joined) > MAX_TEXT_CHARS:
            if len(facts) == MAX_LIST_FACTS:
                break
            facts.append("")
            continue
        facts[-1] = joined
        left.popleft()
    found = {subject if place == 1 else f"{subject}.{place}": fact for place, fact in enumerate(facts, 1)}
    return found | ({"more": str(len(left))} if left else {})


def _is_renamed(field: tuple[str, str]) -> bool:
    """True of a field that has another name than its subject."""
    return _ABOUT.get(field[0]) != field[0]


def _member(name: str, default: str, body: Any) -> str:
    return str(body.get(name) or default)


def _read(body: bytes, read: Callable[[Any], str]) -> str:
    """Result of `read` for a JSON body; "?" if the body is too large or has another form."""
    if len(body) > MAX_BODY_BYTES:
        return "?"
    try:
        return read(json.loads(body))[:MAX_TEXT_CHARS]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return "?"
