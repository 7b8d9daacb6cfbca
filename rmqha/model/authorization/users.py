"""Users of RocketMQ's ACL 2.0 as accounts, with the rights of their policies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmqha.model.access import AccessList, Account, Needs, Permission, group_of_topic, popped_again_of
from rmqha.model.authorization.policy import Access, Action, Policies, ResourceType, decide
from rmqha.model.error import ConfigError
from rmqha.model.identity import PEER, Credentials
from rmqha.model.message import RETRY_PREFIX

MAX_USERNAME_CHARS = 128
MAX_PASSWORD_CHARS = 256
MAX_REMEMBERED_DECISIONS = 1024
MAX_REMEMBERED_CHARS = 256
_ACTIONS = ((Permission.PUB, {Action.PUB}), (Permission.SUB, {Action.SUB, Action.GET}))


@dataclass(frozen=True, slots=True)
class User:
    """A user. `password`: the key that signs the user's requests; `repr` does not contain it."""

    username: str
    password: str
    is_super: bool = False
    is_enabled: bool = True

    def __repr__(self) -> str:
        return f"User({self.username!r}, is_super={self.is_super}, is_enabled={self.is_enabled})"

    def to_json(self, *, with_password: bool = True) -> dict[str, Any]:
        """RocketMQ's UserInfo."""
        return ({"password": self.password} if with_password else {}) | {
            "userStatus": "enable" if self.is_enabled else "disable",
            "userType": "Super" if self.is_super else "Normal",
            "username": self.username,
        }

    def changed(self, given: UserChange) -> User:
        """This user with the given values."""
        password = given.password or self.password
        is_super = self.is_super if given.is_super is None else given.is_super
        is_enabled = self.is_enabled if given.is_enabled is None else given.is_enabled
        return replace(self, password=password, is_super=is_super, is_enabled=is_enabled)


@dataclass(frozen=True, slots=True)
class UserChange:
    """Values of a user in a request; "" and None: not given."""

    password: str = ""
    is_super: bool | None = None
    is_enabled: bool | None = None

    def __repr__(self) -> str:
        return f"UserChange(is_super={self.is_super}, is_enabled={self.is_enabled})"

    @classmethod
    def from_json(cls, value: Any) -> UserChange:
        """Parse RocketMQ's UserInfo; an unknown type or status counts as not given. Raises ConfigError."""
        if not isinstance(value, Mapping):
            raise ConfigError("user can not be null")
        password = value.get("password") or ""
        if not isinstance(password, str) or len(password) > MAX_PASSWORD_CHARS:
            raise ConfigError(f"password must be text of at most {MAX_PASSWORD_CHARS} characters")
        type_, status = str(value.get("userType")).lower(), str(value.get("userStatus")).lower()
        return cls(
            password if password.strip() else "",
            {"super": True, "normal": False}.get(type_),
            {"enable": True, "disable": False}.get(status),
        )


def username_refusal(username: str) -> str:
    """Reason why `username` cannot be a user's name; "" if it can."""
    if not username.strip():
        return "username can not be blank"
    if len(username) > MAX_USERNAME_CHARS or not username.isprintable():
        return f"username must be printable text of at most {MAX_USERNAME_CHARS} characters"
    return f"{PEER} is the name of servers that prove the cluster's secret" if username == PEER else ""


@dataclass(frozen=True)
class AuthorizationRules:
    """Rules of the configuration. `is_on`: authorizationEnabled; `cluster`: name of the resource of type Cluster."""

    is_on: bool = False
    cluster: str = ""
    unauthenticated_codes: frozenset[int] = frozenset()
    """authenticationWhitelist."""
    unauthorized_codes: frozenset[int] = frozenset()
    """authorizationWhitelist."""


