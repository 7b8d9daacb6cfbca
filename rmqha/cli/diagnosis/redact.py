"""Removal of secrets from text that leaves the machine. Pure.

By name: values of keys that are called like a secret, in properties, TOML, YAML, JSON, log lines, sentences. By form:
private keys, passwords in URLs. By value: secrets that are known from the files that hold them, wherever they stand. In
doubt a word is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

GONE = "[redacted]"
MAX_LINE_CHARS = 64 * 1024
MIN_SECRET_LENGTH = 4
"""Length below which a secret is removed by its name only: its letters stand everywhere."""
_HINT = r"(?:secret|passw|passphrase|pwd|token|credential|private|access[_.-]?key|api[_.-]?key|signature)"
_HINTED = re.compile(_HINT, re.I)
_NAME = re.compile(rf"(?<![\w.-])[\w.-]*?{_HINT}[\w.-]*", re.I)
_HARMLESS = re.compile(r"(?:file|path|[._-]dir|directory)$", re.I)
"""Keys of the place where a secret lies."""
_STRING = r'"(?:[^"\\]|\\.)*"?|\'(?:[^\'\\]|\\.)*\'?'
_QUOTED = re.compile(_STRING)
_VALUE = re.compile(rf"([\"']?\s*[=:]\s*|\s+)({_STRING}|\S+)")
_WHOLE = re.compile(r"(?P<to>[\"']?\s*[:=]\s*)(?P<quote>[\"']?)(?P<value>.*?)(?P<end>[\"']?,?\s*)$")
_LEFT_OF_KEY = re.compile(r"[\s\-{,\"'#]*$")
_PLAIN_WORD = re.compile(r"[^\s'\"]+")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_PEM_END = re.compile(r"\A.*-----END [A-Z ]*PRIVATE KEY-----", re.S)
"""Once all whole keys are gone: the end of a log may begin inside one."""
_CONTINUED = re.compile(r"\\\r?\n\s*")
_LONG_STRING = re.compile(r'("""|\'\'\').*?\1', re.S)


def is_secret(name: str) -> bool:
    """True if the value of a key of this name is to be kept secret."""
    return _NAME.fullmatch(name) is not None and not _HARMLESS.search(name)


def redact(text: str, known: Collection[str] = ()) -> str:
    """The text without secrets. `known`: values that must stand nowhere."""
    for secret in sorted((item for item in known if len(item) >= MIN_SECRET_LENGTH), key=len, reverse=True):
        for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
            text = text.replace(form, GONE)
    text = _PEM_END.sub(GONE, _PEM.sub(GONE, text))
    if "://" in text and "@" in text:
        text = _PLAIN_WORD.sub(_without_user, text)
    document = _as_json(text)
    if document is not None:
        return json.dumps(_redacted(document), indent=1, ensure_ascii=False) + "\n"
    text = _LONG_STRING.sub(_on_one_line, _CONTINUED.sub(" ", text))
    return "".join(_line(line) for line in text.splitlines(keepends=True))


def redact_bytes(data: bytes, known: Collection[str] = ()) -> bytes:
    """The bytes of a file without secrets. A file that is no text loses only known secrets."""
    try:
        return redact(data.decode(), known).encode()
    except UnicodeDecodeError:
        for secret in known:
            if len(secret) >= MIN_SECRET_LENGTH:
                data = data.replace(secret.encode(), b"*" * len(secret.encode()))
        return data


def _as_json(text: str) -> Any:
    """The JSON object or list in a text; None if it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {_sentence(str(key)): GONE if is_secret(str(key)) else _redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    return _sentence(value) if isinstance(value, str) else value


def _sentence(text: str) -> str:
    return "".join(_line(line) for line in text.splitlines(keepends=True))


def _on_one_line(found: re.Match[str]) -> str:
    return found.group().replace("\n", " ").replace("\r", " ")


def _line(line: str) -> str:
    if not _HINTED.search(line):
        return line
    body = line.rstrip("\r\n")
    end = line[len(body) :]
    if len(body) > MAX_LINE_CHARS:
        return f"{GONE} (a line of {len(body)} characters that names a secret){end}"
    for found in _NAME.finditer(body):
        if _HARMLESS.search(found.group()):
            continue
        head, tail = body[: found.end()], body[found.end() :]
        whole = _WHOLE.match(tail)
        if whole and _LEFT_OF_KEY.match(body[: found.start()]):
            if whole["value"].strip() in ("", "{", "["):
                return body + end
            quote = whole["quote"]
            comma = "," if whole["end"].rstrip().endswith(",") and quote else ""
            return f"{head}{whole['to']}{quote}{GONE}{quote}{comma}{end}"
        return head + _QUOTED.sub(GONE, _rest(_without_value(tail))) + end
    return line


def _without_value(tail: str) -> str:
    """The text behind a name, without the first value in it."""
    # spaces at the end would be tried from each of them on
    words = tail.rstrip()
    return _VALUE.sub(rf"\g<1>{GONE}", words, count=1) + tail[len(words) :]


def _rest(tail: str) -> str:
    """The rest of a line without the values of further names; a loop, since a line may hold thousands."""
    parts, at = list[str](), 0
    while True:
        names = (found for found in _NAME.finditer(tail, at) if not _HARMLESS.search(found.group()))
        if (found := next(names, None)) is None:
            return "".join((*parts, tail[at:]))
        parts.append(tail[at : found.end()])
        tail, at = _without_value(tail[found.end() :]), 0


def _without_user(found: re.Match[str]) -> str:
    """A word without the user and password of the URL in it."""
    word = found.group()
    start, end = word.find("://") + 3, word.rfind("@")
    return f"{word[:start]}{GONE}{word[end:]}" if 3 <= start <= end and ":" in word[start:end] else word
