"""Each planted bug is found by the run named here: the checkers can fail. The table of docs/internals/simulation.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import kept_seeds
from tests.simulation.planted.mutations import MUTATIONS, UNSEEN, failure_of, planted
from tests.simulation.run import ALL, Run, theme_of
from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[3]
MADE = frozenset((*kept_seeds(), *(Run(seed, theme_of(seed, ALL)) for seed in range(1, 201))))
"""Runs that `make sim` begins with, without a bug."""
PAGE = ROOT / "docs" / "internals" / "simulation.md"
FOUND_BY = {
    "a change of the log holds the event loop": "hung:900327",
    "what a sync failed on is only synced (ruling 29)": "forgotten:10",
    "acks against the shrunk set (ruling 1)": "rough:1",
    "no majority needed (ruling 1)": "rough:1",
    "the fastest member decides (ruling 1)": "rough:1",
    "silent members are left out (ruling 1)": "rough:1",
    "a restarted master trusts the old set (ruling 1)": "orphans:7",
    "a restarted master takes members by its old confirm offset (ruling 1)": "batches:920051",
    "waits that end are answered SEND_OK (ruling 1)": "elections:6",
    "no cut at a fork (ruling 2)": "rough:2",
    "the cut is one byte off (ruling 2)": "splits:4",
    "the cut leaves the epochs (ruling 2)": "rough:2",
    "power loss forgotten (ruling 3)": "plain:9",
    "whole again at once (ruling 3)": "disks:1",
    "an older master is followed (ruling 4)": "stale:1",
    "the highest epoch is not on disk (ruling 4)": "told:2",
    "CP shrinks without the controller (ruling 5)": "rough:7",
    "CP takes sends without its members (ruling 5)": "alone:2",
    "CP takes no sends without controllers (ruling 5)": "alone:2",
    "AP waits for the controllers' word (ruling 5)": "alone:98100345",
    "a master starts as master by memory (ruling 5)": "alone:1",
    "one copy is not synced (ruling 6)": "pair:1",
    "one of two goes on without asking (rulings 6, 7)": "pair:1",
    "the first to come is elected (ruling 8)": "elections:2",
    "a master that still acknowledges is one like others (ruling 8)": "plain:5001770@60",
    "the eligible set is forgotten (ruling 9)": "heirs:1",
    "whoever lives is elected (ruling 9)": "loose:2",
    "who leads alone leaves others eligible (ruling 9)": "loose:2",
    "waiters at demotion are answered SEND_OK (ruling 13)": "rough:4",
    "a slave joins when it connects": "elections:7",
    "confirm raised on one copy": "elections:1",
    "anyone is elected": "pair:1",
    "the shortest log is elected": "forgetful:1",
    "the set epoch is not fenced": "orphans:7",
    "no epoch is fenced": "orphans:7",
    "slaves ack what is not synced": "power:1",
    "old files go before they are committed": "short:1",
    "nobody is copied to again": "short:1",
    "sync does nothing": "power:1",
    "the tail behind a cut stays (apache/rocketmq 10666)": "forks:4",
    "changes are answered before the set holds them (ruling 16)": "tables:8",
    "slaves join without the tables (ruling 16)": "tables:345",
    "an old master's tables stay": "tables:1",
    "an unclean master resumes (ruling 3)": "power:1",
    "waits never end (ruling 13)": "plain:9",
    "what is cut is not told": "loose:2",
    "a queue lacks its records": "rough:2",
    "a message is stored twice": "rough:1",
    "a batch takes one place in its queue": "batches:920051",
    "another place is told": "rough:1",
    "consumers see the end": "plain:1",
    "a master that goes on serves what it has on disk": "rough:3",
    "idle queues begin at 0 again": "idle:7",
    "a consumer that waits goes on one further": "consumers:1",
    "a pull that waited for the disk goes on one further": "cold-reads:61",
    "consumers begin at the end of their queues": "consumers:3",
    "the queues are not cut": "loose:16",
    "learners are replicas like others (ruling 1)": "learners:1",
    "an old master takes the name back (ruling 14)": "routes:5",
    "what a broken connection began goes on in the next": "torn:1",
    "an end is answered before the set holds it": "transactions:2",
    "a new master asks about nothing that waits": "transactions:1",
    "copies of half messages are not waited for": "transactions:113",
    "a rollback is a commit": "transactions:1",
    "nobody is asked how a transaction ended": "transactions:1",
    "half messages are seen": "transactions:1",
    "replicas of two groups are one in the table of the living": "groups:1",
    "who dies in one group is dead in all": "groups:1",
    "a heartbeat is answered with another group's master": "groups:1",
    "a new master is told to all groups": "groups:1",
    "a name server takes all groups of a cluster for one": "groups:2",
    "one count of broker ids for all groups": "groups:1",
    "a snapshot gives all groups the first one's set": "groups:3",
    "one eligible set for all groups": "groups:23",
    "a master that knows no delay offset begins behind what waits": "delays:1",
    "delay offsets count without the copies": "delays:156",
    "a start looks at no timer that came before the last delivery": "timers:2",
    "timers that come later count as delivered": "timers:1",
    "a slave forgets the rest of the slot that its master delivers": "timers:12",
    "a start forgets what was taken back": "timers:1",
    "timers come before all that may take them back is known": "timers:1",
    "a recall is answered before the group holds it": "timers:17",
    "timers whose slot was worked off are left out": "timers:1",
    "a new master begins behind what waits": "timers:2",
    "the last timer of a delivery comes twice": "timers:1",
    "copies that are acknowledged late are stored again": "timers:6",
    "timers come by the precision that is set now": "timers:5",
    "timers come before their time": "timers:1",
    "timers count as delivered before the group holds the copies": "timers:9",
    "nobody is told of a cut": "timers:8",
    "deliveries are saved before their copies are synced": "timers:8",
    "a cut of delay offsets stays in memory": "timers:21",
    "progress is saved as the log's end": "moments:1",
    "a slave acknowledges 64 bytes ahead": "moments:1",
    "a slave's first word counts as all": "moments:1",
    "an epoch's entry stays in memory": "rough:1",
    "an epoch is durable with the next one": "told:2",
    "a start after a loss of power forgets it at once": "plain:9",
    "a delayed message is made of a rotten one (ruling 30)": "rotting:2",
    "slaves append what is rotten (ruling 30)": "rotting:2",
    "whatever a replica offers is written over rot (ruling 30)": "rotting:2",
    "a record's own checksum is not compared (ruling 30)": "noise:4",
    "the scrubber looks at heads alone": "misdirected:2",
    "half of a damaged record is mended": "misdirected:1",
    "what is damaged is asked of nobody": "misdirected:1",
    "what has no answer is passed on again": "forwards:1",
    "a refusal after the write is passed on again": "forwards:6",
    "a removed leader leads on (Raft)": "quorum:9",
    "a SYNC_MASTER without a controller waits for nobody": "conversions:107",
    "a static slave reports what is not synced": "conversions:10",
    "a shorter log may be the first after a static time": "conversions:12",
    "a store that was not stopped in order may be converted": "conversions:3",
    "batch queues are not cut": "batch-queues:20",
    "a batch takes one place of a batch queue": "batch-queues:1",
    "an inner batch takes one queue offset": "batch-queues:1",
    "a batch is found by its first message alone": "batch-queues:1",
    "files of batch queues stay": "batch-queues:1",
    "files of batch queues go with their last units": "batch-queues:12",
    "who waits waits for a full pool": "pool:1",
    "what is collected stays in memory": "pool:1",
    "a hand-over leaves what is collected": "pool:3",
    "a slave keeps what it collected as master": "pool:21",
    "queue offsets of what was dropped stay": "pool:14",
    "an answer without a replica's id counts for nobody": "versions:1",
    "nobody is asked who may come in": "versions:1",
    "a registration without an accepted epoch is refused": "versions:1",
    "whose master tells no ends of queues waits for them": "versions:1",
    "what was sent to a target counts as there (ruling 18)": "moments:1",
    "a master that hands over takes sends on (ruling 18)": "moments:1",
    "an older set is news": "moments:3",
    "a proposal without an answer is refused": "moments:2",
    "the mark of synced bytes survives a cut": "splits:2",
    "the confirm offset survives a cut": "splits:3",
    "progress and checkpoint survive a cut": "splits:3",
    "queue offsets survive a cut": "moments:2",
    "old files go before they are synced": "splits:1",
    "an epoch's entry is written after its bytes": "moments:3",
    "epochs are cut in memory": "moments:2",
    "unclean is said in memory": "moments:1",
    "waits outlive the role": "rough:4",
    "the controllers' log is not synced (Raft)": "moments:1",
    "a master serves before its queues are there": "stops:81",
    "a send is taken while too few replicas are there (ruling 1)": "alone:2",
    "a time-out is answered SEND_OK": "rough:1",
    "the send behind the last one is answered too": "rough:1",
    "a hand-over that nobody takes up never ends": "operators:2",
    "a set without a member keeps its epoch": "power:1",
    "who lost power reports as well (ruling 3)": "power:2",
    "queue offsets outlive a cut (apache/rocketmq 7689)": "plain:9",
    "store times follow the clock (ruling 18)": "disks:1",
    "a start leaves no trace": "moments:1",
    "an epoch's entry is in its copy alone": "moments:1",
    "an unclean replica sends heartbeats (ruling 3)": "power:1",
    "who lost power stays in the set (ruling 3)": "power:3",
    "who misses entries may lead (Raft)": "controllers:4",
    "one vote elects a leader (Raft)": "plain:2",
    "votes are forgotten (Raft)": "controllers:1",
    "one copy commits (Raft)": "rough:7",
    "a slave moves consumers": "consumers:1",
    "who dies is missed after eight seconds": "heirs:1",
    "the due times of answered pulls stay": "consumers:4",
    "queue files of removed records stay": "short:1",
    "old log files are left on the disk": "short:1",
    "a cut is not synced": "splits:2",
    "a new epoch is the next one that the controllers know": "forgetful:19",
    "the mark of the end stands still": "moments:1",
    "queues are not synced": "moments:1",
    "a progress is not synced": "moments:1",
    "a checkpoint is not synced": "moments:1",
    "progress is saved before the queues are synced": "moments:1",
    "a cut leaves a queue's last entry": "splits:3",
    "an older connection of a slave stays": "late:2",
    "who gives up its log stays electable (ruling 3)": "short:1",
    "who was eligible stays so (ruling 9)": "rough:3",
    "a master who is demoted keeps its slaves": "operators:71",
    "half a record stays where a master begins": "blackouts:6",
    "a new master forgets what it has inherited": "blackouts:10",
    "a target that lacks its last bytes counts as level (ruling 18)": "operators:6",
    "a proposed set counts as a majority (ruling 1)": "rough:7",
    "a set of the same epoch is news": "drains:41",
    "an entry without bytes lends its epoch": "blackouts:4",
    "nearly all that was lost makes a replica whole (ruling 3)": "moments:5",
    "a follower's own entries stay (Raft)": "controllers:2",
    "epoch entries behind the log's end stay": "moments:2",
    "changes are answered by the confirmed set alone (ruling 16)": "sets:5",
    "an election keeps the set's epoch": "snapshots:1",
    "a snapshot forgets who is eligible (ruling 9)": "snapshots:2",
    "a snapshot forgets a change of totalReplicas": "snapshots:2",
    "a snapshot forgets who is drained": "snapshots:1",
    "a lease outlasts the others' patience (Raft)": "controllers:27",
    "a start finds nothing unclean but a loss of power (ruling 29)": "moments:1",
    "commits count before a member knows that its offset was set back": "resets:2",
    "a rotten timer message is left out (ruling 30)": "rotting:77",
    "a pop is answered before the group holds its checkpoint (apache/rocketmq 4806)": "pop:9",
    "an acknowledgement is answered before the group holds it": "pop:11",
    "a new master looks through no checkpoints": "pop:11",
    "what waits is settled by the clock": "pop:3",
    "revive entries count as worked off once they are read": "pop:3",
    "messages come again half a second early": "pop:17",
    "another time leaves the old checkpoint": "pop:11",
    "another time is an acknowledgement alone": "pop:3",
    "an acknowledgement in order is one of all that was given": "pop:3",
    "a queue gives on in order what is not done": "pop:3",
    "acknowledgements in front of their checkpoints are dropped": "pop:13",
    "of one checkpoint one message comes again": "pop:4",
    "a checkpoint that timers deliver twice is two": "pop:16",
    "what was popped before a set-back moves the group": "set-backs:5",
    "a master that has handed over takes sends again at once": "moments:1",
    "tables change while too few replicas are in the set (ruling 16)": "tables:7",
    "a follower commits what it has (Raft)": "snapshots:5",
    "a slave forgets that an offset was set back": "resets:27",
    "a replica gives way to a master elected uncleanly (ruling 4)": "stale-elections:181",
    "the file does not say when a group was set back": "set-backs:5",
    "an acknowledgement in order that is said again is answered at once": "set-backs:73",
    "a cut leaves the offsets of pops": "pop:2027",
    "offsets count before the log that they count on": "pop:2027",
    "a pop that waits takes a new message before those in front": "pop:1",
    "a pop that waited for the disk goes on one further": "pop:73",
    "what is taken before its queue has it is forgotten": "pop:8",
    "a slave leaves the last bytes of its log out of the queues": "plain:9",
    "the last record of a block is not indexed": "plain:9",
    "what was indexed before a stop is indexed again": "plain:9",
    "a leader counts itself before its disk (Raft)": "plain:6",
    "who was asked in a former life is not waited for (ruling 1)": "revenants:2",
    "a lost answer leaves nothing open": "sets:8",
    "a refusal ends what was proposed before": "sets:8",
    "a restarted master counts its offsets anew": "clocks:4",
    "a refusal ends what an earlier copy of the request asked for (ruling 1)": "sets:8",
    "stamps of a master that is back go by its clock alone": "clocks:39",
    "slaves do not hear when a group was set back": "resets:2",
    "what waits for the disk is a view of the read buffer": "hung:4",
    "old files go before the progress speaks of what stays": "short:1",
    "a log that is given up leaves its progress": "short:1",
    "what counted on another master's log stays": "timers:12",
    "an answer of a passed-on send says more than the master": "forwards:5",
    "a pop may have the time of a set-back": "set-backs:4",
    "old news make a master go by fewer replicas (ruling 15)": "moments:81",
    "how far groups are waits for the next dispatch": "clean-stops:16",
    "a stop saves no topics and groups": "clean-stops:21",
    "a stop saves no offsets": "clean-stops:1",
    "a stop saves before it syncs": "clean-stops:2",
    "what was given in order is not saved": "clean-stops:4",
    "how far timers are is not saved": "clean-stops:27",
    "a stop comes before a write that was begun": "clean-stops:27",
    "a clean stop leaves queues and marks behind": "clean-stops:2",
    "another time counts when the old one is over": "late-pops:1",
    "a set-back has the time of the clock alone": "late-pops:8",
    "an acknowledgement in order is of any pop": "late-pops:2",
    "a new master takes what is done in order before it knows more": "clean-stops:17",
    "entries of older terms are committed by count (Raft)": "fives:3",
    "delay offsets may lie behind their queues": "timer-splits:3",
    "a cut leaves the timers that are known": "timer-splits:1",
    "a timer message that cannot be read is passed over (ruling 30)": "rotting:2",
    "timers do not see that a clock is put back": "timer-splits:5",
    "a snapshot of timers counts for any log": "timer-splits:3",
    "a snapshot of timers counts though less is delivered": "timer-splits:15",
    "what takes back goes before what is late": "timer-splits:1",
    "a lost answer of a passed-on send is a refusal": "forwards:1",
    "pops under way move a group that was set back": "set-backs:2",
    "a set-back leaves what was given in order": "late-pops:8",
    "the end of an older connection ends the newer one (ruling 17)": "late:1",
    "a follower answers before its disk has it (Raft)": "controllers:1",
    "a slave acknowledges what it has cut": "splits:2",
    "a slave holds tables before its disk does (ruling 16)": "tables:9240359",
    "a snapshot has the controllers' first members (Raft)": "quorum:1",
    "members stay changed when their entry is cut (Raft)": "quorum:1",
    "two changes of the members at a time (Raft)": "quorum:1",
    "a transfer goes on across an epoch's start": "rough:3",
    "a transaction's mark stands in front of its message": "transactions:1",
    "a record that comes in two pieces is not checked (ruling 30)": "noise:5",
    "a copy of another epoch is written over rot (ruling 30)": "misdirected:95",
    "heartbeats commit what a follower may lack (Raft)": "quorum:5",
    "pieces of any snapshot make one (Raft)": "snapshots:3",
    "a start forgets what was promised to a leader (Raft)": "voters:1",
    "an older disk stays in the set (ruling 3)": "backups:8",
    "a drain leaves fewer than a send needs": "drains:1",
    "an older connection's heartbeat binds (ruling 17)": "late:1",
    "a name server keeps whose connection has ended": "routes:1000831@60",
    "a change of totalReplicas ends at once (ruling 15)": "operators:2",
    "an epoch that begins at the cut stays": "forks:2",
    "a broker's id stays in memory": "rough:1",
    "an epoch goes with its first file": "short:1",
    "a slave below the log is sent from where it ends": "short:1",
    "a slave at the oldest file has fallen behind it": "wiped:51",
    "controllers are away only after minutes (ruling 5)": "alone:2",
    "a wait ends after its time, not at it": "rough:7",
    "of three replicas one may acknowledge": "heirs:1",
    "who is dead keeps its connection (ruling 17)": "rough:1",
    "the next id is the last one's and one": "forgetful:1",
    "an older registration undoes an unclean election": "power:3",
    "a change of totalReplicas never ends": "operators:2",
    "a number of before its epoch ends a change of totalReplicas (ruling 15)": "operators:6",
    "a snapshot is not synced (Raft)": "snapshots:1",
    "a cut to the log's begin takes its only file": "splits:1",
    "deliveries count one record late": "delays:156",
    "who follows again compares nothing": "clocks:39",
    "a pop leaves the order that it follows": "set-backs:2",
}
"""Name of the bug to the first run that finds it, as seeds.txt names runs."""
DIRECTED = {
    "a smaller number of replicas binds at once (ruling 15)": "tests/controller/decisions/test_resize.py"
    "::test_the_larger_number_binds_until_the_master_goes_by_it",
    "an answer to an earlier proposal counts": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_an_answer_to_an_earlier_proposal_says_nothing_of_the_present_one",
    "a set that has moved is a refusal": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_a_set_that_has_moved_is_no_refusal",
    "an older connection of a slave counts": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_only_the_newest_connection_says_what_a_member_holds",
    "the longer log wins before the newer epoch": "tests/controller/elections/test_silent_candidate.py"
    "::test_a_slow_candidate_with_more_becomes_master",
    "an older offset replaces a newer one": "tests/broker/tables/test_offsets.py"
    "::test_a_stale_offset_never_overwrites_a_newer_one",
    "what a slave gives back undoes what was changed since": "tests/broker/tables/test_offsets.py"
    "::test_what_a_slave_gives_back_does_not_undo_what_was_changed_since",
    "timers of a slot stand as they came": "tests/broker/timers/test_waiting.py"
    "::test_they_come_in_the_order_of_their_slots_and_offsets",
    "marks do not say where to begin": "tests/broker/services/test_transaction_switch.py"
    "::test_offsets_that_a_lost_part_of_the_log_has_left_hide_nothing_that_waits",
    "queue entries in two sectors are not looked at": "tests/store/queue/test_queue_check.py"
    "::test_the_lost_beginning_of_a_unit_ends_what_is_whole",
    "acks of who has left the set count": "tests/ha/sets/test_ack_rules.py"
    "::test_in_sync_replicas_has_no_effect_under_all_ack",
    "an unclean election of before counts again (ruling 3)": "tests/ha/test_replica.py"
    "::test_an_unclean_election_of_before_is_no_leave_to_resume",
    "a follower acknowledges what stands behind an append (Raft)": "tests/raft/test_node.py"
    "::test_a_follower_acknowledges_what_an_append_speaks_of_and_nothing_behind",
    "a vote leaves whoever leads (Raft)": "tests/raft/test_golden.py::test_script",
    "the age of a log file is that of what was cut": "tests/store/test_trim.py"
    "::test_a_cut_file_is_as_old_as_what_it_gets_then",
    "who waits at a controller is registered when it is gone": "tests/controller/elections/test_failover.py"
    "::test_a_registration_that_waited_is_void_when_its_session_has_ended",
    "a refused hand-over elects all the same": "tests/controller/elections/test_hand_over.py"
    "::test_a_hand_over_that_fails_changes_nothing_and_tells_why",
    "a new master keeps offsets behind its queues": "tests/broker/tables/test_tables.py"
    "::test_consumer_offsets_follow_a_cut_of_the_log",
    "a pause of a controller is the brokers' silence": "tests/controller/elections/test_failover.py"
    "::test_a_pause_of_the_controller_itself_evicts_nobody",
    "a new mastership waits for a request of the last": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_a_new_mastership_waits_for_no_answer_of_the_last",
    "members get no time to connect": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_a_master_gives_its_members_time_to_connect",
    "a member leaves for the later of two reasons": "tests/ha/sets/test_ack_rules.py"
    "::test_in_sync_replicas_has_no_effect_under_all_ack",
    "a slave that moves counts as level": "tests/ha/sets/test_sync_state_set_manager.py"
    "::test_a_slave_that_keeps_acking_but_falls_behind_leaves_by_time",
    "who is spoken to is never silent": "tests/ha/stream/test_copy.py"
    "::test_a_slave_that_says_nothing_is_dropped_though_it_is_spoken_to",
    "what was kept of a connection outlives it": "tests/ha/test_log_writes.py"
    "::test_what_a_connection_sent_while_the_disk_hung_is_not_read_in_the_next",
    "the first acknowledgement does not wait for the disk": "tests/ha/stream/test_copy.py"
    "::test_where_a_slave_goes_on_is_where_it_ends_though_its_disk_lacks_some_of_it",
    "an epoch is common wherever it began": "tests/ha/stream/test_alignment.py::test_the_documents_example",
    "logs that part where this one begins share nothing": "tests/ha/stream/test_alignment.py"
    "::test_a_fork_where_the_log_begins_is_cut",
    "what an unclean master itself wrote may not go": "tests/ha/test_unclean_election.py"
    "::test_what_was_written_since_the_unclean_election_is_cut_as_ever",
    "a hand-over outlives its mastership": "tests/ha/test_hand_over.py"
    "::test_a_level_target_is_told_at_once_and_sends_are_refused",
    "news during a change of the log are forgotten": "tests/ha/test_log_writes.py"
    "::test_news_of_a_later_epoch_waits_and_is_asked_for",
    "the number of replicas is as new as its answer": "tests/ha/sets/test_membership.py"
    "::test_of_two_answers_to_earlier_calls_neither_lowers_the_number_of_replicas",
    "what changes while a registration is under way is not told (ruling 3)": "tests/ha/stream/test_full_copy.py"
    "::test_who_gives_up_its_log_says_so_before_it_may_be_elected",
    "an accepted epoch without a record counts for nothing": "tests/controller/elections/test_failover.py"
    "::test_the_new_epoch_exceeds_what_replicas_have_accepted_without_a_record_of_it",
    "who waits for an election that fails is forgotten": "tests/controller/elections/test_failover.py"
    "::test_a_registration_that_waited_is_void_when_its_session_has_ended",
    "a refused proposal keeps its group busy": "tests/controller/elections/test_failover.py"
    "::test_a_change_that_the_log_refused_is_taken_when_it_is_asked_for_again",
    "no answer behind a closed connection means nothing": "tests/controller/elections/test_failover.py"
    "::test_silence_after_a_closed_session_is_death",
    "a master's new epoch is no news": "tests/controller/elections/test_explain.py"
    "::test_a_change_survives_the_masters_death",
    "who lost power stays eligible (ruling 3)": "tests/controller/state/test_replicas_info.py"
    "::test_who_lost_power_is_neither_a_member_nor_eligible",
    "what replaces durable entries is durable (Raft)": "tests/raft/test_log.py"
    "::test_what_takes_the_place_of_durable_entries_is_not_durable_yet",
    "a leader decides before it knows what was decided (Raft)": "tests/controller/quorum/test_quorum_requests.py"
    "::test_a_fourth_controller_becomes_a_voter_and_holds_the_same_state",
    "a lost probe is not sent again (Raft)": "tests/raft/test_golden.py::test_script",
    "an abandoned transfer leaves the term (Raft)": "tests/raft/test_golden.py::test_script",
    "a segment goes with one entry that the snapshot lacks (Raft)": "tests/controller/quorum/test_raft_log.py"
    "::test_a_segment_goes_only_when_a_snapshot_covers_all_of_it",
    "a snapshot goes on behind a broken-off one (Raft)": "tests/controller/quorum/test_raft_log.py"
    "::test_every_crash_leaves_the_state_before_or_after_a_ready",
    "a leader's snapshot is not announced (Raft)": "tests/controller/quorum/test_raft_log.py"
    "::test_every_crash_leaves_the_state_before_or_after_a_ready",
    "no entry stays in front of those of the log": "tests/store/test_trim.py"
    "::test_a_cut_to_the_start_of_a_trimmed_queue_keeps_its_offsets",
    "what the next save says survives a cut": "tests/store/test_store_marks.py"
    "::test_what_a_cut_took_is_in_no_save_behind_it",
    "starts of records outlive a log that is given up": "tests/store/integrity/test_record_starts.py"
    "::test_a_log_that_is_given_up_leaves_nothing_known",
    "damage outlives a log that is given up": "tests/store/integrity/test_record_starts.py"
    "::test_a_log_that_is_given_up_leaves_nothing_known",
    "old files of a log that is given up still go": "tests/store/test_trim.py"
    "::test_a_replaced_log_takes_its_leaving_files_along",
    "a backup outlives a cut of the epochs": "tests/store/meta/test_epoch_file.py::test_the_backup_is_always_a_prefix",
    "removed offsets stay in the file": "tests/broker/replication/test_metadata_sync.py"
    "::test_removed_offsets_are_on_a_slaves_disk_before_it_says_so",
    "tables of the last master are taken after a switch": "tests/broker/replication/test_metadata_sync.py"
    "::test_topics_do_not_come_after_a_switch_that_a_write_waited_through",
    "what stands in front of its checkpoint is worked off": "tests/broker/pop/test_model.py"
    "::test_a_revive_queue_that_is_read_from_what_is_worked_off_has_the_same_open_messages",
    "acknowledgements that wait are worked off": "tests/broker/pop/test_model.py"
    "::test_a_revive_queue_that_is_read_from_what_is_worked_off_has_the_same_open_messages",
    "nobody says that copies are stored": "tests/broker/pop/test_pop.py"
    "::test_a_new_master_whose_clock_is_behind_changes_no_time_that_was_over",
    "a queue in order is free with its first message": "tests/broker/pop/test_model.py"
    "::test_a_queue_in_order_is_free_when_the_last_of_its_open_messages_comes_again",
    "clients without an attempt share one": "tests/broker/pop/test_model.py"
    "::test_clients_that_name_no_attempt_wait_for_each_other",
    "another time in order is of any pop": "tests/broker/pop/test_model.py"
    "::test_another_time_in_order_is_of_the_last_pop_alone",
    "a commit of a lost tail counts": "tests/broker/requests/test_pull.py"
    "::test_a_consumer_that_has_read_of_a_lost_tail_passes_nothing_over",
    "a pull that is due later in its tick waits for ever": "tests/broker/requests/test_pull.py"
    "::test_each_pull_is_told_when_its_own_time_is_up",
    "pulls that are over still count": "tests/broker/requests/test_pull.py"
    "::test_a_held_pull_wakes_with_the_message_it_wants",
    "pulls of a closed connection stay": "tests/broker/requests/test_pull.py::test_commit_flag_and_closed_channel",
    "a send overtakes those that are held": "tests/broker/replication/test_forward.py"
    "::test_a_send_waits_behind_those_of_its_connection_that_are_held",
    "bytes of held sends are never given back": "tests/broker/replication/test_forward.py"
    "::test_the_bytes_of_what_is_held_are_bounded_too",
    "a name server keeps the old epoch of whom it was told": "tests/nameserver/test_route_info.py"
    "::test_news_that_are_old_change_nothing",
    "a displaced broker stays alive": "tests/nameserver/test_route_info.py::test_a_new_master_replaces_the_old_one",
    "a pause of a name server is the brokers' silence": "tests/nameserver/test_route_info.py"
    "::test_a_pause_of_the_name_server_is_nobodys_silence",
    "a refusal behind the write leaves no copy": "tests/client/producers/test_producer.py"
    "::test_retriable_codes_are_retried",
    "a weaker answer leaves no copy": "tests/client/producers/test_producer.py"
    "::test_stored_but_not_safe_is_a_status_or_with_require_ok_a_retry",
    "a lost connection leaves no copy": "tests/client/producers/test_producer.py"
    "::test_each_try_that_may_have_been_stored_counts_as_a_copy",
    "a pinned message goes anywhere": "tests/client/producers/test_producer.py"
    "::test_an_unordered_send_moves_to_another_group_and_an_ordered_one_waits_for_its_own",
    "a new master gives the last message again": "tests/broker/pop/test_pop.py"
    "::test_a_new_master_whose_clock_is_behind_changes_no_time_that_was_over",
}
"""Name of a bug that no run finds to the test that does."""
_PARTS = 3
"""Processes for the tests of DIRECTED: to import the product costs more than most of them."""
_PLANT_AND_TEST = """
import gc, json, os, sys, pytest
from tests.simulation.planted.mutations import planted
tests, options, codes = json.loads(sys.argv[1]), ["-q", "-x", "-p", "no:cacheprovider"], {}
pytest.main([*options, "--collect-only", *sorted(set(tests.values()))])
sys.stdout.flush()
gc.freeze()
for name, test in tests.items():
    if not (child := os.fork()):
        with planted(name):
            code = int(pytest.main([*options, test]))
        sys.stdout.flush()
        os._exit(code)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print()
