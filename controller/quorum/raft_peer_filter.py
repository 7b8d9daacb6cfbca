"""Filter of the Raft messages that a controller accepts, by session. Shell.

With haSecretFile the peer must have signed with that secret, with accounts as an admin: filters before the server check
that. With neither the message must come from the host of a controller that the configuration or the group's record
names. Hosts that are given by name are not compared.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqha.ha.stream.registered import lenient_host
from rmqha.host.access.security import Security
from rmqha.host.net.session import Session


class RaftPeerFilter:
    def __init__(self, security: Security) -> None:
        self._is_proved = security.accounts is not None or security.secret is not None
        self._trusted: set[Session] = set()
        """Sessions from the hosts of controllers."""

    def closed(self, session: Session) -> None:
        self._trusted.discard(session)

    def refusal(self, session: Session, is_peer: Callable[[str], bool]) -> str:
        """Reason to refuse the session's Raft messages, "" if they count. `is_peer`: True for hosts of controllers."""
        if self._is_proved or session in self._trusted:
            return ""
        host = lenient_host(session.peer)
        if is_peer(host):
            self._trusted.add(session)
            return ""
        return f"no controller is known at {host}: name it in controllerDLegerPeers, or set haSecretFile on all of them"
