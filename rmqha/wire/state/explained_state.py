"""A group with the reasons for its master: the body of an answer to request 52010. Times in ms.

Apart from `controller_state`: who does not ask why need not make these classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqha.wire.state.controller_state import VERSION, ElectionState, GroupState, RegisteredReplica


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ExplainedElection(ElectionState):
    """An election with its cause as a sentence."""

    cause_text: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ExplainedReplica(RegisteredReplica):
    """A replica in an explanation. `not_electable`: why it could not become master now; None if it could, or is it."""

    not_electable: str | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ExplainedGroup(GroupState):
    """A group with the sentences that say why it has the master it has."""

    elections: Sequence[ExplainedElection] = ()
    replicas: Sequence[ExplainedReplica]
    version: int = VERSION
    answer: str = ""
