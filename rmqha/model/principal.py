"""The principal of a request: the account that has signed it. The service gets it with the request. Pure."""

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
    """An account by name. Its rights are looked up at each check, so that a change of the accounts takes effect also
    for waiting requests and connected clients."""

    __slots__ = ("_accounts", "access_key", "denied", "host")

    def __init__(
        self,
        accounts: Accounts | None = None,
        access_key: str = "",
        denied: Callable[[Any, str], None] | None = None,
        host: str = "",
    ) -> None:
        """`accounts` None: it has all rights, because the server has no accounts or its address needs none. `denied`:
        to be called, with the request and the reason, when a request is refused that the filter has allowed. `host`:
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
        """True for an admin account; always False if there are no accounts."""
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
        """True if it may see in which files a server's secrets are, and which accounts exist."""
        return not self.is_restricted or self.is_admin

    def refusal(self, needs: Needs) -> str:
        """Reason, in one sentence, why it lacks a right; "" if it has all."""
        return "" if self._accounts is None else self._accounts.access.refusal(self.access_key, needs, self.host)

    def producer_group_refusal(self, group: str) -> str:
        """Reason, in one sentence, why it may not be a producer of the group; "" if it may."""
        return "" if self._accounts is None else self._accounts.access.producer_group_refusal(self.access_key, group)


def _nobody_counts(request: Any, reason: str) -> None:
    """Ignore a refusal: there is no filter that counts it."""


UNRESTRICTED = Principal()
PEER_SERVER = Principal()
"""Principal of another server of this cluster, which has proved that it knows the shared secret (haSecretFile)."""
UNPROVEN = Principal()
"""Principal of a request that only servers of this cluster send, but that came without proof."""
