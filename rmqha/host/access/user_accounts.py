"""Accounts of a broker whose users are in its store, usable before the store is open. Shell."""

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
    """Accounts of a table of users; before `follow` has set the table, no request is allowed. Servers that know the
    secret are a super user. Implements `Accounts`."""

    def __init__(self, secret: LiveFiles[bytes] | None = None) -> None:
        self._secret = secret
        self._table: Users | None = None
        self._made: tuple[UserDirectory, bytes, UserDirectory] | None = None
        """The users and the secret of the last call, and the directory made of them."""

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
