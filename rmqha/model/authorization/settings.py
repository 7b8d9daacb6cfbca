"""Users and request codes that a broker's configuration names, in RocketMQ's forms. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rmqha.model.error import ConfigError

if TYPE_CHECKING:
    from rmqha.model.authorization.users import User


def initial_user(text: str, source: str) -> User | None:
    """Super user of initAuthenticationUser, `{"username": …, "password": …}`; None if it is not set. Raises
    ConfigError, whose text does not contain the password."""
    return _user(text, f"{source}: initAuthenticationUser", "username", "password")


def inner_user(text: str, source: str) -> User | None:
    """Super user of innerClientAuthenticationCredentials, `{"accessKey": …, "secretKey": …}`; None if it is not set.
    Raises ConfigError as `initial_user` does."""
    return _user(text, f"{source}: innerClientAuthenticationCredentials", "accessKey", "secretKey")


def _user(text: str, source: str, name_key: str, password_key: str) -> User | None:
    if not text.strip():
        return None
    # imported only here: it is a third of the imports of a command that reads keys, and few files have a user
    from rmqha.model.authorization.users import MAX_PASSWORD_CHARS, User, username_refusal

    try:
        found = json.loads(text)
    except ValueError:
        found = None
    given = found if isinstance(found, dict) else {}
    name, password = given.get(name_key), given.get(password_key)
    if not isinstance(name, str) or not isinstance(password, str) or not password.strip():
        raise ConfigError(f'{source} must be of the form {{"{name_key}": "…", "{password_key}": "…"}}')
    if fault := username_refusal(name):
        raise ConfigError(f"{source}: {fault}")
    if len(password) > MAX_PASSWORD_CHARS:
        raise ConfigError(f"{source}: {password_key} has more than {MAX_PASSWORD_CHARS} characters")
    return User(name, password, is_super=True)


def request_codes(text: str, source: str) -> frozenset[int]:
    """Parse request codes separated by commas. Raises ConfigError."""
    found = [item.strip() for item in text.split(",") if item.strip()]
    for item in found:
        if not item.isdecimal() or len(item) > 9:
            raise ConfigError(f"{source} = {text!r}: {item!r} is no request code; write numbers, separated by commas")
    return frozenset(map(int, found))
