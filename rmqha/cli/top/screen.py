"""The keys and the content of the screen of `rmqha top`. Pure.

A key that changes the cluster only asks; `y` does it, any other key does nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rmqha.cli.plain_table import Table, Text
from rmqha.cli.render import table
from rmqha.ops.health.findings import Health
from rmqha.ops.replica_rows import Row

MAX_REASONS = 5
HELP = "↑ ↓ select  Enter facts  / filter  o order  c consumers  s switch  m maint  ? help"
EXPLAINED = (
    ("↑ ↓ or k j", "select a replica"),
    ("Enter", "facts and last events of the selected replica; again, or Esc, goes back"),
    ("/", "show only replicas whose line holds what you type; Enter keeps it, Esc ends it"),
    ("o", "another order: by name, lag, messages in, messages out"),
    ("c", "consumer groups with the messages that wait for them; again goes back"),
    ("s", "make the selected replica the master (asks first)"),
    ("m", "put it into maintenance, or end that (asks first)"),
    ("q", "end"),
    ("LAG s", "how long ago the slave had all that the master has"),
    ("ACK ms", "p50/p99 of acknowledgements since the last sample, each the upper end of its power of two"),
    ("▁▂▃█", "one sample each, the newest on the right, from zero to the highest of them"),
)
BARS = "▁▂▃▄▅▆▇█"
TREND = 40
"""Samples in a sparkline."""
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


class SortOrder(Enum):
    """Orders of the replicas of a group."""

    NAME = "name"
    LAG = "lag"
    IN = "messages in"
    OUT = "messages out"


class TopView(Enum):
    """Screens that a key chooses."""

    REPLICAS = "replicas"
    CONSUMERS = "consumers"
    DETAILS = "details"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer group: messages that wait for it, clients that are connected."""

    name: str
    lag: int
    members: int
    topics: tuple[str, ...]


