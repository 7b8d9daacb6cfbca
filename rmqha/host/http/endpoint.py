"""Pages that a process shows over HTTP: /healthz, /readyz, /role, /metrics and routes that its servers add. Shell.

Only a process with httpPort loads the HTTP server and the metrics library. The port is bound before anything else: a
port in use leaves no trace, and /readyz says "starting" from the beginning.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from rmqha.host.access import security, security_watch
from rmqha.host.event_counts import EventCounts
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import ServerConfig
from rmqha.model.identity import join_address
from rmqha.model.readiness import Readiness
from rmqha.model.series import HTTP_FAILED, Collecting, MetricFamilies

if TYPE_CHECKING:
    from rmqha.host.http.server import Handler, Post, Request, Response


class HealthSource(Protocol):
    """Port to one server of the process. Both methods may be called at any time and change nothing."""

    def readiness(self) -> Readiness: ...

    def collect(self) -> Collecting: ...


STARTING = Readiness("starting", False, "it is starting")


class HttpEndpoint:
    """Pages of one process. `expected`: names of its servers; each adds itself to `parts` when it serves, and its
    causes and phases to `counts`. Servers may add `routes`."""

    def __init__(self, tracer: HostTracer, expected: tuple[str, ...]) -> None:
        self._tracer = tracer
        self._expected = expected
        self.counts = EventCounts(tracer)
        self._statistics = Statistics()
        self.boundary = Boundary(self._statistics, tracer)
        """Boundary for unexpected exceptions of all routes."""
        self.parts: dict[str, HealthSource] = {}
        self._scraping = trio.Lock()
        self.routes: dict[str, Handler | Post] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/role": self._role,
            "/role/*": self._role_is,
            "/metrics": self._metrics,
        }

    def _readiness(self) -> dict[str, Readiness]:
        return {name: self.parts[name].readiness() if name in self.parts else STARTING for name in self._expected}

    def _view(self) -> dict[str, Any]:
        """Body of /role: the first server's readiness, and that of each server inside it under its name."""
        first, *rest = ((name, readiness.to_json()) for name, readiness in self._readiness().items())
        return {"server": first[0], **first[1], **dict(rest)}

    async def _healthz(self, request: Request) -> Response:
        from rmqha.host.http.server import Response

        return Response.text("the process lives\n")

    async def _readyz(self, request: Request) -> Response:
        from rmqha.host.http.server import Response

        wrong = [f"{name}: {found.reason}" for name, found in self._readiness().items() if not found.ready]
        return Response.text(f"{'; '.join(wrong)}\n", 503) if wrong else Response.text("ready\n")

    async def _role(self, request: Request) -> Response:
        from rmqha.host.http.server import Response

        return Response.json(self._view())

    async def _role_is(self, request: Request) -> Response:
        """Answer /role/NAME, for load balancers: 200 if a server of the process has that role, else 503."""
        from rmqha.host.http.server import Response

        is_so = any(readiness.role == request.tail for readiness in self._readiness().values())
        return Response.json(self._view(), 200 if is_so else 503)

    async def _metrics(self, request: Request) -> Response:
        """Answer a scrape; only one at a time, because thousands of topics and groups take long."""
        async with self._scraping:
            return await self._exposition()

    async def _exposition(self) -> Response:
        from rmqha.host import metrics
        from rmqha.host.http.server import Response

        scraped = [await _collected(self.parts[name]) for name in self._expected if name in self.parts]
        # a thousand topics and groups are half a megabyte of text
        scraped += [self.counts.collect(), security_watch.collect(security.ambient.get()), self._own()]
        text = await trio.to_thread.run_sync(metrics.exposition, scraped)
        return Response(text, content_type=metrics.CONTENT_TYPE)

    def _own(self) -> MetricFamilies:
        families = MetricFamilies({})
        families.put(HTTP_FAILED, self._statistics.failed_request_count)
        return families


async def _collected(part: HealthSource) -> MetricFamilies:
    """Metrics of one server, collected in steps; other tasks run between them."""
    steps = part.collect()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            families: MetricFamilies = end.value
            return families
        await trio.lowlevel.checkpoint()


async def expose(
    config: ServerConfig, tracer: HostTracer, expected: tuple[str, ...], nursery: trio.Nursery
) -> HttpEndpoint | None:
    """Serve httpPort in `nursery`; None if that is 0. Raises UsageError if the port cannot be bound."""
    if not config.http_port:
        return None
    from rmqha.host import metrics  # noqa: F401 (loaded now, not at the first scrape)
    from rmqha.host.http import server as http

    made = HttpEndpoint(tracer, expected)
    await nursery.start(
        partial(http.serve, made.routes, join_address(config.http_host, config.http_port), boundary=made.boundary)
    )
    return made
