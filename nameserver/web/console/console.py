"""Tables and changes of the page: permission, number at a time, and protection against requests of other sites. Shell.

A change needs webCredentialsFile and a request of this page: its Origin is the Host, it carries the token of this
process, and it is JSON, which no form of another site can send.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import trio

from nameserver.config import NamesrvConfig
from nameserver.web.console.actions import ACTIONS, PRODUCER_GROUP
from nameserver.web.console.queries import QUERIES, lags
from nameserver.web.lookup import BusyError, refusal
from rmqha.client.admin import Admin
from rmqha.client.producers.producer import Producer
from rmqha.host.access.security import Security, ambient
from rmqha.host.http.server import Request
from rmqha.model.error import RmqhaError, UsageError

MAX_REQUESTS = 2
MAX_WAITING = 16
TOKEN_HEADER = "x-rmqha-token"


class ForeignError(RmqhaError):
    """Request that was not sent by this page."""


class Console:
    def __init__(self, config: NamesrvConfig, own_address: str, security: Security) -> None:
        """`security`: TLS and account of requests to the servers."""
        self._own_address = own_address
        self._security = security
        self._refused = refusal(config, "this table")
        self._acts = bool(config.web_credentials_file)
        self._token = secrets.token_urlsafe(32)
        self._limit = trio.CapacityLimiter(MAX_REQUESTS)

    @property
    def rights(self) -> dict[str, Any]:
        """Facts for the page: whether it may make changes, and its token."""
        why = "" if self._acts else "name an account that may make changes in webCredentialsFile of the name server"
        return {"acts": self._acts, "why": why, "token": self._token if self._acts else ""}

    async def ask(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Document of the query named by `of`. Raises UsageError, BusyError, UnreachableError, RemoteError."""
        of = query.get("of", "")
        if of not in QUERIES:
            raise UsageError(f"of must be one of {', '.join(QUERIES)}")
        if self._refused:
            return {"refused": self._refused}
        async with self._turn(), self._admin() as admin:
            return await QUERIES[of](admin, query)

    async def lags(self) -> dict[str, int]:
        """Waiting messages of each consumer group; {} if this page may not read them."""
        if self._refused:
            return {}
        async with self._turn(), self._admin() as admin:
            return await lags(admin)

    async def act(self, request: Request) -> str:
        """Make the change of a request. Returns a sentence about it. Raises ForeignError for a request of another site,
        UsageError, BusyError, UnreachableError, RemoteError."""
        self._check_own(request)
        try:
            fields = json.loads(request.body)
        except (ValueError, RecursionError):
            raise UsageError("the body is no JSON") from None
        if not isinstance(fields, dict) or fields.get("act") not in ACTIONS:
            raise UsageError(f"act must be one of {', '.join(ACTIONS)}")
        name = fields["act"]
        audit = ambient.get().audit
        if audit is not None:
            told = sorted((key, str(value)) for key, value in fields.items() if key not in ("act", "body"))
            audit.record(request.peer, f"PAGE_{name.upper().replace('.', '_')}", told)
        async with self._turn(), self._admin() as admin:
            return await ACTIONS[name](admin, self._producer, fields)

    def _check_own(self, request: Request) -> None:
        if not self._acts:
            raise ForeignError(f"this page makes no changes: {self.rights['why']}")
        headers = request.headers
        origin = urlsplit(headers.get("origin", "")).netloc
        is_own = headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if not origin or origin != headers.get("host") or not is_own:
            raise ForeignError("changes are made from this page only")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise ForeignError("a change is sent as application/json")
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            raise ForeignError("the name server has started anew since this page was opened; load it again")

    def _admin(self) -> Admin:
        return Admin(self._own_address, security=self._security)

    def _producer(self) -> Producer:
        return Producer(self._own_address, PRODUCER_GROUP, security=self._security)

    def _turn(self) -> trio.CapacityLimiter:
        if self._limit.statistics().tasks_waiting >= MAX_WAITING:
            raise BusyError(f"{MAX_WAITING} requests wait already; try again in a moment")
        return self._limit
