"""The base of every configuration: RocketMQ-style properties read into a frozen dataclass, checked, changed while it
runs.

A field `mapped_file_size_commit_log` is the key `mappedFileSizeCommitLog`; a field may name its key in its metadata.
A key of RocketMQ's that rmqha does not take is without effect, or refused (`rmqha.model.config.rocketmq_keys`). Any
other unknown key is an error that names the nearest known one; a value of the wrong kind is an error that says which
kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_type_hints

from rmqha.model.error import ConfigError

if TYPE_CHECKING:
    from rmqha.model.config.rocketmq_keys import KeyRule

T = TypeVar("T")
DEFAULT_HTTP_HOST = "127.0.0.1"
"""Default of httpHost. It is in this module for commands whose start would take twice as long with the classes of all
servers."""


def key_field(key: str, default: T) -> T:
    """A dataclass field whose configuration key does not follow from its name."""
    value: T = field(default=default, metadata={"key": key})
    return value


def bounded(default: int, low: int, high: int, *, key: str = "") -> int:
    """A setting that is a number between `low` and `high`."""
    value: int = field(default=default, metadata=_metadata(key, range=(low, high)))
    return value


def knob(default: T, low: int = 0, high: int = 0, *, key: str = "", drawn: tuple[T, ...] = ()) -> T:
    """A setting that is rarely changed; the documentation has it in a separate table. `low` and `high`: range of a
    number. `drawn`: values in simulated runs (tests/simulation/tuning.py)."""
    bounds = {"range": (low, high)} if high else {}
    value: T = field(default=default, metadata=_metadata(key, is_knob=True, drawn=drawn, **bounds))
    return value


MAX_SHOWN_CHARS = 100
"""Most characters of a wrong line in its error."""


def _metadata(key: str, **more: Any) -> dict[str, Any]:
    return more | ({"key": key} if key else {})


def camel(name: str) -> str:
    """Configuration key of a field."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def properties_of(data: bytes, source: str) -> dict[str, str]:
    """Parse the bytes of one of our properties files. Raises ConfigError, also for bytes that are not UTF-8."""
    try:
        return parse_properties(data.decode(), source)
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not UTF-8 text; restore it or remove it") from None


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Parse Java properties, the subset in brokers' files: `key=value` lines, `#` or `!` comments.

    Raises ConfigError for a line without "=" and for a key given twice with different values.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            shown = line if len(line) <= MAX_SHOWN_CHARS else f"{line[:MAX_SHOWN_CHARS]}…"
            raise ConfigError(f"{source}:{number}: expected key=value, found {shown!r}")
        if found.get(key, value) != value:
            raise ConfigError(f"{source}:{number}: {key} is given twice, as {found[key]!r} and {value!r}")
        found[key] = value
    return found


