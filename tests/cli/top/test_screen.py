"""What `rmqha top` makes of two samples, and what its keys do."""

from __future__ import annotations

import pytest
from rich.console import Console, Group

from rmqha.cli.rich_console import drawn
from rmqha.cli.top.screen import ConsumerRow, PendingAction, Screen, TopAction, count_text, size_text, sparkline
from rmqha.cli.top.terminal import parse_keys
from rmqha.ops.health.findings import judge
from rmqha.ops.replica_rows import Row, latencies, rows
from rmqha.ops.snapshot import ClusterSnapshot
from rmqha.wire.state.replica_state import WaitingSends
from tests.cli.health.reports import broker, cluster, controller, name_server, replica_row, silent, snapshot_of


def words(puts: int, counts: list[int]) -> ClusterSnapshot:
    """The well cluster at work: replica 2 is behind."""
    slaves = [
        {"brokerId": 2, "lagBytes": 5000, "lagMs": 1200, "inSet": True},
        {"brokerId": 3, "lagBytes": 0, "lagMs": 0, "inSet": True},
    ]
    waits = {"count": 3, "oldestAgeMs": 1, "latencyCounts": counts, "latencyTotalMs": 0}
    found = cluster()
    found["broker-a-1"] = broker(1, putCount=puts, getCount=7, slaves=slaves, waits=waits)
    return snapshot_of(found.values())


def told() -> list[Row]:
    return rows(words(1500, [5, 0, 90, 15]), words(1000, [5]), 2.0)


def test_rates_and_latencies_are_of_the_time_between_two_looks() -> None:
    master, behind, level = told()
    assert (master.node, master.role, master.epoch, master.in_set, master.waiting) == (
        "broker-a-1",
        "master",
        4,
        True,
        3,
    )
    assert (master.in_per_second, master.out_per_second) == (250.0, 0.0)
    assert (master.ack_p50_ms, master.ack_p99_ms) == (3, 7)
    assert (behind.lag_bytes, behind.lag_ms, behind.ack_p50_ms) == (5000, 1200, None)
    assert (level.lag_bytes, level.broker_id) == (0, 3)
    assert "ackP50Ms" in master.as_json()


def test_the_first_look_has_no_rates_nor_has_a_restarted_broker() -> None:
    for before in (ClusterSnapshot(), words(9000, [5, 0, 900, 15])):
        master = rows(words(1500, [5, 0, 90, 15]), before, 1.0)[0]
        assert (master.in_per_second, master.ack_p50_ms) == (None, None)


def test_latencies_of_nothing() -> None:
    assert latencies(None, None) == (None, None)
    assert latencies(WaitingSends(latency_counts=[1]), WaitingSends(latency_counts=[1])) == (None, None)
    assert latencies(WaitingSends(latency_counts=[2]), WaitingSends(latency_counts=[])) == (0, 0)


def test_who_does_not_answer_is_shown_as_the_controllers_know_it() -> None:
    listed = [replica_row(1), replica_row(2), replica_row(3, inSyncStateSet=False, inMaintenance=True)]
    told = [controller(1, leads=True, replicas=listed), name_server(1), broker(1), broker(2), silent(broker(3))]
    row = rows(snapshot_of(told), ClusterSnapshot(), 1.0)[2]
    assert (row.role, row.in_set, row.in_maintenance, row.broker_id) == ("down", False, True, 3)
    assert "did not answer" in row.error


def test_without_controllers_the_master_tells_who_is_in_the_set() -> None:
    told = [name_server(1), broker(1, syncStateSet=[1, 3]), broker(2), broker(3)]
    made = rows(snapshot_of(told), ClusterSnapshot(), 1.0)
    assert [row.in_set for row in made] == [True, False, True]
    found = Screen()
    found.update(made, judge(snapshot_of(cluster().values()), ["broker-a"]))
    assert any("2 of 3 in the set" in line for line in shown(found))


def test_a_set_that_nobody_tells_is_not_called_empty() -> None:
    found = Screen()
    found.update(
        rows(snapshot_of([name_server(1), silent(broker(1)), broker(2)]), ClusterSnapshot(), 1.0),
        judge(snapshot_of(cluster().values()), []),
    )
    assert any("set unknown" in line for line in shown(found))


def screen() -> Screen:
    found = Screen()
    found.update(told(), judge(snapshot_of(cluster().values()), ["broker-a"]))
    return found


def shown(found: Screen, overdue_s: float | None = None) -> list[str]:
    out = Console(width=80, record=True, file=None, force_terminal=False)
    with out.capture() as capture:
        out.print(Group(*map(drawn, found.render("12:00:00", overdue_s=overdue_s))))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_what_is_old_is_not_shown_as_healthy() -> None:
    lines = shown(screen(), 2.6)
    assert lines[0] == "12:00:00  was HEALTHY, and is old: the answers take 3 s already"
    assert lines[1:] == shown(screen())[1:]


def test_it_fits_eighty_columns_and_names_the_master() -> None:
    lines = shown(screen())
    assert max(map(len, lines)) <= 80
    assert lines[0] == "12:00:00  HEALTHY"
    assert lines[1] == "broker-a: master broker-a-1, 3 of 3 in the set, 3 sends wait"
    assert lines[3].startswith("› broker-a-1 master") and lines[3].endswith("3/7")
    assert "4.9K   1.2" in lines[4]


