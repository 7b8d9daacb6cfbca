from __future__ import annotations

import pytest

from rmqha.broker.replication.controller_route import ControllerRoute, parse_addresses
from rmqha.model.error import ConfigError


def test_parse_addresses() -> None:
    assert parse_addresses("a:1; b:2,a:1;", "controllerAddr") == ["a:1", "b:2"]
    for wrong in ("", ";", "a", "a:b", "a:0"):
        with pytest.raises(ConfigError, match="controllerAddr"):
            parse_addresses(wrong, "controllerAddr")


def test_turns_to_the_next_until_one_leads() -> None:
    route = ControllerRoute(["a:1", "b:2", "c:3"])
    assert route.target == "a:1"
    route.failed("a:1")
    assert route.target == "b:2"
    route.redirected("b:2", "c:3")
    assert route.target == "c:3"
    route.answered("c:3")
    assert route.leader == route.target == "c:3"


def test_a_dead_leader_is_forgotten() -> None:
    route = ControllerRoute(["a:1", "b:2"])
    route.redirected("a:1", "x:9")
    route.failed("x:9")
    assert route.leader == "" and route.target == "b:2"


def test_a_controller_that_knows_no_leader_or_names_itself() -> None:
    route = ControllerRoute(["a:1", "b:2"])
    route.redirected("a:1", "")
    assert route.target == "b:2"
    route.redirected("b:2", "b:2")
    assert route.target == "a:1"


def test_everyone_is_asked_within_a_call() -> None:
    route = ControllerRoute(["a:1", "b:2", "c:3"])
    asked = set()
    for _ in range(route.max_attempts):
        asked.add(route.target)
        route.failed(route.target)
    assert asked == {"a:1", "b:2", "c:3"}


def test_one_slow_controller_does_not_use_up_the_time() -> None:
    assert ControllerRoute(["a:1"]).attempt_timeout_ms(1500) == 1500
    route = ControllerRoute(["a:1", "b:2"])
    assert route.attempt_timeout_ms(1500) == 750
    assert route.attempt_timeout_ms(400) == 300
    assert route.attempt_timeout_ms(100) == 100


def test_other_addresses_are_asked_and_a_known_leader_first() -> None:
    route = ControllerRoute(["a:1", "b:1", "c:1"])
    route.failed("a:1")
    route.failed("b:1")
    route.answered("c:1")
    route.follow(["d:1"])
    assert route.target == "c:1"
    route.failed("c:1")
    assert route.target == "d:1" and route.max_attempts == 3
