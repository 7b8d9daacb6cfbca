"""The route table, one story for each rule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver import route_info
from nameserver.route_info import CONTEST_MS, RouteTable
from rmqha.wire.bodies import QueueData, Registration, TopicTableVersion
from tests.support.patience import HANG_S
from tests.support.steps import done
from tests.support.tracer import RecordingTracer

LITE_MS, REGISTER_MS, SCAN_MS = 5_000, 120_000, 500
TOPIC = QueueData(4, 4, 6)
A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


class Story:
    """A table, its events and the time."""

    def __init__(self) -> None:
        self.events = RecordingTracer()
        self.table = RouteTable(self.events, lite_timeout_ms=LITE_MS, register_timeout_ms=REGISTER_MS)
        self.now_ms = 1_000_000

    def register(
        self,
        address: str,
        broker_id: int,
        epoch: int = 1,
        *,
        topics: tuple[str, ...] = ("T",),
        counter: int = 1,
        group: str = "g",
        cluster: str = "c",
        session: int = 0,
        timeout_ms: int | None = None,
    ) -> tuple[str, str, bool]:
        version = TopicTableVersion(counter, epoch, epoch)
        request = Registration(
            cluster, group, broker_id, address, f"{address}2", version, dict.fromkeys(topics, TOPIC), False, timeout_ms
        )
        outcome = done(self.table.register(self.now_ms, session, request))
        assert not outcome.refusal
        return outcome.master_address, outcome.ha_address, outcome.ignored

    def addresses(self, group: str = "g") -> dict[int, str]:
        return {data.broker_name: dict(data.addresses) for data in self.table.groups()}.get(group, {})

    def route(self, topic: str = "T") -> list[str] | None:
        found = self.table.route(topic)
        return None if found is None else list(found[1])

    def pass_ms(self, ms: int, heartbeats: tuple[tuple[str, str], ...] = ()) -> None:
        """Scan as the server does; the brokers in `heartbeats` send one with each second scan."""
        for step in range(ms // SCAN_MS):
            self.now_ms += SCAN_MS
            if step % 2:
                for group, address in heartbeats:
                    assert self.table.heartbeat(self.now_ms, group, address)
            self.table.scan(self.now_ms)


def test_a_slave_learns_its_master() -> None:
    story = Story()
    assert story.register(A, 0) == ("", "", False)
    assert story.register(B, 2) == (A, A + "2", False)
    assert story.addresses() == {0: A, 2: B}


def test_a_slave_without_a_master_learns_none() -> None:
    assert Story().register(B, 2) == ("", "", False)


def test_a_new_master_replaces_the_old_one() -> None:
    story = Story()
    story.register(A, 0, 1)
    story.register(B, 2, 1)
    story.register(B, 0, 2)
    assert story.addresses() == {0: B}
    assert not story.table.heartbeat(story.now_ms, "g", A)
    assert story.register(A, 1, 2) == (B, B + "2", False)
    assert story.addresses() == {0: B, 1: A}


def test_a_cut_off_old_master_keeps_registering_in_vain() -> None:
    """Ruling 14."""
    story = Story()
    story.register(A, 0, 4)
    story.register(B, 0, 6)
    for counter in range(5):
        assert story.register(A, 0, 4, counter=counter, topics=("T", "stale")) == (B, B + "2", True)
        assert story.addresses() == {0: B}
    assert story.route("stale") is None
    # one line, not one for each attempt
    [ignored] = story.events.named("registration_ignored")
    assert (ignored["address"], ignored["state_version"], ignored["holder_state_version"]) == (A, 4, 6)
    # it finds out and comes back as a slave
    assert story.register(A, 1, 6) == (B, B + "2", False)
    assert story.addresses() == {0: B, 1: A}


def test_brokers_of_one_name_and_id_are_told() -> None:
    """Two static masters, each of which registers anew when it hears that it is not registered."""
    story = Story()
    for address in (A, B, A, B):
        story.register(address, 0, 0)
        story.register(C, 1, 0)
        story.pass_ms(1_000)
    assert story.table.contested(story.now_ms) == {"g": [A, B]}
    assert story.table.unregister("g", A) is False
    assert story.table.contested(story.now_ms) == {}, "one of them was stopped"


def test_a_displaced_broker_that_lives_is_a_rival_at_once() -> None:
    story = Story()
    story.register(A, 0, 0)
    story.register(B, 0, 0)
    assert story.table.contested(story.now_ms) == {}, "it may have moved"
    assert not story.table.heartbeat(story.now_ms, "g", A)
    assert story.table.contested(story.now_ms) == {"g": [A, B]}
    assert story.table.unregister("g", B)
    assert story.table.contested(story.now_ms) == {}
    # it took its id back, and is told of nobody who has gone
    story.register(A, 0, 0)
    assert story.table.contested(story.now_ms) == {}


def test_a_rival_that_lives_gets_the_route_when_the_other_stops() -> None:
    """Two static masters of one name: it registers again only at its next period, which may be 30 s away."""
    story = Story()
    story.register(A, 0, 0, session=1)
    story.register(C, 1, 0, session=3)
    story.register(B, 0, 0, session=2)
    assert not story.table.heartbeat(story.now_ms, "g", A)
    assert story.table.unregister("g", B)
    assert story.addresses() == {0: A, 1: C} and story.route() == ["g"]
    assert story.table.heartbeat(story.now_ms, "g", A)
    # alone in its group, and the other is killed
    story = Story()
    story.register(A, 0, 0, session=1)
    story.register(B, 0, 0, session=2)
    assert story.table.heartbeat(story.now_ms, "g", B)
    for _ in range(LITE_MS // SCAN_MS + 2):
        story.pass_ms(SCAN_MS)
        story.table.heartbeat(story.now_ms, "g", A)
    assert story.addresses() == {0: A} and story.route() == ["g"]


def test_no_dead_rival_gets_the_route() -> None:
    story = Story()
    story.register(A, 0, 0, session=1)
    story.register(B, 0, 0, session=2)
    assert story.table.unregister("g", B)
    assert story.addresses() == {}, "nobody has heard of it since"
    story.register(A, 0, 0, session=1)
    story.register(B, 0, 0, session=2)
    assert not story.table.heartbeat(story.now_ms, "g", A)
    story.pass_ms(LITE_MS, (("g", B),))
    assert story.table.unregister("g", B)
    story.pass_ms(2 * SCAN_MS)
    assert story.addresses() == {}, "its time-out is over"
    story.register(A, 0, 4, session=1)
    story.register(B, 0, 4, session=2)
    assert not story.table.heartbeat(story.now_ms, "g", A)
    story.table.elected("g", C, 5)
    story.table.unregister("g", B)
    assert story.addresses() == {}, "the controllers have elected another since"
    story = Story()
    for address, broker_id in ((A, 0), (B, 0), (B, 1), (C, 0)):
        story.register(address, broker_id, 0)
        story.table.heartbeat(story.now_ms, "g", A)
    assert story.table.unregister("g", B) and story.addresses() == {0: C}, "another has the id by now"


def test_who_was_displaced_and_has_another_id_since_is_nobodys_rival() -> None:
    story = Story()
    story.register(A, 1, 4)
    story.register(B, 1, 4)
    story.register(A, 2, 4)  # its address belongs to another replica now
    story.register(C, 2, 5)  # and that one moved
    assert not story.table.heartbeat(story.now_ms, "g", A)
    assert story.table.contested(story.now_ms) == {}


def test_no_broker_is_contested_that_moved_or_was_deposed() -> None:
    story = Story()
    story.register(A, 0, 4)
    story.register(B, 0, 5)
    story.register(A, 0, 6)
    story.register(C, 0, 6)
    assert story.table.contested(story.now_ms) == {}
    story.register(A, 0, 6)
    assert story.table.contested(story.now_ms) == {"g": [A, C]}
    story.pass_ms(CONTEST_MS)
    assert story.table.contested(story.now_ms) == {}


def test_a_broker_of_another_cluster_is_told_while_it_tries() -> None:
    story = Story()
    story.register(A, 0)
    version = TopicTableVersion(1, 1, 1)
    request = Registration("other", "g", 0, B, B + "2", version, {}, False, None)
    outcome = done(story.table.register(story.now_ms, 0, request))
    assert "a brokerName must be unique" in outcome.refusal and story.addresses() == {0: A}
    assert story.table.refused(story.now_ms) == {B: ["g", outcome.refusal]}
    assert story.table.refused(story.now_ms + CONTEST_MS) == {}, "it has given up"
    story.register(B, 1)
    assert story.table.refused(story.now_ms) == {}
    for number in range(2 * route_info.MAX_REFUSED_COUNT):
        other = replace(request, address=f"10.0.1.{number}:1", cluster_name="x" * 100_000)
        done(story.table.register(story.now_ms, 0, other))
    assert len(told := story.table.refused(story.now_ms)) == route_info.MAX_REFUSED_COUNT and len(str(told)) < 100_000


def test_without_a_version_an_occupied_id_stays() -> None:
    story = Story()
    story.register(A, 0, 3)
    outcome = done(story.table.register(0, 0, Registration("c", "g", 0, B, "", None, {})))
    assert outcome.ignored
    assert story.addresses() == {0: A}


def test_the_same_address_may_start_over() -> None:
    story = Story()
    story.register(A, 0, 9)
    assert not story.register(A, 0, 1)[2]


def test_a_demoted_master_leaves_the_masters_place() -> None:
    story = Story()
    story.register(A, 0)
    story.register(A, 1)
    assert story.addresses() == {1: A}
    assert [event["addresses"] for event in story.events.named("route_changed")] == [{"0": A}, {"1": A}]


def test_an_unchanged_registration_only_refreshes() -> None:
    story = Story()
    story.register(A, 0)
    story.events.events.clear()
    story.pass_ms(REGISTER_MS - SCAN_MS)
    story.register(A, 0)
    story.pass_ms(REGISTER_MS - SCAN_MS)
    assert story.addresses() == {0: A}
    # the same version: what it carries is not looked at
    story.register(A, 0, topics=("other",))
    assert story.route("other") is None
    story.register(A, 0, topics=("other",), counter=2)
    assert story.route("other") == ["g"]
    assert [name for name, _ in story.events.events] == ["route_changed"]


def test_topics_come_from_the_master_or_the_lowest_slave() -> None:
    story = Story()
    story.register(B, 2, topics=("early",))
    assert story.route("early") == ["g"]
    story.register(A, 0, topics=("T",))
    story.register(B, 2, counter=2, topics=("of-a-slave",))
    assert story.route("of-a-slave") is None
    assert sorted(story.table.topic_names) == ["T", "early"]


def test_a_registration_without_topics_takes_the_place_and_leaves_the_rest_to_the_next() -> None:
    story = Story()
    story.register(A, 0, 1)
    story.register(B, 0, 2, topics=())
    assert (story.addresses(), story.route()) == ({0: B}, ["g"])
    story.register(B, 0, 2, topics=("new",))
    assert story.route("new") == ["g"]


def test_unregister() -> None:
    story = Story()
    story.register(A, 0)
    story.register(B, 1)
    assert story.table.unregister("g", A)
    assert not story.table.unregister("g", A)
    assert not story.table.unregister("nobody", A)
    assert (story.addresses(), story.route()) == ({1: B}, ["g"])
    assert story.table.unregister("g", B)
    assert (story.table.groups(), sorted(story.table.topic_names), story.route()) == ([], [], None)


def test_a_group_belongs_to_one_cluster() -> None:
    story = Story()
    story.register(A, 0)
    outcome = done(story.table.register(0, 0, Registration("d", "g", 0, B, "", TopicTableVersion(), {})))
    assert "cluster c, not d" in outcome.refusal
    assert story.addresses() == {0: A}


def test_delete_topic() -> None:
    story = Story()
    story.register(A, 0, group="g", cluster="c")
    story.register(B, 0, group="h", cluster="d")
    story.table.delete_topic("T", "c")
    assert story.route() == ["h"]
    story.table.delete_topic("T")
    story.table.delete_topic("T")
    assert story.route() is None


def test_a_topic_on_several_groups_is_sorted() -> None:
    story = Story()
    for group, address in (("z", A), ("a", B), ("m", C)):
        story.register(address, 0, group=group)
    assert story.route() == ["a", "m", "z"]


def test_lite_heartbeats_shorten_the_bound_to_five_seconds() -> None:
    story = Story()
    story.register(A, 0)
    story.register(B, 1)
    beats = (("g", A), ("g", B))
    story.pass_ms(300_000, beats)
    assert story.addresses() == {0: A, 1: B}
    story.pass_ms(4_000, beats[1:])
    assert story.addresses() == {0: A, 1: B}
    story.pass_ms(1_500, beats[1:])
    assert story.addresses() == {1: B}
    assert story.events.named("broker_expired")[-1]["address"] == A
    assert not story.table.heartbeat(story.now_ms, "g", A)


def test_a_broker_that_only_registers_has_two_minutes_or_what_it_asked_for() -> None:
    story = Story()
    story.register(A, 0)
    story.register(B, 1, timeout_ms=10_000)
    story.pass_ms(9_500)
    assert story.addresses() == {0: A, 1: B}
    story.pass_ms(1_000)
    assert story.addresses() == {0: A}
    story.pass_ms(REGISTER_MS)
    assert story.addresses() == {}


def test_the_end_of_a_connection() -> None:
    story = Story()
    story.register(A, 0, session=1)
    story.register(B, 1, session=2)
    story.register(C, 2, session=3)
    story.register(C, 2, session=4)
    story.table.heartbeat(story.now_ms, "g", A)
    for session in (1, 2, 3):
        story.table.session_closed(session)
    # A sends lite heartbeats, C has a newer connection
    assert story.addresses() == {0: A, 2: C}


def lite_groups(story: Story, count: int) -> tuple[tuple[str, str], ...]:
    beats = tuple((f"g{n}", f"10.0.1.{n}:1") for n in range(count))
    for group, address in beats:
        story.register(address, 0, group=group)
    story.pass_ms(2_000, beats)
    return beats


def test_who_loses_most_heartbeats_at_once_suspects_itself() -> None:
    """Feature A14: routes are kept and the state is flagged, until heartbeats are back."""
    story = Story()
    beats = lite_groups(story, 10)
    story.pass_ms(20_000, beats[:3])
    assert (story.table.suspects_itself, story.table.broker_count) == (True, 10)
    story.pass_ms(2_000, beats)
    assert (story.table.suspects_itself, story.table.broker_count) == (False, 10)
    names = [name for name, _ in story.events.events if name.startswith("name_server")]
    assert names == ["name_server_suspects_itself", "name_server_trusts_itself"]


def test_heartbeats_that_stop_within_one_second_of_each_other_are_one_loss() -> None:
    story = Story()
    beats = lite_groups(story, 10)
    story.pass_ms(1_000, beats[5:])
    story.pass_ms(10_000)
    assert (story.table.suspects_itself, story.table.broker_count) == (True, 10)


def test_suspicion_keeps_routes_no_longer_than_a_registration_lasts() -> None:
    story = Story()
    lite_groups(story, 5)
    story.pass_ms(REGISTER_MS - 2_000)
    assert (story.table.broker_count, story.table.suspects_itself) == (5, True)
    story.pass_ms(3_000)
    assert (story.table.broker_count, story.table.suspects_itself) == (0, False)


def test_a_few_deaths_are_deaths() -> None:
    story = Story()
    beats = lite_groups(story, 10)
    story.pass_ms(7_000, beats[4:])
    assert (story.table.suspects_itself, story.table.broker_count) == (False, 6)


def test_two_brokers_may_die_at_once() -> None:
    story = Story()
    lite_groups(story, 2)
    story.pass_ms(7_000)
    assert story.table.broker_count == 0


def test_a_pause_of_the_name_server_is_nobodys_silence() -> None:
    story = Story()
    beats = lite_groups(story, 2)
    story.now_ms += 60_000
    story.table.scan(story.now_ms)
    assert story.table.broker_count == 2
    assert story.events.named("name_server_paused")[0]["paused_ms"] == 60_000
    story.pass_ms(4_000, beats[:1])
    story.pass_ms(2_000, beats[:1])
    assert story.table.broker_count == 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "heartbeat", "close", "scan"]),
        st.sampled_from([A, B, C]),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_laws(actions: list[tuple[str, str, int, int]]) -> None:
    """No address has two ids, no topic lies on a group that is gone, and the master's epoch never falls while its place
    is occupied without a break."""
    story = Story()
    master: tuple[str, int] | None = None
    for kind, address, broker_id, epoch in actions:
        if kind == "register":
            ignored = story.register(address, broker_id, epoch, counter=epoch, session=epoch)[2]
            if broker_id == 0 and not ignored:
                assert master is None or master[0] == address or epoch >= master[1]
                master = (address, epoch)
        elif kind == "unregister":
            story.table.unregister("g", address)
        elif kind == "heartbeat":
            story.table.heartbeat(story.now_ms, "g", address)
        elif kind == "close":
            story.table.session_closed(epoch)
        else:
            story.pass_ms(epoch * 1_000)
        addresses = story.addresses()
        assert len(set(addresses.values())) == len(addresses)
        assert (story.route() is None) == (not addresses)
        if 0 not in addresses:
            master = None
        elif master is not None and addresses[0] == master[0] and kind == "register" and address == master[0]:
            master = (address, epoch)


# --- what the controllers tell -------------------------------------------------------------------------------------


def pair() -> Story:
    """Master A of epoch 1 with its slave B, id 2."""
    story = Story()
    story.register(A, 0, 1)
    story.register(B, 2, 1)
    return story


def test_an_election_moves_the_route_before_any_broker_speaks() -> None:
    story = pair()
    story.table.elected("g", B, 2)
    assert story.addresses() == {0: B}
    assert story.route() == ["g"]
    assert story.events.named("route_changed")[-1] == {"broker_name": "g", "addresses": {"0": B}}


def test_the_old_master_is_ignored_from_then_on_and_comes_back_as_a_slave() -> None:
    story = pair()
    story.table.elected("g", B, 2)
    assert story.register(A, 0, 1) == (B, f"{B}2", True)
    assert story.addresses() == {0: B}
    story.register(B, 0, 2)
    story.register(A, 1, 2)
    assert story.addresses() == {0: B, 1: A}


def test_news_that_are_old_change_nothing() -> None:
    story = pair()
    story.table.elected("g", B, 3)
    for address, epoch in ((A, 2), (A, 3), ("", 4)):
        story.table.elected("g", address, epoch)
        assert story.addresses() == {0: B}


def test_a_broker_that_was_faster_than_the_controllers_stays() -> None:
    story = pair()
    story.register(B, 0, 2)
    before = story.addresses()
    story.table.elected("g", B, 2)
    assert story.addresses() == before
    story.register(C, 0, 4)
    story.table.elected("g", B, 3)
    assert story.addresses()[0] == C


def test_a_group_without_a_master_keeps_its_route() -> None:
    """Clients that still reach the old one may go on (ruling 5)."""
    story = pair()
    story.table.elected("g", "", 2)
    assert story.addresses() == {0: A, 2: B}


def test_a_master_that_is_not_registered_leaves_the_group_without_one_until_it_is() -> None:
    story = pair()
    story.table.elected("g", C, 2)
    assert story.addresses() == {2: B}
    story.register(C, 0, 2)
    assert story.addresses() == {0: C, 2: B}


def test_an_election_heard_before_the_first_registration_fences_an_older_master() -> None:
    story = Story()
    story.table.elected("g", B, 5)
    assert story.register(A, 0, 4)[2]
    assert not story.register(B, 0, 5)[2]
    assert story.addresses() == {0: B}


def test_a_group_that_is_made_anew_under_new_controllers_is_routed() -> None:
    """Its epochs begin at 1 again, and the name server has heard of later ones."""
    story = Story()
    story.table.elected("g", A, 57)
    story.register(A, 0, 57)
    story.table.unregister("g", A)
    assert story.register(B, 0, 1)[2], "so far it may be an old master"
    story.table.elected("g", B, 1)
    assert not story.register(B, 0, 1)[2]
    assert story.addresses() == {0: B}
    assert story.events.named("epochs_begin_anew") == [{"broker_name": "g", "epoch": 1, "known_epoch": 57}]


def test_what_a_former_life_of_the_master_sent_does_not_lower_its_epoch() -> None:
    """Else a master between the two epochs could take its place. By a newer connection a lower epoch is its own."""
    story = Story()
    story.register(A, 0, 3, session=1)
    story.register(B, 0, 4, session=2)
    story.register(A, 0, 5, session=3)
    assert story.register(A, 0, 3, session=1)[2]
    assert story.register(B, 0, 4, session=2)[2]
    assert story.addresses() == {0: A}
    assert not story.register(A, 0, 1, session=4)[2]
    assert not story.register(B, 0, 2, session=5)[2]
    assert story.addresses() == {0: B}


def test_the_last_broker_that_goes_takes_the_group_with_it() -> None:
    story = Story()
    story.register(A, 0, 1)
    story.table.elected("g", B, 2)
    assert (story.addresses(), story.route()) == ({}, None)


def test_write_permission_is_wiped_and_added() -> None:
    story = Story()
    story.register(A, 0, group="g")
    story.register(B, 0, group="h")

    def perms() -> dict[str, int]:
        found = story.table.route("T")
        assert found is not None
        return {name: data.perm for name, data in found[1].items()}

    assert done(story.table.set_write_permission("g", False)) == 1
    assert perms() == {"g": 4, "h": 6}
    story.register(A, 0, group="g")
    assert perms() == {"g": 4, "h": 6}, "an unchanged table leaves it"
    assert done(story.table.set_write_permission("g", True)) == 1
    assert perms() == {"g": 6, "h": 6}
    assert done(story.table.set_write_permission("nobody", False)) == 0


def test_topics_of_a_cluster() -> None:
    story = Story()
    story.register(A, 0, group="g", cluster="c", topics=("T", "S"))
    story.register(B, 0, group="h", cluster="d", topics=("T",))
    assert done(story.table.topics_of_cluster("c")) == ["S", "T"]
    assert done(story.table.topics_of_cluster("d")) == ["T"]
    assert done(story.table.topics_of_cluster("none")) == []


def test_the_routes_are_bounded_and_a_full_table_takes_what_it_has() -> None:
    story = Story()
    story.table.max_route_count = 5
    story.register(A, 0, topics=("T", "U", "V"))
    story.register(B, 0, group="h", topics=("T", "U"))
    version = TopicTableVersion(2, 1, 1)
    topics = dict.fromkeys(("T", "W"), TOPIC)
    refused = done(story.table.register(1, 0, Registration("c", "h", 0, B, f"{B}2", version, topics, False, None)))
    assert "maxRouteCount" in refused.refusal and story.route("W") is None
    foreign = Registration("c", "i", 0, "9.9.9.9:9", "9.9.9.9:10", version, topics, False, None)
    assert "maxRouteCount" in done(story.table.register(1, 0, foreign)).refusal and story.addresses("i") == {}
    story.register(A, 0, topics=("T", "U", "V"), counter=3)
    story.table.delete_topic("V")
    story.register(B, 0, group="h", topics=("T", "W"), counter=4)
    assert story.route("W") == ["h"]
    story.table.unregister("g", A)
    story.register(A, 0, topics=("X", "Y"), counter=5)
    assert story.route("Y") == ["g"]


def test_the_end_of_a_connection_leaves_nothing_of_what_it_registered() -> None:
    story = Story()
    story.register(A, 0, topics=("T", "U"))
    names = [tuple(f"foreign-{group}-{topic}" for topic in range(50)) for group in range(20)]
    for number, topics in enumerate(names):
        story.register(f"9.9.9.9:{number}", 0, group=f"foreign-{number}", topics=(*topics, "T"), session=7)
    assert story.table.broker_count == 21
    story.table.session_closed(7)
    assert sorted(story.table.topic_names) == ["T", "U"] and story.route("T") == ["g"]
    assert story.table.removed_count == 20 * 51
    story.table.compact()
    assert story.table.removed_count == 0 and sorted(story.table.topic_names) == ["T", "U"]


def test_a_topic_that_was_deleted_is_not_forgotten_twice() -> None:
    story = Story()
    story.register(A, 0, topics=("T", "U"))
    story.table.delete_topic("T")
    story.table.unregister("g", A)
    assert story.table.removed_count == 1 and sorted(story.table.topic_names) == []


def test_a_newer_table_takes_the_place_of_one_that_is_half_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_info, "RUN_COUNT", 2)
    story = Story()

    def table(counter: int, *topics: str, perm: int = 6, digest: str = "") -> Generator[None, None, Any]:
        version, rows = TopicTableVersion(counter, 1, 1), dict.fromkeys(topics, QueueData(4, 4, perm))
        return story.table.register(0, 0, Registration("c", "g", 0, A, "", version, rows, digest=digest))

    def perms() -> dict[str, int]:
        found = {topic: story.table.route(topic) for topic in "TUVWX"}
        return {topic: route[1]["g"].perm for topic, route in found.items() if route is not None}

    older = table(1, "T", "U", "V", "W", perm=4, digest="1")
    next(older)
    done(table(2, "T", "V", digest="2"))
    done(older)
    assert perms() == {"T": 6, "U": 4, "V": 6}, "the older one went no further"
    assert story.table.topics_digest("g") == "", "what the older one did not bring may be missing"
    done(table(2, "T", "V", "X", digest="2"))
    assert "X" in perms() and story.table.topics_digest("g") == "2"
    cut_off = table(3, "T", "U", "V", "W", digest="3")
    next(cut_off)
    del cut_off  # its connection is gone
    done(table(3, "T", "U", "V", "W", digest="3"))
    assert set(perms()) == set("TUVWX")
    touched = table(4, "T", "U", "V", "W", perm=2, digest="4")
    next(touched)
    story.table.delete_topic("T")
    done(touched)
    assert "T" not in perms() and story.table.topics_digest("g") == ""


NAMES, TOPICS = ("g", "h"), tuple("TUVWXY")
TABLES = st.lists(st.sampled_from(TOPICS), min_size=1, unique=True)


@given(st.data())
def test_tables_that_come_and_go_in_any_order_of_steps(data: st.DataObject) -> None:
    """Registrations are under way while groups go and topics are deleted; at the end all tell their tables anew."""
    table = RouteTable(RecordingTracer(), lite_timeout_ms=LITE_MS, register_timeout_ms=REGISTER_MS)
    under_way: list[Generator[None, None, Any]] = []

    def register(counter: int, name: str, topics: list[str], broker_id: int = 0) -> Generator[None, None, Any]:
        address, version = f"{name}{broker_id}:1", TopicTableVersion(counter, 1, 1)
        rows = dict.fromkeys(topics, TOPIC)
        digest = f"{counter}" if counter % 2 else ""
        request = Registration("c", name, broker_id, address, "", version, rows, digest=digest)
        return table.register(0, counter, request)

    def step() -> None:
        work = data.draw(st.sampled_from(under_way))
        if next(work, under_way) is not None:
            under_way.remove(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route_info, "RUN_COUNT", 2)
        for counter in range(data.draw(st.integers(1, 12))):
            name = data.draw(st.sampled_from(NAMES))
            match data.draw(st.sampled_from(["register", "step", "leave", "close", "delete", "forget", "cut off"])):
                case "register":
                    under_way.append(register(counter, name, data.draw(TABLES), data.draw(st.integers(0, 1))))
                    step()
                case "step" if under_way:
                    step()
                case "cut off" if under_way:
                    under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
                case "leave":
                    table.unregister(name, f"{name}{data.draw(st.integers(0, 1))}:1")
                case "close":
                    table.session_closed(data.draw(st.integers(0, counter)))
                case "delete":
                    table.delete_topic(data.draw(st.sampled_from(TOPICS)))
                case "forget":
                    table.drop_removed_topics()
            assert all(table.route(topic) is None or table.route(topic)[0] for topic in TOPICS)  # type: ignore[index]
        while under_way:
            step()
        for counter in (101, 103):  # a table that was cut off makes that the next one is read once more
            for name in NAMES:
                done(register(counter, name, list(TOPICS)))
        while table.drop_removed_topics():
            pass
        table.max_route_count = len(NAMES) * len(TOPICS)
        found = {topic: table.route(topic) for topic in TOPICS}
        assert all(route is not None and tuple(route[1]) == NAMES for route in found.values())
        assert not any(done(register(105, name, ["Z"])).refusal == "" for name in NAMES), "the routes are counted"
        for name in NAMES:
            for broker_id in range(2):
                table.unregister(name, f"{name}{broker_id}:1")
        while table.drop_removed_topics():
            pass
        assert (table.topic_names, table.broker_count) == ([], 0)


def test_brokers_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_info, "MAX_BROKER_COUNT", 5)
    monkeypatch.setattr(route_info, "MAX_ADDRESS_COUNT", 3)
    story = Story()

    def refusal(name: str, broker_id: int, address: str, epoch: int = 1) -> str:
        version = TopicTableVersion(1, epoch, 1)
        refusal: str = done(
            story.table.register(0, 0, Registration("c", name, broker_id, address, "", version, {}))
        ).refusal
        return refusal

    assert [refusal("g", number, f"a:{number}") for number in range(3)] == [""] * 3
    assert "broker group g has 3 brokers and takes no more" in refusal("g", 3, "a:3")
    assert refusal("g", 2, "b:2", epoch=2) == refusal("g", 1, "b:2", epoch=2) == "", "who takes a place needs no room"
    assert refusal("h", 0, "h:1") == refusal("i", 0, "i:1") == refusal("j", 0, "j:1") == ""
    assert story.table.broker_count == 5
    assert "knows 5 brokers and takes no more" in refusal("k", 0, "k:1")
    assert refusal("h", 0, "h:1") == ""
    story.table.unregister("h", "h:1")
    assert refusal("k", 0, "k:1") == ""


def test_claims_that_are_ignored_leave_nothing_behind() -> None:
    story = Story()
    story.table.elected("g", A, 5)
    assert story.register(B, 0, 4)[2] and story.table.groups() == [], "a group of no brokers"
    assert story.register(B, 0, -4)[2]
    story.register(A, 0, 5)
    for number in range(2 * route_info.MAX_REFUSED_COUNT):
        assert story.register(f"9.9.9.9:{number}", 0, 4)[2]
    ignored = [fields["address"] for name, fields in story.events.events if name == "registration_ignored"]
    assert len(ignored) - 2 == route_info.MAX_REFUSED_COUNT == len(story.table._groups["g"].refused)


ATTACK = """
from nameserver.route_info import RouteTable
from nameserver.server import release_memory
import os
from rmqha.wire.bodies import QueueData, Registration, TopicTableVersion
from tests.support.memory import anonymous_rss_bytes
from tests.support.steps import done
from tests.support.tracer import RecordingTracer

def register(session):
    for group in range(20):
        name = f"g-{session}-{group}"
        topics = {f"{name}-{n}": QueueData(4, 4, 6, n % 2) for n in range(500)}
        registration = Registration("c", name, 0, f"{name}:1", "", TopicTableVersion(1, 1, 1), topics)
        done(table.register(0, session, registration))

table = RouteTable(RecordingTracer(), lite_timeout_ms=5000, register_timeout_ms=120_000)
before = anonymous_rss_bytes(os.getpid())
for session in range(15):
    register(session)
full = anonymous_rss_bytes(os.getpid())
for session in range(15):
    table.session_closed(session)
assert release_memory(table) and not release_memory(table)
print(full - before, anonymous_rss_bytes(os.getpid()) - before)
"""


def test_a_route_costs_little_memory_and_gives_it_back() -> None:
    """In a process of its own, whose trace keeps events that stand between the routes."""
    run = subprocess.run([sys.executable, "-c", ATTACK], capture_output=True, text=True, check=True, timeout=HANG_S)
    taken_bytes, left_bytes = map(int, run.stdout.split())
    assert taken_bytes < 150_000 * 250
    assert left_bytes < taken_bytes
