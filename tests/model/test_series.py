"""Histograms and sheets."""

from __future__ import annotations

import pytest

from rmqha.model.series import Histogram, MetricFamilies, MetricKind, Series

SIZE = Series("size", MetricKind.HISTOGRAM, "Sizes", ("topic",))


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 1.1, 2.5, 2.6):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    families = MetricFamilies({"node": "a"})
    families.put_histogram(SIZE, histogram, "t")
    shown = [(item.suffix, item.labels.get("le"), item.value) for item in families.samples[SIZE]]
    assert shown == [
        ("_bucket", "1.0", 2),
        ("_bucket", "2.5", 4),
        ("_bucket", "+Inf", 5),
        ("_sum", None, pytest.approx(7.7)),
        ("_count", None, 5),
    ]
    assert all(item.labels["node"] == "a" and item.labels["topic"] == "t" for item in families.samples[SIZE])


def test_labels_must_be_those_of_the_series() -> None:
    with pytest.raises(ValueError, match="zip"):
        MetricFamilies({}).put(SIZE, 1)


def test_counters_are_called_so() -> None:
    with pytest.raises(AssertionError, match="messages"):
        Series("messages", MetricKind.COUNTER, "Messages")