class TopAction(Enum):
    DETAILS = "details of"
    SWITCH = "switch"
    MAINTENANCE_ON = "maintenance on"
    MAINTENANCE_OFF = "maintenance off"


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action that the operator has confirmed; details need no confirmation."""

    action: TopAction
    row: Row


class Screen:
    """State of the screen. `rows`, `health` and `consumers` are of the last sample; `message`: outcome of the last key
    or action; `details`: lines about the selected replica; `release`: release that the nodes run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.consumers: list[ConsumerRow] | None = None
        self.details: list[str] = []
        self.release = ""
        self.view = TopView.REPLICAS
        self.order = SortOrder.NAME
        self.filter = ""
        self._types = False
        """True while a filter is being typed."""
        self._trends: dict[str, deque[tuple[float, float]]] = {}
        """Messages in a second and p99 (ms) of each group, the newest last."""
        self.health: Health | None = None
        self.message = ""
        self.quits = False
        self._selected = ""
        """Address of the selected row."""
        self._asked: PendingAction | None = None

    def update(self, rows: list[Row], health: Health) -> None:
        self.rows, self.health = rows, health
        for row in rows:
            if row.is_master and row.in_per_second is not None:
                trend = self._trends.setdefault(row.group, deque(maxlen=TREND))
                trend.append((row.in_per_second, float(row.ack_p99_ms or 0)))
        self._select_shown()

    def _select_shown(self) -> None:
        shown = self.shown
        if all(row.address != self._selected for row in shown):
            self._selected = shown[0].address if shown else ""

    @property
    def shown(self) -> list[Row]:
        """The rows that the filter lets through, in the chosen order, group by group."""
        kept = [row for row in self.rows if self.filter.lower() in _line(row)]
        return sorted(kept, key=lambda row: (row.group, _weight(row, self.order)))

    @property
    def selected(self) -> Row | None:
        return next((row for row in self.rows if row.address == self._selected), None)

    def press(self, key: str) -> PendingAction | None:
        """Handle a key. Returns an action to carry out, None without one."""
        asked, self._asked = self._asked, None
        if self._types:
            self._type(key)
            return None
        if key in ("q", "\x03"):
            self.quits = True
            return None
        if asked is not None:
            self.message = "" if key == "y" else "nothing done"
            return asked if key == "y" else None
        self.message = ""
        if key in ("\n", "\r", "esc", "?", "c", "o", "/"):
            return self._change_view(key)
        if key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key in ("s", "m") and (row := self.selected) is not None:
            self._ask(key, row)
        return None

    def _change_view(self, key: str) -> PendingAction | None:
        """A key that changes what is shown, not the cluster."""
        if key == "/":
            self.view, self._types, self.filter = TopView.REPLICAS, True, ""
        elif key == "o":
            orders = list(SortOrder)
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
            self.message = f"ordered by {self.order.value}"
        elif key in ("?", "c"):
            chosen = TopView.HELP if key == "?" else TopView.CONSUMERS
            self.view = TopView.REPLICAS if self.view is chosen else chosen
        elif key == "esc" or self.view is not TopView.REPLICAS:
            if self.view is TopView.REPLICAS:
                self.filter = ""
            self.view = TopView.REPLICAS
        elif (row := self.selected) is not None:
            self.view, self.details = TopView.DETAILS, []
            return PendingAction(TopAction.DETAILS, row)
        self._select_shown()
        return None

    def _type(self, key: str) -> None:
        if key in ("\n", "\r", "esc", "\x03"):
            self._types = False
            self.filter = self.filter if key in ("\n", "\r") else ""
        elif key in ("\x7f", "\x08"):
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        self._select_shown()

    def _move(self, step: int) -> None:
        if self.shown:
            places = [row.address for row in self.shown]
            place = places.index(self._selected) + step if self._selected in places else 0
            self._selected = places[max(0, min(place, len(places) - 1))]

    def _ask(self, key: str, row: Row) -> None:
        if row.broker_id is None or row.role == "apache":
            self.message = f"{row.node} is no replica of ours that the controllers know"
        elif key == "m":
            action = TopAction.MAINTENANCE_OFF if row.in_maintenance else TopAction.MAINTENANCE_ON
            what = "end the maintenance of" if row.in_maintenance else "put into maintenance"
            self._asked, self.message = PendingAction(action, row), f"{what} {row.node}? y or n"
        elif row.is_master:
            self.message = f"{row.node} is the master of {row.group} already"
        else:
            self._asked, self.message = (
                PendingAction(TopAction.SWITCH, row),
                f"make {row.node} the master of {row.group}? y or n",
            )

    # --- view -------------------------------------------------------------------------------------------------------
    def render(self, at: str, *, keys: bool = True, overdue_s: float | None = None) -> list[Text | Table]:
        """The whole screen, 80 columns wide. `at`: time of the sample. `overdue_s`: time (s) that the next one has
        taken, if it should have ended by now."""
        parts: list[Text | Table] = [self._head(at, overdue_s)]
        parts += {
            TopView.REPLICAS: lambda: self._replicas(keys),
            TopView.CONSUMERS: self._consumers,
            TopView.DETAILS: self._details,
            TopView.HELP: _help,
        }[self.view]()
        if self.health is not None:
            reasons = self.health.reasons
            parts += [Text(item.line, "red") for item in reasons[:MAX_REASONS]]
            if len(reasons) > MAX_REASONS:
                parts.append(Text(f"and {len(reasons) - MAX_REASONS} more: rmqha health", "red"))
        if keys:
            parts.append(self._foot())
        return parts

    def _foot(self) -> Text:
        if self._types or (self.filter and not self.message):
            hint = "Enter keeps it, Esc ends it" if self._types else "Esc ends it"
            return Text(f"filter: {self.filter}{'▏' if self._types else ''}   {hint}", "bold yellow")
        return Text(self.message or HELP, "bold yellow" if self.message else "dim")

    def _replicas(self, keys: bool) -> list[Text | Table]:
        parts: list[Text | Table] = []
        shown = self.shown
        for group in dict.fromkeys(row.group for row in shown):
            parts.append(_title(group, [row for row in self.rows if row.group == group]))
            trend = self._trends.get(group)
            if keys and trend is not None and len(trend) > 1:
                parts.append(_trend(trend))
            parts.append(table(COLUMNS, [self._cells(row, keys) for row in shown if row.group == group], fold=False))
        if self.filter and not shown:
            parts.append(Text("no replica's line holds that", "dim"))
        return parts

    def _consumers(self) -> list[Text | Table]:
        if self.consumers is None:
            return [Text("asking the brokers …", "dim")]
        if not self.consumers:
            return [Text("no consumer group has read anything yet", "dim")]
        rows = [[row.name, count_text(row.lag), row.members, ", ".join(row.topics)] for row in self.consumers]
        columns = [("GROUP", "left"), ("WAITING", "right"), ("MEMBERS", "right"), ("TOPICS", "left")]
        return [table(columns, rows, fold=False)]

    def _details(self) -> list[Text | Table]:
        row = self.selected
        if row is None:
            return [Text("it is gone", "dim")]
        parts: list[Text | Table] = [Text(f"{row.node} at {row.address}, {row.role} of {row.group}", "bold")]
        if row.error:
            parts.append(Text(row.error, "red"))
        parts += [Text(line) for line in self.details or ["asking it for its last events …"]]
        return parts

    def _head(self, at: str, overdue_s: float | None) -> Text:
        if self.health is None:
            return Text(f"{at}  asking", "bold")
        state = "HEALTHY" if self.health.healthy else "UNHEALTHY" if self.health.answered else "UNKNOWN"
        if overdue_s is not None:
            return Text(f"{at}  was {state}, and is old: the answers take {overdue_s:.0f} s already", "bold yellow")
        release = f"  release {self.release}" if self.release else ""
        return Text(f"{at}  {state}{release}", "bold green" if self.health.healthy else "bold red")

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
            place_text(row),
            None if row.lag_bytes is None else size_text(row.lag_bytes),
            None if row.lag_ms is None else f"{row.lag_ms / 1000:.1f}",
            None if row.confirm_offset is None else size_text(row.confirm_offset),
            None if row.in_per_second is None else count_text(row.in_per_second),
            None if row.out_per_second is None else count_text(row.out_per_second),
            ack,
        ]


