"""Hand-made histories: those that can be pass, those that cannot are refused."""

from __future__ import annotations

import pytest

from rmqha.drill.history import Attempt, AttemptOutcome, check

Entries = list[tuple[int, str]]


def acked(key: str, called: int, ended: int, offset: int, queue: str = "q") -> Attempt:
    return Attempt(key, called, AttemptOutcome.ACKED, ended, queue, offset)


def unknown(key: str, called: int, ended: int | None = None) -> Attempt:
    return Attempt(key, called, AttemptOutcome.UNKNOWN, ended)


def refused(key: str, called: int, ended: int) -> Attempt:
    return Attempt(key, called, AttemptOutcome.REFUSED, ended)


def queue(*keys: str, first: int = 0) -> Entries:
    return list(enumerate(keys, first))


@pytest.mark.parametrize(
    ("attempts", "entries"),
    [
        ([], []),
        ([acked("a", 0, 1, 0), acked("b", 2, 3, 1)], queue("a", "b")),
        # calls that overlap may take effect either way
        ([acked("a", 0, 5, 1), acked("b", 2, 3, 0)], queue("b", "a")),
        # an unknown one may be stored, or not, or later than anybody waited for it
        ([unknown("a", 0), acked("b", 2, 3, 0)], queue("b")),
        ([unknown("a", 0), acked("b", 2, 3, 1)], queue("a", "b")),
        ([unknown("a", 0, 1), acked("b", 2, 3, 0)], queue("b", "a")),
        # tried again: once for each call that may have stored it
        ([unknown("a", 0, 1), unknown("a", 2, 3), acked("a", 4, 5, 1)], queue("a", "a")),
        ([unknown("a", 0, 1), refused("a", 2, 3)], queue("a")),
        ([refused("a", 0, 1), acked("a", 2, 3, 0)], queue("a")),
        # the late copy of an old call may stand behind whatever came in between
        ([unknown("a", 0, 1), acked("a", 2, 3, 0), acked("b", 4, 5, 1)], queue("a", "b", "a")),
        # acknowledged at the moment at which the next is sent: no order between them
        ([acked("a", 0, 2, 1), acked("b", 2, 3, 0)], queue("b", "a")),
    ],
)
def test_what_can_be_passes(attempts: list[Attempt], entries: Entries) -> None:
    assert check(attempts, {"q": entries}).problems == []


@pytest.mark.parametrize(
    ("attempts", "entries", "problem"),
    [
        ([acked("a", 0, 1, 0)], [], "a was acknowledged in q at 0 and is lost"),
        ([acked("a", 0, 1, 0), unknown("b", 0)], queue("b"), "a was acknowledged in q at 0 and is lost"),
        ([acked("a", 0, 1, 1)], queue("a"), "a was acknowledged in q at 1 and is not there"),
        # acknowledged twice, stored once: one of the two answers was wrong
        ([acked("a", 0, 1, 0), acked("a", 2, 3, 1)], queue("a"), "a was acknowledged in q at 1 and is not there"),
        ([acked("a", 0, 1, 0, "other")], queue("a"), "a was acknowledged in other at 0 and is not there"),
        ([], queue("a"), "a is stored and nobody sent it"),
        ([refused("a", 0, 1)], queue("a"), "a is stored though each call was refused before it was written"),
        ([acked("a", 0, 1, 0)], queue("a", "a"), "a is stored 2 times after 1 calls that may have stored it"),
        (
            [unknown("a", 0), refused("a", 2, 3)],
            queue("a", "a"),
            "a is stored 2 times after 1 calls that may have stored it",
        ),
        (
            [acked("a", 0, 1, 1), acked("b", 2, 3, 0)],
            queue("b", "a"),
            "a was acknowledged at 1 ms and stands behind b in q, which was sent at 2 ms",
        ),
        # an unknown one cannot take effect before it was sent
        (
            [acked("a", 0, 1, 1), unknown("b", 2)],
            queue("b", "a"),
            "a was acknowledged at 1 ms and stands behind b in q, which was sent at 2 ms",
        ),
        # seen over something in between that says nothing
        (
            [acked("a", 0, 1, 2), unknown("x", 0), acked("b", 5, 6, 0)],
            queue("b", "x", "a"),
            "a was acknowledged at 1 ms and stands behind b in q, which was sent at 5 ms",
        ),
    ],
)
def test_what_cannot_be_is_refused(attempts: list[Attempt], entries: Entries, problem: str) -> None:
    assert check(attempts, {"q": entries}).problems == [problem]


def test_two_queues_have_no_order_between_them() -> None:
    attempts = [acked("a", 0, 1, 0, "p"), acked("b", 2, 3, 0, "q")]
    assert check(attempts, {"q": queue("b"), "p": queue("a")}).problems == []


def test_what_was_removed_by_rule_is_not_lost() -> None:
    attempts = [acked("a", 0, 1, 0), acked("b", 2, 3, 1)]
    verdict = check(attempts, {"q": queue("b", first=1)}, removed=lambda item: item.queue_offset < 1)
    assert verdict.problems == []


def test_a_client_that_repeats_calls_by_itself_may_store_more() -> None:
    attempt = acked("a", 0, 9, 1)
    attempt.repeats = True
    verdict = check([attempt], {"q": queue("a", "a", "a")})
    assert verdict.problems == [] and verdict.copies == 2


def test_others_messages_are_passed_over_if_asked() -> None:
    assert check([], {"q": queue("a")}, foreign=True).problems == []


def test_stamps_that_were_rounded_are_given_slack() -> None:
    attempts = [acked("a", 0, 1, 1), acked("b", 3, 4, 0)]
    assert check(attempts, {"q": queue("b", "a")}, slack_ms=2).problems == []
    assert len(check(attempts, {"q": queue("b", "a")}, slack_ms=1).problems) == 1
