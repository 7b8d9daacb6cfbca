"""A server's answer about its keys (requests 26, 1010, 319): the body as RocketMQ has it, and in a field of ours what
an operator needs beside it: which keys apply at once, which were set at run time, and which differ from their default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmqha.model.config.base import Config, parse_properties
from rmqha.model.error import RemoteProtocolError
from rmqha.model.principal import Principal
from rmqha.wire.command import Command
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
BESIDE = ("clientCallbackExecutorThreads", "msgTraceTopicName", "useTLS")
"""Keys without effect that mqadmin's exports read of a broker: processors, topic of traces, whether it uses TLS. It
tells them to Apache's programs; they are none for its file."""


@dataclass(frozen=True, slots=True)
class ToldKeys:
    """`live` and the two below are None of a server that does not tell them: Apache's, or an earlier release of ours.

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


def config_body(config: Config, hidden: Collection[str] = (), beside: Mapping[str, str] | None = None) -> bytes:
    """`key=value` lines, sorted; the values of `hidden` keys are empty. `beside`: values of BESIDE."""
    values = sorted((config.to_properties() | dict(beside or {})).items())
    return "".join(f"{key}={'' if key in hidden else value}\n" for key, value in values).encode()


class ConfigAnswer:
    """Field and body, made once for each state of the keys: any account may ask, again and again."""

    def __init__(self, beside: Mapping[str, str] | None = None) -> None:
        """`beside`: values of BESIDE."""
        self._beside = beside
        self._config: Config | None = None
        self._overridden: frozenset[str] = frozenset()
        self._ext: dict[str, str] = {}
        self._body = self._body_for_all = b""

    def of(self, config: Config, overridden: frozenset[str], principal: Principal) -> tuple[dict[str, str], bytes]:
        """The field is the caller's own."""
        if config is not self._config or overridden != self._overridden:
            self._ext, self._body = config_ext(config, overridden), config_body(config, SECRETS, self._beside)
            self._body_for_all = config_body(config, FOR_ADMINS | SECRETS, self._beside)
            self._config, self._overridden = config, overridden
        return dict(self._ext), self._body if principal.sees_secrets_places else self._body_for_all


def parse_keys(reply: Command, source: str) -> ToldKeys:
    """Raises ConfigError for a body that is no properties text, RemoteProtocolError for a field that is not ours."""
    try:
        values = parse_properties(str(reply.body, "utf-8"), source)
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{source} is not UTF-8 text") from None
    if FIELD not in reply.ext:
        return ToldKeys(values)
    try:
        told = loads(reply.ext[FIELD])
        if told["version"] != VERSION:
            return ToldKeys(values)
        return ToldKeys(
            {key: value for key, value in values.items() if key not in BESIDE},
            frozenset(map(str, told["live"])),
            frozenset(map(str, told["overridden"])),
            {str(key): str(value) for key, value in told["changed"].items()},
        )
    except (RemoteProtocolError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError(f"{source}: the field {FIELD} cannot be read") from None
