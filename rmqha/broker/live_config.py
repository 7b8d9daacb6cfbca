"""Keys changed while the broker runs (request 25): applied at once, kept in a file that wins over the broker's own."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.model.config import BrokerConfig, parse_properties
from rmqha.model.error import ConfigError
from rmqha.port import Disk, Tracer

PATH = "config/config-overrides.properties"


class LiveConfig:
    """`current` is the configuration as it is now; `on_change` hears of every change of it."""

    def __init__(self, disk: Disk, config: BrokerConfig, tracer: Tracer) -> None:
        """Raises ConfigError for a file that cannot be read, OSError."""
        self._disk = disk
        self._overrides: dict[str, str] = {}
        self.current = config
        self.on_change: Callable[[BrokerConfig], None] = lambda config: None
        if disk.exists(PATH):
            source = f"{disk.label}/{PATH}"
            try:
                self._overrides = parse_properties(disk.read(PATH).decode(), source)
            except UnicodeDecodeError:
                raise ConfigError(f"{source} is not UTF-8 text; restore it or remove it") from None
            self.current, _ = config.updated(self._overrides, source)
            tracer.event("config_overridden", keys=sorted(self._overrides), file=source)

    def update(self, text: str) -> None:
        """Apply `key=value` lines, all or none; durable when it returns. Raises ConfigError and OSError."""
        changes = parse_properties(text, "request 25")
        config, later = self.current.updated(changes, "request 25")
        if later:
            raise ConfigError(f"{', '.join(later)}: restart needed; write it to the broker's file and restart it")
        overrides = self._overrides | changes
        lines = "".join(f"{key}={value}\n" for key, value in sorted(overrides.items()))
        self._disk.make_dirs("config")
        self._disk.write_atomic(PATH, lines.encode())
        self._overrides, self.current = overrides, config
        self.on_change(config)
