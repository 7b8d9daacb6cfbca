"""Stores and archives on S3, against moto's server: by fsspec's options, and by Hadoop's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmqha.model.error import StoreError, UsageError
from rmqha.scan.storage import file_system, of_s3a, storage_of, use_options
from rmqha.spark.lake.archive import Archive, tables
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.lake.store_copy import CopyTarget, sync_copy
from rmqha.spark.options import ReadOptions
from rmqha.spark.source import CommitLogReader
from rmqha.spark.stream import CommitLogStreamReader
from tests.spark.lake.test_archive import expected, log
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack

MIB = 1024 * 1024


def rows_of(address: str, **options: str) -> list[str]:
    """The msgIds that tasks read."""
    parsed = ReadOptions.parse({"path": address, **options})
    reader = CommitLogReader(parsed, ["msgId"], "json")
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch["msgId"].to_pylist()]


KEYS = {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"}


class Sent:
    """Bytes of answers that a server has sent."""

    count = 0

    def counting(self, application: Any) -> Any:
        def counted(environ: Any, start_response: Any) -> Iterator[bytes]:
            for piece in application(environ, start_response):
                self.count += len(piece)
                yield piece

        return counted


@pytest.fixture(scope="module")
def sent() -> Sent:
    return Sent()


@pytest.fixture(scope="module")
def endpoint(sent: Sent) -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = sent.counting(server._server.app)
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


def upload(endpoint: str, root: Path, bucket: str, prefix: str) -> str:
    import boto3

    names = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}", **names)
    client.create_bucket(Bucket=bucket)
    for path in root.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=f"{prefix}/{path.relative_to(root)}", Body=path.read_bytes())
    client.close()
    return f"s3://{bucket}/{prefix}"


def hadoop(endpoint: str) -> dict[str, str]:
    return KEYS | {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.threads.max": "20",
    }


def test_a_store_is_read_by_hadoops_settings_and_by_fsspecs(tmp_path: Path, endpoint: str) -> None:
    golden = unpack("n0", tmp_path) / "n0"
    address = upload(endpoint, golden, "stores", "gold/broker-a")
    assert rows_of(address.replace("s3://", "s3a://"), **hadoop(endpoint)) == rows_of(str(golden))
    given = {"key": "k", "secret": "s", "endpoint_url": f"http://{endpoint}"}
    found = rows_of("s3://stores/gold/broker-*", storageOptions=json.dumps(given), topic="GoldOrder")
    assert len(found) == 100
    session = ReadOptions.parse({"path": address}, hadoop(endpoint))
    assert session.open()[0].broker_name == "gold-a"
    with pytest.raises((StoreError, UsageError)):
        ReadOptions.parse({"path": address, "storageOptions": json.dumps(given | {"endpoint_url": "http://[1"})}).open()


def test_an_archive_on_s3_goes_on_and_comes_back(tmp_path: Path, endpoint: str) -> None:
    log(tmp_path / "s", 30)
    address = upload(endpoint, tmp_path / "nothing", "lake", "x").replace("/x", "/messages")
    given = {"key": "k", "secret": "s", "endpoint_url": f"http://{endpoint}"}

    def run() -> int:
        return Archive(ArchiveFiles(address, given), [str(tmp_path / "s")], {}, batch_bytes=3000).run().row_count

    assert run() == 30
    log(tmp_path / "s", 40)
    assert run() == 10
    rows = [row for table in tables(ArchiveFiles(address, given)) for row in table.to_pylist()]
    assert [row["physicalOffset"] for row in rows] == [offset for offset, *_ in expected(tmp_path / "s")]


def test_a_copy_on_s3_is_made_refreshed_and_read(tmp_path: Path, endpoint: str) -> None:
    log(tmp_path / "s", 30)
    address = upload(endpoint, tmp_path / "nothing", "copies", "x").replace("/x", "/broker-a")
    given = {"key": "k", "secret": "s", "endpoint_url": f"http://{endpoint}"}
    for count in (30, 40):
        log(tmp_path / "s", count)
        sync_copy(str(tmp_path / "s"), CopyTarget(address, given))
        found = rows_of(address, storageOptions=json.dumps(given))
        assert found == rows_of(str(tmp_path / "s")) and len(found) == count


def test_a_trigger_of_a_stream_fetches_what_was_appended(tmp_path: Path, endpoint: str, sent: Sent) -> None:
    """Of a last file of 9.6 MB: each trigger's looks and rows together."""
    writer, number, address = LogWriter(tmp_path, 16 * MIB), 0, ""

    def append(count: int) -> str:
        nonlocal number
        for _ in range(count):
            writer.append(Message(queue_offset=number, body=bytes(100_000)))
            number += 1
        return upload(endpoint, writer.write(epochs="1\n0\n1-0\n"), "streams", "broker-a")

    address = append(100)
    given = {"key": "k", "secret": "s", "endpoint_url": f"http://{endpoint}"}
    options = ReadOptions.parse({"path": address, "storageOptions": json.dumps(given)})
    reader = CommitLogStreamReader(options, ["queueOffset", "body"], "json")
    place, rows = reader.initialOffset(), list[int]()

    def trigger() -> int:
        nonlocal place
        sent.count, end = 0, reader.latestOffset(place, ReadAllAvailable())
        parts = reader.partitions(place, end) if end != place else []
        rows.extend(n for part in parts for batch in reader.read(part) for n in batch["queueOffset"].to_pylist())
        place = end
        return sent.count

    assert trigger() > 9 * MIB
    for count in (1, 3):
        append(count)
        assert count * 100_000 < trigger() < 2 * count * 100_000 + 2 * MIB, "the record, read to look and to give it"
    assert trigger() < 64 * 1024
    assert rows == list(range(number))