def _help() -> list[Text | Table]:
    return [table([("KEY", "left"), ("DOES", "left")], [list(row) for row in EXPLAINED])]


def _line(row: Row) -> str:
    """The words of a row that a filter finds."""
    return " ".join((row.node, row.address, row.group, row.role, place_text(row))).lower()


def _weight(row: Row, order: SortOrder) -> tuple[float, str, str]:
    figures = {SortOrder.LAG: row.lag_bytes, SortOrder.IN: row.in_per_second, SortOrder.OUT: row.out_per_second}
    return -(figures.get(order) or 0), row.node, row.address


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from zero to the highest."""
    highest = max(values, default=0)
    return "".join(BARS[round(value / highest * (len(BARS) - 1))] if highest > 0 else BARS[0] for value in values)


def _trend(trend: Iterable[tuple[float, float]]) -> Text:
    puts, waits = zip(*trend, strict=True)
    half = TREND // 2
    words = f"in/s {sparkline(puts)} {count_text(puts[-1])}   p99 {sparkline(waits[-half:])} {waits[-1]:.0f} ms"
    return Text(words, "cyan")


def _title(group: str, members: Sequence[Row]) -> Text:
    masters = [row for row in members if row.is_master]
    known = [row.in_set for row in members if row.in_set is not None]
    in_set = f"{sum(known)} of {len(members)} in the set" if known else "set unknown"
    waiting = sum(row.waiting or 0 for row in masters)
    led = f"master {masters[0].node}" if masters else "no master"
    return Text(f"{group}: {led}, {in_set}, {waiting} sends wait", "bold")


def place_text(row: Row) -> str:
    if row.in_maintenance:
        return "maint" if not row.in_set else "in, m"
    if row.drained:
        return "drained"
    return "" if row.in_set is None else "in" if row.in_set else "out"


def size_text(size_bytes: int) -> str:
    """Three digits and a unit of 1024."""
    value, units = float(size_bytes), ["B", "K", "M", "G", "T", "P"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f}{units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f}{units[0]}"


def count_text(count: float) -> str:
    return f"{count:.0f}" if count < 10_000 else f"{count / 1000:.0f}k"
