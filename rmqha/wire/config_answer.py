"""A server's answer about its configuration (requests 26, 1010, 319).

Java programs, such as mqadmin, get exactly RocketMQ's keys. All others get ours, and in a field of our own more for an
operator: the keys that apply at once, those that were set at run time, and those that differ from their default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmqha.model.config.base import Config, parse_properties
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command, Language
from rmqha.wire.lenient_json import dumps, loads

FIELD = "rmqhaKeys"
VERSION = 1
FOR_ADMINS = frozenset(
    {
        "aclFile",
        "auditLogFile",
        "credentialsFile",
        "haSecretFile",
        "quota.overrides",
        "tls.client.certPath",
        "tls.client.keyPath",
        "tls.client.trustCertPath",
        "tls.server.certPath",
        "tls.server.keyPath",
        "tls.server.trustCertPath",
        "webCredentialsFile",
    }
)
"""Keys whose values only admins see: they show where secrets are, and which accounts exist."""
SECRETS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Keys whose values are never sent."""


@dataclass(frozen=True, slots=True)
class ReportedKeys:
    """Keys of a server's answer. `live`, `overridden` and `changed` are None if the server does not send them:
    Apache's, or an earlier release of ours.

    `overridden`: keys set at run time; `changed`: default of each key that has another value."""

    values: Mapping[str, str]
    live: frozenset[str] | None = None
    overridden: frozenset[str] | None = None
    changed: Mapping[str, str] | None = None


def config_ext(config: Config, overridden: Iterable[str]) -> dict[str, str]:
    """Field of our own in the answer."""
    defaults = type(config)().to_properties()
    values = config.to_properties()
    told = {
        "version": VERSION,
        "live": sorted(config.live_keys),
        "overridden": sorted(config.aliases.get(key, key) for key in overridden),
        "changed": {key: defaults[key] for key, value in sorted(values.items()) if defaults[key] != value},
    }
    return {FIELD: dumps(told).decode()}


def config_body(values: Mapping[str, str], hidden: Collection[str] = ()) -> bytes:
    """Body of an answer: `key=value` lines, sorted; the values of `hidden` keys are empty."""
    return "".join(f"{key}={'' if key in hidden else value}\n" for key, value in sorted(values.items())).encode()


class ConfigAnswer:
    """Cache of the answer: field and body are made once for each state of the keys, as any account may ask often."""

    def __init__(self, rocketmq_known: Mapping[str, str] | None = None, processor_count: int = 1) -> None:
        """Both arguments are those of `rocketmq_values`."""
        self._known = rocketmq_known or {}
        self._processor_count = processor_count
        self._config: Config | None = None
        self._overridden: frozenset[str] = frozenset()
        self._ext: dict[str, str] = {}
        self._bodies: dict[tuple[bool, bool], bytes] = {}

    def of(self, config: Config, overridden: frozenset[str], request: Command) -> tuple[dict[str, str], bytes]:
        """Field and body of the answer to `request`. The caller may change the field."""
        if config is not self._config or overridden != self._overridden:
            self._ext, self._bodies = config_ext(config, overridden), {}
            self._config, self._overridden = config, overridden
        of_java, sees_all = request.language == Language.JAVA, request.principal.sees_secrets_places
        body = self._bodies.get((of_java, sees_all))
        if body is None:
            values = self._rocketmq_values(config) if of_java else config.to_properties()
            body = config_body(values, SECRETS if sees_all else FOR_ADMINS | SECRETS)
            self._bodies[of_java, sees_all] = body
        return {} if of_java else dict(self._ext), body

    def _rocketmq_values(self, config: Config) -> dict[str, str]:
        # imported only here: most servers are never asked by a Java program
        from rmqha.model.config.rocketmq_values import rocketmq_values

        return rocketmq_values(config, self._known, self._processor_count)


def parse_keys(reply: Command, source: str) -> ReportedKeys:
    """Parse an answer. Raises ConfigError for a body that is no properties text, RemoteProtocolError for one that is
    not UTF-8, and for a field that is not ours."""
    try:
        values = parse_properties(str(reply.body, "utf-8"), source)
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{source} is not UTF-8 text") from None
    if FIELD not in reply.ext:
        return ReportedKeys(values)
    try:
        told = loads(reply.ext[FIELD])
        if told["version"] != VERSION:
            return ReportedKeys(values)
        return ReportedKeys(
            values,
            frozenset(map(str, told["live"])),
            frozenset(map(str, told["overridden"])),
            {str(key): str(value) for key, value in told["changed"].items()},
        )
    except (RemoteProtocolError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError(f"{source}: the field {FIELD} cannot be read") from None
