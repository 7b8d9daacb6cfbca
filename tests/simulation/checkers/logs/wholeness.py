"""CP: a replica that lost power counts as whole again only when it holds what was acknowledged before it started
(ruling 3), unless an operator accepted the loss. Before, it is no master. So does one that gives up its log to copy all
of it anew: it must hold what it had and was acknowledged. In AP too nobody who lost power is master of an epoch that it
had accepted before, whoever was elected how."""

from __future__ import annotations

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Wholeness:
    def __init__(self, *, cp: bool) -> None:
        self._cp = cp
        self._acked_to = 0
        self._loss_accepted = False
        self._started: dict[str, tuple[int, int]] = {}
        """The life of each replica, and what was acknowledged when it began, or when the replica was master. Since then
        it has shaken hands with a master."""
        self._needs: dict[str, tuple[int, int]] = {}
        """The same of unclean replicas."""
        self._accepted: dict[str, tuple[int, int]] = {}
        """By host: the last life that began unclean, and the highest epoch that it had accepted then."""
        self._ends: dict[str, tuple[int, int]] = {}
        """The life of each replica, and where its log ended after its last step."""

    def elected(self, broker: BrokerProcess, epoch: int) -> None:
        """`broker` takes the role of master."""
        begun, accepted = self._accepted.get(broker.host, (0, 0))
        if begun == broker.life and epoch <= accepted:
            raise InvariantError(f"{broker.host} lost power in epoch {accepted}, and is master of epoch {epoch} again")
        life = self._needs.get(broker.host, (0, 0))[0]
        if self._cp and not self._loss_accepted and life == broker.life and broker.config.total_replicas > 1:
            raise InvariantError(f"{broker.host} lost power, has followed nobody since, and is master")

    def gave_up(self, broker: BrokerProcess) -> None:
        """Its log, in the midst of a handler."""
        life, end = self._ends.get(broker.host, (0, 0))
        if life == broker.life:
            self._needs[broker.host] = life, min(end, self._acked_to)

    def booted(self, broker: BrokerProcess) -> None:
        """Its store is open, and it has not heard of any master."""
        if broker.store.unclean:
            self._accepted[broker.host] = broker.life, int(broker.store.highest_epoch)

    def stepped(self, broker: BrokerProcess) -> None:
        if not self._cp:
            return
        replica = broker.replica
        self._ends[broker.host] = broker.life, broker.store.max_phy_offset
        started = self._started.get(broker.host)
        if started is None or started[0] != broker.life:
            started = self._started[broker.host] = (broker.life, self._acked_to)
        if replica.is_master:
            end = replica.releasable_offset
            if end > self._acked_to:
                self._acked_to = end
            self._started[broker.host] = (broker.life, self._acked_to)
            self._needs.pop(broker.host, None)
        elif broker.store.unclean:
            self._needs[broker.host] = started
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
        self._started = {host: (life, 0) for host, (life, _) in self._started.items()}
        self._needs.clear()
