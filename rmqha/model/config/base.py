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
"""Here, since commands ask for it whose start the classes of all servers would double."""


def key_field(key: str, default: T) -> T:
    """A dataclass field whose configuration key does not follow from its name."""
    value: T = field(default=default, metadata={"key": key})
    return value


def bounded(default: int, low: int, high: int, *, key: str = "") -> int:
    """A setting that is a number between `low` and `high`."""
    value: int = field(default=default, metadata=_metadata(key, range=(low, high)))
    return value


def knob(default: T, low: int = 0, high: int = 0, *, key: str = "", drawn: tuple[T, ...] = ()) -> T:
    """A field that hardly anybody has a reason to change: it stands in a table of its own. `low` and `high`: the range
    of a number. `drawn`: values that simulated runs give it (tests/simulation/tuning.py)."""
    bounds = {"range": (low, high)} if high else {}
    value: T = field(default=default, metadata=_metadata(key, is_knob=True, drawn=drawn, **bounds))
    return value


MAX_SHOWN_CHARS = 100
"""Characters of a wrong line that its sentence repeats."""


def _metadata(key: str, **more: Any) -> dict[str, Any]:
    return more | ({"key": key} if key else {})


def camel(name: str) -> str:
    """The key of a field."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def properties_of(data: bytes, source: str) -> dict[str, str]:
    """The bytes of a properties file of ours. Raises ConfigError, also for what is not UTF-8."""
    try:
        return parse_properties(data.decode(), source)
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not UTF-8 text; restore it or remove it") from None


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Java properties, the subset that brokers' files use: `key=value` lines, `#` or `!` comments.

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
    """Keys of RocketMQ that mean one of ours under another name."""
    live_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that a request of an operator changes at once; the others need a restart (ruling 25)."""
    file_name: ClassVar[str] = ""
    """Name of RocketMQ's file for such a server, whose other keys are known too."""

    ignored_keys: tuple[tuple[str, str], ...] = field(default=(), compare=False, metadata={"is_key": False})
    """Keys of RocketMQ that were given and have no effect, each with the reason."""
    given: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False, metadata={"is_key": False})
    """Keys and values as the file gives them."""

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        fields = (item for item in dataclasses.fields(cls) if item.metadata.get("is_key", True))
        return {item.metadata.get("key", camel(item.name)): item for item in fields}

    @classmethod
    def foreign_keys(cls) -> Mapping[str, KeyRule]:
        """RocketMQ's keys that this server does not take."""
        # costs a server's start that has none of them
        from rmqha.model.config.rocketmq_keys import RULES

        return RULES.get(cls.file_name, {})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        """Raises ConfigError naming `source`, the key, and what to write instead."""
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
                # costs a start that has none of them, and every command, a millisecond
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
        """The ignored keys that have one reason, and it."""
        found: dict[str, list[str]] = {}
        for key, reason in self.ignored_keys:
            found.setdefault(reason, []).append(key)
        return [(", ".join(keys), reason) for reason, keys in found.items()]

    def lines_without_effect(self) -> list[str]:
        """A line for each reason why keys have no effect, as `--check` of every server prints them."""
        return [f"without effect: {keys}: {reason}" for keys, reason in self.keys_without_effect()]

    def updated(self, changes: Mapping[str, str], source: str) -> tuple[Self, tuple[str, ...]]:
        """The configuration with the live keys among `changes` set, and the keys that would need a restart. Raises
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
        """The part of a file of overrides that may count, by the keys' own names, and the keys that never may: one that
        needs a restart stands in the server's own file alone, so no store brings its own accounts, TLS or addresses.
        Unknown keys are left in, for `updated` to refuse."""
        named = {cls.aliases.get(key, key): value for key, value in given.items()}
        known = cls.keys()
        live = {key: value for key, value in named.items() if key in cls.live_keys or key not in known}
        return live, tuple(sorted(named.keys() - live.keys()))

    def check(self, source: str) -> None:
        """Raise ConfigError for values that contradict each other or leave their range."""
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
