"""Accounts of a broker whose users stand in its store, from before the store is open. Shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rmqha.model.authorization.users import UserDirectory

if TYPE_CHECKING:
    from rmqha.host.access.live_files import LiveFiles

NOBODY = UserDirectory({})


class Users(Protocol):
    """Port to a table of users."""

    @property
    def access(self) -> UserDirectory: ...


class UserAccounts:
    """Implements `Accounts` by a table of users, once `follow` has told which; nobody may ask anything before. Servers
    that know the secret are a super user."""

    def __init__(self, secret: LiveFiles[bytes] | None = None) -> None:
        self._secret = secret
        self._table: Users | None = None
        self._made: tuple[UserDirectory, bytes, UserDirectory] | None = None
        """The last answer, and what it was made of."""

    def follow(self, table: Users) -> None:
        self._table = table

    @property
    def access(self) -> UserDirectory:
        if self._table is None:
            return NOBODY
        users = self._table.access
        if self._secret is None:
            return users
        secret, made = self._secret.current, self._made
        if made is None or made[0] is not users or made[1] != secret:
            made = self._made = (users, secret, users.with_peers(secret.decode()))
        return made[2]
