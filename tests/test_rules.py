"""Each rule that keeps messages has a test that fails without it: here a rule is undone, and its test must fail.

docs/internals/rules.md lists the rules with these tests; the simulation undoes more
(tests/simulation/planted/mutations.py).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks import figures
from rmqha.broker.requests.retry import _Back
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha import controller_client
from rmqha.ha.action import AckStatus
from rmqha.ha.commit_tracker import CommitTracker
from rmqha.ha.hand_over import HandOver
from rmqha.ha.replica import Replica
from rmqha.ha.stream import client as ha_client
from rmqha.ha.stream.alignment import Alignment, align
from rmqha.ha.sync_state import SyncStateSet
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import HaMode, Role
from rmqha.store.appender import Appender
from rmqha.store.integrity.record_starts import RecordStarts
from tests.broker.conftest import broker, make_broker
from tests.broker.replication import test_replica_driver
from tests.broker.requests import test_retry
from tests.broker.rights import test_named_offsets
from tests.broker.tables import test_tables
from tests.controller.elections import test_failover
from tests.ha import test_hand_over, test_replica, test_scenarios, test_unclean_election
from tests.ha.memory_log import MemoryLog
from tests.ha.sets import test_ack_rules
from tests.simulation.planted.mutations import MUTATIONS
from tests.store import test_store, test_store_marks

__all__ = ["broker", "make_broker"]

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "rules.md"

REAL_HEARTBEAT_VALUES = Replica._heartbeat_values
REAL_START = Replica.start
REAL_APPEND = Appender.append
REAL_BECOME_MASTER = Replica._become_master
FAILURES = (AssertionError, pytest.fail.Exception, KeyError, StopIteration)
"""How a story ends badly: by its own checks, or because what it looks for has not happened."""


def _always_clean(self: Replica) -> Any:
    return REAL_HEARTBEAT_VALUES(self)._replace(unclean=False)


def _cuts_what_was_confirmed(*args: Any, **kwargs: Any) -> Alignment:
    return align(*args, **{**kwargs, "keep_confirmed": False})


def _master_by_memory(self: Replica, now_ms: int) -> None:
    REAL_START(self, now_ms)
    if self._log.epochs.last is not None and self._controller.broker_id == 1:
        self.role, self.is_master = Role.MASTER, True


def _time_falls(self: Appender, *args: Any) -> Any:
    self._offsets.last_store_timestamp_ms = 0
    return REAL_APPEND(self, *args)


def _to_the_watermark(self: Replica, now_ms: int) -> None:
    self._log.truncate(self._log.confirm_offset)
    REAL_START(self, now_ms)


def _cut_at_promotion(self: Replica, *args: Any) -> None:
    self._log.truncate(self._log.confirm_offset)
    REAL_BECOME_MASTER(self, *args)


def _answers_at_once(self: _Back, status: AckStatus) -> None:
    self._channel.send(self._reply)


def _unheard(self: CommitTracker, *args: Any) -> str:
    return ""


def told_as_median_p90_and_max() -> None:
    values = [*range(1, 50), 1000.0]
    assert figures.summary(values) == {"median": 25.5, "p90": 45, "max": 1000.0}


def mutation(name: str) -> Callable[[], Any]:
    """One of the simulation's."""
    return MUTATIONS[name]


