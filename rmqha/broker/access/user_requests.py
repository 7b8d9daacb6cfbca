"""Requests 3001-3010: RocketMQ's ACL 2.0 commands about users and policies. No trio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmqha.broker.access.user_table import UserTable
from rmqha.broker.requests.change_gate import ChangeGate
from rmqha.broker.requests.request import Channel, Handler, MetadataReplication, RequestError, answer_when
from rmqha.model.authorization import policy
from rmqha.model.authorization.policy import Policies, PolicyType, Resource, by_name, merged, without
from rmqha.model.authorization.users import User, UserChange
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import ConfigError
from rmqha.model.principal import Principal
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

_SUBJECT = "User:"
_Change = Callable[[Command], None]


class UserRequests:
    """Queries and changes of the table; changes are answered when the group has them.

    `mqadmin -c` sends changes to slaves too, after the master: a slave that has the change already answers success, so
    that the command ends.
    """

    def __init__(self, table: UserTable, changes: ChangeGate, metadata_leader: MetadataReplication) -> None:
        self._table = table
        self._changes = changes
        self._metadata_leader = metadata_leader

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: self._changing(self._create_user, self._has_user),
            RequestCode.AUTH_UPDATE_USER: self._changing(self._update_user, self._has_user),
            RequestCode.AUTH_DELETE_USER: self._changing(self._delete_user, self._lacks_user),
            RequestCode.AUTH_GET_USER: self._get_user,
            RequestCode.AUTH_LIST_USER: self._list_users,
            RequestCode.AUTH_CREATE_ACL: self._changing(self._put_acl, self._has_acl),
            RequestCode.AUTH_UPDATE_ACL: self._changing(self._put_acl, self._has_acl),
            RequestCode.AUTH_DELETE_ACL: self._changing(self._delete_acl, self._lacks_acl),
            RequestCode.AUTH_GET_ACL: self._get_acl,
            RequestCode.AUTH_LIST_ACL: self._list_acls,
        }

    def _changing(self, change: _Change, is_held: Callable[[Command], bool]) -> Handler:
        def handle(channel: Channel, command: Command) -> Command | None:
            try:
                if not self._changes.serving.is_serving and is_held(command):
                    return command.reply()
                self._changes.check()
                change(command)
            except ConfigError as error:
                raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
            answer_when(self._metadata_leader.wait, channel, command.reply())
            return None

        return handle

    # --- users --------------------------------------------------------------------------------------------------------
    def _create_user(self, command: Command) -> None:
        username, change = _username(command), UserChange.from_json(_body(command))
        if change.is_super and not _is_super(command.principal):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
        if self._table.user(username) is not None:
            raise ConfigError("The user is existed")
        self._table.put_user(username, change)

    def _update_user(self, command: Command) -> None:
        username, change = _username(command), UserChange.from_json(_body(command))
        if change.is_super and not _is_super(command.principal):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")
        old = self._table.user(username)
        if old is None:
            raise ConfigError("The user is not exist")
        _check_may_touch(old, command.principal)
        self._table.put_user(username, change)

    def _delete_user(self, command: Command) -> None:
        username = command.ext.get("username") or ""
        if not username.strip():
            raise ConfigError("username can not be blank")
        user = self._table.user(username)
        if user is None:
            return
        _check_may_touch(user, command.principal)
        if self._table.is_configured(username):
            raise ConfigError(f"{username} stands in this broker's configuration: take it out there first")
        self._table.remove_user(username)

    def _has_user(self, command: Command) -> bool:
        user = self._table.user(_username(command))
        return user is not None and user.changed(UserChange.from_json(_body(command))) == user

    def _lacks_user(self, command: Command) -> bool:
        return self._table.user(command.ext.get("username") or "") is None

    def _get_user(self, channel: Channel, command: Command) -> Command:
        user = self._table.user(_username(command))
        if user is None:
            return command.reply()
        return command.reply(body=lenient_json.dumps(_user_info(user, command.principal)))

    def _list_users(self, channel: Channel, command: Command) -> Command:
        wanted = (command.ext.get("filter") or "").strip()
        found = [_user_info(user, command.principal) for user in self._table.users() if wanted in user.username]
        return command.reply(body=lenient_json.dumps(found) if found else b"")

    # --- policies -----------------------------------------------------------------------------------------------------
    def _put_acl(self, command: Command) -> None:
        username, given = _acl(command)
        self._check_known(username)
        self._table.put_policies(username, merged(self._table.policies(username), given))

    def _delete_acl(self, command: Command) -> None:
        username = _subject(command.ext.get("subject"))
        if self._table.user(username) is None:
            raise ConfigError("The subject is not exist.")
        policies = self._table.policies(username)
        if not policies:
            raise ConfigError("The acl is not exist.")
        self._table.put_policies(username, self._left(command, policies))

    def _left(self, command: Command, policies: Policies) -> Policies:
        """Policies after the deletion; without a resource none."""
        resource = Resource.parse(command.ext.get("resource") or "")
        type_ = by_name(PolicyType, command.ext.get("policyType")) or PolicyType.CUSTOM
        if resource is None:
            if (command.ext.get("resource") or "").strip():
                raise ConfigError("The resource is null.")
            return ()
        return without(policies, type_, resource)

    def _check_known(self, username: str) -> None:
        if self._table.user(username) is None:
            raise ConfigError(f"The subject of {_SUBJECT}{username} is not exist.")

    def _has_acl(self, command: Command) -> bool:
        username, given = _acl(command)
        policies = self._table.policies(username)
        return merged(policies, given) == policies

    def _lacks_acl(self, command: Command) -> bool:
        policies = self._table.policies(_subject(command.ext.get("subject")))
        return self._left(command, policies) == policies

    def _get_acl(self, channel: Channel, command: Command) -> Command:
        username = _subject(command.ext.get("subject"))
        if self._table.user(username) is None:
            raise RequestError(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        policies = self._table.policies(username)
        return command.reply(body=lenient_json.dumps(_acl_info(username, policies)) if policies else b"")

    def _list_acls(self, channel: Channel, command: Command) -> Command:
        subject = (command.ext.get("subjectFilter") or "").strip()
        resource = (command.ext.get("resourceFilter") or "").strip()
        found = []
        for username, policies in self._table.all_policies():
            key = _SUBJECT + username
            shown = policies if resource in key else _with_resource(policies, resource)
            if subject in key and shown:
                found.append(_acl_info(username, shown))
        return command.reply(body=lenient_json.dumps(found) if found else b"")


def _is_super(principal: Principal) -> bool:
    """True for super users, and for everybody without accounts, as in RocketMQ."""
    return not principal.is_restricted or principal.is_admin


def _check_may_touch(user: User, principal: Principal) -> None:
    if user.is_super and not _is_super(principal):
        raise ConfigError("The super user can only be update by super user")


def _user_info(user: User, principal: Principal) -> dict[str, Any]:
    """User for an answer. Its password is shown to super users only, since it is sufficient to be that user."""
    return user.to_json(with_password=_is_super(principal))


def _acl_info(username: str, policies: Policies) -> dict[str, Any]:
    return {"policies": policy.to_json(policies), "subject": _SUBJECT + username}


def _with_resource(policies: Policies, wanted: str) -> Policies:
    found = (
        policy.Policy(item.type, tuple(entry for entry in item.entries if wanted in entry.resource.key))
        for item in policies
    )
    return tuple(item for item in found if item.entries)


def _username(command: Command) -> str:
    username = command.ext.get("username") or ""
    if not username.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return username


def _subject(key: object) -> str:
    """User that a subject names. Raises RequestError."""
    name, colon, username = str(key or "").partition(":")
    if name.lower() != "user" or not colon or not username:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"the subject {key!r} is not {_SUBJECT}NAME")
    return username


def _acl(command: Command) -> tuple[str, Policies]:
    body = _body(command)
    if not isinstance(body, dict) or not body.get("policies"):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
    subject = body.get("subject") or command.ext.get("subject")
    return _subject(subject), policy.from_json(body["policies"])


def _body(command: Command) -> Any:
    return lenient_json.loads(command.body, is_strict=True) if command.body else None
