"""`rmqha acl`: users and policies (ACL 2.0) of the broker groups. Control plane."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmqha.cli.messaging.asking import ask_admin
from rmqha.cli.options import complete_group, echo_json, namesrv_option, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.target import target_namesrv_option
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.model.authorization.policy import Policies

USER_COLUMNS = [("USER", "left"), ("TYPE", "left"), ("STATUS", "left"), ("GROUPS", "left")]
POLICY_COLUMNS = [
    ("USER", "left"),
    ("RESOURCE", "left"),
    ("", "left"),
    ("ACTIONS", "left"),
    ("FROM", "left"),
    ("POLICY", "left"),
    ("GROUPS", "left"),
]
POLICY_TYPES = ("Custom", "Default")

groups_option = click.option(
    "--group", "groups", multiple=True, shell_complete=complete_group, help="Where; repeatable. Default: all groups."
)
name_argument = click.argument("username", metavar="USER")
policy_option = click.option(
    "--policy",
    "policy_type",
    type=click.Choice(POLICY_TYPES),
    default="Custom",
    show_default=True,
    help="Custom entries count before default ones.",
)


@click.group()
def acl() -> None:
    """Users and policies (RocketMQ's ACL 2.0) that broker groups keep."""


@acl.group()
def user() -> None:
    """List, make, change and delete users."""


@acl.group("policy")
def policy_group() -> None:
    """List, set and delete what users may do."""


# --- users ------------------------------------------------------------------------------------------------------------
@user.command("ls", epilog="Example: rmqha acl user ls -o json")
@click.option("--filter", "name_part", default="", metavar="TEXT", help="Only users whose name contains it.")
@groups_option
@namesrv_option
@output_option
def list_users(name_part: str, groups: tuple[str, ...], namesrv: str, output: str) -> None:
    """List users, each with the groups that know it so."""
    from rmqha.ops.messaging import users

    found = ask_admin(namesrv, lambda admin: users.users(admin, groups, name_part))
    if output == "json":
        echo_json([asdict(item) for item in found])
        return
    rows = [(item.username, _type(item.is_super), _status(item.is_enabled), ",".join(item.groups)) for item in found]
    echo_table(USER_COLUMNS, rows)


@user.command("create", epilog="Example: rmqha acl user create ann --password-file ann.secret")
@name_argument
@click.option("--super", "is_super", is_flag=True, help="It may do everything.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File of the password; else it is asked for.")
@groups_option
@target_namesrv_option()
@output_option
def create_user(
    username: str, is_super: bool, password_file: Path | None, groups: tuple[str, ...], namesrv: str, output: str
) -> None:
    """Make USER."""
    body = {"password": _password(password_file), "userType": _type(is_super), "userStatus": "enable"}
    _put_user(namesrv, groups, username, body, output, new=True)


@user.command("alter", epilog="Example: rmqha acl user alter ann --disable")
@name_argument
@click.option("--super/--normal", "is_super", default=None, help="Whether it may do everything.")
@click.option("--enable/--disable", "is_enabled", default=None, help="Whether its requests are served.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File of the new password; - asks for it.")
@groups_option
@target_namesrv_option()
@output_option
def alter_user(
    username: str,
    is_super: bool | None,
    is_enabled: bool | None,
    password_file: Path | None,
    groups: tuple[str, ...],
    namesrv: str,
    output: str,
) -> None:
    """Change USER: its password, its type, its status."""
    body = (
        {} if password_file is None else {"password": _password(None if str(password_file) == "-" else password_file)}
    )
    body |= {} if is_super is None else {"userType": _type(is_super)}
    body |= {} if is_enabled is None else {"userStatus": _status(is_enabled)}
    if not body:
        raise UsageError("nothing to change: give --super, --normal, --enable, --disable or --password-file")
    _put_user(namesrv, groups, username, body, output, new=False)


@user.command("rm", epilog="Example: rmqha acl user rm ann")
@name_argument
@groups_option
@target_namesrv_option()
@output_option
def delete_user(username: str, groups: tuple[str, ...], namesrv: str, output: str) -> None:
    """Delete USER and its policies."""
    from rmqha.ops.messaging import users

    done = ask_admin(namesrv, lambda admin: users.delete_user(admin, groups, username))
    _tell(output, {"user": username, "groups": done}, f"{username}: deleted in {', '.join(done)}")


def _put_user(
    namesrv: str, groups: tuple[str, ...], username: str, body: dict[str, str], output: str, *, new: bool
) -> None:
    from rmqha.ops.messaging import users

    done = ask_admin(namesrv, lambda admin: users.put_user(admin, groups, username, body, new=new))
    words = "made" if new else "changed"
    _tell(output, {"user": username, "groups": done}, f"{username}: {words} in {', '.join(done)}")


# --- policies ---------------------------------------------------------------------------------------------------------
@policy_group.command("ls", epilog="Example: rmqha acl policy ls --user ann")
@click.option("--user", "username", default="", metavar="TEXT", help="Only of users whose name contains it.")
@click.option("--resource", default="", metavar="TEXT", help="Only about resources that contain it.")
@groups_option
@namesrv_option
@output_option
def list_policies(username: str, resource: str, groups: tuple[str, ...], namesrv: str, output: str) -> None:
    """List what users may do, each entry with the groups that have it."""
    from rmqha.ops.messaging import users

    found = ask_admin(namesrv, lambda admin: users.entries(admin, groups, username, resource))
    if output == "json":
        echo_json([asdict(item) for item in found])
        return
    rows = [
        (
            item.username,
            item.resource,
            item.decision,
            ",".join(item.actions),
            ",".join(item.sources) or "anywhere",
            item.policy_type,
            ",".join(item.groups),
        )
        for item in found
    ]
    echo_table(POLICY_COLUMNS, rows)


@policy_group.command("set", epilog="Example: rmqha acl policy set ann 'Topic:orders-*' Pub Sub --from 10.0.0.0/8")
@name_argument
@click.argument("resource")
@click.argument("actions", nargs=-1, required=True, metavar="ACTION...")
@click.option("--deny", is_flag=True, help="Forbid instead of allow.")
@click.option(
    "--from", "sources", multiple=True, metavar="ADDRESS", help="Only from this address or network; repeatable."
)
@policy_option
@groups_option
@target_namesrv_option()
@output_option
def set_policy(
    username: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    policy_type: str,
    groups: tuple[str, ...],
    namesrv: str,
    output: str,
) -> None:
    """Allow USER actions on RESOURCE, in place of what stands there about it.

    RESOURCE is Topic:NAME, Group:NAME, Cluster:NAME, with a * at its end for all that begin so, or * alone. ACTION is
    All, Pub, Sub, Create, Update, Delete, Get or List.
    """
    from rmqha.ops.messaging import users

    given = _entry(resource, actions, sources, policy_type, allows=not deny)
    done = ask_admin(namesrv, lambda admin: users.put_policies(admin, groups, username, given))
    words = f"{'Deny' if deny else 'Allow'} {','.join(actions)} on {resource}"
    _tell(output, {"user": username, "resource": resource, "groups": done}, f"{username}: {words} in {', '.join(done)}")


@policy_group.command("rm", epilog="Example: rmqha acl policy rm ann 'Topic:orders-*'")
@name_argument
@click.argument("resource", required=False, default="")
@policy_option
@groups_option
@target_namesrv_option()
@output_option
def delete_policy(
    username: str, resource: str, policy_type: str, groups: tuple[str, ...], namesrv: str, output: str
) -> None:
    """Delete USER's entry about RESOURCE, or without one all its entries."""
    from rmqha.ops.messaging import users

    done = ask_admin(namesrv, lambda admin: users.delete_policies(admin, groups, username, resource, policy_type))
    about = f"the entry about {resource}" if resource else "all entries"
    _tell(
        output,
        {"user": username, "resource": resource, "groups": done},
        f"{username}: {about} deleted in {', '.join(done)}",
    )


# --- from plain_acl.yml -----------------------------------------------------------------------------------------------
@acl.command("migrate", epilog="Example: rmqha acl migrate conf/plain_acl.yml --dry-run")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only tell what would be made.")
@groups_option
@target_namesrv_option(lambda given: not given["dry_run"])
@output_option
def migrate(path: Path, dry_run: bool, groups: tuple[str, ...], namesrv: str, output: str) -> None:
    """Make users and policies of the accounts in FILE, a plain_acl.yml.

    Secret keys become passwords, so clients go on with the keys that they have. What FILE says and policies cannot is
    told. Users that are there already are changed; policies about other resources stay.
    """
    from rmqha.host.access.accounts import AccessFile
    from rmqha.model.authorization import policy
    from rmqha.model.authorization.plain_accounts import converted
    from rmqha.ops.messaging import users

    found = converted(AccessFile(path).access)
    done = [] if dry_run else ask_admin(namesrv, lambda admin: users.take_over(admin, groups, found))
    if output == "json":
        made = [
            {"user": item.username, "super": item.is_super, "policies": policy.to_json(policies)}
            for item, policies in found.users
        ]
        echo_json({"users": made, "lost": list(found.lost), "groups": done})
        return
    for item, policies in found.users:
        _show_user(item.username, item.is_super, policies)
    for line in found.lost:
        click.echo(f"not taken over: {printable(line, lines=False)}")
    if done:
        click.echo(
            f"{len(found.users)} users in {', '.join(done)}; next: authenticationEnabled and authorizationEnabled"
        )


def _show_user(username: str, is_super: bool, policies: Policies) -> None:
    click.echo(f"{printable(username, lines=False)}: {_type(is_super)}")
    for item in policies:
        for entry in item.entries:
            actions = ",".join(action.value for action in entry.actions)
            words = f"{'Allow' if entry.allows else 'Deny'} {actions} on {entry.resource.key} ({item.type.value})"
            click.echo(f"  {printable(words, lines=False)}")


# --- words ------------------------------------------------------------------------------------------------------------
def _entry(
    resource: str, actions: tuple[str, ...], sources: tuple[str, ...], policy_type: str, *, allows: bool
) -> Policies:
    """Policies of one entry, of the options. Raises UsageError."""
    from rmqha.model.authorization import policy
    from rmqha.model.error import ConfigError

    entry = {"resource": resource, "actions": list(actions), "sourceIps": list(sources)}
    known = {action.value.lower() for action in policy.Action}
    for action in actions:
        if action.lower() not in known:
            raise UsageError(
                f"there is no action {action!r}; there are All, Pub, Sub, Create, Update, Delete, Get, List"
            )
    try:
        return policy.from_json(
            [{"policyType": policy_type, "entries": [{**entry, "decision": "Allow" if allows else "Deny"}]}]
        )
    except ConfigError as error:
        raise UsageError(f"{resource} {' '.join(actions)} {' '.join(sources)}: {error}") from None


def _password(path: Path | None) -> str:
    """The password in a file, or typed at the terminal. Raises UsageError."""
    from rmqha.host.access.accounts import read_secret_text

    if path is not None:
        found = read_secret_text(str(path)).strip("\r\n")
    else:
        found = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not found.strip():
        raise UsageError(f"{path or 'the password'} is empty")
    return str(found)


def _type(is_super: bool) -> str:
    return "Super" if is_super else "Normal"


def _status(is_enabled: bool) -> str:
    return "enable" if is_enabled else "disable"


def _tell(output: str, value: dict[str, object], words: str) -> None:
    if output == "json":
        echo_json(value)
    else:
        click.echo(printable(words, lines=False))
