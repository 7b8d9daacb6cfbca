"""The key-value settings of a name server: namespaces of strings, kept in one JSON file. Control plane.

The file has the shape of RocketMQ's kvConfig.json, `{"configTable":{namespace:{key:value}}}`.
"""

from __future__ import annotations

from rmqha.model.error import ConfigError, RemoteProtocolError
from rmqha.port import Disk
from rmqha.wire.lenient_json import dumps, loads

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
MAX_ENTRY_COUNT = 100_000
MAX_ENTRY_CHARS = 64 * 1024


class KvConfig:
    def __init__(self, disk: Disk | None = None, path: str = "") -> None:
        """Reads `path` if it exists; without a disk the settings live as long as the process. Raises ConfigError if
        the file is not what it must be."""
        self._disk = disk
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        if disk is not None and disk.exists(path):
            self._table = _parse(disk.read(path), f"{disk.label}/{path}")

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """All settings of one namespace; empty if there are none."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Durable when it returns. Raises RemoteProtocolError beyond the bounds and OSError from the disk, in both
        cases with nothing changed."""
        if len(namespace) + len(key) + len(value) > MAX_ENTRY_CHARS:
            raise RemoteProtocolError(f"a setting has at most {MAX_ENTRY_CHARS} characters")
        if sum(map(len, self._table.values())) >= MAX_ENTRY_COUNT:
            raise RemoteProtocolError(f"a name server keeps at most {MAX_ENTRY_COUNT} settings")
        self._keep({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Durable when it returns. Raises OSError from the disk, with nothing changed."""
        settings = {name: value for name, value in self._table.get(namespace, {}).items() if name != key}
        self._keep({**self._table, namespace: settings})

    def _keep(self, table: dict[str, dict[str, str]]) -> None:
        if self._disk is not None:
            self._disk.write_atomic(self._path, dumps({"configTable": table}))
        self._table = table


def _parse(data: bytes, source: str) -> dict[str, dict[str, str]]:
    try:
        table = loads(data)["configTable"]
        return {
            str(namespace): {str(key): str(value) for key, value in settings.items()}
            for namespace, settings in table.items()
        }
    except (RemoteProtocolError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{source} is not a file of key-value settings ({error}); repair or remove it") from None
