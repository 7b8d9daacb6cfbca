"""How much to fuzz: a moment in the ordinary run, RMQHA_FUZZ_SECONDS seconds per target when CI asks for more.

    @fuzz
    @given(st.binary(max_size=4096))
    def test_parser(data: bytes) -> None:
        with only(RemoteProtocolError):
            parse(data)

The variable holds the seconds for each target; the number of examples follows from EXAMPLES_PER_SECOND.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hypothesis import HealthCheck, settings

DEFAULT_EXAMPLE_COUNT = 60
EXAMPLES_PER_SECOND = 400
"""What Hypothesis and a parser manage together on one core; Hypothesis itself knows no limit in seconds."""

Test = TypeVar("Test", bound=Callable[..., None])


def fuzz_seconds() -> float:
    """Seconds for each target; 0 in the ordinary run."""
    return float(os.environ.get("RMQHA_FUZZ_SECONDS", "0"))


def example_count() -> int:
    return max(DEFAULT_EXAMPLE_COUNT, int(fuzz_seconds() * EXAMPLES_PER_SECOND))


def fuzz(test: Test) -> Test:
    """Decorator of a Hypothesis test; stands above @given."""
    return settings(
        max_examples=example_count(),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )(test)


@contextmanager
def only(*expected: type[Exception]) -> Iterator[None]:
    """Input may be accepted or refused with one of `expected`; any other exception is the bug that fuzzing is for."""
    try:
        yield
    except expected as error:
        assert str(error), "a refusal is a sentence"
