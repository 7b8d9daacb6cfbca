"""The identity files in the form of the replica machine (the IdentityStore port)."""

from __future__ import annotations

from rmqha.model.identity import Identity
from rmqha.model.offset import BrokerId
from rmqha.store.meta.identity_file import IdentityFile, PendingIdentity


class BrokerIdentity:
    """Identity of this replica. Raises UsageError if the directory belongs to another broker."""

    def __init__(self, file: IdentityFile, cluster_name: str, broker_name: str) -> None:
        self._file = file
        self._names = (cluster_name, broker_name)
        found = file.require(cluster_name, broker_name)
        self._broker_id = None if found is None else found.broker_id

    def broker_id(self) -> BrokerId | None:
        return self._broker_id

    def pending(self) -> tuple[BrokerId, str] | None:
        """Pending application for an id; one with another broker's name, from a copied directory, is ignored."""
        found = self._file.read_pending()
        if found is None or (found.identity.cluster_name, found.identity.broker_name) != self._names:
            return None
        return found.identity.broker_id, found.check_code

    def begin(self, broker_id: BrokerId, check_code: str) -> None:
        self._file.write_pending(PendingIdentity(Identity(*self._names, broker_id), check_code))

    def confirm(self) -> None:
        pending = self.pending()
        assert pending is not None, "an id is confirmed after it was applied for"
        self._file.confirm(Identity(*self._names, pending[0]))
        self._broker_id = pending[0]

    def abandon(self) -> None:
        self._file.drop_pending()
