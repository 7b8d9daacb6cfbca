"""A server's answer about its keys (requests 26, 1010, 319).

Java's programs, mqadmin among them, get RocketMQ's keys and no others. All others get ours, and in a field of ours what
an operator needs beside them: which keys apply at once, which were set at run time, which differ from their default.
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
"""Their values are empty for who may not know where secrets are, and which accounts there are."""
SECRETS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Their values are told to nobody."""


@dataclass(frozen=True, slots=True)
class ReportedKeys:
    """Keys in a server's answer. `live` and the two below are None if the server does not tell them: Apache's, or an
    earlier release of ours.

    `changed` gives the default of each key that has another value; `overridden` are those set at run time."""

    values: Mapping[str, str]
    live: frozenset[str] | None = None
    overridden: frozenset[str] | None = None
    changed: Mapping[str, str] | None = None


def config_ext(config: Config, overridden: Iterable[str]) -> dict[str, str]:
    """The field of ours."""
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
    """Field and body, made once for each state of the keys: any account may ask, again and again."""

    def __init__(self, rocketmq_known: Mapping[str, str] | None = None, processor_count: int = 1) -> None:
        """Both are for `rocketmq_values`."""
        self._known = rocketmq_known or {}
        self._processor_count = processor_count
        self._config: Config | None = None
        self._overridden: frozenset[str] = frozenset()
        self._ext: dict[str, str] = {}
        self._bodies: dict[tuple[bool, bool], bytes] = {}

    def of(self, config: Config, overridden: frozenset[str], request: Command) -> tuple[dict[str, str], bytes]:
        """The answer to the request `request`. The field is the caller's own."""
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
        # costs a server's start that no such program asks
        from rmqha.model.config.rocketmq_values import rocketmq_values

        return rocketmq_values(config, self._known, self._processor_count)


def parse_keys(reply: Command, source: str) -> ReportedKeys:
    """Raises ConfigError for a body that is no properties text, RemoteProtocolError for a field that is not ours."""
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
