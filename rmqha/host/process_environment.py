"""The parts that every server process has around its server: tracer, audit log, watcher of security files. Shell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from rmqha.host.access import security
from rmqha.host.access.audit import AuditLog
from rmqha.host.access.security_watch import SecurityWatch
from rmqha.host.process import run_server
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import ServerConfig


class ProcessEnvironment:
    """Tracer, audit log and security watcher of one process, made after `security.use`. Raises UsageError if a log
    cannot be opened."""

    def __init__(self, config: ServerConfig, server: str, group: str = "") -> None:
        self.tracer = HostTracer.of(config, server, group)
        secured = security.ambient.get()
        self._audit = secured.audit = AuditLog.of(config, server, self.tracer)
        self._watch = SecurityWatch(secured, self.tracer)

    def run(self, serve: Callable[[trio.Event], Awaitable[None]]) -> None:
        """Run the server to its end (`run_server`)."""
        try:
            run_server(serve, on_hangup=self._hung_up, beside=self._watch.run, tracer=self.tracer)
        finally:
            if self._audit is not None:
                self._audit.close()
            self.tracer.close()

    def _hung_up(self) -> None:
        self.tracer.reopen()
        if self._audit is not None:
            self._audit.reopen()
        self._watch.check_now()