def _convert(kind: Any, value: str) -> Any:
    if kind is bool:
        lowered = value.lower()
        if lowered not in ("true", "false"):
            raise ValueError("true or false")
        return lowered == "true"
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError("a whole number") from None
    return value


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every server's configuration."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Keys of RocketMQ for which rmqha has another name: RocketMQ's key to ours."""
    live_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that an operator can change at run time; the others need a restart (ruling 25)."""
    file_name: ClassVar[str] = ""
    """Name of RocketMQ's configuration file for such a server; all keys of that file are known."""

    ignored_keys: tuple[tuple[str, str], ...] = field(default=(), compare=False, metadata={"is_key": False})
    """Given keys of RocketMQ without effect, each with the reason."""
    given: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False, metadata={"is_key": False})
    """Keys and values as the file gives them."""

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        fields = (item for item in dataclasses.fields(cls) if item.metadata.get("is_key", True))
        return {item.metadata.get("key", camel(item.name)): item for item in fields}

    @classmethod
    def foreign_keys(cls) -> Mapping[str, KeyRule]:
        """Keys of RocketMQ that this server does not have, with their rules."""
        # imported only here: most servers have none of them
        from rmqha.model.config.rocketmq_keys import RULES

        return RULES.get(cls.file_name, {})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        """Configuration of properties. Raises ConfigError that says `source`, the key, and what to write instead."""
        fields, hints, values = cls.keys(), get_type_hints(cls), dict[str, Any]()
        ignored: list[tuple[str, str]] = []
        for given, value in properties.items():
            key = cls.aliases.get(given, given)
            item = fields.get(key)
            if item is None and (rule := cls.foreign_keys().get(given)) is not None:
                if rule.refuses(value, properties.get("storePathRootDir", "")):
                    raise ConfigError(f"{source}: {given} = {value!r} is refused: {rule.reason}")
                ignored.append((given, rule.reason_without_effect))
                continue
            if item is None:
                # imported only here: the import takes a millisecond
                import difflib

                near = difflib.get_close_matches(given, [*fields, *cls.aliases], n=1, cutoff=0.0)
                raise ConfigError(f"{source}: unknown key {given}; the nearest known key is {near[0]}")
            try:
                values[item.name] = _convert(hints[item.name], value)
            except ValueError as wanted:
                raise ConfigError(f"{source}: {given} = {value!r} must be {wanted}") from None
        config = cls(**values, ignored_keys=tuple(ignored), given=tuple(properties.items()))
        config.check(source)
        return config

    def keys_without_effect(self) -> list[tuple[str, str]]:
        """Ignored keys grouped by reason: (keys separated by commas, reason)."""
        found: dict[str, list[str]] = {}
        for key, reason in self.ignored_keys:
            found.setdefault(reason, []).append(key)
        return [(", ".join(keys), reason) for reason, keys in found.items()]

    def lines_without_effect(self) -> list[str]:
        """A line for each reason why keys have no effect, as `--check` of every server prints them."""
        return [f"without effect: {keys}: {reason}" for keys, reason in self.keys_without_effect()]

    def updated(self, changes: Mapping[str, str], source: str) -> tuple[Self, tuple[str, ...]]:
        """This configuration with the live keys among `changes` set, and the changed keys that need a restart. Raises
        ConfigError."""
        own, foreign = self.keys(), self.foreign_keys()
        for key in changes:
            if key not in own and (rule := foreign.get(key)) is not None:
                raise ConfigError(f"{source}: {key} has no effect here: {rule.reason}")
        known = self.to_properties()
        named = ((self.aliases.get(key, key), value) for key, value in changes.items())
        changed = {key: value for key, value in named if known.get(key) != value}
        wanted = type(self).from_properties({**known, **changed}, source)
        live = [item.name for key, item in own.items() if key in changed and key in self.live_keys]
        later = tuple(sorted(changed.keys() - self.live_keys))
        return dataclasses.replace(self, **{name: getattr(wanted, name) for name in live}), later

    @classmethod
    def live_part(cls, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Live keys of a file of overrides, by their own names; and the other keys, which are ignored. A key that needs
        a restart may only be in the server's own file, so that a store cannot bring its own accounts, TLS or addresses.
        Unknown keys stay in the first part: `updated` refuses them."""
        named = {cls.aliases.get(key, key): value for key, value in given.items()}
        known = cls.keys()
        live = {key: value for key, value in named.items() if key in cls.live_keys or key not in known}
        return live, tuple(sorted(named.keys() - live.keys()))

    def check(self, source: str) -> None:
        """Raise ConfigError for values that contradict each other or are out of range."""
        for item in dataclasses.fields(self):
            if "range" in item.metadata:
                self.require_range(source, item.name, *item.metadata["range"])

    def to_properties(self) -> dict[str, str]:
        """Every key with its effective value, as a properties file would hold it."""
        return {
            key: str(value).lower() if isinstance(value := getattr(self, item.name), bool) else str(value)
            for key, item in type(self).keys().items()
        }

    def require_range(self, source: str, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            key = next(key for key, item in self.keys().items() if item.name == name)
            raise ConfigError(f"{source}: {key} = {value} must lie between {low} and {high}")
