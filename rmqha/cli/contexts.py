"""Saved contexts: names for clusters elsewhere, with the addresses to ask and the file of keys to ask with.

They stand in $XDG_CONFIG_HOME/rmqha/contexts.json (~/.config without it), which only its owner may write.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmqha.host.text_file import read_text, user_directory
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address

VERSION = 1
NAMESRV_VARIABLE = "RMQHA_NAMESRV"


@dataclass(frozen=True, slots=True)
class Context:
    """A saved context. `namesrv`, `controller`: HOST:PORT joined by ";". `security`: the file of `rmqha --security`, ""
    for none."""

    namesrv: str = ""
    controller: str = ""
    security: str = ""

    def check(self) -> None:
        """Raise UsageError for addresses that are none."""
        if not self.namesrv and not self.controller:
            raise UsageError("a context needs --namesrv or --controller")
        for key in ("namesrv", "controller"):
            for address in filter(None, getattr(self, key).split(";")):
                try:
                    parse_address(address)
                except ValueError as error:
                    raise UsageError(f"--{key}: {error}") from None


@dataclass(slots=True)
class Contexts:
    """All saved contexts. `current`: the one in use, "" for none."""

    current: str = ""
    saved: dict[str, Context] = field(default_factory=dict)

    @property
    def in_use(self) -> Context | None:
        return self.saved.get(self.current)

    def require(self, name: str) -> Context:
        if name not in self.saved:
            known = ", ".join(sorted(self.saved)) or "none"
            raise UsageError(f"there is no context {name!r}; saved are: {known} (rmqha context add)")
        return self.saved[name]


def path() -> Path | None:
    """The file of contexts; None for a user without a home directory, who has saved none."""
    directory = user_directory("XDG_CONFIG_HOME", ".config")
    return None if directory is None else directory / "rmqha" / "contexts.json"


def read() -> Contexts:
    """The saved contexts; none without the file. Raises UsageError for a file that is none of ours."""
    file = path()
    if file is None:
        return Contexts()
    try:
        if not file.exists():
            return Contexts()
        document = json.loads(read_text(file, "the saved contexts"))
        if document["version"] != VERSION:
            raise UsageError(f"{file} is of version {document['version']!r}; this rmqha reads version {VERSION}")
        saved = {str(name): Context(**fields) for name, fields in document["contexts"].items()}
        for context in saved.values():
            context.check()
        return Contexts(str(document["current"]), saved)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(f"{file} holds no contexts of rmqha; move it away and save them again") from None


def write(contexts: Contexts) -> None:
    from rmqha.ops.local.cluster_state import write_atomic

    file = path()
    if file is None:
        raise UsageError("there is no home directory to save contexts in: set XDG_CONFIG_HOME to a directory of yours")
    document = {
        "version": VERSION,
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in sorted(contexts.saved.items())},
    }
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or file}: {error.strerror}") from None


def default_context() -> Context | None:
    """The cluster that $RMQHA_NAMESRV names, else the context in use; None if that of the cluster directory counts."""
    named = os.environ.get(NAMESRV_VARIABLE)
    if named:
        context = Context(namesrv=named)
        context.check()
        return context
    return read().in_use
