"""An archive: each message once, whatever is killed when; and the way back into a store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.cli.storage.fsck import fsck
from rmqha.cli.storage.spark import spark
from rmqha.model.error import StoreError, UsageError
from rmqha.scan.api import open_store, read_store
from rmqha.spark.lake.archive import Archive, ArchiveReport, format_of, tables
from rmqha.spark.lake.files import ArchiveFiles
from rmqha.spark.lake.formats import escaped
from rmqha.spark.lake.manifest import batches
from tests.spark.lake.killing import KilledError, die_in
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack
from tests.support.patience import HANG_S, until

if TYPE_CHECKING:
    from deltalake import DeltaTable

DAY_MS = 24 * 3600 * 1000
AT_MS = 1_700_000_000_000
SMALL = 3000
"""Bytes of log for a batch."""


def log(root: Path, count: int, identity: str = "c#group-a#1", first: int = 0) -> LogWriter:
    writer = LogWriter(root, 8192)
    for number in range(first, first + count):
        topic = b"%RETRY%a-b" if number % 7 == 3 else b"orders"
        stored_at_ms = AT_MS + number * DAY_MS // 10
        writer.append(Message(topic=topic, queue_offset=number, stored_at_ms=stored_at_ms))
    writer.write(confirm_offset=writer.end, identity=identity, epochs="1\n0\n1-0\n")
    return writer


def archived(target: Path) -> list[tuple[Any, ...]]:
    """Topic, physical offset and day of each message, as a reader of Parquet directories sees them."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    parts = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive")
    found = ds.dataset(str(target), format="parquet", partitioning=parts).to_table()
    assert found["storeTimestamp"].type == pa.timestamp("us", "UTC")
    names = ("physicalOffset", "topic", "day")
    return sorted(zip(*(found[name].to_pylist() for name in names), strict=True))


def expected(root: Path) -> list[tuple[Any, ...]]:
    rows = [row for batch in read_store(open_store(str(root))) for row in batch.to_pylist()]
    return sorted((row["physicalOffset"], row["topic"], f"{row['storeTimestamp']:%Y-%m-%d}") for row in rows)


def run(target: Path, *roots: Path, **how: Any) -> ArchiveReport:
    return Archive(ArchiveFiles(str(target)), [str(root) for root in roots], {}, batch_bytes=SMALL, **how).run()


def test_each_message_stands_in_the_directory_of_its_topic_and_day(tmp_path: Path) -> None:
    writer = log(tmp_path / "s", 60)
    report = run(tmp_path / "a", tmp_path / "s")
    assert archived(tmp_path / "a") == expected(tmp_path / "s") and report.row_count == 60 and report.batch_count > 2
    assert report.places == {"c#group-a": writer.end}
    assert run(tmp_path / "a", tmp_path / "s").row_count == 0
    log(tmp_path / "s", 90)
    assert run(tmp_path / "a", tmp_path / "s").row_count == 30
    assert archived(tmp_path / "a") == expected(tmp_path / "s")
    assert (tmp_path / "a" / "topic=%25RETRY%25a-b" / "day=2023-11-15").is_dir()


STEPS = ("write", "move", "open_output", "sync", "remove", "clear", "exists")


@settings(max_examples=60, deadline=None)
@given(
    kills=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.booleans(), st.booleans()), max_size=4),
    compacts=st.booleans(),
)
def test_each_message_once_whatever_is_killed_when(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[str, int, bool, bool]], compacts: bool
) -> None:
    root = tmp_path_factory.mktemp("run")
    for round_number, (step, count, is_before, joins) in enumerate(kills):
        log(root / "s", 20 + 10 * round_number)
        with pytest.MonkeyPatch.context() as patch:
            die_in(patch, ArchiveFiles, step, count, is_before)
            with suppress(KilledError):
                run(root / "a", root / "s", compacts=joins)
    log(root / "s", 70)
    run(root / "a", root / "s", compacts=compacts)
    assert archived(root / "a") == expected(root / "s")
    assert restored(root / "a") == expected(root / "s")
    assert not list((root / "a/_rmqha/staging").glob("*"))


def restored(target: Path) -> list[tuple[Any, ...]]:
    """The same as a restore gets, in its order."""
    found = [row for table in tables(ArchiveFiles(str(target))) for row in table.to_pylist()]
    return [(row["physicalOffset"], row["topic"], f"{row['storeTimestamp']:%Y-%m-%d}") for row in found]


