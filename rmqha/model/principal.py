"""The principal of a request: the account that a request is signed with. It goes with the request to whoever serves it.
Pure."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rmqha.model.access import AccessList, Account, Needs

MARK_CHARS = 16


class Accounts(Protocol):
    """Port to the accounts in force; `rmqha.host.access.accounts.AccessFile` is one."""

    @property
    def access(self) -> AccessList: ...


class Principal:
    """An account by name. Its rights are looked up whenever it is asked, so that a change of the accounts counts for
    requests that wait and clients that are connected, too."""

    __slots__ = ("_accounts", "access_key", "denied", "host")

    def __init__(
        self,
        accounts: Accounts | None = None,
        access_key: str = "",
        denied: Callable[[Any, str], None] | None = None,
        host: str = "",
    ) -> None:
        """Make a principal. Without `accounts` it may do everything: the server asks for none, or the address needs
        none. `denied` is called with the request and the reason when a request is refused after it was let in. `host`:
        address of the client."""
        self._accounts = accounts
        self.host = host
        self.access_key = access_key
        self.denied: Callable[[Any, str], None] = _nobody_counts if denied is None else denied

    @property
    def is_restricted(self) -> bool:
        return self._accounts is not None

    @property
    def is_admin(self) -> bool:
        """An account that is; nobody is where there are none."""
        if self._accounts is None:
            return False
        account = self._accounts.access.accounts.get(self.access_key)
        return account is not None and account.admin

    @property
    def account(self) -> Account | None:
        """The account as it is now; None if there is none, or none is needed."""
        return None if self._accounts is None else self._accounts.access.accounts.get(self.access_key)

    @property
    def mark(self) -> str:
        """Text by which the log knows an account that has a share of something; "" for who may have all of it."""
        if not self.is_restricted or self.is_admin:
            return ""
        return blake2b(self.access_key.encode("utf-8", "surrogatepass"), digest_size=MARK_CHARS // 2).hexdigest()

    @property
    def sees_secrets_places(self) -> bool:
        """True if it may know in which files a server's secrets are, and which accounts there are."""
        return not self.is_restricted or self.is_admin

    def refusal(self, needs: Needs) -> str:
        """ "" if it may, else why not, in one sentence."""
        return "" if self._accounts is None else self._accounts.access.refusal(self.access_key, needs, self.host)

    def producer_group_refusal(self, group: str) -> str:
        """ "" if it may be a producer of the group, else why not, in one sentence."""
        return "" if self._accounts is None else self._accounts.access.producer_group_refusal(self.access_key, group)


def _nobody_counts(request: Any, reason: str) -> None:
    """Ignore the count: there is no guard."""


UNRESTRICTED = Principal()
PEER_SERVER = Principal()
"""Another server of this cluster, which has proved that it knows the shared secret (haSecretFile)."""
UNPROVEN = Principal()
"""Peer whose request only a server of this cluster would send, without proof."""