print(json.dumps(codes))
"""
"""The modules are imported before anything is planted: what one imports by name stays. What a test leaves behind with
a bug planted ends with its process."""


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_the_bug_is_found(name: str) -> None:
    with planted(name):
        assert failure_of(Run.parse(FOUND_BY[name])), f"{name} is no longer found by {FOUND_BY[name]}; look for another"


@pytest.mark.sim
@pytest.mark.parametrize("run", sorted(run for run in set(FOUND_BY.values()) if Run.parse(run) not in MADE))
def test_without_the_bug_the_run_is_well(run: str) -> None:
    assert not failure_of(Run.parse(run))


@pytest.mark.sim
@pytest.mark.parametrize("part", range(_PARTS))
def test_each_bug_that_no_run_finds_fails_its_own_test(part: int) -> None:
    modules = sorted({test.partition("::")[0] for test in DIRECTED.values()})[part::_PARTS]
    tests = {name: test for name, test in sorted(DIRECTED.items()) if test.partition("::")[0] in modules}
    command = [sys.executable, "-c", _PLANT_AND_TEST, json.dumps(tests)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    codes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert codes == dict.fromkeys(tests, int(pytest.ExitCode.TESTS_FAILED))


@pytest.mark.parametrize("name", sorted(MUTATIONS | UNSEEN))
def test_each_bug_can_still_be_planted(name: str) -> None:
    """A change of the product that moves the text of an edit shows here, before the runs of `make sim`."""
    with planted(name):
        pass


def test_every_entry_names_a_mutation_and_stands_in_the_docs() -> None:
    assert set(FOUND_BY) == set(MUTATIONS)
    assert set(DIRECTED) == set(UNSEEN)
    assert not set(UNSEEN) & set(MUTATIONS)
    rows = PAGE.read_text().splitlines()
    for name, run in FOUND_BY.items():
        assert f"| {name} | {run} |" in rows
    for name, test in DIRECTED.items():
        assert any(row.startswith(f"| {name} | `{test}` |") for row in rows)
    total = len(MUTATIONS) + len(UNSEEN)
    assert f"Of {total} bugs that are planted {len(MUTATIONS)} are." in PAGE.read_text()