NO_MAJORITY = mutation("no majority needed (ruling 1)")
RULES: list[tuple[str, str, Callable[[], Any], Callable[..., None], dict[str, Any]]] = [
    (
        "1",
        "a shrink to the master alone releases a wait",
        NO_MAJORITY,
        test_replica.test_a_waiting_send_is_not_acknowledged_when_the_set_shrinks_to_the_master,
        {},
    ),
    (
        "1",
        "a send is written though the confirmed set is too small",
        NO_MAJORITY,
        test_replica.test_cp_refuses_before_the_write_while_the_confirmed_set_is_below_a_majority,
        {},
    ),
    (
        "1",
        "acks count against the proposed set alone",
        mutation("acks against the shrunk set (ruling 1)"),
        test_replica.test_acks_count_against_the_union_while_an_answer_is_lost,
        {},
    ),
    (
        "1",
        "a restarted master trusts the set it is shown",
        mutation("a restarted master trusts the old set (ruling 1)"),
        test_replica.test_a_restarted_master_commits_nothing_before_the_set_epoch_has_moved,
        {},
    ),
    (
        "2",
        "no cut at a fork",
        mutation("no cut at a fork (ruling 2)"),
        test_scenarios.test_the_logs_part_where_the_newest_common_epoch_ends_first,
        {"ha_mode": "cp", "slave_confirm": 2250},
    ),
    (
        "2",
        "equal ends count as equal logs",
        mutation("no cut at a fork (ruling 2)"),
        test_scenarios.test_equal_ends_and_watermarks_do_not_hide_a_fork,
        {"ha_mode": "ap"},
    ),
    (
        "2",
        "a restart cuts to the confirm offset",
        lambda: patch.object(Replica, "start", _to_the_watermark),
        test_scenarios.test_an_acknowledged_record_above_the_followers_watermark_survives_its_restart_and_promotion,
        {"count": 3, "ha_mode": "cp"},
    ),
    (
        "2",
        "a promotion cuts to the confirm offset",
        lambda: patch.object(Replica, "_become_master", _cut_at_promotion),
        test_scenarios.test_a_promoted_slave_commits_what_its_master_may_have_acknowledged,
        {"count": 3, "ha_mode": "cp"},
    ),
    (
        "3",
        "an unclean replica beats like any other",
        lambda: patch.object(Replica, "_heartbeat_values", _always_clean),
        test_replica.test_an_unclean_replica_neither_beats_nor_asks_for_election_until_it_has_followed,
        {},
    ),
    (
        "3",
        "an unclean master resumes its epoch",
        lambda: patch.object(Replica, "_unclean_election", lambda self, info: True),
        test_scenarios.test_a_leader_that_lost_its_unsynced_tail_does_not_write_it_anew_under_the_same_epoch,
        {},
    ),
    (
        "4",
        "the highest epoch is in memory only",
        mutation("the highest epoch is not on disk (ruling 4)"),
        test_store_marks.test_epochs_and_the_highest_epoch_are_durable,
        {},
    ),
    (
        "4",
        "a restart forgets the highest epoch",
        lambda: patch.object(MemoryLog, "accept_epoch", lambda self, epoch: None),
        test_replica.test_stale_role_changes_are_refused_and_counted,
        {},
    ),
    (
        "4",
        "an older master is followed",
        mutation("an older master is followed (ruling 4)"),
        test_replica.test_stale_role_changes_are_refused_and_counted,
        {},
    ),
    (
        "4",
        "confirmed bytes are cut",
        lambda: patch.object(ha_client, "align", _cuts_what_was_confirmed),
        test_replica.test_cp_never_cuts_below_the_own_confirm_offset,
        {},
    ),
    (
        "4",
        "a replica gives way to a master elected uncleanly",
        lambda: patch.object(ha_client, "refuse_loss", lambda found, *rest: found),
        test_unclean_election.test_a_replica_killed_right_after_the_acknowledgement_refuses_to_cut_it,
        {"number": 1, "shared_count": 2},
    ),
    (
        "5",
        "CP takes sends though a member is away",
        lambda: patch.object(SyncStateSetManager, "unreachable", lambda self, connections: []),
        test_replica.test_cp_without_controllers_accepts_only_while_the_whole_confirmed_set_is_reachable,
        {},
    ),
    (
        "5",
        "AP waits for a controller",
        lambda: patch.object(SyncStateSet, "shrink_locally", lambda self, now_ms, members: None),
        test_replica.test_ap_without_controllers_shrinks_locally_and_says_since_when,
        {},
    ),
    (
        "5",
        "master by memory",
        lambda: patch.object(Replica, "start", _master_by_memory),
        test_scenarios.test_a_master_that_restarts_while_the_controllers_are_away_is_no_master_by_memory,
        {"ha_mode": "cp"},
    ),
    (
        "6",
        "the one copy is not synced",
        mutation("one copy is not synced (ruling 6)"),
        test_replica.test_two_replicas_in_cp_one_synced_copy,
        {},
    ),
    (
        "6",
        "a cut-off master of two goes on alone",
        mutation("one of two goes on without asking (rulings 6, 7)"),
        test_scenarios.test_of_two_replicas_the_old_master_waits_for_both_and_the_promoted_slave_syncs_its_one_copy,
        {},
    ),
    (
        "7",
        "a cut-off master acknowledges",
        mutation("silent members are left out (ruling 1)"),
        test_scenarios.test_of_two_masters_at_once_the_older_acknowledges_nothing_in_cp,
        {},
    ),
    (
        "7",
        "a cut-off master shows what is not committed",
        mutation("the fastest member decides (ruling 1)"),
        test_scenarios.test_a_cut_off_master_goes_on_showing_what_was_confirmed_and_nothing_more,
        {},
    ),
    (
        "8",
        "a first election waits for nobody",
        mutation("the first to come is elected (ruling 8)"),
        test_failover.test_first_election_waits_for_all_replicas_and_takes_the_longest_log,
        {},
    ),
    (
        "8",
        "the shortest log is elected",
        mutation("the shortest log is elected"),
        test_failover.test_the_fresh_log_end_decides_not_the_heartbeats,
        {},
    ),
    (
        "9",
        "an election forgets the survivors",
        mutation("the eligible set is forgotten (ruling 9)"),
        test_failover.test_a_survivor_stays_eligible_until_the_new_masters_first_alter,
        {},
    ),
    (
        "10",
        "any controller will do",
        lambda: patch.object(controller_client, "OWN_CONTROLLER_KEY", "enableElectUncleanMaster"),
        test_replica.test_cp_stays_out_of_a_controller_that_elects_uncleanly,
        {},
    ),
    (
        "11",
        "numbers of replicas are allowed in CP",
        lambda: patch.object(BrokerConfig, "mode", HaMode.AP),
        test_ack_rules.test_numeric_rules_contradict_cp,
        {"key": "inSyncReplicas", "value": "2"},
    ),
    (
        "12",
        "a message that comes back does not wait",
        lambda: patch.object(Replica, "wait", lambda self, now_ms, end_offset, token: token.finish(AckStatus.OK)),
        test_retry.test_the_consumer_is_answered_when_the_group_has_the_copy,
        {},
    ),
    (
        "12",
        "a copy that is not safe is none the worse",
        lambda: patch.object(_Back, "finish", _answers_at_once),
        test_retry.test_a_copy_that_is_not_safe_is_an_error_so_that_the_consumer_sends_again,
        {"status": AckStatus.FLUSH_SLAVE_TIMEOUT},
    ),
    (
        "13",
        "the refusal before the write is no SYSTEM_ERROR",
        lambda: patch.object(CommitTracker, "shortage", _unheard),
        test_replica.test_cp_refuses_before_the_write_while_the_confirmed_set_is_below_a_majority,
        {},
    ),
    (
        "13",
        "who waits too long hears SEND_OK",
        mutation("waits that end are answered SEND_OK (ruling 1)"),
        test_replica.test_a_waiting_send_is_not_acknowledged_when_the_set_shrinks_to_the_master,
        {},
    ),
    (
        "13",
        "who waits at a demotion hears SEND_OK",
        mutation("waiters at demotion are answered SEND_OK (ruling 13)"),
        test_scenarios.test_a_record_whose_producer_was_told_to_try_again_is_kept_so_that_two_copies_are_the_worst,
        {},
    ),
    (
        "16",
        "a new master knows no topic but its table's",
        lambda: patch.object(TopicTable, "restore", lambda self, queues, batch_topics=frozenset(): []),
        test_tables.test_a_new_master_restores_topics_that_only_the_queues_know,
        {},
    ),
    (
        "18",
        "store times fall",
        lambda: patch.object(Appender, "append", _time_falls),
        test_store.test_appends_get_rising_offsets_per_queue_and_never_an_earlier_time,
        {},
    ),
    (
        "18",
        "a master that hands over takes messages",
        lambda: patch.object(HandOver, "target", None),
        test_hand_over.test_a_level_target_is_told_at_once_and_sends_are_refused,
        {},
    ),
    (
        "19",
        "a transfer may be of any size",
        lambda: patch.object(BrokerConfig, "require_range", lambda self, *bounds: None),
        test_scenarios.test_no_transfer_is_larger_than_a_mebibyte,
        {},
    ),
    (
        "26",
        "a figure is one number",
        lambda: patch.object(figures, "summary", lambda values: {"median": sum(values) / len(values)}),
        told_as_median_p90_and_max,
        {},
    ),
    (
        "31",
        "bytes that look like a record are one",
        lambda: patch.object(RecordStarts, "has_entry", lambda self, record: True),
        test_named_offsets.test_a_half_message_inside_a_body_writes_nowhere,
        {},
    ),
    (
        "31",
        "what goes wrong for one is everybody's",
        lambda: patch("rmqha.broker.requests.pull._is_done", lambda hold, is_done: is_done(hold)),
        test_replica_driver.test_a_held_pull_that_cannot_be_answered_takes_no_other_with_it,
        {},
    ),
    (
        "31",
        "a replica that may be half changed goes on",
        lambda: patch("rmqha.broker.replication.replica_driver.interrupted", lambda error: None),
        test_replica_driver.test_an_assertion_inside_the_machine_is_a_broken_invariant,
        {},
    ),
]
"""Number of the rule, how it is undone in words, the patch, the test, and its parameters."""


