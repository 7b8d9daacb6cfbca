"""CP: a replica that lost power counts as whole again only when it holds what was acknowledged before it started
(ruling 3), unless an operator accepted the loss. Before, it is no master."""

from __future__ import annotations

from ..broker_process import BrokerProcess
from ..history import InvariantError


class Wholeness:
    def __init__(self, *, cp: bool) -> None:
        self._cp = cp
        self._acked_to = 0
        self._loss_accepted = False
        self._needs: dict[str, tuple[int, int]] = {}
        """Unclean replicas: their life, and what was acknowledged when it began."""

    def elected(self, broker: BrokerProcess) -> None:
        """`broker` takes the role of master."""
        life = self._needs.get(broker.host, (0, 0))[0]
        if self._cp and not self._loss_accepted and life == broker.life and broker.config.total_replicas > 1:
            raise InvariantError(f"{broker.host} lost power, has followed nobody since, and is master")

    def stepped(self, broker: BrokerProcess) -> None:
        if not self._cp:
            return
        replica = broker.replica
        if replica.is_master:
            end = replica.releasable_offset
            if end > self._acked_to:
                self._acked_to = end
            self._needs.pop(broker.host, None)
        elif broker.store.unclean:
            self._needs.setdefault(broker.host, (broker.life, self._acked_to))
            if self._needs[broker.host][0] != broker.life:
                self._needs[broker.host] = (broker.life, self._acked_to)
        elif broker.host in self._needs:
            life, needed = self._needs.pop(broker.host)
            if life == broker.life and broker.store.max_phy_offset < needed:
                raise InvariantError(
                    f"{broker.host} counts as whole again and ends at {broker.store.max_phy_offset};"
                    f" {needed} was acknowledged before it started"
                )

    def accepted_loss(self) -> None:
        """An operator elected uncleanly."""
        self._acked_to = 0
        self._loss_accepted = True
        self._needs.clear()
