"""Key-value settings of a name server: namespaces of strings, stored in one JSON file. Control plane.

The file has the form of RocketMQ's kvConfig.json, `{"configTable":{namespace:{key:value}}}`. Changes take effect at
once; one write of the file stores all that have gathered, and their requests are answered after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmqha.broker.tables.table_file import TableFile
from rmqha.model.error import ConfigError, RemoteProtocolError
from rmqha.port import Disk
from rmqha.wire.lenient_json import dumps, loads

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
MAX_ENTRY_COUNT = 100_000
MAX_ENTRY_CHARS = 64 * 1024
MAX_TABLE_CHARS = 16 * 1024 * 1024
"""Total of names and values: all settings stay in memory, and each write of the file has them all."""
_TABLE = "configTable"


class _KvFile(TableFile):
    """File whose rows are named by namespace and key, each as JSON, which has no line feed."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path, (_TABLE,))

    @staticmethod
    def row_name(namespace: str, key: str) -> str:
        return f"{dumps(namespace).decode()}\n{dumps(key).decode()}"

    @staticmethod
    def row_text(name: str, row: Any) -> bytes:
        return name.partition("\n")[2].encode() + b":" + dumps(row)

    def _text(self, members: Mapping[str, Any]) -> bytes:
        parts, last = [b'{"configTable":{'], ""
        for name, text in self._texts[_TABLE].items():
            namespace = name.partition("\n")[0]
            if namespace == last:
                parts += (b",", text)
            else:
                parts += (b"}," if last else b"", namespace.encode(), b":{", text)
                last = namespace
        parts.append(b"}}}" if last else b"}}")
        return b"".join(parts)

    def _put(self, data: bytes) -> None:
        self._disk.write_atomic(self._name, data)


class KvConfig:
    def __init__(self, disk: Disk | None = None, path: str = "", max_count: int = MAX_ENTRY_COUNT) -> None:
        """Read `path` if it exists; without a disk the settings are lost with the process. Raises ConfigError for a
        malformed file."""
        self.max_count = max_count
        self._file = _KvFile(disk, path) if disk is not None else None
        self._table: dict[str, dict[str, str]] = {}
        if disk is not None and disk.exists(path):
            self._table = _parse(disk.read(path), f"{disk.label}/{path}")
        self._count = sum(map(len, self._table.values()))
        self._chars = sum(
            len(space) + len(key) + len(value) for space, found in self._table.items() for key, value in found.items()
        )
        if self._file is not None:
            name = self._file.row_name
            rows = {name(space, key): value for space, found in self._table.items() for key, value in found.items()}
            self._file.holds(_TABLE, rows)
        self._waits: list[tuple[int, Callable[[str], None]]] = []
        self.save_soon: Callable[[], None] = self.save
        """Called after each change; a shell with threads replaces it."""

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Settings of one namespace; empty if there are none."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a setting. Raises RemoteProtocolError beyond the bounds, with nothing changed."""
        if len(namespace) + len(key) + len(value) > MAX_ENTRY_CHARS:
            raise RemoteProtocolError(f"a setting has at most {MAX_ENTRY_CHARS} characters")
        settings = self._table.get(namespace, {})
        added = len(value) - len(settings[key]) if key in settings else len(namespace) + len(key) + len(value)
        if added > 0 and self._chars + added > MAX_TABLE_CHARS:
            raise RemoteProtocolError(f"the settings of a name server have at most {MAX_TABLE_CHARS} characters")
        if key not in settings:
            if self._count >= self.max_count:
                raise RemoteProtocolError(
                    f"this name server keeps as many settings as maxKvCount allows, {self.max_count}: "
                    "delete some or raise it"
                )
            self._count += 1
        settings[key] = value
        self._chars += added
        self._table[namespace] = settings
        self._changed(namespace, key, value)

    def delete(self, namespace: str, key: str) -> None:
        settings = self._table.get(namespace, {})
        value = settings.pop(key, None)
        if value is not None:
            self._count -= 1
            self._chars -= len(namespace) + len(key) + len(value)
            if not settings:
                del self._table[namespace]
            self._changed(namespace, key, None)

    # --- the file -----------------------------------------------------------------------------------------------------
    def _changed(self, namespace: str, key: str, value: str | None) -> None:
        if self._file is not None:
            self._file.change(_TABLE, {self._file.row_name(namespace, key): value})
            self.save_soon()

    def wait(self, done: Callable[[str], None]) -> None:
        """Call `done("")` when all changes so far are on the disk, or `done(reason)` if the write fails."""
        if self._file is None or self._file.is_saved:
            done("")
            return
        self._waits.append((self._file.changed_count, done))
        self.save_soon()

    def save(self) -> None:
        """Write the file now if it lacks changes. `wait` reports the result."""
        write = self.unsaved()
        if write is not None:
            write()
        self.saved()

    def unsaved(self) -> Callable[[], None] | None:
        """Function that writes the changes the file lacks, for any thread; None if there are none. Call `saved`
        afterwards."""
        file = self._file
        data = file.unsaved(dict) if file is not None else None
        if file is None or data is None:
            return None

        def write() -> None:
            try:
                file.write(data)
            except OSError as error:
                file.trouble = str(error)  # who waits hears of it

        return write

    def saved(self) -> None:
        file = self._file
        if file is None:
            return
        waits, self._waits = self._waits, []
        for count, done in waits:
            if file.saved_count >= count:
                done("")
            elif file.trouble:
                done(f"the setting counts here but the disk does not take it ({file.trouble}); ask again")
            else:
                self._waits.append((count, done))


def _parse(data: bytes, source: str) -> dict[str, dict[str, str]]:
    try:
        table = loads(data)[_TABLE]
        return {
            str(namespace): {str(key): str(value) for key, value in settings.items()}
            for namespace, settings in table.items()
        }
    except (RemoteProtocolError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{source} is not a file of key-value settings ({error}); repair or remove it") from None
