"""Where other controllers may be: who connects from elsewhere is no peer whose messages go first."""

from __future__ import annotations

from dataclasses import replace

from controller.config import ControllerConfig
from controller.quorum.peer_addresses import PeerAddresses
from tests.controller.harness import Cluster


def test_a_peer_connects_from_its_address() -> None:
    machine = Cluster(3).nodes["n0"].machine
    assert machine.may_have_peer_at("127.0.0.1")
    assert not machine.may_have_peer_at("10.0.0.9")
    assert machine.may_have_peer_at("127.0.0.11"), "all of loopback is this machine"


def test_of_a_group_known_by_names_any_host_may_be_one() -> None:
    cluster = Cluster(1)
    raft = cluster.nodes["n0"].machine._raft
    numbers = ControllerConfig(controller_dleger_peers="n0-127.0.0.1:9878;n1-[fd00::1]:9878")
    assert PeerAddresses(numbers, raft).may_be_at("fd00::1")
    assert not PeerAddresses(numbers, raft).may_be_at("10.0.0.9")
    names = replace(numbers, controller_dleger_peers="n0-127.0.0.1:9878;n1-ctl.example:9878")
    assert PeerAddresses(names, raft).may_be_at("10.0.0.9")
