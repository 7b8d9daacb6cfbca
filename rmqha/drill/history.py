"""Check that the final content of a group's queues is possible after the answers that its clients got. Pure.

In the manner of Elle (Kingsbury, Alvaro 2020), for the one data type that matters here: each queue is a list to which
clients append, and its final content is one read of it. Then no search is needed: the content itself says in which
order the appends took effect, and each call has to be consistent with it:

- acknowledged: it stands where the answer said; otherwise it is lost or misplaced;
- refused before anything was written: it stands nowhere;
- anything else (a time-out, a lost connection, "written, not replicated in time"): it may stand there or not, at any
  place that was reached after the call; once for each call, oftener only if the client repeats calls by itself;
- real time: what was acknowledged before another call began stands before what that call wrote (linearizability,
  Herlihy and Wing 1990), whoever the clients were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

SHOWN = 5


class AttemptOutcome(Enum):
    ACKED = "acknowledged"
    REFUSED = "refused before it was written"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Attempt:
    """One call of a client. Times are in ms of one clock. `repeats`: the client may have sent it several times under
    this call."""

    key: str
    called_at_ms: int
    outcome: AttemptOutcome = AttemptOutcome.UNKNOWN
    ended_at_ms: int | None = None
    """Time (ms) at which the client was told; None if never."""
    queue: str = ""
    """Queue of an acknowledged message, by the answer; `queue_offset` is its place there."""
    queue_offset: int = -1
    repeats: bool = False


@dataclass(slots=True)
class HistoryVerdict:
    """Verdict on a history. `lost` and `misplaced` are acknowledged attempts; the others are sentences. `copies`:
    number of entries beyond the first of a key, which is no violation."""

    lost: list[Attempt] = field(default_factory=list)
    misplaced: list[Attempt] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    """Sentences on entries that no call explains: refused, never sent, or too many copies."""
    disordered: list[str] = field(default_factory=list)
    copies: int = 0

    @property
    def problems(self) -> list[str]:
        """All violations as sentences, the first few of each kind."""
        found = [f"{item.key} was acknowledged in {_place(item)} and is lost" for item in self.lost]
        moved = [f"{item.key} was acknowledged in {_place(item)} and is not there" for item in self.misplaced]
        return [sentence for kind in (found, moved, self.unexplained, self.disordered) for sentence in kind[:SHOWN]]


def _place(item: Attempt) -> str:
    return f"{item.queue} at {item.queue_offset}"


def check(
    attempts: Iterable[Attempt],
    queues: Mapping[str, Sequence[tuple[int, str]]],
    *,
    removed: Callable[[Attempt], bool] = lambda attempt: False,
    foreign: bool = False,
    slack_ms: int = 0,
) -> HistoryVerdict:
    """Compare `queues`, (queue offset, key) in order, with `attempts`. `removed`: True if an acknowledged attempt's
    place was removed by rule. `foreign`: True if keys without an attempt may be there. `slack_ms`: time by which a call
    may have begun before its stamp."""
    by_key: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_key[attempt.key].append(attempt)
    stands = {(queue, offset): key for queue, entries in queues.items() for offset, key in entries}
    counts = Counter(key for entries in queues.values() for _, key in entries)
    verdict = HistoryVerdict(copies=sum(count - 1 for count in counts.values()))
    for key, calls in by_key.items():
        _check_acked(key, calls, stands, counts, removed, verdict)
    for key, count in counts.items():
        verdict.unexplained += _unexplained(key, count, by_key.get(key), foreign)
    for queue, entries in queues.items():
        verdict.disordered += _disordered(queue, entries, by_key, slack_ms)
    return verdict


def _check_acked(
    key: str,
    calls: Iterable[Attempt],
    stands: Mapping[tuple[str, int], str],
    counts: Mapping[str, int],
    removed: Callable[[Attempt], bool],
    verdict: HistoryVerdict,
) -> None:
    for attempt in calls:
        if attempt.outcome is not AttemptOutcome.ACKED or removed(attempt):
            continue
        if not counts.get(key):
            verdict.lost.append(attempt)
        elif stands.get((attempt.queue, attempt.queue_offset)) != key:
            verdict.misplaced.append(attempt)


def _unexplained(key: str, count: int, calls: Sequence[Attempt] | None, foreign: bool) -> list[str]:
    if calls is None:
        return [] if foreign else [f"{key} is stored and nobody sent it"]
    able = [item for item in calls if item.outcome is not AttemptOutcome.REFUSED]
    if not able:
        return [f"{key} is stored though each call was refused before it was written"]
    if count > len(able) and not any(item.repeats for item in able):
        return [f"{key} is stored {count} times after {len(able)} calls that may have stored it"]
    return []


def _disordered(
    queue: str, entries: Sequence[tuple[int, str]], by_key: Mapping[str, Sequence[Attempt]], slack_ms: int
) -> list[str]:
    """Sentences on entries that stand behind one whose call began after they were acknowledged."""
    found = []
    latest_key, latest_call_ms = "", -1
    for offset, key in entries:
        calls = by_key.get(key)
        if not calls:
            continue
        called_ms, ended_ms = _interval(queue, offset, calls)
        if ended_ms is not None and ended_ms + slack_ms < latest_call_ms:
            found.append(
                f"{key} was acknowledged at {ended_ms} ms and stands behind {latest_key} in {queue},"
                f" which was sent at {latest_call_ms} ms"
            )
        if called_ms > latest_call_ms:
            latest_key, latest_call_ms = key, called_ms
    return found


def _interval(queue: str, offset: int, calls: Sequence[Attempt]) -> tuple[int, int | None]:
    """Times between which an entry took effect: those of the call that was answered with its place, else the begin of
    the first that may have written it, without an end."""
    for item in calls:
        if item.outcome is AttemptOutcome.ACKED and (item.queue, item.queue_offset) == (queue, offset):
            return item.called_at_ms, item.ended_at_ms
    return min(item.called_at_ms for item in calls), None
