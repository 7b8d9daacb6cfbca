"""Keys changed while a server runs (requests 25, 318): applied at once, stored in a file that overrides its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rmqha.model.config.base import parse_properties, properties_of
from rmqha.model.config.servers import Config
from rmqha.model.error import ConfigError
from rmqha.port import Disk, Tracer

PATH = "config/config-overrides.properties"
C = TypeVar("C", bound=Config)


class LiveConfig(Generic[C]):
    """The configuration of a broker, changed while it runs. `current` is the present one; `add_listener` adds a
    listener of its changes."""

    def __init__(self, disk: Disk | None, config: C, tracer: Tracer, path: str = PATH) -> None:
        """Read the file. Without a disk changes end with the process. Raises ConfigError for an unreadable file,
        OSError."""
        self._disk = disk
        self._path = path
        self._overrides: dict[str, str] = {}
        self.current = config
        self._listeners: list[Callable[[C], None]] = []
        if disk is not None and disk.exists(path):
            source = f"{disk.label}/{path}"
            self._overrides, ignored = config.live_part(properties_of(disk.read(path), source))
            if ignored:
                tracer.event("config_overrides_ignored", keys=ignored, file=source)
            self.current, _ = config.updated(self._overrides, source)
            tracer.event("config_overridden", keys=sorted(self._overrides), file=source)

    @property
    def overridden(self) -> frozenset[str]:
        """Keys that were changed so."""
        return frozenset(self._overrides)

    @property
    def is_persistent(self) -> bool:
        """True if changes outlive the process."""
        return self._disk is not None

    def update(self, text: str, source: str = "request 25") -> None:
        """Apply `key=value` lines, all or none; durable on return. Raises ConfigError and OSError."""
        changes = parse_properties(text, source)
        config, later = self.current.updated(changes, source)
        if later:
            raise ConfigError(f"{', '.join(later)}: restart needed; write it to the server's file and restart it")
        # a key that needs a restart may be named with its present value, and is not stored
        overrides = self._overrides | config.live_part(changes)[0]
        if self._disk is not None:
            lines = "".join(f"{key}={value}\n" for key, value in sorted(overrides.items()))
            directory = self._path.rpartition("/")[0]
            if directory:
                self._disk.make_dirs(directory)
            self._disk.write_atomic(self._path, lines.encode())
        self._overrides, self.current = overrides, config
        for listener in self._listeners:
            listener(config)

    def add_listener(self, listener: Callable[[C], None]) -> None:
        self._listeners.append(listener)
