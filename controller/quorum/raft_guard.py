"""Guard of the Raft messages that a controller takes. Shell: it looks at sessions.

With haSecretFile only of controllers that sign with that secret, with accounts only of admins: the filters before the
server have seen to it. With neither a message must come from a host of a controller that the configuration or the
group's own record names; hosts given by name say nothing and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqha.ha.stream.registered import host_of
from rmqha.host.access.security import Security
from rmqha.host.net.session import Session


class RaftGuard:
    def __init__(self, security: Security) -> None:
        self._is_proved = security.accounts is not None or security.secret is not None
        self._near: set[Session] = set()
        """Connections from the hosts of controllers."""

    def closed(self, session: Session) -> None:
        self._near.discard(session)

    def refusal(self, session: Session, is_peer: Callable[[str], bool]) -> str:
        """ "" if its Raft messages count, else why not. `is_peer` tells whether a controller may come from a host."""
        if self._is_proved or session in self._near:
            return ""
        host = host_of(session.peer)
        if is_peer(host):
            self._near.add(session)
            return ""
        return f"no controller is known at {host}: name it in controllerDLegerPeers, or set haSecretFile on all of them"
