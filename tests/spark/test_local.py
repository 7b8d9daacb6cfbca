"""Spark on this machine: what it is started with."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from rmqha.spark.local import MAX_SOCKET_DIRECTORY_BYTES, s3a_settings, worker_sockets

ENABLED = "spark.python.unix.domain.socket.enabled"


def test_a_long_temporary_directory_has_no_room_for_sockets() -> None:
    """Spark ended with a traceback: AF_UNIX path too long."""
    longest = Path("/" + "d" * (MAX_SOCKET_DIRECTORY_BYTES - 1))
    assert worker_sockets(longest)[ENABLED] == "true"
    assert worker_sockets(Path(f"{longest}d")) == {ENABLED: "false"}


def test_the_longest_one_has() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # whatever TMPDIR says
        directory = Path(short) / ("d" * (MAX_SOCKET_DIRECTORY_BYTES - len(short) - 1))
        directory.mkdir()
        assert worker_sockets(directory)[ENABLED] == "true"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/.{uuid4()}.sock")


@pytest.mark.spark
def test_of_a_sessions_settings_those_of_s3a_are_taken(spark: SparkSession) -> None:
    assert s3a_settings(spark.sparkContext) == {"fs.s3a.endpoint.region": "nowhere"}
    assert s3a_settings(None) == {}
