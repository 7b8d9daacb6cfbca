"""`rmqha spark query` around the query itself: checks before Spark starts, forms of the answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len
from rich.text import Text

from rmqha.cli.storage.spark import spark
from rmqha.model.error import UsageError
from tests.store.log_writer import LogWriter, Message

ANSWER = pa.table(
    {
        "topic": ["orders", "a" * 200],
        "n": [3, 4],
        "body": [b"text", b"\xff\x00"],
        "at": [datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), None],
        "keys": [["k1", "k2"], []],
    }
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(spark, ["query", *arguments])


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def answer(*arguments: Any) -> Any:
        asked.append(arguments)
        return ANSWER

    monkeypatch.setattr("rmqha.spark.queries.query", answer)
    return asked


def test_json_lines(answered: list[tuple[Any, ...]]) -> None:
    done = run("select 1", "--path", "/a", "--path", "/b", "--option", "topic=x=y", "-o", "json")
    assert answered[0][:3] == ("select 1", ("/a", "/b"), {"topic": "x=y"})
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"topic": "orders", "n": 3, "body": "text", "at": "2026-01-02T03:04:05.678Z", "keys": ["k1", "k2"]}
    assert second["body"] == {"base64": "/wA="} and second["at"] is None


def test_table_is_whole_in_a_pipe(answered: list[tuple[Any, ...]]) -> None:
    done = run("select 1", "--path", "/a")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[1].startswith("orders") and lines[2].startswith("a" * 200 + " ")


def shown(monkeypatch: pytest.MonkeyPatch, answer: Any, columns: int) -> list[str]:
    """The lines that a terminal of this width gets."""
    monkeypatch.setattr("rmqha.spark.queries.query", lambda *_: answer)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    return [Text.from_ansi(line).plain for line in run("select 1", "--path", "/a").stdout.splitlines()]


WIDE = pa.table(
    {
        "topic": ["orders", "a" * 200],
        "offset": [2**62 + 7, -5],
        "at": [datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), None],
        "body": [b"\xe5\xad\x97" * 90, b"z"],
        "price": [1.5, 12345678.25],
    }
)


@pytest.mark.parametrize("columns", [80, 100, 140, 500])
def test_a_table_fits_the_terminal_by_cutting_long_texts_with_a_mark(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    heading, first, second = shown(monkeypatch, WIDE, columns)
    assert max(map(cell_len, (heading, first, second))) <= columns
    assert heading.split() == ["topic", "offset", "at", "body", "price"]
    for value in (str(2**62 + 7), "2026-01-02T03:04:05.678Z", "1.5", "orders"):
        assert value in first
    topic = second.split()[0]
    assert topic == "a" * 200 if columns == 500 else topic.strip("a") == "…" and len(topic) >= 8
    assert "12345678.25" in second and "-5" in second


def test_the_width_of_a_dumb_terminal_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert max(map(cell_len, shown(monkeypatch, WIDE, 140))) == 140


def test_rows_become_blocks_where_a_table_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = pa.table({f"column{n}": [10**15 + n] for n in range(30)} | {"text": ["b" * 200]})
    lines = shown(monkeypatch, many, 80)
    assert lines[0] == "row 1" and max(map(len, lines)) <= 80
    for n in range(30):
        assert f"column{n}".ljust(8) + f"  {10**15 + n}" in lines
    assert lines[-1].startswith("text      bbb") and lines[-1].endswith("…")


def test_many_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.spark.queries.query", lambda *_: pa.table({"n": list(range(5))}))
    monkeypatch.setattr("rmqha.cli.storage.spark.TABLE_MAX_ROWS", 2)
    done = run("select 1", "--path", "/a")
    assert len(done.stdout.splitlines()) == 3
    assert "2 of 5 rows shown" in done.stderr


def test_wrong_input_is_told_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.spark.queries.session", lambda name: pytest.fail("Spark was started"))
    writer = LogWriter(tmp_path / "s")
    writer.append(Message())
    root = str(writer.write())
    for arguments, sentence in (
        (["--path", str(tmp_path / "none")], "no such directory"),
        (["--path", str(tmp_path)], "is not a store"),
        (["--path", root, "--option", "topik=a"], "the nearest known one is topic"),
        (["--path", root, "--option", "topic"], "must be NAME=VALUE"),
    ):
        error = run("select 1", *arguments).exception
        assert isinstance(error, UsageError) and sentence in str(error)


def test_a_path_is_required() -> None:
    assert run("select 1").exit_code == 2


def test_the_example_names_the_directory_that_is_a_store() -> None:
    assert "--path data/broker-a-1/store" in run("--help").output


def test_the_manuals_example_without_spark_reads_an_empty_store_too(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs/use/spark.md").read_text()
    code = manual.partition("### Without Spark")[2].partition("```python\n")[2].partition("```")[0]
    assert code.count('"/data/broker-a"') == 1
    (tmp_path / "commitlog").mkdir()
    for count in (0, 1):
        writer = LogWriter(tmp_path)
        writer.append_all([Message()] * count)
        names: dict[str, Any] = {}
        exec(code.replace("/data/broker-a", str(writer.write())), names)
        assert names["found"].num_rows == count
