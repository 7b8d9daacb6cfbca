"""Members that come, go and are gone: what no golden script shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import RemoteProtocolError
from rmqha.raft import election
from rmqha.raft.config import RaftConfig
from rmqha.raft.quorum import Configuration, id_of, identity, incarnation_of
from tests.raft.cluster import Cluster, Host, Options
from tests.raft.test_mutations import next_leader

names = st.text(st.characters(codec="utf-8", exclude_characters="#"), min_size=1, max_size=8)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    ids = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    members = [identity(node_id, draw(st.sampled_from(("1", "0f", "abc")))) for node_id in ids]
    voter_count = draw(st.integers(1, len(members)))
    learners = sorted(members[voter_count:])
    joining = [member for member in learners if draw(st.booleans())]
    addresses = sorted((member, "10.0.0.1:9878") for member in members if draw(st.booleans()))
    return Configuration(tuple(sorted(members[:voter_count])), tuple(learners), tuple(joining), tuple(addresses))


@given(configurations())
def test_a_configuration_survives_its_encoding(configuration: Configuration) -> None:
    assert Configuration.decode(configuration.encode()) == configuration


@given(st.binary(max_size=64))
def test_bytes_that_are_no_configuration_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="configuration cannot be read"):
        Configuration.decode(data)


@given(configurations(), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_gives_a_sound_configuration_or_none(
    configuration: Configuration, place: int, mask: int
) -> None:
    data = bytearray(configuration.encode())
    data[place % len(data)] ^= mask
    try:
        found = Configuration.decode(bytes(data))
    except RemoteProtocolError:
        return
    assert found.voters and Configuration.decode(found.encode()) == found


@given(configurations())
def test_neighbouring_configurations_share_a_voter_of_every_two_majorities(configuration: Configuration) -> None:
    neighbours = [configuration.with_learner("new#1", "", joining=True).promoted("new#1")]
    neighbours += [configuration.without(voter) for voter in configuration.voters if len(configuration.voters) > 1]
    for other in neighbours:
        everyone = {*configuration.voters, *other.voters}
        assert configuration.majority + other.majority > len(everyone)


def test_an_identity_is_id_and_incarnation() -> None:
    assert (id_of("n1#0f"), incarnation_of("n1#0f"), id_of("n1"), incarnation_of("n1")) == ("n1", "0f", "n1", "")


def test_a_list_of_ids_needs_the_vote_of_all_and_becomes_who_voted() -> None:
    static = Configuration.static({"b": "10.0.0.2:1", "a": "10.0.0.1:1"})
    assert not static.won({"a#1": True}) and static.lost({"b#2": False})
    assert static.won({"a#1": True, "b#2": True})
    formed = static.formed_by(["a#1", "b#2", "b#3"])
    assert formed.voters == ("a#1", "b#2")
    assert formed.address_of("b#2") == "10.0.0.2:1" and not formed.knows("b#3")


def removed_unheard() -> tuple[Cluster, Host, Host]:
    """(cluster, leader, a voter that was cut off when it was removed and is back now, with clients at work)."""
    cluster = Cluster(5, Options(node_count=4, config=RaftConfig()))
    for host in cluster.hosts.values():
        cluster.start(host)
    leader = cluster.hosts[next_leader(cluster, ())]
    cluster.run(300)
    removed = next(host for host in cluster.hosts.values() if host is not leader)
    others = [name for name in cluster.names if name != removed.name]
    cluster.network.partition([removed.name], others)
    assert cluster.remove(leader, removed.name)
    cluster.run(3000)
    cluster.network.heal()
    assert removed.node is not None and removed.node.configuration.is_voter(removed.identity)
    return cluster, leader, removed


def disturbance(cluster: Cluster, leader: Host) -> int:
    """Moments of ten seconds at which the leader did not hold its lease."""
    without_lease = 0
    for number in range(2000):
        cluster.run(5)
        assert leader.node is not None
        if not leader.node.lease_valid(leader.clock.now_ms()):
            without_lease += 1
        elif number % 10 == 0:
            cluster.write(leader, b"%d" % number)
    return without_lease


def test_a_removed_voter_that_has_not_heard_of_it_disturbs_nobody() -> None:
    cluster, leader, removed = removed_unheard()
    assert leader.node is not None and removed.node is not None
    term = leader.node.term
    assert disturbance(cluster, leader) == 0
    assert (leader.node.is_leader, leader.node.term, removed.node.term) == (True, term, term)


def test_it_would_without_pre_vote_and_stickiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: what pre-vote and stickiness are for."""
    cluster, leader, _ = removed_unheard()
    monkeypatch.setattr(election, "is_sticky", lambda core, now_ms: False)
    monkeypatch.setattr(election, "timed_out", election.campaign)
    assert disturbance(cluster, leader) > 0


def test_a_new_node_catches_up_by_snapshot_while_clients_write() -> None:
    cluster = Cluster(6, Options(node_count=3, spare_count=1, config=RaftConfig(snapshot_chunk_bytes=16)))
    for host in cluster.hosts.values():
        cluster.start(host)
    leader, new = cluster.hosts[next_leader(cluster, ())], cluster.hosts["s1"]
    cluster.run(300)
    for number in range(50):
        cluster.write(leader, b"%d" % number)
        cluster.run(10)
    cluster.compact(leader)
    assert cluster.add(leader, new)
    for number in range(100):
        cluster.write(leader, b"while %d" % number)
        cluster.run(10)
    cluster.run(500)
    assert leader.node is not None and leader.node.configuration.is_voter(new.identity)
    assert new.node is not None and new.node.snapshot_index >= 50
    assert new.application.state == leader.application.state