@dataclass(frozen=True)
class UserAccount(Account):
    """An enabled user; `admin` is a super user."""

    policies: Policies = ()
    rules: AuthorizationRules = AuthorizationRules()
    _decisions: dict[tuple[Access, str], str] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Cache of decisions by access and host: with many entries a decision would cost more than a send."""

    def refusal(self, needs: Needs, host: str = "") -> str:
        """Reason why this user lacks a right; "" if it has all. Request processors call it for a topic, a group or a
        record that the request itself does not name."""
        if needs.admin and not self.admin:
            return self.access_refusal(None, host)
        topics = [_to_topic(topic, any_of) for topic, any_of in needs.topics]
        return self.access_refusal(
            (*topics, *(_to_use(ResourceType.GROUP, group, any_of) for group, any_of in needs.groups)), host
        )

    def access_refusal(self, accesses: Iterable[Access] | None, host: str) -> str:
        """Reason why an access is not allowed; "" if all are. `accesses` None: only a super user is allowed."""
        if self.admin or (not self.rules.is_on and accesses is not None):
            return ""
        subject = f"User:{self.credentials.access_key}"
        if accesses is None:
            return f"{subject} is not a super user"
        for access in accesses:
            if reason := self._decided(access, host):
                return f"{subject} has no permission to access {access.key} from {host}, {reason}"
        return ""

    def _decided(self, access: Access, host: str) -> str:
        decisions, key = self._decisions, (access, host)
        reason = decisions.get(key)
        if reason is None:
            reason = decide(self.policies, access, host)
            if len(access.name) <= MAX_REMEMBERED_CHARS:
                if len(decisions) >= MAX_REMEMBERED_DECISIONS:
                    decisions.clear()
                decisions[key] = reason
        return reason


def _to_topic(topic: str, any_of: Permission) -> Access:
    """Access to a topic; for the retry topic of a group it is an access to the group."""
    group = group_of_topic(topic)
    if group is not None and topic.startswith(RETRY_PREFIX):
        used = _to_use(ResourceType.GROUP, group, Permission.SUB)
        return used._replace(again_of=tuple(popped_again_of(topic)))
    return _to_use(ResourceType.TOPIC, topic, any_of)


def _to_use(type_: ResourceType, name: str, any_of: Permission) -> Access:
    return Access(type_, name, frozenset().union(*(actions for permission, actions in _ACTIONS if permission & any_of)))


@dataclass(frozen=True)
class UserDirectory(AccessList):
    """The enabled users as accounts, and the names of the others."""

    disabled: frozenset[str] = frozenset()
    rules: AuthorizationRules = AuthorizationRules()

    @classmethod
    def of(cls, users: Iterable[User], policies: Mapping[str, Policies], rules: AuthorizationRules) -> UserDirectory:
        listed = list(users)
        accounts = {
            user.username: UserAccount(
                credentials=Credentials(access_key=user.username, secret_key=user.password),
                admin=user.is_super,
                policies=policies.get(user.username, ()),
                rules=rules,
            )
            for user in listed
            if user.is_enabled
        }
        return cls(accounts, (), frozenset(user.username for user in listed if not user.is_enabled), rules)

    def with_peers(self, secret: str) -> UserDirectory:
        """This directory and the super user as which servers of the cluster sign, with the cluster's secret."""
        peer = Credentials(access_key=PEER, secret_key=secret)
        return replace(self, accounts={**self.accounts, PEER: UserAccount(credentials=peer, admin=True)})

    def unsigned(self, code: int) -> str:
        return "username cannot be null."

    def unknown(self, access_key: str) -> str:
        return f"User:{access_key} is {'disabled' if access_key in self.disabled else 'not found'}."

    def wrong_signature(self, access_key: str) -> str:
        return "check signature failed."

    def takes_unsigned(self, code: int) -> bool:
        rules = self.rules
        return code in rules.unauthenticated_codes and (not rules.is_on or code in rules.unauthorized_codes)

    def producer_group_refusal(self, access_key: str, group: str) -> str:
        """ "" for every known user: ACL 2.0 has rights on topics, not on producer groups."""
        return "" if access_key in self.accounts else self.unknown(access_key)