def _fixtures(story: Callable[..., None], values: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    wanted = inspect.signature(story).parameters
    return {name: request.getfixturevalue(name) for name in wanted if name not in values}


@pytest.mark.parametrize(
    ("plant", "story", "values"), [row[2:] for row in RULES], ids=[f"{row[0]} {row[1]}" for row in RULES]
)
def test_without_the_rule_its_test_fails(
    plant: Callable[[], Any], story: Callable[..., None], values: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    fixtures = _fixtures(story, values, request)
    with plant(), pytest.raises(FAILURES):
        story(**values, **fixtures)


@pytest.mark.parametrize(
    ("story", "values"), [(row[3], row[4]) for row in RULES], ids=[f"{row[0]} {row[1]}" for row in RULES]
)
def test_with_the_rule_it_passes(
    story: Callable[..., None], values: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """The very call that fails above, so that it is the rule that makes the difference."""
    fixtures = _fixtures(story, values, request)
    story(**values, **fixtures)


def test_the_page_of_rules_names_every_rule_and_test() -> None:
    lines = PAGE.read_text().splitlines()
    for number, undone, _, story, _ in RULES:
        (line,) = [each for each in lines if each.startswith(f"| {number} | {undone} |")]
        assert f"`{story.__name__}`" in line, line
    assert {row[0] for row in RULES} == {str(number) for number in range(1, 14)} | {"16", "18", "19", "26", "31"}


def test_every_rule_that_is_cited_is_on_the_page() -> None:
    top = PAGE.parents[1]
    places = [
        path for room in ("rmqha", "controller", "nameserver", "tests", "docs") for path in (top / room).rglob("*")
    ]
    cited = {
        number
        for path in places
        if path.suffix in (".py", ".md")
        for number in re.findall(r"\b[rR]uling (\d+)", path.read_text())
    }
    defined = set(re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    assert cited - defined == set()
