"""State of a broker for load balancers and orchestrators (/readyz, /role). No trio."""

from __future__ import annotations

from rmqha.broker.core import BrokerCore
from rmqha.broker.services.metrics import collect
from rmqha.broker.services.traffic import Traffic
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import ResponseCode
from rmqha.model.identity import Role
from rmqha.model.readiness import Readiness
from rmqha.model.series import Collecting


class BrokerHealthSource:
    """A broker's implementation of `rmqha.host.http.endpoint.HealthSource`."""

    def __init__(self, core: BrokerCore, remoting: Statistics) -> None:
        """`remoting`: counts of the ports for clients."""
        self._core = core
        self._remoting = remoting
        self._traffic = Traffic(core.admin.now_ms)
        for part in (core.send, core.pull, core.send_back, core.transactions, core.tables):
            part.traffic = self._traffic

    def readiness(self) -> Readiness:
        """Ready: a master that takes sends, a slave with the log that its master had at the handshake. A process
        manager that waits for that before it stops the next replica keeps the group writable."""
        replica, config = self._core.replica, self._core.config
        reason = ""
        if replica.is_master:
            code, why_not = self._core.driver.admission()
            reason = "" if code is ResponseCode.SUCCESS else why_not
        elif replica.role is not Role.SLAVE:
            reason = "no controller has told it its role yet"
        elif not replica.is_following:
            reason = "it does not follow its master"
        elif replica.copy_left_bytes:
            reason = f"{replica.copy_left_bytes} bytes of its master's log are still to be copied"
        facts = {
            "cluster": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerId": replica.broker_id,
            "epoch": replica.epoch,
            "masterAddress": replica.master_address,
            "maxPhyOffset": self._core.store.max_phy_offset,
            "confirmOffset": self._core.store.confirm_offset,
        }
        return Readiness(replica.role.name.lower(), not reason, reason, facts)

    def collect(self) -> Collecting:
        return collect(self._core, self._traffic, self._remoting.as_dict())
