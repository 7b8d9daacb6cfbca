"""The keys and the content of the screen of `rmqha top`. Pure.

A key that changes the cluster only asks; `y` does it, any other key does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Group, RenderableType
from rich.text import Text

from rmqha.cli.render import table
from rmqha.ops.health.findings import Health
from rmqha.ops.replica_rows import Row

MAX_REASONS = 5
HELP = "↑ ↓ select   s switch to it   m maintenance   q quit"
COLUMNS = [
    ("", "left"),
    ("NODE", "left"),
    ("ROLE", "left"),
    ("EPOCH", "right"),
    ("SET", "left"),
    ("LAG", "right"),
    ("LAG s", "right"),
    ("CONFIRM", "right"),
    ("IN/s", "right"),
    ("OUT/s", "right"),
    ("ACK ms", "right"),
]


class Deed(Enum):
    SWITCH = "switch"
    MAINTENANCE_ON = "maintenance on"
    MAINTENANCE_OFF = "maintenance off"


@dataclass(frozen=True, slots=True)
class Order:
    """The operator has said yes to it."""

    deed: Deed
    row: Row


class Screen:
    """`rows` and `health` are of the last look, `message` is what the last key or order came to."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.health: Health | None = None
        self.message = ""
        self.quits = False
        self._selected = ""
        """Address of the selected row."""
        self._asked: Order | None = None

    def update(self, rows: list[Row], health: Health) -> None:
        self.rows, self.health = rows, health
        if all(row.address != self._selected for row in rows):
            self._selected = rows[0].address if rows else ""

    @property
    def selected(self) -> Row | None:
        return next((row for row in self.rows if row.address == self._selected), None)

    def press(self, key: str) -> Order | None:
        """An order to carry out, None if there is nothing to do."""
        asked, self._asked = self._asked, None
        if key in ("q", "\x03"):
            self.quits = True
            return None
        if asked is not None:
            self.message = "" if key == "y" else "nothing done"
            return asked if key == "y" else None
        self.message = ""
        if key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key in ("s", "m") and (row := self.selected) is not None:
            self._ask(key, row)
        return None

    def _move(self, step: int) -> None:
        if self.rows:
            places = [row.address for row in self.rows]
            place = places.index(self._selected) + step if self._selected in places else 0
            self._selected = places[max(0, min(place, len(places) - 1))]

    def _ask(self, key: str, row: Row) -> None:
        if row.broker_id is None or row.role == "apache":
            self.message = f"{row.node} is no replica of ours that the controllers know"
        elif key == "m":
            deed = Deed.MAINTENANCE_OFF if row.in_maintenance else Deed.MAINTENANCE_ON
            what = "end the maintenance of" if row.in_maintenance else "put into maintenance"
            self._asked, self.message = Order(deed, row), f"{what} {row.node}? y or n"
        elif row.is_master:
            self.message = f"{row.node} is the master of {row.group} already"
        else:
            self._asked, self.message = Order(Deed.SWITCH, row), f"make {row.node} the master of {row.group}? y or n"

    # --- look -------------------------------------------------------------------------------------------------------
    def render(self, at: str, *, keys: bool = True, overdue_s: float | None = None) -> RenderableType:
        """The whole screen, 80 columns wide. `at`: the time of the look. `overdue_s`: how long the next one has lasted,
        if it should have ended by now."""
        parts: list[RenderableType] = [self._head(at, overdue_s)]
        for group in dict.fromkeys(row.group for row in self.rows):
            members = [row for row in self.rows if row.group == group]
            parts.append(_title(group, members))
            parts.append(table(COLUMNS, [self._cells(row, keys) for row in members], fold=False))
        if self.health is not None:
            reasons = self.health.reasons
            parts += [Text(item.line, "red", overflow="fold") for item in reasons[:MAX_REASONS]]
            if len(reasons) > MAX_REASONS:
                parts.append(Text(f"and {len(reasons) - MAX_REASONS} more: rmqha health", "red"))
        if keys:
            parts.append(Text(self.message or HELP, "bold yellow" if self.message else "dim"))
        return Group(*parts)

    def _head(self, at: str, overdue_s: float | None) -> Text:
        if self.health is None:
            return Text(f"{at}  asking", "bold")
        state = "HEALTHY" if self.health.healthy else "UNHEALTHY" if self.health.answered else "UNKNOWN"
        if overdue_s is not None:
            return Text(f"{at}  was {state}, and is old: the next look has lasted {overdue_s:.0f} s", "bold yellow")
        return Text(f"{at}  {state}", "bold green" if self.health.healthy else "bold red")

    def _cells(self, row: Row, keys: bool) -> list[object]:
        mark = "›" if keys and row.address == self._selected else ""
        down = "yellow" if row.in_maintenance else "bold red"
        style = "bold green" if row.is_master else down if row.role == "down" else ""
        ack = None if row.ack_p50_ms is None else f"{row.ack_p50_ms}/{row.ack_p99_ms}"
        return [
            mark,
            row.node,
            Text(row.role, style),
            row.epoch,
            place_words(row),
            None if row.lag_bytes is None else size_words(row.lag_bytes),
            None if row.lag_ms is None else f"{row.lag_ms / 1000:.1f}",
            None if row.confirm_offset is None else size_words(row.confirm_offset),
            None if row.in_per_second is None else count_words(row.in_per_second),
            None if row.out_per_second is None else count_words(row.out_per_second),
            ack,
        ]


def _title(group: str, members: Sequence[Row]) -> Text:
    masters = [row for row in members if row.is_master]
    known = [row.in_set for row in members if row.in_set is not None]
    in_set = f"{sum(known)} of {len(members)} in the set" if known else "set unknown"
    waiting = sum(row.waiting or 0 for row in masters)
    led = f"master {masters[0].node}" if masters else "no master"
    return Text(f"{group}: {led}, {in_set}, {waiting} sends wait", "bold")


def place_words(row: Row) -> str:
    if row.in_maintenance:
        return "maint" if not row.in_set else "in, m"
    if row.drained:
        return "drained"
    return "" if row.in_set is None else "in" if row.in_set else "out"


def size_words(size_bytes: int) -> str:
    """Three digits and a unit of 1024."""
    value, units = float(size_bytes), ["B", "K", "M", "G", "T", "P"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f}{units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f}{units[0]}"


def count_words(count: float) -> str:
    return f"{count:.0f}" if count < 10_000 else f"{count / 1000:.0f}k"
