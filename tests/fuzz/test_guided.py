"""Every parser against the kept inputs, and against new ones that are made of them."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.seeds import drawn_seed

from .budget import fuzz_seconds
from .guided import CORPUS, attempt, changed, corpus, explore, ways
from .targets import TARGETS, Target

EXAMPLES_PER_SECOND = 150
"""With the tracing of every line."""
SHARE = 0.15
"""Of the seconds that a Hypothesis target gets: there are many parsers here."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_or_refuses(name: str) -> None:
    target = TARGETS[name]
    known = corpus(name)
    seed = drawn_seed()
    count = max(30, int(fuzz_seconds() * SHARE * EXAMPLES_PER_SECOND))
    found = explore(target, [*target.begin(), *known], count, seed)
    wrong = [f"{data!r} raises {error!r}" for data, error in found.failures]
    assert not wrong, f"seed {seed}; keep it in tests/fuzz/corpus/{name}: {wrong[0]}"


def test_the_corpus_is_of_these_parsers() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert sum(len(corpus(name)) for name in TARGETS) > 150


@pytest.mark.parametrize("name", TARGETS)
def test_it_begins_with_what_is_well(name: str) -> None:
    target = TARGETS[name]
    assert target.begin()
    for data in target.begin()[:3]:
        try:
            target.parse(data)
        except target.refuses_with:
            assert name == "body"  # each in one of several forms only


def _crashes(data: bytes) -> None:
    """Planted: three bytes in a row, each of which is a way of its own."""
    if data[:1] == b"K" and data[1:2] == b"\xff":
        loads = data[2:3] == b"\x80"
        if loads:
            raise KeyError("planted")


def test_ways_lead_to_what_chance_would_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.guided.OURS", (__file__,))
    target = Target(_crashes, (), lambda: [b"K"])
    found = explore(target, [b"Kaaa"], 30_000, 1)
    assert [type(error) for _, error in found.failures] == [KeyError]
    assert attempt(target, found.failures[0][0]) is not None
    assert ways(lambda: _crashes(b"K")) != ways(lambda: _crashes(b"K\xff"))
    assert len({changed(Random(seed), [b"abc"]) for seed in range(50)}) > 30
