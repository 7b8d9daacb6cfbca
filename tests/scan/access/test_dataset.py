"""A store as a dataset of Arrow's: the rows of a plain read, and no more of the log than a query needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import UsageError
from rmqha.scan.api import ALL_ROWS, Decoding, Interval, RowFilter, open_store, read_store
from tests.store.log_writer import LogWriter, Message

if TYPE_CHECKING:
    from rmqha.scan.access.dataset import LogDataset

AT_MS = 1_700_000_000_000
AT = datetime.fromtimestamp(AT_MS / 1000, UTC)


def dataset(*arguments: Any, **options: Any) -> LogDataset:
    """pyarrow.dataset imports pandas where it is installed: half a second, and only these tests need it."""
    from rmqha.scan.access.dataset import LogDataset

    return LogDataset(*arguments, **options)


def rows_of(text: str) -> RowFilter:
    from rmqha.scan.access.dataset import rows_of

    return rows_of(text)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = LogWriter(tmp_path_factory.mktemp("log"), 1024 * 1024)
    for number in range(4000):
        topic = (b"orders", b"returns", b'a"b')[number % 3] if number else b"first"
        writer.append(
            Message(
                topic=topic,
                body=b"x" * 500,
                queue_id=number % 4,
                queue_offset=number,
                stored_at_ms=AT_MS + number * 1000,
                properties=b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (number % 5, number),
            )
        )
    return writer.write()


@pytest.fixture(scope="module")
def table(log: Path) -> Any:
    return pa.Table.from_batches(read_store(open_store(str(log)), Decoding()), Decoding().schema)


QUESTIONS = (
    "select count(*) from log",
    "select topic, count(*), sum(octet_length(body)) from log group by topic order by 1",
    "select queueOffset, keys, tags from log where topic = 'orders' and queueId = 2 order by 1",
    f"select queueOffset from log where storeTimestamp >= '{AT + timedelta(seconds=100):%Y-%m-%d %H:%M:%S}+00' "
    f"and storeTimestamp < '{AT + timedelta(seconds=200, milliseconds=1)}' order by 1",
    "select queueOffset from log where topic = 'a\"b' or tags = 't3' order by 1",
    "select queueOffset from log where topic in ('orders', 'first') and physicalOffset between 5000 and 90000 "
    "order by 1",
    "select queueOffset from log where not (topic = 'orders') and tags is not null order by 1 limit 7",
    "select a.queueOffset from log a join log b on a.queueOffset = b.queueOffset where a.topic = 'orders' "
    "and b.tags = 't1' order by 1",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_duckdb_gets_the_rows_of_a_table(log: Path, table: Any, question: str) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("log", dataset(log))
    found = connection.execute(question).fetchall()
    connection.register("log", table)
    assert found == connection.execute(question).fetchall()
    connection.close()


def asking(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], RowFilter]]:
    """Columns and rows of each read from now on."""
    asked = list[tuple[tuple[str, ...], RowFilter]]()

    def reading(view: Any, decoding: Decoding, rows: RowFilter) -> Any:
        asked.append((decoding.columns, rows))
        return read_store(view, decoding, rows)

    monkeypatch.setattr("rmqha.scan.access.dataset.read_store", reading)
    return asked


def test_only_what_a_question_needs_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    asked = asking(monkeypatch)
    with duckdb.connect() as connection:
        connection.register("log", dataset(log))
        connection.execute("select sum(octet_length(body)) from log where topic = 'orders' and queueId >= 2").fetchall()
    (columns, rows) = asked[-1]
    assert set(columns) <= {"topic", "body", "queueId"} and rows.topics == frozenset(["orders"])
    assert rows.intervals["queueId"].low == 2
    asked.clear()
    assert dataset(log).count_rows() == 4000 and asked == [(("queueId",), ALL_ROWS)]
    assert dataset(log).head(3, columns=["queueOffset"])["queueOffset"].to_pylist() == [0, 1, 2]


def polars() -> Any:
    import polars  # type: ignore[import-not-found,unused-ignore]

    return polars


def polars_questions(pl: Any) -> dict[str, tuple[Any, Any, RowFilter | None]]:
    """Columns, condition, and the rows of it that are read."""
    return {
        "a count": (pl.len(), pl.lit(True), None),
        "a topic and a queue": (
            pl.col("queueOffset"),
            (pl.col("topic") == "orders") & (pl.col("queueId") == 2),
            RowFilter(frozenset(["orders"]), {"queueId": Interval(2, 2)}),
        ),
        "a time": (
            pl.col("queueOffset"),
            pl.col("storeTimestamp") >= AT + timedelta(seconds=3900),
            RowFilter(intervals={"storeTimestamp": Interval(AT_MS + 3_900_000)}),
        ),
        "either": (pl.col("tags"), (pl.col("topic") == 'a"b') | (pl.col("tags") == "t3"), None),
        "several": (pl.col("queueOffset"), pl.col("topic").is_in(["orders", "first"]), None),
    }


@pytest.mark.parametrize("question", ["a count", "a topic and a queue", "a time", "either", "several"])
def test_polars_gets_the_rows_of_a_table_and_reads_what_it_needs(
    log: Path, table: Any, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    pl, asked = polars(), asking(monkeypatch)
    wanted, condition, rows = polars_questions(pl)[question]
    found = pl.scan_pyarrow_dataset(dataset(log)).filter(condition).select(wanted).collect()
    assert found.equals(pl.DataFrame(pl.from_arrow(table)).filter(condition).select(wanted))
    (columns, given_rows) = asked[-1]
    assert "body" not in columns and len(columns) <= 3
    assert rows is None or given_rows == rows


FIELDS = {
    "topic": st.sampled_from(["orders", "returns", 'a"b', "a\\b", "é", ") and (queueId == 3"]),
    "tags": st.sampled_from(["t1", "t2"]),
    "queueId": st.integers(0, 3),
    "queueOffset": st.integers(-5, 4005),
    "physicalOffset": st.integers(0, 3_000_000),
    "storeTimestamp": st.integers(0, 4_000_000_000).map(lambda us: AT + timedelta(microseconds=us)),
}


def literal(name: str, value: Any) -> Any:
    return pa.scalar(value, Decoding((name,)).schema.field(0).type)


@st.composite
def conditions(draw: Any, depth: int = 0) -> Any:
    if depth < 3 and draw(st.booleans()):
        left, right = draw(conditions(depth + 1)), draw(conditions(depth + 1))
        kind = draw(st.sampled_from(["and", "or", "not"]))
        return left & right if kind == "and" else left | right if kind == "or" else ~left
    name = draw(st.sampled_from(sorted(FIELDS)))
    field, value = pc.field(name), literal(name, draw(FIELDS[name]))
    match draw(st.integers(0, 7)):
        case 0:
            return field == value
        case 1:
            return field >= value
        case 2:
            return field < value
        case 3:
            return field <= value
        case 4:
            return field > value
        case 5:
            return field != value
        case 6:
            return field.isin([value])
    return field.is_valid()


@given(condition=conditions())
def test_any_condition_keeps_its_rows(log: Path, table: Any, condition: Any) -> None:
    found = dataset(log).to_table(columns=["queueOffset"], filter=condition)
    assert found["queueOffset"].to_pylist() == table.filter(condition)["queueOffset"].to_pylist()


def test_plain_conditions_narrow_and_others_do_not() -> None:
    both = (pc.field("topic") == 'a"b') & ((pc.field("queueOffset") > 3) & (pc.field("queueOffset") <= 9))
    assert rows_of(str(both)) == RowFilter(frozenset(['a"b']), {"queueOffset": Interval(3, 9)})
    moment = pa.scalar(AT + timedelta(microseconds=1), pa.timestamp("us", "UTC"))
    assert rows_of(str(pc.field("storeTimestamp") == moment)).intervals == {
        "storeTimestamp": Interval(AT_MS, AT_MS + 1)
    }
    for other in (
        (pc.field("topic") == "a") | (pc.field("topic") == "b"),
        ~(pc.field("topic") == "a"),
        pc.field("topic") == "a\nb",
        pc.field("body") == b"x",
        pc.field("queueId") == 1.5,
    ):
        assert rows_of(str(other)) == ALL_ROWS


def test_wrong_input_is_one_sentence(tmp_path: Path, log: Path) -> None:
    with pytest.raises(UsageError, match="the log has no column bodies; it has topic"):
        dataset(log, columns=["bodies"])
    with pytest.raises(UsageError, match="no such directory"):
        dataset(tmp_path / "x")
