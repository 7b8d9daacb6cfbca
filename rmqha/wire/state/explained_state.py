"""A group with the reasons for its master: the body of an answer to request 52010. Times in ms.

Separate from `controller_state`, so that most commands do not make these classes.
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
    """A replica. `not_electable`: reason why it could not become master now; None if it could, or is the master."""

    not_electable: str | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ExplainedGroup(GroupState):
    """A group with the reasons for its master, as sentences."""

    elections: Sequence[ExplainedElection] = ()
    replicas: Sequence[ExplainedReplica]
    version: int = VERSION
    answer: str = ""
