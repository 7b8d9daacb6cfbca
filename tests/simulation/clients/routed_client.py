"""A producer that goes by the routes of the name servers, as real ones do: it asks again when a send fails."""

from __future__ import annotations

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.simulation.clients.client_process import TOPIC, ClientProcess
from tests.simulation.history import Send

DEFAULT_TOPIC = "TBW102"
ROUTE_TIMEOUT_MS = 1000
PAUSE_MS = 20


class RoutedClient(ClientProcess):
    """`broker_name`, the group that it sends to, and `name_servers` are set by that group."""

    broker_name = ""
    name_servers: tuple[str, ...] = ()
    _master = ""
    _asked = 0

    def _address(self) -> str:
        return self._master or super()._address()

    def _retry(self, send: Send) -> None:
        self._ask(TOPIC, send)

    def _ask(self, topic: str, send: Send) -> None:
        """One name server after the other is asked, until one has a route with a master."""
        if self._stopped:
            return
        address = self.name_servers[self._asked % len(self.name_servers)]

        def answered(reply: Command | None) -> None:
            master = ""
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                groups = {item["brokerName"]: item for item in lenient_json.loads(reply.body)["brokerDatas"]}
                addresses = groups[self.broker_name]["brokerAddrs"] if self.broker_name in groups else {}
                master = str({int(key): value for key, value in addresses.items()}.get(0, ""))
            if master:
                self._master = master
                super(RoutedClient, self)._retry(send)
            elif reply is not None and topic == TOPIC:
                self._ask(DEFAULT_TOPIC, send)
            else:
                self._asked += 1
                self.after(PAUSE_MS, lambda: self._ask(TOPIC, send))

        self._rpc.call(
            address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), ROUTE_TIMEOUT_MS, answered
        )