def test_small_files_are_joined_and_batches_stay_apart(tmp_path: Path) -> None:
    log(tmp_path / "s", 60)
    run(tmp_path / "a", tmp_path / "s")
    count = len(list((tmp_path / "a").rglob("*.parquet")))
    report = run(tmp_path / "a", tmp_path / "s", compacts=True)
    left = len(list((tmp_path / "a").rglob("*.parquet")))
    assert report.joined_count > 0 and left < count
    assert left == len({path.parent for path in (tmp_path / "a").rglob("*.parquet")}), "one for each directory"
    assert archived(tmp_path / "a") == expected(tmp_path / "s") == restored(tmp_path / "a")
    assert len(list(tables(ArchiveFiles(str(tmp_path / "a"))))) > 2, "a restore needs no more memory than before"
    assert run(tmp_path / "a", tmp_path / "s", compacts=True).joined_count == 0
    log(tmp_path / "s", 90)
    run(tmp_path / "a", tmp_path / "s", compacts=True)
    assert archived(tmp_path / "a") == expected(tmp_path / "s") == restored(tmp_path / "a")


def test_joined_files_are_joined_again(tmp_path: Path) -> None:
    log(tmp_path / "s", 200)
    run(tmp_path / "a", tmp_path / "s", by=("topic",))
    sizes = [path.stat().st_size for path in (tmp_path / "a").rglob("*.parquet")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmqha.spark.lake.formats.MERGED_FILE_BYTES", 2 * max(sizes))
        run(tmp_path / "a", tmp_path / "s", by=("topic",), compacts=True)
    assert len(list((tmp_path / "a" / "topic=orders").iterdir())) > 1
    assert run(tmp_path / "a", tmp_path / "s", by=("topic",), compacts=True).joined_count > 1
    assert restored(tmp_path / "a") == expected(tmp_path / "s")
    assert [len(list(path.iterdir())) for path in (tmp_path / "a").glob("topic=*")] == [1, 1]


def test_files_of_other_columns_are_not_joined(tmp_path: Path) -> None:
    log(tmp_path / "s", 60)
    run(tmp_path / "a", tmp_path / "s")
    log(tmp_path / "s", 120)
    other, target = {"propertiesAs": "map"}, ArchiveFiles(str(tmp_path / "a"))
    report = Archive(target, [str(tmp_path / "s")], other, batch_bytes=SMALL, compacts=True).run()
    assert report.joined_count > 0
    assert restored(tmp_path / "a") == expected(tmp_path / "s")
    kinds = [str(table.schema.field("properties").type) for table in tables(target)]
    assert kinds == sorted(kinds, reverse=True) and len(set(kinds)) == 2


# --- tables: Delta and Iceberg ----------------------------------------------------------------------------------------


def delta_table(target: Path) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(str(target))


def rows_of_table(target: Path, form: str) -> list[tuple[Any, ...]]:
    """Physical offset, topic and day of each row, by the form's own reader."""
    if form == "delta":
        found = delta_table(target).to_pyarrow_dataset().to_table()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("rmqha", uri=f"sqlite:///{target}/_rmqha/catalog.db", warehouse=f"file://{target}")
        found = catalog.load_table("rmqha.messages").scan().to_arrow()
        catalog.engine.dispose()
    return sorted(zip(*(found[name].to_pylist() for name in ("physicalOffset", "topic", "day")), strict=True))


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_grows_and_comes_back(tmp_path: Path, form: str) -> None:
    log(tmp_path / "s", 40)
    assert run(tmp_path / "a", tmp_path / "s", form=form).batch_count > 1
    log(tmp_path / "s", 60)
    assert run(tmp_path / "a", tmp_path / "s", form=form).row_count == 20
    assert rows_of_table(tmp_path / "a", form) == expected(tmp_path / "s") == restored(tmp_path / "a")
    assert run(tmp_path / "a", tmp_path / "s", form=form).row_count == 0
    with pytest.raises(UsageError, match="is an archive of another form"):
        run(tmp_path / "a", tmp_path / "s")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_has_each_message_once_whatever_is_killed_when(tmp_path: Path, form: str) -> None:
    count = 10
    for owner, step, left, is_before in (
        (ArchiveFiles, "write", 0, True),  # the layout
        (ArchiveFiles, "write", 1, True),  # the pending manifest
        (ArchiveFiles, "write", 1, False),
        (type(format_of(ArchiveFiles(str(tmp_path / "a")), form, ())), "publish", 0, True),
        (type(format_of(ArchiveFiles(str(tmp_path / "a")), form, ())), "publish", 0, False),
        (ArchiveFiles, "write", 2, True),  # the manifest's own place
        (ArchiveFiles, "remove", 0, True),
        (ArchiveFiles, "remove", 0, False),
    ):
        log(tmp_path / "s", count)
        with pytest.MonkeyPatch.context() as patch:
            die_in(patch, owner, step, left, is_before)
            with suppress(KilledError):
                run(tmp_path / "a", tmp_path / "s", form=form)
        count += 4
    log(tmp_path / "s", count)
    run(tmp_path / "a", tmp_path / "s", form=form)
    assert rows_of_table(tmp_path / "a", form) == expected(tmp_path / "s") == restored(tmp_path / "a")


def test_a_delta_table_joins_its_files_and_iceberg_says_who_can(tmp_path: Path) -> None:
    log(tmp_path / "s", 30)
    run(tmp_path / "a", tmp_path / "s", form="delta")
    before = len(delta_table(tmp_path / "a").file_uris())
    run(tmp_path / "a", tmp_path / "s", form="delta", compacts=True)
    assert len(delta_table(tmp_path / "a").file_uris()) < before
    assert rows_of_table(tmp_path / "a", "delta") == expected(tmp_path / "s") == restored(tmp_path / "a")
    with pytest.raises(UsageError, match="pyiceberg cannot join the files of an Iceberg table"):
        run(tmp_path / "i", tmp_path / "s", form="iceberg", compacts=True)


def test_a_table_of_other_columns_takes_no_more_rows(tmp_path: Path) -> None:
    log(tmp_path / "s", 10)
    run(tmp_path / "a", tmp_path / "s", form="delta")
    log(tmp_path / "s", 20)
    other = {"propertiesAs": "map"}
    with pytest.raises(UsageError, match=f"{tmp_path / 'a'} takes no more rows: "):
        Archive(ArchiveFiles(str(tmp_path / "a")), [str(tmp_path / "s")], other, form="delta").run()


KILLED = """
import os, signal, sys
from rmqha.spark.lake.files import ArchiveFiles
from tests.spark.lake.test_archive import run
from pathlib import Path

called, left = ArchiveFiles.move, [int(sys.argv[3])]

def move(*arguments):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return called(*arguments)

ArchiveFiles.move = move
run(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_killed_process_is_gone_on_from(tmp_path: Path, count: int) -> None:
    log(tmp_path / "s", 60)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "s"), str(count)],
        timeout=HANG_S,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == -signal.SIGKILL
    run(tmp_path / "a", tmp_path / "s")
    assert archived(tmp_path / "a") == expected(tmp_path / "s")


def test_another_replica_goes_on_and_one_that_is_behind_is_waited_for(tmp_path: Path) -> None:
    log(tmp_path / "one", 30)
    log(tmp_path / "two", 20, "c#group-a#2")
    run(tmp_path / "a", tmp_path / "one")
    assert run(tmp_path / "a", tmp_path / "two").row_count == 0
    log(tmp_path / "two", 50, "c#group-a#2")
    assert run(tmp_path / "a", tmp_path / "one", tmp_path / "two").row_count == 20
    assert archived(tmp_path / "a") == expected(tmp_path / "two")


def test_a_log_that_was_cut_below_the_archive_is_told(tmp_path: Path) -> None:
    log(tmp_path / "s", 30)
    run(tmp_path / "a", tmp_path / "s")
    cut = LogWriter(tmp_path / "s", 8192)
    cut.append(Message())
    cut.write(confirm_offset=cut.end, epochs="1\n0\n2-0\n")
    with pytest.raises(StoreError, match="the log was cut at 0 and written anew"):
        run(tmp_path / "a", tmp_path / "s")


def test_what_was_removed_before_it_was_archived_is_told(tmp_path: Path) -> None:
    log(tmp_path / "s", 10)
    run(tmp_path / "a", tmp_path / "s")
    log(tmp_path / "s", 200)
    (tmp_path / "s/commitlog" / f"{0:020}").unlink()
    with pytest.raises(StoreError, match="begins at 8192, and the archive ends at"):
        run(tmp_path / "a", tmp_path / "s")


def test_a_target_of_another_form_and_a_second_archiver_are_refused(tmp_path: Path) -> None:
    log(tmp_path / "s", 10)
    run(tmp_path / "a", tmp_path / "s")
    with pytest.raises(UsageError, match="is an archive of another form"):
        run(tmp_path / "a", tmp_path / "s", by=("topic",))
    with pytest.raises(UsageError, match="an archive is parted by topic, day, hour, brokerName, not by week"):
        run(tmp_path / "b", tmp_path / "s", by=("week",))
    with ArchiveFiles(str(tmp_path / "a")).locked(), pytest.raises(UsageError, match="written by another archiver"):
        run(tmp_path / "a", tmp_path / "s")


def command(*arguments: str) -> Result:
    return CliRunner().invoke(spark, arguments, catch_exceptions=False)


def test_a_real_store_goes_into_an_archive_and_back(tmp_path: Path) -> None:
    golden = unpack("n0", tmp_path) / "n0"
    archive, again = tmp_path / "a", tmp_path / "again"
    done = command("archive", "--path", str(golden), "--to", str(archive), "-o", "json")
    assert json.loads(done.stdout)["row_count"] == 746
    sizes = "mappedFileSizeCommitLog=8388608", "mappedFileSizeConsumeQueue=20000", "maxIndexNum=2000"
    options = [word for size in (*sizes, "maxHashSlotNum=500") for word in ("--option", size)]
    done = command("restore", str(archive), "--to", str(again), *options)
    assert "746 messages in" in done.stdout
    same = ("topic", "queueId", "body", "keys", "tags", "uniqKey", "properties", "flag", "bornTimestamp")

    def messages(root: Path) -> list[tuple[Any, ...]]:
        rows = [row for batch in read_store(open_store(str(root))) for row in batch.to_pylist()]
        return [tuple(_comparable(row[name]) for name in same) for row in rows]

    assert sorted(messages(again), key=str) == sorted(messages(golden), key=str)
    checked = CliRunner().invoke(fsck, [str(again)])
    assert checked.exit_code == 0, checked.output
    one = command("restore", str(archive), "--to", str(tmp_path / "one"), "--topic", "GoldOrder", *options)
    assert "100 messages in" in one.stdout


def _comparable(value: Any) -> Any:
    return json.dumps(json.loads(value), sort_keys=True) if isinstance(value, str) and value[:1] == "{" else value


def test_the_address_may_be_fsspecs(tmp_path: Path) -> None:
    log(tmp_path / "s", 40)
    target = ArchiveFiles("memory://archive/of/a-log")
    archive = Archive(target, [str(tmp_path / "s")], {}, batch_bytes=SMALL)
    assert archive.run().row_count == 40
    assert sum(table.num_rows for table in tables(target)) == 40 and len(batches(target)) > 1
    assert archive.run().row_count == 0


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    log(tmp_path / "s", 1)
    for arguments, sentence in (
        (("--every", "soon"), "option --every = 'soon' must be a time such as 30s, 5m or 1h"),
        (("--batch", "0"), "option --batch = '0' must be a size above 0"),
        (("--option", "columns=body"), "an archive needs the columns topic, storeTimestamp"),
    ):
        with pytest.raises(UsageError, match=sentence):
            command("archive", "--path", str(tmp_path / "s"), "--to", str(tmp_path / "a"), *arguments)
    with pytest.raises(UsageError, match="is no archive"):
        command("restore", str(tmp_path / "s"), "--to", str(tmp_path / "x"))


def test_names_of_directories_are_escaped_as_spark_does() -> None:
    assert escaped("%RETRY%a") == "%25RETRY%25a" and escaped("a=b/c:d") == "a%3Db%2Fc%3Ad"


def test_every_so_often_what_has_come_is_archived_and_damage_is_tried_again(tmp_path: Path) -> None:
    writer = log(tmp_path / "s", 10)
    file = tmp_path / "s/commitlog" / f"{0:020}"
    whole = file.read_bytes()
    file.write_bytes(whole[:90] + bytes([whole[90] ^ 1]) + whole[91:])
    arguments = ("spark", "archive", "--path", str(tmp_path / "s"), "--to", str(tmp_path / "a"), "--every", "50ms")
    with (tmp_path / "told").open("w") as told:
        running = subprocess.Popen([sys.executable, "-m", "rmqha", *arguments], stdout=told, stderr=told)
    try:

        def says(sentence: str) -> bool:
            assert running.poll() is None, (tmp_path / "told").read_text()
            return sentence in (tmp_path / "told").read_text()

        until(lambda: says("expected body CRC"))
        until(lambda: says("trying again in 0 s"))
        file.write_bytes(whole)
        until(lambda: says(f"archived: c#group-a up to {writer.end}"))
        writer = log(tmp_path / "s", 25)
        until(lambda: says(f"archived: c#group-a up to {writer.end}"))
        running.send_signal(signal.SIGTERM)
        assert running.wait(HANG_S) == 0
    finally:
        running.kill()
        running.wait()
    assert archived(tmp_path / "a") == expected(tmp_path / "s")
