"""Users and their policies: config/auth.json, replicated from the master to its slaves as a whole.

Apache stores them in RocksDB below config/auth: neither reads the other's. The table is small and seldom changes, so a
slave that lacks a change gets all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import MAX_COUNTER, DataVersion, TableEvents, mapping
from rmqha.broker.tables.table_file import ROWS, PendingTableWrite, TableFile
from rmqha.model.authorization import policy
from rmqha.model.authorization.policy import MAX_ENTRY_COUNT, Policies
from rmqha.model.authorization.users import AuthorizationRules, User, UserChange, UserDirectory, username_refusal
from rmqha.model.error import ConfigError
from rmqha.port import Clock, Disk
from rmqha.wire.lenient_json import dumps

MAX_USER_COUNT = 4096
MAX_TABLE_BYTES = 4 * 1024 * 1024
"""Bound on all users and policies, as JSON, since each change is sent with all of them."""
_USERS, _POLICIES = "users", "policies"


class _Rows(NamedTuple):
    users: dict[str, User]
    policies: dict[str, Policies]


class UserTable:
    """Users and policies by user name. Changes take effect at once and reach the disk together (`file`). `access` has
    the resulting rights in place of `rmqha.host.access.accounts.AccessFile`."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        events: TableEvents,
        rules: AuthorizationRules,
        initial: User | None = None,
        inner: User | None = None,
        *,
        is_synced: bool = True,
    ) -> None:
        """`initial`: a user of the configuration, unless the table has one of that name; `inner`: a user that no table
        changes, with whom brokers ask each other. `is_synced`: the file is known to be on the disk. Raises StoreError
        if it is unreadable."""
        self._clock = clock
        self._events = events
        self._rules = rules
        self._initial = {initial.username: initial} if initial is not None else {}
        self._inner = {inner.username: inner} if inner is not None else {}
        found = config_table.load(disk, "auth", _parse, (_USERS, _POLICIES))
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self.epoch = self.version.state_version
        self._users, self._policies = found.table
        self.file = TableFile(disk, "auth", (_USERS, _POLICIES))
        self.file.holds(_USERS, {name: user.to_json() for name, user in self._users.items()})
        self.file.holds(_POLICIES, {name: policy.to_json(rows) for name, rows in self._policies.items()})
        if not is_synced and self._users:
            self.file.doubt()
        self._bytes = _byte_count(self._users, self._policies)
        self.access = self._directory()

    def _directory(self) -> UserDirectory:
        return UserDirectory.of(self._all().values(), self._policies, self._rules)

    def _all(self) -> dict[str, User]:
        return self._initial | self._users | self._inner

    # --- queries ------------------------------------------------------------------------------------------------------
    def user(self, username: str) -> User | None:
        return self._inner.get(username) or self._users.get(username) or self._initial.get(username)

    def users(self) -> list[User]:
        """All users, in order of their names."""
        return [user for _, user in sorted(self._all().items())]

    def is_configured(self, username: str) -> bool:
        """True if the configuration names that user, who cannot be deleted then."""
        return username in self._inner or username in self._initial

    def policies(self, username: str) -> Policies:
        return self._policies.get(username, ())

    def all_policies(self) -> list[tuple[str, Policies]]:
        """Policies by user name, in order."""
        return sorted(self._policies.items())

    # --- changes ------------------------------------------------------------------------------------------------------
    def put_user(self, username: str, change: UserChange) -> None:
        """Create or change a user. Raises ConfigError, with nothing changed."""
        if username in self._inner:
            raise ConfigError(f"{username} is this broker's own user: change it in the configuration of all replicas")
        known = self.user(username)
        if known is None:
            if fault := username_refusal(username):
                raise ConfigError(fault)
            if not change.password:
                raise ConfigError("password can not be blank")
            if len(self._users) >= MAX_USER_COUNT:
                raise ConfigError(f"this broker has as many users as there may be, {MAX_USER_COUNT}: delete some")
            known = User(username, change.password)
        self._change(username, known.changed(change), self.policies(username))

    def remove_user(self, username: str) -> None:
        """Remove a user with its policies."""
        self._change(username, None, ())

    def put_policies(self, username: str, policies: Policies) -> None:
        """Replace the policies of a user. Raises ConfigError, with nothing changed."""
        if sum(len(item.entries) for item in policies) > MAX_ENTRY_COUNT:
            raise ConfigError(f"a user has at most {MAX_ENTRY_COUNT} policy entries")
        self._change(username, self._users.get(username), policies)

    def _change(self, username: str, user: User | None, policies: Policies) -> None:
        before = _byte_count(*self._rows_of(username))
        users = {} if user is None else {username: user}
        after = _byte_count(users, {username: policies} if policies else {})
        if after > before and self._bytes + after - before > MAX_TABLE_BYTES:
            raise ConfigError(f"users and policies would take more than {MAX_TABLE_BYTES} bytes: delete some")
        self._bytes += after - before
        _set(self._users, username, user)
        _set(self._policies, username, policies or None)
        if not self.version.counter:  # no other life of this broker may have given the same version to something else
            self.version.counter = self._clock.wall_ms() // 1000 % (MAX_COUNTER // 4)
        self.version.advance(self.epoch, self._clock.wall_ms())
        self.access = self._directory()
        self.file.change(_USERS, {username: None if user is None else user.to_json()})
        self.file.change(_POLICIES, {username: policy.to_json(policies) if policies else None})
        self._events.save_tables_soon()
        self._events.table_changed()

    def _rows_of(self, username: str) -> tuple[dict[str, User], dict[str, Policies]]:
        user, policies = self._users.get(username), self.policies(username)
        return ({} if user is None else {username: user}), ({username: policies} if policies else {})

    def new_epoch(self, epoch: int) -> None:
        """Begin a master epoch. A table that was never changed keeps its version."""
        self.epoch = epoch
        if self.version.counter:
            self.version.new_epoch(epoch)
            self.file.touch()

    # --- other replicas and the file ----------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            _POLICIES: {name: policy.to_json(found) for name, found in sorted(self._policies.items())},
            _USERS: {name: user.to_json() for name, user in sorted(self._users.items())},
        }

    def replace(self, body: Mapping[str, Any]) -> None:
        """Replace a slave's table by its master's; the file must be written before the next poll acknowledges it.
        Raises ValueError or ConfigError."""
        rows = _parse(body)
        self.version = DataVersion.from_json(body.get("dataVersion"))
        self._users, self._policies = rows
        self._bytes = _byte_count(*rows)
        self.access = self._directory()
        self.file.replace(_USERS, {name: user.to_json() for name, user in rows.users.items()})
        self.file.replace(_POLICIES, {name: policy.to_json(found) for name, found in rows.policies.items()})

    def unsaved(self, *, in_flight: bool = False) -> PendingTableWrite | None:
        """Content that the file lacks, None if it has it or will have it."""

        def members() -> dict[str, Any]:
            return {"dataVersion": self.version.to_json(), _POLICIES: ROWS, _USERS: ROWS, **self._unknown}

        return self.file.unsaved(members, in_flight=in_flight)


def _set(rows: dict[str, Any], name: str, row: object) -> None:
    if row is None:
        rows.pop(name, None)
    else:
        rows[name] = row


def _byte_count(users: Mapping[str, User], policies: Mapping[str, Policies]) -> int:
    rows = (*(user.to_json() for user in users.values()), *(policy.to_json(found) for found in policies.values()))
    return sum(len(dumps(row)) for row in rows)


def _parse(body: Mapping[str, Any]) -> _Rows:
    """Users and policies of the file. Raises ValueError."""
    users: dict[str, User] = {}
    policies: dict[str, Policies] = {}
    try:
        for name, row in mapping(body.get(_USERS), _USERS).items():
            change = UserChange.from_json(row)
            if fault := username_refusal(name) or ("" if change.password else "password can not be blank"):
                raise ValueError(f"user {name!r}: {fault}")
            users[name] = User(name, change.password).changed(change)
        for name, row in mapping(body.get(_POLICIES), _POLICIES).items():
            policies[name] = policy.from_json(row)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return _Rows(users, policies)
