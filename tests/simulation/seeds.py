"""Seeds of a test: a few for `make test`, the others for `make sim`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def few(seeds: Iterable[int], others: Iterable[int]) -> list[int | ParameterSet]:
    return [*seeds, *(pytest.param(seed, marks=pytest.mark.sim) for seed in others)]