@pytest.mark.parametrize(
    ("keys", "order", "message"),
    [
        (["j", "s"], None, "make broker-a-2 the master of broker-a? y or n"),
        (["down", "s", "y"], (TopAction.SWITCH, "broker-a-2"), ""),
        (["j", "s", "n"], None, "nothing done"),
        (["j", "s", "q"], None, "make broker-a-2 the master of broker-a? y or n"),
        (["s"], None, "broker-a-1 is the master of broker-a already"),
        (["m", "y"], (TopAction.MAINTENANCE_ON, "broker-a-1"), ""),
        (["y"], None, ""),
        (["k", "up", "m"], None, "put into maintenance broker-a-1? y or n"),
        (["j", "j", "j", "j", "m"], None, "put into maintenance broker-a-3? y or n"),
    ],
)
def test_a_key_asks_before_it_acts(keys: list[str], order: tuple[TopAction, str] | None, message: str) -> None:
    found = screen()
    results: list[PendingAction | None] = [found.press(key) for key in keys]
    assert [(item.action, item.row.node) for item in results if item] == ([order] if order else [])
    assert (found.message, found.quits) == (message, keys[-1] == "q")


def test_maintenance_is_ended_by_the_same_key() -> None:
    listed = [replica_row(1), replica_row(2, inMaintenance=True), replica_row(3)]
    nodes = snapshot_of([controller(1, leads=True, replicas=listed), broker(1), broker(2), broker(3)])
    found = Screen()
    found.update(rows(nodes, ClusterSnapshot(), 1.0), judge(nodes, ["broker-a"]))
    found.press("j")
    found.press("m")
    order = found.press("y")
    assert order is not None and order.action is TopAction.MAINTENANCE_OFF
    assert any("in, m" in line for line in shown(found))


def selected(found: Screen) -> str:
    return found.selected.node if found.selected is not None else "nobody"


def test_what_is_selected_stays_selected_while_rows_come_and_go() -> None:
    found = screen()
    found.press("j")
    found.update(told()[1:], judge(ClusterSnapshot(), []))
    assert selected(found) == "broker-a-2"
    found.update(told()[:1], judge(ClusterSnapshot(), []))
    assert selected(found) == "broker-a-1"
    found.update([], judge(ClusterSnapshot(), []))
    pressed = [found.press(key) for key in "sj"]
    assert (selected(found), pressed, found.message) == ("nobody", [None, None], "")


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0B"), (999, "999B"), (1024, "1.0K"), (999_999, "977K"), (5 << 40, "5.0T"), (5 << 60, "5120P")],
)
def test_sizes_take_four_places(size: int, words: str) -> None:
    assert size_text(size) == words


def test_counts_and_keys() -> None:
    assert (count_text(9999.4), count_text(125_000)) == ("9999", "125k")
    assert parse_keys(b"j\x1b[A\x1b[Bq") == ["j", "up", "down", "q"]
    assert parse_keys("é".encode()) == ["é"] and parse_keys(b"\x1b[3~") == []


def test_a_filter_is_typed_kept_and_ended() -> None:
    found = screen()
    for key in ("/", "a", "-", "3", "x", "\x7f"):
        assert found.press(key) is None
    assert "filter: a-3▏   Enter keeps it, Esc ends it" in shown(found)
    assert [row.node for row in found.shown] == ["broker-a-3"]
    found.press("\n")
    assert found.selected is not None and found.selected.node == "broker-a-3"
    found.press("q")
    assert found.quits, "once it is kept, keys are keys again"
    found.press("esc")
    assert len(found.shown) == 3


def test_the_order_is_the_next_one_with_each_key() -> None:
    found = screen()
    found.press("o")
    assert [row.node for row in found.shown] == ["broker-a-2", "broker-a-1", "broker-a-3"]
    found.press("o")
    assert found.shown[0].node == "broker-a-1"
    assert "ordered by messages in" in shown(found)


def test_enter_asks_for_a_replicas_details_and_goes_back() -> None:
    found = screen()
    found.press("j")
    assert found.press("\n") == PendingAction(TopAction.DETAILS, found.rows[1])
    assert "asking it for its last events …" in shown(found)
    found.details = ["12:00:00 role_changed role=SLAVE"]
    assert "broker-a-2 at 127.0.0.1:10912, slave of broker-a" in shown(found)
    assert "12:00:00 role_changed role=SLAVE" in shown(found)
    assert found.press("\n") is None
    assert any("broker-a-3" in line for line in shown(found))


@pytest.mark.parametrize("key", ["?", "c"])
def test_help_and_consumers_come_and_go_with_their_key(key: str) -> None:
    found = screen()
    found.press(key)
    lines = shown(found)
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith("› broker-a-1") for line in lines)
    found.press(key)
    assert any(line.startswith("› broker-a-1") for line in shown(found))


def test_consumer_groups_are_shown_with_what_waits_for_them() -> None:
    found = screen()
    found.press("c")
    assert "asking the brokers …" in shown(found)
    found.consumers = [ConsumerRow("billing", 12_345, 2, ("orders", "refunds"))]
    assert "billing     12k       2 orders, refunds" in shown(found)


def test_a_groups_trend_is_drawn_after_two_looks() -> None:
    found = screen()
    assert not any("in/s ▁" in line for line in shown(found))
    found.update(told(), judge(snapshot_of(cluster().values()), ["broker-a"]))
    assert "in/s ██ 250   p99 ██ 7 ms" in shown(found)
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
