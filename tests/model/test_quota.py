"""A quota lets through what it says, however the requests come, and never stops for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model import quota
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.quota import Limit, QuotaLimits, Quotas, parse_overrides

REQUESTS = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5000)), max_size=200)
"""How long after the one before, and how large."""


@given(st.integers(1, 1000), REQUESTS)
def test_requests_in_any_time_are_bounded(per_second: int, requests: list[tuple[int, int]]) -> None:
    quotas, now_ms = Quotas(QuotaLimits(account=Limit(per_second))), 0
    passed: list[int] = []
    for pause_ms, size_bytes in requests:
        now_ms += pause_ms
        if not quotas.refusal("a", "1.1.1.1", size_bytes, now_ms):
            passed.append(now_ms)
    for first, begin_ms in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= per_second * (1 + (passed[last] - begin_ms) / 1000)


@given(st.integers(1, 10_000), REQUESTS)
def test_bytes_in_any_time_are_bounded(per_second: int, requests: list[tuple[int, int]]) -> None:
    quotas, now_ms = Quotas(QuotaLimits(address=Limit(0, per_second))), 0
    passed: list[tuple[int, int]] = []
    for pause_ms, size_bytes in requests:
        now_ms += pause_ms
        if not quotas.refusal("", "1.1.1.1", size_bytes, now_ms):
            passed.append((now_ms, size_bytes))
    for first, (begin_ms, _) in enumerate(passed):
        total = 0
        for at_ms, size_bytes in passed[first:]:
            assert total <= per_second * (1 + (at_ms - begin_ms) / 1000), "and one request more"
            total += size_bytes


@given(st.integers(1, 10_000), st.integers(0, 10_000_000))
def test_who_waits_long_enough_is_let_through(per_second: int, size_bytes: int) -> None:
    quotas = Quotas(QuotaLimits(Limit(per_second, per_second)))
    assert quotas.refusal("a", "h", size_bytes, 0) == ""
    wait_ms = 1000 * (size_bytes // per_second + 2)
    assert quotas.refusal("a", "h", size_bytes, wait_ms) == ""


@given(st.integers(1, 10_000), st.lists(st.integers(0, 10_000_000), min_size=1, max_size=50), st.integers(1, 3000))
def test_who_was_refused_is_read_again_when_there_is_room(per_second: int, sizes: list[int], spent: int) -> None:
    """The throttle times of one quota follow each other, and end within a second."""
    quotas = Quotas(QuotaLimits(Limit(0, per_second)))
    assert not quotas.refusal("a", "h", per_second + spent, 0)
    exact_ms = 1000 * (spent + 1) / per_second
    for size_bytes in sizes:
        assert quotas.refusal("a", "h", size_bytes, 0)
        throttle_ms = quotas.throttle_ms("a", "h", size_bytes, 0)
        assert min(exact_ms - len(sizes), 1000) <= throttle_ms <= min(exact_ms + 1, 1000)
        exact_ms += 1000 * size_bytes / per_second
    assert quotas.refusal("a", "h", 1, min(1000, math.ceil(1000 * spent / per_second)) - 1)
    assert quotas.throttle_ms("b", "other", 1, 0) == 0, "who is within its quota is read"


def test_each_has_a_quota_of_its_own_and_a_refusal_costs_nothing() -> None:
    quotas = Quotas(QuotaLimits(Limit(2), Limit(3), {"big": Limit(0)}, {"10.0.0.9": Limit(1)}))
    assert [quotas.refusal("a", "h", 1, 0) for _ in range(2)] == ["", ""]
    assert quotas.refusal("a", "h", 1, 0) == "account a is over its quota of requests a second; try again later"
    assert quotas.refusal("b", "h", 1, 0) == ""
    assert quotas.refusal("c", "h", 1, 0) == "address h is over its quota of requests a second; try again later"
    assert quotas.refusal("c", "10.0.0.9", 1, 0) == ""
    assert quotas.refusal("c", "10.0.0.9", 1, 0).startswith("address 10.0.0.9 is over")
    quotas.configure(QuotaLimits(Limit(1), by_account={"big": Limit(0)}))
    assert not any(quotas.refusal("big", "h", 1, 0) for _ in range(100))


def test_no_more_are_remembered_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_BUCKET_COUNT", 3)
    quotas = Quotas(QuotaLimits(address=Limit(1)))
    for number in range(10):
        assert quotas.refusal("", f"h{number}", 1, 0) == ""
    assert quotas.refusal("", "h9", 1, 0) and not quotas.refusal("", "h0", 1, 0)
    assert len(quotas._addresses) == 3


def test_keys() -> None:
    assert not BrokerConfig().quotas.is_set
    given = {
        "quota.account.requestsPerSecond": "100",
        "quota.address.bytesPerSecond": "5",
        "quota.overrides": "account:orders=500/1048576; address:::1=0/0",
    }
    limits = BrokerConfig.from_properties(given, "x").quotas
    assert limits.is_set and limits.account == Limit(100) and limits.address == Limit(0, 5)
    assert (limits.by_account, limits.by_address) == ({"orders": Limit(500, 1048576)}, {"::1": Limit()})
    changed, later = BrokerConfig().updated(given, "request 25")
    assert changed.quotas == limits and not later
    with pytest.raises(ConfigError, match="must lie between"):
        BrokerConfig.from_properties({"quota.account.requestsPerSecond": "-1"}, "x")


@pytest.mark.parametrize(
    "text", ["orders=1/1", "account:orders", "account:=1/1", "account:a=1", "account:a=-1/0", "b:a=1/1"]
)
def test_overrides_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="must be account:NAME=REQUESTS/BYTES"):
        parse_overrides(text, "x")
