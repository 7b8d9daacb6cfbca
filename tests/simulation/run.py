"""What names a run: its seed, its theme, and how long its faults last if that is not drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulation.options import Options, seed_options
from tests.simulation.spec.specifying import is_in_the_model, specify
from tests.simulation.themes.disks import OFTEN
from tests.simulation.themes.table import THEMES
from tests.simulation.world import World

PLAIN, ALL = "plain", "all"
ROTATION = (*(name for name in THEMES if name != PLAIN), *OFTEN)
"""Themes of every second run, in turn."""

SPECIFIED_EVERY = 7
"""Of so many seeds one is held against the specification: it costs a tenth of a run's time."""


def theme_of(seed: int, theme: str) -> str:
    """With `all` every second seed is plain, the others take the other themes in turn."""
    if theme != ALL:
        return theme
    return PLAIN if seed % 2 == 0 else ROTATION[seed // 2 % len(ROTATION)]


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    theme: str = PLAIN
    seconds: int | None = None
    """Simulated seconds during which faults happen; None: as many as the seed and the theme draw."""

    @classmethod
    def parse(cls, text: str) -> Run:
        """`7`, `late:7` or `late:7@60`. Raises ValueError."""
        theme, _, rest = text.rpartition(":")
        seed, _, seconds = rest.partition("@")
        return cls(int(seed), theme or PLAIN, int(seconds) if seconds else None)

    @property
    def options(self) -> Options:
        drawn = THEMES[self.theme](seed_options(self.seed))
        return drawn if self.seconds is None else replace(drawn, chaos_ms=self.seconds * 1000)

    def world(self, only: frozenset[str] | None = None) -> World:
        """`only`: keys of the faults that may happen, None for all."""
        made = World(self.seed, self.options, only)
        if self.seed % SPECIFIED_EVERY == 0 and is_in_the_model(made.options):
            specify(made)
        return made

    @property
    def command(self) -> str:
        """Replays it."""
        seconds = "" if self.seconds is None else f" FAULT_SECONDS={self.seconds}"
        return f"make sim SEED={self.seed} THEME={self.theme}{seconds}"

    @property
    def arguments(self) -> str:
        """The same for `python -m tests.simulation`."""
        seconds = "" if self.seconds is None else f" --seconds {self.seconds}"
        return f"--seed {self.seed} --theme {self.theme}{seconds}"
