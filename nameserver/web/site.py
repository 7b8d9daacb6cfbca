"""HTTP routes of the name server's page: files, live documents, message lookup. Shell.

This process serves everything; the browser is told to load nothing from other sites. The page's code is imported when
it is opened first, so that a port for metrics alone stays small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import trio

from nameserver.config import NamesrvConfig
from nameserver.route_info import RouteTable
from nameserver.web.layout import PAGES, render_page
from rmqha.broker.replication.controller_route import parse_addresses
from rmqha.host.access.security import Security, ambient
from rmqha.host.clock import HostClock
from rmqha.host.http.endpoint import HttpEndpoint
from rmqha.host.http.server import Handler, Post, Request, Response
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.identity import join_address
from rmqha.port import Tracer
from rmqha.wire.state.name_server_state import NameServerFacts

if TYPE_CHECKING:
    from nameserver.web.console.console import Console
    from nameserver.web.lookup import Lookup
    from nameserver.web.recorder import Recorder
    from nameserver.web.watch import ClusterWatch

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
RECORD_AFTER_S = 3.0
"""Delay (s) after the start before the recorder's code is imported."""


class Site:
    def __init__(
        self, config: NamesrvConfig, routes: RouteTable, port: int, controllers: tuple[str, ...], tracer: Tracer
    ) -> None:
        """`port`: of this name server; `controllers`: to be asked besides controllerAddr. Raises UsageError for an
        unusable webCredentialsFile."""
        self._config = config
        self._routes = routes
        self._tracer = tracer
        self._own_address = join_address(_own_host(config.listen_address), port)
        named = parse_addresses(config.controller_addr, "controllerAddr") if config.controller_addr else []
        self._controllers = [*named, *controllers]
        self._embeds_controller = bool(controllers)
        self._security = lookup_security(config)
        self._loading = trio.Lock()
        self._files: dict[str, bytes] = {}
        self._pages: dict[str, bytes] = {}
        self._watch: ClusterWatch | None = None
        self._lookup: Lookup | None = None
        self._recorder: Recorder | None = None
        self._console: Console | None = None

    async def serve(self, exposure: HttpEndpoint, *, task_status: trio.TaskStatus[None]) -> None:
        """Add the page to httpPort, and ask the nodes while there are viewers, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            exposure.routes.update(self.routes())
            nursery.start_soon(self._record)
            task_status.started()
            await trio.sleep_forever()

    def routes(self) -> dict[str, Handler | Post]:
        found: dict[str, Handler | Post] = {path: self._page(path) for path in PAGES}
        return found | {
            "/web/*": self._file,
            "/events": self._events,
            "/lookup": self._look_up,
            "/hour": self._hour,
            "/ask": self._ask,
            "/standing": self._rights,
            "/act": Post(self._act),
        }

    # --- files ------------------------------------------------------------------------------------------------------
    def _page(self, path: str) -> Handler:
        async def page(request: Request) -> Response:
            if path not in self._pages:
                self._pages[path] = render_page(path, self._known_files())
            return Response(self._pages[path], content_type=CONTENT_TYPES["html"], headers=HEADERS)

        return page

    async def _file(self, request: Request) -> Response:
        if request.tail not in self._known_files():
            return _with_headers(Response.text(f"there is nothing at {request.path}\n", 404))
        return self._response(request.tail)

    def _response(self, name: str) -> Response:
        content_type = CONTENT_TYPES[name.rpartition(".")[2]]
        return Response(self._known_files()[name], content_type=content_type, headers=HEADERS)

    def _known_files(self) -> dict[str, bytes]:
        """Files of the page, read once so that all are of one release."""
        if not self._files:
            folder = files("nameserver.web") / "static"
            self._files = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}
        return self._files

    # --- live documents ---------------------------------------------------------------------------------------------
    async def _events(self, request: Request) -> Response:
        """Server-Sent Events: the cluster's document, or a group's if `group` names one."""
        watch = await self._started_watch()
        if watch.is_full:
            return Response.text(f"{watch.viewer_count} pages are open already; close one\n", 503)
        name = request.query.get("group", "")
        if len(name) > MAX_NAME_CHARS:
            return Response.text("no group has so long a name\n", 404)
        return _with_headers(Response.events(lambda send: watch.show(name, send)))

    async def _look_up(self, request: Request) -> Response:
        if not _is_own(request):
            return Response.text("messages are shown to this page only\n", 403)
        audit = ambient.get().audit
        if audit is not None:
            audit.record(request.peer, "PAGE_LOOK_UP", sorted(request.query.items()))
        lookup = await self._loaded_lookup()
        try:
            found, status = await lookup.find(request.query), 200
        except RmqhaError as error:
            status = 400 if isinstance(error, UsageError) else 503
            found = json.dumps({"messages": [], "notes": [str(error)], "refused": False}).encode()
        return _with_headers(Response(found, status, "application/json"))

    # --- the hour, tables, changes ----------------------------------------------------------------------------------
    async def _record(self) -> None:
        await trio.sleep(RECORD_AFTER_S)
        await (await self._loaded_recorder()).run()

    async def _hour(self, request: Request) -> Response:
        """Last hour of the group that `group` names, of consumer groups without one."""
        if not _is_own(request):
            return Response.text("this is for this page only\n", 403)
        recorder = await self._loaded_recorder()
        name = request.query.get("group", "")
        return _with_headers(Response.json(await (recorder.hour(name) if name else recorder.lag_hour())))

    async def _ask(self, request: Request) -> Response:
        if not _is_own(request):
            return Response.text("tables are shown to this page only\n", 403)
        console = await self._loaded_console()
        try:
            return _with_headers(Response.json(await console.ask(request.query)))
        except RmqhaError as error:
            return _failed(error)

    async def _rights(self, request: Request) -> Response:
        if not _is_own(request):
            return Response.text("this is for this page only\n", 403)
        return _with_headers(Response.json((await self._loaded_console()).rights))

    async def _act(self, request: Request) -> Response:
        console = await self._loaded_console()
        try:
            return _with_headers(Response.json({"done": await console.act(request)}))
        except RmqhaError as error:
            return _failed(error, 403 if type(error).__name__ == "ForeignError" else None)

    async def _loaded_console(self) -> Console:
        async with self._loading:
            if self._console is None:
                module = await _load("nameserver.web.console.console")
                self._console = module.Console(self._config, self._own_address, self._security)
            return self._console

    async def _loaded_recorder(self) -> Recorder:
        console = await self._loaded_console()
        async with self._loading:
            if self._recorder is None:
                module = await _load("nameserver.web.recorder")
                self._recorder = module.Recorder(
                    self._routes, self._own_address, lambda: self._controllers, console.lags, HostClock(), self._tracer
                )
            return self._recorder

    async def _started_watch(self) -> ClusterWatch:
        async with self._loading:
            if self._watch is None:
                module = await _load("nameserver.web.watch")
                self._watch = module.ClusterWatch(
                    self._facts,
                    self._own_address,
                    self._controllers,
                    HostClock(),
                    self._tracer,
                    lambda: self._routes.change_count,
                )
                self._nursery.start_soon(self._watch.run)
            return self._watch

    async def _loaded_lookup(self) -> Lookup:
        async with self._loading:
            if self._lookup is None:
                module = await _load("nameserver.web.lookup")
                self._lookup = module.Lookup(self._routes, module.refusal(self._config), self._security)
            return self._lookup

    def _facts(self) -> NameServerFacts:
        return NameServerFacts(
            address=self._own_address,
            brokers=self._routes.broker_count,
            topics=self._routes.topic_count,
            suspects_itself=self._routes.suspects_itself,
            embeds_controller=self._embeds_controller,
        )


def _is_own(request: Request) -> bool:
    """False for a request that a page of another site has caused."""
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _failed(error: RmqhaError, status: int | None = None) -> Response:
    """The error's sentence as JSON."""
    code = status or (400 if isinstance(error, UsageError) else 503)
    return _with_headers(Response.json({"error": str(error)}, code))


async def _load(name: str) -> Any:
    """Import a module beside the event loop, so that brokers' heartbeats go on."""
    return await trio.to_thread.run_sync(import_module, name)


def _with_headers(response: Response) -> Response:
    headers: Mapping[str, str] = {**HEADERS, **response.headers}
    return Response(response.body, response.status, response.content_type, headers, response.stream)


def lookup_security(config: NamesrvConfig) -> Security:
    """TLS of the process without its account: the page signs with webCredentialsFile or not at all. Raises UsageError
    for an unusable file."""
    credentials = None
    if config.web_credentials_file:
        from rmqha.host.access.accounts import credentials_file

        credentials = credentials_file("webCredentialsFile", config.web_credentials_file)
    return ambient.get().signing_by(credentials)


def _own_host(listen_address: str) -> str:
    """Host at which this process reaches its own listener."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen_address, listen_address)
