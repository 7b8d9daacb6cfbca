from __future__ import annotations

from rmqha.ha.disk_health import DiskHealth


def test_a_write_that_hangs_is_a_problem_until_one_ends_well() -> None:
    health = DiskHealth(1000)
    assert health.problem(0) == ""
    health.begun(100)
    assert health.problem(1099) == ""
    assert health.problem(1100) == "a small write has not ended for 1000 ms"
    health.ended(1500)
    assert (health.problem(1500), health.last_ms) == ("", 1400)


def test_a_write_that_fails_is_a_problem_until_one_ends_well() -> None:
    health = DiskHealth(1000)
    health.begun(0)
    health.ended(5, "/d/rmqha.probe: Input/output error")
    assert health.problem(900) == "/d/rmqha.probe: Input/output error"
    assert health.last_ms is None
    health.begun(1000)
    assert health.problem(1001) != "", "the next one has not ended yet"
    health.ended(1002)
    assert health.problem(1002) == ""
