"""One Spark session for all tests of this folder: a start takes some ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rmqha.spark import session


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.hadoop.fs.s3a.endpoint.region": "nowhere"}
    started = session("tests", cores="2", settings=settings)
    yield started
    started.stop()
