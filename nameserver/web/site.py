"""The routes of the name server's page: its files, its live documents, its lookup. Shell.

Everything is served by this process: no file of another site is loaded, and the browser is told to load none.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import trio

from nameserver.config import NamesrvConfig
from nameserver.route_info import RouteTable
from nameserver.web.lookup import Lookup, refusal
from nameserver.web.watch import CLUSTER, MAX_VIEWERS, Watch
from rmqha.broker.controller_route import parse_addresses
from rmqha.host.accounts import read_credentials
from rmqha.host.clock import HostClock
from rmqha.host.exposure import Exposure
from rmqha.host.http import Handler, Request, Response
from rmqha.host.security import Security, ambient
from rmqha.model.error import UsageError
from rmqha.port import Tracer

PAGES = {"/": "cluster.html", "/group": "group.html", "/messages": "messages.html"}
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
MAX_NAME_CHARS = 300


class Site:
    def __init__(self, watch: Watch, lookup: Lookup) -> None:
        self._watch = watch
        self._lookup = lookup
        folder = files("nameserver.web") / "static"
        self._files = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}

    def routes(self) -> dict[str, Handler]:
        found: dict[str, Handler] = {path: self._page(name) for path, name in PAGES.items()}
        return found | {"/web/*": self._file, "/events": self._events, "/lookup": self._look_up}

    def _page(self, name: str) -> Handler:
        async def page(request: Request) -> Response:
            return self._response(name)

        return page

    async def _file(self, request: Request) -> Response:
        if request.tail not in self._files:
            return _with_headers(Response.text(f"there is nothing at {request.path}\n", 404))
        return self._response(request.tail)

    def _response(self, name: str) -> Response:
        content_type = CONTENT_TYPES[name.rpartition(".")[2]]
        return Response(self._files[name], content_type=content_type, headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        """Server-Sent Events: the cluster's document, or a group's if `group` names one."""
        if self._watch.viewer_count >= MAX_VIEWERS:
            return Response.text(f"{MAX_VIEWERS} pages are open already; close one\n", 503)
        name = request.query.get("group", CLUSTER)
        if len(name) > MAX_NAME_CHARS:
            return Response.text("no group has so long a name\n", 404)
        return _with_headers(Response.events(lambda send: self._watch.show(name, send)))

    async def _look_up(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Response.text("messages are shown to this page only\n", 403)
        try:
            found = await self._lookup.find(request.query)
        except UsageError as error:
            return _with_headers(Response.json({"messages": [], "notes": [str(error)], "refused": False}, 400))
        return _with_headers(Response.json(found))


def _with_headers(response: Response) -> Response:
    headers: Mapping[str, str] = {**HEADERS, **response.headers}
    return Response(response.body, response.status, response.content_type, headers, response.stream)


def lookup_security(config: NamesrvConfig) -> Security:
    """The process's TLS, but never its account: the page signs with webCredentialsFile or not at all. Raises UsageError
    if that file cannot be used."""
    credentials = read_credentials(config.web_credentials_file) if config.web_credentials_file else None
    return Security(client_tls=ambient.get().client_tls, credentials=credentials)


def _own_host(listen_address: str) -> str:
    """Where this process reaches its own listener."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen_address, listen_address)


async def serve_page(
    config: NamesrvConfig,
    routes: RouteTable,
    port: int,
    controllers: tuple[str, ...],
    exposure: Exposure,
    tracer: Tracer,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Add the page to what httpPort shows, and ask the nodes while somebody looks, until cancelled. `port`: where this
    name server listens; `controllers`: whom to ask besides controllerAddr. Raises UsageError for a webCredentialsFile
    that cannot be used."""
    own_address = f"{_own_host(config.listen_address)}:{port}"

    def facts() -> dict[str, Any]:
        return {
            "address": own_address,
            "brokers": routes.broker_count,
            "topics": len(routes.topic_names),
            "suspectsItself": routes.suspects_itself,
        }

    named = parse_addresses(config.controller_addr, "controllerAddr") if config.controller_addr else []
    watch = Watch(facts, own_address, [*named, *controllers], HostClock(), tracer)
    lookup = Lookup(routes, refusal(config), lookup_security(config))
    exposure.routes.update(Site(watch, lookup).routes())
    task_status.started()
    await watch.run()
