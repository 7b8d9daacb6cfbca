"""Earlier releases in the simulation: a process that speaks as they did. What it does with its log is today's work; it
neither knows nor sends requests and fields that came later (docs/internals/request-codes.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.sim.prng import SimPrng
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class Dialect:
    lacked_codes: frozenset[int] = frozenset()
    lacked_fields: frozenset[str] = frozenset()

    def strip(self, command: Command) -> None:
        for name in self.lacked_fields & command.ext.keys():
            del command.ext[name]

    def refusal(self, command: Command) -> Command | None:
        """The answer to a request that this release does not know."""
        if command.code not in self.lacked_codes:
            return None
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
        )


TODAY = Dialect()
RELEASE_0_1 = Dialect(
    frozenset({RequestCode.RMQHA_GET_QUEUE_ENDS, RequestCode.RMQHA_READ_RECORD, RequestCode.RMQHA_HOLDS_SENDS}),
    frozenset({"registered", "replicaId", "unwritten", "uncleanEpoch", "offsetsLogEnd", "hasMaster"}),
)
"""As tests/golden/upgrade-0.1 was written."""
BEFORE = Dialect(
    RELEASE_0_1.lacked_codes | {RequestCode.RMQHA_HAND_OVER, RequestCode.RMQHA_FOLLOW_TABLES},
    RELEASE_0_1.lacked_fields | {"acceptedEpoch", "boundTotalReplicas", "slaves"},
)
"""Without any request of ours between brokers, or from a controller to one."""
OF_BROKERS = (TODAY, RELEASE_0_1, BEFORE)
OF_CONTROLLERS = (TODAY, RELEASE_0_1)


def drawn(draws: SimPrng, among: tuple[Dialect, ...]) -> Dialect:
    return among[draws.below(len(among))]


def known(dialect: Dialect, answer: Callable[[Command | None], None]) -> Callable[[Command | None], None]:
    """`answer` without what the asker does not know."""

    def heard(reply: Command | None) -> None:
        if reply is not None:
            dialect.strip(reply)
        answer(reply)

    return heard