@pytest.mark.parametrize("make", [ArchiveFiles, CopyTarget, file_system])
def test_an_address_that_cannot_be_opened_is_one_sentence_wherever_it_is_given(make: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=r"^nosuch://a/b cannot be opened: .*nosuch"):
        make("nosuch://a/b", {"x": 1})


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"fs.s3a.access.key": "k", "FS.S3A.Secret.Key": "s"}, {"key": "k", "secret": "s"}),
        ({"fs.s3a.session.token": "t"}, {"token": "t"}),
        ({"fs.s3a.endpoint": "minio:9000"}, {"endpoint_url": "https://minio:9000"}),
        ({"fs.s3a.endpoint": "http://minio:9000"}, {"endpoint_url": "http://minio:9000"}),
        (
            {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"},
            {"endpoint_url": "http://minio:9000"},
        ),
        ({"fs.s3a.endpoint.region": "eu-1"}, {"client_kwargs": {"region_name": "eu-1"}}),
        ({"fs.s3a.path.style.access": "true"}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}),
        ({"fs.s3a.aws.credentials.provider": "org.x.AnonymousAWSCredentialsProvider"}, {"anon": True}),
        ({"fs.s3a.threads.max": "9", "fs.defaultFS": "x"}, {}),
    ],
)
def test_what_hadoops_settings_mean(settings: dict[str, str], options: dict[str, object]) -> None:
    assert of_s3a(settings) == options


def test_options_are_those_of_the_longest_address() -> None:
    for root, options in (("memory://a", {"x": 1}), ("memory://a/b", {"x": 2})):
        use_options(root, options)
    found = [storage_of(path) for path in ("memory://a/c/d", "memory://a/b/d", "memory://z")]
    try:
        assert len({id(item._filesystem) for item in found}) == 3  # type: ignore[attr-defined]
    finally:
        for root in ("memory://a", "memory://a/b"):
            use_options(root, {})


@pytest.mark.parametrize("given", ["[1]", "x", '"k"'])
def test_storage_options_that_are_no_object_are_refused_without_showing_them(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        ReadOptions.parse({"path": "s3://b/a", "storageOptions": given})
    told = str(caught.value)
    assert told.startswith("option storageOptions must be a JSON object") and given not in told
